//! The scheduler: continuous batching over the slots of one key-value cache.
//!
//! Each iteration assigns slots to waiting requests, first to conversations with a reserved slot.
//! It calls the model once, with the next token of each running response and chunks of new prompts.
//! A request leaves the batch as soon as its response ends. Shared prefixes are computed once: a
//! prefix is copied from another slot, and a request waits while another request computes its
//! prefix.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::client::{EngineMessage, Queue, ReplyChannel};
use super::device_sampler::DeviceSampler;
use super::outcome::ServeOutcome;
use super::profile::StepProfile;
use super::running::{Running, WaitingRequest};
use super::sampler::{self, Sampler};
use super::slots::{Slots, shared};
use super::step::{InFlight, SamplingMode};
use super::{EngineOptions, EngineProgress, ReferenceScorer, Stats, TokenBytes};
use crate::model::{KvCache, Model};
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Completion, FinishReason, Request};

/// Minimum length of a copied prefix; shorter prefixes are recomputed.
const WORTH_COPYING: usize = 8;

/// Poll interval of `stop` while the engine is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Initial capacity of each slot on the CPU, tokens.
const FIRST_CAPACITY: usize = 256;

/// Generates responses for a batch of requests, on the thread that owns the tensors.
pub struct Engine {
    pub(super) model: Rc<Model>,
    /// Log-probabilities under the reference policy.
    pub(super) reference: Option<ReferenceScorer>,
    pub(super) vocab: Arc<TokenBytes>,
    pub(super) options: EngineOptions,
    pub(super) cache: KvCache,
    pub(super) slots: Slots,
    /// The sampler of the host.
    pub(super) sampler: Sampler,
    /// Logits on the host, for its sampler.
    pub(super) logits: Vec<f32>,
    pub(super) sampling: SamplingMode,
    /// Whether the weights changed since the last step.
    pub(super) stale: bool,
    /// The version of the weights, if completions record it for each token.
    pub(super) policy_version: Option<u64>,
    /// A profile of some steps, if one was started.
    pub(super) profile: Option<StepProfile>,
    /// Settings and random numbers of slots on the device, for steps that sample there.
    pub(super) on_device: Option<DeviceSampler>,
    /// The queued step.
    pub(super) in_flight: Option<InFlight>,
    pub(super) waiting: VecDeque<WaitingRequest>,
    /// Number of the next request that gets a slot.
    next_serial: u64,
    /// Running requests, in the order in which they got their slots.
    pub(super) running: Vec<Running>,
    pub(super) progress: Arc<EngineProgress>,
}

impl Engine {
    /// Creates an engine for `model`; `vocab` has the bytes of its tokens.
    ///
    /// Errors: `Kind::Device` if the cache would exceed `options.memory`, `Kind::Usage` for invalid
    /// sizes.
    pub fn new(model: Rc<Model>, vocab: Arc<TokenBytes>, options: EngineOptions) -> Result<Self> {
        options.check(&model.config, model.cache_kind())?;
        // Recorded graphs hold the addresses of the cache, so that it does not grow on CUDA.
        let first = if model.device().is_cuda() { options.rows() } else { options.rows().min(FIRST_CAPACITY) };
        let cache = model.new_cache(options.slots, first)?;
        let sampling = SamplingMode::of(model.device())?;
        Ok(Self {
            slots: Slots::new(options.slots),
            cache,
            sampling,
            stale: true,
            policy_version: None,
            profile: None,
            on_device: None,
            in_flight: None,
            next_serial: 0,
            model,
            reference: None,
            vocab,
            options,
            sampler: Sampler::default(),
            logits: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            progress: Arc::default(),
        })
    }

    /// Sets where tokens are sampled: by default ahead on CUDA, on the host on the CPU. Requests
    /// with very many biases are sampled on the host, and models that [`Model::decodes_ahead`]
    /// excludes are not sampled ahead.
    pub fn set_sampling(&mut self, mode: SamplingMode) {
        self.sampling = mode;
    }

