//! Owns: calls of the admin protocol, and what a failed one means in one line.
//! Never: what is printed, or which call comes next.

use std::fmt;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::proto::admin::admin_client::AdminClient;
use crate::proto::admin::{
    AddLearnerRequest, Call, ChangeResponse, InitRequest, PromoteRequest, RemoveRequest, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse, TransferLeaderRequest,
};

const PROTOCOL: u32 = 1;
/// A machine on the same network is there within this time or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A connection to the peer address of one node.
#[derive(Debug, Clone)]
pub struct Admin {
    client: AdminClient<Channel>,
    peer: String,
    /// The cluster that is meant; empty for any.
    cluster_id: String,
    call_max: Duration,
}

/// Why a call of the admin protocol did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminError {
    /// No address, or nobody listens there.
    Unreachable { peer: String, why: String },
    /// Somebody listens there and does not speak this protocol.
    NotAPeer { peer: String, why: String },
    /// The node understood, and said no: another cluster, no such member, not possible in this state.
    Refused(String),
    /// Nothing happened; a retry may succeed.
    Unavailable(String),
    /// It may still happen.
    Late { peer: String, call_max: Duration },
}

impl AdminError {
    /// The call did not happen and may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            AdminError::Unreachable { .. } | AdminError::Unavailable(_) | AdminError::Late { .. } => true,
            AdminError::NotAPeer { .. } | AdminError::Refused(_) => false,
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
                "{peer} is not the peer address of a session-manager node ({why}); clients have a port of their own"
            ),
            AdminError::Refused(why) | AdminError::Unavailable(why) => f.write_str(why),
            AdminError::Late { peer, call_max } => write!(
                f,
                "{peer} did not answer within {} ms; it may still happen: see `session-manager cluster status`",
                call_max.as_millis()
            ),
        }
    }
}

impl std::error::Error for AdminError {}

impl Admin {
    pub async fn connect(peer: &str, cluster_id: &str, call_max: Duration) -> Result<Admin, AdminError> {
        let unreachable = |why: String| AdminError::Unreachable { peer: peer.to_owned(), why };
        let endpoint = Endpoint::from_shared(format!("http://{peer}"))
            .map_err(|_| unreachable("not an address, write host:port".to_owned()))?;
        let connected = endpoint.connect_timeout(CONNECT_MAX).tcp_nodelay(true).connect().await;
        let channel = connected.map_err(|error| unreachable(root_cause(&error)))?;
        let client = AdminClient::new(channel);
        Ok(Admin { client, peer: peer.to_owned(), cluster_id: cluster_id.to_owned(), call_max })
    }

    /// What the node knows of itself and of the cluster.
    pub async fn status(&mut self) -> Result<StatusResponse, AdminError> {
        let request = self.request(|call| StatusRequest { call });
        let answered = self.client.status(request).await;
        self.understand(answered)
    }

    pub async fn init(&mut self) -> Result<StatusResponse, AdminError> {
        let request = self.request(|call| InitRequest { call });
        let answered = self.client.init(request).await;
        self.understand(answered)
    }

    pub async fn add_learner(&mut self, node: u64, address: &str) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| AddLearnerRequest { call, node, address: address.to_owned() });
        let answered = self.client.add_learner(request).await;
        self.understand(answered)
    }

    pub async fn promote(&mut self, node: u64) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| PromoteRequest { call, node });
        let answered = self.client.promote(request).await;
        self.understand(answered)
    }

    pub async fn remove(&mut self, node: u64, force: bool) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| RemoveRequest { call, node, force });
        let answered = self.client.remove(request).await;
        self.understand(answered)
    }

    /// Hands leadership to a voter; 0 for the one that is furthest.
    pub async fn transfer_leader(&mut self, to: u64) -> Result<ChangeResponse, AdminError> {
        let request = self.request(|call| TransferLeaderRequest { call, to });
        let answered = self.client.transfer_leader(request).await;
        self.understand(answered)
    }

    pub async fn snapshot(&mut self) -> Result<SnapshotResponse, AdminError> {
        let request = self.request(|call| SnapshotRequest { call });
        let answered = self.client.snapshot(request).await;
        self.understand(answered)
    }

    fn request<R>(&self, with: impl FnOnce(Option<Call>) -> R) -> Request<R> {
        let call = Call { protocol: PROTOCOL, cluster_id: self.cluster_id.clone(), ..Call::default() };
        let mut request = Request::new(with(Some(call)));
        request.set_timeout(self.call_max);
        request
    }

    fn understand<R>(&self, answered: Result<tonic::Response<R>, Status>) -> Result<R, AdminError> {
        answered.map(tonic::Response::into_inner).map_err(|status| meaning(&status, &self.peer, self.call_max))
    }
}

fn meaning(status: &Status, peer: &str, call_max: Duration) -> AdminError {
    let (peer, said) = (peer.to_owned(), status.message().to_owned());
    match status.code() {
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::DataLoss
        | Code::Aborted => AdminError::Refused(said),
        // The connection broke, or the node said so: either way nothing was decided here.
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            AdminError::Unreachable { peer, why: root_cause(status) }
        }
        Code::Unavailable => AdminError::Unavailable(said),
        Code::DeadlineExceeded | Code::Cancelled => AdminError::Late { peer, call_max },
        Code::Unimplemented => AdminError::NotAPeer { peer, why: "it knows no such call".to_owned() },
        Code::Unknown | Code::Internal if std::error::Error::source(status).is_some() => {
            AdminError::NotAPeer { peer, why: root_cause(status) }
        }
        Code::Ok | Code::Unknown | Code::Internal => AdminError::Refused(said),
    }
}

/// The innermost reason; the layers around it say "transport error".
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
    async fn nobody_there_is_said_in_one_line() {
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
    fn what_a_node_says_is_passed_on_as_it_is() {
        let refused = Status::failed_precondition("removing node 2 leaves 1 of 2 voters");
        let error = meaning(&refused, "p", MAX);
        assert_eq!(error.to_string(), "removing node 2 leaves 1 of 2 voters");
        assert!(!error.is_retryable());
        assert!(meaning(&Status::unavailable("no leader"), "p", MAX).is_retryable());
        assert!(matches!(meaning(&Status::unimplemented(""), "p", MAX), AdminError::NotAPeer { .. }));
    }
}
