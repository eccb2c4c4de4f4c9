//! A policy without a model: a closure returns the responses. For tests, and for environments
//! without weights.

use tokio::sync::oneshot;

use super::{Completion, FinishReason, PendingReply, Policy, Request, Scoring};
use crate::error::Result;

/// Completes each request with the ids of a closure, each with log-probability 0.
pub struct Scripted {
    reply: Box<ScriptedAnswer>,
}

type ScriptedAnswer = dyn Fn(&Request) -> Vec<u32> + Send + Sync;

impl Scripted {
    /// `reply` returns the response ids, including the stop id. Ids after a stop id or past
    /// `max_new_tokens` are dropped.
    pub fn new(reply: impl Fn(&Request) -> Vec<u32> + Send + Sync + 'static) -> Self {
        Self { reply: Box::new(reply) }
    }

    fn complete(&self, request: &Request) -> Completion {
        let mut token_ids = (self.reply)(request);
        if let Some(end) = token_ids.iter().position(|id| request.stop_ids.contains(id)) {
            token_ids.truncate(end + 1);
        }
        token_ids.truncate(request.sampling.max_new_tokens);
        let finish_reason = if token_ids.last().is_some_and(|id| request.stop_ids.contains(id)) {
            FinishReason::Stop
        } else if token_ids.len() == request.sampling.max_new_tokens {
            FinishReason::Length
        } else if request.sampling.stop.is_empty() {
            FinishReason::Stop
        } else {
            FinishReason::StopString
        };
        Completion {
            logprobs: vec![0.0; token_ids.len()],
            token_ids,
            finish_reason,
            prefilled: request.prompt_ids.len(),
            ..Completion::default()
        }
    }
}

impl Policy for Scripted {
    fn submit(&self, request: Request) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        // The receiver is still in scope, so sending can't fail.
        let _ = sender.send(Ok(self.complete(&request)));
        receiver.into()
    }

    fn score(&self, scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        let (sender, receiver) = oneshot::channel();
        let _ = sender.send(Ok(vec![0.0; scoring.ids.len().saturating_sub(scoring.from)]));
        receiver
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::mdp::Sampling;

    fn complete(ids: &'static [u32], max_new_tokens: usize) -> Completion {
        let policy = Scripted::new(move |request| [&request.prompt_ids[..1], ids].concat());
        let request = Request {
            prompt_ids: vec![5, 6],
            sampling: Arc::new(Sampling { max_new_tokens, ..Sampling::default() }),
            stop_ids: Arc::new(vec![9]),
            seed: crate::mdp::StreamSeed::default(),
            conversation: 0,
            chat: None,
        };
        policy.submit(request).blocking_recv().unwrap().unwrap()
    }

    #[test]
    fn scripted_policy_returns_the_closure_ids() {
        let completion = complete(&[1, 9], 8);
        assert_eq!(completion.token_ids, [5, 1, 9]);
        assert_eq!(completion.logprobs, [0.0; 3]);
        assert_eq!(completion.finish_reason, FinishReason::Stop);
    }

    #[test]
    fn scripted_policy_ends_at_stop_ids_and_limits() {
        let stopped = complete(&[9, 1, 2], 8);
        assert_eq!((stopped.token_ids, stopped.finish_reason), (vec![5, 9], FinishReason::Stop));
        let cut = complete(&[1, 2, 3], 2);
        assert_eq!((cut.token_ids, cut.finish_reason), (vec![5, 1], FinishReason::Length));
    }
}
