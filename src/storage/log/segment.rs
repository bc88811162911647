//! Owns: the layout of a segment file, and which bytes are a valid frame.
//! Never: reads or writes a file, or decodes the body of a frame.
//!
//! A segment is `<index of its first entry, 20 digits>.log`: a header, then frames. One fdatasync makes one frame
//! durable, and a frame is written only after the previous one is durable. So a bad frame before a good one was durable
//! and is damage. A bad frame without a good one after it is a torn write of a crash.
//!
//! ```text
//! header  magic 8 | version u32 | group u32 | salt u32 | flags u32 | first u64 | prev term, leader, index u64
//!         | crc u32
//! frame   magic u32 | len u32 | crc u32 | body                                               (little-endian)
//! ```
//! The crc of a frame also covers the segment's random salt and the frame's offset. So a client cannot forge a frame
//! inside a message.

use super::record::{LogId, Unreadable};

const MAGIC: &[u8; 8] = b"SMRAFTLG";
const VERSION: u32 = 1;
pub const HEADER_BYTES: usize = 60;
pub const FRAME_HEAD_BYTES: usize = 12;
const FRAME_MAGIC: [u8; 4] = *b"\xf5SMf";
/// A larger length is damage. A frame exceeds its usual limit by at most one entry.
pub const FRAME_BYTES_MAX: usize = 512 << 20;

const FLAG_PREV: u32 = 1;
const FLAG_RESET: u32 = 2;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub group: u32,
    pub salt: u32,
    /// The index of the first entry.
    pub first: u64,
    /// The entry before the first one; `None` at the start of a log.
    pub prev: Option<LogId>,
    /// All earlier segments were purged when this one was created.
    pub reset: bool,
}

impl Header {
    pub fn print(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let prev = self.prev.unwrap_or(LogId::new(0, 0, 0));
        let flags = if self.prev.is_some() { FLAG_PREV } else { 0 } | if self.reset { FLAG_RESET } else { 0 };
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.group.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.salt.to_le_bytes());
        bytes[20..24].copy_from_slice(&flags.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..40].copy_from_slice(&prev.leader.term.to_le_bytes());
        bytes[40..48].copy_from_slice(&prev.leader.node.to_le_bytes());
        bytes[48..56].copy_from_slice(&prev.index.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..56]);
        bytes[56..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn parse(file: &[u8]) -> Result<Header, Unreadable> {
        let bytes =
            file.get(..HEADER_BYTES).ok_or_else(|| Unreadable("shorter than the header of a segment".to_owned()))?;
        if &bytes[..8] != MAGIC {
            return Err(Unreadable("not a log segment".to_owned()));
        }
        if crc32fast::hash(&bytes[..56]) != u32_at(bytes, 56) {
            return Err(Unreadable("the checksum of the header does not match".to_owned()));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(Unreadable(format!("log format {version}; this build reads format {VERSION}")));
        }
        let flags = u32_at(bytes, 20);
        let prev = LogId::new(u64_at(bytes, 32), u64_at(bytes, 40), u64_at(bytes, 48));
        Ok(Header {
            group: u32_at(bytes, 12),
            salt: u32_at(bytes, 16),
            first: u64_at(bytes, 24),
            prev: (flags & FLAG_PREV != 0).then_some(prev),
            reset: flags & FLAG_RESET != 0,
        })
    }
}

pub fn file_name(first: u64) -> String {
    format!("{first:020}.log")
}

/// The first index in a file name; `None` for a file that is not a segment.
pub fn first_of(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_suffix(".log")?;
    if digits.len() == 20 { digits.parse().ok() } else { None }
}