    /// Enables recording of the experts of each token in completions.
    ///
    /// # Errors
    /// `Kind::Usage` for a model without experts.
    pub fn record_routing(&mut self) -> Result<()> {
        let width = self.model.routing_width();
        if width == 0 {
            return Err(Error::new(Kind::Usage, "the model has no mixture of experts: there is no routing to record"));
        }
        self.cache.record_routing();
        self.slots.record_routing(width);
        Ok(())
    }

    /// Maximum length of prompt plus response, tokens.
    pub fn capacity(&self) -> usize {
        self.options.capacity
    }

    /// Counters of the current or last serve, readable from other threads.
    pub fn progress(&self) -> Arc<EngineProgress> {
        Arc::clone(&self.progress)
    }

    /// Clears all keys and values. Must be called after each change of the weights. Requests in
    /// flight compute the keys and values of their tokens again, and go on.
    pub fn clear_cache(&mut self) -> Result<()> {
        self.settle(&mut ServeOutcome::default(), &mut |_| ())?;
        self.slots.forget();
        self.cache.forget_images();
        for running in &mut self.running {
            running.recomputes = running.is_sampling();
            running.on_device = false;
        }
        self.stale = true;
        Ok(())
    }

    /// As [`clear_cache`](Self::clear_cache), with the version of the weights, which completions
    /// record for each token from now on.
    pub fn set_policy_version(&mut self, version: u64) -> Result<()> {
        self.clear_cache()?;
        self.policy_version = Some(version);
        Ok(())
    }

    /// Serves requests until all clients are dropped and nothing is in flight.
    ///
    /// An invalid request, or one with non-finite logits, fails alone. Errors: `Kind::Numeric` if
    /// all requests had non-finite logits; an error of the model (out of memory), which all
    /// requests in flight receive too.
    pub fn serve(&mut self, queue: Queue) -> Result<Stats> {
        self.take_stats();
        let served = self.serve_until(&queue, &|| false, &mut || false);
        // After a failure, queued requests count as aborted.
        drop(queue);
        served.map(|()| self.progress.stats())
    }

    /// The counters since the last call.
    pub fn take_stats(&self) -> Stats {
        std::mem::take(&mut *self.progress.lock())
    }

    /// As [`serve`](Self::serve), but returns when `done` returns true, which is called before each
    /// step, and returns `Kind::Interrupted` when `stop` returns true. `stop` is polled between the
    /// layers of the model, and both every `POLL_INTERVAL` while the engine is idle. The counters
    /// of earlier calls are increased.
    pub fn serve_until(
        &mut self,
        queue: &Queue,
        stop: &dyn Fn() -> bool,
        done: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let (begin, before) = (Instant::now(), self.progress.lock().seconds);
        let mut outcome = ServeOutcome::default();
        let mut open = true;
        let served = loop {
            if done() {
                break Ok(());
            }
            if stop() {
                let error = Error::new(Kind::Interrupted, "stopped");
                self.abort(&error);
                break Err(error);
            }
            let (wait, is_idle) = (Instant::now(), self.idle());
            let mut patience = if is_idle { POLL_INTERVAL } else { Duration::ZERO };
            // All queued requests start in the same iteration.
            while open {
                match queue.wait(patience) {
                    Ok(Some(call)) => self.accept(call),
                    Ok(None) => break,
                    Err(_) => open = false,
                }
                patience = Duration::ZERO;
            }
            if is_idle {
                self.progress.lock().idle_seconds += wait.elapsed().as_secs_f64();
            }
            if self.idle() {
                if open {
                    continue;
                }
                break Ok(());
            }
            if let Err(error) = self.iterate(&mut outcome, stop, &mut |_| ()) {
                self.abort(&error);
                break Err(error);
            }
            self.progress.lock().seconds = before + begin.elapsed().as_secs_f64();
        };
        self.progress.lock().seconds = before + begin.elapsed().as_secs_f64();
        served.and_then(|()| outcome.into_result())
    }

