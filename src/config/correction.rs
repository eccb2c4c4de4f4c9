//! Settings of off-policy corrections: `importance = { cap = 2 }`, `rejection = { upper = 0.01 }`.
//! The formulas are in `rl::correction`.

use crate::schema::{choices, section};

section! {
    /// Importance weights for the mismatch between sampler and learner.
    pub struct Importance: "trainer.importance." {
        /// One weight per token or per sequence.
        scope: Scope = Scope::Token;
        /// Truncates weights (TIS).
        cap: f64 = 2.0, range("> 0");
        /// Sets weights outside [floor, cap] to 0 (IcePop).
        floor: Option<f64> = None, range("0 < floor ≤ cap");
        /// Divides weights by their mean.
        normalize: bool = false;
    }
}

section! {
    /// Rejection of tokens or sequences whose mismatch is too large.
    pub struct Rejection: "trainer.rejection." {
        /// Aggregation of the tokens of a sequence; token decides per token.
        measure: Measure = Measure::Mean;
        /// Estimator of the KL divergence that is measured.
        estimate: Estimate = Estimate::K3;
        /// Upper bound of the measure; of the ratio for k1.
        upper: f64 = 0.01, range("> 0");
        /// Lower bound of the ratio for k1; 1 / upper if left out.
        lower: Option<f64> = None, range("> 0");
    }
}

impl Copy for Importance {}

impl Copy for Rejection {}

choices! {
    /// The unit that has an importance weight.
    pub enum Scope {
        /// Each token has its own ratio: biased, little variance.
        Token = "token",
        /// The product over a sequence: unbiased, much variance.
        Sequence = "sequence",
    }
}

choices! {
    /// Aggregation of the tokens of a sequence.
    pub enum Measure {
        /// None: each token is measured.
        Token = "token",
        Sum = "sum",
        Mean = "mean",
        /// The token with the largest mismatch.
        Max = "max",
    }
}

choices! {
    /// Estimators of KL(rollout || learner) at a token, from its log ratio d.
    pub enum Estimate {
        /// `-d`, which may be of either sign: bounded on both sides.
        K1 = "k1",
        /// `d^2 / 2`.
        K2 = "k2",
        /// `exp(d) - 1 - d`.
        K3 = "k3",
    }
}
