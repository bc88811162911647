//! Owns: body files. The values of entries are appended to files beside sled, and sled holds where they are.
//!
//! sled writes a value several times (a node of the tree holds 16 of them and is written whole), and keeps it in its
//! heap. A body never changes after it was written, so it needs neither.
//!
//! ```text
//! bodies-<number>  chunk*
//! chunk            bytes of the packed records u32 | bytes of the records u32 | CRC-32 of place, lengths and records
//!                  | records, as LZ4 if that is shorter
//! record           length of the key u32 | length of the value u32 | key | value
//! reference        00 | file u32 | chunk u32 | record in the unpacked chunk u32 | length of the value u32
//! ```
//!
//! A reference stands in sled in the place of the value. No encoded entry starts with a zero byte. The book (how much of
//! each file is written, and how much of that is still referenced) is a record in sled under a key that no family
//! uses, and changes in the same flush as the references. What a file holds beyond its end in the book was written by
//! a flush that did not happen; the next open cuts it off.
//! A snapshot holds copies of these files (`storage/snapshot/bodies.rs`), and reads them with the same code.
//! Never: which values are current. A file is removed only after every record of it was looked up (`reclaim.rs`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::{Buf, BufMut, Bytes};

use super::base::Put;
use super::positioned::{read_exact_at, write_all_at};
use super::reclaim::Reclaim;
use crate::machine::refusal::Fault;
use crate::storage::files;
use crate::storage::state::family::Family;

/// The key of the book in sled. Every family byte is larger, so scans of the state start behind it.
pub const BOOK_KEY: [u8; 1] = [0];

/// A full file is closed and the next one begins.
pub const FILE_BYTES: u32 = 32 << 20;

/// A smaller file is not worth rewriting before it is full.
const REWRITE_BYTES_MIN: u32 = 4 << 20;

/// Shorter values stay in sled: a reference would save too little.
const BODY_BYTES_MIN: usize = 128;

/// A chunk is packed and checked as a whole. Reading one body reads its chunk.
const CHUNK_BYTES: usize = 8 << 10;

/// A writer holds at most this many packed bytes and one chunk.
const BUFFER_BYTES: usize = 256 << 10;

/// The most files that stay open for readers.
const OPEN_FILES_MAX: usize = 64;

const PREFIX: &str = "bodies-";
const REFERENCE: u8 = 0;
/// A place in a file of ours: four numbers.
pub const PLACE_BYTES: usize = 16;
const REFERENCE_BYTES: usize = 1 + PLACE_BYTES;
const CHUNK_HEAD_BYTES: usize = 12;
const RECORD_HEAD_BYTES: usize = 8;
const BOOK_VERSION: u8 = 1;

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyFault {
    /// The file does not hold what was written to it.
    Damaged(String),
    Disk(io::Error),
}

/// Where a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub file: u32,
    pub chunk: u32,
    record: u32,
    length: u32,
}

impl Place {
    /// The place that a value in sled names; `None` for a value that stands in sled itself.
    pub fn of(key: &[u8], stored: &[u8]) -> Result<Option<Place>, BodyFault> {
        if !Family::Entry.owns(key) || stored.first() != Some(&REFERENCE) {
            return Ok(None);
        }
        if stored.len() != REFERENCE_BYTES {
            return Err(BodyFault::Damaged(format!("a reference to a body of {} bytes", stored.len())));
        }
        let mut numbers = [0; PLACE_BYTES];
        numbers.copy_from_slice(&stored[1..]);
        Ok(Some(Place::parse(numbers)))
    }

    /// The length of the body.
    pub fn length(&self) -> u32 {
        self.length
    }

    pub fn parse(bytes: [u8; PLACE_BYTES]) -> Place {
        let mut rest = &bytes[..];
        let (file, chunk) = (rest.get_u32(), rest.get_u32());
        Place { file, chunk, record: rest.get_u32(), length: rest.get_u32() }
    }

    pub fn print(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        let mut rest = &mut bytes[..];
        [self.file, self.chunk, self.record, self.length].into_iter().for_each(|number| rest.put_u32(number));
        bytes
    }

    /// What stands in sled in the place of the value.
    fn reference(&self) -> Bytes {
        [&[REFERENCE], &self.print()[..]].concat().into()
    }
}

/// How much of one file is written, and how much of it is not referenced any more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the file.
    pub end: u32,
    /// Bytes of values in it.
    pub total: u64,
    /// Bytes of values in it that were replaced or deleted. An estimate after a failed flush, never too much.
    pub dead: u64,
}

