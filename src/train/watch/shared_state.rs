//! Detects state that trajectories share through locals of the script, in the first steps of a run.
//! The warning is given once.
//!
//! A trajectory is a function of its task, its seed, its responses and its recorded external calls.
//! Two trajectories of each of the first steps are run again in a separate virtual machine, from
//! their records; a difference is caused by state of other trajectories. Neither the policy nor
//! external services are called.

use std::sync::Arc;

use crate::error::Result;
use crate::mdp::{Status, Trajectory};
use crate::rollout::{ReplayMismatch, Spec, Stage, first_difference, replay};
use crate::script::{Script, Strictness, Worker};
use crate::telemetry::Reporter;
use crate::text::Renderer;

/// Steps whose trajectories are checked.
const STEPS: usize = 3;

/// The progress of the checks.
#[derive(Debug, Default)]
pub(crate) struct SharedStateCheck {
    steps: usize,
    reported: bool,
}

impl SharedStateCheck {
    /// Warns if a trajectory of the step depended on others.
    pub(crate) fn check(
        &mut self,
        trajectories: &[Trajectory],
        script: &Script,
        renderer: &Arc<Renderer>,
        max_context: usize,
        reporter: &Reporter,
    ) {
        if self.reported || self.steps == STEPS {
            return;
        }
        self.steps += 1;
        // Trajectories that can't be replayed are reported elsewhere.
        if let Ok(Some(warning)) = shared(trajectories, script, renderer, max_context) {
            self.reported = true;
            reporter.warn(&warning);
        }
    }
}

fn shared(
    trajectories: &[Trajectory],
    script: &Script,
    renderer: &Arc<Renderer>,
    max_context: usize,
) -> Result<Option<String>> {
    // Trajectories that a limit or the user ended depend on the clock.
    let ended = |it: &Trajectory| matches!(it.status, Status::Terminated | Status::Truncated);
    let fits = |it: &&Trajectory| ended(it) && it.fork.is_none() && it.script_hash == script.hash;
    let fitting: Vec<&Trajectory> = trajectories.iter().filter(fits).collect();
    let (Some(last), middle) = (fitting.last(), fitting.get(fitting.len() / 2)) else { return Ok(None) };
    let worker = Worker::new(&script.without_log_sink(), Some(Arc::clone(renderer)))?;
    let stage = Stage { worker: &worker, renderer };
    let runtime = Worker::runtime()?;
    for trajectory in middle.into_iter().chain([last]) {
        let spec = Spec::of_recorded(trajectory, &script.settings, max_context);
        let again = runtime.block_on(replay(stage, trajectory, spec, Strictness::Exact))?;
        if let Some(difference) = first_difference(stage.renderer, trajectory, &again) {
            return Ok(Some(describe(trajectory, &difference, &worker)));
        }
    }
    Ok(None)
}

fn describe(trajectory: &Trajectory, difference: &ReplayMismatch, worker: &Worker) -> String {
    let short = |text: &str| text.chars().take(80).collect::<String>().replace('\n', "⏎");
    let (was, now) = (short(&difference.recorded), short(&difference.now));
    let function = match (difference.step, difference.field) {
        (None, _) => "reward",
        (Some(1), "prompt" | "prompt ids") => "reset",
        _ => "step",
    };
    let location = worker.place_of(function).or_else(|| worker.place_of("step"));
    let location = location.map(|location| format!("\n  --> {location}")).unwrap_or_default();
    format!(
        "trajectories share state: {} has another result when it runs alone: {difference} was {was} and is {now}{location}\n  \
         hint: locals outside of the functions that change (counters, caches) are shared by all trajectories of a worker; \
         what a trajectory depends on belongs into its state (reported once; r1 check finds more)",
        trajectory.id
    )
}
