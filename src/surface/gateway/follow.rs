//! Owns: following one session's stream: the snapshot, the replay with exact gaps, and the live tail.
//! Never: what an event means.
//!
//! The subscription to live events is opened before the snapshot is read, so nothing falls between them. A live event
//! that does not follow the last one shows a hole: the kept events of the hole are read from the journal, and the rest is
//! told as a gap. A client that does not read therefore costs a place in the feed and nothing else.

use std::sync::Arc;

use serde_json::{Value, json};

use super::connection::Connection;
use super::errors::GatewayError;
use super::pushes::is_push;
use super::sessions::{Speaker, record};
use super::{Gateway, Reads};
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::query::beside::BesideQuery;
use crate::machine::turn::TurnQuery;
use crate::machine::turn::read::{CurrentTurn, JournalPage, Snapshot};
use crate::machine::turn::record::ToolInFlight;
use crate::planted::{self, Bug};
use crate::surface::socket::Text;

/// Events of the journal that are read at a time.
const PAGE: usize = 200;
/// Messages of the history in a snapshot.
const RECENT_MAX: u64 = 50;

/// The event that answers `stop_turn`.
pub const STOPPED: &str = "stop_acknowledged";

/// One event of a stream: its number and its text.
pub struct Numbered {
    pub seq: u64,
    pub text: Text,
}

/// One event of the feed about a session's stream.
pub struct Streamed {
    /// The name of the event; empty if there is none.
    pub kind: String,
    /// `None` for events without a number, such as `stop_acknowledged`.
    pub seq: Option<u64>,
    pub turn_id: Option<String>,
    /// The turn was taken back because no driver came.
    pub is_refused: bool,
    /// As clients get it.
    pub text: Option<Text>,
}

impl Streamed {
    /// `None` for what is no event.
    pub fn of(item: &Item) -> Option<Streamed> {
        let Item::Event(committed, _) = item else { return None };
        let payload = committed.payload();
        let name = |json: &str| serde_json::from_str::<String>(json).ok();
        let event = payload.field("event").map(Json::adopt);
        Some(Streamed {
            kind: event.as_ref().and_then(|event| name(event.field("type")?)).unwrap_or_default(),
            seq: payload.field("seq").and_then(|seq| seq.parse().ok()),
            turn_id: payload.field("turn_id").and_then(name),
            is_refused: payload.field("refused").is_some(),
            text: event.map(|event| event.text().into()),
        })
    }
}

/// Subscribes to the stream of a session.
pub fn subscribe(gateway: &Gateway, speaker: &Speaker, session: &str) -> Result<Stream, GatewayError> {
    let session_id = Some(SessionId::from(session));
    let filter = Filter::of_stream(Kinds::of([EventKind::StreamEvent]), session_id, None, Object::new());
    gateway.subscribe(filter.within(speaker.person.scope()))
}

/// Sends the snapshot and starts to follow. The task ends with the connection, or when the client leaves.
pub async fn join(
    connection: &Arc<Connection>,
    speaker: &Speaker,
    session: &str,
    after_seq: Option<u64>,
) -> Result<(), GatewayError> {
    let gateway = &connection.gateway;
    connection.check_room(session)?;
    let stream = subscribe(gateway, speaker, session)?;
    let _joining = connection.joining(session);
    // The head is a linearizable read: no node knows less than another one delivered.
    let snapshot = gateway.snapshot(speaker, session).await?;
    let head = snapshot.head_seq;
    if after_seq.is_some_and(|after| after > head) {
        let why = format!("afterSeq: the session's stream is at {head}, give that number or a lower one");
        return Err(GatewayError::InvalidMessage(why));
    }
    let history = gateway.history(speaker, session, None, RECENT_MAX).await?;
    let followers = gateway.audience.of(session) + usize::from(!connection.follows(session));
    connection.send(&state_snapshot(&snapshot, speaker, &history, followers));
    if let Some(turn) = &snapshot.current_turn {
        connection.send(&stream_snapshot(session, turn));
    }
    let follower = Follower {
        connection: connection.clone(),
        speaker: speaker.clone(),
        session: session.to_owned(),
        at: after_seq.unwrap_or(head),
    };
    let replay_to = after_seq.map(|_| head);
    connection.follow(session, follower.run(stream, replay_to));
    Ok(())
}

fn state_snapshot(snapshot: &Snapshot, speaker: &Speaker, history: &[Value], followers: usize) -> Value {
    let stream = json!({ "state": snapshot.state, "lastActivityAt": snapshot.last_activity_at });
    let turn = snapshot.current_turn.as_ref().map(|turn| {
        json!({
            "turnId": turn.turn_id,
            "textSoFar": turn.text_so_far,
            "startedAt": turn.started_at,
            "asOfSeq": turn.as_of_seq,
        })
    });
    json!({
        "type": "state_snapshot",
        "sessionId": snapshot.session.session_id,
        "session": record(&json!(snapshot.session), &stream, &speaker.person),
        "currentTurn": turn,
        "recentHistory": history,
        "subscriberCount": followers,
        "sandbox": snapshot.sandbox,
        "headSeq": snapshot.head_seq,
        "pendingRequests": snapshot.pending_requests,
        "mode": snapshot.mode,
        "autonomyProfile": snapshot.profile,
        "settings": snapshot.settings,
    })
}

