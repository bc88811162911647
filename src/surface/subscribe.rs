//! Owns: what a stream of events may be asked for, over HTTP or gRPC: filters and where to begin, in words when they
//! make no sense.
//! Never: a wire.

use std::sync::Arc;

use crate::events::current::CurrentFeed;
use crate::events::deliver::Feed;
use crate::events::filter::{Filter, Kinds};
use crate::events::position::OLDEST;
use crate::events::stream::Stream;
use crate::machine::event::EventKind;
use crate::machine::ids::{Position, SessionId};
use crate::machine::json::Object;
use crate::machine::message::Role;

/// A subscription as a client spells it.
#[derive(Debug, Default)]
pub struct Asked {
    pub session: Option<String>,
    pub types: Vec<String>,
    pub roles: Vec<String>,
    /// JSON text.
    pub metadata: Option<String>,
    pub after: Option<String>,
    /// What the client calls `after`, for errors.
    pub after_name: &'static str,
}

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The request makes no sense; the words name the field.
    Invalid(String),
    /// The position is too old; the words say how far back one may go.
    Compacted(String),
    /// Not now.
    Unavailable(String),
}

impl Refused {
    pub fn words(&self) -> &str {
        match self {
            Refused::Invalid(words) | Refused::Compacted(words) | Refused::Unavailable(words) => words,
        }
    }
}

/// Opens the stream that was asked for.
pub async fn open(current: &Arc<CurrentFeed>, asked: Asked) -> Result<Stream, Refused> {
    let filter = filter(&asked).map_err(Refused::Invalid)?;
    let named = |why: String| match why.starts_with("compacted") {
        true => Refused::Compacted(format!("{}: {why}", asked.after_name)),
        false => Refused::Invalid(format!("{}: {why}", asked.after_name)),
    };
    loop {
        let feed = current.read(Arc::clone);
        let after = asked.after.as_deref().map(|text| position(&feed, text)).transpose().map_err(named)?;
        if let Some(after) = after {
            feed.catch_up(after).await.map_err(Refused::Unavailable)?;
        }
        // A position means nothing in data that was swapped meanwhile: it is read once more.
        if let Some(opened) = Stream::open_on(current, &feed, filter.clone(), after) {
            return opened.map_err(named);
        }
    }
}

fn position(feed: &Feed, text: &str) -> Result<Position, String> {
    if text == OLDEST { feed.oldest() } else { feed.cluster().parse(text) }
}

fn filter(asked: &Asked) -> Result<Filter, String> {
    let kinds = kinds(&asked.types)?;
    let roles = roles(&asked.roles, &asked.types, kinds)?;
    if asked.session.as_deref() == Some("") {
        return Err("session: give the id of a session, or leave it out for all of them".to_owned());
    }
    let metadata = asked.metadata.as_deref().map_or_else(|| Ok(Object::new()), metadata)?;
    Ok(Filter::of_stream(kinds, asked.session.as_deref().map(SessionId::from), roles, metadata))
}

/// `session::message-added`, or `message-added` for short.
fn kinds(types: &[String]) -> Result<Kinds, String> {
    if types.is_empty() {
        return Ok(Kinds::ALL);
    }
    let known = || EventKind::ALL.map(EventKind::trigger_type).join(", ");
    let kind = |name: &String| {
        let full = if name.starts_with("session::") { name.clone() } else { format!("session::{name}") };
        EventKind::from_trigger_type(&full)
            .ok_or_else(|| format!("type: {name:?} is no type of event, use one of {}", known()))
    };
    Ok(Kinds::of(types.iter().map(kind).collect::<Result<Vec<_>, _>>()?))
}

fn roles(roles: &[String], types: &[String], kinds: Kinds) -> Result<Option<Vec<Role>>, String> {
    if roles.is_empty() {
        return Ok(None);
    }
    let has_role = |kind| matches!(kind, EventKind::MessageAdded | EventKind::MessageUpdated);
    if !types.is_empty()
        && let Some(without) = kinds.iter().find(|kind| !has_role(*kind))
    {
        let type_name = without.trigger_type();
        return Err(format!("roles: {type_name} has no role, ask for message-added or message-updated only"));
    }
    let role = |name: &String| {
        serde_json::from_value(serde_json::Value::from(name.as_str()))
            .map_err(|_| format!("roles: {name:?} is no role, use user, assistant, function_result or custom"))
    };
    roles.iter().map(role).collect::<Result<Vec<Role>, _>>().map(Some)
}

fn metadata(text: &str) -> Result<Object, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("metadata: give a JSON object such as {{\"tenant\":\"a\"}}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::events::deliver::FeedSettings;
    use crate::events::history::History;
    use crate::events::position::ClusterTag;
    use crate::machine::ids::FeedPlace;
    use crate::machine::view::View;
    use crate::proposal::local::LocalAdapter;
    use crate::proposal::mint::SystemMint;

    fn words(asked: Asked) -> String {
        filter(&asked).expect_err("must be refused")
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
    }

    /// Data that is swapped for other data while it is asked what it knows.
    struct Swapped {
        data: LocalAdapter,
        current: OnceLock<Arc<CurrentFeed>>,
        next: Arc<Feed>,
    }

    impl History for Swapped {
        fn look(&self, look: &mut dyn FnMut(&dyn View)) {
            self.data.look(look);
        }

        fn applied(&self) -> FeedPlace {
            FeedPlace::BEGINNING
        }

        fn catch_up(&self) -> BoxFuture<'_, Result<(), String>> {
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
        let history: Arc<dyn History> = swapped.clone();
        feed.reads_from(&history);
        let current = swapped.current.get_or_init(|| CurrentFeed::new(feed.clone()));
        let asked = Asked { after: Some("old.0.7.0".to_owned()), after_name: "after", ..Asked::default() };
        let Err(Refused::Invalid(words)) = open(current, asked).await else { panic!("it was resumed") };
        assert!(words.contains("belongs to cluster `old`, this is `new`"), "{words}");
    }

    #[tokio::test]
    async fn a_position_is_refused_under_the_name_the_client_gave_it() {
        let feed = CurrentFeed::new(Feed::new(FeedSettings::default()));
        for (text, part) in [("garbage", "`garbage` is not a position"), ("other.0.1.0", "belongs to cluster `other`")]
        {
            let after = Some(text.to_owned());
            let asked = Asked { after, after_name: "Last-Event-ID", ..Asked::default() };
            let Err(Refused::Invalid(words)) = open(&feed, asked).await else { panic!("{text} was taken") };
            assert!(words.starts_with("Last-Event-ID: ") && words.contains(part), "{words}");
        }
    }
}