impl Extent {
    /// True if rewriting the rest frees enough for what it costs: more than it writes, or half of that while there is
    /// little else to write. So deleted bodies take at most half of the space of the others.
    pub fn is_worth_rewriting(&self, idle: bool) -> bool {
        self.dead * if idle { 3 } else { 2 } > self.total
    }

    /// True if no more bodies go to the file: it is full, or worth rewriting. Once true, it stays true.
    pub fn is_closed(&self) -> bool {
        self.end >= FILE_BYTES || self.end >= REWRITE_BYTES_MIN && self.is_worth_rewriting(false)
    }
}

/// The extents by file number. New bodies go to the last file while it is open. No number is used twice: a reader may
/// still hold a file, or a chunk of it, that was removed.
pub type Book = BTreeMap<u32, Extent>;

pub fn print_book(book: &Book) -> Bytes {
    let mut bytes = vec![BOOK_VERSION];
    for (file, extent) in book {
        bytes.put_u32(*file);
        bytes.put_u32(extent.end);
        bytes.put_u64(extent.total);
        bytes.put_u64(extent.dead);
    }
    bytes.into()
}

/// `None` if these bytes are no book.
pub fn parse_book(bytes: &[u8]) -> Option<Book> {
    let (&BOOK_VERSION, mut rest) = bytes.split_first()? else { return None };
    let mut book = Book::new();
    while !rest.is_empty() {
        let file = rest.try_get_u32().ok()?;
        let end = rest.try_get_u32().ok()?;
        let total = rest.try_get_u64().ok()?;
        book.insert(file, Extent { end, total, dead: rest.try_get_u64().ok()? });
    }
    Some(book)
}

/// The body files of one generation.
pub struct Bodies {
    dir: PathBuf,
    book: Mutex<Book>,
    open: Mutex<BTreeMap<u32, Arc<File>>>,
    /// The chunk that was read last, unpacked. The next body is often in the same one.
    last_chunk: Mutex<Option<(u32, u32, Bytes)>>,
    /// Held by readers of sled from the lookup of a reference to its body, so that no file is removed in between. A
    /// removal never waits for it: a reader that holds it twice would wait for itself.
    readers: RwLock<()>,
    /// Freezes that still have references to read. Until they end, no file is removed.
    freezes: AtomicUsize,
    /// Names this opened set of files. A file of the same set and number only grows.
    set: u128,
    pub reclaim: Mutex<Reclaim>,
}

impl Bodies {
    /// Opens the files of a book. Removes what a flush left behind that did not happen.
    pub fn open(dir: &Path, book: Book) -> io::Result<Bodies> {
        for found in fs::read_dir(dir)? {
            let path = found?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.parse().ok());
            if number.is_some_and(|number: u32| !book.contains_key(&number)) {
                files::remove(&path)?;
            }
        }
        for (number, extent) in &book {
            let path = body_path(dir, *number);
            let length = fs::metadata(&path)?.len();
            if length < u64::from(extent.end) {
                let why = format!("{} has {length} of its {} bytes", path.display(), extent.end);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if length > u64::from(extent.end) {
                OpenOptions::new().write(true).open(&path)?.set_len(u64::from(extent.end))?;
            }
        }
        Ok(Bodies { book: Mutex::new(book), ..Bodies::closed(dir) })
    }

    /// No files yet: what a generation has before its book was read.
    pub fn closed(dir: &Path) -> Bodies {
        Bodies {
            dir: dir.to_owned(),
            book: Mutex::default(),
            open: Mutex::default(),
            last_chunk: Mutex::default(),
            readers: RwLock::default(),
            freezes: AtomicUsize::new(0),
            set: uuid::Uuid::new_v4().as_u128(),
            reclaim: Mutex::default(),
        }
    }

    /// No file is removed while the guard exists. A thread may hold several.
    pub fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.readers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every file until `release`.
    pub fn hold(&self) {
        self.freezes.fetch_add(1, Ordering::SeqCst);
    }

