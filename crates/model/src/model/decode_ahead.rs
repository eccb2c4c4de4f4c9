//! Decode steps of one token per sequence, whose inputs are on the device, so that the host need
//! not know the tokens of the step before.
//!
//! A table on the device has the next id and position of every slot. A step reads the entries of
//! its slots, computes the logits, and, if the caller gives the sampling as tensor operations,
//! samples and writes the sampled ids and the next positions back.
//!
//! A decode step is a few hundred small operations whose launches take longer than their
//! computation. With CUDA graphs, they are recorded for each number of sequences with the first
//! step and launched as one; no part of a step waits for the device. A step with fewer sequences is
//! padded with sequences of a spare slot.

use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

use super::cache::Decoding;
use super::decode::{RECORDING, bucket, buckets};
use super::network::Graphs;
use super::plain::{Arithmetic, Scores};
use super::recurrence::RecurrentRows;
use super::spans::StepTokens;
use super::transfer::upload;
use super::varlen::Varlen;
use super::{KvCache, Model};
use crate::native::CudaGraph;
use r1_base::error::{self, Error, Result};

/// What a step computes from logits `[N, V]` of `slots` `[N]` i64, whose tokens are at `positions`
/// `[N]` i64: the sampled ids `[N, 1]` i64, if it samples, and what the caller reads.
pub type DrawTokens<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<(Option<Tensor>, Vec<Tensor>)>;

/// A step of `size` sequences, with sampling of one kind.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) size: usize,
    pub(super) sampling: u64,
    /// The slots that are written to the inputs.
    written: Vec<usize>,
    inputs: DecodeInputs,
    /// Absent where steps are not recorded.
    recorded: Option<(Launch, Vec<Tensor>)>,
}

/// What a launch of a prepared step does.
#[derive(Debug)]
enum Launch {
    Graph(CudaGraph),
    /// Nothing, to time the host.
    Nothing,
}

/// Inputs of a step, on the device, other than the table of next tokens.
#[derive(Debug)]
struct DecodeInputs {
    /// `[size]` i64
    slots: Tensor,
    /// [size + 1] i32: offset of the keys of each sequence.
    first_key: Tensor,
    first_query: Tensor,
    /// A row for each sequence, for recurrent layers.
    recurrent: Option<RecurrentRows>,
}

impl KvCache {
    /// Sets id and position of the next tokens of slots; `rows` are (slot, id, position). The ids
    /// are not yet in the cache.
    pub fn set_next(&self, rows: &[(usize, u32, usize)]) -> Result<()> {
        let all = |number: fn(&(usize, u32, usize)) -> i64| rows.iter().map(number);
        let mut numbers: Vec<i64> = all(|row| row.0 as i64).collect();
        numbers.extend(all(|row| i64::from(row.1)).chain(all(|row| row.2 as i64)));
        let numbers = Tensor::f_from_slice(&numbers)?.f_view([3, rows.len() as i64])?;
        let numbers = upload(&numbers, self.device())?;
        let _ = self.next.shallow_clone().f_index_copy_(1, &numbers.f_select(0, 0)?, &numbers.f_narrow(0, 1, 2)?)?;
        Ok(())
    }

    /// Draws from `logits` `[N, V]` for slots `[N]`, and advances them to the sampled ids.
    fn draw(&self, slots: &Tensor, positions: &Tensor, logits: &Tensor, draw: DrawTokens<'_>) -> Result<Vec<Tensor>> {
        let (ids, drawn) = draw(logits, slots, positions)?;
        if let Some(ids) = ids {
            let next = Tensor::f_stack(&[&ids.f_flatten(0, 1)?, &positions.f_add_scalar(1)?], 0)?;
            let _ = self.next.shallow_clone().f_index_copy_(1, slots, &next)?;
            // Sequences that pad a step stay at their first token.
            let _ = self.next.f_narrow(1, self.next.size()[1] - 1, 1)?.f_zero_()?;
        }
        Ok(drawn)
    }
}

