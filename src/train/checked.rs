//! A recipe's settings as a whole, looked at before anything runs.

use super::idle::idle_settings;
use super::objective::{Objective, room_to_branch};
use crate::config::{Learner, Trainer};
use crate::error::{Error, Kind, Result};
use crate::script::Script;

/// How a recipe for reinforcement learning learns.
#[derive(Clone, Debug)]
pub struct Checked {
    pub learner: Learner,
    pub objective: Objective,
    /// Whether its loop has a critic.
    pub critic: bool,
    /// Settings of the recipe that the command line has made void.
    pub warnings: Vec<Error>,
}

/// The learner of a recipe for reinforcement learning; what contradicts itself or does nothing is refused.
///
/// # Errors
/// `Kind::Script` or `Kind::Usage` names the setting and says why it can't be.
pub fn checked(script: &Script) -> Result<Checked> {
    let (learner, critic) = match &script.settings.trainer {
        Trainer::Grpo(learner) => (learner, false),
        Trainer::Ppo(learner) => (learner, true),
        Trainer::Sft(_) => {
            return Err(Error::new(Kind::Usage, "this recipe's trainer is r1.sft, which has no trajectories")
                .at_path(&script.path));
        }
    };
    let placed = |error: Error| {
        let key = error
            .message
            .split([' ', ':', '`'])
            .find(|word| word.starts_with("trainer.") || word.starts_with("sampling."));
        let place = key.map_or_else(|| script.path.display().to_string(), |key| script.place_of(key));
        error.at(place)
    };
    let objective = Objective::new(learner, &script.settings.sampling, critic).map_err(placed)?;
    room_to_branch(&script.settings, learner).map_err(placed)?;
    let warnings = idle_settings(script)?;
    Ok(Checked { learner: learner.clone(), objective, critic, warnings })
}
