//! Owns: how an operator's command reaches a cluster: the peer address of a member, and the certificate to show there.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::access::tls::{CertificateFiles, OperatorTls};

/// The peer address that is asked unless `--peer` names another.
pub const DEFAULT_PEER: &str = "127.0.0.1:49135";

#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// The peer address of any member: HOST:PORT
    #[arg(long, global = true, value_name = "ADDRESS", env = "SESSION_MANAGER_PEER", default_value = DEFAULT_PEER)]
    pub peer: String,

    /// Authority of the cluster, in PEM, if its nodes need certificates
    #[arg(long, global = true, value_name = "FILE", env = "SESSION_MANAGER_CA")]
    pub ca: Option<PathBuf>,

    /// Certificate of this operator, in PEM (`session-manager certs client`)
    #[arg(long, global = true, value_name = "FILE", env = "SESSION_MANAGER_CERT")]
    pub cert: Option<PathBuf>,

    /// Private key of --cert, in PEM
    #[arg(long, global = true, value_name = "FILE", env = "SESSION_MANAGER_KEY")]
    pub key: Option<PathBuf>,

    /// Refuse to talk to any other cluster than this one
    #[arg(long, global = true, value_name = "ID", default_value = "", hide_default_value = true)]
    pub cluster_id: String,
}

impl OperatorArgs {
    pub fn tls(&self) -> Result<Option<OperatorTls>, CliError> {
        match (&self.ca, &self.cert, &self.key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                let own = CertificateFiles { certificate: cert.clone(), key: key.clone() };
                OperatorTls::load(&own, ca).map(Some).map_err(CliError::Tls)
            }
            _some_missing => Err(CliError::Certificate("--ca, --cert and --key belong together".to_owned())),
        }
    }
}
