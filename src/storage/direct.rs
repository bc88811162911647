//! Owns: `DirectFile`, a file whose end is written past the page cache, by sectors. A write of 200 bytes then costs the
//! disk one sector of 512 bytes instead of a page of 4096.
//! Never: what the bytes mean.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

use super::disk::DiskFile;

/// Memory and offsets are aligned to this. Larger sectors save little against pages, so they are not supported.
const SECTOR: usize = 512;

/// The memory of a larger write is not kept.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The bytes behind a write, up to the end of its sector, become zero. So it is only for files that are written at the
/// end.
pub struct DirectFile {
    file: File,
    direct: File,
    /// The last write, sector by sector: the next one continues in one of these.
    buffer: Vec<u8>,
    last: Option<Written>,
}

/// What `buffer` holds of a write.
#[derive(Clone, Copy)]
struct Written {
    /// Where it begins in the buffer, and in the file.
    shift: usize,
    offset: u64,
    len: usize,
}

impl DirectFile {
    /// `None` if the file system or the disk has no direct writes of single sectors.
    pub fn open(path: &Path) -> io::Result<Option<DirectFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let Ok(found) = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(None) };
        let supported = |align: u32| (1..=SECTOR as u32).contains(&align);
        if !supported(found.stx_dio_mem_align) || !supported(found.stx_dio_offset_align) {
            return Ok(None);
        }
        let direct = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        Ok(direct.ok().map(|direct| DirectFile { file, direct, buffer: Vec::new(), last: None }))
    }

    /// The bytes of a sector that a write continues in.
    fn sector(&self, at: u64) -> io::Result<[u8; SECTOR]> {
        if let Some(Written { shift, offset, len }) = self.last
            && (offset..offset + len as u64).contains(&at)
        {
            let known = shift + (at - offset) as usize;
            let mut sector = [0; SECTOR];
            sector.copy_from_slice(&self.buffer[known..known + SECTOR]);
            return Ok(sector);
        }
        let mut sector = [0; SECTOR];
        let mut read = 0;
        while read < SECTOR {
            match self.file.read_at(&mut sector[read..], at + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sector)
    }
}

impl DiskFile for DirectFile {
    fn len(&self) -> io::Result<u64> {
        DiskFile::len(&self.file)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.last = None;
        DiskFile::set_len(&mut self.file, len)
    }

    fn sector_bytes(&self) -> Option<usize> {
        Some(SECTOR)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        self.direct.sync_data()
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let before = (offset % SECTOR as u64) as usize;
        let start = offset - before as u64;
        let sector = if before == 0 { [0; SECTOR] } else { self.sector(start)? };
        let len = (before + bytes.len()).next_multiple_of(SECTOR);
        // The kernel wants aligned memory, so there is room to begin at an aligned byte.
        if self.buffer.len() < len + SECTOR {
            self.buffer.resize(len + SECTOR, 0);
        }
        let shift = self.buffer.as_ptr().align_offset(SECTOR);
        let aligned = &mut self.buffer[shift..shift + len];
        aligned[..before].copy_from_slice(&sector[..before]);
        aligned[before..before + bytes.len()].copy_from_slice(bytes);
        aligned[before + bytes.len()..].fill(0);
        // After a failed write the content of the sector is unknown.
        self.last = None;
        self.direct.write_all_at(aligned, start)?;
        self.last = Some(Written { shift, offset: start, len });
        if self.buffer.len() > BUFFER_BYTES_MAX {
            (self.last, self.buffer) = (None, Vec::new());
        }
        Ok(())
    }
}

impl Read for DirectFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read(bytes)
    }
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.file.stream_position()?;
        self.write_at(bytes, at)?;
        self.file.seek(SeekFrom::Start(at + bytes.len() as u64))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for DirectFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn writes_at_the_end_read_back_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"head").unwrap();
        let Some(mut file) = DirectFile::open(&path).unwrap() else {
            eprintln!("SKIPPED: {} has no direct writes", dir.path().display());
            return;
        };
        let mut want = b"head".to_vec();
        for (at, len) in [1, 507, 1, 3, 512, 511, 2, 5000, 1024, 700, 0, 9].into_iter().enumerate() {
            let piece = vec![b'a' + at as u8; len];
            file.write_at(&piece, want.len() as u64).unwrap();
            want.extend(piece);
            file.sync_data().unwrap();
            let read = fs::read(&path).unwrap();
            assert_eq!(read[..want.len()], want);
            assert!(read[want.len()..].iter().all(|byte| *byte == 0));
            if at == 5 {
                file = DirectFile::open(&path).unwrap().unwrap();
            }
        }
        file.set_len(10).unwrap();
        file.write_at(b"x", 10).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[..12], b"headabbbbbx\0");
    }
}