    pub fn release(&self) {
        self.freezes.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn set(&self) -> u128 {
        self.set
    }

    /// How far a file is written for good. A file that left the book is complete.
    pub fn end(&self, number: u32) -> io::Result<u64> {
        match self.book().get(&number) {
            Some(extent) => Ok(u64::from(extent.end)),
            None => Ok(fs::metadata(self.path(number))?.len()),
        }
    }

    pub fn path(&self, number: u32) -> PathBuf {
        body_path(&self.dir, number)
    }

    /// Reads a part of a file, from the start of one chunk to the end of another, and checks every chunk.
    pub fn check(&self, number: u32, from: u32, end: u64) -> Result<(), BodyFault> {
        let mut at = from;
        while u64::from(at) < end {
            at = self.load(number, at)?.1;
        }
        match u64::from(at) == end {
            true => Ok(()),
            false => Err(self.damaged(number, at, "is beyond the end")),
        }
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `key` at its place.
    pub fn read(&self, key: &[u8], place: Place) -> Result<Bytes, BodyFault> {
        let mut records = Records { at: self.chunk(place.file, place.chunk)? };
        let wrong = || self.damaged(place.file, place.chunk, "has no such record");
        if place.record as usize > records.at.len() {
            return Err(wrong());
        }
        records.at.advance(place.record as usize);
        match records.next().transpose().map_err(|_| wrong())? {
            Some((_, found, value)) if found == key && value.len() == place.length as usize => Ok(value),
            Some(_) | None => Err(wrong()),
        }
    }

    /// Reads the chunks of a file from the offset `from`, about `bytes_max` of them, and calls `visit` with the key,
    /// place and value of each record. Returns the offset of the next chunk; `None` at the end.
    pub fn visit(
        &self,
        number: u32,
        from: u32,
        bytes_max: u32,
        visit: &mut dyn FnMut(Bytes, Place, Bytes) -> Result<(), Fault>,
    ) -> Result<Option<u32>, VisitFault> {
        let end = self.book().get(&number).map_or(0, |extent| extent.end);
        let mut at = from;
        while at < end {
            let (records, next) = self.load(number, at)?;
            for record in (Records { at: records }).scanned() {
                let (offset, key, value) = record.map_err(|_| self.damaged(number, at, "is cut short"))?;
                let place = Place { file: number, chunk: at, record: offset, length: value.len() as u32 };
                visit(key, place, value).map_err(VisitFault::Visitor)?;
            }
            at = next;
            if at - from >= bytes_max {
                break;
            }
        }
        Ok((at < end).then_some(at))
    }

    /// Removes a file that nothing refers to and that is not in the book any more, unless somebody reads right now: a
    /// reader may have found a reference before it was replaced, and so may a freeze. True if the file is gone.
    pub fn remove(&self, number: u32) -> io::Result<bool> {
        let Ok(_alone) = self.readers.try_write() else { return Ok(false) };
        if self.freezes.load(Ordering::SeqCst) > 0 {
            return Ok(false);
        }
        self.open_files().remove(&number);
        self.last_chunk.lock().unwrap_or_else(PoisonError::into_inner).take();
        files::remove(&body_path(&self.dir, number))?;
        Ok(true)
    }

    /// Starts to add bodies. Nothing counts before `Writer::finish`.
    pub fn writer(&self) -> Writer<'_> {
        let book = self.book().clone();
        Writer {
            bodies: self,
            book,
            file: None,
            chunk: Vec::new(),
            chunk_values: 0,
            packed: Vec::new(),
            created: false,
        }
    }

    /// A chunk, unpacked.
    fn chunk(&self, number: u32, at: u32) -> Result<Bytes, BodyFault> {
        if let Ok(last) = self.last_chunk.try_lock()
            && let Some((file, offset, records)) = &*last
            && (*file, *offset) == (number, at)
        {
            return Ok(records.clone());
        }
        let (records, _) = self.load(number, at)?;
        // The chunk of one very long body is not kept: no other body is in it.
        if records.len() <= 2 * CHUNK_BYTES
            && let Ok(mut last) = self.last_chunk.try_lock()
        {
            *last = Some((number, at, records.clone()));
        }
        Ok(records)
    }

    /// Reads a chunk. Returns its records and the offset of the next chunk.
    fn load(&self, number: u32, at: u32) -> Result<(Bytes, u32), BodyFault> {
        let file = self.file(number)?;
        let damaged = |why: &str| self.damaged(number, at, why);
        let left = file.metadata().map_err(BodyFault::Disk)?.len().saturating_sub(u64::from(at));
        let read = |bytes: &mut [u8], from: u64| match read_exact_at(&file, bytes, from) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged("is beyond the end")),
            read => read.map_err(BodyFault::Disk),
        };
        let mut head = [0; CHUNK_HEAD_BYTES];
        read(&mut head, u64::from(at))?;
        let mut numbers = &head[..];
        let (packed_bytes, bytes, sum) = (numbers.get_u32(), numbers.get_u32(), numbers.get_u32());
        // LZ4 compresses at most 255 to 1. Check both lengths before allocating.
        if u64::from(packed_bytes) > left || bytes / 256 > packed_bytes || packed_bytes > bytes {
            return Err(damaged("has an impossible length"));
        }
        let mut packed = vec![0; packed_bytes as usize];
        read(&mut packed, u64::from(at) + CHUNK_HEAD_BYTES as u64)?;
        if checksum(number, at, bytes, &packed) != sum {
            return Err(damaged("does not match its checksum"));
        }
        let records = match packed_bytes == bytes {
            true => packed,
            false => lz4_flex::block::decompress(&packed, bytes as usize).map_err(|_| damaged("cannot be unpacked"))?,
        };
        if records.len() != bytes as usize {
            return Err(damaged("is shorter than it says"));
        }
        Ok((records.into(), at + CHUNK_HEAD_BYTES as u32 + packed_bytes))
    }

    fn file(&self, number: u32) -> Result<Arc<File>, BodyFault> {
        let mut open = self.open_files();
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let path = body_path(&self.dir, number);
        let file = match File::open(&path) {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BodyFault::Damaged(format!("{} is missing", path.display())));
            }
            Err(error) => return Err(BodyFault::Disk(error)),
        };
        if open.len() >= OPEN_FILES_MAX {
            open.clear();
        }
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    fn open_files(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn damaged(&self, number: u32, at: u32, why: &str) -> BodyFault {
        BodyFault::Damaged(format!("the chunk at byte {at} of {} {why}", body_path(&self.dir, number).display()))
    }
}

