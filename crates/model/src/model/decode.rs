//! Generation on the GPU: flash attention over the cache, and steps of one token per sequence that
//! can be launched as CUDA graphs (`decode_ahead`).
//!
//! Prompts are prefilled in a separate call, so that a step with both still launches the graph for
//! the sequences that decode.

use std::time::Duration;

use tch::Tensor;

use super::cache::Decoding;
use super::decoder::scaled;
use super::network::Graphs;
use super::plain::{Arithmetic, Scores};
use super::spans::SpanTokens;
use super::transfer::upload;
use super::varlen::Varlen;
use super::{KvCache, Model, Span};
use crate::native;
use r1_base::error::Result;

/// The name of steps that sample nothing ([`Model::decode_ahead`]).
const LOGITS: u64 = u64::MAX;

impl Model {
    /// [`step`](Self::step) with variable-length attention, after validation and growth of the
    /// cache.
    pub(super) fn step_varlen(
        &self,
        cache: &mut KvCache,
        items: &[Span<'_>],
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let is_single = |span: &Span<'_>| span.ids.len() == 1;
        cache.decoding = Decoding::None;
        if !items.iter().any(is_single) {
            return self.step_eager(cache, items, stop);
        }
        cache.decoding = Decoding::Eager;
        // A graph does not add to the record of experts.
        if !self.recordable() || cache.routes.is_some() {
            return self.step_eager(cache, items, stop);
        }
        let (single, pieces): (Vec<usize>, Vec<usize>) = (0..items.len()).partition(|&item| is_single(&items[item]));
        if pieces.is_empty() {
            return self.step_recorded(cache, items).map(Some);
        }
        let of = |places: &[usize]| -> Vec<Span<'_>> { places.iter().map(|&index| items[index]).collect() };
        let Some(prefilled) = self.step_eager(cache, &of(&pieces), stop)? else { return Ok(None) };
        let decoded = self.step_recorded(cache, &of(&single))?;
        let logits = Tensor::f_cat(&[decoded, prefilled], 0)?;
        // Rows in the order of the items.
        let mut rows = vec![0; items.len()];
        for (row, &item) in (0..).zip(single.iter().chain(&pieces)) {
            rows[item] = row;
        }
        if rows.is_sorted() {
            return Ok(Some(logits));
        }
        Ok(Some(logits.f_index_select(0, &upload(&Tensor::f_from_slice(&rows)?, self.device)?)?))
    }

    /// A step as single operations.
    fn step_eager(&self, cache: &KvCache, items: &[Span<'_>], stop: &dyn Fn() -> bool) -> Result<Option<Tensor>> {
        let (tokens, varlen) = (
            SpanTokens::new(items, self, cache, Arithmetic::Libtorch)?,
            Varlen::spans(items, cache.capacity(), self.device)?,
        );
        let angles = self.angles(tokens.rotary_positions(), &tokens.lengths)?;
        let attend = |inputs: [&Tensor; 3], scores: Scores<'_>| self.attend_varlen(&varlen, inputs, scores);
        let x = self.span_layers(cache, tokens.step(), &angles, Arithmetic::Libtorch, &attend, stop)?;
        x.map(|x| self.last_logits(&tokens.last(&x)?)).transpose()
    }

    /// A decode step of spans of one id: launches a recorded graph, or runs its operations.
    fn step_recorded(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let rows: Vec<(usize, u32, usize)> = items.iter().map(|span| (span.slot, span.ids[0], span.start)).collect();
        cache.set_next(&rows)?;
        let slots: Vec<usize> = items.iter().map(|span| span.slot).collect();
        let mut drawn =
            self.decode_ahead(cache, &slots, LOGITS, &|logits, _, _| Ok((None, vec![logits.shallow_clone()])))?;
        Ok(drawn.swap_remove(0))
    }

    /// Whether decode steps are to be recorded, and their operations do not depend on the tokens or
    /// wait for numbers.
    fn recordable(&self) -> bool {
        matches!(*self.graphs.borrow(), Graphs::On)
            && (self.config.experts.is_none() || self.groups_experts())
            && !self.has_dynamic_rope()
            && !self.has_images()
            && !self.adapter_disabled.get()
    }

    /// Attention of q `[T, H, D]` over cached keys and values `[slots, capacity, Hkv, D]`.
    pub(super) fn attend_varlen(&self, varlen: &Varlen, inputs: [&Tensor; 3], scores: Scores<'_>) -> Result<Tensor> {
        let [q, keys, values] = inputs;
        let (keys, values) = (keys.f_flatten(0, 1)?, values.f_flatten(0, 1)?);
        if let (true, 1, Some(lengths)) = (self.kernels.attention, varlen.most_queries, &varlen.keys) {
            let (places, longest) = ([&varlen.first_key, lengths], varlen.most_keys);
            return native::decode_attention([q, &keys, &values], places, longest, scores.scale, scores.window);
        }
        varlen.attend(q, &keys, &values, scores)
    }

    pub(super) fn last_logits(&self, last: &Tensor) -> Result<Tensor> {
        let hidden = scaled(self.norm(last, &self.parameters.norm)?, self.config.logits_scale)?;
        self.logits_wide(&hidden)
    }
}

/// Time for recording steps of sizes that are not needed yet, for each cache.
pub(super) const RECORDING: Duration = Duration::from_secs(2);

/// The batch sizes for up to `slots` sequences, the largest first: the others use its memory.
pub(super) fn buckets(slots: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=slots).rev().map(bucket).collect();
    sizes.dedup();
    sizes
}

/// Recorded batch size for `count` sequences: few sizes, little padding.
pub(super) fn bucket(count: usize) -> usize {
    if count <= 8 { count.next_power_of_two() } else { count.next_multiple_of(8) }
}