    /// Serves a single request, for a chat. `on_token` receives each sampled token, including the
    /// last. If `stop`, polled between the layers of the model, returns true, the response ends
    /// with [`FinishReason::Length`]; the computed part of the prompt stays in the cache.
    pub fn generate(
        &mut self,
        request: Request,
        stop: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Completion> {
        let (reply, mut receiver) = oneshot::channel();
        self.accept(EngineMessage::Generate { request, reply: reply.into(), tokens: None });
        let mut outcome = ServeOutcome::default();
        while !self.idle() {
            if stop() {
                self.end_all();
            } else if let Err(error) = self.iterate(&mut outcome, stop, on_token) {
                self.abort(&error);
            }
        }
        receiver.try_recv().map_err(|_| Error::new(Kind::Internal, "the engine lost a request"))?
    }

    /// Accepts the queued requests and computes one step, for callers that do other work between
    /// steps; whether requests are left. An error goes to all of them.
    pub fn step(&mut self, queue: &Queue) -> bool {
        while let Ok(Some(call)) = queue.wait(Duration::ZERO) {
            self.accept(call);
        }
        if !self.idle()
            && let Err(error) = self.iterate(&mut ServeOutcome::default(), &|| false, &mut |_| ())
        {
            self.abort(&error);
        }
        !self.idle()
    }

    fn idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn accept(&mut self, call: EngineMessage) {
        match call {
            EngineMessage::Generate { request, reply, tokens } => {
                self.progress.lock().requests += 1;
                match self.check(&request) {
                    Ok(()) => {
                        let seconds = Duration::try_from_secs_f64(request.sampling.max_seconds).ok();
                        // A deadline out of the clock's range is ignored.
                        let deadline = seconds.filter(|limit| !limit.is_zero());
                        let deadline = deadline.and_then(|limit| Instant::now().checked_add(limit));
                        self.waiting.push_back(WaitingRequest { request, reply, tokens, deadline });
                    }
                    Err(error) => self.answer(reply, Err(error)),
                }
            }
            EngineMessage::Score { scoring, reply } => {
                // A dropped receiver needs no reply.
                let _ = reply.send(self.score(&scoring));
            }
            EngineMessage::Release { conversation } => self.slots.release(conversation),
        }
        self.progress.lock().waiting = self.waiting.len() as u64;
    }

    /// Refuses requests that would fail later or affect other requests.
    fn check(&self, request: &Request) -> Result<()> {
        let (length, capacity) = (request.prompt_ids.len(), self.options.capacity);
        if length == 0 {
            return Err(Error::new(Kind::Env, "the prompt is empty"));
        }
        if length >= capacity {
            return Err(Error::new(
                Kind::Env,
                format!("the prompt has {length} tokens and leaves no room for a response in a context of {capacity}"),
            )
            .hint("shorten the conversation, or raise policy.max_context if the model allows it"));
        }
        let vocab = self.model.config.vocab_size;
        if let Some(id) = request.prompt_ids.iter().find(|&&id| !self.model.reads_id(id)) {
            return Err(Error::new(
                Kind::Model,
                format!("the prompt has token id {id}, outside the model's vocabulary of {vocab}"),
            )
            .hint("the tokenizer belongs to another model"));
        }
        if let Some((id, _)) = request.sampling.logit_bias.iter().find(|&(&id, _)| id as usize >= vocab) {
            let why = format!("sampling.logit_bias names token id {id}, outside the model's vocabulary of {vocab}");
            return Err(Error::new(Kind::Usage, why));
        }
        sampler::check(&request.sampling)
    }

    /// One iteration: assign slots, call the model once, sample, complete requests.
    fn iterate(
        &mut self,
        outcome: &mut ServeOutcome,
        stop: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<()> {
        self.drop_cancelled();
        self.end_overdue(outcome);
        self.assign_slots();
        self.wake()?;
        self.profile_begins()?;
        self.step_once(outcome, stop, on_token)?;
        let mut progress = self.progress.lock();
        (progress.in_flight, progress.waiting) = (self.running.len() as u64, self.waiting.len() as u64);
        drop(progress);
        self.profile_ends()
    }

    /// Removes requests whose receiver was dropped; their computed tokens stay in the cache.
    fn drop_cancelled(&mut self) {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|pending| !pending.reply.is_closed());
        let slots = &mut self.slots;
        self.running.retain(|running| {
            let cancelled = running.reply.is_closed();
            if cancelled {
                slots.park(running.slot);
            }
            !cancelled
        });
        self.progress.lock().finished += (before - self.waiting.len() - self.running.len()) as u64;
    }

    /// Ends responses past their deadline with the tokens sampled so far.
    fn end_overdue(&mut self, outcome: &mut ServeOutcome) {
        let overdue = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= Instant::now());
        for _ in 0..self.waiting.len() {
            let Some(pending) = self.waiting.pop_front() else { break };
            if overdue(pending.deadline) {
                outcome.count(None);
                let (reply, completion) = pending.cancelled_before_start(FinishReason::Deadline);
                self.answer(reply, Ok(completion));
            } else {
                self.waiting.push_back(pending);
            }
        }
        while let Some(index) = self.running.iter().position(|running| overdue(running.deadline)) {
            let running = self.running.remove(index);
            outcome.count(None);
            self.complete(running, Ok(FinishReason::Deadline));
        }
    }