/// Why a visit of a file ended early.
pub enum VisitFault {
    Body(BodyFault),
    Visitor(Fault),
}

impl From<BodyFault> for VisitFault {
    fn from(fault: BodyFault) -> VisitFault {
        VisitFault::Body(fault)
    }
}

/// Appends bodies. If it is dropped before `finish`, the next writer starts at the same place.
pub struct Writer<'a> {
    bodies: &'a Bodies,
    book: Book,
    file: Option<File>,
    /// Records that are not packed yet.
    chunk: Vec<u8>,
    chunk_values: u64,
    /// Packed chunks that are not written yet.
    packed: Vec<u8>,
    created: bool,
}

impl Writer<'_> {
    /// What sled stores for a change: a body becomes a reference, everything else stays.
    pub fn store(&mut self, (key, value): Put) -> Result<Put, Fault> {
        let Some(value) = value else { return Ok((key, None)) };
        // A value that looks like a reference must not stand in sled, however short it is.
        let apart = value.len() >= BODY_BYTES_MIN || value.first() == Some(&REFERENCE);
        if !Family::Entry.owns(&key) || !apart {
            return Ok((key, Some(value)));
        }
        let place = self.add(&key, &value).map_err(write_fault)?;
        Ok((key, Some(place.reference())))
    }

    /// Counts a body whose reference is replaced or deleted.
    pub fn count_dead(&mut self, place: Place) {
        if let Some(extent) = self.book.get_mut(&place.file) {
            extent.dead = (extent.dead + u64::from(place.length)).min(extent.total);
        }
    }

    /// Takes a file out of the book. The last one is followed by an empty one, so that its number is not used again.
    pub fn forget(&mut self, number: u32) -> Result<(), Fault> {
        if self.book.last_key_value().is_some_and(|(last, _)| *last == number) {
            self.end_file().map_err(write_fault)?;
            File::create(body_path(&self.bodies.dir, number + 1)).map_err(write_fault)?;
            self.book.insert(number + 1, Extent::default());
            self.created = true;
        }
        self.book.remove(&number);
        Ok(())
    }

    /// Makes the bodies durable and counts them. Returns the new book for sled.
    pub fn finish(mut self) -> Result<Put, Fault> {
        self.end_file().map_err(write_fault)?;
        if self.created {
            files::sync_dir(&self.bodies.dir).map_err(write_fault)?;
        }
        let book = print_book(&self.book);
        *self.bodies.book() = self.book;
        Ok((BOOK_KEY.to_vec(), Some(book)))
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<Place> {
        let (number, extent) = self.book.last_key_value().map_or((1, Extent::default()), |(file, at)| (*file, *at));
        let number = if extent.is_closed() {
            self.end_file()?;
            number + 1
        } else {
            number
        };
        let extent = self.book.entry(number).or_default();
        let place = Place {
            file: number,
            chunk: extent.end,
            record: self.chunk.len() as u32,
            // The length fits: the size of a request bounds every value far below 4 GiB.
            length: value.len() as u32,
        };
        self.chunk.put_u32(key.len() as u32);
        self.chunk.put_u32(value.len() as u32);
        self.chunk.extend_from_slice(key);
        self.chunk.extend_from_slice(value);
        self.chunk_values += value.len() as u64;
        if self.chunk.len() >= CHUNK_BYTES {
            self.end_chunk()?;
        }
        Ok(place)
    }

    /// Packs the chunk behind the end of the last file.
    fn end_chunk(&mut self) -> io::Result<()> {
        let Some(mut last) = self.book.last_entry().filter(|_| !self.chunk.is_empty()) else { return Ok(()) };
        let (number, extent) = (*last.key(), last.get_mut());
        let start = self.packed.len() + CHUNK_HEAD_BYTES;
        self.packed.resize(start + lz4_flex::block::get_maximum_output_size(self.chunk.len()), 0);
        let length = match lz4_flex::block::compress_into(&self.chunk, &mut self.packed[start..]) {
            Ok(length) if length < self.chunk.len() => length,
            // Incompressible records are stored as they are.
            Ok(_) | Err(_) => {
                self.packed[start..start + self.chunk.len()].copy_from_slice(&self.chunk);
                self.chunk.len()
            }
        };
        self.packed.truncate(start + length);
        let (head, records) = self.packed[start - CHUNK_HEAD_BYTES..].split_at_mut(CHUNK_HEAD_BYTES);
        let sum = checksum(number, extent.end, self.chunk.len() as u32, records);
        let mut head = head;
        head.put_u32(length as u32);
        head.put_u32(self.chunk.len() as u32);
        head.put_u32(sum);
        extent.end += (CHUNK_HEAD_BYTES + length) as u32;
        extent.total += std::mem::take(&mut self.chunk_values);
        self.chunk.clear();
        if self.packed.len() >= BUFFER_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((number, extent)) = self.book.last_key_value().filter(|_| !self.packed.is_empty()) else {
            return Ok(());
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let path = body_path(&self.bodies.dir, *number);
                self.created |= !path.exists();
                none.insert(OpenOptions::new().create(true).truncate(false).write(true).open(path)?)
            }
        };
        write_all_at(file, &self.packed, u64::from(extent.end) - self.packed.len() as u64)?;
        self.packed.clear();
        Ok(())
    }

    fn end_file(&mut self) -> io::Result<()> {
        self.end_chunk()?;
        self.write()?;
        self.file.take().map_or(Ok(()), |file| file.sync_data())
    }
}

