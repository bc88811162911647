//! Owns: the queries of the state machine. One file per query; `query` is the only entry point.
//! Reads: View. Never: writes.

pub mod beside;
pub mod cursor;
pub mod export;
pub mod feed_page;
pub mod list;
pub mod messages;
pub mod pieces;
pub mod tree;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::Entry;
use super::ids::{EntryId, Position, SessionId};
use super::json::Json;
use super::refusal::{Failure, Fault, Refusal};
use super::scope::Scope;
use super::scoped_view::ScopedView;
use super::session::SessionMeta;
use super::view::{Facet, ListOrder, ListPoint, View};
use beside::BesideQuery;
use export::{ExportPage, ExportQuery};
use list::{ListPage, ListQuery};
use messages::{MessagesPage, MessagesQuery};
use pieces::{PIECE_BYTES, PIECE_RECORDS, Pieces};
use tree::{TreePage, TreeQuery};
use window::{Window, WindowQuery};

#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    /// `session::get`, `session::store::get-meta`.
    Meta(SessionId),
    List(ListQuery),
    Messages(MessagesQuery),
    Export(ExportQuery),
    Window(WindowQuery),
    Tree(TreeQuery),
    /// `session::get-message`, `session::store::get-entry`.
    Entry(SessionId, EntryId),
    /// `session::store::get-active-leaf`.
    Leaf(SessionId),
    /// `session::store::list-entries`: parents before their children. A store answers it from several pieces.
    Entries(SessionId),
    /// `session::store::list-metas`, oldest first. A store answers it from several pieces.
    Metas,
    /// The entries after one, in the order of their ids.
    EntriesAfter(SessionId, Option<EntryId>),
    /// The sessions at or after a point, oldest first.
    MetasFrom(Option<ListPoint>),
    /// A question of a caller that sees only the sessions of its scope.
    Within {
        scope: Arc<Scope>,
        query: Box<Query>,
    },
    /// The position up to which an attach point has delivered events.
    Cursor(String),
    /// The cursors of all attach points whose names start with this text.
    Cursors(String),
    /// Records beside sessions.
    Beside(BesideQuery),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Meta(Option<SessionMeta>),
    List(ListPage),
    Messages(MessagesPage),
    Export(Box<ExportPage>),
    Window(Window),
    Tree(TreePage),
    Entry(Option<Entry>),
    Leaf(Option<EntryId>),
    Entries(Vec<Entry>),
    Metas(Vec<SessionMeta>),
    Cursor(Option<Position>),
    Cursors(Vec<(String, Position)>),
    Value(Json),
}

impl Query {
    /// Whether it reads records beside sessions, which some adapters do not have.
    pub fn is_beside(&self) -> bool {
        match self {
            Query::Within { query, .. } => query.is_beside(),
            unscoped => matches!(unscoped, Query::Beside(_)),
        }
    }

    /// The size of the page that it asks for.
    pub fn page_limit(&self) -> Option<usize> {
        match self {
            Query::List(query) => Some(query.limit),
            Query::Messages(query) => Some(query.limit),
            Query::Export(query) => Some(query.limit),
            Query::Window(query) => Some(query.limit),
            Query::Tree(query) => Some(query.limit),
            Query::Within { query, .. } => query.page_limit(),
            Query::Meta(_)
            | Query::Entry(..)
            | Query::Leaf(_)
            | Query::Entries(_)
            | Query::Metas
            | Query::EntriesAfter(..)
            | Query::MetasFrom(_)
            | Query::Cursor(_)
            | Query::Cursors(_)
            | Query::Beside(_) => None,
        }
    }
}

/// Answers one query from the state.
pub fn query(view: &dyn View, query: &Query) -> Result<Result<Found, Refusal>, Fault> {
    let found = match query {
        Query::Within { scope, query } => within(view, scope, query),
        unscoped => answer(view, unscoped),
    };
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
        Err(Failure::Broken(fault)) => Err(fault),
    }
}

