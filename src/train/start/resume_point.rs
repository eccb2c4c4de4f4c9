//! The checkpoint that a run continues from: the newest one that is not damaged, or the one of a
//! given step; of the run itself, or of another run that it is forked from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{Error, Kind, Result};
use crate::store::{Configuration, ForkOrigin, RunDir, RunProgress, StoredRun, checkpoints, damage};
use crate::telemetry::{Reporter, last_step};
use crate::train::options::RunOptions;

/// The run whose checkpoint is read.
pub(crate) struct ResumeSource {
    pub(crate) path: PathBuf,
    /// Whether a new run begins from its checkpoint.
    pub(crate) is_fork: bool,
    /// The run itself, locked against other processes. `None` for a fork, whose directory is made
    /// later, and on other processes of the run than the first.
    pub(crate) run: Option<Arc<RunDir>>,
}

/// A checkpoint, and what comes after it.
#[derive(Default)]
pub(crate) struct ResumePoint {
    /// `None` if the run ended before its first checkpoint.
    pub(crate) checkpoint: Option<(PathBuf, RunProgress)>,
    /// Later checkpoints that can't be used.
    pub(crate) damaged: Vec<PathBuf>,
    /// Later checkpoints that are complete.
    later: Vec<PathBuf>,
    /// The last step in the metrics, if an earlier step than usual was chosen.
    last: Option<u64>,
}

impl ResumeSource {
    /// Opens the run that the options name; `None` for a new run.
    ///
    /// # Errors
    /// `Kind::Store` if another process writes to it, or it is no run; `Kind::Usage` for a step
    /// without a run.
    pub(crate) fn open(options: &RunOptions) -> Result<Option<Self>> {
        Ok(match (&options.resume, &options.fork) {
            // The lock comes first, so that no file is read while another process may change it.
            (Some(path), _) => {
                let run = if options.ranks.is_first() { Some(Arc::new(RunDir::open(path)?)) } else { None };
                Some(Self { path: path.clone(), is_fork: false, run })
            }
            (None, Some(path)) => Some(Self { path: path.clone(), is_fork: true, run: None }),
            (None, None) if options.from_step.is_some() => {
                return Err(Error::new(Kind::Usage, "there is no run to resume")
                    .at("--resume-from")
                    .hint("name it: --resume RUN --resume-from STEP"));
            }
            (None, None) => None,
        })
    }

    /// The run's last configuration; for a fork the one at its step.
    pub(crate) fn configuration(&self, point: &ResumePoint) -> Result<Configuration> {
        if let Some(run) = &self.run {
            return run.configuration();
        }
        let stored = StoredRun::open(&self.path, Path::new(""))?;
        if !self.is_fork {
            return Ok(stored.configuration().clone());
        }
        let from = point.checkpoint.as_ref().map_or(&self.path, |(path, _)| path);
        Ok(stored.configuration_of(from).clone())
    }

    /// The tools of the MCP servers of the run's script.
    pub(crate) fn tool_lists(&self) -> Result<Value> {
        match &self.run {
            Some(run) => run.scripts().tool_lists(),
            None => StoredRun::open(&self.path, Path::new(""))?.tool_lists(),
        }
    }

    /// What a new fork records about its origin.
    pub(crate) fn fork_origin(&self, point: &ResumePoint) -> Option<ForkOrigin> {
        let (_, state) = point.checkpoint.as_ref().filter(|_| self.is_fork)?;
        Some(ForkOrigin { run: std::path::absolute(&self.path).unwrap_or_default(), step: state.step })
    }

    /// Selects the checkpoint of a step, or the newest one that is complete. Damaged ones that are
    /// newer cause a warning.
    ///
    /// # Errors
    /// `Kind::Store` for a step without a complete checkpoint, or if all checkpoints are damaged.
    pub(crate) fn point(&self, step: Option<u64>, reporter: &Reporter) -> Result<ResumePoint> {
        let mut all = checkpoints(&self.path)?;
        if let Some(step) = step {
            return self.point_of(step, &all);
        }
        let mut point = ResumePoint::default();
        let mut newest = None;
        while let Some((step, path)) = all.pop() {
            let read = damage(&path, false)?.map_or_else(|| RunProgress::load(&path), Err);
            match read {
                Ok(state) => {
                    if !point.damaged.is_empty() {
                        reporter.warn(&format!("the run continues from the checkpoint of step {step}"));
                        point.last = self.last_step()?;
                    }
                    point.checkpoint = Some((path, state));
                    return Ok(point);
                }
                Err(error) => {
                    if !all.is_empty() {
                        reporter.warn(&format!("the checkpoint of step {step} is damaged: {}", reason(&error)));
                    }
                    newest.get_or_insert(error);
                    point.damaged.push(path);
                }
            }
        }
        newest.map_or(Ok(point), Err)
    }

    fn point_of(&self, step: u64, all: &[(u64, PathBuf)]) -> Result<ResumePoint> {
        let Some((_, path)) = all.iter().find(|(there, _)| *there == step) else {
            let steps: Vec<String> = all.iter().map(|(step, _)| step.to_string()).collect();
            let error = Error::new(Kind::Store, format!("the run has no checkpoint of step {step}"));
            return Err(error.at_path(self.path.join("checkpoints")).hint(if steps.is_empty() {
                "it has no checkpoint yet".to_owned()
            } else {
                format!(
                    "it has checkpoints of the steps {}; checkpoint.keep and checkpoint.keep_every keep more",
                    steps.join(", ")
                )
            }));
        };
        damage(path, false)?.map_or(Ok(()), Err)?;
        let later = all.iter().filter(|(there, _)| *there > step).map(|(_, path)| path.clone());
        Ok(ResumePoint {
            checkpoint: Some((path.clone(), RunProgress::load(path)?)),
            damaged: Vec::new(),
            later: later.collect(),
            last: self.last_step()?,
        })
    }

    fn last_step(&self) -> Result<Option<u64>> {
        if self.is_fork { Ok(None) } else { last_step(&self.path) }
    }
}

impl ResumePoint {
    /// The steps that are dropped, first and last, and what else is, as text for a person; `None`
    /// if no more is dropped than at every resume.
    pub(crate) fn dropped(&self) -> Option<String> {
        let (_, state) = self.checkpoint.as_ref()?;
        let last = self.last.filter(|last| *last > state.step)?;
        let names = |paths: &[PathBuf]| {
            let names = paths.iter().filter_map(|path| path.file_name());
            names.map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
        };
        let first = state.step + 1;
        let steps = if first == last { format!("step {first} is") } else { format!("steps {first} to {last} are") };
        let mut text = format!(
            "{steps} repeated: trajectories, evaluations, metrics and TensorBoard events after step {} are removed",
            state.step
        );
        if !self.later.is_empty() {
            text.extend([", and the checkpoints ", &names(&self.later)]);
        }
        if !self.damaged.is_empty() {
            text.extend(["; damaged checkpoints are renamed to damaged-STEP: ", &names(&self.damaged)]);
        }
        Some(text)
    }

    /// The same for programs.
    pub(crate) fn dropped_json(&self) -> Value {
        let Some((_, state)) = self.checkpoint.as_ref().filter(|_| self.dropped().is_some()) else {
            return Value::Null;
        };
        json!({ "steps": [state.step + 1, self.last], "checkpoints": self.later, "damaged": self.damaged })
    }
}

/// The message of an error with its place.
fn reason(error: &Error) -> String {
    match &error.place {
        Some(path) => format!("{path}: {}", error.message),
        None => error.message.clone(),
    }
}
