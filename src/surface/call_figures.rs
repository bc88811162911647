//! Owns: counting the calls of this node's functions by function, door and code, and how long they took.
//! Never: a name that a caller made up. The table of functions bounds the number of series.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::errors::{CallError, Kind};
use super::gate::{Call, DOOR_COMMAND, DOOR_QUERY, Door};
use crate::metrics::{Counter, Durations, Page, catalogue};
use crate::requests;

/// Stands for all functions that this node does not know.
const UNKNOWN: &str = "unknown";
/// The code of calls whose callers stopped waiting.
pub const ABANDONED: &str = "abandoned";

/// Errors that the gate sees besides those of functions.
const OF_THE_GATE: [Kind; 3] = [Kind::FunctionNotFound, Kind::Forbidden, Kind::ShuttingDown];

/// How calls end, besides with an answer: the kinds of errors that the gate can see. All others are the last one.
const ERRORS: [Kind; OF_THE_GATE.len() + Kind::OF_FUNCTIONS.len()] = {
    let mut errors = [Kind::Storage; OF_THE_GATE.len() + Kind::OF_FUNCTIONS.len()];
    let (of_the_gate, of_functions) = errors.split_at_mut(OF_THE_GATE.len());
    of_the_gate.copy_from_slice(&OF_THE_GATE);
    of_functions.copy_from_slice(&Kind::OF_FUNCTIONS);
    errors
};

/// The figures of all calls.
pub struct CallFigures {
    /// The row of each name, old names included.
    rows: HashMap<String, usize>,
    /// One row for each function, one for each kind of work of doors, and one for all unknown names.
    functions: Vec<(&'static str, [AtDoor; Door::ALL.len()])>,
}

/// The calls of one function through one door.
#[derive(Default)]
struct AtDoor {
    started: Counter,
    answered: Counter,
    /// The caller stopped waiting, for example because its HTTP connection was lost.
    abandoned: Counter,
    failed: [Counter; ERRORS.len()],
    took: Durations,
}

/// A reading of the counters of one door.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub in_flight: u64,
    pub answered: u64,
    /// A retry gives the same error.
    pub refused: u64,
    /// A retry may succeed.
    pub failed: u64,
    pub abandoned: u64,
    /// The time all ended calls took together.
    pub busy: Duration,
}

impl Default for CallFigures {
    fn default() -> CallFigures {
        let functions = requests::served().map(|function| function.id);
        let names: Vec<&'static str> = functions.chain([DOOR_COMMAND, DOOR_QUERY]).collect();
        let old = |(row, id): (usize, &&str)| Some((requests::legacy_name(id)?, row));
        let mut rows: HashMap<String, usize> = names.iter().enumerate().filter_map(old).collect();
        rows.extend(names.iter().enumerate().map(|(row, id)| ((*id).to_owned(), row)));
        let functions = names.into_iter().chain([UNKNOWN]).map(|id| (id, Default::default())).collect();
        CallFigures { rows, functions }
    }
}

impl CallFigures {
    fn row(&self, function: &str, door: Door) -> &AtDoor {
        let row = self.rows.get(function).copied().unwrap_or(self.functions.len() - 1);
        &self.functions[row].1[door as usize]
    }

