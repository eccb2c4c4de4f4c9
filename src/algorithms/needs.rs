//! The inputs of an algorithm's functions, and the unit of an advantage.

/// A requirement of an estimator or a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmNeed {
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

impl AlgorithmNeed {
    /// The needs of functions `advantage`, by their names in `needs`.
    pub(super) const NAMED: [(&str, Self); 6] = [
        ("groups", Self::Groups),
        ("greedy", Self::Greedy),
        ("anchors", Self::Anchors),
        ("logp", Self::Logp),
        ("squares", Self::Squares),
        ("parts", Self::Parts),
    ];

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

/// The unit that one advantage belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Trajectory,
    Step,
    Token,
}

impl Level {
    /// The levels by their names in `level`.
    pub(super) const NAMED: [(&str, Self); 3] =
        [("trajectory", Self::Trajectory), ("step", Self::Step), ("token", Self::Token)];
}
