//! Calls of `r1.training`: the runs of training loops that programs write.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::request::calls;
use crate::config::{Choice, LossGraph, Settings};
use crate::mdp::{Evaluation, Trajectory};

/// Metrics by name.
pub type MetricValues = BTreeMap<String, f64>;

calls! {
    /// Calls of runs. `training` is the number of an open one, `ids` name trajectories of the run.
    pub enum TrainingCall {
        /// Opens a run as `r1 run` does.
        OpenTraining {
            path: PathBuf,
            /// Settings of a recipe defined in the program at `path`, as JSON.
            #[serde(default, deserialize_with = "super::read::json_text")]
            recipe: Option<Json>,
            /// Directory of the program, for paths that are not in the current directory.
            #[serde(skip)]
            directory: PathBuf,
            #[serde(default, deserialize_with = "super::read::overrides")]
            overrides: Vec<String>,
            runs: Option<PathBuf>,
            name: Option<String>,
            resume: Option<PathBuf>,
            /// Whether changes of the recipe are applied (default).
            reload: Option<bool>,
            /// Whether the first step is profiled.
            #[serde(default)]
            profile: bool,
        } -> OpenedTraining;
        /// Closes a run.
        CloseTraining { training: u64 } -> ();
        /// Samples trajectories with the current weights.
        SampleTrajectories { training: u64, #[serde(default)] options: RolloutOptions } -> AtStep<Vec<Trajectory>>;
        /// Advantages by trajectory, step and sampled token; `None` for an excluded trajectory.
        TrajectoryAdvantages {
            training: u64,
            #[serde(deserialize_with = "super::read::list")]
            ids: Vec<String>,
            estimator: Option<Choice>,
        } -> AtStep<Vec<Option<Vec<Vec<f64>>>>>;
        /// Updates the weights with trajectories.
        UpdateWeights {
            training: u64,
            #[serde(deserialize_with = "super::read::list")]
            ids: Vec<String>,
            #[serde(default)]
            options: Box<UpdateOptions>,
        } -> AtStep<MetricValues>;
        /// A supervised step on conversations.
        SupervisedStep {
            training: u64,
            examples: Vec<Json>,
            #[serde(default)]
            options: SupervisedOptions,
        } -> AtStep<MetricValues>;
        /// Log-probabilities by trajectory, step and sampled token.
        TrajectoryLogprobs {
            training: u64,
            #[serde(deserialize_with = "super::read::list")]
            ids: Vec<String>,
            model: ScoringModel,
        } -> AtStep<Vec<Vec<Vec<f64>>>>;
        /// Values of the critic.
        TrajectoryValues {
            training: u64,
            #[serde(deserialize_with = "super::read::list")]
            ids: Vec<String>,
        } -> AtStep<TrajectoryValueReport>;
        /// Copies the policy to the reference policy.
        RenewReference { training: u64 } -> AtStep<()>;
        /// Evaluates on the held-out tasks; `None` without any.
        Evaluate { training: u64 } -> AtStep<Option<Evaluation>>;
        /// Adds metrics to the current step.
        LogMetrics { training: u64, values: MetricValues } -> AtStep<()>;
        /// Ends the step.
        NextStep { training: u64 } -> AtStep<MetricValues>;
        /// Writes a checkpoint, and optionally the model to `out`; the path of the checkpoint.
        SaveCheckpoint { training: u64, out: Option<PathBuf> } -> AtStep<PathBuf>;
    }
}

/// A run that was opened.
#[derive(Clone, Debug)]
pub struct OpenedTraining {
    pub training: u64,
    pub about: AboutTraining,
}

/// The directory of a run, and properties of its training.
#[derive(Clone, Debug, Serialize)]
pub struct AboutTraining {
    pub step: u64,
    pub steps: usize,
    pub run_dir: PathBuf,
    /// Rows of the training data.
    pub rows: Option<u64>,
    pub settings: Box<Settings>,
    /// Whether there is a critic.
    pub critic: bool,
}

/// A result, with the completed steps after the call and the number of steps of the run.
#[derive(Clone, Debug)]
pub struct AtStep<T> {
    pub result: T,
    pub step: u64,
    pub steps: usize,
}

/// The tasks to sample, and the number of samples of each.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutOptions {
    /// Tasks; `trainer.groups_per_step` by default.
    pub groups: Option<usize>,
    /// Trajectories of each; `trainer.group_size` by default.
    pub samples: Option<usize>,
    /// Rows of the training data, from 0, in place of the next ones.
    pub rows: Option<Vec<u64>>,
}

/// Settings of an update; the recipe gives the others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpdateOptions {
    /// For each trajectory a number, or a list with a number or a list of numbers for each step.
    pub advantages: Option<Vec<GivenAdvantages>>,
    pub estimator: Option<Choice>,
    pub loss: Option<Choice>,
    /// A custom loss.
    #[serde(deserialize_with = "super::read::json_text")]
    pub graph: Option<LossGraph>,
    /// The same of returns, for the critic to predict.
    pub returns: Option<Vec<GivenAdvantages>>,
    /// Whether the policy is updated (default), or only the critic.
    pub policy: Option<bool>,
    /// For each trajectory the number of the group that it is compared in.
    pub groups: Option<Vec<u64>>,
    pub lr: Option<f64>,
    pub epochs: Option<usize>,
    pub mini_batches: Option<usize>,
}

/// Advantages or returns of a trajectory that a program computed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum GivenAdvantages {
    /// One number for all tokens.
    All(f64),
    Steps(Vec<GivenStep>),
}

/// Advantages of a step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum GivenStep {
    All(f64),
    Tokens(Vec<f64>),
}

/// Settings of a supervised step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisedOptions {
    pub lr: Option<f64>,
}

/// The model of log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoringModel {
    Policy,
    Reference,
}

/// Values of the critic.
#[derive(Clone, Debug, Serialize)]
pub struct TrajectoryValueReport {
    /// Values of the states before the sampled tokens: by trajectory, step and token.
    pub values: Vec<Vec<Vec<f64>>>,
    /// Value of the next observation of each trajectory; `None` for a trajectory that was not
    /// truncated.
    pub next: Vec<Option<f64>>,
}
