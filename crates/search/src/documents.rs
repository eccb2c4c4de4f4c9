//! The passages of an index: blocks of JSON lines, compressed with zstd, read through a memory map.
//!
//! `documents.zst` is a sequence of blocks: 4 bytes with the length of the plain block (little
//! endian), then a zstd frame with a content checksum. `documents.index` has 16 bytes per block:
//! the number of its first passage and its offset. A passage is read by decompressing its block.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::passage::Passage;
use r1_base::error::{Error, Kind, Result};

pub(super) const BLOCKS: &str = "documents.zst";
pub(super) const INDEX: &str = "documents.index";

/// A block is written once it has this number of uncompressed bytes.
const BLOCK: usize = 16 << 10;
/// Largest uncompressed block: one passage of the largest size.
const LARGEST: usize = 256 << 20;
const LEVEL: i32 = 3;
/// Bytes of an entry of `documents.index`.
const ENTRY: usize = 16;

/// The lengths of both files up to a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lengths {
    blocks: u64,
    index: u64,
}

/// Appends passages.
pub(super) struct DocumentsWriter {
    blocks: BufWriter<File>,
    index: BufWriter<File>,
    path: PathBuf,
    written: Lengths,
    compressor: Compressor<'static>,
    /// The block that is being filled.
    block: Vec<u8>,
    first: u64,
    next: u64,
}

impl DocumentsWriter {
    /// Continues after `written` bytes, which are `passages` passages; what follows is removed.
    pub(super) fn open(directory: &Path, written: Lengths, passages: u64) -> Result<Self> {
        let mut compressor = Compressor::new(LEVEL).map_err(|error| compression(&error))?;
        compressor.set_parameter(CParameter::ChecksumFlag(true)).map_err(|error| compression(&error))?;
        Ok(Self {
            blocks: append(&directory.join(BLOCKS), written.blocks)?,
            index: append(&directory.join(INDEX), written.index)?,
            path: directory.to_owned(),
            written,
            compressor,
            block: Vec::with_capacity(2 * BLOCK),
            first: passages,
            next: passages,
        })
    }

    pub(super) fn add(&mut self, passage: &Passage) -> Result<()> {
        serde_json::to_writer(&mut self.block, passage)
            .map_err(|error| Error::new(Kind::Internal, format!("a passage can't be written: {error}")))?;
        self.block.push(b'\n');
        self.next += 1;
        if self.block.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = self.compressor.compress(&self.block).map_err(|error| compression(&error))?;
        let length = u32::try_from(self.block.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut write = || -> std::io::Result<()> {
            self.blocks.write_all(&length)?;
            self.blocks.write_all(&packed)?;
            self.index.write_all(&self.first.to_le_bytes())?;
            self.index.write_all(&self.written.blocks.to_le_bytes())
        };
        write().map_err(|error| Error::io(Kind::Store, "write passages", &self.path, &error))?;
        self.written.blocks += (length.len() + packed.len()) as u64;
        self.written.index += ENTRY as u64;
        self.block.clear();
        self.first = self.next;
        Ok(())
    }

    /// Writes everything to the disk.
    pub(super) fn commit(&mut self) -> Result<Lengths> {
        self.flush()?;
        let mut sync = || -> std::io::Result<()> {
            for file in [&mut self.blocks, &mut self.index] {
                file.flush()?;
                file.get_ref().sync_data()?;
            }
            Ok(())
        };
        sync().map_err(|error| Error::io(Kind::Store, "write passages", &self.path, &error))?;
        Ok(self.written)
    }
}

/// A file to append to after its first `length` bytes; the rest is removed.
pub(super) fn append(path: &Path, length: u64) -> Result<BufWriter<File>> {
    let open = || -> std::io::Result<File> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        if file.metadata()?.len() < length {
            return Err(std::io::Error::other("it is shorter than at the last commit"));
        }
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length))?;
        Ok(file)
    };
    let file = open().map_err(|error| Error::io(Kind::Store, "write", path, &error))?;
    Ok(BufWriter::with_capacity(1 << 18, file))
}

