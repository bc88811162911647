//! Owns: where the frames begin and end in the bytes of a WebSocket. The library reads all frames into one buffer, which
//! it makes as large as a frame once it has read the head of that frame. If nothing but the payload is in the rest of the
//! buffer, the buffer leaves with the payload. Otherwise the connection keeps it, as large as its largest message, for as
//! long as it lives. So a large payload is given to the library apart from its head and from what follows.
//! Never: whether a frame is right.

use tokio::io::ReadBuf;

/// The length of the longest head: two bytes, the long form of the length, and the mask.
const HEAD_BYTES_MAX: usize = 14;

/// Follows the frames of one socket.
pub struct FrameEnds {
    /// Payloads that are longer are given apart.
    apart: u64,
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// What is missing of the payload whose head was read.
    missing: u64,
    /// Whether that payload is given apart.
    is_apart: bool,
    /// Read from the socket and not given yet. At most one read of the library.
    kept: Vec<u8>,
}

impl FrameEnds {
    pub fn new(apart: usize) -> FrameEnds {
        FrameEnds { apart: apart as u64, head: [0; _], head_bytes: 0, missing: 0, is_apart: false, kept: Vec::new() }
    }

    /// How many bytes may be read now: of a payload apart no more than are missing.
    pub fn limit(&self) -> usize {
        match self.is_apart {
            true => usize::try_from(self.missing).unwrap_or(usize::MAX),
            false => usize::MAX,
        }
    }

    /// Gives what was kept before. True if there was something.
    pub fn give_kept(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        let before = buf.filled().len();
        let kept = std::mem::take(&mut self.kept);
        let given = kept.len().min(buf.remaining());
        buf.put_slice(&kept[..given]);
        self.take_in(buf, before);
        self.kept.extend_from_slice(&kept[given..]);
        true
    }

    /// Follows what is in the buffer beyond `before`, and keeps what must not be given together with it.
    pub fn take_in(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let given = self.follow(&buf.filled()[before..]);
        self.kept.extend_from_slice(&buf.filled()[before + given..]);
        buf.set_filled(before + given);
    }

    /// How many of these bytes may be given together.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.missing > 0 {
                let part = self.missing.min((bytes.len() - at) as u64);
                self.missing -= part;
                at += part as usize;
                if self.missing == 0 && std::mem::take(&mut self.is_apart) {
                    return at;
                }
                continue;
            }
            self.head[self.head_bytes] = bytes[at];
            self.head_bytes += 1;
            at += 1;
            if let Some(payload) = payload_bytes(&self.head[..self.head_bytes]) {
                (self.head_bytes, self.missing) = (0, payload);
                self.is_apart = payload > self.apart;
                if self.is_apart {
                    return at;
                }
            }
        }
        at
    }
}

/// The length of the payload, once the head is complete.
fn payload_bytes(head: &[u8]) -> Option<u64> {
    let second = *head.get(1)?;
    let (length_bytes, mask_bytes) = match second & 0x7F {
        127 => (8, 4),
        126 => (2, 4),
        _short => (0, 4),
    };
    let mask_bytes = if second & 0x80 != 0 { mask_bytes } else { 0 };
    let length = head.get(2..2 + length_bytes)?;
    if head.len() < 2 + length_bytes + mask_bytes {
        return None;
    }
    Some(match length_bytes {
        0 => u64::from(second & 0x7F),
        _long => length.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::socket::frame::{Opcode, head};

    const APART: usize = 1000;

    fn frame(payload: usize, mask: bool) -> Vec<u8> {
        let mut frame = Vec::new();
        head(&mut frame, Opcode::Text, payload);
        if mask {
            frame[1] |= 0x80;
            frame.extend([7; 4]);
        }
        frame.extend(vec![0x81; payload]);
        frame
    }

    /// What the library gets in each of its reads, if it reads so much at a time.
    fn reads(mut bytes: &[u8], room: usize) -> Vec<Vec<u8>> {
        let (mut ends, mut reads) = (FrameEnds::new(APART), Vec::new());
        let mut memory = vec![0; room];
        loop {
            let mut buf = ReadBuf::new(&mut memory);
            if !ends.give_kept(&mut buf) {
                let part = bytes.split_off(..bytes.len().min(room).min(ends.limit())).unwrap_or_default();
                buf.put_slice(part);
                ends.take_in(&mut buf, 0);
            }
            match buf.filled() {
                [] => return reads,
                filled => reads.push(filled.to_vec()),
            }
        }
    }

    #[test]
    fn every_byte_is_given_once_and_in_order() {
        let frames: Vec<u8> = [0, 5, 125, 126, 999, 1000, 1001, 3, 70_000, 1, 0, 2000]
            .iter()
            .flat_map(|payload| [frame(*payload, true), frame(*payload, false)])
            .flatten()
            .collect();
        for room in [1, 2, 13, 14, 100, 4096, 1 << 20] {
            assert!(reads(&frames, room).concat() == frames, "{room}");
        }
    }

    #[test]
    fn a_large_payload_is_given_apart_from_its_head_and_from_what_follows() {
        let (small, large) = (frame(10, true), frame(70_000, true));
        let all = [&small[..], &large, &small, &small, &large, &large, &small].concat();
        let lengths = |room| Vec::from_iter(reads(&all, room).iter().map(Vec::len));
        let (head, small) = (14, small.len());
        assert_eq!(lengths(1 << 20), [small + head, 70_000, 2 * small + head, 70_000, head, 70_000, small]);
        // In parts, the first and the last part of a payload have nothing else in them.
        let parts = |rest: usize| [vec![4096; (70_000 - rest) / 4096], vec![(70_000 - rest) % 4096]].concat();
        let kept = 4096 - small - head;
        assert_eq!(lengths(4096)[..2], [small + head, kept]);
        let parts = parts(kept);
        assert_eq!(lengths(4096)[2..2 + parts.len()], parts);
        assert_eq!(lengths(4096).iter().sum::<usize>(), all.len());
    }

    #[test]
    fn small_messages_are_given_as_they_come() {
        let frames = frame(100, true).repeat(10);
        assert_eq!(reads(&frames, 4096), [frames]);
    }
}
