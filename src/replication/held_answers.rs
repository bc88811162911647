//! Owns: when a follower sends its answers to append requests. After a commit the leader sends a request without entries,
//! which only says that the commit moved. Nothing on the leader waits for the answer to it, so this answer waits for the
//! next one and travels together with it: one write, and one wake-up of the leader, instead of two.
//! Never: answer in the place of consensus, or change the order of answers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::{Sleep, sleep};

/// An answer waits at most this long: much less than the leader waits for it.
const HELD: Duration = Duration::from_millis(10);

/// At most this many answers wait: fewer than the requests that a leader has in flight, or it would wait for them.
const HELD_MAX: usize = 2;

/// Whether each request that is not answered yet may wait for its answer, oldest first. Shared by those who pass on
/// requests and answers.
#[derive(Clone, Default)]
pub struct Unhurried(Arc<Mutex<VecDeque<bool>>>);

impl Unhurried {
    /// A request is passed on.
    pub fn begun(&self, is_empty: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(is_empty);
    }

    fn answered(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(false)
    }
}

/// Answers in their order, some of them later.
pub struct HeldAnswers<S: Stream> {
    answers: S,
    unhurried: Unhurried,
    held: VecDeque<S::Item>,
    /// Set while an answer is held.
    release_at: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl<S: Stream + Unpin> HeldAnswers<S> {
    pub fn new(answers: S, unhurried: Unhurried) -> HeldAnswers<S> {
        HeldAnswers { answers, unhurried, held: VecDeque::new(), release_at: None, ended: false }
    }
}

impl<T, E, S: Stream<Item = Result<T, E>> + Unpin> Stream for HeldAnswers<S>
where
    S::Item: Unpin,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // Without a time to release them, what is held is sent now.
        while this.held.is_empty() || this.release_at.is_some() {
            if this.ended {
                break;
            }
            match this.answers.poll_next_unpin(cx) {
                Poll::Ready(Some(answer)) => {
                    let waits = this.unhurried.answered() && answer.is_ok();
                    this.held.push_back(answer);
                    if !waits || this.held.len() > HELD_MAX {
                        this.release_at = None;
                    } else if this.release_at.is_none() {
                        this.release_at = Some(Box::pin(sleep(HELD)));
                    }
                }
                Poll::Ready(None) => this.ended = true,
                Poll::Pending => match &mut this.release_at {
                    Some(release_at) => {
                        std::task::ready!(release_at.as_mut().poll(cx));
                        this.release_at = None;
                    }
                    None => return Poll::Pending,
                },
            }
        }
        Poll::Ready(this.held.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    struct Fixture {
        unhurried: Unhurried,
        answer: mpsc::UnboundedSender<Result<u32, &'static str>>,
    }

    impl Fixture {
        fn answer(&self, number: u32, is_empty: bool) {
            self.unhurried.begun(is_empty);
            self.answer.send(Ok(number)).unwrap();
        }
    }

    fn held() -> (Fixture, impl Stream<Item = Result<u32, &'static str>> + Unpin) {
        let (answer, mut answers) = mpsc::unbounded_channel();
        let unhurried = Unhurried::default();
        let answers = futures::stream::poll_fn(move |cx| answers.poll_recv(cx));
        (Fixture { unhurried: unhurried.clone(), answer }, HeldAnswers::new(answers, unhurried))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_an_empty_request_travels_with_the_next_one() {
        let (from, mut answers) = held();
        from.answer(1, false);
        assert_eq!(answers.next().now_or_never(), Some(Some(Ok(1))));
        from.answer(2, true);
        assert_eq!(answers.next().now_or_never(), None, "nobody is in a hurry");
        from.answer(3, false);
        assert_eq!(answers.next().now_or_never(), Some(Some(Ok(2))));
        assert_eq!(answers.next().now_or_never(), Some(Some(Ok(3))));
        assert_eq!(answers.next().now_or_never(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_wait_long_and_few_wait() {
        let (from, mut answers) = held();
        from.answer(1, true);
        let begun = Instant::now();
        assert_eq!(answers.next().await, Some(Ok(1)));
        assert!((HELD..2 * HELD).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        for number in 0..=HELD_MAX as u32 {
            from.answer(number, true);
        }
        for number in 0..=HELD_MAX as u32 {
            assert_eq!(answers.next().now_or_never(), Some(Some(Ok(number))));
        }
        assert_eq!(answers.next().now_or_never(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_and_the_end_release_what_is_held() {
        let (from, mut answers) = held();
        from.answer(1, true);
        from.unhurried.begun(true);
        from.answer.send(Err("refused")).unwrap();
        assert_eq!(answers.next().now_or_never(), Some(Some(Ok(1))));
        assert_eq!(answers.next().now_or_never(), Some(Some(Err("refused"))));
        from.answer(2, true);
        drop(from);
        assert_eq!(answers.next().now_or_never(), Some(Some(Ok(2))));
        assert_eq!(answers.next().now_or_never(), Some(None));
        assert_eq!(answers.next().now_or_never(), Some(None));
    }
}
