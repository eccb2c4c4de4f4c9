//! GDPO: group reward-decoupled normalisation (arXiv:2601.05242). Each named part of the reward is
//! normalised separately.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::grpo::group_normalized;
use super::result::Advantages;
use super::statistics::{Deviation, EPSILON};
use super::trajectories::ComparedTrajectories;
use super::whiten::{Whiten, whiten_weighted};
use crate::error::Result;
use crate::rl::options::{at_least_zero, within};
use crate::rl::rows::Path;

/// Options of GDPO: each part of the reward is normalised within its group as in GRPO, and the
/// weighted sum `sum_k w_k A_k` is whitened over the sampled tokens of the batch. A part with large
/// numbers then has the same weight as a part with small ones. One advantage per trajectory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Gdpo {
    pub normalize: Deviation,
    pub epsilon: f64,
    pub whiten: Whiten,
    /// Weight of each named part of the reward; parts that are not listed are left out. Without it
    /// every part counts with weight 1.
    pub weights: Option<BTreeMap<String, f64>>,
}

impl Default for Gdpo {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON, whiten: Whiten::Variance, weights: None }
    }
}

impl AdvantageEstimator for Gdpo {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups, Need::Parts]
    }

    fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.epsilon)?;
        let odd = self.weights.iter().flatten().find(|(_, weight)| !weight.is_finite());
        odd.map_or(Ok(()), |(_, weight)| within(name, "weights", *weight, f64::MIN, f64::MAX))
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let parts: Vec<BTreeMap<&str, f64>> = given.paths.iter().map(|path| of_path(given, path)).collect();
        let names: BTreeSet<&str> = match &self.weights {
            Some(weights) => weights.keys().map(String::as_str).collect(),
            None => parts.iter().flat_map(|own| own.keys().copied()).collect(),
        };
        if names.is_empty() && !given.paths.is_empty() {
            let error =
                given.missing(given.paths[0], "`gdpo` normalises the named parts of the reward, and there are none");
            return Err(error.hint("let the reward be a table, such as { correct = 1, format = 0.5 }"));
        }
        let groups = given.groups();
        let mut sums = vec![0.0; given.paths.len()];
        for name in names {
            let mut values = Vec::with_capacity(given.paths.len());
            for (path, own) in given.paths.iter().zip(&parts) {
                let value = own.get(name).copied();
                values.push(value.ok_or_else(|| given.missing(path, &format!("the reward has no part `{name}`")))?);
            }
            let weight = self.weights.as_ref().and_then(|weights| weights.get(name)).copied().unwrap_or(1.0);
            let normalized = group_normalized(&values, &groups, self.normalize, self.epsilon);
            for (sum, own) in sums.iter_mut().zip(normalized) {
                *sum += weight * own;
            }
        }
        let tokens: Vec<f64> = given.paths.iter().map(|path| path.tokens as f64).collect();
        found.put_trajectories(given, &whiten_weighted(&sums, &tokens, self.whiten));
        Ok(())
    }
}

/// The parts of a trajectory, summed over its steps.
fn of_path<'a>(given: &ComparedTrajectories<'a>, path: &Path) -> BTreeMap<&'a str, f64> {
    let mut parts = BTreeMap::new();
    for &row in &path.rows {
        for (name, value) in &given.batch.rows[row].parts {
            *parts.entry(name.as_str()).or_default() += value;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use crate::rl::advantages::Estimator;
    use crate::rl::rows::StepRow;

    fn row(trajectory: u64, correct: f64, style: f64) -> StepRow {
        let parts = [("correct".to_owned(), correct), ("style".to_owned(), style)].into();
        StepRow { parts, ..StepRow::new(0, trajectory, 0, 1, correct + style) }
    }

    #[test]
    fn the_closed_form() {
        // Two trajectories: a part that differs is +-1/sqrt 2 at any scale, one that does not is 0.
        let rows = [row(0, 1.0, 70.0), row(1, 0.0, 90.0)];
        let of = |options: serde_json::Value, rows: &[StepRow]| -> Vec<f64> {
            let estimator = Estimator::new("gdpo", &options).unwrap();
            estimator.estimate(rows, false).unwrap().advantages.concat()
        };
        let plain = json!({ "whiten": "none", "epsilon": 0.0 });
        let half = 0.5_f64.sqrt();
        let close = |found: &[f64], want: [f64; 2]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-15);
        assert!(close(&of(plain, &rows), [0.0, 0.0]));
        let weighed = json!({ "whiten": "none", "epsilon": 0.0, "weights": { "correct": 3.0, "style": 1.0 } });
        assert!(close(&of(weighed, &rows), [2.0 * half, -2.0 * half]));
        let one = json!({ "whiten": "none", "epsilon": 0.0, "weights": { "style": 1.0 } });
        assert!(close(&of(one, &rows), [-half, half]));
        let same = [row(0, 1.0, 5.0), row(1, 0.0, 5.0)];
        let found = of(json!({ "whiten": "none" }), &same);
        assert!((found[0] - half).abs() < 1e-5 && (found[1] + half).abs() < 1e-5, "a part that is equal: {found:?}");
    }

    #[test]
    fn missing_reward_parts_are_named() {
        let refused = |rows: &[StepRow], options: serde_json::Value| {
            Estimator::new("gdpo", &options).unwrap().estimate(rows, false).unwrap_err().to_string()
        };
        let bare = [StepRow::new(0, 3, 0, 1, 1.0), row(4, 1.0, 1.0)];
        assert!(refused(&bare[..1], json!({})).contains("there are none\n  --> trajectory 3"));
        assert!(refused(&bare, json!({})).contains("has no part `correct`\n  --> trajectory 3"));
        let listed = json!({ "weights": { "size": 1.0 } });
        assert!(refused(&bare[1..], listed).contains("has no part `size`"));
    }
}
