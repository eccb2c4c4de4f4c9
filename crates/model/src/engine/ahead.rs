//! Steps that the host queues before it has read the tokens of the step before.
//!
//! Sampled ids, positions and random numbers are on the device (`device_sampler`,
//! [`NextTokens`]), so that step n + 1 is queued while the device computes step n. The host then
//! reads the tokens of step n. Responses whose last token is known by its number end in time. A
//! response that ends with a stop id or a stop string has one more token in the step that is
//! already queued: it is dropped, and its slot keeps only the ids that were read. The slot's next
//! user writes to the cache after that step, because a device works in order.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tch::{Kind, Tensor};

use super::Engine;
use super::advance::ServeOutcome;
use super::device_sampler::{BLOCK, DeviceSampler, Kinds, drawn, supports};
use super::running::Running;
use super::stats::{add, add_time};
use super::tensor_sampler::list;
use crate::model::{Decoding, HostTransfer, NextTokens, Span, upload};
use r1_base::error::Result;
use r1_base::mdp::FinishReason;

/// The state of slots on the device.
#[derive(Debug)]
pub(super) struct OnDevice {
    next: NextTokens,
    sampler: DeviceSampler,
}

/// A queued step whose tokens are not read yet.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Serial numbers of the requests, in the order of the rows.
    requests: Vec<u64>,
    /// The parts of the step, in the order of the rows.
    parts: Vec<SampledRows>,
    /// The numbers of [`DeviceSampler::draw`] of each part.
    numbers: HostTransfer,
}

/// Rows of a step that are sampled by the same operations.
#[derive(Debug)]
struct SampledRows {
    kinds: Kinds,
    /// Ids of all tokens that rows can keep, if the numbers do not have all: `[n, cut]` i32 on the
    /// device.
    rest: Option<Tensor>,
}

/// The result of [`Engine::queue`].
#[derive(Debug)]
pub(super) enum QueueResult {
    /// `stop` ended the step.
    Stopped,
    /// The step, if it samples a token.
    Step(Option<InFlight>),
}

/// What a step computes, as indices into the running requests.
#[derive(Default)]
pub(super) struct StepPlan {
    /// One token each, the next of the slot.
    decode: Vec<usize>,
    /// Prompts with the number of their tokens, and whether the prompt ends with them.
    prompts: Vec<(usize, usize, bool)>,
}

impl Engine {
    /// Whether the next step can be queued ahead: the model and the settings of all running
    /// requests allow it.
    pub(super) fn runs_ahead(&self) -> bool {
        self.ahead
            && self.model.decodes_ahead()
            && self.running.iter().all(|running| supports(&running.request.sampling))
    }

    /// Queues a step, and then reads the tokens of the step before.
    pub(super) fn step_ahead(
        &mut self,
        outcome: &mut ServeOutcome,
        stop: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let plan = self.plan_ahead()?;
        let begin = Instant::now();
        let queued = if plan.decode.is_empty() && plan.prompts.is_empty() {
            None
        } else {
            match self.queue(&plan, stop)? {
                QueueResult::Step(queued) => queued,
                // The step before is read later, if at all.
                QueueResult::Stopped => return Ok(()),
            }
        };
        add_time(&self.progress.model_nanoseconds, begin.elapsed());
        let before = std::mem::replace(&mut self.in_flight, queued);
        self.read(before, outcome, on_token)
    }

    /// Reads the tokens of the queued step, so that a step of the other kind can follow.
    pub(super) fn settle(&mut self, outcome: &mut ServeOutcome, on_token: &mut dyn FnMut(u32)) -> Result<()> {
        let before = self.in_flight.take();
        self.read(before, outcome, on_token)
    }

    /// As `plan`; tokens that are not read count as computed when their step is queued.
    pub(super) fn plan_ahead(&mut self) -> Result<StepPlan> {
        let (mut plan, mut allowance) = (StepPlan::default(), self.options.prefill_tokens);
        for index in 0..self.running.len() {
            if !self.running[index].started {
                if allowance == 0 || self.awaits_prefix(index) {
                    continue;
                }
                self.copy_prefix(index)?;
                self.running[index].started = true;
            }
            let running = &self.running[index];
            if running.sampled() > 0 {
                if !running.is_full(self.options.capacity) {
                    plan.decode.push(index);
                }
                continue;
            }
            let missing = running.sequence.len() - self.slots.ids(running.slot).len();
            let piece = missing.min(allowance);
            allowance -= piece;
            match (missing, piece) {
                (_, 0) => {}
                (1, _) => plan.decode.push(index),
                _ => plan.prompts.push((index, piece, piece == missing)),
            }
        }
        Ok(plan)
    }

