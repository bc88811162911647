//! Owns: the certificates and the token of a local cluster. They are made beside its data at the first start with
//! `--secure`, and kept.

use std::path::{Path, PathBuf};

use super::DevError;
use super::plan::{Plan, Seat};
use crate::access::Role;
use crate::access::certificate::Who;
use crate::access::certificate_dir::{CertificateDir, Existing, Readers, write_whole};
use crate::access::credentials::now_ms;
use crate::access::tls::{self, CertificateFiles, OperatorTls};
use crate::access::token::{self, TokenHash};
use crate::access::token_file::Line;

const DIR: &str = "certs";
const CLUSTER: &str = "dev";
const OPERATOR: &str = "operator";
const DAYS: i64 = 365;
/// A certificate that ends sooner is made again at the start.
const RENEW_BEFORE_MS: i64 = 30 * 86_400_000;

/// The files that the nodes and the clients of a secure cluster need.
#[derive(Debug)]
pub struct Security {
    certificates: CertificateDir,
    pub operator: OperatorTls,
}

impl Security {
    /// Makes what is missing below `dir`, and adds the arguments that the nodes of the plan need.
    pub fn prepare(dir: &Path, plan: &mut Plan) -> Result<Security, DevError> {
        let dir = std::path::absolute(dir).map_err(|why| DevError::Directory { dir: dir.to_owned(), why })?;
        let certificates = CertificateDir(dir.join(DIR));
        if !is_valid(&certificates.authority()) {
            certificates.init(CLUSTER, Existing::Replace)?;
        }
        let issue = |name: &str, who: Who, hosts: &[String]| match is_valid(&certificates.files(name).certificate) {
            true => Ok(certificates.files(name)),
            false => certificates.issue(name, who, hosts, DAYS, Existing::Replace),
        };
        let role = Role::Admin;
        let operator = issue(OPERATOR, Who::Client { name: OPERATOR.to_owned(), role }, &[])?;
        for seat in &mut plan.seats {
            let hosts = ["localhost".to_owned(), seat.client.ip().to_string()];
            issue(&node_name(seat), Who::Node(seat.node), &hosts)?;
        }
        let operator = OperatorTls::load(&operator, &certificates.authority()).map_err(DevError::Tls)?;
        let security = Security { certificates, operator };
        security.make_token()?;
        for seat in &mut plan.seats {
            seat.arguments = security.arguments(seat);
        }
        Ok(security)
    }

    /// One token for all clients. The nodes get its hash, the clients the token.
    fn make_token(&self) -> Result<(), DevError> {
        let (token_file, hashes) = (self.token_file(), self.hashes());
        if token_file.exists() && hashes.exists() {
            return Ok(());
        }
        let token = token::make().ok_or(DevError::NoRandomness)?;
        let hash = TokenHash::of(&token).to_string();
        let line = Line { name: CLUSTER.to_owned(), role: Role::Admin, hash, scope: None, expires: None };
        let line = serde_json::to_string(&line).map_err(|why| DevError::PlanFile { file: hashes.clone(), why })?;
        for (path, text) in [(hashes, line + "\n"), (token_file, token + "\n")] {
            write_whole(&path, &text, Readers::Owner).map_err(|why| DevError::Directory { dir: path, why })?;
        }
        Ok(())
    }

    /// The authority that clients trust.
    pub fn authority(&self) -> PathBuf {
        self.certificates.authority()
    }

    /// The file that holds the token of the clients.
    pub fn token_file(&self) -> PathBuf {
        self.certificates.0.join("token")
    }

    /// The certificate of the operator.
    pub fn operator_files(&self) -> CertificateFiles {
        self.certificates.files(OPERATOR)
    }

    fn hashes(&self) -> PathBuf {
        self.certificates.0.join("tokens")
    }

    fn arguments(&self, seat: &Seat) -> Vec<String> {
        let CertificateFiles { certificate, key } = self.certificates.files(&node_name(seat));
        let files = [
            ("--tls-cert", certificate),
            ("--tls-key", key),
            ("--peer-ca", self.authority()),
            ("--token-file", self.hashes()),
        ];
        files.into_iter().flat_map(|(name, path)| [name.to_owned(), path.display().to_string()]).collect()
    }
}

fn node_name(seat: &Seat) -> String {
    format!("node-{}", seat.node)
}

fn is_valid(path: &Path) -> bool {
    tls::show(path).is_ok_and(|certificate| certificate.not_after_ms - now_ms() > RENEW_BEFORE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Credentials;
    use crate::access::credentials::{Presented, Sources};

    #[test]
    fn a_second_start_keeps_the_certificates_and_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan::prepare(dir.path(), Some(3), None).unwrap();
        let made = Security::prepare(dir.path(), &mut plan).unwrap();
        let read = || {
            let paths = [made.authority(), made.token_file(), made.operator_files().certificate];
            paths.map(|path| std::fs::read_to_string(path).unwrap())
        };
        let before = read();
        Security::prepare(dir.path(), &mut plan).unwrap();
        assert_eq!(read(), before);
        assert!(plan.seats[2].arguments.iter().any(|word| word.ends_with("node-3.pem")));
        let sources = Sources { token_file: Some(made.hashes()), ..Sources::default() };
        let from = std::net::IpAddr::from([127, 0, 0, 1]);
        let presented = Presented { token: Some(before[1].trim()), certificate: None, from };
        let identity = Credentials::load(sources).unwrap().check(presented).unwrap();
        assert_eq!(identity.role, Role::Admin);
    }
}
