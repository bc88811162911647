//! Owns: a client of the admin protocol, and what a failed call means.
//! Never: what is printed, or which call comes next.

pub mod survey;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};

use crate::access::tls::OperatorTls;
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::backup_part::Part;
use crate::proto::admin::{
    AddLearnerRequest, BackupHead, BackupPart, BackupRequest, Call, ChangeResponse, FinalizeRequest, FinalizeResponse,
    InitRequest, PromoteRequest, RemoveRequest, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
    TransferLeaderRequest, UpdateMemberRequest,
};

pub const PROTOCOL: u32 = 1;
/// A machine on the same network accepts a connection within this time.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// A node that sends nothing of a backup for this long has stopped.
const STALL_MAX: Duration = Duration::from_secs(60);

/// A connection to the peer address of one node.
#[derive(Debug, Clone)]
pub struct Admin {
    client: AdminClient<Channel>,
    peer: String,
    /// The cluster that must answer; empty for any.
    cluster_id: String,
    call_max: Duration,
}

/// Why a call of the admin protocol did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminError {
    /// Not an address, or no process listens there.
    Unreachable { peer: String, why: String },
    /// A process listens there that does not speak this protocol.
    NotAPeer { peer: String, why: String },
    /// The cluster has no such member.
    UnknownMember(String),
    /// The node refused the call: it belongs to another cluster, or its state forbids the change.
    Refused(String),
    /// Nothing changed, and a retry may succeed.
    Unavailable(String),
    /// No answer in time. The change may still take effect.
    Late { peer: String, call_max: Duration },
}

impl AdminError {
    /// Whether a later attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            AdminError::Unreachable { .. } | AdminError::Unavailable(_) | AdminError::Late { .. } => true,
            AdminError::NotAPeer { .. } | AdminError::UnknownMember(_) | AdminError::Refused(_) => false,
        }
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminError::Unreachable { peer, why } => {
                write!(f, "cannot reach {peer}: {why}; is a node running there with --peer-listen?")
            }
            AdminError::NotAPeer { peer, why } => write!(
                f,
                "{peer} is not the peer address of a session-manager node ({why}); give the address of its \
                 --peer-listen, not of its --listen"
            ),
            AdminError::UnknownMember(why) | AdminError::Refused(why) | AdminError::Unavailable(why) => {
                f.write_str(why)
            }
            AdminError::Late { peer, call_max } => write!(
                f,
                "{peer} did not answer within {} ms; the change may still take effect: check `session-manager cluster \
                 status`, or wait longer with --timeout-ms",
                call_max.as_millis()
            ),
        }
    }
}

impl std::error::Error for AdminError {}

impl Admin {
    pub async fn connect(peer: &str, cluster_id: &str, call_max: Duration) -> Result<Admin, AdminError> {
        Admin::connect_over(None, peer, cluster_id, call_max).await
    }

    /// Connects with the certificate of an operator, if the nodes need one.
    pub async fn connect_over(
        tls: Option<&OperatorTls>,
        peer: &str,
        cluster_id: &str,
        call_max: Duration,
    ) -> Result<Admin, AdminError> {
        let unreachable = |why: String| AdminError::Unreachable { peer: peer.to_owned(), why };
        let endpoint = Endpoint::from_shared(format!("http://{peer}"))
            .map_err(|_| unreachable("not an address; write host:port".to_owned()))?;
        let endpoint = endpoint.connect_timeout(CONNECT_MAX).tcp_nodelay(true);
        let connected = match tls {
            None => endpoint.connect().await,
            Some(tls) => endpoint.connect_with_connector(secured(tls.clone())).await,
        };
        let channel = connected.map_err(|error| unreachable(root_cause(&error)))?;
        let client = AdminClient::new(channel);
        Ok(Admin { client, peer: peer.to_owned(), cluster_id: cluster_id.to_owned(), call_max })
    }

    /// What the node knows about itself and the cluster.
    pub async fn status(&mut self) -> Result<StatusResponse, AdminError> {
        let request = self.request(|call| StatusRequest { call });
        let answered = self.client.status(request).await;
        self.result(answered)
    }

    pub async fn init(&mut self) -> Result<StatusResponse, AdminError> {
        let request = self.request(|call| InitRequest { call });
        let answered = self.client.init(request).await;
        self.result(answered)
    }

