//! The policy that a run trains, with everything that its updates change or compare with.

use std::rc::Rc;
use std::sync::Arc;

use super::critic::TrainedCritic;
use super::custom_estimator::ScriptEstimator;
use super::score::Reference;
use super::weights::trained;
use crate::adamw::AdamW;
use crate::error::Result;
use crate::model::Model;
use crate::rl::ema::Ema;
use crate::rl::kl::KlController;
use crate::rl::rewards::{ReturnScale, RewardShaping};
use crate::text::Renderer;
use crate::train::rules::objective::Objective;
use crate::train::shards::Shards;

/// The state of learning: what an update reads and changes.
pub(crate) struct TrainedPolicy {
    /// The engine samples from the same weights.
    pub(crate) model: Rc<Model>,
    pub(crate) renderer: Arc<Renderer>,
    pub(crate) optimizer: AdamW,
    /// The critic, if the algorithm trains one.
    pub(crate) critic: Option<TrainedCritic>,
    pub(crate) reference: Option<Reference>,
    pub(crate) ema: Option<Ema>,
    pub(crate) kl: KlController,
    /// The running standard deviation of returns, if rewards are divided by it.
    pub(crate) returns: Option<ReturnScale>,
    /// The recipe's function `advantage` in its virtual machine, created on first use.
    pub(crate) custom_estimator: Option<ScriptEstimator>,
    /// How the processes of the run divide micro-batches.
    pub(crate) shards: Shards,
}

impl TrainedPolicy {
    /// Updates the average of the weights after an optimiser step.
    pub(crate) fn average(&mut self) -> Result<()> {
        match &mut self.ema {
            Some(ema) => ema.update(&trained(&self.model)),
            None => Ok(()),
        }
    }

    /// An objective's shaping with the current coefficient of the KL.
    pub(crate) fn shaping(&self, objective: &Objective) -> RewardShaping {
        let mut shaping = objective.shaping.clone();
        if let Some(penalty) = &mut shaping.kl {
            penalty.coef = self.kl.coef();
        }
        shaping
    }
}
