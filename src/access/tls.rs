//! Owns: TLS on the port for clients, mutual TLS between nodes and for operators, and reading the certificates again
//! when their files change. New connections use the new certificates; open ones go on.
//! Never: what is said over a connection.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::certificate::{Certificate, Subject, Who};
use super::credentials::FileStamps;
use super::identity::Identity;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A certificate chain and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why certificates cannot be used. Names the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsError {
    File {
        path: PathBuf,
        why: String,
    },
    /// The key does not belong to the certificate, or has a kind that is not supported.
    Key {
        path: PathBuf,
        why: String,
    },
    /// The certificate does not name a node.
    NotANode {
        path: PathBuf,
    },
    /// It names another node.
    OtherNode {
        path: PathBuf,
        named: u64,
        node: u64,
    },
    Authority {
        path: PathBuf,
        why: String,
    },
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::File { path, why } => write!(f, "{}: {why}", path.display()),
            TlsError::Key { path, why } => write!(f, "{}: the key cannot be used: {why}", path.display()),
            TlsError::NotANode { path } => write!(
                f,
                "{}: names no node of a cluster; make one with `session-manager certs node ID HOST`",
                path.display()
            ),
            TlsError::OtherNode { path, named, node } => {
                write!(f, "{}: was made for node {named}, but this is node {node}", path.display())
            }
            TlsError::Authority { path, why } => {
                write!(f, "{}: cannot be used as an authority: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for TlsError {}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_owned(), why };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let chain: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if chain.is_empty() { Err(wrong("holds no certificate in PEM".to_owned())) } else { Ok(chain) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| TlsError::File { path: path.to_owned(), why: error.to_string() })
}

pub fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let wrong = |error: rustls::Error| TlsError::Authority { path: path.to_owned(), why: error.to_string() };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

/// What an error names if the authorities of the system cannot be read.
const SYSTEM: &str = "the system's certificates";

fn system_roots() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // The system may hold certificates that are too old to be understood.
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let why = loaded.errors.first().map_or("there are none".to_owned(), ToString::to_string);
        return Err(TlsError::Authority { path: PathBuf::from(SYSTEM), why });
    }
    Ok(roots)
}

/// The certificate in a file, for people and metrics.
pub fn show(path: &Path) -> Result<Certificate, TlsError> {
    let chain = certificates(path)?;
    let unreadable = || TlsError::File { path: path.to_owned(), why: "is no certificate".to_owned() };
    chain.first().and_then(|leaf| Certificate::read(leaf)).ok_or_else(unreadable)
}

/// TLS on one port, read again when the files change.
pub struct ServerTls {
    files: CertificateFiles,
    /// Certificates of this authority are asked for. With `required`, a connection without one is refused.
    client_authority: Option<PathBuf>,
    required: bool,
    protocols: Vec<Vec<u8>>,
    /// The cluster in the certificate of this node, if it names one.
    cluster: Option<String>,
    current: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// The port for clients: HTTP and gRPC by ALPN, client certificates if there is an authority for them.
    pub fn for_clients(files: CertificateFiles, authority: Option<PathBuf>) -> Result<Arc<ServerTls>, TlsError> {
        ServerTls::new(files, authority, false, vec![b"h2".to_vec(), b"http/1.1".to_vec()])
    }

    fn new(
        files: CertificateFiles,
        client_authority: Option<PathBuf>,
        required: bool,
        protocols: Vec<Vec<u8>>,
    ) -> Result<Arc<ServerTls>, TlsError> {
        let current = RwLock::new(server_config(&files, client_authority.as_deref(), required, &protocols)?);
        let cluster = show(&files.certificate)?.subject.map(|subject| subject.cluster);
        Ok(Arc::new(ServerTls { files, client_authority, required, protocols, cluster, current }))
    }

    /// Makes the handshake. Returns the connection and the certificate that the client presented.
    pub async fn accept<S>(&self, stream: S) -> io::Result<(server::TlsStream<S>, Option<Certificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.and_then(|chain| chain.first()).and_then(|leaf| Certificate::read(leaf));
        Ok((stream, certificate))
    }