    pub async fn add_learner(&mut self, node: u64, address: &str) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| AddLearnerRequest { call, node, address: address.to_owned() });
        let answered = self.client.add_learner(request).await;
        self.result(answered)
    }

    /// Records another address of a member.
    pub async fn update_member(&mut self, node: u64, address: &str) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| UpdateMemberRequest { call, node, address: address.to_owned() });
        let answered = self.client.update_member(request).await;
        self.result(answered)
    }

    pub async fn promote(&mut self, node: u64) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| PromoteRequest { call, node });
        let answered = self.client.promote(request).await;
        self.result(answered)
    }

    pub async fn remove(&mut self, node: u64, force: bool) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| RemoveRequest { call, node, force });
        let answered = self.client.remove(request).await;
        self.result(answered)
    }

    /// Transfers leadership to a voter; 0 for the one with the longest log.
    pub async fn transfer_leader(&mut self, to: u64) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| TransferLeaderRequest { call, to });
        let answered = self.client.transfer_leader(request).await;
        self.result(answered)
    }

    pub async fn finalize(&mut self) -> Result<FinalizeResponse, AdminError> {
        let request = self.request(|call| FinalizeRequest { call });
        let answered = self.client.finalize(request).await;
        self.result(answered)
    }

    pub async fn snapshot(&mut self) -> Result<SnapshotResponse, AdminError> {
        let request = self.request(|call| SnapshotRequest { call });
        let answered = self.client.snapshot(request).await;
        self.result(answered)
    }

    /// Starts a backup. The node writes a snapshot first, which takes as long as its state is large, so the time limit
    /// of other calls does not apply.
    pub async fn backup(&mut self, local: bool) -> Result<Backup, AdminError> {
        let call = Call { protocol: PROTOCOL, cluster_id: self.cluster_id.clone(), ..Call::default() };
        let answered = self.client.backup(BackupRequest { call: Some(call), local }).await;
        let parts = self.result(answered)?;
        let mut backup = Backup { parts, head: BackupHead::default(), peer: self.peer.clone() };
        match backup.part().await? {
            Some(Part::Head(head)) => Ok(Backup { head, ..backup }),
            Some(Part::Chunk(_)) | None => {
                let why = "its backup does not begin with a head".to_owned();
                Err(AdminError::NotAPeer { peer: self.peer.clone(), why })
            }
        }
    }

    fn request<R>(&self, with: impl FnOnce(Option<Call>) -> R) -> Request<R> {
        let call = Call { protocol: PROTOCOL, cluster_id: self.cluster_id.clone(), ..Call::default() };
        let mut request = Request::new(with(Some(call)));
        request.set_timeout(self.call_max);
        request
    }

    fn result<R>(&self, answered: Result<tonic::Response<R>, Status>) -> Result<R, AdminError> {
        answered.map(tonic::Response::into_inner).map_err(|status| error_of(&status, &self.peer, self.call_max))
    }
}

/// A backup that is being received.
pub struct Backup {
    pub head: BackupHead,
    parts: Streaming<BackupPart>,
    peer: String,
}

impl Backup {
    /// The next bytes of the snapshot; `None` at the end of the stream.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, AdminError> {
        match self.part().await? {
            Some(Part::Chunk(chunk)) => Ok(Some(chunk)),
            Some(Part::Head(_)) => Err(AdminError::Refused("the backup has two heads".to_owned())),
            None => Ok(None),
        }
    }

    async fn part(&mut self) -> Result<Option<Part>, AdminError> {
        let late = || AdminError::Late { peer: self.peer.clone(), call_max: STALL_MAX };
        let part = timeout(STALL_MAX, self.parts.message()).await.map_err(|_| late())?;
        let part = part.map_err(|status| error_of(&status, &self.peer, STALL_MAX))?;
        Ok(part.and_then(|part| part.part))
    }
}

/// Dials a node and makes the TLS handshake.
fn secured(
    tls: OperatorTls,
) -> impl tower::Service<
    Uri,
    Response = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>,
    Error = std::io::Error,
    Future: Send,
> + Send {
    tower::service_fn(move |uri: Uri| {
        let tls = tls.clone();
        async move {
            let address = uri.authority().map(ToString::to_string).unwrap_or_default();
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            tls.connect(stream).await.map(TokioIo::new)
        }
    })
}

pub fn error_of(status: &Status, peer: &str, call_max: Duration) -> AdminError {
    let (peer, message) = (peer.to_owned(), status.message().to_owned());
    match status.code() {
        Code::NotFound => AdminError::UnknownMember(message),
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::DataLoss
        | Code::Aborted => AdminError::Refused(message),
        // A status with a source was made by the transport: the connection broke. One without came from the node.
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            AdminError::Unreachable { peer, why: root_cause(status) }
        }
        Code::Unavailable => AdminError::Unavailable(message),
        Code::DeadlineExceeded | Code::Cancelled => AdminError::Late { peer, call_max },
        Code::Unimplemented => AdminError::NotAPeer { peer, why: "it has no such call".to_owned() },
        Code::Unknown | Code::Internal if std::error::Error::source(status).is_some() => {
            AdminError::NotAPeer { peer, why: root_cause(status) }
        }
        Code::Ok | Code::Unknown | Code::Internal => AdminError::Refused(message),
    }
}

/// The innermost error. The layers around it only say "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn a_closed_port_is_reported_in_one_line() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = Admin::connect(&free, "", MAX).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot reach {free}: ")), "{error}");
        assert!(!error.to_string().contains('\n'));
        for nonsense in ["", "nonsense:port", "a b"] {
            assert!(Admin::connect(nonsense, "", MAX).await.is_err(), "{nonsense}");
        }
    }

    #[tokio::test]
    async fn another_service_is_not_taken_for_a_node() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
        let error = match Admin::connect(&address, "", MAX).await {
            Ok(mut admin) => admin.status().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("is not the peer address"), "{error}");
    }

    #[test]
    fn the_message_of_a_node_is_passed_on_unchanged() {
        let refused = Status::failed_precondition("removing node 2 leaves 1 of 2 voters");
        let error = error_of(&refused, "p", MAX);
        assert_eq!(error.to_string(), "removing node 2 leaves 1 of 2 voters");
        assert!(!error.is_retryable());
        assert!(error_of(&Status::unavailable("no leader"), "p", MAX).is_retryable());
        assert!(matches!(error_of(&Status::unimplemented(""), "p", MAX), AdminError::NotAPeer { .. }));
    }
}
