//! Serves requests of scripts to the policy (`r1.generate`, `r1.logprobs`) while their trajectory
//! waits.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::spec::Spec;
use super::stage::Stage;
use super::{reply, served};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Policy, Request, Sampling, Scoring, StreamSeed};
use crate::script::{GenerateRequest, LogprobsRequest, PolicyRequest, PolicyRequests, SampledText};
use crate::text::Renderer;

/// Runs `future`, a part of a trajectory, and serves the generation requests of its script
/// meanwhile.
pub async fn with_policy<T>(
    stage: Stage<'_>,
    policy: &dyn Policy,
    spec: &Spec,
    requests: &mut PolicyRequests,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    let mut writing = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            Some(request) = requests.recv() => writing.push(answer(stage, policy, spec, request)),
            Some(()) = writing.next() => {}
        }
    }
}

async fn answer(stage: Stage<'_>, policy: &dyn Policy, spec: &Spec, request: PolicyRequest) {
    // The receiver may be gone: the call may have timed out.
    match request {
        PolicyRequest::Generate(request) => {
            let written = write(stage, policy, spec, &request).await;
            let _ = request.reply.send(written);
        }
        PolicyRequest::Logprobs(request) => {
            let scored = score(stage, policy, spec, &request).await;
            let _ = request.reply.send(scored);
        }
    }
}

async fn score(stage: Stage<'_>, policy: &dyn Policy, spec: &Spec, request: &LogprobsRequest) -> Result<Vec<f32>> {
    if spec.served {
        let message = "r1.logprobs: the policy is behind a server (policy.api_base), which gives no log-probabilities";
        return Err(Error::new(Kind::Script, message).hint("name a model in this process"));
    }
    let mut ids = stage.renderer.prompt(&request.messages, &[])?;
    let from = ids.len();
    ids.extend(stage.renderer.tokenizer().encode(&request.text)?);
    if ids.len() > spec.max_context {
        let message = format!("prompt and text have {} tokens and the context holds {}", ids.len(), spec.max_context);
        return Err(Error::new(Kind::Env, message));
    }
    let scoring = Scoring { ids, from, temperature: request.temperature, reference: request.reference };
    let scored = policy.score(scoring).await;
    scored.map_err(|_| Error::new(Kind::Interrupted, "the policy stopped before it replied"))?
}

async fn write(stage: Stage<'_>, policy: &dyn Policy, spec: &Spec, request: &GenerateRequest) -> Result<SampledText> {
    let request = text_request(stage.renderer, spec, request)?;
    let (prompt_ids, conversation) = (request.prompt_ids.clone(), request.conversation);
    let completion = policy.submit(request).await;
    policy.release(conversation);
    let completion =
        completion.map_err(|_| Error::new(Kind::Interrupted, "the policy stopped before it replied"))??;
    sampled_text(stage.renderer, prompt_ids, completion)
}

/// The request to the policy for a text of the script, in a separate conversation.
///
/// # Errors
/// [`Kind::Env`] for a prompt that leaves no room.
pub fn text_request(renderer: &Renderer, spec: &Spec, request: &GenerateRequest) -> Result<Request> {
    let (prompt_ids, chat) = if spec.served {
        (Vec::new(), Some(served::plain_chat(renderer, &request.messages)?.into()))
    } else {
        let messages = renderer.without_special_tokens(&request.messages);
        (renderer.prompt_without_prefix(&messages, &[])?, None)
    };
    let options = &request.options;
    let defaults = &spec.sampling;
    let wanted = options.max_new_tokens.unwrap_or(defaults.max_new_tokens).max(1);
    let room = spec.most_tokens().saturating_sub(prompt_ids.len());
    if room == 0 {
        let message = format!("the prompt has {} tokens and the context holds {}", prompt_ids.len(), spec.max_context);
        return Err(Error::new(Kind::Env, message));
    }
    let sampling = Sampling {
        max_new_tokens: wanted.min(room),
        temperature: options.temperature.unwrap_or(defaults.temperature),
        top_k: options.top_k.unwrap_or(defaults.top_k),
        top_p: options.top_p.unwrap_or(defaults.top_p),
        min_p: options.min_p.unwrap_or(defaults.min_p),
        stop: options.stop.clone(),
        ..(**defaults).clone()
    };
    Ok(Request {
        prompt_ids,
        sampling: Arc::new(sampling),
        stop_ids: renderer.stop_ids(),
        seed: StreamSeed { seed: request.seed, trajectory: spec.seed.trajectory, step: u32::MAX },
        // A separate conversation: the trajectory does not continue from it.
        conversation: request.seed ^ spec.seed.trajectory.rotate_left(32),
        chat,
    })
}

/// The text of a response to [`text_request`].
pub fn sampled_text(renderer: &Renderer, prompt_ids: Vec<u32>, completion: Completion) -> Result<SampledText> {
    let text = renderer.parse(&reply::text(renderer, "", &completion), &[])?.content;
    Ok(SampledText { prompt_ids, completion, text })
}