/// Answers a question as the caller with this scope sees the state.
fn within(view: &dyn View, scope: &Scope, query: &Query) -> Result<Found, Failure> {
    let view = ScopedView::new(view, scope);
    let Query::List(list) = query else { return answer(&view, query) };
    // The scope becomes a part of the filter, so that a page costs what the caller's own sessions cost.
    let mut metadata = list.metadata.clone().unwrap_or_default();
    for (key, value) in scope.fields() {
        if metadata.insert(key.clone(), value.clone()).is_some_and(|asked| asked != *value) {
            return Ok(Found::List(ListPage { sessions: Vec::new(), next_cursor: None }));
        }
    }
    list::query(&view, &ListQuery { metadata: Some(metadata), ..list.clone() }).map(Found::List)
}

fn answer(view: &dyn View, query: &Query) -> Result<Found, Failure> {
    match query {
        Query::Within { .. } => {
            Err(Refusal::RequestInvalid("a scope cannot stand within another scope".to_owned()).into())
        }
        Query::Meta(session_id) => view.meta(session_id).map(Found::Meta).map_err(Failure::from),
        Query::List(query) => list::query(view, query).map(Found::List),
        Query::Messages(query) => messages::query(view, query).map(Found::Messages),
        Query::Export(query) => export::query(view, query).map(|page| Found::Export(Box::new(page))),
        Query::Window(query) => window::query(view, query).map(Found::Window),
        Query::Tree(query) => tree::query(view, query).map(Found::Tree),
        Query::Entry(session_id, entry_id) => view.entry(session_id, entry_id).map(Found::Entry).map_err(Failure::from),
        Query::Leaf(session_id) => view.leaf(session_id).map(Found::Leaf).map_err(Failure::from),
        Query::Entries(session_id) => whole(view, &mut Pieces::entries(session_id)),
        Query::Metas => whole(view, &mut Pieces::metas()),
        Query::EntriesAfter(session_id, after) => {
            let piece = view.entries_after(session_id, after.as_ref(), PIECE_RECORDS, PIECE_BYTES);
            piece.map(Found::Entries).map_err(Failure::from)
        }
        Query::MetasFrom(from) => metas(view, from.as_ref()).map(Found::Metas).map_err(Failure::from),
        Query::Cursor(attach) => view.cursor(attach).map(Found::Cursor).map_err(Failure::from),
        Query::Cursors(starting) => view.cursors(starting).map(Found::Cursors).map_err(Failure::from),
        Query::Beside(query) => beside::query(view, query).map(Found::Value),
    }
}

fn whole(view: &dyn View, pieces: &mut Pieces) -> Result<Found, Failure> {
    while let Some(piece) = pieces.next_query() {
        let found = answer(view, &piece)?;
        pieces.add(found)?;
    }
    Ok(pieces.finish())
}

fn sorted(entries: Vec<Entry>) -> Vec<Entry> {
    let (mut placed, placeless): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.place.is_some());
    placed.sort_by_key(|entry| entry.place.as_ref().map(|place| place.depth));
    placed.extend(parents_first(placeless));
    placed
}

/// Sorts entries without a place (raw writes can create them) so that parents come before their children.
/// Entries whose parents form a cycle come last.
fn parents_first(entries: Vec<Entry>) -> Vec<Entry> {
    let mut waiting: BTreeMap<EntryId, Entry> = entries.into_iter().map(|entry| (entry.id.clone(), entry)).collect();
    let mut children: BTreeMap<EntryId, Vec<EntryId>> = BTreeMap::new();
    let mut next: Vec<EntryId> = Vec::new();
    for entry in waiting.values() {
        match entry.parent_id.as_ref().filter(|parent_id| waiting.contains_key(parent_id)) {
            Some(parent_id) => children.entry(parent_id.clone()).or_default().push(entry.id.clone()),
            None => next.push(entry.id.clone()),
        }
    }
    let mut ordered = Vec::with_capacity(waiting.len());
    while let Some(entry_id) = next.pop() {
        ordered.extend(waiting.remove(&entry_id));
        next.extend(children.remove(&entry_id).into_iter().flatten());
    }
    ordered.extend(waiting.into_values());
    ordered
}

fn metas(view: &dyn View, from: Option<&ListPoint>) -> Result<Vec<SessionMeta>, Fault> {
    let points = view.listed(&Facet::All, ListOrder::CreatedAsc, from, PIECE_RECORDS)?;
    let mut metas = Vec::with_capacity(points.len());
    for point in points {
        metas.extend(view.meta(&point.session_id)?);
    }
    Ok(metas)
}