    /// Assigns slots to waiting requests: first to those whose conversation has a reserved slot,
    /// then in order of arrival.
    pub(super) fn assign_slots(&mut self) {
        let reserved = if self.waiting.len() > 1 { self.slots.reserved() } else { HashSet::new() };
        if !reserved.is_empty() {
            let waiting = self.waiting.make_contiguous();
            waiting.sort_by_key(|pending| !reserved.contains(&pending.request.conversation));
        }
        let reachable = |slot: usize, limit: usize| self.cache.reachable(slot, limit);
        while let Some(pending) = self.waiting.front() {
            let request = &pending.request;
            let Some(slot) = self.slots.assign_slot(request.conversation, &request.prompt_ids, &reachable) else {
                break;
            };
            let Some(pending) = self.waiting.pop_front() else { break };
            self.running.push(Running::new(pending, slot, self.next_serial));
            self.next_serial += 1;
        }
    }

    /// Whether an earlier request is computing a prefix of at least half of this prompt.
    pub(super) fn awaits_prefix(&self, index: usize) -> bool {
        let prompt = self.running[index].cacheable();
        let ahead = self.running[..index].iter();
        // Requests that sample already have their whole prompt in the cache.
        let coming = ahead.filter(|other| !other.is_sampling()).map(|other| {
            let (whole, length) = (other.cacheable().len(), shared(other.cacheable(), prompt));
            // A recurrent state is kept at the end of the prefix.
            if self.model.config.is_recurrent() && length < whole { 0 } else { length }
        });
        let coming = coming.max();
        let Some(coming) = coming.filter(|&coming| coming >= WORTH_COPYING) else { return false };
        let here = self.slots.longest_prefix(prompt, &|slot, limit| self.cache.reachable(slot, limit)).1;
        coming >= here + WORTH_COPYING && 2 * (coming - here) >= prompt.len() - here
    }

    /// Copies the longest prefix that any slot holds.
    pub(super) fn copy_prefix(&mut self, index: usize) -> Result<()> {
        let running = &self.running[index];
        let cached = self.slots.ids(running.slot).len();
        let reachable = |slot: usize, limit: usize| self.cache.reachable(slot, limit);
        let (from, length) = self.slots.longest_prefix(running.cacheable(), &reachable);
        if length >= cached + WORTH_COPYING {
            self.cache.copy_prefix(from, running.slot, length)?;
            self.slots.copy(from, running.slot, length);
        }
        Ok(())
    }

    pub(super) fn answer(&self, reply: ReplyChannel, completion: Result<Completion>) {
        self.progress.lock().finished += 1;
        reply.send(completion);
    }

    /// Fails all requests in flight with `error` and clears the cache.
    fn abort(&mut self, error: &Error) {
        let running = self.running.drain(..).map(|running| running.reply);
        let replies: Vec<ReplyChannel> = running.chain(self.waiting.drain(..).map(|pending| pending.reply)).collect();
        for reply in replies {
            self.answer(reply, Err(error.clone()));
        }
        self.slots.clear();
        self.in_flight = None;
    }
}
