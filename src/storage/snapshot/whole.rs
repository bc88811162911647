//! Owns: a snapshot as one stream in format 1, with its bodies inside, whatever its format on this disk. Other nodes and
//! backups get it.

use std::io::{self, Read};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::Sealed;
use super::bodies::Apart;
use super::format::{BUFFER_BYTES, VERSION, print_foot, print_head};
use crate::storage::Pairs;

/// The bytes of a snapshot whose bodies are in files.
pub struct WholeReader {
    pairs: Pairs<'static>,
    hash: Xxh3,
    /// Bytes that were not read yet, and where they begin.
    buffer: Vec<u8>,
    at: usize,
    count: u64,
    bytes: u64,
    ended: bool,
    _files: Arc<Apart>,
}

impl WholeReader {
    pub(super) fn new(sealed: &Sealed, apart: Arc<Apart>, pairs: Pairs<'static>) -> WholeReader {
        let mut reader = WholeReader {
            pairs,
            hash: Xxh3::new(),
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            at: 0,
            count: 0,
            bytes: 0,
            ended: false,
            _files: apart,
        };
        reader.put(&print_head(VERSION, &sealed.checkpoint));
        reader
    }

    fn put(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.at = 0;
        while self.buffer.len() < BUFFER_BYTES {
            let Some(pair) = self.pairs.next() else {
                let foot = print_foot(None, self.count, self.bytes);
                self.put(&foot);
                let checksum = self.hash.digest128();
                self.buffer.extend(checksum.to_le_bytes());
                self.ended = true;
                return Ok(());
            };
            let (key, value) = pair.map_err(io::Error::other)?;
            self.put(&(key.len() as u32).to_le_bytes());
            self.put(&(value.len() as u32).to_le_bytes());
            self.put(&key);
            self.put(&value);
            self.count += 1;
        }
        Ok(())
    }
}

impl Read for WholeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() && !self.ended {
            self.fill()?;
        }
        let count = buffer.len().min(self.buffer.len() - self.at);
        buffer[..count].copy_from_slice(&self.buffer[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Length and checksum of a stream, read to its end.
pub(super) fn measure(mut stream: impl Read) -> io::Result<(u64, u128)> {
    // The last bytes are the checksum of those before.
    let (mut buffer, mut bytes, mut end) = (vec![0; BUFFER_BYTES], 0, [0; 16]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, u128::from_le_bytes(end)));
        }
        bytes += read as u64;
        let kept = read.min(end.len());
        end.copy_within(kept.., 0);
        end[16 - kept..].copy_from_slice(&buffer[read - kept..read]);
    }
}
