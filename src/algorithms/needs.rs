//! The inputs of an algorithm's functions, and the unit of an advantage.

use crate::schema::names;

names! {
    /// A requirement of an estimator or a loss.
    #[derive(Hash)]
    pub enum AlgorithmNeed {
        /// Values of a critic.
        Critic = "critic",
        /// Log-probabilities under the reference policy.
        Reference = "reference",
        /// Groups of at least two trajectories.
        Groups = "groups",
        /// A greedy baseline rollout in every group.
        Greedy = "greedy",
        /// The observation of each step.
        Anchors = "anchors",
        /// Log-probabilities of the sampled tokens before the update.
        Logp = "logp",
        /// The sum of squared probabilities over the vocabulary at each sampled token.
        Squares = "squares",
        /// Named parts of the reward.
        Parts = "parts",
        /// All tokens of a mini-batch at once: statistics that micro-batches would change.
        WholeBatch = "whole_batch",
    }
}

impl AlgorithmNeed {
    /// The needs that a function `advantage` may declare.
    pub(super) const OF_FUNCTIONS: [Self; 6] =
        [Self::Groups, Self::Greedy, Self::Anchors, Self::Logp, Self::Squares, Self::Parts];

    /// The part of a recipe that provides it; `None` for parts that every run has.
    pub fn words(self) -> Option<&'static str> {
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

names! {
    /// The unit that one advantage belongs to.
    #[derive(Default)]
    pub enum Level {
        #[default]
        Trajectory = "trajectory",
        Step = "step",
        Token = "token",
    }
}
