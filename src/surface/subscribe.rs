//! Owns: what a stream of events may be asked for, over HTTP or gRPC: filters and the position to start after.
//! Never: a wire.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio_util::sync::CancellationToken;

use super::errors::CallError;
use crate::access::{Action, Credentials, Identity};
use crate::events::current::CurrentFeed;
use crate::events::errors::ResumeError;
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::Stream;
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::{Object, values_below};
use crate::machine::message::Role;

/// The metadata of a filter is kept parsed as long as its stream, and a small object takes 600 bytes then.
const METADATA_BYTES_MAX: usize = 16 << 10;
const METADATA_VALUES_MAX: usize = 64;

/// A subscription as a client writes it.
#[derive(Debug, Default)]
pub struct Asked {
    pub session: Option<String>,
    pub types: Vec<String>,
    pub roles: Vec<String>,
    /// JSON text.
    pub metadata: Option<String>,
    pub after: Option<String>,
    /// The client's name for `after`, used in errors.
    pub after_name: &'static str,
}

/// Why a stream is refused. The text is for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamError {
    /// The query of the URL cannot be parsed.
    Query(String),
    /// A field may be given once only.
    Repeated(String),
    UnknownField(String),
    LastEventIdUnreadable,
    SessionEmpty,
    UnknownType(String),
    UnknownRole(String),
    /// A role filter together with a type that has no role.
    TypeWithoutRole(&'static str),
    Metadata(String),
    MetadataTooLarge,
    /// The role of the caller does not allow it. Holds the sentence.
    Forbidden(String),
    /// The stream cannot start after the given position. `name` is what the client calls it.
    Resume {
        name: &'static str,
        error: ResumeError,
    },
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Query(why) => write!(f, "the query cannot be read: {why}"),
            StreamError::Repeated(name) => write!(f, "{name}: given more than once"),
            StreamError::UnknownField(name) => {
                write!(f, "`{name}` is not a filter of /v1/events: it takes session, type, roles, metadata and after")
            }
            StreamError::LastEventIdUnreadable => {
                f.write_str("Last-Event-ID: not a position: it holds unreadable bytes")
            }
            StreamError::SessionEmpty => {
                f.write_str("session: give the id of a session, or leave it out for all of them")
            }
            StreamError::UnknownType(name) => {
                let known = EventKind::ALL.map(EventKind::trigger_type).join(", ");
                write!(f, "type: {name:?} is no type of event, use one of {known}")
            }
            StreamError::UnknownRole(name) => {
                write!(f, "roles: {name:?} is no role, use user, assistant, function_result or custom")
            }
            StreamError::TypeWithoutRole(name) => {
                write!(f, "roles: {name} has no role, ask for message-added or message-updated only")
            }
            StreamError::Metadata(why) => {
                write!(f, "metadata: give a JSON object such as {{\"tenant\":\"a\"}}: {why}")
            }
            StreamError::MetadataTooLarge => {
                write!(f, "metadata: give at most {METADATA_VALUES_MAX} values in {METADATA_BYTES_MAX} bytes")
            }
            StreamError::Forbidden(why) => f.write_str(why),
            // A node that cannot answer now says nothing about the position, so its name is left out.
            StreamError::Resume { error: ResumeError::Unavailable(why), .. } => f.write_str(why),
            StreamError::Resume { name, error } => write!(f, "{name}: {error}"),
        }
    }
}

impl std::error::Error for StreamError {}

/// Opens the stream that was asked for.
pub async fn open(current: &Arc<CurrentFeed>, asked: Asked, identity: &Identity) -> Result<Stream, StreamError> {
    if !identity.may(Action::Events) {
        return Err(StreamError::Forbidden(CallError::forbidden(identity, Action::Events).message()));
    }
    let filter = filter(&asked)?.within(identity.scope.clone());
    let refused = |error| StreamError::Resume { name: asked.after_name, error };
    loop {
        let feed = current.read(Arc::clone);
        let after = asked.after.as_deref().map(|text| feed.parse_position(text)).transpose().map_err(refused)?;
        if let Some(after) = after {
            feed.catch_up(after).await.map_err(refused)?;
        }
        // If a reload replaced the data meanwhile, the position means nothing in it: parse it again.
        if let Some(opened) = Stream::open_on(current, &feed, filter.clone(), after) {
            return opened.map_err(refused);
        }
    }
}

/// Resolves when a stream must end: the port closes, or the credentials of its caller no longer hold.
pub type Ended = Shared<BoxFuture<'static, ()>>;

pub fn ended(credentials: Arc<Credentials>, identity: Arc<Identity>, closing: CancellationToken) -> Ended {
    async move {
        tokio::select! {
            () = credentials.lapsed(&identity) => {}
            () = closing.cancelled() => {}
        }
    }
    .boxed()
    .shared()
}

fn filter(asked: &Asked) -> Result<Filter, StreamError> {
    let kinds = kinds(&asked.types)?;
    let roles = roles(&asked.roles, &asked.types, kinds)?;
    if asked.session.as_deref() == Some("") {
        return Err(StreamError::SessionEmpty);
    }
    let metadata = asked.metadata.as_deref().map_or_else(|| Ok(Object::new()), metadata)?;
    Ok(Filter::of_stream(kinds, asked.session.as_deref().map(SessionId::from), roles, metadata))
}

