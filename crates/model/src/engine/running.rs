//! Waiting requests, and running requests with their sequences.

use std::time::Instant;

use rand_chacha::ChaCha8Rng;

use super::client::{ReplyChannel, Sampled, TokenSender};
use super::sampler::{self, Drawn, Sampler};
use super::stop::StopMatcher;
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Completion, FinishReason, Request, Routing, Support, image_number};

pub(super) struct WaitingRequest {
    pub(super) request: Request,
    pub(super) reply: ReplyChannel,
    pub(super) tokens: Option<TokenSender>,
    /// Deadline of the response.
    pub(super) deadline: Option<Instant>,
}

impl WaitingRequest {
    /// The reply channel and an empty completion, for a request that never started.
    pub(super) fn cancelled_before_start(self, finish_reason: FinishReason) -> (ReplyChannel, Completion) {
        (self.reply, Completion { finish_reason, ..Completion::default() })
    }
}

/// A request in a slot.
pub(super) struct Running {
    pub(super) request: Request,
    pub(super) reply: ReplyChannel,
    tokens: Option<TokenSender>,
    pub(super) slot: usize,
    /// Prompt and sampled tokens.
    pub(super) sequence: Vec<u32>,
    logprobs: Vec<f32>,
    support: Support,
    top_logprobs: Vec<Vec<(u32, f32)>>,
    /// Sorted ids of the sequence, for the repetition penalty; empty without one.
    penalised: Vec<u32>,
    /// Deadline of the response.
    pub(super) deadline: Option<Instant>,
    /// Prompt tokens computed for this request.
    pub(super) prefilled: usize,
    /// Number of the request in its engine.
    pub(super) serial: u64,
    /// Tokens that are sampled on the device and not yet read.
    pub(super) unread: usize,
    /// Whether the keys and values of its sampled tokens have to be computed again.
    pub(super) recomputes: bool,
    /// The version of the weights of each sampled token, if it is recorded.
    pub(super) policy_versions: Vec<u64>,
    /// Whether its next token and its settings are on the device.
    pub(super) on_device: bool,
    /// Whether the prefix lookup was done; from then on only this request writes to the slot.
    pub(super) started: bool,
    rng: ChaCha8Rng,
    stop: StopMatcher,
}

impl Running {
    pub(super) fn new(pending: WaitingRequest, slot: usize, serial: u64) -> Self {
        let WaitingRequest { request, reply, tokens, deadline } = pending;
        let mut penalised = if request.sampling.penalises() { request.prompt_ids.clone() } else { Vec::new() };
        penalised.retain(|id| image_number(*id).is_none());
        penalised.sort_unstable();
        penalised.dedup();
        Self {
            reply,
            tokens,
            slot,
            penalised,
            sequence: request.prompt_ids.clone(),
            logprobs: Vec::new(),
            support: Support::default(),
            top_logprobs: Vec::new(),
            deadline,
            prefilled: 0,
            serial,
            unread: 0,
            recomputes: false,
            policy_versions: Vec::new(),
            on_device: false,
            started: false,
            rng: sampler::stream(request.seed),
            stop: StopMatcher::new(&request.sampling.stop),
            request,
        }
    }

    /// Samples the next token on the host; `None` for logits that are not finite.
    pub(super) fn draw(&mut self, sampler: &mut Sampler, logits: &mut [f32]) -> Option<Drawn> {
        self.rng.set_word_pos(word(self.logprobs.len()));
        sampler.draw_recorded(logits, &self.penalised, &self.request.sampling, &mut self.rng)
    }

    /// The random numbers of the response's tokens from index `token` on.
    pub(super) fn uniforms(&self, token: usize) -> impl Iterator<Item = f64> + use<> {
        let mut rng = self.rng.clone();
        rng.set_word_pos(word(token));
        std::iter::repeat_with(move || sampler::uniform(&mut rng))
    }

    /// Number of sampled tokens, including those on the device.
    pub(super) fn sampled(&self) -> usize {
        self.logprobs.len() + self.unread
    }

    /// Whether the response has its last token, by its length.
    pub(super) fn is_full(&self, capacity: usize) -> bool {
        let limit = self.request.sampling.max_new_tokens;
        self.sampled() >= limit || self.sequence.len() + self.unread >= capacity
    }

    /// Sorted ids of the sequence, for the repetition penalty; empty without one.
    pub(super) fn penalised(&self) -> &[u32] {
        &self.penalised
    }

    /// Whether at least one token was sampled, so that the whole prompt is computed.
    pub(super) fn is_sampling(&self) -> bool {
        self.sequence.len() > self.request.prompt_ids.len()
    }

    /// The prompt without its last token, whose logits are always computed.
    pub(super) fn cacheable(&self) -> &[u32] {
        let prompt = &self.request.prompt_ids;
        &prompt[..prompt.len().saturating_sub(1)]
    }

    /// Appends a sampled token; returns the finish reason if it is the last one.
    pub(super) fn push(&mut self, drawn: Drawn, bytes: &[u8], capacity: usize) -> Option<FinishReason> {
        let Drawn { id, logprob, support, top } = drawn;
        let sampling = &self.request.sampling;
        if sampling.cuts() {
            self.support.push(&support);
        }
        if sampling.top_logprobs > 0 {
            self.top_logprobs.push(top);
        }
        self.sequence.push(id);
        self.logprobs.push(logprob);
        if sampling.penalises()
            && let Err(index) = self.penalised.binary_search(&id)
        {
            self.penalised.insert(index, id);
        }
        if let Some(tokens) = &self.tokens {
            // A closed token stream does not affect the completion.
            let _ = tokens.send(Sampled { id, logprob });
        }
        if self.request.stop_ids.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.stop.push(bytes) {
            Some(FinishReason::StopString)
        } else if self.logprobs.len() >= self.request.sampling.max_new_tokens || self.sequence.len() >= capacity {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(super) fn not_finite(&self) -> Error {
        let Request { conversation, seed, .. } = &self.request;
        Error::new(Kind::Numeric, "the model's logits are not finite")
            .at(format!(
                "conversation {conversation}, trajectory {}, step {}, token {} of the response",
                seed.trajectory,
                seed.step,
                self.logprobs.len() + 1
            ))
            .hint(
                "the weights contain NaN or infinity: download the model again, or, if training caused it, lower trainer.lr and \
                 continue from an earlier checkpoint",
            )
    }

    /// Reply channel and completion; `routing` has the experts of the computed tokens.
    pub(super) fn finish(
        mut self,
        reason: Result<FinishReason>,
        routing: Routing,
    ) -> (ReplyChannel, Result<Completion>) {
        let token_ids = self.sequence.split_off(self.request.prompt_ids.len());
        let completion = reason.map(|finish_reason| Completion {
            token_ids,
            logprobs: self.logprobs,
            policy_versions: self.policy_versions,
            support: self.support,
            top_logprobs: self.top_logprobs,
            routing,
            finish_reason,
            prefilled: self.prefilled,
            server: None,
        });
        (self.reply, completion)
    }
}

/// The position of the random number of a token in its stream, in words of 32 bits.
fn word(token: usize) -> u128 {
    2 * token as u128
}
