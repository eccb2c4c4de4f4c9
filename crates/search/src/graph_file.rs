//! The file of an HNSW graph as `usearch` 2 writes it. It is checked before it is used: `usearch`
//! does not check links, so that a damaged or hostile file would make it read outside its memory.
//!
//! All numbers are little endian, and nothing is aligned:
//!
//! ```text
//! u32 rows, u32 bytes of a vector     rows * vector: here the number of the row, 8 bytes
//! 64 bytes                            "usearch", versions, kinds
//! u64 rows, links, links of layer 0, highest layer, entry
//! i16 per row                         its highest layer
//! per row: u64 key, i16 layer, and per layer: u32 count, u32 per link
//! ```

use usearch::{Index as Usearch, MetricKind, ScalarKind};

use super::vectors::Similarity;
use r1_base::error::{Error, Kind, Result};

const HEAD: usize = 64;
const MAGIC: &[u8] = b"usearch";
/// Version of the file format.
const MAJOR: u16 = 2;

/// Checks all of a file. Returns its number of rows.
///
/// # Errors
/// [`Kind::Data`], without a place, for a file that is damaged, or of another similarity, number
/// of links or program.
pub(super) fn check(file: &[u8], similarity: Similarity, links: usize) -> Result<usize> {
    let mut rest = GraphReader(file);
    let (rows, bytes) = (rest.u32()? as usize, rest.u32()?);
    if rows == 0 || bytes != 8 {
        return Err(damaged("it has no rows of 8 bytes"));
    }
    for row in 0..rows {
        if rest.u64()? != row as u64 {
            return Err(damaged("its rows are not in order"));
        }
    }
    if !rest.take(HEAD)?.starts_with(MAGIC) {
        return Err(damaged("it was not written by usearch"));
    }
    let head = Usearch::metadata_from_buffer(file).map_err(|error| damaged(&error.to_string()))?;
    let (present, deleted) = (head.count_present as usize, head.count_deleted);
    if (head.version_major, head.dimensions, head.multi, present, deleted) != (MAJOR, 1, false, rows, 0)
        || head.quantization != ScalarKind::F64
    {
        return Err(damaged("its header is not that of an index"));
    }
    if head.metric != kind(similarity) {
        return Err(damaged(&format!("its similarity is not {}", similarity.name())));
    }
    let [size, upper, lowest, highest, entry] = [rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?];
    if (size as usize, upper as usize, lowest as usize) != (rows, links, 2 * links) {
        return Err(damaged("it has other numbers of rows and links"));
    }
    let levels = rest.take(rows.checked_mul(2).ok_or_else(|| damaged("it is truncated"))?)?;
    let level = |row: usize| {
        let level_bytes = (row < rows).then(|| &levels[2 * row..2 * row + 2]);
        level_bytes.map(|level_bytes| i16::from_le_bytes([level_bytes[0], level_bytes[1]]))
    };
    let is_level = |level: i16| u64::try_from(level).is_ok_and(|level| level <= highest);
    if level(usize::try_from(entry).unwrap_or(usize::MAX))
        .is_none_or(|row_level| u64::try_from(row_level) != Ok(highest))
    {
        return Err(damaged("its entry is not in the highest layer"));
    }
    for row in 0..rows {
        let (key, row_level) = (rest.u64()?, rest.i16()?);
        if key != row as u64 || Some(row_level) != level(row) || !is_level(row_level) {
            return Err(damaged(&format!("row {row} has another key or layer")));
        }
        for layer in 0..=row_level {
            let (count, slot_count) = (rest.u32()? as usize, if layer == 0 { 2 * links } else { links });
            let slots = rest.take(4 * slot_count)?;
            let targets = slots.chunks_exact(4).map(|slot| u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]));
            let exists = |target: u32| level(target as usize).is_some_and(|other| other >= layer);
            if count > slot_count || !targets.take(count).all(exists) {
                return Err(damaged(&format!("row {row} has an invalid link")));
            }
        }
    }
    if rest.0.is_empty() { Ok(rows) } else { Err(damaged("it is longer than its contents")) }
}

/// The metric in the header of a file.
pub(super) fn kind(similarity: Similarity) -> MetricKind {
    match similarity {
        Similarity::Cosine => MetricKind::Cos,
        Similarity::Dot => MetricKind::IP,
    }
}

/// The error of a graph that can't be used.
pub(super) fn damaged(why: &str) -> Error {
    Error::new(Kind::Data, format!("the HNSW graph of the index is damaged: {why}"))
        .hint("copy the index again, or build it again with `r1 index build`")
}

/// The rest of a file.
struct GraphReader<'a>(&'a [u8]);

impl<'a> GraphReader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(|| damaged("it is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