fn compression(error: &std::io::Error) -> Error {
    Error::new(Kind::Internal, format!("passages can't be compressed: {error}"))
}

/// Reads passages by number.
#[derive(Debug)]
pub(super) struct Documents {
    blocks: Option<Mmap>,
    index: Option<Mmap>,
    path: PathBuf,
    passages: u64,
}

impl Documents {
    pub(super) fn open(directory: &Path, passages: u64) -> Result<Self> {
        let map = |name: &str| map(&directory.join(name));
        Ok(Self { blocks: map(BLOCKS)?, index: map(INDEX)?, path: directory.join(BLOCKS), passages })
    }

    /// # Errors
    /// [`Kind::Data`] if the files are damaged.
    pub(super) fn get(&self, passage: u64) -> Result<Passage> {
        let after = self.entries().partition_point(|entry| first_and_offset(*entry).0 <= passage);
        let block = after.checked_sub(1).filter(|_| passage < self.passages).ok_or_else(|| self.damaged("numbers"))?;
        let plain = self.block(block)?;
        let within = usize::try_from(passage - self.entry(block)?.0).map_err(|_| self.damaged("numbers"))?;
        let line = plain.split(|byte| *byte == b'\n').nth(within).ok_or_else(|| self.damaged("a truncated block"))?;
        serde_json::from_slice(line).map_err(|_| self.damaged("a passage that is not JSON"))
    }

    /// Calls `take` with every passage, in order.
    pub(super) fn each(&self, mut take: impl FnMut(u64, Passage) -> Result<()>) -> Result<()> {
        let mut number = 0;
        for block in 0..self.entries().len() {
            for line in self.block(block)?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let passage = serde_json::from_slice(line).map_err(|_| self.damaged("a passage that is not JSON"))?;
                take(number, passage)?;
                number += 1;
            }
        }
        if number == self.passages { Ok(()) } else { Err(self.damaged("another number of passages")) }
    }

    fn entries(&self) -> &[[u8; ENTRY]] {
        self.index.as_deref().unwrap_or_default().as_chunks().0
    }

    /// First passage and offset of a block.
    fn entry(&self, block: usize) -> Result<(u64, u64)> {
        let entry = self.entries().get(block).ok_or_else(|| self.damaged("a truncated documents.index"))?;
        Ok(first_and_offset(*entry))
    }

    fn block(&self, block: usize) -> Result<Vec<u8>> {
        let blocks = self.blocks.as_deref().unwrap_or_default();
        let start = self.entry(block)?.1;
        let end = self.entries().get(block + 1).map_or(blocks.len() as u64, |entry| first_and_offset(*entry).1);
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let packed = range.and_then(|(start, end)| blocks.get(start..end)).ok_or_else(|| self.damaged("offsets"))?;
        let (length, packed) = packed.split_first_chunk().ok_or_else(|| self.damaged("a truncated block"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > LARGEST {
            return Err(self.damaged("a block of an impossible size"));
        }
        zstd::bulk::decompress(packed, length).map_err(|_| self.damaged("a block that does not decompress"))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::new(Kind::Data, format!("the passages of the index are damaged: {what}"))
            .at_path(&self.path)
            .hint("`r1 index verify` compares all files with their checksums")
    }
}

/// The two numbers of an entry of `documents.index`.
fn first_and_offset(entry: [u8; ENTRY]) -> (u64, u64) {
    let both = u128::from_le_bytes(entry);
    (both as u64, (both >> 64) as u64)
}

/// A memory map; `None` for an empty file, which can't be mapped.
#[allow(unsafe_code)]
pub(super) fn map(path: &Path) -> Result<Option<Mmap>> {
    let failed = |error: std::io::Error| Error::io(Kind::Data, "read the index", path, &error);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the files of a complete index are not written to; a build replaces whole directories.
    unsafe { Mmap::map(&file) }.map(Some).map_err(failed)
}
