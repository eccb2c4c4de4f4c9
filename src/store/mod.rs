//! The run directory: what ran, trajectories in Parquet, checkpoints. The only module that uses Parquet.
//!
//! ```text
//! runs/<name>/
//!   recipe.lua                       the script as it ran last
//!   config.json                      script, hash, resolved settings, versions: those in effect, and those before
//!   scripts/3fa85f64c1d2/            each version of the script with the files it required, by its hash
//!   trajectories/step-000123.parquet one file a training step, one row a step of a trajectory
//!   checkpoints/step-000120/         a model in Hugging Face layout; trainer_state/ has what resuming needs
//!   checkpoints/latest               the name of the newest checkpoint, as text
//!   metrics.jsonl, tb/               written by `telemetry`
//! ```
//!
//! Whatever is written appears whole or not at all: it is made under a temporary name (`.….part`), synced to the
//! disk, and renamed. Files that belong to one process of several carry its rank; rank 0 has the plain name
//! (`step-000123.parquet`, `state.json`) and rank N adds `-rankN` before the extension.
//!
//! Every failure here is [`Kind::Store`](crate::Kind::Store) and names the path.

mod arrow_file;
mod checkpoint;
mod configuration;
mod files;
mod manifest;
mod read;
mod record;
mod run_dir;
mod stored;
mod table;
mod trajectories;

pub use arrow_file::ArrowFile;
pub use checkpoint::{BEST, Best, State, find_model, latest_checkpoint, trainer_state};
pub use configuration::{Configuration, FileVersion, Origin, Origins, ScriptVersion};
pub use files::write_atomic;
pub use manifest::verify;
pub use read::read_trajectories;
pub use run_dir::{Recipe, RunDir, ScriptsDir, newest_run};
pub use stored::{Sources, StoredRun};
pub use table::Table;
pub use trajectories::write_trajectories;