    /// The function as figures and spans name it, whatever the caller wrote.
    pub fn name_of(&self, function: &str) -> &'static str {
        self.functions[self.rows.get(function).copied().unwrap_or(self.functions.len() - 1)].0
    }

    /// Counts a call until it is dropped.
    pub fn start<'a>(&'a self, call: &'a Call) -> Running<'a> {
        let row = self.row(&call.function, call.caller.door);
        row.started.count();
        Running { row, call, started: Instant::now(), ending: Ending::Abandoned }
    }

    /// Counts a call that its role does not allow, and that never started.
    pub fn forbidden(&self, function: &str, door: Door) {
        let row = self.row(function, door);
        row.started.count();
        row.ended(Ending::of_kind(Kind::Forbidden)).count();
    }

    pub fn tally(&self, door: Door) -> Tally {
        let mut tally = Tally::default();
        for row in self.functions.iter().map(|(_, doors)| &doors[door as usize]) {
            let (answered, abandoned) = (row.answered.value(), row.abandoned.value());
            let errors: u64 = row.failed.iter().map(Counter::value).sum();
            let retryable = ERRORS.iter().zip(&row.failed).filter(|(kind, _)| kind.row().retryable);
            let failed: u64 = retryable.map(|(_, count)| count.value()).sum();
            tally.in_flight += row.started.value().saturating_sub(answered + errors + abandoned);
            tally.answered += answered;
            tally.refused += errors.saturating_sub(failed);
            tally.failed += failed;
            tally.abandoned += abandoned;
            tally.busy += row.took.total();
        }
        tally
    }

    /// Adds what happened to a page. What never happened is left out.
    pub fn measure(&self, page: &mut Page) {
        for door in Door::ALL {
            page.whole_of(catalogue::CALLS_IN_FLIGHT, &[("door", door.name())], self.tally(door).in_flight);
        }
        for (function, doors) in &self.functions {
            for (door, row) in Door::ALL.iter().zip(doors) {
                let labels = [("function", *function), ("door", door.name())];
                let errors = ERRORS.iter().zip(&row.failed).map(|(kind, count)| (kind.row().code, count));
                let endings = [("ok", &row.answered), (ABANDONED, &row.abandoned)].into_iter().chain(errors);
                for (code, count) in endings.filter(|(_, count)| count.value() > 0) {
                    let [function, door] = labels;
                    page.whole_of(catalogue::CALLS, &[function, door, ("code", code)], count.value());
                }
                if row.took.count() > 0 {
                    page.durations(catalogue::CALL_DURATION, &labels, &row.took);
                }
            }
        }
    }
}

impl AtDoor {
    fn ended(&self, ending: Ending) -> &Counter {
        match ending {
            Ending::Answered => &self.answered,
            Ending::Abandoned => &self.abandoned,
            Ending::Failed(error) => &self.failed[error],
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Answered,
    Abandoned,
    /// The place in `ERRORS`.
    Failed(usize),
}

impl Ending {
    fn of_kind(kind: Kind) -> Ending {
        Ending::Failed(ERRORS.iter().position(|known| *known == kind).unwrap_or(ERRORS.len() - 1))
    }
}

/// A call in flight. Counted as ended when dropped, so that a call whose caller went away is counted too.
pub struct Running<'a> {
    row: &'a AtDoor,
    call: &'a Call,
    pub started: Instant,
    ending: Ending,
}

impl Running<'_> {
    pub fn ends_with<T>(&mut self, answer: &Result<T, CallError>) {
        self.ending = match answer {
            Ok(_) => Ending::Answered,
            Err(error) => Ending::of_kind(error.kind()),
        };
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        self.row.ended(self.ending).count();
        self.row.took.observe(took);
        let Call { function, caller, .. } = self.call;
        tracing::trace!(function, door = ?caller.door, ending = ?self.ending, ?took, "call ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::gate::Caller;

    fn count(figures: &CallFigures, function: &str, answer: &Result<String, CallError>) {
        let call = Call::new(function, "{}", Instant::now(), Caller::unauthenticated(Door::Http));
        figures.start(&call).ends_with(answer);
    }

    #[test]
    fn the_number_of_series_does_not_grow_with_the_names_that_callers_use() {
        let figures = CallFigures::default();
        let unknown = |name: &str| Err(CallError::FunctionUnknown(name.to_owned()));
        for number in 0..1000 {
            let name = format!("made::up-{number}");
            count(&figures, &name, &unknown(&name));
        }
        count(&figures, "session::append-many", &Ok(String::new()));
        count(&figures, "session::append_many", &Ok(String::new()));
        let mut page = Page::default();
        figures.measure(&mut page);
        let text = page.print();
        let calls: Vec<&str> = text.lines().filter(|line| line.starts_with("session_manager_calls_total")).collect();
        assert_eq!(
            calls,
            [
                "session_manager_calls_total{function=\"session::append-many\",door=\"http\",code=\"ok\"} 2",
                "session_manager_calls_total{function=\"unknown\",door=\"http\",code=\"function_not_found\"} 1000",
            ]
        );
    }

    #[test]
    fn every_error_of_a_function_has_a_code_of_its_own() {
        for kind in Kind::OF_FUNCTIONS {
            assert!(ERRORS.contains(&kind), "{kind:?}");
        }
        assert_eq!(Ending::of_kind(Kind::BodyTimeout), Ending::of_kind(Kind::Storage));
    }
}