/// Fills in the head of a frame. The body is already in `frame`, after `FRAME_HEAD_BYTES`.
pub fn seal(frame: &mut [u8], salt: u32, offset: u64) {
    let len = (frame.len() - FRAME_HEAD_BYTES) as u32;
    let crc = checksum(salt, offset, &frame[FRAME_HEAD_BYTES..]);
    frame[..4].copy_from_slice(&FRAME_MAGIC);
    frame[4..8].copy_from_slice(&len.to_le_bytes());
    frame[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(salt: u32, offset: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(&offset.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    pub len: usize,
    crc: u32,
}

impl FrameHead {
    pub fn parse(head: &[u8; FRAME_HEAD_BYTES]) -> Result<FrameHead, Unreadable> {
        if head[..4] != FRAME_MAGIC {
            return Err(Unreadable("no frame starts here".to_owned()));
        }
        let len = u32_at(head, 4) as usize;
        if len > FRAME_BYTES_MAX {
            return Err(Unreadable(format!("a frame of {len} bytes is longer than the limit")));
        }
        Ok(FrameHead { len, crc: u32_at(head, 8) })
    }

    pub fn check(&self, salt: u32, offset: u64, body: &[u8]) -> Result<(), Unreadable> {
        if checksum(salt, offset, body) == self.crc {
            Ok(())
        } else {
            Err(Unreadable("the checksum of the frame does not match".to_owned()))
        }
    }
}

/// What is at an offset of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameAt {
    /// A valid frame that ends at this offset.
    Frame {
        end: usize,
    },
    /// The end of the written bytes.
    End,
    Bad(Unreadable),
}

pub fn frame_at(file: &[u8], salt: u32, offset: usize) -> FrameAt {
    let rest = &file[offset.min(file.len())..];
    // Space that was allocated but never written is zero.
    if rest.iter().all(|byte| *byte == 0) {
        return FrameAt::End;
    }
    let Some(head) = rest.first_chunk() else {
        return FrameAt::Bad(Unreadable(format!(
            "only {} of the {FRAME_HEAD_BYTES} bytes of a frame's head",
            rest.len()
        )));
    };
    let head = match FrameHead::parse(head) {
        Ok(head) => head,
        Err(why) => return FrameAt::Bad(why),
    };
    let Some(body) = rest[FRAME_HEAD_BYTES..].get(..head.len) else {
        let present = rest.len() - FRAME_HEAD_BYTES;
        return FrameAt::Bad(Unreadable(format!("only {present} of the {} bytes of a frame", head.len)));
    };
    match head.check(salt, offset as u64, body) {
        Ok(()) => FrameAt::Frame { end: offset + FRAME_HEAD_BYTES + head.len },
        Err(why) => FrameAt::Bad(why),
    }
}

/// The offset of the next good frame after a bad one.
pub fn good_frame_after(file: &[u8], salt: u32, bad: usize) -> Option<usize> {
    let mut from = bad + 1;
    while let Some(found) = file.get(from..)?.windows(4).position(|window| window == FRAME_MAGIC) {
        let offset = from + found;
        if matches!(frame_at(file, salt, offset), FrameAt::Frame { .. }) {
            return Some(offset);
        }
        from = offset + 1;
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(salt: u32, offset: u64, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; FRAME_HEAD_BYTES];
        frame.extend_from_slice(body);
        seal(&mut frame, salt, offset);
        frame
    }

    #[test]
    fn the_bytes_of_header_and_frame_stay_as_they_are() {
        let prev = Some(LogId::new(2, 1, 6));
        let header = Header { group: 0, salt: 9, first: 7, prev, reset: true };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&header.print()),
            "534d524146544c470100000000000000090000000300000007000000000000000200000000000000010000000000000006000000000\
             000000297e464"
        );
        assert_eq!(hex(&frame(9, 60, b"body")), "f5534d6604000000d553b30d626f6479");
        assert_eq!(file_name(7), "00000000000000000007.log");
        assert_eq!(first_of("00000000000000000007.log"), Some(7));
        assert_eq!(first_of("vote"), None);
    }

    #[test]
    fn a_frame_hidden_in_a_message_is_not_taken_for_a_frame() {
        // What a client could know at best: the format, and a frame of another log.
        let hidden = frame(1, 72, b"forged");
        let mut file = frame(2, 0, &hidden);
        let last = file.len() - 1;
        file[last] ^= 1;
        assert_eq!(good_frame_after(&file, 2, 0), None);
    }

    proptest! {
        #[test]
        fn every_header_reads_back(group: u32, salt: u32, first: u64, index: Option<u64>, reset: bool) {
            let prev = index.map(|index| LogId::new(3, 4, index));
            let header = Header { group, salt, first, prev, reset };
            prop_assert_eq!(Header::parse(&header.print()), Ok(header));
        }

        #[test]
        fn any_flipped_bit_is_seen(body in prop::collection::vec(any::<u8>(), 0..64), at: prop::sample::Index, bit in 0..8u8) {
            let mut file = frame(7, 0, &body);
            let at = at.index(file.len());
            file[at] ^= 1 << bit;
            prop_assert!(matches!(frame_at(&file, 7, 0), FrameAt::Bad(_)));
        }

        #[test]
        fn any_bytes_are_checked_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::parse(&bytes);
            let _ = frame_at(&bytes, 0, 0);
            let _ = good_frame_after(&bytes, 0, 0);
        }
    }
}
