//! Counters of the engine, readable from other threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Counters of one [`Engine::serve`](super::Engine::serve), readable from any thread through the
/// `Arc` of [`Engine::progress`](super::Engine::progress).
#[derive(Debug, Default)]
pub struct EngineProgress(Mutex<Stats>);

impl EngineProgress {
    /// Current counters.
    pub fn stats(&self) -> Stats {
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Snapshot of [`EngineProgress`], or the totals of one serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

    /// Adds the totals of another process, which served at the same time: the longer time is kept.
    pub fn add_beside(&mut self, other: &Self) {
        let before = self.clone();
        self.add(other);
        self.seconds = before.seconds.max(other.seconds);
        self.model_seconds = before.model_seconds.max(other.model_seconds);
        self.idle_seconds = before.idle_seconds.max(other.idle_seconds);
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
