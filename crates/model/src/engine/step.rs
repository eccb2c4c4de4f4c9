//! One step: the plan, the model call, and the tokens sampled from it.
//!
//! On the CPU the host samples row by row (`sampler`) once it has the logits. On CUDA ids,
//! positions and random numbers are on the device (`device_sampler`, the table of next tokens in
//! [`KvCache`](crate::model::KvCache)), so that step n + 1 is queued while the device computes step
//! n ([`SamplingMode::Ahead`]). The host then reads the tokens of step n. Responses whose last
//! token is known by its number end in time. A response that ends with a stop id or a stop string
//! has one more token in the step that is already queued: it is dropped, and its slot keeps only
//! the ids that were read. The slot's next user writes to the cache after that step, because a
//! device works in order.

use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::Engine;
use super::device_sampler::{BLOCK, DeviceSampler, Kinds, drawn, supports};
use super::outcome::ServeOutcome;
use super::running::Running;
use super::tensor_sampler::list;
use crate::model::{Decoding, HostTransfer, Span, upload};
use r1_base::error::{self, Error, Result};
use r1_base::mdp::FinishReason;
use r1_base::timeline;

/// Where tokens are sampled, and when the host reads them. All modes give the same tokens from the
/// same probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingMode {
    /// On the host.
    Host,
    /// On the device; the host reads the tokens of a step before it queues the next.
    Device,
    /// On the device; the host reads the tokens of a step while the next one runs.
    Ahead,
}

impl SamplingMode {
    /// Ahead on CUDA and on the host on the CPU, unless `R1_SAMPLER` says otherwise.
    pub(super) fn of(device: Device) -> Result<Self> {
        match std::env::var("R1_SAMPLER").as_deref() {
            Err(_) | Ok("") => Ok(if device.is_cuda() { Self::Ahead } else { Self::Host }),
            Ok("host") => Ok(Self::Host),
            Ok("tensors") => Ok(Self::Device),
            Ok("ahead") => Ok(Self::Ahead),
            Ok(other) => {
                let message = format!("R1_SAMPLER is `{other}`; it must be `host`, `tensors` or `ahead`");
                let hint = "unset it for the default: ahead on CUDA, host on the CPU";
                Err(Error::new(error::Kind::Usage, message).hint(hint))
            }
        }
    }
}

/// A queued step whose tokens are not read yet.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Serial numbers of the requests, in the order of the rows.
    requests: Vec<u64>,
    rows: QueuedRows,
}

#[derive(Debug)]
enum QueuedRows {
    /// `[rows, V]`: logits for the sampler of the host.
    Logits(Tensor),
    /// The parts of the step with the numbers of [`DeviceSampler::draw`] of each, on their way.
    Sampled { parts: Vec<SampledRows>, numbers: HostTransfer },
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
    /// One token each, the next of the slot, whose id is on the device.
    decode: Vec<usize>,
    /// Ids of the host: requests with the number of their tokens, and whether a token is sampled
    /// after them.
    spans: Vec<(usize, usize, bool)>,
}

impl Engine {
    /// How the next step samples: the model and the settings of all running requests allow it.
    fn mode(&self) -> SamplingMode {
        match self.sampling {
            _ if !self.running.iter().all(|running| supports(&running.request.sampling)) => SamplingMode::Host,
            SamplingMode::Ahead if !self.model.decodes_ahead() => SamplingMode::Device,
            mode => mode,
        }
    }

    /// Queues a step, and then reads the tokens of the step before. If the next step needs the
    /// tokens of this one, reads them, too.
    pub(super) fn step_once(
        &mut self,
        outcome: &mut ServeOutcome,
        stop: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let mode = self.mode();
        if mode != SamplingMode::Ahead {
            self.settle(outcome, on_token)?;
        }
        let plan = self.plan(mode)?;
        let begin = Instant::now();
        let span = timeline::span("model", || "engine".to_owned());
        let queued = match self.queue(&plan, mode, stop)? {
            QueueResult::Step(queued) => queued,
            // The step before is read later, if at all.
            QueueResult::Stopped => return Ok(()),
        };
        drop(span);
        self.progress.lock().model_seconds += begin.elapsed().as_secs_f64();
        let _span = timeline::span("sampling", || "engine".to_owned());
        let before = std::mem::replace(&mut self.in_flight, queued);
        self.read(before, outcome, on_token)?;
        if mode == SamplingMode::Ahead { Ok(()) } else { self.settle(outcome, on_token) }
    }

