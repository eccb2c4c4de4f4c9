//! The source of replies: a model in this process, or one behind a server.

use super::local::Local;
use super::remote::RemoteModel;
use crate::error::{Error, Kind};
use crate::script::PolicyRequest;
use crate::telemetry::Interrupt;

/// The source of replies.
pub(super) enum Backend {
    Local(Box<Local>),
    Remote(Box<RemoteModel>),
}

impl Backend {
    /// Answers a request of the recipe's script to the policy. The receiver may be gone: the call
    /// may have timed out.
    pub(super) fn answer(&mut self, request: PolicyRequest, interrupt: Interrupt) {
        match request {
            PolicyRequest::Generate(request) => {
                let written = match self {
                    Self::Local(local) => local.generate(&request, interrupt),
                    Self::Remote(remote) => remote.generate(&request, interrupt),
                };
                let _ = request.reply.send(written);
            }
            PolicyRequest::Logprobs(request) => {
                let error = Error::new(Kind::Script, "r1.logprobs: a chat computes no log-probabilities");
                let _ = request.reply.send(Err(error.hint("r1 repl does")));
            }
        }
    }
}
