//! Opens a stored run to replay its trajectories, for `r1 replay`, `r1 rescore` and the REPL.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::error::{Error, Kind, Result, suggest};
use crate::hub::Fetching;
use crate::load::{self, Loaded};
use crate::mdp::{Split, Trajectory};
use crate::rollout::{self, Replayed, Spec};
use crate::script::{Script, Strictness, Worker};
use crate::store::{self, FileVersion, StoredRun};
use crate::telemetry::{Interrupt, Reporter, counted};
use crate::text::{Renderer, Style};
use crate::train::{self, Agent, LoadedAgent};

/// A run with its scripts, which are loaded on first use.
pub(super) struct RecordedRun {
    pub(super) run: StoredRun,
    runtime: Runtime,
    /// Replaces the run's own script.
    other: Option<PathBuf>,
    /// `key=value` of the command line, on top of the run's.
    overrides: Vec<String>,
    loaded: HashMap<String, Rc<Loaded>>,
}

impl RecordedRun {
    /// `other`: a script that replaces the run's own; `overrides`: settings on top of the run's.
    pub(super) fn open(run: &Path, runs_dir: &Path, other: Option<PathBuf>, overrides: Vec<String>) -> Result<Self> {
        let runtime = Worker::runtime()?;
        Ok(Self { run: StoredRun::open(run, runs_dir)?, runtime, other, overrides, loaded: HashMap::new() })
    }

    /// The selected steps: those named by `ids`, or the last `last` ones of a split (0: all).
    pub(super) fn steps(&self, split: Split, ids: &[Id], last: usize) -> Result<Vec<StoredStep>> {
        if ids.is_empty() {
            let all = self.steps_of(split)?;
            let from = if last == 0 { 0 } else { all.len().saturating_sub(last) };
            return Ok(all[from..].iter().map(|step| (split, *step)).collect());
        }
        let mut steps = Vec::new();
        for split in Split::ALL {
            let ids: Vec<&Id> = ids.iter().filter(|id| id.split == split).collect();
            if ids.is_empty() {
                continue;
            }
            let all = self.steps_of(split)?;
            if let Some(step) = ids.iter().filter_map(|id| id.step).find(|step| !all.contains(step)) {
                let range = format!("{} to {}", all[0], all[all.len() - 1]);
                let evaluations = counted(all.len(), "evaluation", "evaluations");
                let (missing, present) = match split {
                    Split::Train => ("step", "steps".to_owned()),
                    Split::Eval => ("evaluation after step", format!("{evaluations} of steps")),
                };
                return Err(Error::new(Kind::Usage, format!("the run has no {missing} {step}"))
                    .hint(format!("it has {present} {range}")));
            }
            let named = all.into_iter().filter(|step| ids.iter().any(|id| id.covers((split, *step))));
            steps.extend(named.map(|step| (split, step)));
        }
        Ok(steps)
    }

    /// All steps of a split; at least one.
    fn steps_of(&self, split: Split) -> Result<Vec<u64>> {
        let all = self.run.steps(split)?;
        if !all.is_empty() {
            return Ok(all);
        }
        Err(match split {
            Split::Train => Error::new(Kind::Store, "the run has no trajectories yet"),
            Split::Eval => Error::new(Kind::Store, "the run has no stored trajectories of evaluations").hint(
                "a run evaluates on data.eval; eval.store sets how many trajectories of an evaluation are stored",
            ),
        }
        .at_path(self.run.path()))
    }

    /// The trajectories of a step named by `ids`; all of them if `ids` is empty.
    pub(super) fn trajectories(&self, step: StoredStep, ids: &[Id]) -> Result<Vec<Trajectory>> {
        let all = self.run.trajectories(step.0, step.1)?;
        if ids.is_empty() {
            return Ok(all);
        }
        let ids: Vec<&Id> = ids.iter().filter(|id| id.covers(step)).collect();
        for id in &ids {
            if !all.iter().any(|trajectory| id.names(trajectory)) {
                let ids = all.iter().map(|trajectory| trajectory.id.as_str());
                return Err(Error::new(Kind::Usage, format!("the run has no trajectory {}", id.text))
                    .hint(suggest(&id.text, ids)));
            }
        }
        Ok(all.into_iter().filter(|trajectory| ids.iter().any(|id| id.names(trajectory))).collect())
    }

    /// The script of a trajectory, or its replacement.
    pub(super) fn script_of(&mut self, trajectory: &Trajectory, reporter: &Reporter) -> Result<Rc<Loaded>> {
        let key = if self.other.is_some() { String::new() } else { trajectory.script_hash.clone() };
        if let Some(loaded) = self.loaded.get(&key) {
            return Ok(Rc::clone(loaded));
        }
        let agent = Agent::of_version(&self.run, &trajectory.script_hash, self.other.as_deref())?;
        // A replay starts no servers: their tools are those that the run has stored.
        let LoadedAgent { script, left_out, .. } = agent.open_as_recorded(&self.overrides)?;
        if self.other.is_none() {
            unchanged(agent.resources(), &script.resources())?;
        }
        if !left_out.is_empty() {
            let path = script.path.display();
            reporter.warn(&format!("settings of the run that {path} does not know: {}", left_out.join(" ")));
        }
        let renderer = self.renderer(&script, reporter)?;
        let loaded = Rc::new(Loaded::with(script, renderer, self.run.max_context())?);
        self.loaded.insert(key, Rc::clone(&loaded));
        Ok(loaded)
    }

