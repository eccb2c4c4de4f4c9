//! Requests of a recipe's script to the policy (`r1.generate`, `r1.logprobs`), such as plans to
//! choose from, in a chat and in the REPL.

use std::pin::pin;
use std::sync::Arc;

use crate::engine::{Engine, logprobs_of};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Request, Sampling, Scoring, StreamSeed};
use crate::model::Model;
use crate::script::{GenerateRequest, LogprobsRequest, PolicyRequest, PolicyRequests, SampledText};
use crate::telemetry::Interrupt;
use crate::text::Renderer;

/// Runs a part of the recipe's script, and answers the requests that it makes meanwhile.
pub(super) async fn serve<T>(
    requests: &mut PolicyRequests,
    mut answer: impl FnMut(PolicyRequest),
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            Some(request) = requests.recv() => answer(request),
        }
    }
}

/// A text of a model in this process, in a separate conversation.
pub(super) fn generate(
    engine: &mut Engine,
    renderer: &Renderer,
    defaults: &Sampling,
    request: &GenerateRequest,
    interrupt: Interrupt,
) -> Result<SampledText> {
    let prompt_ids = renderer.prompt_without_prefix(&request.messages, &[])?;
    let (length, limit) = (prompt_ids.len(), engine.capacity());
    if length >= limit {
        return Err(Error::new(Kind::Env, format!("the prompt has {length} tokens and the context holds {limit}")));
    }
    let options = &request.options;
    let sampling = Sampling {
        max_new_tokens: options.max_new_tokens.unwrap_or(defaults.max_new_tokens).clamp(1, limit - length),
        temperature: options.temperature.unwrap_or(defaults.temperature),
        top_k: options.top_k.unwrap_or(defaults.top_k),
        top_p: options.top_p.unwrap_or(defaults.top_p),
        min_p: options.min_p.unwrap_or(defaults.min_p),
        stop: options.stop.clone(),
        ..defaults.clone()
    };
    let wanted = Request {
        prompt_ids: prompt_ids.clone(),
        sampling: Arc::new(sampling),
        stop_ids: renderer.stop_ids(),
        seed: StreamSeed { seed: request.seed, trajectory: 0, step: u32::MAX },
        conversation: 1,
        chat: None,
    };
    let completion = engine.generate(wanted, &|| interrupt.is_set(), &mut |_| ())?;
    let response = match completion.token_ids.split_last() {
        Some((last, rest)) if renderer.stop_ids().contains(last) => rest,
        _ => &completion.token_ids,
    };
    let text = renderer.parse(&renderer.tokenizer().decode(response, false), &[])?.content;
    Ok(SampledText { prompt_ids, completion, text })
}

/// Log-probabilities of a text under a model in this process, which is also the reference policy.
pub(super) fn logprobs(model: &Model, renderer: &Renderer, request: &LogprobsRequest) -> Result<Vec<f32>> {
    let mut ids = renderer.prompt(&request.messages, &[])?;
    let from = ids.len();
    ids.extend(renderer.tokenizer().encode(&request.text)?);
    logprobs_of(model, &Scoring { ids, from, temperature: request.temperature, reference: false })
}