impl Model {
    /// Whether steps of this model can be queued before their tokens are known
    /// ([`decode_ahead`](Self::decode_ahead)): attention is variable-length, and no operation
    /// depends on the tokens or waits for numbers. A step ahead of a response that has ended would
    /// change its recurrent state.
    pub fn decodes_ahead(&self) -> bool {
        self.varlen
            && self.config.experts.is_none()
            && !self.config.is_recurrent()
            && !self.has_dynamic_rope()
            && !self.has_images()
            && !self.adapter_disabled.get()
    }

    /// A decode step of the next tokens of `slots`, which are written to the cache. Returns what
    /// the caller reads of `draw`, with a row for each slot, on the device; the next step may
    /// overwrite it. `sampling` names the operations of `draw`, which depend on nothing else.
    ///
    /// The cache must have room for the tokens.
    ///
    /// # Errors
    /// `Kind::Internal` for a slot that is out of range or given twice.
    pub fn decode_ahead(
        &self,
        cache: &mut KvCache,
        slots: &[usize],
        sampling: u64,
        draw: DrawTokens<'_>,
    ) -> Result<Vec<Tensor>> {
        let _guard = tch::no_grad_guard();
        cache.check_slots(slots.iter().copied())?;
        let size = bucket(slots.len());
        let index = cache.prepared.iter().position(|it| (it.size, it.sampling) == (size, sampling));
        let index = match index {
            Some(index) => index,
            None => self.prepare(cache, size, sampling, draw)?,
        };
        let mut it = cache.prepared.swap_remove(index);
        if it.written != slots {
            it.inputs.write(slots, size, cache, self)?;
            slots.clone_into(&mut it.written);
        }
        #[expect(clippy::single_match_else, reason = "both ways are equally long")]
        let (drawn, decoding) = match &it.recorded {
            Some((launch, drawn)) => {
                if let Launch::Graph(graph) = launch {
                    graph.launch()?;
                }
                (drawn.iter().map(Tensor::shallow_clone).collect(), Decoding::Graph)
            }
            None => {
                // The operations that a graph consists of, on a device without graphs.
                let recordable = matches!(*self.graphs.borrow(), Graphs::On);
                let mode = if recordable { Decoding::Recordable } else { Decoding::Eager };
                (self.one_token(cache, &it.inputs, draw)?, mode)
            }
        };
        cache.decoding = decoding;
        cache.prepared.push(it);
        drawn.into_iter().map(|all| Ok(all.f_narrow(0, 0, slots.len() as i64)?)).collect()
    }

    /// Samples the next tokens of `slots` from `logits` `[N, V]` of a prefill, on the device.
    pub fn draw_ahead(
        &self,
        cache: &KvCache,
        slots: &[usize],
        logits: &Tensor,
        draw: DrawTokens<'_>,
    ) -> Result<Vec<Tensor>> {
        let _guard = tch::no_grad_guard();
        let slots: Vec<i64> = slots.iter().map(|&slot| slot as i64).collect();
        let slots = upload(&Tensor::f_from_slice(&slots)?, self.device)?;
        let positions = cache.next.f_select(0, 1)?.f_index_select(0, &slots)?;
        cache.draw(&slots, &positions, logits, draw)
    }

    /// Adds the step of `size` sequences to `cache.prepared`, and returns its place. Where steps
    /// are recorded, all sizes up to the number of slots are recorded at once; after [`RECORDING`]
    /// in total, only the size that is needed.
    fn prepare(&self, cache: &mut KvCache, size: usize, sampling: u64, draw: DrawTokens<'_>) -> Result<usize> {
        let records = match *self.graphs.borrow() {
            Graphs::On => CudaGraph::missing(self.device).is_none(),
            Graphs::Stub => true,
            Graphs::Off | Graphs::Failed(_) => false,
        };
        let begin = Instant::now();
        let sizes = if records { buckets(cache.slots()) } else { vec![size] };
        for other in sizes {
            let is_prepared = cache.prepared.iter().any(|it| (it.size, it.sampling) == (other, sampling));
            if is_prepared || (other != size && cache.recording + begin.elapsed() > RECORDING) {
                continue;
            }
            let mut inputs = DecodeInputs::new(other, self)?;
            // All sequences are in the spare slot, because the operations run once to be recorded.
            inputs.write(&[], other, cache, self)?;
            let recorded = if records { self.record(cache, &inputs, draw) } else { Ok(None) };
            let recorded = match recorded {
                Ok(recorded) => recorded,
                Err(error) => {
                    // After a failed recording, single operations replace the graphs.
                    self.graphs.replace(Graphs::Failed(error.message));
                    cache.prepared.clear();
                    return self.prepare(cache, size, sampling, draw);
                }
            };
            cache.prepared.push(Prepared { size: other, sampling, written: Vec::new(), inputs, recorded });
        }
        cache.recording += if records { begin.elapsed() } else { Duration::ZERO };
        let index = cache.prepared.iter().position(|it| (it.size, it.sampling) == (size, sampling));
        index.ok_or_else(|| Error::new(error::Kind::Internal, "a step was not prepared"))
    }