    /// The tokenizer and template of the run's checkpoints, or of the model it started from.
    fn renderer(&self, script: &Script, reporter: &Reporter) -> Result<Arc<Renderer>> {
        let fetching = Fetching { reporter, interrupt: None };
        if !script.settings.policy.api_base.is_empty() {
            return train::counting_renderer(script, fetching);
        }
        let style = &script.style()?;
        if let Some((_, checkpoint)) = store::latest_checkpoint(self.run.path())?
            && checkpoint.join("tokenizer.json").is_file()
        {
            return self.with_images(&checkpoint, style);
        }
        self.with_images(&load::model_dir(&script.settings.policy.model, fetching)?, style)
    }

    /// The tokenizer and template of a model directory, with the images of the run.
    fn with_images(&self, dir: &Path, style: &Style) -> Result<Arc<Renderer>> {
        let renderer = Renderer::load_styled(dir, style)?;
        load::attach_images(&renderer, dir)?;
        if let Some(images) = renderer.images() {
            images.read_from(&self.run.path().join(store::IMAGES))?;
        }
        Ok(Arc::new(renderer))
    }

    pub(super) fn replay(&self, loaded: &Loaded, trajectory: &Trajectory, strictness: Strictness) -> Result<Replayed> {
        let spec = Spec::of_recorded(trajectory, &loaded.script.settings, self.run.max_context());
        let replayed = self.runtime.block_on(rollout::replay(loaded.stage(), trajectory, spec, strictness));
        // The log was already shown when the script ran.
        drop(loaded.worker.take_log());
        replayed
    }
}

/// Refuses resources that differ from the run's.
fn unchanged(recorded: &[FileVersion], now: &[FileVersion]) -> Result<()> {
    let differs = |now: &&FileVersion| recorded.iter().any(|old| old.path == now.path && old.sha256 != now.sha256);
    match now.iter().find(differs) {
        None => Ok(()),
        Some(file) => Err(Error::new(Kind::Data, "the resource has changed since the run read it")
            .at_path(&file.path)
            .hint("--script FILE runs the script with the current resource")),
    }
}

/// A training step, or the evaluation after it.
pub(super) type StoredStep = (Split, u64);

/// Names trajectories: `12` all of a step, `12-3` all of a group, `12-3-0` one; `eval` the
/// trajectories of all evaluations, `eval-12` of the evaluation after step 12, `eval-12-3-0` one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Id {
    text: String,
    split: Split,
    step: Option<u64>,
    group: Option<u64>,
    sample: Option<u32>,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Id {
    fn covers(&self, (split, step): StoredStep) -> bool {
        self.split == split && self.step.is_none_or(|wanted_step| wanted_step == step)
    }

    fn names(&self, trajectory: &Trajectory) -> bool {
        self.group.is_none_or(|group| group == trajectory.group)
            && self.sample.is_none_or(|sample| sample == trajectory.sample)
    }
}

/// An argument after a run: trajectories, or a setting.
#[derive(Clone, Debug)]
pub(super) enum IdOrSetting {
    Id(Id),
    Setting(String),
}

impl std::str::FromStr for IdOrSetting {
    type Err = InvalidId;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidId> {
        if text.contains('=') { Ok(Self::Setting(text.to_owned())) } else { text.parse().map(Self::Id) }
    }
}

/// A text that names no trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be STEP, STEP-GROUP or STEP-GROUP-SAMPLE, such as 12-3-0, or for evaluations eval-12-3-0")]
pub(super) struct InvalidId;

impl std::str::FromStr for Id {
    type Err = InvalidId;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidId> {
        let all = |split| Self { text: text.to_owned(), split, step: None, group: None, sample: None };
        let (split, numbers) = match text.strip_prefix("eval") {
            Some("") => return Ok(all(Split::Eval)),
            Some(rest) => (Split::Eval, rest.strip_prefix('-').ok_or(InvalidId)?),
            None => (Split::Train, text),
        };
        let mut parts = numbers.split('-').map(str::parse::<u64>);
        let mut next = || parts.next().transpose().map_err(|_| InvalidId);
        let step = Some(next()?.ok_or(InvalidId)?);
        let (group, sample) = (next()?, next()?);
        if next()?.is_some() {
            return Err(InvalidId);
        }
        Ok(Self { step, group, sample: sample.map(|sample| sample as u32), ..all(split) })
    }
}

/// Fails after Ctrl-C.
pub(super) fn stop_if_interrupted(interrupt: Interrupt) -> Result<()> {
    if interrupt.is_set() { Err(Error::new(Kind::Interrupted, "stopped")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_name_a_step_a_group_or_one() {
        let id = |text: &str| text.parse::<Id>();
        assert_eq!((id("12").unwrap().step, id("12").unwrap().group), (Some(12), None));
        let one = id("12-3-0").unwrap();
        assert_eq!((one.split, one.step, one.group, one.sample), (Split::Train, Some(12), Some(3), Some(0)));
        let held_out = id("eval-12-3-0").unwrap();
        assert_eq!((held_out.split, held_out.step, held_out.group), (Split::Eval, Some(12), Some(3)));
        assert!(id("eval").unwrap().covers((Split::Eval, 7)) && !id("eval").unwrap().covers((Split::Train, 7)));
        for wrong in ["", "x", "1-", "1-2-3-4", "-1", "1--2", "eval-", "eval1", "eval-x", "evaluation"] {
            assert_eq!(id(wrong), Err(InvalidId), "{wrong}");
        }
    }
}