/// `session::message-added`, or `message-added` for short.
fn kinds(types: &[String]) -> Result<Kinds, StreamError> {
    if types.is_empty() {
        return Ok(Kinds::PUBLISHED);
    }
    let kind = |name: &String| {
        let full = if name.starts_with("session::") { name.clone() } else { format!("session::{name}") };
        EventKind::from_trigger_type(&full).ok_or_else(|| StreamError::UnknownType(name.clone()))
    };
    Ok(Kinds::of(types.iter().map(kind).collect::<Result<Vec<_>, _>>()?))
}

fn roles(roles: &[String], types: &[String], kinds: Kinds) -> Result<Option<Vec<Role>>, StreamError> {
    if roles.is_empty() {
        return Ok(None);
    }
    let has_role = |kind| matches!(kind, EventKind::MessageAdded | EventKind::MessageUpdated);
    if !types.is_empty()
        && let Some(without) = kinds.iter().find(|kind| !has_role(*kind))
    {
        return Err(StreamError::TypeWithoutRole(without.trigger_type()));
    }
    let role = |name: &String| {
        serde_json::from_value(serde_json::Value::from(name.as_str()))
            .map_err(|_| StreamError::UnknownRole(name.clone()))
    };
    roles.iter().map(role).collect::<Result<Vec<Role>, _>>().map(Some)
}

fn metadata(text: &str) -> Result<Object, StreamError> {
    if text.len() > METADATA_BYTES_MAX || values_below(text) > METADATA_VALUES_MAX {
        return Err(StreamError::MetadataTooLarge);
    }
    serde_json::from_str(text).map_err(|error| StreamError::Metadata(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::events::feed::{Feed, FeedSettings};
    use crate::events::position::ClusterTag;
    use crate::events::stored::StoredFeed;
    use crate::machine::ids::FeedPlace;
    use crate::machine::view::View;
    use crate::mint::SystemMint;
    use crate::proposal::local::LocalAdapter;
    use crate::surface::errors::Kind;

    fn words(asked: Asked) -> String {
        filter(&asked).expect_err("must be refused").to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_name_of_the_field() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(words(Asked { types: list(&["vanished"]), ..Asked::default() }).starts_with("type: \"vanished\""));
        assert!(words(Asked { roles: list(&["robot"]), ..Asked::default() }).starts_with("roles: \"robot\""));
        let both = Asked { roles: list(&["user"]), types: list(&["message-added", "deleted"]), ..Asked::default() };
        assert!(words(both).starts_with("roles: session::deleted has no role"));
        assert!(words(Asked { session: Some(String::new()), ..Asked::default() }).starts_with("session: give the id"));
        for text in ["", "[]", "{"] {
            let asked = Asked { metadata: Some(text.to_owned()), ..Asked::default() };
            assert!(words(asked).starts_with("metadata: "));
        }
        let long = format!(r#"{{"k":"{}"}}"#, "x".repeat(METADATA_BYTES_MAX));
        let many = format!(r#"{{"k":[{}0]}}"#, "{},".repeat(METADATA_VALUES_MAX));
        for text in [long, many] {
            let asked = Asked { metadata: Some(text), ..Asked::default() };
            assert!(words(asked).starts_with("metadata: give at most 64 values"));
        }
    }

    /// Data that is replaced while a position is looked up in it.
    struct Swapped {
        data: LocalAdapter,
        current: OnceLock<Arc<CurrentFeed>>,
        next: Arc<Feed>,
    }

    impl StoredFeed for Swapped {
        fn read_view(&self, read: &mut dyn FnMut(&dyn View)) {
            self.data.read_view(read);
        }

        fn applied(&self) -> FeedPlace {
            FeedPlace::BEGINNING
        }

        fn catch_up(&self) -> BoxFuture<'_, Result<(), ResumeError>> {
            self.current.get().expect("it is served").swap(self.next.clone());
            async { Ok(()) }.boxed()
        }
    }

    #[tokio::test]
    async fn a_position_is_never_resumed_in_data_that_was_swapped_meanwhile() {
        let feed_of =
            |cluster| Feed::new(FeedSettings { cluster: ClusterTag::new(cluster), ..FeedSettings::default() });
        let (feed, next) = (feed_of("old"), feed_of("new"));
        let data = LocalAdapter::memory(Arc::new(SystemMint::default()), next.clone());
        let swapped = Arc::new(Swapped { data, current: OnceLock::new(), next });
        let stored: Arc<dyn StoredFeed> = swapped.clone();
        feed.reads_from(&stored);
        let current = swapped.current.get_or_init(|| CurrentFeed::new(feed.clone()));
        let asked = Asked { after: Some("old.0.7.0".to_owned()), after_name: "after", ..Asked::default() };
        let Err(error) = open(current, asked, &Identity::open()).await else { panic!("it was resumed") };
        assert_eq!(error.kind(), Kind::InvalidStreamRequest);
        assert!(error.to_string().contains("belongs to cluster `old`, this is `new`"), "{error}");
    }

    #[tokio::test]
    async fn a_position_is_refused_under_the_name_the_client_gave_it() {
        let feed = CurrentFeed::new(Feed::new(FeedSettings::default()));
        for (text, part) in [("garbage", "`garbage` is not a position"), ("other.0.1.0", "belongs to cluster `other`")]
        {
            let after = Some(text.to_owned());
            let asked = Asked { after, after_name: "Last-Event-ID", ..Asked::default() };
            let Err(error) = open(&feed, asked, &Identity::open()).await else { panic!("{text} was accepted") };
            assert_eq!(error.kind(), Kind::InvalidStreamRequest);
            let words = error.to_string();
            assert!(words.starts_with("Last-Event-ID: ") && words.contains(part), "{words}");
        }
    }
}
