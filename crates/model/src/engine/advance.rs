//! One model call of the engine, and the tokens sampled from it.

use std::time::Instant;

use tch::{Device, Kind as Type, Tensor};

use super::Engine;
use super::running::Running;
use super::sampler::Drawn;
use super::stats::{add, add_time};
use super::tensor_sampler::{self, SamplerRow};
use crate::model::{Span, upload};
use r1_base::error::{Error, Result};
use r1_base::mdp::FinishReason;

impl Engine {
    /// Calls the model, which gives one row of logits per entry of the plan. `None` if `stop` ended
    /// the call.
    pub(super) fn compute(&mut self, plan: &[(usize, usize)], stop: &dyn Fn() -> bool) -> Result<Option<Tensor>> {
        let spans: Vec<Span<'_>> = plan
            .iter()
            .map(|&(index, count)| {
                let running = &self.running[index];
                let start = self.slots.ids(running.slot).len();
                Span { slot: running.slot, start, ids: &running.sequence[start..start + count] }
            })
            .collect();
        let longest = spans.iter().map(|span| span.start + span.ids.len()).max().unwrap_or(0);
        if longest > self.cache.capacity() {
            self.cache.reserve(longest.max(self.cache.capacity() * 3 / 2).min(self.options.rows()))?;
        }
        let begin = Instant::now();
        let logits = self.model.step_until(&mut self.cache, &spans, stop)?;
        add_time(&self.progress.model_nanoseconds, begin.elapsed());
        let Some(logits) = logits else { return Ok(None) };
        self.count_step(spans.len(), self.cache.decoding());
        let recorded = self.cache.take_routing()?;
        let mut experts = recorded.as_slice();
        for &(index, count) in plan {
            let running = &mut self.running[index];
            let start = self.slots.ids(running.slot).len();
            if !running.is_sampling() {
                running.prefilled += count;
                add(&self.progress.prefilled_tokens, count as u64);
            }
            self.slots.extend(running.slot, &running.sequence[start..start + count], &mut experts);
        }
        Ok(Some(logits))
    }

    /// Samples a token for each request whose sequence is fully computed, and completes finished
    /// requests.
    pub(super) fn sample(
        &mut self,
        plan: &[(usize, usize)],
        logits: &Tensor,
        outcome: &mut ServeOutcome,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let mut ready = Vec::with_capacity(plan.len());
        for (row, &(index, _)) in plan.iter().enumerate() {
            let running = &self.running[index];
            if self.slots.ids(running.slot).len() < running.sequence.len() {
                continue;
            }
            if !running.is_sampling() {
                let cached = running.request.prompt_ids.len() - running.prefilled;
                add(&self.progress.cached_tokens, cached as u64);
            }
            ready.push((row, index));
        }
        let mut ended: Vec<(usize, Result<FinishReason>)> = Vec::new();
        for (&(_, index), drawn) in ready.iter().zip(self.draw(&ready, logits)?) {
            let drawn = match drawn {
                Ok(drawn) => drawn,
                Err(error) => {
                    ended.push((index, Err(error)));
                    continue;
                }
            };
            add(&self.progress.sampled_tokens, 1);
            let id = drawn.id;
            self.running[index].on_device = false;
            let reason = self.running[index].push(drawn, self.vocab.get(id), self.options.capacity);
            on_token(id);
            if let Some(reason) = reason {
                ended.push((index, Ok(reason)));
            }
        }
        self.end(ended, outcome);
        Ok(())
    }

    /// Completes running requests, which are in order.
    pub(super) fn end(&mut self, ended: Vec<(usize, Result<FinishReason>)>, outcome: &mut ServeOutcome) {
        // In reverse order, so that indices stay valid.
        let mut leaving: Vec<(Running, Result<FinishReason>)> = Vec::with_capacity(ended.len());
        for (index, reason) in ended.into_iter().rev() {
            leaving.push((self.running.remove(index), reason));
        }
        for (running, reason) in leaving.into_iter().rev() {
            outcome.count(reason.as_ref().err());
            let routing = self.slots.routing(running.slot);
            if reason.is_ok() {
                self.slots.park(running.slot);
            } else {
                self.slots.discard(running.slot);
            }
            let (reply, completion) = running.finish(reason, routing);
            self.answer(reply, completion);
        }
    }

    /// Samples a token for each (row of the logits, index in `running`). On CUDA this waits for the
    /// model, and counts as its time.
    fn draw(&mut self, ready: &[(usize, usize)], logits: &Tensor) -> Result<Vec<Result<Drawn>>> {
        let begin = Instant::now();
        if self.tensor_sampling {
            let uniforms: Vec<f64> = ready.iter().map(|&(_, index)| self.running[index].uniform()).collect();
            let rows: Vec<SamplerRow<'_>> =
                ready.iter().zip(uniforms).map(|(&(_, index), uniform)| self.running[index].row(uniform)).collect();
            let drawn = tensor_sampler::draw(&chosen(logits, ready)?, &rows)?;
            if logits.device().is_cuda() {
                add_time(&self.progress.model_nanoseconds, begin.elapsed());
            }
            let all = ready.iter().zip(drawn);
            return Ok(all.map(|(&(_, index), drawn)| drawn.ok_or_else(|| self.running[index].not_finite())).collect());
        }
        self.logits.resize(logits.numel(), 0.0);
        logits.f_to_kind(Type::Float)?.f_to_device(Device::Cpu)?.f_copy_data(&mut self.logits, logits.numel())?;
        if logits.device().is_cuda() {
            add_time(&self.progress.model_nanoseconds, begin.elapsed());
        }
        let vocab = logits.size()[1] as usize;
        let row = |row: usize| row * vocab..(row + 1) * vocab;
        let draws =
            ready.iter().map(|&(at, index)| self.running[index].draw(&mut self.sampler, &mut self.logits[row(at)]));
        Ok(draws.collect())
    }
}

/// The rows of the logits that tokens are sampled from.
fn chosen(logits: &Tensor, ready: &[(usize, usize)]) -> Result<Tensor> {
    if ready.len() as i64 == logits.size()[0] {
        return Ok(logits.shallow_clone());
    }
    let rows: Vec<i64> = ready.iter().map(|&(row, _)| row as i64).collect();
    Ok(logits.f_index_select(0, &upload(&Tensor::f_from_slice(&rows)?, logits.device())?)?)
}

#[derive(Default)]
pub(super) struct ServeOutcome {
    replied: bool,
    numeric: Option<Error>,
}

impl ServeOutcome {
    pub(super) fn count(&mut self, error: Option<&Error>) {
        match error {
            None => self.replied = true,
            Some(error) => {
                self.numeric.get_or_insert_with(|| error.clone());
            }
        }
    }

    /// An error if no request had finite logits.
    pub(super) fn into_result(self) -> Result<()> {
        match self.numeric {
            Some(error) if !self.replied => Err(error),
            _ => Ok(()),
        }
    }
}