    /// Who presented a certificate at the port for clients. A client of another cluster of the authority is nobody.
    pub fn client(&self, certificate: &Certificate) -> Option<Arc<Identity>> {
        let theirs = certificate.subject.as_ref().map(|subject| &subject.cluster);
        if self.cluster.is_some() && theirs != self.cluster.as_ref() {
            return None;
        }
        certificate.identity()
    }

    fn read_again(&self) -> Result<(), TlsError> {
        let authority = self.client_authority.as_deref();
        let next = server_config(&self.files, authority, self.required, &self.protocols)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn watched(&self) -> Vec<PathBuf> {
        let CertificateFiles { certificate, key } = &self.files;
        [certificate, key].into_iter().chain(&self.client_authority).cloned().collect()
    }

    /// Reads the files again whenever they change.
    pub async fn follow_files(&self) {
        follow(&self.watched(), || self.read_again()).await;
    }

    /// When the certificate of this port expires.
    pub fn not_after_ms(&self) -> Option<i64> {
        show(&self.files.certificate).ok().map(|certificate| certificate.not_after_ms)
    }
}

async fn follow(files: &[PathBuf], read_again: impl Fn() -> Result<(), TlsError>) {
    let mut seen = FileStamps::of(files);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = FileStamps::of(files);
        if now == seen {
            continue;
        }
        match read_again() {
            Ok(()) => {
                seen = now;
                tracing::info!("the certificates were read again");
            }
            // Certificate and key may have been written one after the other: look again.
            Err(error) => tracing::warn!(%error, "the certificates cannot be read; the previous ones stay in use"),
        }
    }
}

fn server_config(
    files: &CertificateFiles,
    authority: Option<&Path>,
    required: bool,
    protocols: &[Vec<u8>],
) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, key) = (certificates(&files.certificate)?, private_key(&files.key)?);
    let key_wrong = |error: rustls::Error| TlsError::Key { path: files.key.clone(), why: error.to_string() };
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(key_wrong)?;
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider());
            let verifier = if required { verifier } else { verifier.allow_unauthenticated() };
            let wrong = |error: rustls::server::VerifierBuilderError| TlsError::Authority {
                path: path.to_owned(),
                why: error.to_string(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(wrong)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(key_wrong)?;
    config.alpn_protocols = protocols.to_vec();
    Ok(Arc::new(config))
}

/// The files of a node for mutual TLS with its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFiles {
    pub own: CertificateFiles,
    pub authority: PathBuf,
}

/// Mutual TLS between nodes, and for operators.
pub struct PeerTls {
    files: PeerFiles,
    /// The cluster in the certificate of this node. Only certificates of the same cluster are accepted.
    pub cluster: String,
    server: Arc<ServerTls>,
    client: RwLock<Arc<ClientConfig>>,
}

impl PeerTls {
    /// `node` is `None` while the cluster has not given this node its id.
    pub fn load(files: PeerFiles, node: Option<u64>) -> Result<Arc<PeerTls>, TlsError> {
        let path = &files.own.certificate;
        let cluster = match show(path)?.subject {
            Some(Subject { cluster, who: Who::AnyNode }) => cluster,
            Some(Subject { cluster, who: Who::Node(named) }) => match node {
                Some(node) if named != node => {
                    return Err(TlsError::OtherNode { path: path.clone(), named, node });
                }
                Some(_) | None => cluster,
            },
            Some(Subject { who: Who::Client { .. }, .. }) | None => {
                return Err(TlsError::NotANode { path: path.clone() });
            }
        };
        let server = ServerTls::new(files.own.clone(), Some(files.authority.clone()), true, vec![b"h2".to_vec()])?;
        let client = RwLock::new(peer_client(&files, &cluster)?);
        Ok(Arc::new(PeerTls { files, cluster, server, client }))
    }

    pub async fn accept<S>(&self, stream: S) -> io::Result<(server::TlsStream<S>, Option<Certificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.server.accept(stream).await
    }

