//! Texts that a recipe's script has the policy generate during a conversation (`r1.generate`), such
//! as plans to choose from.

use std::pin::pin;

use super::chat::Backend;
use crate::error::{Error, Kind, Result};
use crate::script::{GenerateRequest, PolicyRequest, PolicyRequests, SampledText};
use crate::telemetry::Interrupt;

/// Runs a part of the recipe's script, and generates the texts that it requests meanwhile.
pub(super) async fn serve<T>(
    backend: &mut Backend,
    requests: &mut PolicyRequests,
    interrupt: Interrupt,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            Some(request) = requests.recv() => answer(backend, request, interrupt),
        }
    }
}

fn answer(backend: &mut Backend, request: PolicyRequest, interrupt: Interrupt) {
    // The receiver may be gone: the call may have timed out.
    match request {
        PolicyRequest::Generate(request) => {
            let written = generate(backend, &request, interrupt);
            let _ = request.reply.send(written);
        }
        PolicyRequest::Logprobs(request) => {
            let error = Error::new(Kind::Script, "r1.logprobs: a chat computes no log-probabilities");
            let _ = request.reply.send(Err(error.hint("r1 repl does")));
        }
    }
}

fn generate(backend: &mut Backend, request: &GenerateRequest, interrupt: Interrupt) -> Result<SampledText> {
    match backend {
        Backend::Local(local) => local.generate(request, interrupt),
        Backend::Remote(remote) => remote.generate(request, interrupt),
    }
}
