//! The source of replies: a model in this process, or one behind a server.

use super::answer::{ModelReply, ShowAnswer};
use super::local::Local;
use super::remote::RemoteModel;
use crate::cli::generation::generate;
use crate::error::{Error, Kind, Result};
use crate::mdp::Request;
use crate::rollout::{Attempt, Spec, Stage};
use crate::script::PolicyRequest;
use crate::telemetry::Interrupt;
use crate::text::Renderer;

/// The source of replies.
pub(super) enum Backend {
    Local(Box<Local>),
    Remote(Box<RemoteModel>),
}

impl Backend {
    /// A short description of the model.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Local(local) => local.name.clone(),
            Self::Remote(remote) => remote.title(),
        }
    }

    /// Samples the reply to the current prompt of an attempt, and shows it as it is sampled. Ctrl-C
    /// ends it.
    pub(super) fn reply(
        &mut self,
        at: (Stage<'_>, &Attempt),
        request: Request,
        interrupt: Interrupt,
        show: &mut ShowAnswer<'_>,
    ) -> Result<ModelReply> {
        match self {
            Self::Local(local) => local.reply(at, request, interrupt, show),
            Self::Remote(remote) => remote.reply(at, &request, interrupt, show),
        }
    }

    /// Answers a request of the recipe's script to the policy. The receiver may be gone: the call
    /// may have timed out.
    pub(super) fn answer(&mut self, renderer: &Renderer, spec: &Spec, request: PolicyRequest, interrupt: Interrupt) {
        match request {
            PolicyRequest::Generate(request) => {
                let written = generate(renderer, spec, &request, |wanted| match self {
                    Self::Local(local) => local.sample(wanted, interrupt),
                    Self::Remote(remote) => remote.sample(&wanted, interrupt),
                });
                let _ = request.reply.send(written);
            }
            PolicyRequest::Logprobs(request) => {
                let error = Error::new(Kind::Script, "r1.logprobs: a chat computes no log-probabilities");
                let _ = request.reply.send(Err(error.hint("r1 repl does")));
            }
        }
    }
}