    /// Queues the operations of a step.
    pub(super) fn queue(&mut self, plan: &StepPlan, stop: &dyn Fn() -> bool) -> Result<QueueResult> {
        let logits = self.prefill(plan, stop)?;
        if logits.is_none() && !plan.prompts.is_empty() {
            return Ok(QueueResult::Stopped);
        }
        let mut on_device = match self.on_device.take() {
            Some(on_device) => on_device,
            None => OnDevice {
                next: NextTokens::new(&self.model, &self.cache)?,
                sampler: DeviceSampler::new(&self.model, self.cache.slots())?,
            },
        };
        let queued = self.queue_tokens(plan, logits.as_ref(), &mut on_device);
        self.on_device = Some(on_device);
        queued.map(QueueResult::Step)
    }

    /// Computes the prompts of the step: a row of logits for each. `None` without prompts, and if
    /// `stop` ended it.
    fn prefill(&mut self, plan: &StepPlan, stop: &dyn Fn() -> bool) -> Result<Option<Tensor>> {
        let held = |index: usize| self.running[index].sequence.len() + self.running[index].unread;
        let longest = plan.decode.iter().map(|&index| held(index));
        let longest = longest.chain(plan.prompts.iter().map(|&(index, ..)| held(index))).max().unwrap_or(0);
        if longest > self.cache.capacity() {
            self.cache.reserve(longest.max(self.cache.capacity() * 3 / 2).min(self.options.rows()))?;
        }
        if plan.prompts.is_empty() {
            return Ok(None);
        }
        let spans = plan.prompts.iter().map(|&(index, count, _)| {
            let running = &self.running[index];
            let start = self.slots.ids(running.slot).len();
            Span { slot: running.slot, start, ids: &running.sequence[start..start + count] }
        });
        let spans: Vec<Span<'_>> = spans.collect();
        let Some(logits) = self.model.step_until(&mut self.cache, &spans, stop)? else { return Ok(None) };
        for &(index, count, _) in &plan.prompts {
            self.count_prompt(index, count);
        }
        Ok(Some(logits))
    }

    /// Records that the next `count` tokens of a prompt are in the cache.
    fn count_prompt(&mut self, index: usize, count: usize) {
        let running = &mut self.running[index];
        let start = self.slots.ids(running.slot).len();
        running.prefilled += count;
        add(&self.progress.prefilled_tokens, count as u64);
        self.slots.extend(running.slot, &running.sequence[start..start + count], &mut &[][..]);
        if start + count == running.sequence.len() {
            let cached = running.request.prompt_ids.len() - running.prefilled;
            add(&self.progress.cached_tokens, cached as u64);
        }
    }

    /// Queues the decoding of sequences, and the sampling of their tokens and of those after
    /// prompts.
    fn queue_tokens(
        &mut self,
        plan: &StepPlan,
        logits: Option<&Tensor>,
        on_device: &mut OnDevice,
    ) -> Result<Option<InFlight>> {
        let ended = plan.prompts.iter().enumerate().filter(|(_, (.., ends))| *ends);
        let ended: Vec<(usize, usize)> = ended.map(|(row, &(index, ..))| (row, index)).collect();
        let after: Vec<usize> = ended.iter().map(|&(_, index)| index).collect();
        self.write_inputs(plan.decode.iter().chain(&after).copied(), on_device)?;
        let OnDevice { next, sampler } = on_device;
        let sampler = &*sampler;
        let (mut numbers, mut parts, mut decoding) = (Vec::new(), Vec::new(), self.cache.decoding());
        let vocab = self.model.config.vocab_size as i64;
        let slots = |places: &[usize]| -> Vec<usize> { places.iter().map(|&index| self.running[index].slot).collect() };
        let kinds = |places: &[usize]| {
            let mut kinds = Kinds::default();
            for &index in places {
                kinds.add(&self.running[index].request.sampling, vocab);
            }
            kinds
        };
        let mut add_part = |drawn: Vec<Tensor>, kinds: Kinds| -> Result<()> {
            let mut drawn = drawn.into_iter().skip(1);
            numbers.extend(drawn.next());
            // The next step may overwrite it before the host knows whether it needs it.
            let rest = drawn.next().map(|ids| ids.f_to_dtype(Kind::Int, false, true)).transpose()?;
            parts.push(SampledRows { kinds, rest });
            Ok(())
        };
        if !plan.decode.is_empty() {
            let kinds = kinds(&plan.decode);
            let draw =
                |logits: &Tensor, slots: &Tensor, positions: &Tensor| sampler.draw(logits, slots, positions, kinds);
            let slots = slots(&plan.decode);
            let drawn = self.model.decode_ahead(&mut self.cache, next, &slots, kinds.key(), &draw)?;
            decoding = self.cache.decoding();
            add_part(drawn, kinds)?;
        }
        if let (Some(logits), false) = (logits, ended.is_empty()) {
            let rows: Vec<i64> = ended.iter().map(|&(row, _)| row as i64).collect();
            let rows = upload(&Tensor::f_from_slice(&rows)?, self.model.device())?;
            let kinds = kinds(&after);
            let draw =
                |logits: &Tensor, slots: &Tensor, positions: &Tensor| sampler.draw(logits, slots, positions, kinds);
            add_part(self.model.draw_ahead(next, &slots(&after), &logits.f_index_select(0, &rows)?, &draw)?, kinds)?;
        }
        self.count_step(plan.decode.len() + plan.prompts.len(), decoding);
        for &index in &plan.decode {
            if self.running[index].sampled() == 0 {
                self.count_prompt(index, 1);
            }
        }
        let mut requests = Vec::with_capacity(plan.decode.len() + after.len());
        for &index in plan.decode.iter().chain(&after) {
            self.running[index].unread += 1;
            requests.push(self.running[index].serial);
        }
        if requests.is_empty() {
            return Ok(None);
        }
        Ok(Some(InFlight { requests, parts, numbers: HostTransfer::start(&numbers, self.model.device())? }))
    }

