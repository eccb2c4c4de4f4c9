//! Generation on the GPU: flash attention over the cache, and CUDA graphs for steps of one token
//! per sequence.
//!
//! A decode step is a few hundred small operations whose launches take longer than their
//! computation. They are therefore recorded for each number of sequences with the first step, with
//! inputs at fixed addresses, and launched as one graph. A step with fewer sequences is padded with
//! sequences of a spare slot. Prompts are prefilled in a separate call, so that a step with both
//! still launches the graph for the sequences that decode.

use std::time::{Duration, Instant};

use tch::{Kind, Tensor};

use super::cache::Decoding;
use super::decoder::{Residual, With};
use super::network::Graphs;
use super::plain::Arithmetic;
use super::transfer::upload;
use super::varlen::Varlen;
use super::{KvCache, Model, Span};
use crate::native::{self, Cached, CudaGraph};
use r1_base::error::{self, Error, Result};

/// A recorded decode step of `size` sequences.
#[derive(Debug)]
pub(super) struct RecordedStep {
    inputs: DecodeInputs,
    /// [size, V] f32, overwritten by each launch.
    logits: Tensor,
    graph: CudaGraph,
}

/// Inputs of a decode step, on the device.
#[derive(Debug)]
struct DecodeInputs {
    /// [3, size] i64: ids, positions, slots.
    tokens: Tensor,
    /// [2, size + 1] i32: offset and number of keys of each sequence.
    keys: Tensor,
    first_query: Tensor,
    size: usize,
}

impl DecodeInputs {
    fn new(size: usize, model: &Model) -> Result<Self> {
        let count = size as i64;
        Ok(Self {
            tokens: Tensor::f_zeros([3, count], (Kind::Int64, model.device))?,
            keys: Tensor::f_zeros([2, count + 1], (Kind::Int, model.device))?,
            first_query: Tensor::f_arange(count + 1, (Kind::Int, model.device))?,
            size,
        })
    }

