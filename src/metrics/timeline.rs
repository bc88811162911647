//! Owns: where the time of one call goes. The task of a call follows it, and the parts that it waits for note how long
//! each took, without knowing who asked. In a call that is traced, each is a span.
//! Never: a lock, or an allocation in a call that is not traced.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use futures::FutureExt;

use super::trace::{self, SpanKind};

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The turn of an expensive read, or of a large body or command.
    Turn,
    /// A leader, while there is none.
    NoLeader,
    /// The leader's confirmation of a read.
    ReadIndex,
    /// This node, until it has applied what the read must see.
    CatchUp,
    Query,
    /// The leader, which executes a mutation for this node.
    Forward,
    /// Replication of a mutation to a majority, and its apply here.
    Commit,
}

impl Step {
    const ALL: [Step; 7] =
        [Step::Turn, Step::NoLeader, Step::ReadIndex, Step::CatchUp, Step::Query, Step::Forward, Step::Commit];

    fn name(self) -> &'static str {
        match self {
            Step::Turn => "turn",
            Step::NoLeader => "no leader",
            Step::ReadIndex => "read index",
            Step::CatchUp => "catch up",
            Step::Query => "query",
            Step::Forward => "forward",
            Step::Commit => "commit",
        }
    }

    fn span_kind(self) -> SpanKind {
        match self {
            Step::Forward | Step::ReadIndex => SpanKind::Client,
            Step::Turn | Step::NoLeader | Step::CatchUp | Step::Query | Step::Commit => SpanKind::Internal,
        }
    }

    /// Most of these waits are over at once, and say nothing then.
    fn is_worth_a_span(self, took: Duration) -> bool {
        match self {
            Step::Turn | Step::CatchUp => took >= SHORT_WAIT,
            Step::NoLeader | Step::ReadIndex | Step::Query | Step::Forward | Step::Commit => true,
        }
    }
}

/// A shorter wait for a turn is no span.
const SHORT_WAIT: Duration = Duration::from_millis(1);

tokio::task_local! {
    static STEPS: [Cell<Duration>; Step::ALL.len()];
}

/// The time of a call by step. A step that was taken several times has the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeline([Duration; Step::ALL.len()]);

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut taken = Step::ALL.iter().zip(self.0).filter(|(_, took)| took.as_millis() > 0).peekable();
        if taken.peek().is_none() {
            return f.write_str("nothing that is measured");
        }
        for (nth, (step, took)) in taken.enumerate() {
            write!(f, "{}{} {} ms", if nth == 0 { "" } else { ", " }, step.name(), took.as_millis())?;
        }
        Ok(())
    }
}

/// Runs the work of one call, and says where its time went.
pub async fn followed<F: Future>(work: F) -> (F::Output, Timeline) {
    let measured = async {
        let output = work.await;
        let timeline = STEPS.with(|steps| Timeline(std::array::from_fn(|step| steps[step].get())));
        (output, timeline)
    };
    STEPS.scope(Default::default(), measured).await
}

/// Runs a part of a call and notes how long it took from now on, if the call is followed.
///
/// Not an `async fn`: that would hold the work twice, and it is large.
pub fn timed<F: Future>(step: Step, work: F) -> impl Future<Output = F::Output> {
    let began = Instant::now();
    let span = trace::step(step.name(), step.span_kind());
    trace::within(span.as_ref(), work).map(move |output| {
        let took = began.elapsed();
        if let Some(span) = span
            && !step.is_worth_a_span(took)
        {
            span.discard();
        }
        // Work that no call asked for is not followed.
        let _ = STEPS.try_with(|steps| {
            let sum = &steps[step as usize];
            sum.set(sum.get() + took);
        });
        output
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_of_a_call_is_summed_by_step_and_other_work_is_left_alone() {
        let pause = Duration::from_millis(20);
        timed(Step::Query, tokio::time::sleep(pause)).await;
        let (answer, timeline) = followed(async {
            timed(Step::Commit, tokio::time::sleep(pause)).await;
            timed(Step::Commit, tokio::time::sleep(pause)).await;
            timed(Step::NoLeader, async { 7 }).await
        })
        .await;
        assert_eq!(answer, 7);
        assert!(timeline.0[Step::Commit as usize] >= 2 * pause);
        assert_eq!(timeline.0[Step::Query as usize], Duration::ZERO);
        let text = timeline.to_string();
        assert!(text.starts_with("commit ") && text.ends_with(" ms"), "{text}");
        assert_eq!(Timeline::default().to_string(), "nothing that is measured");
    }
}
