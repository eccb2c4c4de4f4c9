//! A recipe's own estimator: its Lua function `advantage`, called once for each group.

use crate::algorithms::{Estimated, GroupInput};
use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::{AdvantageFunction, Advantages};
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
    pub(crate) fn new(script: &Script, function: AdvantageFunction, critic: bool) -> Result<Self> {
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
                member.status = Some(trajectory.status);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::Value;

    use super::*;
    use crate::rl::advantages::Estimator;

    /// Two groups of three trajectories with two steps each, and a greedy baseline in each group.
    fn rows() -> Vec<StepRow> {
        let mut rows = Vec::new();
        for trajectory in 0..6_u64 {
            let group = trajectory % 2;
            for step in 0..2_u64 {
                let value = (7 * trajectory + 3 * step) as f64 % 5.0;
                let tokens = 2 + (trajectory + step) as usize % 3;
                rows.push(StepRow {
                    logp_old: vec![-0.1 * (value + 1.0); tokens],
                    sum_pi_squared: vec![0.5; tokens],
                    parts: [("right".to_owned(), value), ("short".to_owned(), 1.0 / (value + 1.0))].into(),
                    anchor: Some(format!("room {}", (trajectory + step) % 3)),
                    terminated: step == 1,
                    ..StepRow::new(group, trajectory, step, tokens, value)
                });
            }
        }
        rows.extend((0..2).map(|group| StepRow { greedy: true, ..StepRow::new(group, 10 + group, 0, 1, 1.5) }));
        rows
    }

    #[test]
    fn a_copy_of_an_estimator_gives_the_same_advantages() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("a.lua");
        let text = "return r1.recipe { reward = function() return 0 end, trainer = r1.trainer { algorithm = require('mine') } }";
        std::fs::write(&recipe, text).unwrap();
        for file in crate::algorithms::all().iter().filter(|file| file.advantage) {
            std::fs::write(dir.path().join("mine.lua"), file.source).unwrap();
            let script = Script::load(&recipe, &[]).unwrap();
            let function = AdvantageFunction::of(script.declared.as_ref().unwrap(), &script.advantage_options);
            let copied = ScriptEstimator::new(&script, function, false).unwrap().estimate(&rows(), &[]).unwrap();
            let published = Estimator::new(file.name, &Value::Null).unwrap().estimate(&rows(), false).unwrap();
            assert_eq!(copied, published, "{}", file.name);
            assert!(copied.advantages.concat().iter().any(|advantage| *advantage != 0.0), "{}", file.name);
        }
    }
}
