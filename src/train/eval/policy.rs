//! The policy of an evaluation: a model in this process, or behind a server.

use std::path::Path;

use serde_json::Value;

use super::server::ServerSession;
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::model_dir;
use crate::mdp::{Sampling, Trajectory};
use crate::rollout::{OnFinished, Spec};
use crate::script::Script;
use crate::store::Origin;
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::train::ranks::Ranks;
use crate::train::rows::selection::Selection;
use crate::train::start::origins;
use crate::train::start::script_log::ScriptLog;
use crate::train::start::session::Session;

pub(crate) enum EvalPolicy {
    Local(Box<Session>),
    Server(Box<ServerSession>),
}

impl EvalPolicy {
    /// Opens the policy of a recipe, with the origin of a model in this process. `run` is the
    /// evaluation that is continued, which has stored images.
    ///
    /// # Errors
    /// Errors of models, of the data and of the script; `Kind::Usage` for a model behind a server
    /// and several processes.
    pub(crate) fn open(
        script: &mut Script,
        ranks: &Ranks,
        run: Option<&Path>,
        fetching: Fetching<'_>,
    ) -> Result<(Self, Option<Origin>)> {
        let policy = script.settings.policy.clone();
        if !policy.api_base.is_empty() {
            if ranks.size() > 1 {
                return Err(Error::new(Kind::Usage, "several processes do not divide the requests to a server")
                    .at(&policy.api_base)
                    .hint("use one process; rollout.concurrency is the number of requests at a time"));
            }
            return Ok((Self::Server(Box::new(ServerSession::open(script, run, fetching)?)), None));
        }
        let dir = model_dir(&policy.model, fetching)?;
        let mut session = Session::open(script, &dir, None, run, fetching)?;
        // The first Ctrl-C ends an evaluation.
        session.rollouts.patience.set(1);
        session.ranks = ranks.with_images(session.renderer.images());
        Ok((Self::Local(Box::new(session)), Some(origins::origin(&policy.model, &dir))))
    }

    pub(crate) fn settings(&self) -> &Settings {
        match self {
            Self::Local(session) => &session.settings,
            Self::Server(session) => &session.settings,
        }
    }

    pub(crate) fn rows(&self) -> &Selection {
        match self {
            Self::Local(session) => &session.rows,
            Self::Server(session) => &session.rows,
        }
    }

    pub(crate) fn log(&mut self) -> &mut ScriptLog {
        match self {
            Self::Local(session) => &mut session.log,
            Self::Server(session) => &mut session.log,
        }
    }

    pub(crate) fn renderer(&self) -> &Renderer {
        match self {
            Self::Local(session) => &session.renderer,
            Self::Server(session) => &session.renderer,
        }
    }

    /// Maximum prompt plus response tokens; 0 if only the server has the limit.
    pub(crate) fn max_context(&self) -> usize {
        match self {
            Self::Local(session) => session.max_context,
            Self::Server(session) => session.settings.policy.max_context,
        }
    }

    /// The processes that divide rollouts.
    pub(crate) fn ranks(&self) -> Ranks {
        match self {
            Self::Local(session) => session.ranks.clone(),
            Self::Server(_) => Ranks::default(),
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// The sampling with the stop strings of the tool-call format.
    pub(crate) fn with_stop(&self, sampling: Sampling) -> Sampling {
        sampling.with_stop(self.renderer().stop_strings())
    }

    /// Sets the receiver of trajectories that have ended.
    pub(crate) fn set_finished(&mut self, finished: OnFinished) {
        match self {
            Self::Local(session) => session.finished = finished,
            Self::Server(session) => session.finished = finished,
        }
    }

    /// Tells a server that it has replied to other requests of this evaluation.
    pub(crate) fn has_replied_before(&self) {
        if let Self::Server(session) = self {
            session.policy.has_replied_before();
        }
    }

    /// Runs trajectories to their end; after an error, those that can be kept.
    pub(crate) fn rollout(
        &mut self,
        specs: Vec<Spec>,
        reporter: &Reporter,
        label: &str,
    ) -> (Vec<Trajectory>, Result<()>) {
        match self {
            Self::Server(session) => session.rollout(specs, reporter, label),
            Self::Local(session) => match session.rollout(specs, reporter, label) {
                Ok((trajectories, _)) => (trajectories, Ok(())),
                Err(error) => (Vec::new(), Err(error)),
            },
        }
    }
}

/// The settings of a model given by name: `NAME`, or `URL#NAME` for a model behind a server.
pub(crate) fn overrides_of(name: &str) -> Vec<String> {
    let model = |name: &str| format!("policy.model={}", Value::from(name));
    match name.split_once('#').filter(|(url, _)| url.starts_with("http://") || url.starts_with("https://")) {
        Some((url, model_name)) => vec![format!("policy.api_base={}", Value::from(url)), model(model_name)],
        None => vec![model(name)],
    }
}

#[cfg(test)]
mod tests {
    use super::overrides_of;

    #[test]
    fn a_name_with_an_address_is_a_model_behind_a_server() {
        assert_eq!(overrides_of("runs/a#b"), [r#"policy.model="runs/a#b""#]);
        let served = overrides_of("https://api.openai.com/v1#gpt-4.1");
        assert_eq!(served, [r#"policy.api_base="https://api.openai.com/v1""#, r#"policy.model="gpt-4.1""#]);
    }
}
