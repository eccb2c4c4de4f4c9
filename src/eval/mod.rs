//! The report of an evaluation: figures of a policy from several samples per task, with intervals,
//! and the comparison of two policies on the same tasks.
//!
//! - `samples`: trajectories as scored samples by task
//! - `at_k`: mean@k, best@k, worst@k, maj@k and pass@k of one task
//! - `interval`: bootstrap intervals of means over tasks
//! - `paired`: tests of a difference on the same tasks
//! - `sequential`: a test of a difference that may be read after every task
//! - `report`: the figures of one policy, and of several
//! - `summary`, `training`: means and figures at k of evaluations during training
//! - `usage`: tools, seconds and price of a trajectory
//! - `show`: reports as tables and Markdown (`lua/reports/eval.lua`); `html`: as a page
//!
//! Everything is computed from stored trajectories, so that a report can be computed again.

mod at_k;
mod html;
mod interval;
mod paired;
mod report;
mod samples;
mod sequential;
mod show;
mod summary;
mod training;
mod usage;

pub use html::html;
pub use interval::Estimate;
pub use paired::Difference;
pub use report::{Comparison, Figures, PolicyReport, PolicySamples, Report, ReportOptions, powers_of_two};
pub use samples::{final_answer, is_missing, score};
pub use sequential::{Betting, Sequential, betting};
pub use show::{markdown, missing_notes, sequential_notes, tables};
pub use summary::{by_source, solved, summary};
pub use training::at_k;
