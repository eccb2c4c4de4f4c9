//! The stored vectors of an index: rows of f32 or f16, read through a memory map, and their inner
//! products.

use std::ops::Range;
use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::Mmap;

use super::documents::map;
use super::vectors::{Similarity, VectorType};
use r1_base::error::{Error, Kind, Result};

/// Vectors per block of a scan: a block stays in the processor's cache for all queries.
const BLOCK: usize = 64;
/// Number of f16 elements that are converted at once.
const HALVES: usize = 256;
/// Number of vectors whose length is checked when an index is opened.
const LOOKED_AT: usize = 64;
/// Largest difference of such a length from 1: f16 has 11 bits.
const UNIT: f32 = 1e-2;

// Files are little endian, and rows are read in place.
const _: () = assert!(cfg!(target_endian = "little"));

/// Vectors by their number.
pub(super) struct VectorRows {
    bytes: Option<Mmap>,
    kind: VectorType,
    dimension: usize,
    count: usize,
}

impl VectorRows {
    /// Opens a file with `count` vectors.
    ///
    /// # Errors
    /// [`Kind::Data`] if the file has another size.
    pub(super) fn open(path: &Path, kind: VectorType, dimension: usize, count: u64) -> Result<Self> {
        let bytes = map(path)?;
        let size = bytes.as_deref().map_or(0, <[u8]>::len) as u128;
        let wanted = u128::from(count) * dimension as u128 * kind.size() as u128;
        if size != wanted {
            let of = format!("{count} vectors of {dimension} numbers");
            let why = format!("the vectors of the index have {size} bytes; {of} have {wanted}");
            return Err(Error::new(Kind::Data, why)
                .at_path(path)
                .hint("copy the index again, or build it again with `r1 index build`"));
        }
        Ok(Self { bytes, kind, dimension, count: count as usize })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn dimension(&self) -> usize {
        self.dimension
    }

    /// Refuses vectors for cosines that do not have unit length. A sample of them is checked.
    ///
    /// # Errors
    /// [`Kind::Data`] with the number of a passage.
    pub(super) fn check_similarity(&self, similarity: Similarity, path: &Path) -> Result<()> {
        if similarity == Similarity::Dot {
            return Ok(());
        }
        for row in (0..self.count).step_by(self.count.div_ceil(LOOKED_AT).max(1)) {
            let length = self.product_of_rows(row, row).sqrt();
            // NaN is refused too. A text without tokens may have the length 0.
            if !((length - 1.0).abs() < UNIT || length == 0.0) {
                let why = format!("vector {row} has the length {length}; vectors for cosines have the length 1");
                return Err(Error::new(Kind::Data, why)
                    .at_path(path)
                    .hint("the vectors are not those of the manifest: build the index again with `r1 index build`"));
            }
        }
        Ok(())
    }

    /// The elements of rows; empty for rows out of range, and for f16.
    #[allow(unsafe_code)]
    fn floats(&self, rows: Range<usize>) -> &[f32] {
        // SAFETY: every pattern of bits is an f32.
        unsafe { self.bytes_of(rows, VectorType::F32).align_to::<f32>() }.1
    }

    /// As [`floats`](Self::floats), for f16.
    #[allow(unsafe_code)]
    fn halves(&self, rows: Range<usize>) -> &[f16] {
        // SAFETY: every pattern of bits is an f16, which is a u16.
        unsafe { self.bytes_of(rows, VectorType::F16).align_to::<f16>() }.1
    }

    /// A map begins at a page, so that rows are aligned to their numbers.
    fn bytes_of(&self, rows: Range<usize>, kind: VectorType) -> &[u8] {
        let (bytes, size) = (self.bytes.as_deref().unwrap_or_default(), self.dimension * kind.size());
        let range = rows.start.checked_mul(size).zip(rows.end.checked_mul(size));
        let slice = range.and_then(|(start, end)| bytes.get(start..end));
        if self.kind == kind { slice.unwrap_or_default() } else { &[] }
    }

    /// The inner product of a query and a row; 0 for a row out of range.
    pub(super) fn product(&self, query: &[f32], row: usize) -> f32 {
        if self.kind == VectorType::F32 {
            return inner_product(query, self.floats(row..row + 1));
        }
        let mut plain = [0.0; HALVES];
        let parts = query.chunks(HALVES).zip(self.halves(row..row + 1).chunks(HALVES));
        let products = parts.map(|(query, halves)| {
            let plain = &mut plain[..halves.len()];
            halves.convert_to_f32_slice(plain);
            inner_product(query, plain)
        });
        products.sum()
    }

    /// The inner product of two rows; 0 for a row out of range.
    pub(super) fn product_of_rows(&self, one: usize, other: usize) -> f32 {
        if self.kind == VectorType::F32 {
            return inner_product(self.floats(one..one + 1), self.floats(other..other + 1));
        }
        let (mut plain, mut others) = ([0.0; HALVES], [0.0; HALVES]);
        let (one, other) = (self.halves(one..one + 1), self.halves(other..other + 1));
        let products = one.chunks(HALVES).zip(other.chunks(HALVES)).map(|(one, other)| {
            one.convert_to_f32_slice(&mut plain[..one.len()]);
            other.convert_to_f32_slice(&mut others[..other.len()]);
            inner_product(&plain[..one.len()], &others[..other.len()])
        });
        products.sum()
    }

    /// Calls `take` with the numbers of a query and a row and their inner product, for all pairs.
    pub(super) fn scan(&self, queries: &[&[f32]], rows: Range<usize>, mut take: impl FnMut(usize, usize, f32)) {
        let mut plain = vec![0.0; if self.kind == VectorType::F16 { BLOCK * self.dimension } else { 0 }];
        for start in rows.clone().step_by(BLOCK) {
            let window = start..(start + BLOCK).min(rows.end);
            let block = if self.kind == VectorType::F16 {
                let halves = self.halves(window);
                let plain = &mut plain[..halves.len()];
                halves.convert_to_f32_slice(plain);
                &*plain
            } else {
                self.floats(window)
            };
            for (number, query) in queries.iter().enumerate() {
                for (at, vector) in block.chunks_exact(self.dimension).enumerate() {
                    take(number, start + at, inner_product(query, vector));
                }
            }
        }
    }
}

/// Sums in lanes, for which the compiler uses vector instructions. The result does not depend on
/// the processor: every lane is summed in the same order.
#[allow(unsafe_code)]
fn inner_product(one: &[f32], other: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { inner_product_avx2(one, other) };
    }
    in_lanes(one, other)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn inner_product_avx2(one: &[f32], other: &[f32]) -> f32 {
    in_lanes(one, other)
}

#[inline(always)]
fn in_lanes(one: &[f32], other: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut sums = [0.0; LANES];
    let (one, one_rest) = one.as_chunks::<LANES>();
    let (other, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in one.iter().zip(other) {
        for lane in 0..LANES {
            sums[lane] += one[lane] * other[lane];
        }
    }
    let rest: f32 = one_rest.iter().zip(other_rest).map(|(one, other)| one * other).sum();
    sums.iter().sum::<f32>() + rest
}