    fn record(
        &self,
        cache: &KvCache,
        inputs: &DecodeInputs,
        draw: DrawTokens<'_>,
    ) -> Result<Option<(Launch, Vec<Tensor>)>> {
        if matches!(*self.graphs.borrow(), Graphs::Stub) {
            return Ok(Some((Launch::Nothing, self.one_token(cache, inputs, draw)?)));
        }
        let share = cache.prepared.iter().find_map(|it| match &it.recorded {
            Some((Launch::Graph(graph), _)) => Some(graph),
            _ => None,
        });
        let (graph, drawn) = CudaGraph::record(self.device, share, &|| self.one_token(cache, inputs, draw))?;
        Ok(Some((Launch::Graph(graph), drawn)))
    }

    /// The operations of a step.
    fn one_token(&self, cache: &KvCache, inputs: &DecodeInputs, draw: DrawTokens<'_>) -> Result<Vec<Tensor>> {
        // [2, size]
        let tokens = cache.next.f_index_select(1, &inputs.slots)?;
        let (ids, positions) = (tokens.f_select(0, 0)?, tokens.f_select(0, 1)?);
        let varlen = Varlen {
            first_query: inputs.first_query.shallow_clone(),
            first_key: inputs.first_key.shallow_clone(),
            keys: Some(positions.f_add_scalar(1)?.f_to_kind(Kind::Int)?),
            most_queries: 1,
            most_keys: cache.capacity() as i64,
        };
        let angles = self.angles(&positions, &[])?;
        let attend = |inputs: [&Tensor; 3], scores: Scores<'_>| self.attend_varlen(&varlen, inputs, scores);
        let slots = &inputs.slots;
        let recurrent = inputs.recurrent.as_ref().map(|rows| (rows, slots));
        let tokens = StepTokens { ids: &ids, positions: &positions, slots, recurrent, images: None };
        let x = self.span_layers(cache, tokens, &angles, Arithmetic::Libtorch, &attend, &|| false)?;
        let Some(x) = x else { return Err(Error::new(error::Kind::Internal, "a step ended early without a stop")) };
        cache.draw(&inputs.slots, &positions, &self.last_logits(&x)?, draw)
    }
}

impl DecodeInputs {
    fn new(size: usize, model: &Model) -> Result<Self> {
        let count = size as i64;
        Ok(Self {
            slots: upload(&Tensor::f_zeros([count], (Kind::Int64, Device::Cpu))?, model.device)?,
            first_key: upload(&Tensor::f_zeros([count + 1], (Kind::Int, Device::Cpu))?, model.device)?,
            first_query: upload(&Tensor::f_arange(count + 1, (Kind::Int, Device::Cpu))?, model.device)?,
            recurrent: model.recurrent_rows(&vec![1; size], Arithmetic::Libtorch)?,
        })
    }

    fn write(&mut self, slots: &[usize], size: usize, cache: &KvCache, model: &Model) -> Result<()> {
        let all = || slots.iter().copied().chain(std::iter::repeat(cache.slots())).take(size);
        let first_key: Vec<i32> = all().map(|slot| (slot * cache.capacity()) as i32).chain([0]).collect();
        let slots: Vec<i64> = all().map(|slot| slot as i64).collect();
        self.slots.f_copy_(&upload(&Tensor::f_from_slice(&slots)?, model.device)?)?;
        self.first_key.f_copy_(&upload(&Tensor::f_from_slice(&first_key)?, model.device)?)?;
        Ok(())
    }
}
