//! Requests to a policy and their results: sampling settings, request, completion.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Routing, ServerChat, ServerCompletion};
use crate::schema::{Time, names, section};

section! {
    /// Sampling settings. The defaults are the plain distribution: temperature 1, nothing cut.
    pub struct Sampling: "sampling." {
        /// Divides the logits; 0 is greedy (r1 infer and r1 lua).
        temperature: f64 = 1.0, range("> 0 to train");
        /// Samples among the k most likely tokens; 0 is off.
        top_k: usize = 0, unit("tokens"), range("≥ 0");
        /// Samples among the most likely tokens of this total probability; 1 is off.
        top_p: f64 = 1.0, range("0 < p ≤ 1");
        /// Drops tokens less likely than this share of the most likely one (arXiv:2407.01082); 0 is
        /// off.
        min_p: f64 = 0.0, range("0 to 1");
        /// Divides positive and multiplies negative logits of tokens that occurred before
        /// (arXiv:1909.05858); 1 is off. Refused in training.
        repetition_penalty: f64 = 1.0, range("> 0");
        /// Added to the logits, by token id. Refused in training.
        logit_bias: BTreeMap<u32, f64> = BTreeMap::new();
        /// Number of most likely tokens reported at each position.
        top_logprobs: usize = 0, unit("tokens"), range("≥ 0");
        /// Maximum number of response tokens per step.
        max_new_tokens: usize = 256, unit("tokens"), range("≥ 1");
        /// Maximum time of one response, including its time in the queue; 0 means no limit.
        max_seconds: f64 as Time = 0.0, unit("seconds"), range("≥ 0");
        /// Strings that end a response; the response includes them.
        stop: Vec<String> = Vec::new();
    }
}

impl Sampling {
    /// With the stop strings of a tool-call format too.
    #[must_use]
    pub fn with_stop(mut self, strings: &[String]) -> Self {
        for stop in strings {
            if !self.stop.contains(stop) {
                self.stop.push(stop.clone());
            }
        }
        self
    }

    /// Whether top-k, top-p or min-p drops tokens.
    pub fn cuts(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Whether repeated tokens are penalised.
    pub fn penalises(&self) -> bool {
        (self.repetition_penalty - 1.0).abs() > f64::EPSILON
    }
}

/// Identifies the random stream of one reply. The generator is counter-based (seed, trajectory,
/// step, token), so a reply does not depend on other replies in the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamSeed {
    pub seed: u64,
    pub trajectory: u64,
    pub step: u32,
}

/// What a rollout asks a [`Policy`](super::Policy) for: one response to one prompt.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt_ids: Vec<u32>,
    pub sampling: Arc<Sampling>,
    /// Token ids that end the reply (end of turn); the reply keeps the id.
    pub stop_ids: Arc<Vec<u32>>,
    pub seed: StreamSeed,
    /// Requests of one conversation have the same number, which identifies its key-value cache.
    pub conversation: u64,
    /// The prompt as messages, for a policy behind a server; `prompt_ids` is then empty.
    pub chat: Option<Arc<ServerChat>>,
}

names! {
    /// The reason why a reply ended.
    #[derive(Default, Hash)]
    pub enum FinishReason {
        /// A stop id was sampled.
        #[default]
        Stop = "stop",
        /// A stop string was completed.
        StopString = "stop_string",
        /// `max_new_tokens` was reached, or the context was full.
        Length = "length",
        /// `max_seconds` was reached.
        Deadline = "deadline",
    }
}

impl FinishReason {
    /// Whether the reply ended at a limit.
    pub fn is_cut(self) -> bool {
        matches!(self, Self::Length | Self::Deadline)
    }
}

/// The tokens that each token of a reply was sampled from, if top-k, top-p or min-p dropped others.
/// Log-probabilities of the renormalized distribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Support {
    /// The ids of the first token's set, then of the second's, …
    pub ids: Vec<u32>,
    /// The end of each token's set in `ids`. A token after the last one, or with an empty set, was
    /// sampled from the full distribution.
    pub ends: Vec<u32>,
}

impl Support {
    /// Whether every token was sampled from the full distribution.
    pub fn is_whole(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds the set of the next token.
    pub fn push(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.ends.push(self.ids.len() as u32);
    }

    /// The set of the token at `index`; empty for the full distribution.
    pub fn of(&self, index: usize) -> &[u32] {
        let Some(&end) = self.ends.get(index) else { return &[] };
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ids.get(begin as usize..end as usize).unwrap_or_default()
    }

    /// Adds the sets of `count` tokens from `index` on, which is not before the end.
    pub fn append(&mut self, index: usize, count: usize, other: &Self) {
        if !other.is_whole() {
            self.ends.resize(index, self.ids.len() as u32);
            (0..count).for_each(|token| self.push(other.of(token)));
        }
    }
}

/// One reply: the exact ids, and each id's log-probability under the distribution it was sampled
/// from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// The version of the weights that each token was sampled with. Empty unless it is recorded.
    pub policy_versions: Vec<u64>,
    pub support: Support,
    /// The [`Sampling::top_logprobs`] most likely tokens at each position, with their
    /// log-probabilities.
    pub top_logprobs: Vec<Vec<(u32, f32)>>,
    pub finish_reason: FinishReason,
    /// The experts of the tokens of prompt and reply, except for the last token, which was not
    /// computed. Empty unless routing is recorded.
    pub routing: Routing,
    /// Prompt tokens whose keys and values were computed for this request; the others came from the
    /// cache.
    pub prefilled: usize,
    /// The reply of a server, which has no token ids and no log-probabilities.
    pub server: Option<Box<ServerCompletion>>,
}

impl Completion {
    pub fn of_server(reply: ServerCompletion, finish_reason: FinishReason) -> Self {
        Self { finish_reason, server: Some(Box::new(reply)), ..Self::default() }
    }

    /// Number of sampled tokens; for a server, as it counts them.
    pub fn tokens(&self) -> usize {
        match &self.server {
            Some(server) => server.reply.usage.response_tokens as usize,
            None => self.token_ids.len(),
        }
    }
}
