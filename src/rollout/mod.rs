//! Runs trajectories with an environment and a policy.
//!
//! [`drive()`] runs one trajectory; [`Attempt`] runs it step by step, and can be forked at any
//! step. [`Pool`] runs many trajectories on script worker threads. Each thread has its own VM and a
//! single-threaded runtime, on which trajectories wait for tools and for the policy. A [`Tree`] is
//! a trajectory with others that branch off it.
//!
//! [`check`] tests a script's contract with scripted responses. [`replay()`] runs a stored
//! trajectory again, with the responses and external calls of its record.
//!
//! Other programs can use r1 in the same way: load a recipe, pass any
//! [`Policy`](crate::mdp::Policy), run trajectories.
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use r1::mdp::{Policy, Scripted};
//! use r1::rollout::{Pool, PoolOptions, Spec};
//! use r1::script::{Script, Split};
//! use r1::text::Renderer;
//!
//! # fn main() -> r1::Result<()> {
//! let script = Script::load(Path::new("scripts/retool.lua"), &["seed=3".to_owned()])?;
//! let renderer = Arc::new(Renderer::load(Path::new("models/r1-nano"), "retool")?);
//!
//! // The policy always gives the same response; a real one samples from a model or a server.
//! let reply = renderer.tokenizer().encode("<answer>\\boxed{42}</answer><|im_end|>")?;
//! let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_request| reply.clone()));
//!
//! let pool = Pool::new(&script, &renderer, &PoolOptions::default())?;
//! let specs = (0..4).map(|task| Spec::new(Split::Eval, task, &script.settings)).collect();
//! let trajectories = pool.start(&policy, specs, &r1::rollout::no_progress())?.finish()?;
//!
//! assert_eq!(trajectories.len(), 4);
//! let one_step = |trajectory: &r1::mdp::Trajectory| trajectory.steps.len() == 1;
//! assert!(trajectories.iter().all(one_step));
//! assert!(trajectories.iter().all(|trajectory| trajectory.total_reward() == -1.0));
//! # Ok(())
//! # }
//! ```

mod accuracy;
mod attempt;
pub mod check;
mod drive;
mod ending;
mod pool;
mod prompt;
mod replay;
mod reply;
mod row_validation;
mod script_requests;
mod served;
mod spec;
mod stage;
mod step_trace;
#[cfg(test)]
mod tests;
mod thread;
mod tree;
mod typed;

pub use accuracy::unknown_accuracy;
pub use attempt::Attempt;
pub use drive::{Reached, branch, drive, go_on, go_to, never_begun};
pub use pool::{OnFinished, PendingTrajectories, Pool, PoolOptions, Replacer, no_progress};
pub use prompt::Prompt;
pub use replay::{ReplayMismatch, Replayed, completion, first_difference, replay};
pub use row_validation::{RowSearch, RowValidation, validate_rows};
pub use script_requests::{sampled_text, text_request, with_policy};
pub use spec::Spec;
pub use stage::{Stage, Stop};
pub use tree::Tree;
pub use typed::{typed, typed_calls};