fn stream_snapshot(session: &str, turn: &CurrentTurn) -> Value {
    let tool = |tool: &ToolInFlight| {
        json!({
            "toolCallId": tool.tool_call_id,
            "toolName": tool.tool_name,
            "status": if tool.called { "running" } else { "streaming" },
            "argsSoFar": tool.args_so_far,
        })
    };
    json!({
        "type": "stream_snapshot",
        "sessionId": session,
        "turnId": turn.turn_id,
        "textSoFar": turn.text_so_far,
        "thinkingSoFar": turn.thinking_so_far,
        "toolCalls": turn.tool_calls.iter().map(tool).collect::<Vec<_>>(),
    })
}

/// One client that follows one session.
struct Follower {
    connection: Arc<Connection>,
    speaker: Speaker,
    session: String,
    /// The client knows everything up to this number.
    at: u64,
}

impl Follower {
    async fn run(mut self, stream: Stream, replay_to: Option<u64>) {
        if let Some(head) = replay_to
            && self.replay(head).await.is_err()
        {
            return self.give_up();
        }
        loop {
            let Some(item) = stream.follow().await else {
                match self.close_gap().await {
                    Ok(()) => continue,
                    Err(_) => return self.give_up(),
                }
            };
            // A client that does not read waits here, and the feed goes on without it.
            self.connection.outbox.room_for_events().await;
            let Some(Streamed { kind, seq, text: Some(text), .. }) = Streamed::of(&item) else { continue };
            match seq {
                // All connections of the tenant get it.
                None if is_push(&kind) => {}
                // Only those who asked for it are told.
                None if kind == STOPPED && !self.connection.takes_stop(&self.session) => {}
                None => self.connection.send_text(text),
                Some(seq) if seq <= self.at => {}
                Some(seq) => {
                    if seq > self.at + 1 && self.fill(seq - 1).await.is_err() {
                        return self.give_up();
                    }
                    self.tell(Numbered { seq, text });
                }
            }
        }
    }

    /// Sends everything that is kept up to the head of the snapshot.
    async fn replay(&mut self, head: u64) -> Result<(), GatewayError> {
        let begun = self.at;
        let last = self.fill(head).await?.unwrap_or(begun);
        let complete = json!({ "type": "replay_complete", "sessionId": self.session, "lastSeq": last });
        self.connection.send(&complete);
        Ok(())
    }

    /// After the node was behind, for example because it installed a snapshot: the last events may be some that are not
    /// kept, so no event would show the hole.
    async fn close_gap(&mut self) -> Result<(), GatewayError> {
        let page = self.connection.gateway.journal(&self.speaker, &self.session, self.at, 1, Reads::Local).await?;
        self.fill(page.head_seq).await.map(drop)
    }

    /// Sends the kept events up to a number and tells the rest as gaps. Returns the number of the last kept one.
    async fn fill(&mut self, to: u64) -> Result<Option<u64>, GatewayError> {
        let mut last = None;
        if planted::has(Bug::GapsOverKeptEvents) {
            self.gap(to);
        }
        while self.at < to {
            let page =
                self.connection.gateway.journal(&self.speaker, &self.session, self.at, PAGE, Reads::Local).await?;
            let (upto, more) = (page.upto, page.more);
            for (seq, event) in page.seqs.into_iter().zip(page.events) {
                if seq > to {
                    self.gap(to);
                    return Ok(last);
                }
                self.connection.outbox.room_for_events().await;
                self.gap(seq - 1);
                last = Some(seq);
                self.tell(Numbered { seq, text: event.text().into() });
            }
            // The rest of the page's numbers were not kept.
            self.gap(if more { upto.min(to) } else { to });
        }
        Ok(last)
    }

    fn tell(&mut self, event: Numbered) {
        self.at = event.seq;
        self.connection.send_text(event.text);
    }

    /// Tells that nothing up to this number comes any more.
    fn gap(&mut self, to: u64) {
        if to > self.at {
            let gap = json!({ "type": "gap", "sessionId": self.session, "fromSeq": self.at, "toSeq": to });
            self.connection.send(&gap);
            self.at = to;
        }
    }

    /// The journal cannot be read, or the session is gone. The client joins again, here or at another node.
    fn give_up(self) {
        self.connection.refuse(&GatewayError::StorageUnavailable(
            "the stream of a session cannot be read now: join it again".to_owned(),
        ));
        self.connection.leave(&self.session);
    }
}

impl Gateway {
    /// The state of a session's stream.
    async fn snapshot(&self, speaker: &Speaker, session: &str) -> Result<Snapshot, GatewayError> {
        let query = TurnQuery::Snapshot(SessionId::from(session));
        self.ask(speaker.person.scope(), BesideQuery::Turn(query), Reads::Fresh).await
    }

    /// The kept events after a number.
    pub(super) async fn journal(
        &self,
        speaker: &Speaker,
        session: &str,
        after: u64,
        limit: usize,
        reads: Reads,
    ) -> Result<JournalPage, GatewayError> {
        let query = TurnQuery::Journal { session_id: SessionId::from(session), after, limit };
        self.ask(speaker.person.scope(), BesideQuery::Turn(query), reads).await
    }
}
