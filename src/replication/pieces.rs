//! Owns: large append requests as several messages, both ends. One entry may have 32 MiB. Encoding it in one go takes the
//! thread of consensus longer than a heartbeat may wait, mostly for memory that is touched for the first time.
//! Never: what the entries mean.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tonic::Status;

use super::channels::MESSAGE_BYTES_MAX;
use crate::proto::log::{Entry, entry::Payload};
use crate::proto::peer::AppendRequest;

/// A request with more bytes of commands than this is sent in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;

/// About what an entry takes beside its command.
const ENTRY_BYTES: usize = 64;

/// The messages of one request, in order.
pub struct Pieces {
    /// The fields of the first message, without entries.
    head: Option<AppendRequest>,
    entries: VecDeque<Entry>,
    /// What is left of the command of the last entry that was sent.
    rest: Bytes,
    piece_bytes: usize,
    bytes: usize,
}

impl Pieces {
    /// `splits` is false for a receiver that does not accept pieces.
    pub fn of(mut request: AppendRequest, splits: bool) -> Pieces {
        let entries = std::mem::take(&mut request.entries);
        let bytes = entries.iter().map(size).sum();
        let piece_bytes = if splits { PIECE_BYTES } else { usize::MAX };
        Pieces { head: Some(request), entries: entries.into(), rest: Bytes::new(), piece_bytes, bytes }
    }

    /// About the size of the whole request.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Iterator for Pieces {
    type Item = AppendRequest;

    fn next(&mut self) -> Option<AppendRequest> {
        let mut piece = match self.head.take() {
            Some(head) => head,
            None if self.rest.is_empty() && self.entries.is_empty() => return None,
            None => AppendRequest::default(),
        };
        let mut room = self.piece_bytes;
        piece.rest = self.rest.split_to(self.rest.len().min(room));
        room -= piece.rest.len();
        while room > 0
            && self.rest.is_empty()
            && let Some(mut entry) = self.entries.pop_front()
        {
            if let Some(Payload::Command(command)) = &mut entry.payload
                && command.len() > room
            {
                self.rest = command.split_off(room);
            }
            room = room.saturating_sub(size(&entry));
            piece.entries.push(entry);
        }
        piece.left = self.rest.len() as u64;
        piece.more = !self.rest.is_empty() || !self.entries.is_empty();
        Some(piece)
    }
}

fn size(entry: &Entry) -> usize {
    let command = match &entry.payload {
        Some(Payload::Command(command)) => command.len(),
        Some(Payload::Blank(_) | Payload::Membership(_)) | None => 0,
    };
    ENTRY_BYTES + command
}

/// True if reading the request takes longer than other work on the same thread should wait.
pub fn is_large(request: &AppendRequest) -> bool {
    request.entries.iter().map(size).sum::<usize>() > PIECE_BYTES
}

/// The messages of all queued requests.
pub fn stream(queued: mpsc::Receiver<Pieces>) -> impl Stream<Item = AppendRequest> + Send {
    stream::unfold((queued, None::<Pieces>), |(mut queued, mut current)| async {
        loop {
            if let Some(piece) = current.as_mut().and_then(Iterator::next) {
                return Some((piece, (queued, current)));
            }
            current = Some(queued.recv().await?);
        }
    })
}

/// The requests that messages add up to. Ends after the first error.
pub fn assembled(
    messages: impl Stream<Item = Result<AppendRequest, Status>> + Send,
) -> impl Stream<Item = Result<AppendRequest, Status>> + Send {
    let mut assembly = Assembly::default();
    let added = messages.map(move |message| message.and_then(|message| assembly.add(message)).transpose());
    added.filter_map(async |request| request)
}

/// A request of which some messages have arrived.
#[derive(Default)]
struct Assembly {
    request: Option<AppendRequest>,
    /// The command of the last entry, while it is incomplete.
    command: BytesMut,
    left: usize,
    bytes: usize,
}