    fn write(&mut self, items: &[Span<'_>], cache: &KvCache) -> Result<()> {
        // A sequence of one token in the spare slot, whose logits are ignored.
        let spare = Span { slot: cache.slots(), start: 0, ids: &[0] };
        let all = || items.iter().chain(std::iter::repeat(&spare)).take(self.size);
        let mut tokens: Vec<i64> = all().map(|span| i64::from(span.ids[0])).collect();
        tokens.extend(all().map(|span| span.start as i64));
        tokens.extend(all().map(|span| span.slot as i64));
        let mut keys: Vec<i32> = all().map(|span| (span.slot * cache.capacity()) as i32).collect();
        keys.push(0);
        keys.extend(all().map(|span| span.start as i32 + 1));
        keys.push(0);
        let device = cache.keys.first().map_or(tch::Device::Cpu, Tensor::device);
        self.tokens.f_copy_(&upload(&Tensor::f_from_slice(&tokens)?.f_view_as(&self.tokens)?, device)?)?;
        self.keys.f_copy_(&upload(&Tensor::f_from_slice(&keys)?.f_view_as(&self.keys)?, device)?)?;
        Ok(())
    }

    /// The recorded step allows every length up to the capacity.
    fn varlen(&self, capacity: usize) -> Result<Varlen> {
        Ok(Varlen {
            first_query: self.first_query.shallow_clone(),
            first_key: self.keys.f_select(0, 0)?,
            keys: Some(self.keys.f_select(0, 1)?.f_narrow(0, 0, self.size as i64)?),
            most_queries: 1,
            most_keys: capacity as i64,
        })
    }
}

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
        let tensor = |numbers: Vec<i64>| upload(&Tensor::f_from_slice(&numbers)?, self.device);
        let each = |number: fn(&Span<'_>, usize) -> i64| {
            tensor(items.iter().flat_map(|span| (0..span.ids.len()).map(move |at| number(span, at))).collect())
        };
        let ids = each(|span, at| i64::from(span.ids[at]))?;
        let positions = each(|span, at| (span.start + at) as i64)?;
        let slots = each(|span, _| span.slot as i64)?;
        let lengths: Vec<(i64, i64)> =
            items.iter().map(|span| (span.ids.len() as i64, (span.start + span.ids.len()) as i64)).collect();
        let varlen = Varlen::spans(items, cache.capacity(), self.device)?;
        let Some(x) = self.span_layers(cache, [&ids, &positions, &slots], &lengths, &varlen, stop)? else {
            return Ok(None);
        };
        let ends = items.iter().scan(0, |end, span| {
            *end += span.ids.len() as i64;
            Some(*end - 1)
        });
        self.last_logits(&x.f_index_select(0, &tensor(ends.collect())?)?).map(Some)
    }

    /// A decode step: launches a recorded graph, or records and launches one. Without graph
    /// support, and after a recording that failed, the operations run directly.
    fn step_recorded(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let (size, count) = (bucket(items.len()), items.len() as i64);
        if CudaGraph::missing(self.device).is_some() {
            cache.decoding = Decoding::Recordable;
            return self.step_padded(cache, items, size);
        }
        let index = match cache.recorded.iter().position(|it| it.inputs.size == size) {
            Some(index) => index,
            None => match self.record_sizes(cache, size) {
                Ok(index) => index,
                Err(error) => {
                    // After a failed recording, single operations replace the graph.
                    self.graphs.replace(Graphs::Failed(error.message));
                    cache.recorded.clear();
                    return self.step_padded(cache, items, size);
                }
            },
        };
        let mut it = cache.recorded.swap_remove(index);
        let launched = it.inputs.write(items, cache).and_then(|()| it.graph.launch());
        let logits = it.logits.f_narrow(0, 0, count);
        cache.recorded.push(it);
        launched?;
        cache.decoding = Decoding::Graph;
        Ok(logits?)
    }

    /// Records steps of `size` and of the other sizes; the place of the first in `cache.recorded`.
    fn record_sizes(&self, cache: &mut KvCache, size: usize) -> Result<usize> {
        let begin = Instant::now();
        for other in buckets(cache.slots()) {
            let is_recorded = cache.recorded.iter().any(|it| it.inputs.size == other);
            if !is_recorded && (other == size || cache.recording + begin.elapsed() < RECORDING) {
                let recorded = self.record(cache, other)?;
                cache.recorded.push(recorded);
            }
        }
        cache.recording += begin.elapsed();
        let index = cache.recorded.iter().position(|it| it.inputs.size == size);
        index.ok_or_else(|| Error::new(error::Kind::Internal, "a step was not recorded"))
    }

    fn record(&self, cache: &KvCache, size: usize) -> Result<RecordedStep> {
        let mut inputs = DecodeInputs::new(size, self)?;
        // All sequences are in the spare slot, because the operations run once to be recorded.
        inputs.write(&[], cache)?;
        let share = cache.recorded.first().map(|it| &it.graph);
        let (graph, logits) = CudaGraph::record(self.device, share, &|| self.one_token(cache, &inputs))?;
        Ok(RecordedStep { inputs, logits, graph })
    }

    /// The operations of a recorded step of `size` sequences, without a recording.
    fn step_padded(&self, cache: &KvCache, items: &[Span<'_>], size: usize) -> Result<Tensor> {
        let mut inputs = DecodeInputs::new(size, self)?;
        inputs.write(items, cache)?;
        Ok(self.one_token(cache, &inputs)?.f_narrow(0, 0, items.len() as i64)?)
    }

    /// Whether decode steps are to be recorded, and their operations do not depend on the tokens or
    /// wait for numbers.
    fn recordable(&self) -> bool {
        matches!(*self.graphs.borrow(), Graphs::On)
            && (self.config.experts.is_none() || self.groups_experts())
            && !self.has_dynamic_rope()
            && !self.adapter_disabled.get()
    }

    fn one_token(&self, cache: &KvCache, inputs: &DecodeInputs) -> Result<Tensor> {
        let part = |row| inputs.tokens.f_select(0, row);
        let varlen = inputs.varlen(cache.capacity())?;
        let x = self.span_layers(cache, [&part(0)?, &part(1)?, &part(2)?], &[], &varlen, &|| false)?;
        let Some(x) = x else { return Err(Error::new(error::Kind::Internal, "a step ended early without a stop")) };
        self.last_logits(&x)
    }

    /// All layers over tokens `[T]` of spans, which are written to the cache: ids, positions,
    /// slots. `lengths` are the span and sequence lengths, for angles that depend on them. `None`
    /// if stopped.
    pub(super) fn span_layers(
        &self,
        cache: &KvCache,
        [ids, positions, slots]: [&Tensor; 3],
        lengths: &[(i64, i64)],
        varlen: &Varlen,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let angles = self.angles(positions, lengths)?;
        let mut x = Residual::new(self.embed(ids)?);
        for (index, layer) in self.sampling().layers.iter().enumerate() {
            if stop() {
                return Ok(None);
            }
            // [slots, capacity, Hkv, D]
            let (mut keys, mut values) = (cache.keys[index].shallow_clone(), cache.values[index].shallow_clone());
            let cached = Cached { keys: &cache.keys[index], values: &cache.values[index], slots, positions };
            let with = With { arithmetic: Arithmetic::Libtorch, routes: &cache.routes(), cached: Some(cached) };
            x = self.layer(index, layer, &x, &angles, with, |q, new| {
                if let Some([k, v]) = new {
                    let at = [Some(slots), Some(positions)];
                    let _ = keys.f_index_put_(&at, k, false)?;
                    let _ = values.f_index_put_(&at, v, false)?;
                }
                let (keys, values, scores) = (keys.f_flatten(0, 1)?, values.f_flatten(0, 1)?, self.scores(index));
                if let (true, 1, Some(lengths)) = (self.kernels.attention, varlen.most_queries, &varlen.keys) {
                    let (places, longest) = ([&varlen.first_key, lengths], varlen.most_keys);
                    return native::decode_attention([q, &keys, &values], places, longest, scores.scale, scores.window);
                }
                varlen.attend(q, &keys, &values, scores)
            })?;
        }
        Ok(Some(x.sum()?))
    }

    pub(super) fn last_logits(&self, last: &Tensor) -> Result<Tensor> {
        let hidden = self.norm(last, &self.parameters.norm)?;
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