    /// Reads the tokens of the queued step.
    pub(super) fn settle(&mut self, outcome: &mut ServeOutcome, on_token: &mut dyn FnMut(u32)) -> Result<()> {
        let before = self.in_flight.take();
        self.read(before, outcome, on_token)
    }

    /// Tokens to compute in this step: one per running response, and prompt tokens up to
    /// `prefill_tokens`. Tokens that are not read count as computed when their step is queued.
    pub(super) fn plan(&mut self, mode: SamplingMode) -> Result<StepPlan> {
        let (mut plan, mut allowance) = (StepPlan::default(), self.options.prefill_tokens);
        let ahead = mode == SamplingMode::Ahead;
        for index in 0..self.running.len() {
            if !self.running[index].started {
                if allowance == 0 || self.awaits_prefix(index) {
                    continue;
                }
                self.copy_prefix(index)?;
                self.running[index].started = true;
            }
            let running = &self.running[index];
            if ahead && running.sampled() > 0 && !running.recomputes {
                if !running.is_full(self.options.capacity) {
                    plan.decode.push(index);
                }
                continue;
            }
            let missing = running.sequence.len() - self.slots.ids(running.slot).len();
            let mut piece = missing;
            if missing > 1 || !running.is_sampling() {
                piece = piece.min(allowance);
                // A step ends where a recurrent state is kept: before the last token.
                if missing > 1 && self.model.config.is_recurrent() {
                    piece = piece.min(missing - 1);
                }
                allowance -= piece;
            }
            self.running[index].recomputes &= piece < missing;
            match (missing, piece) {
                (_, 0) => {}
                (1, _) if ahead => plan.decode.push(index),
                _ => plan.spans.push((index, piece, piece == missing)),
            }
        }
        Ok(plan)
    }

    /// Queues the operations of a step.
    pub(super) fn queue(
        &mut self,
        plan: &StepPlan,
        mode: SamplingMode,
        stop: &dyn Fn() -> bool,
    ) -> Result<QueueResult> {
        if plan.decode.is_empty() && plan.spans.is_empty() {
            return Ok(QueueResult::Step(None));
        }
        let logits = self.compute_spans(plan, stop)?;
        if logits.is_none() && !plan.spans.is_empty() {
            return Ok(QueueResult::Stopped);
        }
        let ended: Vec<i64> = (0..).zip(&plan.spans).filter(|(_, (.., ends))| *ends).map(|(row, _)| row).collect();
        let after: Vec<usize> = ended.iter().map(|&row| plan.spans[row as usize].0).collect();
        // The rows that tokens are sampled from.
        let logits = match logits {
            Some(logits) if !ended.is_empty() && ended.len() < plan.spans.len() => {
                let rows = upload(&Tensor::f_from_slice(&ended)?, self.model.device())?;
                Some(logits.f_index_select(0, &rows)?)
            }
            logits => logits,
        };
        let requests: Vec<usize> = plan.decode.iter().chain(&after).copied().collect();
        let rows = match mode {
            _ if requests.is_empty() => None,
            SamplingMode::Host => logits.map(QueuedRows::Logits),
            _ => {
                let mut sampler = match self.on_device.take() {
                    Some(sampler) => sampler,
                    None => DeviceSampler::new(self.model.config.vocab_size, self.model.device(), self.cache.slots())?,
                };
                let sampled = self.queue_sampling(&plan.decode, &after, logits.as_ref(), &mut sampler);
                self.on_device = Some(sampler);
                Some(sampled?)
            }
        };
        self.count_step(plan.decode.len() + plan.spans.len(), self.cache.decoding());
        for &index in &plan.decode {
            // Otherwise the id is recorded when it is read.
            if self.running[index].unread == 0 {
                self.count_span(index, 1, &mut &[][..]);
            }
        }
        let Some(rows) = rows else { return Ok(QueueResult::Step(None)) };
        let serials = requests.into_iter().map(|index| {
            self.running[index].unread += 1;
            self.running[index].serial
        });
        Ok(QueueResult::Step(Some(InFlight { requests: serials.collect(), rows })))
    }