impl Assembly {
    /// Adds the next message. Returns the request when it is complete.
    fn add(&mut self, mut piece: AppendRequest) -> Result<Option<AppendRequest>, Status> {
        let entries = std::mem::take(&mut piece.entries);
        let (rest, more, left) = (std::mem::take(&mut piece.rest), piece.more, piece.left);
        self.bytes = self.bytes.saturating_add(rest.len() + entries.iter().map(size).sum::<usize>());
        let missing = usize::try_from(left).unwrap_or(usize::MAX);
        if self.bytes.saturating_add(missing) > MESSAGE_BYTES_MAX {
            return Err(invalid("left: a request has at most 80 MiB"));
        }
        let begun = self.request.is_some();
        let request = self.request.get_or_insert(AppendRequest { more: false, left: 0, ..piece });
        if !begun && !rest.is_empty() {
            return Err(invalid("rest: there is no entry that it continues"));
        }
        if begun {
            self.left = self.left.checked_sub(rest.len()).ok_or_else(|| invalid("rest: more bytes than were left"))?;
            self.command.extend_from_slice(&rest);
        }
        if self.left > 0 {
            if left != self.left as u64 || !entries.is_empty() || !more {
                return Err(invalid("left: the command of the last entry is incomplete"));
            }
            return Ok(None);
        }
        if !self.command.is_empty()
            && let Some(entry) = request.entries.last_mut()
        {
            entry.payload = Some(Payload::Command(std::mem::take(&mut self.command).freeze()));
        }
        request.entries.extend(entries);
        if missing > 0 {
            let Some(Payload::Command(command)) = request.entries.last().and_then(|entry| entry.payload.as_ref())
            else {
                return Err(invalid("left: the last entry has no command"));
            };
            if !more {
                return Err(invalid("left: the command of the last entry is incomplete"));
            }
            self.command = BytesMut::with_capacity(command.len() + missing);
            self.command.extend_from_slice(command);
            self.left = missing;
        }
        if more {
            return Ok(None);
        }
        self.bytes = 0;
        Ok(self.request.take())
    }
}

fn invalid(why: &str) -> Status {
    Status::invalid_argument(why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::log::{Blank, LogId};
    use crate::proto::peer::Hop;

    fn entry(index: u64, command: Option<usize>) -> Entry {
        let payload = match command {
            Some(bytes) => Payload::Command((0..bytes).map(|at| (at % 251) as u8).collect()),
            None => Payload::Blank(Blank {}),
        };
        Entry { term: 1, leader: 2, index, payload: Some(payload) }
    }

    fn request(commands: &[Option<usize>]) -> AppendRequest {
        AppendRequest {
            hop: Some(Hop { from_node: 7, ..Hop::default() }),
            committed: Some(LogId { term: 1, leader: 2, index: 3 }),
            entries: (1..).zip(commands).map(|(index, command)| entry(index, *command)).collect(),
            ..AppendRequest::default()
        }
    }

    fn assemble(pieces: impl IntoIterator<Item = AppendRequest>) -> Result<Vec<AppendRequest>, Status> {
        let mut assembly = Assembly::default();
        let added = pieces.into_iter().map(|piece| assembly.add(piece));
        added.filter_map(Result::transpose).collect()
    }

    proptest! {
        #[test]
        fn a_request_arrives_as_it_was_sent(
            commands in prop::collection::vec(prop::option::of(0..100_usize), 0..8),
            piece_bytes in 1..200_usize,
        ) {
            let request = request(&commands);
            let mut pieces = Pieces::of(request.clone(), true);
            pieces.piece_bytes = piece_bytes;
            let pieces: Vec<AppendRequest> = pieces.collect();
            for piece in &pieces {
                let commands = piece.entries.iter().map(|entry| size(entry) - ENTRY_BYTES).sum::<usize>();
                prop_assert!(piece.rest.len() + commands <= piece_bytes);
            }
            prop_assert_eq!(assemble(pieces.iter().cloned().chain(pieces.clone())).unwrap(), [request.clone(), request]);
        }

        #[test]
        fn damaged_pieces_are_refused_or_complete_but_never_a_panic(
            pieces in prop::collection::vec((0..3_usize, any::<bool>(), 0..3_usize, 0..4_u64), 0..8),
        ) {
            let _ = assemble(pieces.into_iter().map(|(entries, more, rest, left)| AppendRequest {
                more,
                left,
                rest: vec![1; rest].into(),
                ..request(&vec![Some(3); entries])
            }));
        }
    }

    #[test]
    fn a_receiver_that_knows_no_pieces_gets_one_message() {
        let large = request(&[Some(3 * PIECE_BYTES), None]);
        let whole: Vec<AppendRequest> = Pieces::of(large.clone(), false).collect();
        assert_eq!(whole, std::slice::from_ref(&large));
        assert!(is_large(&large) && Pieces::of(large, true).count() == 4);
    }

    #[test]
    fn a_request_beyond_the_bound_is_refused_before_memory_is_reserved() {
        let endless = AppendRequest { more: true, left: u64::MAX, ..request(&[Some(1)]) };
        assert!(assemble([endless]).unwrap_err().message().contains("80 MiB"));
        let alone = AppendRequest { rest: Bytes::from_static(b"x"), ..AppendRequest::default() };
        assert!(assemble([alone]).unwrap_err().message().starts_with("rest:"));
    }
}
