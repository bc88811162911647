//! Owns: a directory with the authority of a cluster and the certificates that it issued: `NAME.pem` and `NAME.key`.
//! Never: who needs which certificate.

use std::fmt;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::authority::{self, Made};
use super::certificate::{Subject, Who};
use super::tls::{self, CertificateFiles, TlsError};

const AUTHORITY: &str = "ca";
/// How the common name of an authority begins. The name of the cluster follows.
const COMMON_NAME: &str = "session-manager ";

/// Why a certificate cannot be made or stored.
#[derive(Debug)]
pub enum CertificateDirError {
    Make(rcgen::Error),
    File { path: PathBuf, why: io::Error },
    Exists(PathBuf),
    Authority(TlsError),
}

impl fmt::Display for CertificateDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateDirError::Make(why) => write!(f, "the certificate cannot be made: {why}"),
            CertificateDirError::File { path, why } => write!(f, "{}: {why}", path.display()),
            CertificateDirError::Exists(path) => {
                write!(f, "{}: it exists; use --force to replace it", path.display())
            }
            CertificateDirError::Authority(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CertificateDirError {}

/// Whether files that exist are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Keep,
    Replace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateDir(pub PathBuf);

impl CertificateDir {
    /// The certificate of the authority.
    pub fn authority(&self) -> PathBuf {
        self.0.join(format!("{AUTHORITY}.pem"))
    }

    pub fn files(&self, name: &str) -> CertificateFiles {
        CertificateFiles { certificate: self.0.join(format!("{name}.pem")), key: self.0.join(format!("{name}.key")) }
    }

    /// Makes the authority of a cluster.
    pub fn init(&self, cluster: &str, existing: Existing) -> Result<CertificateFiles, CertificateDirError> {
        let made = authority::authority(cluster).map_err(CertificateDirError::Make)?;
        self.write(AUTHORITY, &made, existing)
    }

    /// Makes a certificate that the authority of this directory signs.
    pub fn issue(
        &self,
        name: &str,
        who: Who,
        hosts: &[String],
        days: i64,
        existing: Existing,
    ) -> Result<CertificateFiles, CertificateDirError> {
        let read =
            |path: PathBuf| std::fs::read_to_string(&path).map_err(|why| CertificateDirError::File { path, why });
        let CertificateFiles { certificate, key } = self.files(AUTHORITY);
        let authority = Made { certificate: read(certificate)?, key: read(key)? };
        let cluster = tls::show(&self.authority()).map_err(CertificateDirError::Authority)?.common_name;
        let cluster = cluster.strip_prefix(COMMON_NAME).unwrap_or(&cluster).to_owned();
        let made = authority::certificate(&authority, &Subject { cluster, who }, hosts, days);
        self.write(name, &made.map_err(CertificateDirError::Make)?, existing)
    }

    /// Only the owner may read the key. Each file appears whole.
    fn write(&self, name: &str, made: &Made, existing: Existing) -> Result<CertificateFiles, CertificateDirError> {
        std::fs::create_dir_all(&self.0).map_err(|why| self.failed(why))?;
        let files = self.files(name);
        for (path, text) in [(&files.key, &made.key), (&files.certificate, &made.certificate)] {
            if path.exists() && existing == Existing::Keep {
                return Err(CertificateDirError::Exists(path.clone()));
            }
            let readers = if *path == files.certificate { Readers::All } else { Readers::Owner };
            write_whole(path, text, readers).map_err(|why| CertificateDirError::File { path: path.clone(), why })?;
        }
        Ok(files)
    }

    /// All certificates, sorted by name.
    pub fn certificates(&self) -> Result<Vec<PathBuf>, CertificateDirError> {
        let entries = std::fs::read_dir(&self.0).map_err(|why| self.failed(why))?;
        let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.retain(|path| path.extension().is_some_and(|ending| ending == "pem"));
        found.sort();
        Ok(found)
    }

    fn failed(&self, why: io::Error) -> CertificateDirError {
        CertificateDirError::File { path: self.0.clone(), why }
    }
}

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    Owner,
    All,
}

/// Writes a file of a secret or a certificate. It appears whole, with its final rights.
pub fn write_whole(path: &Path, text: &str, readers: Readers) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Temporary files are for their owner only.
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    #[cfg(unix)]
    if readers == Readers::All {
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    #[cfg(not(unix))]
    let _ = readers;
    file.persist(path).map(drop).map_err(|error| error.error)
}
