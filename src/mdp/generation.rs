//! Requests to a policy and their results: sampling settings, request, completion.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Routing;

/// How to sample. Defaults are the plain distribution: temperature 1, nothing cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// 0 is off.
    pub top_k: usize,
    /// 1 is off.
    pub top_p: f64,
    /// Tokens less likely than this share of the likeliest one are cut; 0 is off (arXiv:2407.01082).
    pub min_p: f64,
    /// Logits of tokens that prompt or reply hold already are divided by this where positive and multiplied where
    /// negative; 1 is off (CTRL, arXiv:1909.05858).
    pub repetition_penalty: f64,
    /// Added to the logits of token ids.
    pub logit_bias: BTreeMap<u32, f64>,
    /// Number of most likely tokens returned at each position, with their log-probabilities.
    pub top_logprobs: usize,
    /// Most tokens one reply may have.
    pub max_new_tokens: usize,
    /// Most seconds one reply may take, the wait for its turn included; 0 is no limit.
    #[serde(deserialize_with = "crate::units::time")]
    pub max_seconds: f64,
    /// Strings that end a reply; the reply keeps them.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            top_logprobs: 0,
            max_new_tokens: 256,
            max_seconds: 0.0,
            stop: Vec::new(),
        }
    }
}

impl Sampling {
    /// Whether tokens are cut off before the draw.
    pub fn cuts(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Whether tokens seen before are made less likely.
    pub fn penalises(&self) -> bool {
        (self.repetition_penalty - 1.0).abs() > f64::EPSILON
    }
}

/// Names the random stream of one reply. The generator is counter-based (seed, trajectory, step, token), so a
/// reply does not depend on what else is in the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamSeed {
    pub seed: u64,
    pub trajectory: u64,
    pub step: u32,
}

/// A request for one reply.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt_ids: Vec<u32>,
    pub sampling: Arc<Sampling>,
    /// Token ids that end the reply (end of turn); kept as its last id.
    pub stop_ids: Arc<Vec<u32>>,
    pub seed: StreamSeed,
    /// Requests of one conversation carry the same number, so that its key-value cache is found again.
    pub conversation: u64,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop id was sampled.
    Stop,
    /// A stop string was completed.
    StopString,
    /// `max_new_tokens` was reached, or the context was full.
    Length,
    /// `max_seconds` were over.
    Deadline,
}

impl FinishReason {
    /// Whether the policy would have gone on.
    pub fn is_cut(self) -> bool {
        matches!(self, Self::Length | Self::Deadline)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::Deadline => "deadline",
        }
    }
}

/// What each token of a reply was drawn from, where top-k, top-p or min-p cut the others off: their mass is gone, and
/// log-probabilities are those of what is left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Support {
    /// The ids of the first token's set, then the second's …
    pub ids: Vec<u32>,
    /// Where those of each token end in `ids`. A token behind the last, or without any, was drawn from everything.
    pub ends: Vec<u32>,
}

impl Support {
    /// Whether every token was drawn from everything.
    pub fn is_whole(&self) -> bool {
        self.ids.is_empty()
    }

    /// The set of the next token.
    pub fn push(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.ends.push(self.ids.len() as u32);
    }

    /// What the token at `place` was drawn from; nothing if from everything.
    pub fn of(&self, place: usize) -> &[u32] {
        let Some(&end) = self.ends.get(place) else { return &[] };
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ids.get(begin as usize..end as usize).unwrap_or_default()
    }

    /// Adds the sets of `count` tokens that begin at `place`, which is not before the end.
    pub fn append(&mut self, place: usize, count: usize, other: &Self) {
        if !other.is_whole() {
            self.ends.resize(place, self.ids.len() as u32);
            (0..count).for_each(|token| self.push(other.of(token)));
        }
    }
}

/// One reply: the exact ids, and the log-probability of each under the distribution it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub support: Support,
    /// The [`Sampling::top_logprobs`] most likely tokens at each position, with their log-probabilities.
    pub top_logprobs: Vec<Vec<(u32, f32)>>,
    pub finish_reason: FinishReason,
    /// The experts that prompt and reply were routed to, but for the last token, which was not computed. Empty unless they
    /// are recorded.
    pub routing: Routing,
    /// Prompt tokens whose keys and values were computed for this request; the rest came from the cache.
    pub prefilled: usize,
}
