//! The options of each estimator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::group::{Deviation, EPSILON};
use super::sequence::Whiten;

/// Step-level GAE: a step is one decision (Agent-R1's default).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gae {
    pub gamma: f64,
    pub lambda: f64,
    /// After a truncated trajectory V is the critic's value of the next observation (`next_value`), not 0.
    pub bootstrap: bool,
    pub whiten: Whiten,
}

impl Default for Gae {
    fn default() -> Self {
        Self { gamma: 1.0, lambda: 1.0, bootstrap: true, whiten: Whiten::Std }
    }
}

/// GAE over sampled tokens, across the steps of a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GaeToken {
    pub gamma: f64,
    pub lambda: f64,
    pub bootstrap: bool,
    pub whiten: Whiten,
}

impl Default for GaeToken {
    fn default() -> Self {
        Self { gamma: 1.0, lambda: 1.0, bootstrap: true, whiten: Whiten::Variance }
    }
}

/// GAE over steps, then over the tokens of each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GaeBilevel {
    /// Discount from step to step.
    pub gamma_turn: f64,
    /// Discount from token to token.
    pub gamma: f64,
    pub lambda: f64,
    pub bootstrap: bool,
    pub whiten: Whiten,
}

impl Default for GaeBilevel {
    fn default() -> Self {
        Self { gamma_turn: 0.95, gamma: 1.0, lambda: 1.0, bootstrap: true, whiten: Whiten::Variance }
    }
}

/// GRPO, and Dr. GRPO with `normalize = "none"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grpo {
    pub normalize: Deviation,
    pub epsilon: f64,
}

impl Default for Grpo {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON }
    }
}

/// REINFORCE++ over token rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReinforcePp {
    pub gamma: f64,
    pub whiten: Whiten,
}

impl Default for ReinforcePp {
    fn default() -> Self {
        Self { gamma: 1.0, whiten: Whiten::Variance }
    }
}

/// REINFORCE++ with a group baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReinforcePpBaseline {
    pub whiten: Whiten,
}

impl Default for ReinforcePpBaseline {
    fn default() -> Self {
        Self { whiten: Whiten::Variance }
    }
}

/// ReMax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remax {
    /// A token's advantage has the rewards from it on instead of all of them (verl).
    pub reward_to_go: bool,
}

/// GiGPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gigpo {
    pub gamma: f64,
    /// Weight of the step part.
    pub weight: f64,
    /// `mean_std` or `mean`, on both levels.
    pub mode: GigpoMode,
    pub epsilon: f64,
    /// Observations at least this alike are one anchor; without it only equal ones are.
    pub similarity: Option<f64>,
}

impl Default for Gigpo {
    fn default() -> Self {
        Self { gamma: 0.95, weight: 1.0, mode: GigpoMode::MeanStd, epsilon: EPSILON, similarity: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GigpoMode {
    MeanStd,
    Mean,
}

/// RAPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rapo {
    pub normalize: Deviation,
    pub epsilon: f64,
    pub threshold: f64,
    pub margin: f64,
    pub bonus: f64,
}

impl Default for Rapo {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON, threshold: 1.0, margin: 0.5, bonus: 0.1 }
    }
}

/// GPG.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpg {
    pub f_norm: f64,
}

impl Default for Gpg {
    fn default() -> Self {
        Self { f_norm: 1.0 }
    }
}

/// MaxRL.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaxRl {
    pub epsilon: f64,
}

impl Default for MaxRl {
    fn default() -> Self {
        Self { epsilon: EPSILON }
    }
}

/// Advantages where trajectories part, see [`super::tree_advantages`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tree {
    /// Share of the comparison with the state that was left; the rest is the comparison with the whole group.
    pub local: f64,
    pub normalize: Deviation,
    pub epsilon: f64,
}

impl Default for Tree {
    fn default() -> Self {
        Self { local: 0.5, normalize: Deviation::Std, epsilon: EPSILON }
    }
}

/// For estimators without options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plain {}

/// GDPO, see `parts.rs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gdpo {
    pub normalize: Deviation,
    pub epsilon: f64,
    pub whiten: Whiten,
    /// Weight of each named part of the reward; parts that are not listed are left out. Without it every part counts with
    /// weight 1.
    pub weights: Option<BTreeMap<String, f64>>,
}

impl Default for Gdpo {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON, whiten: Whiten::Variance, weights: None }
    }
}

/// The optimal token baselines, see `token_baseline.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenBaseline {
    /// No baseline for the tokens of a group's longest trajectory that lie beyond the end of the second longest.
    pub zero_tail: bool,
    /// Added to the sum of weights.
    pub epsilon: f64,
}

impl Default for TokenBaseline {
    fn default() -> Self {
        Self { zero_tail: true, epsilon: 1e-8 }
    }
}