fn write_fault(error: io::Error) -> Fault {
    Fault(format!("write the body file: {error}"))
}

/// The records of an unpacked chunk, each with the number of bytes that it takes.
struct Records {
    at: Bytes,
}

impl Records {
    /// Each record with its offset.
    fn scanned(self) -> impl Iterator<Item = Result<(u32, Bytes, Bytes), CutShort>> {
        let mut offset = 0;
        self.map(move |record| {
            let (bytes, key, value) = record?;
            let at = offset;
            offset += bytes;
            Ok((at, key, value))
        })
    }
}

#[derive(Debug)]
struct CutShort;

impl Iterator for Records {
    type Item = Result<(u32, Bytes, Bytes), CutShort>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at.is_empty() {
            return None;
        }
        if self.at.len() < RECORD_HEAD_BYTES {
            self.at.clear();
            return Some(Err(CutShort));
        }
        let (key, value) = (self.at.get_u32() as usize, self.at.get_u32() as usize);
        if key.saturating_add(value) > self.at.len() {
            self.at.clear();
            return Some(Err(CutShort));
        }
        let (key, value) = (self.at.split_to(key), self.at.split_to(value));
        Some(Ok(((RECORD_HEAD_BYTES + key.len() + value.len()) as u32, key, value)))
    }
}

/// Covers the place too, so that a chunk that stands elsewhere is damage.
fn checksum(file: u32, at: u32, bytes: u32, packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    [file, at, bytes, packed.len() as u32].into_iter().for_each(|number| sum.update(&number.to_be_bytes()));
    sum.update(packed);
    sum.finalize()
}

fn body_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{PREFIX}{number}"))
}

#[cfg(test)]
#[path = "bodies_test.rs"]
mod tests;
