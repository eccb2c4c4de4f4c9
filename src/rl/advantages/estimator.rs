//! The trait of advantage estimators.

use std::fmt::Debug;

use super::result::Advantages;
use super::trajectories::ComparedTrajectories;
use crate::error::Result;

/// A requirement of an estimator or a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Values of a critic.
    Critic,
    /// Log-probabilities under the reference policy.
    Reference,
    /// Groups of at least two trajectories.
    Groups,
    /// A greedy baseline rollout in every group.
    Greedy,
    /// The observation of each step.
    Anchors,
    /// Log-probabilities of the sampled tokens before the update.
    Logp,
    /// The sum of squared probabilities over the vocabulary at each sampled token.
    Squares,
    /// Named parts of the reward.
    Parts,
    /// All tokens of a mini-batch at once: statistics that micro-batches would change.
    WholeBatch,
}

impl Need {
    /// The part of a recipe that provides it; `None` for parts that every run has.
    pub(in crate::rl) fn words(self) -> Option<&'static str> {
        match self {
            Self::Critic => Some("a critic (`r1.ppo`)"),
            Self::Reference => Some("a reference policy"),
            Self::Groups => Some("groups"),
            Self::Greedy => Some("a greedy rollout per group"),
            Self::Squares => Some("another forward pass"),
            Self::Parts => Some("named parts of the reward"),
            Self::Anchors | Self::Logp | Self::WholeBatch => None,
        }
    }
}

/// The unit that one advantage belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Trajectory,
    Step,
    Token,
}

/// An advantage estimator: a type whose fields are its options. A script sets them by the names of
/// the fields.
pub(super) trait AdvantageEstimator: Debug + Send + Sync {
    /// Inputs that the host must provide.
    fn needs(&self) -> &'static [Need];

    /// The unit of one of its advantages.
    fn level(&self) -> Level {
        Level::Trajectory
    }

    /// Refuses options outside of their range. `name` is the name of the estimator, for the
    /// message.
    fn check(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Writes the advantages of the compared trajectories, and a critic's targets, into `found`,
    /// which is 0 everywhere.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) names the trajectory that lacks a number that the
    /// estimator needs.
    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()>;
}