    /// Makes the handshake with another node of the cluster.
    pub async fn connect<S>(&self, stream: S) -> io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.client.read().unwrap_or_else(PoisonError::into_inner).clone();
        connect_node(config, stream).await
    }

    pub async fn follow_files(&self) {
        follow(&self.server.watched(), || {
            let client = peer_client(&self.files, &self.cluster)?;
            self.server.read_again()?;
            *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
            Ok(())
        })
        .await;
    }

    pub fn not_after_ms(&self) -> Option<i64> {
        self.server.not_after_ms()
    }
}

/// Whether a handshake failed because a certificate is not valid at the time that one of the two sides takes for now.
pub fn depends_on_the_clock(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(
            rustls::Error::InvalidCertificate(
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            ) | rustls::Error::AlertReceived(AlertDescription::CertificateExpired)
        )
    )
}

/// A node is known by the URI in its certificate, not by its address, which may change.
async fn connect_node<S>(config: Arc<ClientConfig>, stream: S) -> io::Result<client::TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from("session-manager.invalid").map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, stream).await
}

fn peer_client(files: &PeerFiles, cluster: &str) -> Result<Arc<ClientConfig>, TlsError> {
    node_client(&files.own, &files.authority, Some(cluster.to_owned()))
}

fn node_client(
    own: &CertificateFiles,
    authority: &Path,
    cluster: Option<String>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let key_wrong = |error: rustls::Error| TlsError::Key { path: own.key.clone(), why: error.to_string() };
    let verifier = NodeVerifier { roots: roots(authority)?, cluster, provider: provider() };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(key_wrong)?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let config = builder.with_client_auth_cert(certificates(&own.certificate)?, private_key(&own.key)?);
    let mut config = config.map_err(key_wrong)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The side of an operator's tool: it reaches the peer port of any node of the authority.
#[derive(Debug, Clone)]
pub struct OperatorTls(Arc<ClientConfig>);

impl OperatorTls {
    pub fn load(own: &CertificateFiles, authority: &Path) -> Result<OperatorTls, TlsError> {
        Ok(OperatorTls(node_client(own, authority, None)?))
    }

    pub async fn connect<S>(&self, stream: S) -> io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        connect_node(self.0.clone(), stream).await
    }
}

/// The side of a client of the port for clients: the certificate must be for the host that it connects to.
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Trusts this authority; `None`: those of the system, or of the file that SSL_CERT_FILE names, as the SDKs do.
    pub fn load(authority: Option<&Path>) -> Result<ClientTls, TlsError> {
        let roots = match authority {
            Some(path) => roots(path)?,
            None => system_roots()?,
        };
        let path = authority.unwrap_or(Path::new(SYSTEM)).to_owned();
        let wrong = |error: rustls::Error| TlsError::Authority { path, why: error.to_string() };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(wrong)?.with_root_certificates(roots);
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(ClientTls(Arc::new(config)))
    }

    /// The same for a client that does not speak HTTP/2.
    pub fn http1_only(self) -> ClientTls {
        let mut config = (*self.0).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        ClientTls(Arc::new(config))
    }

    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.0.clone()).connect(name, stream).await
    }
}

/// Accepts certificates of nodes. Their names are URIs, which the usual verifier does not check.
#[derive(Debug)]
struct NodeVerifier {
    roots: RootCertStore,
    /// `None`: any cluster of the authority.
    cluster: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let refused = |why: String| Err(rustls::Error::General(why));
        match Certificate::read(end_entity).and_then(|certificate| certificate.subject) {
            Some(Subject { cluster, who: Who::Node(_) | Who::AnyNode }) => match &self.cluster {
                Some(ours) if *ours != cluster => {
                    refused(format!("its certificate is for a node of cluster {cluster:?}, not of {ours:?}"))
                }
                Some(_) | None => Ok(ServerCertVerified::assertion()),
            },
            Some(Subject { who: Who::Client { name, .. }, .. }) => {
                refused(format!("its certificate is for the client {name:?}, not for a node"))
            }
            None => refused("its certificate names no node of a cluster".to_owned()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
