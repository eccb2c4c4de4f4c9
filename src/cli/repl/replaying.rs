//! Stored trajectories, and replays under another version of the script.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;

use super::session::{ReplSession, Start, console};
use crate::cli::recorded::{Id, RecordedRun};
use crate::error::{Error, Kind, Result};
use crate::load::Loaded;
use crate::mdp::{Split, Trajectory};
use crate::rollout;
use crate::script::{Record, Strictness};
use crate::telemetry::signed;

impl ReplSession {
    /// Opens a stored trajectory: `RUN:ID[:STEP]`.
    pub(super) fn replay(&mut self, location: &str) -> Result<()> {
        let FoundTrajectory { mut recorded, trajectory, step } =
            FoundTrajectory::new(location, &self.opening.runs_dir, &self.opening.overrides)?;
        if self.opening.agent.is_none() {
            let loaded = recorded.script_of(&trajectory, &self.reporter)?;
            let max_context = recorded.run.max_context();
            let loaded = Loaded::with(loaded.script.clone(), Arc::clone(&loaded.renderer), max_context)?;
            self.console = console(&loaded, &self.terminal)?;
            self.loaded = Rc::new(loaded);
        }
        let last = trajectory.steps.len().max(1);
        if step.is_some_and(|step| step == 0 || step > last) {
            return Err(Error::new(Kind::Usage, format!("the trajectory has steps 1 to {last}")));
        }
        let start = Start { split: trajectory.split, row: None, task: trajectory.task.clone(), seed: trajectory.seed };
        let record = Record::replay(trajectory.record.clone(), Strictness::Live);
        let end = match &trajectory.error {
            Some(error) => format!("{}: {}", trajectory.status.name(), error.message),
            None => format!("{}, reward {}", trajectory.status.name(), signed(trajectory.total_reward())),
        };
        let count = trajectory.steps.len();
        let text = format!("{}: {count} step{}, {end}", trajectory.id, if count == 1 { "" } else { "s" });
        self.terminal.result("trajectory", &text, || {
            json!({
                "id": trajectory.id, "steps": count, "status": trajectory.status.name(),
                "reward": trajectory.total_reward(), "error": trajectory.error_text(), "error_fields": trajectory.error,
            })
        })?;
        let quiet = step.unwrap_or(last) - 1;
        self.recorded = Some(trajectory);
        self.begin(start, &record)?;
        self.show_beginning()?;
        for _ in 0..quiet {
            self.recorded_step()?;
        }
        if count > 0 {
            self.terminal.note(&format!(":step plays the recorded reply of step {}", quiet + 1));
        }
        Ok(())
    }

    /// Reloads the script's file and replays the session under it.
    pub(super) fn reload(&mut self) -> Result<()> {
        let Some(agent) = self.opening.agent.as_ref().filter(|agent| agent.is_file()) else {
            return Err(Error::new(Kind::Usage, "this is the script as the run kept it")
                .hint("r1 repl SCRIPT --replay … plays it under a file that can be changed"));
        };
        let (script, file) = (agent.open(&self.opening.overrides)?.script, agent.given());
        let loaded = if self.loaded.stands_in {
            Loaded::new(script, &self.reporter)?
        } else {
            Loaded::with(script, Arc::clone(&self.loaded.renderer), self.loaded.max_context)?
        };
        self.terminal.result("script", &format!("{} loaded", file.display()), || json!(file))?;
        self.replace(loaded)
    }

    /// Switches to another version of the script: every branch is replayed.
    pub(super) fn replace(&mut self, loaded: Loaded) -> Result<()> {
        let fresh = console(&loaded, &self.terminal)?;
        let kept = self.console.breakpoints();
        self.console = fresh;
        self.loaded = Rc::new(loaded);
        for stop in kept {
            if self.console.set_breakpoint(&stop.to_string(), stop.trace).is_err() {
                let text = format!("the breakpoint at {stop} is gone");
                self.terminal.item("warnings", &text, || json!(text))?;
            }
        }
        let (Some(start), current) = (self.start.clone(), self.current) else { return Ok(()) };
        let old = std::mem::take(&mut self.branches);
        let mut all = Vec::new();
        let several = old.len() > 1;
        for branch in old {
            if several && !self.terminal.is_json() {
                self.terminal.result("", &format!("branch {}", branch.name), || json!(null))?;
            }
            let played = branch.attempt.trajectory().steps.clone();
            let record = Record::replay(branch.attempt.state().record().exchanges(), Strictness::Live);
            self.begin(start.clone(), &record)?;
            self.branches[0].name = branch.name;
            for step in played {
                if self.ready().is_err() {
                    break;
                }
                // The first steps of other branches are not shown.
                self.act(rollout::completion(&step), None)?;
            }
            all.push(self.branches.remove(0));
        }
        self.branches = all;
        self.current = current;
        self.bind()
    }
}

/// A stored trajectory that a person names.
pub(super) struct FoundTrajectory {
    pub(super) recorded: RecordedRun,
    pub(super) trajectory: Trajectory,
    /// Counted from 1.
    step: Option<usize>,
}

impl FoundTrajectory {
    /// Finds `RUN:ID[:STEP]`.
    pub(super) fn new(location: &str, runs_dir: &Path, overrides: &[String]) -> Result<Self> {
        let (run, id, step) = place_of(location)?;
        let recorded = RecordedRun::open(&run, runs_dir, None, overrides.to_vec())?;
        let ids = [id];
        let mut trajectories = Vec::new();
        for step in recorded.steps(Split::Train, &ids, 0)? {
            trajectories.append(&mut recorded.trajectories(step, &ids)?);
        }
        let count = trajectories.len();
        match trajectories.pop() {
            Some(trajectory) if count == 1 => Ok(Self { recorded, trajectory, step }),
            _ => Err(Error::new(Kind::Usage, format!("`{location}` names {count} trajectories"))
                .hint("name one, as in runs/retool:12-3-0")),
        }
    }
}

/// The run of `RUN:ID[:STEP]`.
pub(super) fn run_of(location: &str) -> Result<PathBuf> {
    place_of(location).map(|(run, ..)| run)
}

/// `runs/retool:12-3-0:2`
fn place_of(text: &str) -> Result<(PathBuf, Id, Option<usize>)> {
    let wrong = || {
        Error::new(Kind::Usage, format!("`{text}` must be RUN:ID or RUN:ID:STEP")).hint("as in runs/retool:12-3-0:2")
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (run, id, step) = match parts[..] {
        [run, id] => (run, id, None),
        [run, id, step] => (run, id, Some(step.parse().map_err(|_| wrong())?)),
        _ => return Err(wrong()),
    };
    Ok((PathBuf::from(run), id.parse().map_err(|_| wrong())?, step))
}
