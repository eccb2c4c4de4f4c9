//! Counters of the engine, readable from other threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of one [`Engine::serve`](super::Engine::serve), readable from any thread through the
/// `Arc` of [`Engine::progress`](super::Engine::progress).
#[derive(Debug, Default)]
pub struct EngineProgress {
    pub(super) requests: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) in_flight: AtomicU64,
    pub(super) waiting: AtomicU64,
    pub(super) sampled_tokens: AtomicU64,
    pub(super) prefilled_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) decode_steps: AtomicU64,
    pub(super) decoding_steps: AtomicU64,
    pub(super) recordable_steps: AtomicU64,
    pub(super) graph_steps: AtomicU64,
    pub(super) max_batch: AtomicU64,
    pub(super) nanoseconds: AtomicU64,
    pub(super) model_nanoseconds: AtomicU64,
    pub(super) idle_nanoseconds: AtomicU64,
}

/// Snapshot of [`EngineProgress`], or the totals of one serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests taken from the queue.
    pub requests: u64,
    /// Completed requests, including failed and cancelled ones.
    pub finished: u64,
    /// Requests in slots.
    pub in_flight: u64,
    /// Requests that wait for a slot.
    pub waiting: u64,
    /// Response tokens.
    pub sampled_tokens: u64,
    /// Prompt tokens whose keys and values were computed.
    pub prefilled_tokens: u64,
    /// Prompt tokens whose keys and values were in the cache.
    pub cached_tokens: u64,
    /// Model calls.
    pub decode_steps: u64,
    /// Those with variable-length attention (bf16 on CUDA) that had decoding sequences.
    pub decoding_steps: u64,
    /// Those among them whose decoding sequences can be launched as a CUDA graph.
    pub recordable_steps: u64,
    /// Those among them whose decoding sequences were launched as one.
    pub graph_steps: u64,
    /// Largest number of requests in one model call.
    pub max_batch: u64,
    /// Wall time of the serve so far, seconds.
    pub seconds: f64,
    /// Part of `seconds` in the model; on CUDA with sampling, which waits for the model.
    pub model_seconds: f64,
    /// Part of `seconds` without requests.
    pub idle_seconds: f64,
}

impl Stats {
    /// Adds the totals of a later serve.
    pub fn add(&mut self, later: &Self) {
        self.requests += later.requests;
        self.finished += later.finished;
        (self.in_flight, self.waiting) = (later.in_flight, later.waiting);
        self.sampled_tokens += later.sampled_tokens;
        self.prefilled_tokens += later.prefilled_tokens;
        self.cached_tokens += later.cached_tokens;
        self.decode_steps += later.decode_steps;
        self.decoding_steps += later.decoding_steps;
        self.recordable_steps += later.recordable_steps;
        self.graph_steps += later.graph_steps;
        self.max_batch = self.max_batch.max(later.max_batch);
        self.seconds += later.seconds;
        self.model_seconds += later.model_seconds;
        self.idle_seconds += later.idle_seconds;
    }

    /// Share of the model calls with decoding sequences that launched them as a CUDA graph; `None`
    /// where graphs play no part (other types and devices).
    pub fn graph_share(&self) -> Option<f64> {
        (self.decoding_steps > 0).then(|| self.graph_steps as f64 / self.decoding_steps as f64)
    }

    /// Fraction of prompt tokens found in the cache.
    pub fn cache_hit_rate(&self) -> f64 {
        let prompt = self.cached_tokens + self.prefilled_tokens;
        if prompt > 0 { self.cached_tokens as f64 / prompt as f64 } else { 0.0 }
    }
}

impl EngineProgress {
    /// Current counters. Each is exact; different counters can be one step apart.
    pub fn stats(&self) -> Stats {
        let seconds = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed)).as_secs_f64();
        Stats {
            requests: self.requests.load(Relaxed),
            finished: self.finished.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            sampled_tokens: self.sampled_tokens.load(Relaxed),
            prefilled_tokens: self.prefilled_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            decode_steps: self.decode_steps.load(Relaxed),
            decoding_steps: self.decoding_steps.load(Relaxed),
            recordable_steps: self.recordable_steps.load(Relaxed),
            graph_steps: self.graph_steps.load(Relaxed),
            max_batch: self.max_batch.load(Relaxed),
            seconds: seconds(&self.nanoseconds),
            model_seconds: seconds(&self.model_nanoseconds),
            idle_seconds: seconds(&self.idle_nanoseconds),
        }
    }

    pub(super) fn reset(&self) {
        for counter in [
            &self.requests,
            &self.finished,
            &self.in_flight,
            &self.waiting,
            &self.sampled_tokens,
            &self.prefilled_tokens,
            &self.cached_tokens,
            &self.decode_steps,
            &self.decoding_steps,
            &self.recordable_steps,
            &self.graph_steps,
            &self.max_batch,
            &self.nanoseconds,
            &self.model_nanoseconds,
            &self.idle_nanoseconds,
        ] {
            counter.store(0, Relaxed);
        }
    }
}

/// Adds to a counter with a single writer, the engine.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

pub(super) fn add_time(counter: &AtomicU64, duration: Duration) {
    add(counter, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}
