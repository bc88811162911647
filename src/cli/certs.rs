//! Owns: `session-manager certs`: the authority of a cluster, and certificates for its nodes and clients, as files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::error::CliError;
use crate::access::Role;
use crate::access::certificate::{Certificate, Who};
use crate::access::certificate_dir::{CertificateDir, Existing};
use crate::access::credentials::now_ms;
use crate::access::tls;
use crate::machine::toolpath::time;

const DAY_MS: i64 = 86_400_000;

const EXAMPLES: &str = "\
Examples:
  session-manager certs init --cluster prod                  make the authority: ca.pem and ca.key
  session-manager certs node 1 node-1.example 10.0.0.1       make node-1.pem and node-1.key
  session-manager certs node any peers.example 10.0.0.1      make node.pem and node.key, for all nodes with --discover
  session-manager certs client ops --role admin              make ops.pem and ops.key, for `session-manager cluster`
  session-manager certs show                                 list the certificates and when they expire

A node uses them with `serve --tls-cert node-1.pem --tls-key node-1.key --peer-ca ca.pem`. Keep ca.key off the nodes: \
with it, anybody can act as any node. To renew a certificate, run the same command again with --force; nodes read it \
by themselves.";

/// Make and show the certificates of a cluster
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CertsArgs {
    #[command(subcommand)]
    verb: Verb,

    /// Directory for the files
    #[arg(long, global = true, value_name = "DIR", default_value = "./certs")]
    dir: PathBuf,

    /// Replace files that exist
    #[arg(long, global = true)]
    force: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make the authority of a cluster
    Init {
        /// Name of the cluster: letters, digits, dots and hyphens. Nodes accept certificates of their own cluster only
        #[arg(long, default_value = "session-manager")]
        cluster: String,
    },
    /// Make the certificate of a node
    Node {
        /// Id of the node (--node-id), or `any` for nodes whose id the cluster gives (--discover)
        id: NodeId,
        /// Names and addresses that clients connect to
        #[arg(required = true)]
        hosts: Vec<String>,
        /// Days until it expires
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(i64).range(1..=3650))]
        days: i64,
    },
    /// Make the certificate of an operator or a bridge
    Client {
        /// Name of the client in logs and errors: letters, digits, dots and hyphens
        name: String,
        /// What the client may do
        #[arg(long, value_enum, default_value = "admin")]
        role: Role,
        /// Days until it expires
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(i64).range(1..=3650))]
        days: i64,
    },
    /// Show certificates and when they expire
    Show {
        /// Files in PEM [default: all in the directory]
        files: Vec<PathBuf>,
    },
}

/// Whose certificate it is.
#[derive(Debug, Clone, Copy)]
enum NodeId {
    Fixed(u64),
    /// The cluster gives the id.
    Given,
}

impl std::str::FromStr for NodeId {
    type Err = NotANodeId;

    fn from_str(text: &str) -> Result<NodeId, NotANodeId> {
        match text {
            "any" => Ok(NodeId::Given),
            number => number.parse().ok().filter(|id| *id > 0).map(NodeId::Fixed).ok_or(NotANodeId),
        }
    }
}

#[derive(Debug)]
struct NotANodeId;

impl std::fmt::Display for NotANodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a node id: give a number from 1 on, or any")
    }
}

impl std::error::Error for NotANodeId {}

pub fn run(args: CertsArgs) -> Result<ExitCode, CliError> {
    let dir = CertificateDir(args.dir);
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let made = match args.verb {
        Verb::Init { cluster } => {
            check_name("--cluster", &cluster)?;
            dir.init(&cluster, existing)?
        }
        Verb::Node { id: NodeId::Given, hosts, days } => dir.issue("node", Who::AnyNode, &hosts, days, existing)?,
        Verb::Node { id: NodeId::Fixed(id), hosts, days } => {
            dir.issue(&format!("node-{id}"), Who::Node(id), &hosts, days, existing)?
        }
        Verb::Client { name, role, days } => {
            check_name("the name of the client", &name)?;
            dir.issue(&name, Who::Client { name: name.clone(), role }, &[], days, existing)?
        }
        Verb::Show { files } => {
            for file in if files.is_empty() { dir.certificates()? } else { files } {
                println!("{}", line(&file, &tls::show(&file).map_err(CliError::Tls)?));
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    println!("{}\n{}", made.key.display(), made.certificate.display());
    Ok(ExitCode::SUCCESS)
}

/// Names stand in URIs and file names.
fn check_name(what: &str, name: &str) -> Result<(), CliError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    if name.is_empty() || name.starts_with('.') || !name.chars().all(allowed) || ["ca"].contains(&name) {
        let why = format!("{what}: {name:?} cannot be used; write letters, digits, dots and hyphens, and not `ca`");
        return Err(CliError::Certificate(why));
    }
    Ok(())
}

fn line(file: &Path, certificate: &Certificate) -> String {
    let Certificate { subject, common_name, is_authority, not_after_ms } = certificate;
    let who = match subject {
        _ if *is_authority => format!("authority {common_name:?}"),
        Some(subject) => subject.to_string(),
        None => format!("{common_name:?}"),
    };
    let days = (not_after_ms - now_ms()).div_euclid(DAY_MS);
    let left = if days < 0 { "expired".to_owned() } else { format!("{days} days left") };
    format!("{}  {who}  until {} ({left})", file.display(), time::print(*not_after_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::certificate::Subject;

    fn certs(dir: &Path, verb: Verb, force: bool) -> Result<ExitCode, CliError> {
        run(CertsArgs { verb, dir: dir.to_owned(), force })
    }

    #[test]
    fn an_authority_makes_certificates_and_replaces_nothing_by_accident() {
        let dir = tempfile::tempdir().unwrap();
        let init = || Verb::Init { cluster: "prod".to_owned() };
        let node = || Verb::Node { id: NodeId::Fixed(1), hosts: vec!["localhost".to_owned()], days: 30 };
        assert!(certs(dir.path(), node(), false).unwrap_err().to_string().contains("ca.pem"));
        certs(dir.path(), init(), false).unwrap();
        assert!(certs(dir.path(), init(), false).unwrap_err().to_string().contains("--force"));
        certs(dir.path(), node(), false).unwrap();
        certs(dir.path(), node(), true).unwrap();
        let any = Verb::Node { id: "any".parse().unwrap(), hosts: vec!["localhost".to_owned()], days: 30 };
        certs(dir.path(), any, false).unwrap();
        let shown = tls::show(&dir.path().join("node.pem")).unwrap().subject.unwrap();
        assert_eq!(shown.who, Who::AnyNode);
        assert!("0".parse::<NodeId>().is_err());
        let shown = tls::show(&dir.path().join("node-1.pem")).unwrap();
        assert_eq!(shown.subject, Some(Subject::node("prod", 1)));
        assert!(line(Path::new("f"), &shown).contains("29 days left"));
        certs(dir.path(), Verb::Show { files: Vec::new() }, false).unwrap();
        for name in ["", "ca", "a/b", "../x", "größe"] {
            let client = Verb::Client { name: name.to_owned(), role: Role::Admin, days: 1 };
            assert!(certs(dir.path(), client, false).is_err(), "{name}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(dir.path().join("ca.key")).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "only the owner may read a key");
        }
    }
}