    /// Computes the spans of the step: a row of logits for each. `None` without spans, and if
    /// `stop` ended it.
    fn compute_spans(&mut self, plan: &StepPlan, stop: &dyn Fn() -> bool) -> Result<Option<Tensor>> {
        let computed = |index: usize| self.slots.ids(self.running[index].slot).len();
        let held = plan.decode.iter().map(|&index| self.running[index].sequence.len() + self.running[index].unread);
        let longest =
            held.chain(plan.spans.iter().map(|&(index, count, _)| computed(index) + count)).max().unwrap_or(0);
        if longest > self.cache.capacity() {
            self.cache.reserve(longest.max(self.cache.capacity() * 3 / 2).min(self.options.rows()))?;
        }
        if plan.spans.is_empty() {
            return Ok(None);
        }
        let spans = plan.spans.iter().map(|&(index, count, _)| {
            let (running, start) = (&self.running[index], computed(index));
            Span { slot: running.slot, start, ids: &running.sequence[start..start + count] }
        });
        let spans: Vec<Span<'_>> = spans.collect();
        let Some(logits) = self.model.step_until(&mut self.cache, &spans, stop)? else { return Ok(None) };
        let recorded = self.cache.take_routing()?;
        let mut experts = recorded.as_slice();
        for &(index, count, _) in &plan.spans {
            self.count_span(index, count, &mut experts);
            let running = &self.running[index];
            let (computed, prefix) = (self.slots.ids(running.slot).len(), running.cacheable().len());
            if !running.is_sampling() && computed == prefix && self.model.config.is_recurrent() {
                self.cache.snapshot(running.slot)?;
            }
        }
        Ok(Some(logits))
    }

    /// Records that the next `count` ids of a request are in the cache, with their experts at the
    /// front of `experts`.
    fn count_span(&mut self, index: usize, count: usize, experts: &mut &[u16]) {
        let running = &mut self.running[index];
        let start = self.slots.ids(running.slot).len();
        self.slots.extend(running.slot, &running.sequence[start..start + count], experts);
        if running.is_sampling() {
            return;
        }
        running.prefilled += count;
        self.progress.lock().prefilled_tokens += count as u64;
        if start + count == running.sequence.len() {
            let cached = running.request.prompt_ids.len() - running.prefilled;
            self.progress.lock().cached_tokens += cached as u64;
        }
    }

