//! Training: from a recipe to new weights. The loops read top to bottom: `run::policy_loop` and
//! `run::sft`.
//!
//! There is no trainer base class and there are no callbacks: a loop with different needs has its
//! own file. `ranks` has the processes of a run. The folders have an order, and each imports only
//! those before it:
//!
//! - `rules`: the settings of training, checked before anything runs
//! - `rows`: the rows of the data, and which one is next
//! - `learn`: from trajectories to new weights
//! - `start`: starting, resuming, stopping and recording a run
//! - `watch`: what a run tells its user
//! - `eval`: evaluation on held-out tasks
//! - `run`: the loops, and the state of a run that they share

mod eval;
mod gradient_exchange;
mod gradient_sum;
mod image_exchange;
mod learn;
mod options;
mod parameter_shards;
mod ranks;
mod rows;
mod rules;
mod run;
mod shards;
mod start;
mod watch;

pub use self::eval::command::{EvalOptions, Evaluated, evaluate_models};
pub use self::eval::server::counting_renderer;
pub use self::learn::advantages::{AdvantageConfig, AdvantageSource, compute_advantages};
pub use self::learn::steps::training_steps;
pub use self::learn::training_rows::training_rows;
pub use self::learn::update::{Update, UpdateStats};
pub use self::options::{RunOptions, Summary};
pub use self::ranks::Ranks;
pub(crate) use self::rows::demonstrations::with_images;
pub use self::rules::objective::Objective;
pub use self::rules::unused::unused_settings;
pub use self::rules::validate::{ValidatedTrainer, validate};
pub(crate) use self::run::calls::{RolloutOptions, UpdateOptions};
pub use self::run::cold_start::check as check_cold_start;
pub use self::run::masks::{ShownToken, ShownTrajectory, masks};
pub use self::run::plan::{MemoryPlan, plan};
pub use self::run::policy_loop::run;
pub use self::run::rerun::{COMPARED, RepeatedStep, RerunOptions, rerun};
pub use self::run::sft::run as run_supervised;
pub use self::run::step_plan::{PlannedStep, StepPlanOptions, plan_step};
pub(crate) use self::run::training::Training;
pub use self::shards::Shards;
pub use self::start::agent::{Agent, LoadedAgent};
pub use self::start::context::context_limit_message;
pub use self::start::generation::{model_sampling, sets_sampling};
pub use self::start::script_log::in_words as log_in_words;
pub use self::watch::report::far_files_in_words;
