//! `session::list`: a page of sessions in one of three orders, filtered by status and metadata.
//!
//! Each filter is an ordered index (a facet). Several filters are joined by a leapfrog join: each index in turn is
//! asked for its first session at or after the candidate, until all agree. The cost depends on the rarest filter and
//! on the page size. A call asks a bounded number of times: filters that rarely agree give a short page with a cursor.

use super::cursor;
use crate::machine::json::{Object, canonical};
use crate::machine::refusal::{Failure, Fault};
use crate::machine::session::{SessionMeta, SessionStatus, metadata_matches};
use crate::machine::view::{Facet, ListOrder, ListPoint, View};

/// The questions to the indexes that one call asks beyond those for its page.
const SEEKS_MAX: usize = 2000;

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

pub fn query(view: &dyn View, query: &ListQuery) -> Result<ListPage, Failure> {
    let after = query.cursor.as_ref().map(|text| cursor::parse_list(text, query.order)).transpose()?;
    let facets = facets(query);
    let seeks_left = SEEKS_MAX + (query.limit + 1) * facets.len();
    let mut join = Join { view, order: query.order, facets, from: after.clone(), after, seeks_left };
    let mut sessions: Vec<SessionMeta> = Vec::new();
    loop {
        let passed = match join.next(query)? {
            Step::Found(meta) if sessions.len() < query.limit => {
                sessions.push(meta);
                continue;
            }
            Step::Found(_) => sessions.last().map(|meta| query.order.point(meta)),
            Step::Paused(passed) => Some(passed),
            Step::End => None,
        };
        let next_cursor = passed.map(|point| cursor::print_list(query.order, &point));
        return Ok(ListPage { sessions, next_cursor });
    }
}

/// What one search of the join came to.
enum Step<T> {
    Found(T),
    /// The call has asked enough. Everything up to this point is decided.
    Paused(ListPoint),
    End,
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

struct Join<'a> {
    view: &'a dyn View,
    order: ListOrder,
    facets: Vec<Facet>,
    /// Where the search continues; `None` before the first step.
    from: Option<ListPoint>,
    /// The last point that was returned. Later points only.
    after: Option<ListPoint>,
    seeks_left: usize,
}

impl Join<'_> {
    /// The next session that is in every facet.
    fn next(&mut self, query: &ListQuery) -> Result<Step<SessionMeta>, Fault> {
        loop {
            let point = match self.agree()? {
                Step::Found(point) => point,
                Step::Paused(passed) => return Ok(Step::Paused(passed)),
                Step::End => return Ok(Step::End),
            };
            self.after = Some(point.clone());
            // The metadata index holds hashes, which may collide. Check the record itself.
            if let Some(meta) = self.view.meta(&point.session_id)?
                && query.metadata.as_ref().is_none_or(|filter| metadata_matches(filter, meta.metadata.as_ref()))
            {
                return Ok(Step::Found(meta));
            }
            if self.seeks_left == 0 {
                return Ok(Step::Paused(point));
            }
        }
    }

    /// The first point after `after` that all facets contain.
    fn agree(&mut self) -> Result<Step<ListPoint>, Fault> {
        let mut agreed = 0;
        let mut candidate: Option<ListPoint> = None;
        for facet in self.facets.clone().iter().cycle() {
            let from = candidate.as_ref().or(self.from.as_ref());
            self.seeks_left = self.seeks_left.saturating_sub(1);
            let Some(point) = self.first(facet, from)? else { return Ok(Step::End) };
            agreed = if candidate.as_ref() == Some(&point) { agreed + 1 } else { 1 };
            if agreed == self.facets.len() {
                self.from = Some(point.clone());
                return Ok(Step::Found(point));
            }
            // This facet has nothing between the candidate and its own point, so the candidate does not match.
            if let Some(passed) = candidate.take().filter(|passed| *passed != point)
                && self.seeks_left == 0
            {
                return Ok(Step::Paused(passed));
            }
            candidate = Some(point);
        }
        Ok(Step::End)
    }

    /// The first point of one facet at or after `from` that was not returned yet.
    fn first(&self, facet: &Facet, from: Option<&ListPoint>) -> Result<Option<ListPoint>, Fault> {
        let points = self.view.listed(facet, self.order, from, 2)?;
        let fresh =
            |point: &ListPoint| self.after.as_ref().is_none_or(|after| self.order.compare(after, point).is_lt());
        Ok(points.into_iter().find(fresh))
    }
}
