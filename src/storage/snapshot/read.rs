//! Owns: reading the pairs of a snapshot file as a stream, whatever its size. Every byte is checked on the way.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::bodies::{self, Apart};
use super::error::{Damage, SnapshotError, disk_error};
use super::format::{
    BODY, BUFFER_BYTES, CHECKSUM_BYTES, END, FOOT_BYTES, HEAD_BYTES, Head, VERSION, VERSION_PACKED, check_head,
    print_foot,
};
use super::packed::{BLOCK_HEAD_BYTES, BlockHead};
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
    /// Bytes of the file that were not read yet, up to and with the end mark.
    left: u64,
    /// What was unpacked and not read yet. `None` if the pairs stand in the file as they are.
    block: Option<Bytes>,
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
        let mut head = [0; HEAD_BYTES as usize];
        reader.fill(&mut head).map_err(failed)?;
        let damaged = |why| SnapshotError::Damaged { file: sealed.path.clone(), why };
        let Head { version, .. } = check_head(&head).map_err(damaged)?;
        reader.block = (version == VERSION_PACKED).then(Bytes::new);
        let mut checkpoint = vec![0; sealed.checkpoint.len()];
        reader.fill(&mut checkpoint).map_err(failed)?;
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
        let (block, announced, apart) = (None, None, None);
        PairReader { file, hash: Xxh3::new(), path, bytes, left: 0, block, pairs: 0, announced, apart, ended: false }
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
        let Some(key_bytes) = self.next_key()? else {
            return self.check_foot().map(|()| None);
        };
        let value_bytes = self.number()?;
        let key = self.bytes(key_bytes)?;
        self.pairs += 1;
        if self.apart.is_some() && value_bytes & BODY != 0 {
            let mut place = [0; PLACE_BYTES];
            self.take(&mut place)?;
            return Ok(Some((key, Stored::Body(Place::parse(place)))));
        }
        let value = self.bytes(value_bytes)?;
        Ok(Some((key, Stored::Value(value.into()))))
    }

    /// The length of the next key; `None` after the last pair.
    fn next_key(&mut self) -> Result<Option<u32>, Damage> {
        if self.block.is_none() {
            return self.number().map(|length| Some(length).filter(|length| *length != END));
        }
        let begins = self.block.as_ref().is_some_and(|block| !block.is_empty()) || self.load_block()?;
        begins.then(|| self.number()).transpose()
    }

    fn number(&mut self) -> Result<u32, Damage> {
        let mut bytes = [0; 4];
        self.take(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Checks the length against the size of the file before it allocates: a damaged length must not reserve memory. A
    /// length in a block was checked with the block.
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>, Damage> {
        if self.block.is_none() && u64::from(count) > self.left {
            return Err(Damage::BeyondEnd);
        }
        let mut bytes = vec![0; count as usize];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads bytes of pairs.
    fn take(&mut self, mut bytes: &mut [u8]) -> Result<(), Damage> {
        while !bytes.is_empty() {
            match &mut self.block {
                None => return self.read(bytes),
                Some(block) if block.is_empty() => {
                    if !self.load_block()? {
                        return Err(Damage::BeyondEnd);
                    }
                }
                Some(block) => {
                    let (now, later) = bytes.split_at_mut(block.len().min(bytes.len()));
                    block.copy_to_slice(now);
                    bytes = later;
                }
            }
        }
        Ok(())
    }

    /// Unpacks the next block; false if the end mark stands there.
    fn load_block(&mut self) -> Result<bool, Damage> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        let (first, rest) = head.split_at_mut(4);
        self.read(first)?;
        if first == END.to_le_bytes() {
            return Ok(false);
        }
        self.read(rest)?;
        let head = BlockHead::parse(head)?;
        let mut packed = vec![0; head.packed_bytes()];
        self.read(&mut packed)?;
        self.block = Some(head.unpack(packed)?.into());
        Ok(true)
    }

    /// Reads bytes of the file, up to and with the end mark.
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Damage> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(Damage::BeyondEnd)?;
        self.fill(bytes).map_err(unreadable)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
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
