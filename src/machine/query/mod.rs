//! Owns: what can be asked of the machine. One file per query; `query` is the only way in.
//! Reads: View. Never: writes.

pub mod cursor;
pub mod feed;
pub mod list;
pub mod messages;

use std::collections::BTreeMap;

use super::entry::Entry;
use super::ids::{EntryId, Position, SessionId};
use super::refusal::{Failure, Fault, Refusal};
use super::session::SessionMeta;
use super::view::{Facet, ListOrder, View};
use list::{ListPage, ListQuery};
use messages::{MessagesPage, MessagesQuery};

#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    /// `session::get`, `session::store::get-meta`.
    Meta(SessionId),
    List(ListQuery),
    Messages(MessagesQuery),
    /// `session::get-message`, `session::store::get-entry`.
    Entry(SessionId, EntryId),
    /// `session::store::get-active-leaf`.
    Leaf(SessionId),
    /// `session::store::list-entries`: parents before their children.
    Entries(SessionId),
    /// `session::store::list-metas`, oldest first.
    Metas,
    /// How far the events are delivered through an attach point.
    Cursor(String),
    /// The same for every attach point whose name starts so.
    Cursors(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Meta(Option<SessionMeta>),
    List(ListPage),
    Messages(MessagesPage),
    Entry(Option<Entry>),
    Leaf(Option<EntryId>),
    Entries(Vec<Entry>),
    Metas(Vec<SessionMeta>),
    Cursor(Option<Position>),
    Cursors(Vec<(String, Position)>),
}

/// Answers one question from the state.
pub fn query<V: View + ?Sized>(view: &V, query: &Query) -> Result<Result<Found, Refusal>, Fault> {
    let found = match query {
        Query::Meta(session_id) => view.meta(session_id).map(Found::Meta).map_err(Failure::from),
        Query::List(query) => list::query(view, query).map(Found::List),
        Query::Messages(query) => messages::query(view, query).map(Found::Messages),
        Query::Entry(session_id, entry_id) => view.entry(session_id, entry_id).map(Found::Entry).map_err(Failure::from),
        Query::Leaf(session_id) => view.leaf(session_id).map(Found::Leaf).map_err(Failure::from),
        Query::Entries(session_id) => entries(view, session_id).map(Found::Entries).map_err(Failure::from),
        Query::Metas => metas(view).map(Found::Metas).map_err(Failure::from),
        Query::Cursor(attach) => view.cursor(attach).map(Found::Cursor).map_err(Failure::from),
        Query::Cursors(starting) => view.cursors(starting).map(Found::Cursors).map_err(Failure::from),
    };
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
        Err(Failure::Broken(fault)) => Err(fault),
    }
}

fn entries<V: View + ?Sized>(view: &V, session_id: &SessionId) -> Result<Vec<Entry>, Fault> {
    let (mut placed, placeless): (Vec<Entry>, Vec<Entry>) =
        view.entries(session_id)?.into_iter().partition(|entry| entry.place.is_some());
    placed.sort_by_key(|entry| entry.place.as_ref().map(|place| place.depth));
    placed.extend(parents_first(placeless));
    Ok(placed)
}

/// Entries without a place (raw writes may bring them about) in an order where parents come before their children.
/// Entries whose parents form a circle have no such order and come last.
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

fn metas<V: View + ?Sized>(view: &V) -> Result<Vec<SessionMeta>, Fault> {
    let points = view.listed(&Facet::All, ListOrder::CreatedAsc, None, usize::MAX)?;
    let mut metas = Vec::with_capacity(points.len());
    for point in points {
        metas.extend(view.meta(&point.session_id)?);
    }
    Ok(metas)
}
