//! `session::list`: a page of sessions in one of three orders, narrowed by status and metadata.
//!
//! Each filter is an ordered index (a facet). Several filters are joined by leaping: each index in turn is asked for
//! its first session at or after the candidate, until all agree. The cost follows the rarest filter and the page.

use super::cursor;
use crate::machine::json::{Object, canonical};
use crate::machine::refusal::{Failure, Fault};
use crate::machine::session::{SessionMeta, SessionStatus, metadata_matches};
use crate::machine::view::{Facet, ListOrder, ListPoint, View};

#[derive(Debug, Clone, PartialEq)]
pub struct ListQuery {
    pub order: ListOrder,
    pub status: Option<SessionStatus>,
    /// Every given key must deep-equal the stored value.
    pub metadata: Option<Object>,
    pub cursor: Option<String>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ListPage {
    pub sessions: Vec<SessionMeta>,
    pub next_cursor: Option<String>,
}

pub fn query<V: View + ?Sized>(view: &V, query: &ListQuery) -> Result<ListPage, Failure> {
    let after = query.cursor.as_ref().map(|text| cursor::parse_list(text, query.order)).transpose()?;
    let mut join = Join { view, order: query.order, facets: facets(query), from: after.clone(), after };
    let mut sessions: Vec<SessionMeta> = Vec::new();
    while let Some(meta) = join.next(query)? {
        if sessions.len() == query.limit {
            let last = sessions.last().map(|meta| query.order.point(meta));
            let next_cursor = last.map(|point| cursor::print_list(query.order, &point));
            return Ok(ListPage { sessions, next_cursor });
        }
        sessions.push(meta);
    }
    Ok(ListPage { sessions, next_cursor: None })
}

fn facets(query: &ListQuery) -> Vec<Facet> {
    let metadata = query.metadata.iter().flatten();
    let mut facets: Vec<Facet> =
        metadata.map(|(key, value)| Facet::Metadata { key: key.clone(), value: canonical(value) }).collect();
    facets.extend(query.status.map(Facet::Status));
    if facets.is_empty() {
        facets.push(Facet::All);
    }
    facets
}

struct Join<'a, V: View + ?Sized> {
    view: &'a V,
    order: ListOrder,
    facets: Vec<Facet>,
    /// Where the search goes on; `None` before the first step.
    from: Option<ListPoint>,
    /// The last point that was handed out: only what comes after it counts.
    after: Option<ListPoint>,
}

impl<V: View + ?Sized> Join<'_, V> {
    /// The next session that every facet holds.
    fn next(&mut self, query: &ListQuery) -> Result<Option<SessionMeta>, Fault> {
        while let Some(point) = self.agree()? {
            self.after = Some(point.clone());
            // The facets hold hashes of values; the record itself has the last word.
            if let Some(meta) = self.view.meta(&point.session_id)?
                && query.metadata.as_ref().is_none_or(|filter| metadata_matches(filter, meta.metadata.as_ref()))
            {
                return Ok(Some(meta));
            }
        }
        Ok(None)
    }

    /// The first point after `after` that all facets contain.
    fn agree(&mut self) -> Result<Option<ListPoint>, Fault> {
        let mut agreed = 0;
        let mut candidate: Option<ListPoint> = None;
        for facet in self.facets.clone().iter().cycle() {
            let from = candidate.as_ref().or(self.from.as_ref());
            let Some(point) = self.first(facet, from)? else { return Ok(None) };
            agreed = if candidate.as_ref() == Some(&point) { agreed + 1 } else { 1 };
            if agreed == self.facets.len() {
                self.from = Some(point.clone());
                return Ok(Some(point));
            }
            candidate = Some(point);
        }
        Ok(None)
    }

    /// The first point of one facet at or after `from`, and after what was handed out already.
    fn first(&self, facet: &Facet, from: Option<&ListPoint>) -> Result<Option<ListPoint>, Fault> {
        let points = self.view.listed(facet, self.order, from, 2)?;
        let fresh =
            |point: &ListPoint| self.after.as_ref().is_none_or(|after| self.order.compare(after, point).is_lt());
        Ok(points.into_iter().find(fresh))
    }
}
