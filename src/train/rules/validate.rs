//! Validation of all settings of a recipe, before anything runs.

use serde_json::json;

use super::objective::Objective;
use super::refusals;
use super::unused::unused_settings;
use crate::config::{Learner, Settings, Sft, Trainer, check_ranges};
use crate::error::{Error, Kind, Result};
use crate::rl::advantages::AlgorithmNeed;
use crate::script::Script;

/// The validated trainer of a recipe for reinforcement learning.
#[derive(Clone, Debug)]
pub struct ValidatedTrainer {
    pub learner: Learner,
    pub objective: Objective,
    /// Whether its loop has a critic.
    pub critic: bool,
    /// Warnings about settings of the recipe that an override has made useless.
    pub warnings: Vec<Error>,
}

/// Validates the trainer of a recipe for reinforcement learning. Contradictions and unused settings
/// are refused.
///
/// # Errors
/// `Kind::Script` or `Kind::Usage` names the setting and the reason.
pub fn validate(script: &Script) -> Result<ValidatedTrainer> {
    let &Trainer::Rl { ref learner, critic } = &script.settings.trainer else {
        return Err(
            Error::new(Kind::Usage, "this recipe's trainer is r1.sft, which has no trajectories").at_path(&script.path)
        );
    };
    let placed = |error| script.placed(error);
    check_ranges(&script.settings).map_err(placed)?;
    let objective = Objective::of(script, learner, critic).map_err(placed)?;
    let recipe = json!({
        "trainer": learner,
        "critic": critic,
        "max_steps": script.settings.environments().iter().map(|(_, env)| env.max_steps).max(),
        "privileged": script.privileged,
        "chosen": script.typed("trainer.algorithm").is_some(),
        "staleness": script.settings.rollout.r#async.staleness,
        "samplers": script.settings.rollout.r#async.ranks,
        "oversample": script.settings.rollout.oversample,
        "greedy": objective.needs(AlgorithmNeed::Greedy),
        "curriculum": script.settings.data.curriculum.has_band() || script.row_weight,
    });
    refusals::check("recipe", &recipe).map_err(placed)?;
    let warnings = unused_settings(script)?;
    Ok(ValidatedTrainer { learner: learner.clone(), objective, critic, warnings })
}

/// Refuses settings of supervised training that are out of range.
pub(crate) fn check_supervised(sft: &Sft) -> Result<()> {
    check_ranges(&Settings { trainer: Trainer::Sft(sft.clone()), ..Settings::default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_at_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lua");
        std::fs::write(
            &path,
            "return r1.recipe {\n  env = r1.env {},\n  reward = print,\n  trainer = r1.grpo { lr = 1 },\n}",
        )
        .unwrap();
        let no = |setting: &str| {
            let error = validate(&Script::load(&path, &[setting.to_owned()]).unwrap()).unwrap_err();
            assert_eq!((error.kind, error.place.as_deref()), (Kind::Usage, Some(setting)));
            assert!(error.message.contains(setting.split('=').next().unwrap()) && error.hint.is_some(), "{error}");
        };
        for setting in [
            "sampling.max_new_tokens=0",
            "sampling.temperature=-1",
            "env.max_steps=0",
            "rollout.concurrency=0",
            "rollout.max_failure_rate=1.5",
            "rollout.max_failure_rate=-1",
            "eval.temperature=-1",
            "limits.cpu=0",
            "limits.wait=-1",
            "limits.memory=0",
            "policy.lora.rank=0",
            "trainer.groups_per_step=0",
        ] {
            no(setting);
        }
        std::fs::write(&path, "return r1.recipe {\n  env = r1.env {},\n  reward = print,\n  trainer = r1.grpo {\n    epochs = 0,\n  },\n}").unwrap();
        let error = validate(&Script::load(&path, &[]).unwrap()).unwrap_err();
        assert!(error.kind == Kind::Script && error.place.unwrap().ends_with("a.lua:5"));
    }
}
