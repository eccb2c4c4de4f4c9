//! Requests of a recipe's script to the policy (`r1.generate`, `r1.logprobs`), such as plans to
//! choose from, in a chat and in the REPL.

use std::pin::pin;

use crate::engine::logprobs_of;
use crate::error::Result;
use crate::mdp::{Completion, Request, Scoring};
use crate::model::Model;
use crate::rollout::{Spec, sampled_text, text_request};
use crate::script::{GenerateRequest, LogprobsRequest, PolicyRequest, PolicyRequests, SampledText};
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

/// A text for the script, whose response `sample` samples.
pub(super) fn generate(
    renderer: &Renderer,
    spec: &Spec,
    request: &GenerateRequest,
    sample: impl FnOnce(Request) -> Result<Completion>,
) -> Result<SampledText> {
    // The conversation of the user has the number 0.
    let wanted = Request { conversation: 1, ..text_request(renderer, spec, request)? };
    let prompt_ids = wanted.prompt_ids.clone();
    sampled_text(renderer, prompt_ids, sample(wanted)?)
}

/// Log-probabilities of a text under a model in this process, which is also the reference policy.
pub(super) fn logprobs(model: &Model, renderer: &Renderer, request: &LogprobsRequest) -> Result<Vec<f32>> {
    let mut ids = renderer.prompt(&request.messages, &[])?;
    let from = ids.len();
    ids.extend(renderer.tokenizer().encode(&request.text)?);
    logprobs_of(model, &Scoring { ids, from, temperature: request.temperature, reference: false })
}