    /// Writes next tokens of requests that are new on the device, and random numbers where the
    /// device has used those that it had.
    fn write_inputs(&mut self, places: impl Iterator<Item = usize> + Clone, on_device: &mut OnDevice) -> Result<()> {
        let mut joining = Vec::new();
        let mut rows: Vec<&Running> = Vec::new();
        for index in places.clone() {
            let running = &self.running[index];
            if !running.on_device {
                let last = running.sequence.last().copied().unwrap_or(0);
                joining.push((running.slot, last, running.sequence.len().saturating_sub(1)));
            }
            if !running.on_device || running.sampled().is_multiple_of(BLOCK) {
                rows.push(running);
            }
        }
        if !joining.is_empty() {
            on_device.next.set(&self.model, &joining)?;
            let new = places.clone().map(|index| &self.running[index]).filter(|running| !running.on_device);
            on_device.sampler.join(&new.collect::<Vec<_>>())?;
        }
        if !rows.is_empty() {
            on_device.sampler.set(&rows)?;
        }
        for index in places {
            self.running[index].on_device = true;
        }
        Ok(())
    }

    /// Waits for the tokens of a step, and ends the responses that are complete.
    fn read(
        &mut self,
        step: Option<InFlight>,
        outcome: &mut ServeOutcome,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let Some(InFlight { requests, parts, numbers }) = step else { return Ok(()) };
        let begin = Instant::now();
        let numbers = numbers.wait()?;
        add_time(&self.progress.model_nanoseconds, begin.elapsed());
        let numbers = numbers.iter().map(|all| Ok((list::<f64>(all)?, all.size()[1] as usize)));
        let numbers: Vec<(Vec<f64>, usize)> = numbers.collect::<Result<_>>()?;
        let rows = parts.iter().zip(&numbers).flat_map(|(part, (all, width))| {
            all.chunks_exact(*width).enumerate().map(move |(row, numbers)| (part, row, numbers))
        });
        let mut ended: Vec<(usize, Result<FinishReason>)> = Vec::new();
        for (serial, (part, row, numbers)) in requests.into_iter().zip(rows) {
            // A request that ended in between has no use for its token.
            let Some(index) = self.running.iter().position(|running| running.serial == serial) else { continue };
            let running = &mut self.running[index];
            running.unread -= 1;
            let rest = || part.rest.as_ref().map(|rest| rest.get(row as i64));
            let Some(drawn) = drawn(numbers, part.kinds, rest, &running.request.sampling)? else {
                ended.push((index, Err(running.not_finite())));
                continue;
            };
            add(&self.progress.sampled_tokens, 1);
            let id = drawn.id;
            let reason = running.push(drawn, self.vocab.get(id), self.options.capacity);
            if let Some(reason) = reason {
                ended.push((index, Ok(reason)));
            } else if running.unread > 0 {
                // The queued step writes the token to the cache.
                self.slots.extend(running.slot, &[id], &mut &[][..]);
            }
            on_token(id);
        }
        ended.sort_by_key(|&(index, _)| index);
        self.end(ended, outcome);
        Ok(())
    }

    /// Counts a model call of this number of requests.
    pub(super) fn count_step(&self, requests: usize, decoding: Decoding) {
        add(&self.progress.decode_steps, 1);
        add(&self.progress.decoding_steps, u64::from(decoding != Decoding::None));
        add(&self.progress.recordable_steps, u64::from(matches!(decoding, Decoding::Recordable | Decoding::Graph)));
        add(&self.progress.graph_steps, u64::from(decoding == Decoding::Graph));
        self.progress.max_batch.fetch_max(requests as u64, Relaxed);
    }
}
