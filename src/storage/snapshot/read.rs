//! Owns: reading the pairs of a snapshot file as a stream, whatever its size. Every byte is checked on the way.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::bodies::{self, Apart};
use super::error::{Damage, SnapshotError, disk_error};
use super::format::{
    BODY, BUFFER_BYTES, CHECKSUM_BYTES, END, FOOT_BYTES, HEAD_BYTES, Head, VERSION, check_head, print_foot,
};
use crate::machine::refusal::Fault;
use crate::storage::Pairs;
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::sled::Stored;
use crate::storage::sled::bodies::{PLACE_BYTES, Place};

/// One key with its value.
pub type Pair = (Vec<u8>, Bytes);

/// The pairs of a snapshot. Ends with an error unless every byte of the file is as it was written.
pub struct PairReader<R> {
    file: R,
    hash: Xxh3,
    path: PathBuf,
    /// Length of the whole snapshot.
    bytes: u64,
    /// Bytes of pairs that were not read yet.
    left: u64,
    pairs: u64,
    /// The checksum that was announced, if one was. The one in the file is checked in any case.
    announced: Option<u128>,
    /// Where the bodies are, if they are not in the snapshot.
    apart: Option<Arc<Apart>>,
    ended: bool,
}

impl PairReader<BufReader<Box<dyn DiskFile>>> {
    pub(super) fn open(disk: &dyn Disk, sealed: &Sealed) -> Result<Self, SnapshotError> {
        let failed = |error| disk_error(format!("reading {}", sealed.path.display()))(error);
        let file = BufReader::with_capacity(BUFFER_BYTES, disk.read(&sealed.path).map_err(failed)?);
        let mut reader = PairReader::new(file, sealed.path.clone(), sealed.bytes);
        reader.announced = Some(sealed.checksum);
        reader.apart = sealed.apart.clone();
        let before = HEAD_BYTES + sealed.checkpoint.len() as u64;
        let mut head = vec![0; before as usize];
        reader.fill(&mut head).map_err(failed)?;
        reader.left = (sealed.bytes + 4).saturating_sub(before + reader.foot_bytes());
        Ok(reader)
    }
}

impl<R: Read> PairReader<R> {
    /// Reads a snapshot of this length from a stream: its checkpoint, and then its pairs.
    pub fn stream(file: R, path: PathBuf, bytes: u64) -> Result<(Bytes, PairReader<R>), Damage> {
        let mut reader = PairReader::new(file, path, bytes);
        let mut head = [0; HEAD_BYTES as usize];
        reader.fill(&mut head).map_err(unreadable)?;
        let Head { version, checkpoint_bytes } = check_head(&head)?;
        if version != VERSION {
            return Err(Damage::UnknownVersion(version));
        }
        let around = HEAD_BYTES + u64::from(checkpoint_bytes) + FOOT_BYTES;
        reader.left = (bytes + 4).checked_sub(around).filter(|left| *left >= 4).ok_or(Damage::CutShort)?;
        let mut checkpoint = vec![0; checkpoint_bytes as usize];
        reader.fill(&mut checkpoint).map_err(unreadable)?;
        Ok((checkpoint.into(), reader))
    }

    fn new(file: R, path: PathBuf, bytes: u64) -> PairReader<R> {
        let (announced, apart) = (None, None);
        PairReader { file, hash: Xxh3::new(), path, bytes, left: 0, pairs: 0, announced, apart, ended: false }
    }

    /// From the end mark to the end of the snapshot.
    fn foot_bytes(&self) -> u64 {
        // The numbers do not change the length.
        print_foot(self.apart.as_deref(), 0, 0).len() as u64 + CHECKSUM_BYTES
    }

    /// What comes after the snapshot in the stream, once all pairs were read.
    pub fn rest(&mut self) -> &mut R {
        &mut self.file
    }

    /// The next pair; `None` after the last one, when the checksum matches. Only of a snapshot with its bodies inside.
    pub fn pair(&mut self) -> Result<Option<Pair>, Damage> {
        match self.stored()? {
            Some((key, Stored::Value(value))) => Ok(Some((key, value))),
            Some((_, Stored::Body(_))) => Err(Damage::NotASnapshot),
            None => Ok(None),
        }
    }

    /// The next pair as it stands in the file.
    pub(super) fn stored(&mut self) -> Result<Option<(Vec<u8>, Stored)>, Damage> {
        let key_bytes = self.number()?;
        if key_bytes == END {
            return self.check_foot().map(|()| None);
        }
        let value_bytes = self.number()?;
        let key = self.bytes(key_bytes)?;
        self.pairs += 1;
        if self.apart.is_some() && value_bytes & BODY != 0 {
            let mut place = [0; PLACE_BYTES];
            self.left = self.left.checked_sub(PLACE_BYTES as u64).ok_or(Damage::BeyondEnd)?;
            self.fill(&mut place).map_err(unreadable)?;
            return Ok(Some((key, Stored::Body(Place::parse(place)))));
        }
        let value = self.bytes(value_bytes)?;
        Ok(Some((key, Stored::Value(value.into()))))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn number(&mut self) -> Result<u32, Damage> {
        let mut bytes = [0; 4];
        self.left = self.left.checked_sub(4).ok_or(Damage::BeyondEnd)?;
        self.fill(&mut bytes).map_err(unreadable)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Checks the length against the size of the file before it allocates: a damaged length must not reserve memory.
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>, Damage> {
        self.left = self.left.checked_sub(u64::from(count)).ok_or(Damage::BeyondEnd)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    fn check_foot(&mut self) -> Result<(), Damage> {
        let before = self.bytes.saturating_sub(self.foot_bytes());
        let expected = print_foot(self.apart.as_deref(), self.pairs, before);
        // The end mark was read.
        let mut foot = vec![0; expected.len() - 4];
        self.fill(&mut foot).map_err(unreadable)?;
        if self.left != 0 || foot != expected[4..] {
            return Err(Damage::FooterMismatch);
        }
        let mut written = [0; 16];
        self.file.read_exact(&mut written).map_err(unreadable)?;
        let read = self.hash.digest128();
        if read != u128::from_le_bytes(written) || self.announced.is_some_and(|announced| read != announced) {
            return Err(Damage::Checksum);
        }
        Ok(())
    }
}

fn unreadable(error: io::Error) -> Damage {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Damage::CutShort,
        _other => Damage::Unreadable(error.to_string()),
    }
}

impl<R: Read> Iterator for PairReader<R> {
    type Item = Result<(Vec<u8>, Stored), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let pair = self.stored();
        self.ended = !matches!(pair, Ok(Some(_)));
        let error = |why| Fault(SnapshotError::Damaged { file: self.path.clone(), why }.to_string());
        pair.map_err(error).transpose()
    }
}

impl<R: Read + Send + 'static> PairReader<R> {
    /// The pairs with their bodies, wherever these are.
    pub(super) fn whole(self) -> Pairs<'static> {
        let files = self.apart.clone().map(|apart| (apart.bodies(), apart));
        Box::new(self.map(move |pair| {
            let (key, value) = pair?;
            match (value, &files) {
                (Stored::Value(value), _) => Ok((key, value)),
                (Stored::Body(place), Some((bodies, _))) => match bodies.read(&key, place) {
                    Ok(body) => Ok((key, body)),
                    Err(fault) => Err(Fault(bodies::error(&bodies.path(place.file), fault).to_string())),
                },
                // `stored` returns bodies only if there are files.
                (Stored::Body(_), None) => Err(Fault("a snapshot without body files refers to one".to_owned())),
            }
        }))
    }
}
