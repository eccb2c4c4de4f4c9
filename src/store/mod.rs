//! The run directory: configuration, trajectories in Parquet, checkpoints. The only module that
//! uses Parquet.
//!
//! ```text
//! runs/<name>/
//!   recipe.lua                       the current script
//!   config.json                      script, hash, resolved settings, versions; with their history
//!   scripts/3fa85f64c1d2/            each version of the script with its modules, by hash
//!   scripts/mcp.json                 the tools of its MCP servers, as listed when they started
//!   trajectories/step-000123.parquet one file per training step, one row per trajectory step
//!   checkpoints/step-000120/         a model in Hugging Face layout, with trainer_state/
//!   checkpoints/latest               the name of the newest checkpoint, as text
//!   metrics.jsonl, tb/               written by `telemetry`
//!   .lock                            the process that writes to the run
//!   curation.jsonl                   notes of people about trajectories, written by `r1 view`
//!   curation.removed.jsonl           those about trajectories that a resumed run replaced
//! ```
//!
//! Writes are atomic: files are written under a temporary name (`.….part`), synced and renamed.
//!
//! Errors are [`Kind::Store`](crate::Kind::Store) with the path.

mod account;
mod arrow_file;
mod check;
mod checkpoint;
mod checkpoint_part;
mod columns;
mod configuration;
mod curation;
mod files;
mod manifest;
mod read;
mod record;
mod run_dir;
mod run_lock;
mod scan;
mod scan_values;
mod stored;
mod table;
mod table_write;
mod trajectories;
mod trajectory_row;

pub use account::{EarlierFiles, EpochRows, TaskAccount, TaskCounts, TaskProblem};
pub use arrow_file::ArrowFile;
pub use check::{FileCheck, TrajectoryChecks, missing_steps, unfinished_files};
pub use checkpoint::{
    BEST, BestCheckpoint, IMAGES, KeepRule, RunProgress, checkpoints, find_model, latest_checkpoint, link_model,
    trainer_state,
};
pub use checkpoint_part::{take_part, temporary_file, write_part};
pub use columns::{ColumnKind, TRAJECTORY_COLUMNS, TrajectoryColumn};
pub use configuration::{Configuration, FileVersion, ForkOrigin, Origin, Origins, ScriptVersion};
pub use curation::{CURATION, Curation, NOTES_ASIDE, read_curation, set_notes_aside, write_curation};
pub use files::{check_writable, read_json, write_atomic, write_bytes};
pub use manifest::{damage, verify};
pub use read::{read_step_tasks, read_trajectories};
pub use run_dir::{RunDir, ScriptsDir, newest_run};
pub use scan::{TrajectoryFile, scan_trajectories};
pub use scan_values::ColumnValues;
pub use stored::{Sources, StoredRun, no_run, run_names};
pub use table::{BytesColumns, ParquetTable};
pub use table_write::write_table;
pub use trajectories::{StepTasks, TaskOrder, write_selected, write_trajectories};
