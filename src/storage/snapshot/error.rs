//! Owns: why a snapshot cannot be written or read.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::format::VERSION_PACKED;
use crate::machine::refusal::Fault;

/// A snapshot that cannot be written, or whose bytes changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotError {
    /// The file system failed.
    Disk { doing: String, kind: io::ErrorKind, why: String },
    /// The file is not what was written.
    Damaged { file: PathBuf, why: Damage },
    /// The state could not be read while the snapshot was written, or not be replaced by it.
    State(Fault),
}

/// What is wrong with a snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    CutShort,
    NotASnapshot,
    UnknownVersion(u32),
    /// A length that is larger than any checkpoint.
    CheckpointTooLong(u32),
    /// A length points beyond the end of the file.
    BeyondEnd,
    /// The lengths of a block of pairs are none that a block has.
    BlockLengths {
        packed: u32,
        pairs: u32,
    },
    /// A block of pairs does not match its checksum.
    Block,
    /// The number or the size of the pairs differs from what the footer says.
    FooterMismatch,
    Checksum,
    /// The file could not be read to its end.
    Unreadable(String),
    /// A body is not what was copied.
    Body(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::CutShort => f.write_str("it was cut short"),
            Damage::NotASnapshot => f.write_str("it is not a snapshot file"),
            Damage::UnknownVersion(version) => {
                write!(f, "it has snapshot format {version}; this build reads formats up to {VERSION_PACKED}")
            }
            Damage::CheckpointTooLong(bytes) => write!(f, "its header says that the checkpoint has {bytes} bytes"),
            Damage::BeyondEnd => f.write_str("a length in it points beyond its end"),
            Damage::BlockLengths { packed, pairs } => {
                write!(f, "a block in it says that {packed} bytes hold {pairs} bytes of pairs")
            }
            Damage::Block => f.write_str("a block in it does not match its checksum"),
            Damage::FooterMismatch => f.write_str("its pairs do not match its footer"),
            Damage::Checksum => f.write_str("its checksum does not match"),
            Damage::Unreadable(why) | Damage::Body(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Disk { doing, why, .. } => write!(f, "snapshot: {doing}: {why}"),
            SnapshotError::Damaged { file, why } => write!(f, "snapshot: {} is damaged: {why}", file.display()),
            SnapshotError::State(fault) => write!(f, "snapshot: {fault}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<SnapshotError> for io::Error {
    fn from(error: SnapshotError) -> io::Error {
        let kind = match &error {
            SnapshotError::Disk { kind, .. } => *kind,
            SnapshotError::Damaged { .. } => io::ErrorKind::InvalidData,
            SnapshotError::State(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

pub(super) fn disk_error(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> SnapshotError {
    move |error| SnapshotError::Disk { doing: doing.to_string(), kind: error.kind(), why: error.to_string() }
}
