//! `r1 run --profile`: a time line of the first training step, and some of its decode steps and one
//! of its micro-batches by libtorch's profiler.
//!
//! RUN/profile has three traces for chrome://tracing or Perfetto, and a table of operations
//! (docs/guide/profiling.md). Times of
//! operations are times of the host without the operations that they call; a GPU's kernels are
//! separate rows. Profiling slows down what it measures.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use tch::Device;

use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::native::{OperationTime, start_profile, stop_profile};
use crate::telemetry::Reporter;
use crate::timeline;

/// Number of profiled decode steps.
const STEPS: usize = 16;

/// Rows of each table.
const ROWS: usize = 40;

/// The profile of the next micro-batch of this thread.
#[derive(Debug, Default)]
enum ProfileState {
    #[default]
    Off,
    /// The trace is to be written here.
    Armed(PathBuf),
    Running(PathBuf),
    Done(Result<Vec<OperationTime>>),
}

thread_local! {
    static STATE: RefCell<ProfileState> = RefCell::default();
}

/// Ends the profile of a micro-batch when dropped.
pub(crate) struct MicroBatchProfile;

/// Starts the profile of a micro-batch, if it is the first after [`RunProfile::begin`].
pub(crate) fn micro_batch(device: Device) -> Result<Option<MicroBatchProfile>> {
    STATE.with_borrow_mut(|state| match std::mem::take(state) {
        ProfileState::Armed(path) => {
            start_profile(device)?;
            *state = ProfileState::Running(path);
            Ok(Some(MicroBatchProfile))
        }
        other => {
            *state = other;
            Ok(None)
        }
    })
}

impl Drop for MicroBatchProfile {
    fn drop(&mut self) {
        STATE.with_borrow_mut(|state| {
            if let ProfileState::Running(path) = std::mem::take(state) {
                *state = ProfileState::Done(stop_profile(&path));
            }
        });
    }
}

/// The profile of a training step.
pub(crate) struct RunProfile {
    dir: PathBuf,
    /// The number of decode steps that were profiled, and their operations.
    decode: Option<(usize, Vec<OperationTime>)>,
}

impl RunProfile {
    pub(crate) fn new(run: &Path) -> Self {
        Self { dir: run.join("profile"), decode: None }
    }

    /// Before the rollout of the step.
    pub(crate) fn begin(&self, engine: &mut Engine) -> Result<()> {
        std::fs::create_dir_all(&self.dir)
            .map_err(|error| Error::io(Kind::Store, "make the directory", &self.dir, &error))?;
        timeline::start();
        engine.profile_steps(STEPS, self.dir.join("decode.json"));
        STATE.set(ProfileState::Armed(self.dir.join("update.json")));
        Ok(())
    }

    /// After the rollout: ends the profile of decode steps, because libtorch has one profile at a
    /// time.
    pub(crate) fn sampled(&mut self, engine: &mut Engine) -> Result<()> {
        self.decode = engine.take_profile()?;
        Ok(())
    }

    /// At the end of the step: writes the time line and the tables.
    pub(crate) fn end(self, reporter: &Reporter) -> Result<()> {
        let update = match STATE.take() {
            ProfileState::Done(result) => Some(result?),
            ProfileState::Off | ProfileState::Armed(_) | ProfileState::Running(_) => None,
        };
        let mut text = "# Profile of the first step\n".to_owned();
        let (count, decode) = self.decode.as_ref().map_or((STEPS, None), |(count, all)| (*count, Some(&all[..])));
        section(&mut text, &format!("{count} decode steps (decode.json)"), decode);
        section(&mut text, "a micro-batch, forward and backward (update.json)", update.as_deref());
        let trace = timeline::stop().unwrap_or_default().to_string();
        for (name, text) in [("step.json", trace), ("operations.md", text)] {
            let path = self.dir.join(name);
            std::fs::write(&path, text).map_err(|error| Error::io(Kind::Store, "write", &path, &error))?;
        }
        reporter.info(&format!("profile of the first step: {}", self.dir.display()));
        Ok(())
    }
}

/// Writes the operations with the most time.
fn section(text: &mut String, title: &str, all: Option<&[OperationTime]>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n## {title}\n");
    let Some(all) = all else {
        text.push_str("Not profiled: the step had too few decode steps, or no update.\n");
        return;
    };
    for (on_device, what) in [(false, "host"), (true, "device")] {
        let operations: Vec<&OperationTime> = all.iter().filter(|it| it.on_device == on_device).collect();
        if operations.is_empty() {
            continue;
        }
        let (count, seconds) = operations.iter().fold((0, 0.0), |(n, s), it| (n + it.count, s + it.seconds));
        let _ = writeln!(text, "| {what}: operation | count | ms |\n|---|---|---|");
        let _ = writeln!(text, "| all | {count} | {:.3} |", seconds * 1e3);
        for OperationTime { name, count, seconds, .. } in operations.iter().take(ROWS) {
            let name: String = name.replace('|', "/").chars().take(80).collect();
            let _ = writeln!(text, "| {name} | {count} | {:.3} |", seconds * 1e3);
        }
        text.push('\n');
    }
}
