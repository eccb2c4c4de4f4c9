//! GiGPO: GRPO over trajectories plus a comparison of steps with the same observation
//! (arXiv:2505.10978).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::grpo::group_normalized;
use super::reinforce_pp::discounted_returns;
use super::result::Advantages;
use super::similarity::similarity as text_similarity;
use super::statistics::{Deviation, EPSILON, mean};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::{at_least_zero, from_zero_to_one};
use crate::rl::rows::{Path, StepRow};

/// GiGPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Gigpo {
    pub gamma: f64,
    /// Weight of the step part.
    pub weight: f64,
    /// `mean_std` or `mean`, on both levels.
    pub mode: GigpoMode,
    pub epsilon: f64,
    /// Minimum similarity of observations of one anchor state; without it only equal ones share it.
    pub similarity: Option<f64>,
}

impl Default for Gigpo {
    fn default() -> Self {
        Self { gamma: 0.95, weight: 1.0, mode: GigpoMode::MeanStd, epsilon: EPSILON, similarity: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GigpoMode {
    MeanStd,
    Mean,
}

impl AdvantageEstimator for Gigpo {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups, Need::Anchors]
    }

    fn level(&self) -> Level {
        Level::Step
    }

    fn check(&self, name: &str) -> Result<()> {
        from_zero_to_one(name, "gamma", self.gamma)?;
        at_least_zero(name, "weight", self.weight)?;
        at_least_zero(name, "epsilon", self.epsilon)?;
        self.similarity.map_or(Ok(()), |least| from_zero_to_one(name, "similarity", least))
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let deviation = match self.mode {
            GigpoMode::MeanStd => Deviation::Std,
            GigpoMode::Mean => Deviation::None,
        };
        let trajectories = group_normalized(&given.returns(), &given.groups(), deviation, self.epsilon);
        // A decision that several trajectories share is one step; its return is the mean over those
        // trajectories.
        let mut places: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut steps: Vec<(AnchoredStep<'_>, Vec<f64>)> = Vec::new();
        let forked = forked_states(given);
        for path in &given.paths {
            let rewards: Vec<f64> = given.batch.steps(path).map(StepRow::reward).collect();
            let mut before = None;
            for (row, discounted) in given.batch.steps(path).zip(discounted_returns(&rewards, self.gamma)) {
                let decision = row.decision();
                let place = *places.entry(decision).or_insert(steps.len());
                if let Some((_, all)) = steps.get_mut(place) {
                    all.push(discounted);
                } else {
                    let anchor = match (before.and_then(|before| forked.get(&before)), row.anchor.as_deref()) {
                        (Some(state), _) => Anchor::State(*state),
                        (None, Some(seen)) => Anchor::Seen(seen),
                        (None, None) => return Err(given.missing(path, "a step has no `anchor`")),
                    };
                    steps.push((AnchoredStep { group: path.group, anchor, discounted }, vec![discounted]));
                }
                before = Some(decision);
            }
        }
        let worth = |discounted: &[f64]| if let [one] = discounted { *one } else { mean(discounted) };
        let distinct: Vec<AnchoredStep<'_>> =
            steps.iter().map(|(step, all)| AnchoredStep { discounted: worth(all), ..*step }).collect();
        let by_step = anchor_advantages(&distinct, self.similarity, deviation, self.epsilon);
        for (path, trajectory) in given.paths.iter().zip(trajectories) {
            for &i in &path.rows {
                let step = places.get(&given.batch.rows[i].decision()).map_or(0.0, |&place| by_step[place]);
                found.put_row(given.batch.rows, i, trajectory + self.weight * step);
            }
        }
        Ok(())
    }
}

/// The criterion for two states to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anchor<'a> {
    /// The observation of the policy.
    Seen(&'a str),
    /// The same state: a number for each state that trajectories were forked at.
    State(u64),
}

impl<'a> From<&'a str> for Anchor<'a> {
    fn from(seen: &'a str) -> Self {
        Self::Seen(seen)
    }
}

/// The input of GiGPO for a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnchoredStep<'a> {
    pub group: u64,
    pub anchor: Anchor<'a>,
    /// Discounted return from this step on.
    pub discounted: f64,
}