    /// Queues the decoding of sequences, and the sampling of their tokens and of those after the
    /// spans of requests `after`, which have the logits.
    fn queue_sampling(
        &mut self,
        decode: &[usize],
        after: &[usize],
        logits: Option<&Tensor>,
        sampler: &mut DeviceSampler,
    ) -> Result<QueuedRows> {
        self.write_inputs(decode.iter().chain(after).copied(), sampler)?;
        let sampler = &*sampler;
        let (mut numbers, mut parts) = (Vec::new(), Vec::new());
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
            let mut drawn = drawn.into_iter();
            numbers.extend(drawn.next());
            // The next step may overwrite it before the host knows whether it needs it.
            let rest = drawn.next().map(|ids| ids.f_to_dtype(Kind::Int, false, true)).transpose()?;
            parts.push(SampledRows { kinds, rest });
            Ok(())
        };
        if !decode.is_empty() {
            let (kinds, slots) = (kinds(decode), slots(decode));
            let draw =
                |logits: &Tensor, slots: &Tensor, positions: &Tensor| sampler.draw(logits, slots, positions, kinds);
            add_part(self.model.decode_ahead(&mut self.cache, &slots, kinds.key(), &draw)?, kinds)?;
        }
        if let (Some(logits), false) = (logits, after.is_empty()) {
            let kinds = kinds(after);
            let draw =
                |logits: &Tensor, slots: &Tensor, positions: &Tensor| sampler.draw(logits, slots, positions, kinds);
            add_part(self.model.draw_ahead(&self.cache, &slots(after), logits, &draw)?, kinds)?;
        }
        Ok(QueuedRows::Sampled { parts, numbers: HostTransfer::start(&numbers, self.model.device())? })
    }

    /// Writes next tokens of requests that are new on the device, and random numbers where the
    /// device has used those that it had.
    fn write_inputs(&mut self, places: impl Iterator<Item = usize> + Clone, sampler: &mut DeviceSampler) -> Result<()> {
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
            self.cache.set_next(&joining)?;
            let new = places.clone().map(|index| &self.running[index]).filter(|running| !running.on_device);
            sampler.join(&new.collect::<Vec<_>>())?;
        }
        if !rows.is_empty() {
            sampler.set(&rows)?;
        }
        for index in places {
            self.running[index].on_device = true;
        }
        Ok(())
    }

    /// Waits for the tokens of a step, or samples them on the host, and ends the responses that are
    /// complete. On CUDA the wait counts as time of the model.
    fn read(
        &mut self,
        step: Option<InFlight>,
        outcome: &mut ServeOutcome,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let Some(InFlight { requests, rows }) = step else { return Ok(()) };
        let begin = Instant::now();
        let (mut parts, mut numbers, mut vocab) = (Vec::new(), Vec::new(), 0);
        match rows {
            QueuedRows::Logits(logits) => {
                vocab = logits.size()[1] as usize;
                self.logits.resize(logits.numel(), 0.0);
                logits
                    .f_to_kind(Kind::Float)?
                    .f_to_device(Device::Cpu)?
                    .f_copy_data(&mut self.logits, logits.numel())?;
            }
            QueuedRows::Sampled { parts: sampled, numbers: transfer } => {
                parts = sampled;
                let transferred = transfer.wait()?;
                let each = transferred.iter().map(|all| Ok((list::<f64>(all)?, all.size()[1] as usize)));
                numbers = each.collect::<Result<_>>()?;
            }
        }
        if self.model.device().is_cuda() {
            self.progress.lock().model_seconds += begin.elapsed().as_secs_f64();
        }
        let mut sampled =
            parts.iter().zip(&numbers).flat_map(|(part, (all, width)): (&SampledRows, &(Vec<f64>, usize))| {
                all.chunks_exact(*width).enumerate().map(move |(row, numbers)| (part, row, numbers))
            });
        let mut ended: Vec<(usize, Result<FinishReason>)> = Vec::new();
        for (row, serial) in requests.into_iter().enumerate() {
            let on_device = sampled.next();
            // A request that ended in between has no use for its token.
            let Some(index) = self.running.iter().position(|running| running.serial == serial) else { continue };
            let running = &mut self.running[index];
            running.unread -= 1;
            let drawn = if let Some((part, row, numbers)) = on_device {
                let rest = || part.rest.as_ref().map(|rest| rest.get(row as i64));
                drawn(numbers, part.kinds, rest, &running.request.sampling)?
            } else {
                running.on_device = false;
                running.draw(&mut self.sampler, &mut self.logits[row * vocab..(row + 1) * vocab])
            };
            let Some(drawn) = drawn else {
                ended.push((index, Err(running.not_finite())));
                continue;
            };
            self.progress.lock().sampled_tokens += 1;
            let id = drawn.id;
            running.policy_versions.extend(self.policy_version);
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
    fn count_step(&self, requests: usize, decoding: Decoding) {
        let mut progress = self.progress.lock();
        progress.decode_steps += 1;
        progress.decoding_steps += u64::from(decoding != Decoding::None);
        progress.recordable_steps += u64::from(matches!(decoding, Decoding::Recordable | Decoding::Graph));
        progress.graph_steps += u64::from(decoding == Decoding::Graph);
        progress.max_batch = progress.max_batch.max(requests as u64);
    }
}
