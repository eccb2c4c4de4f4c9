//! Options of every loss: the aggregation of token losses, and the KL and entropy terms.

use serde::{Deserialize, Serialize};

use crate::config::LossAgg;
use crate::rl::kl::KlKind;

/// The unit that counts as a sequence, for ratios and means over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Trajectory,
    Step,
}

/// Options of every loss, in addition to its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    pub loss_agg: LossAgg,
    /// The unit 'seq' of `loss_agg`.
    pub seq: Unit,
    /// The unit of a sequence ratio (`gspo`, `pspo`, `luspo`, `geo_mean`, `vespo`).
    pub ratio_over: Unit,
    /// The divisor of seq-mean-token-sum-norm; without it the longest sequence of the mini-batch.
    pub horizon: Option<f64>,
    /// Weight of KL(policy || reference), 0 is off.
    pub kl_coef: f64,
    pub kl: KlKind,
    /// The value of `kl` with the gradient of k2.
    pub kl_straight_through: bool,
    /// KL times the token ratio, an unbiased gradient off policy (TRL's default).
    pub kl_times_ratio: bool,
    /// Weight of the entropy bonus, 0 is off.
    pub entropy_coef: f64,
}

/// The terms of most losses.
pub(in crate::rl) const TERMS: Terms = Terms {
    loss_agg: LossAgg::TokenMean,
    seq: Unit::Trajectory,
    ratio_over: Unit::Step,
    horizon: None,
    kl_coef: 0.0,
    kl: KlKind::K3,
    kl_straight_through: false,
    kl_times_ratio: false,
    entropy_coef: 0.0,
};
