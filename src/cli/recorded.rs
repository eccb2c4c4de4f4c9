//! A stored run, opened to run its trajectories again: for `r1 replay`, `r1 rescore` and the REPL.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Trajectory;
use crate::rollout::{self, Replayed, Spec, Stage};
use crate::script::{Script, Strictness, Worker};
use crate::store::{self, FileVersion, StoredRun};
use crate::telemetry::{Interrupt, Reporter};
use crate::text::Renderer;
use crate::train::{self, Fetching};

/// A run with the scripts that made it, loaded when they are first needed.
pub(super) struct Recorded {
    pub(super) run: StoredRun,
    runtime: Runtime,
    /// Run instead of the run's own script.
    other: Option<PathBuf>,
    loaded: HashMap<String, Rc<Loaded>>,
}

/// One version of a script at work.
pub(super) struct Loaded {
    pub(super) script: Script,
    pub(super) worker: Worker,
    pub(super) renderer: Arc<Renderer>,
}

impl Recorded {
    /// `other`: a script to run instead of the run's own.
    pub(super) fn open(run: &Path, runs_dir: &Path, other: Option<PathBuf>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Kind::Internal, format!("can't start the runtime: {error}")))?;
        Ok(Self { run: StoredRun::open(run, runs_dir)?, runtime, other, loaded: HashMap::new() })
    }

    /// The steps to look at: those that `ids` name, or the last so many (0: all).
    pub(super) fn steps(&self, ids: &[Id], last: usize) -> Result<Vec<u64>> {
        let all = self.run.steps()?;
        if all.is_empty() {
            return Err(Error::new(Kind::Store, "the run has no trajectories yet").at_path(self.run.path()));
        }
        if ids.is_empty() {
            return Ok(all[if last == 0 { 0 } else { all.len().saturating_sub(last) }..].to_vec());
        }
        for id in ids {
            if !all.contains(&id.step) {
                let range = format!("it has steps {} to {}", all[0], all[all.len() - 1]);
                return Err(Error::new(Kind::Usage, format!("the run has no step {}", id.step)).hint(range));
            }
        }
        Ok(all.into_iter().filter(|step| ids.iter().any(|id| id.step == *step)).collect())
    }

    /// The trajectories of a step that `ids` name; all of them without ids.
    pub(super) fn trajectories(&self, step: u64, ids: &[Id]) -> Result<Vec<Trajectory>> {
        let all = self.run.trajectories(step)?;
        if ids.is_empty() {
            return Ok(all);
        }
        let ids: Vec<&Id> = ids.iter().filter(|id| id.step == step).collect();
        for id in &ids {
            if !all.iter().any(|trajectory| id.names(trajectory)) {
                let known = all.iter().map(|trajectory| trajectory.id.as_str());
                return Err(Error::new(Kind::Usage, format!("the run has no trajectory {}", id.text))
                    .hint(suggest(&id.text, known)));
            }
        }
        Ok(all.into_iter().filter(|trajectory| ids.iter().any(|id| id.names(trajectory))).collect())
    }

    /// The script that a trajectory ran under, or the one to run instead.
    pub(super) fn script_of(&mut self, trajectory: &Trajectory, reporter: &Reporter) -> Result<Rc<Loaded>> {
        let key = if self.other.is_some() { String::new() } else { trajectory.script_hash.clone() };
        if let Some(loaded) = self.loaded.get(&key) {
            return Ok(Rc::clone(loaded));
        }
        let kept = self.run.sources(&trajectory.script_hash)?;
        let script = if let Some(path) = &self.other {
            Script::load(path, &kept.overrides)?
        } else {
            let script = Script::kept(&kept.path, kept.source, kept.modules, &kept.overrides)?;
            unchanged(&kept.resources, &script.resources())?;
            script
        };
        let renderer = Arc::new(self.renderer(&script, reporter)?);
        let worker = Worker::new(&script, Some(Arc::clone(&renderer)))?;
        let loaded = Rc::new(Loaded { script, worker, renderer });
        self.loaded.insert(key, Rc::clone(&loaded));
        Ok(loaded)
    }

    /// The tokenizer and template of the run's own checkpoints, or of the model it started from.
    fn renderer(&self, script: &Script, reporter: &Reporter) -> Result<Renderer> {
        let style = &script.style()?;
        if let Some((_, checkpoint)) = store::latest_checkpoint(self.run.path())?
            && checkpoint.join("tokenizer.json").is_file()
        {
            return Renderer::load_styled(&checkpoint, style);
        }
        let fetching = Fetching { reporter, interrupt: None };
        Renderer::load_styled(&train::model_dir(&script.settings.policy.model, fetching)?, style)
    }

    /// Runs a trajectory again.
    pub(super) fn replay(&self, loaded: &Loaded, trajectory: &Trajectory, strictness: Strictness) -> Result<Replayed> {
        let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
        let spec = Spec::of_recorded(trajectory, &loaded.script.settings, self.run.max_context());
        let replayed = self.runtime.block_on(rollout::replay(stage, trajectory, spec, strictness));
        // What the script logs was logged when it ran.
        drop(loaded.worker.take_log());
        replayed
    }
}

/// Refuses resources that are not what the run read.
fn unchanged(recorded: &[FileVersion], now: &[FileVersion]) -> Result<()> {
    let differs = |now: &&FileVersion| recorded.iter().any(|old| old.path == now.path && old.sha256 != now.sha256);
    match now.iter().find(differs) {
        None => Ok(()),
        Some(file) => Err(Error::new(Kind::Data, "the resource is not what it was when the run read it")
            .at_path(&file.path)
            .hint("--script FILE runs the script with the resource as it is now")),
    }
}

/// What a person calls trajectories: `12` a whole step, `12-3` a group of it, `12-3-0` one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Id {
    text: String,
    pub(super) step: u64,
    group: Option<u64>,
    sample: Option<u32>,
}

impl Id {
    fn names(&self, trajectory: &Trajectory) -> bool {
        self.group.is_none_or(|group| group == trajectory.group)
            && self.sample.is_none_or(|sample| sample == trajectory.sample)
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "must be STEP, STEP-GROUP or STEP-GROUP-SAMPLE, such as 12-3-0".to_owned();
        let mut parts = text.split('-').map(str::parse::<u64>);
        let mut next = || parts.next().transpose().map_err(|_| wrong());
        let step = next()?.ok_or_else(wrong)?;
        let (group, sample) = (next()?, next()?);
        if next()?.is_some() {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), step, group, sample: sample.map(|sample| sample as u32) })
    }
}

/// Ends the command when somebody has pressed Ctrl-C.
pub(super) fn heed(interrupt: Interrupt) -> Result<()> {
    if interrupt.is_set() { Err(Error::new(Kind::Interrupted, "stopped")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_name_a_step_a_group_or_one() {
        let id = |text: &str| text.parse::<Id>();
        assert_eq!((id("12").unwrap().step, id("12").unwrap().group), (12, None));
        let one = id("12-3-0").unwrap();
        assert_eq!((one.step, one.group, one.sample), (12, Some(3), Some(0)));
        for wrong in ["", "x", "1-", "1-2-3-4", "-1", "1--2"] {
            assert!(id(wrong).unwrap_err().contains("such as 12-3-0"), "{wrong}");
        }
    }
}
