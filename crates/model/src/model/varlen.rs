//! Variable-length attention over packed sequences without padding (flash attention,
//! arXiv:2205.14135, arXiv:2307.08691): libtorch's kernel on the GPU; plain operations on the CPU,
//! for tests.

use tch::{Device, Kind, Tensor};

use super::Span;
use super::plain::{self, Scores};
use super::transfer::upload;
use crate::native;
use r1_base::error::Result;

/// Largest head size of flash attention; sizes are multiples of 8.
const WIDEST: usize = 256;

/// Offsets of the queries and keys of B sequences. The queries of a sequence are at its last keys.
#[derive(Debug)]
pub(super) struct Varlen {
    /// [B + 1] i32: offset of each sequence's queries; the last entry is the total.
    pub first_query: Tensor,
    /// [B + 1] i32: offset of each sequence's keys.
    pub first_key: Tensor,
    /// `[B]` i32: number of keys; up to the next offset if `None`.
    pub keys: Option<Tensor>,
    /// Maximum over the sequences.
    pub most_queries: i64,
    pub most_keys: i64,
}

impl Varlen {
    /// Whether flash attention supports this head size, type and device.
    pub(super) fn fits(device: Device, kind: Kind, head_dim: usize) -> bool {
        device.is_cuda()
            && matches!(kind, Kind::BFloat16 | Kind::Half)
            && head_dim.is_multiple_of(8)
            && head_dim <= WIDEST
    }

    /// Rows of these lengths, with their own keys.
    pub(super) fn rows(lengths: &[i64], device: Device) -> Result<Self> {
        let first = numbers(&begins(lengths.iter().copied()), device)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (most_queries, most_keys) = (longest, longest);
        Ok(Self { first_key: first.shallow_clone(), first_query: first, keys: None, most_queries, most_keys })
    }

    /// Spans over a contiguous cache with slots of `capacity` tokens.
    pub(super) fn spans(items: &[Span<'_>], capacity: usize, device: Device) -> Result<Self> {
        let held = |span: &Span<'_>| span.start + span.ids.len();
        let mut first_key: Vec<i32> = items.iter().map(|span| (span.slot * capacity) as i32).collect();
        first_key.push(0);
        let keys: Vec<i32> = items.iter().map(|span| held(span) as i32).collect();
        Ok(Self {
            first_query: numbers(&begins(items.iter().map(|span| span.ids.len() as i64)), device)?,
            first_key: numbers(&first_key, device)?,
            keys: Some(numbers(&keys, device)?),
            most_queries: items.iter().map(|span| span.ids.len()).max().unwrap_or(0) as i64,
            most_keys: items.iter().map(held).max().unwrap_or(0) as i64,
        })
    }

    /// Causal attention. q `[T, H, D]`, k and v `[N, Hkv, D]`; gives `[T, H, D]`.
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, scores: Scores<'_>) -> Result<Tensor> {
        if native::meta::is_on() {
            // With gradients of all three.
            return Ok(q.f_mul(&k.f_sum(None)?.f_add(&v.f_sum(None)?)?)?);
        }
        if !q.device().is_cuda() {
            return self.attend_plain(q, k, v, scores);
        }
        let (begins, limit) = ([&self.first_query, &self.first_key], [self.most_queries, self.most_keys]);
        native::flash([q, k, v], begins, self.keys.as_ref(), limit, scores.scale, scores.window, true)
    }

    /// Attention of every token to all tokens of its row, for [`Self::rows`]. q, k, v and the
    /// result are `[T, H, D]`.
    pub(super) fn attend_in_rows(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if native::meta::is_on() {
            return Ok(q.f_mul(&k.f_add(v)?)?);
        }
        if q.device().is_cuda() {
            let (begins, limit) = ([&self.first_query, &self.first_key], [self.most_queries, self.most_keys]);
            return native::flash([q, k, v], begins, None, limit, None, None, false);
        }
        let ends: Vec<i64> = Vec::try_from(self.first_query.f_to_kind(Kind::Int64)?)?;
        let row = |range: &[i64]| -> Result<Tensor> {
            let part = |x: &Tensor| x.f_narrow(0, range[0], range[1] - range[0])?.f_transpose(0, 1)?.f_unsqueeze(0);
            let (q, k, v) = (part(q)?, part(k)?, part(v)?);
            let output = Tensor::f_scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, false, None, false)?;
            Ok(output.f_squeeze_dim(0)?.f_transpose(0, 1)?)
        };
        Ok(Tensor::f_cat(&ends.windows(2).map(row).collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// Reference implementation of the kernel, sequence by sequence.
    pub(super) fn attend_plain(&self, q: &Tensor, k: &Tensor, v: &Tensor, scores: Scores<'_>) -> Result<Tensor> {
        let list = |x: &Tensor| -> Result<Vec<i64>> { Ok(Vec::<i64>::try_from(x.f_to_kind(Kind::Int64)?)?) };
        let (queries, first_key) = (list(&self.first_query)?, list(&self.first_key)?);
        let counts = match &self.keys {
            Some(keys) => list(keys)?,
            None => first_key.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        };
        let mut all = Vec::new();
        for (index, &keys) in counts.iter().enumerate() {
            let count = queries[index + 1] - queries[index];
            let part = |x: &Tensor, first: i64, count: i64| -> Result<Tensor> {
                Ok(x.f_narrow(0, first, count)?.f_transpose(0, 1)?.f_unsqueeze(0)?)
            };
            let last = Tensor::f_arange_start(keys - count, keys, (Kind::Int64, q.device()))?;
            let visible = plain::visible(&last, keys, scores.window)?.f_view([1, 1, count, keys])?;
            let (k, v) = (part(k, first_key[index], keys)?, part(v, first_key[index], keys)?);
            let out = plain::attend_cache(&part(q, queries[index], count)?, &k, &v, Some(&visible), scores)?;
            all.push(out.f_squeeze_dim(0)?.f_transpose(0, 1)?);
        }
        if all.is_empty() { Ok(q.f_zeros_like()?) } else { Ok(Tensor::f_cat(&all, 0)?) }
    }
}

/// Start offset of each sequence, and the end of the last.
fn begins(lengths: impl Iterator<Item = i64>) -> Vec<i32> {
    let mut all = vec![0];
    let mut end = 0;
    for length in lengths {
        end += length;
        all.push(end as i32);
    }
    all
}

fn numbers(values: &[i32], device: Device) -> Result<Tensor> {
    upload(&Tensor::f_from_slice(values)?, device)
}
