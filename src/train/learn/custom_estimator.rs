//! A recipe's own estimator: its Lua function `advantage`, called once for each group.

use crate::algorithms::{Estimated, GroupInput, Level};
use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::{AdvantageFunction, Advantages, Whiten};
use crate::rl::rows::StepRow;
use crate::script::{Script, Worker};

/// The recipe's function `advantage` in a virtual machine that stays for the whole run. A changed
/// script gets a new one.
///
/// The function may not keep state that changes its results: a resumed run starts with a new
/// virtual machine, and its weights would differ. Therefore the first group is estimated again
/// after every batch, and a different result is an error.
pub struct ScriptEstimator {
    worker: Worker,
    function: AdvantageFunction,
    critic: bool,
    probe: Option<Probe>,
}

/// A batch with the result of its first group, to check that the function returns the same again.
#[derive(Debug)]
struct Probe {
    batch: Vec<GroupInput>,
    result: Estimated,
}

impl ScriptEstimator {
    /// The function of `script`; `critic`: whether it must also return the critic's targets.
    pub(crate) fn new(script: &Script, critic: bool) -> Result<Self> {
        let function = AdvantageFunction { needs: Vec::new(), level: Level::Step, whiten: Whiten::None };
        Ok(Self { worker: Worker::new(script, None)?, function, critic, probe: None })
    }

    /// Whether the virtual machine uses so much memory that a new one should replace it.
    pub(crate) fn needs_replacement(&self) -> bool {
        self.worker.needs_replacement()
    }

    /// Advantages (and a critic's targets). The numbers of trajectories in `steps` are indices of
    /// `trajectories`.
    ///
    /// # Errors
    /// `Kind::Script` with the place in the script where the function fails, returns something that
    /// is not allowed, or gives different numbers for the same group; `Kind::Numeric` names the
    /// trajectory whose number is NaN or infinite.
    pub(crate) fn estimate(&mut self, steps: &[StepRow], trajectories: &[Trajectory]) -> Result<Advantages> {
        let Self { worker, function, critic, probe } = self;
        let advantages = function.estimate(steps, |batch| {
            for member in batch.iter_mut().flat_map(|group| &mut group.members) {
                let Some(trajectory) = trajectories.get(member.number as usize) else { continue };
                member.status = trajectory.status;
                member.parts.clone_from(&trajectory.reward_parts);
                member.task.clone_from(&trajectory.task);
            }
            let results = worker.advantages(batch, batch.len())?;
            if *critic && results.iter().any(|result| result.returns.is_none()) {
                return Err(worker.broken_advantage(
                    "advantage must return a second list, of returns by step: what the critic should have predicted",
                ));
            }
            if let Some(result) = results.first() {
                probe.get_or_insert_with(|| Probe { batch: batch.clone(), result: result.clone() });
            }
            Ok(results)
        })?;
        advantages.finite(steps).map_err(|error| {
            let location = self.worker.broken_advantage("").place.unwrap_or_else(|| "the recipe".to_owned());
            let hint = format!("the function `advantage` of {location} returned it: look for divisions by zero");
            Error { hint: Some(hint), ..error }
        })?;
        self.check_repeatable()?;
        Ok(advantages)
    }

    /// Refuses a function whose result depends on earlier calls.
    fn check_repeatable(&self) -> Result<()> {
        let Some(Probe { batch, result }) = &self.probe else { return Ok(()) };
        if self.worker.advantages(batch, 1)?.first().is_some_and(|again| again.is_same(result)) {
            return Ok(());
        }
        let message = "advantage returned different numbers for the same group in a second call";
        Err(self.worker.broken_advantage(message).hint(
            "it may not keep state between calls, because a resumed run does not have it (docs/guide/your-own-algorithm.md)",
        ))
    }
}
