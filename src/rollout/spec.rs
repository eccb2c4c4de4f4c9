//! Specification of a trajectory: task, seeds, sampling.

use std::sync::Arc;

use crate::config::Settings;
use crate::mdp::{Sampling, StreamSeed, Trajectory, environment_seed};
use crate::script::Split;

/// Maximum prompt plus response tokens if neither the recipe nor a model sets it.
const DEFAULT_CONTEXT: usize = 4096;

/// Maximum prompt tokens of a context policy if only a server has the limit.
const SERVER_PROMPT: usize = 16_384;

/// One attempt at one task.
#[derive(Clone, Debug)]
pub struct Spec {
    pub id: String,
    pub split: Split,
    /// Row of the dataset.
    pub task_index: u64,
    pub group: u64,
    pub sample: u32,
    /// Seed of the environment; equal for all members of a group, so that they have the same task.
    pub env_seed: u64,
    /// Random stream of the responses; `trajectory` also identifies the conversation in the
    /// policy's cache.
    pub seed: StreamSeed,
    pub sampling: Arc<Sampling>,
    /// Maximum steps; the environment's own setting if `None`.
    pub max_steps: Option<usize>,
    /// Maximum prompt plus response tokens; 0 if only a server has the limit.
    pub max_context: usize,
    /// The policy is behind a server: prompts are messages, without token ids.
    pub served: bool,
    /// Whether a truncated trajectory includes the next prompt (for the bootstrap value).
    pub next_prompt: bool,
}

impl Spec {
    /// One attempt at a task under a recipe's settings, with seeds derived from its number.
    pub fn new(split: Split, task_index: u64, settings: &Settings) -> Self {
        Self {
            id: format!("0-{task_index}-0"),
            split,
            task_index,
            group: task_index,
            sample: 0,
            env_seed: environment_seed(settings.seed ^ task_index),
            seed: StreamSeed { seed: settings.seed, trajectory: task_index, step: 0 },
            sampling: Arc::new(settings.sampling.clone()),
            max_steps: None,
            max_context: if settings.policy.max_context == 0 { DEFAULT_CONTEXT } else { settings.policy.max_context },
            served: false,
            next_prompt: false,
        }
    }

    /// With the sampling and the step limit of `eval`, if its task is one of `data.eval`.
    #[must_use]
    pub fn as_evaluated(self, settings: &Settings) -> Self {
        match self.split {
            Split::Train => self,
            Split::Eval => Self {
                sampling: Arc::new(settings.eval.sampling(&settings.sampling)),
                max_steps: settings.eval.max_steps,
                ..self
            },
        }
    }

    /// The specification of a stored trajectory, under the settings of its run. `max_context` is
    /// the run's, in tokens.
    pub fn of_recorded(trajectory: &Trajectory, settings: &Settings, max_context: usize) -> Self {
        let defaults = Self::new(trajectory.split, trajectory.task_index, settings).as_evaluated(settings);
        let served = !settings.policy.api_base.is_empty();
        Self {
            id: trajectory.id.clone(),
            group: trajectory.group,
            sample: trajectory.sample,
            env_seed: trajectory.seed,
            max_context: if max_context == 0 && !served { defaults.max_context } else { max_context },
            served,
            next_prompt: trajectory.split == Split::Train && settings.trainer.has_critic(),
            ..defaults
        }
    }

    /// The specification of a retry: another random stream of responses, the same environment seed.
    /// 0 is the first attempt.
    pub(super) fn retry(&self, retries: u32) -> Self {
        let seed = self.seed.seed ^ u64::from(retries).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { seed: StreamSeed { seed, ..self.seed }, ..self.clone() }
    }

    /// Maximum prompt plus response tokens, as a bound.
    pub fn most_tokens(&self) -> usize {
        if self.max_context == 0 { usize::MAX } else { self.max_context }
    }

    /// Maximum prompt tokens such that a response fits after it.
    pub fn budget(&self) -> usize {
        if self.max_context == 0 {
            return SERVER_PROMPT;
        }
        self.max_context.saturating_sub(self.sampling.max_new_tokens.min(self.max_context / 2))
    }
}