/// The step part of GiGPO (arXiv:2505.10978, eq. 7): each step's discounted return, normalised
/// among the steps of its group that share its anchor. A step whose anchor no other step has gets
/// 0.
///
/// Two anchors are the same if they are equal or, with `similarity`, if their similarity is at
/// least this; each distinct text, in alphabetical order, then joins the first cluster to whose
/// first text it is similar. A state that trajectories were forked at equals only itself.
pub fn anchor_advantages(
    steps: &[AnchoredStep<'_>],
    similarity: Option<f64>,
    deviation: Deviation,
    epsilon: f64,
) -> Vec<f64> {
    let mut distinct: BTreeMap<(u64, Anchor<'_>), u64> = BTreeMap::new();
    for step in steps {
        distinct.entry((step.group, step.anchor)).or_default();
    }
    let mut founders: BTreeMap<u64, Vec<(Anchor<'_>, u64)>> = BTreeMap::new();
    let mut clusters = 0;
    for ((group, anchor), cluster) in &mut distinct {
        let own = founders.entry(*group).or_default();
        let alike = |(founder, _): &&(Anchor<'_>, u64)| match (founder, anchor, similarity) {
            (Anchor::Seen(founder), Anchor::Seen(seen), Some(least)) => text_similarity(founder, seen, least) >= least,
            _ => false,
        };
        *cluster = if let Some((_, cluster)) = own.iter().find(alike) {
            *cluster
        } else {
            clusters += 1;
            own.push((*anchor, clusters));
            clusters
        };
    }
    let clusters: Vec<u64> = steps.iter().map(|step| distinct[&(step.group, step.anchor)]).collect();
    let discounted: Vec<f64> = steps.iter().map(|step| step.discounted).collect();
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    for cluster in &clusters {
        *sizes.entry(*cluster).or_default() += 1;
    }
    let mut advantages = group_normalized(&discounted, &clusters, deviation, epsilon);
    for (advantage, cluster) in advantages.iter_mut().zip(&clusters) {
        if sizes[cluster] == 1 {
            *advantage = 0.0;
        }
    }
    advantages
}

/// The states that trajectories were forked at, by the decision before each, with a number for
/// each.
fn forked_states(given: &ComparedTrajectories<'_>) -> BTreeMap<(u64, u64), u64> {
    let last_shared =
        |path: &&Path| given.batch.steps(path).rev().find(|row| row.shared.is_some()).map(StepRow::decision);
    let decisions: BTreeSet<_> = given.paths.iter().filter_map(last_shared).collect();
    decisions.into_iter().zip(0..).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

    fn step(group: u64, anchor: &str, discounted: f64) -> AnchoredStep<'_> {
        AnchoredStep { group, anchor: anchor.into(), discounted }
    }

    #[test]
    fn a_forked_state_equals_only_itself() {
        let state = |state, discounted| AnchoredStep { group: 0, anchor: Anchor::State(state), discounted };
        let steps = [state(1, 1.0), state(2, 5.0), state(1, 3.0), step(0, "", 7.0)];
        for similarity in [None, Some(0.0)] {
            assert_eq!(anchor_advantages(&steps, similarity, Deviation::None, 1e-6), [-1.0, 0.0, 1.0, 0.0]);
        }
    }

    #[test]
    fn equal_anchors_of_a_group_are_compared() {
        let steps = [step(0, "a", 1.0), step(0, "b", 7.0), step(0, "a", 3.0), step(1, "a", 50.0), step(1, "a", 40.0)];
        assert_eq!(anchor_advantages(&steps, None, Deviation::None, 1e-6), [-1.0, 0.0, 1.0, 5.0, -5.0]);
    }

    #[test]
    fn similar_anchors_are_merged_with_the_option_similarity() {
        let (long, longer) = ("you are in a dark room with a lamp", "you are in a dark room with a lamp.");
        let steps = [step(0, long, 1.0), step(0, longer, 3.0), step(0, "elsewhere", 9.0)];
        assert_eq!(anchor_advantages(&steps, None, Deviation::None, 1e-6), [0.0; 3]);
        assert_eq!(anchor_advantages(&steps, Some(0.95), Deviation::None, 1e-6), [-1.0, 1.0, 0.0]);
    }
}
