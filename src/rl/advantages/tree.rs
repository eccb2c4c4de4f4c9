//! Advantages over a tree: trajectories that share their first steps are compared at their branch
//! points.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::result::Advantages;
use super::statistics::{Deviation, EPSILON, centre, mean, places_of};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::{at_least_zero, from_zero_to_one};
use crate::rl::rows::{Path, StepRow};

/// Advantages at branch points, see [`tree_advantages`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tree {
    /// Weight of the comparison with the state before the step; the rest is the weight of the
    /// comparison with the whole group.
    pub local: f64,
    pub normalize: Deviation,
    pub epsilon: f64,
}

impl Default for Tree {
    fn default() -> Self {
        Self { local: 0.5, normalize: Deviation::Std, epsilon: EPSILON }
    }
}

impl AdvantageEstimator for Tree {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn level(&self) -> Level {
        Level::Step
    }

    fn check(&self, name: &str) -> Result<()> {
        from_zero_to_one(name, "local", self.local)?;
        at_least_zero(name, "epsilon", self.epsilon)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let mut numbers: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let leaf = |path: &&Path| {
            let number = |row: &StepRow| {
                let next = numbers.len() as u64;
                *numbers.entry(row.decision()).or_insert(next)
            };
            let nodes = given.batch.steps(path).map(number).collect();
            Leaf { group: path.group, total: path.total, nodes }
        };
        let leaves: Vec<Leaf> = given.paths.iter().map(leaf).collect();
        let advantages = tree_advantages(&leaves, self.local, self.normalize, self.epsilon);
        for (path, own) in given.paths.iter().zip(advantages) {
            for (&i, advantage) in path.rows.iter().zip(own) {
                found.put_row(given.batch.rows, i, advantage);
            }
        }
        Ok(())
    }
}

/// A leaf of a group's tree: one trajectory.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    pub group: u64,
    /// Sum of its rewards.
    pub total: f64,
    /// Its decisions in order, as numbers: a step that several leaves share has the same number in
    /// each.
    pub nodes: Vec<u64>,
}

/// For each leaf an advantage for each of its steps. The value V of a step is the mean total of the
/// leaves that go through it. Steps that the same leaves go through are one *segment*, and
///
/// `A = (1 - local) (V - V_group) + local (V - V_before)`, divided by the deviation of the group's
/// totals,
///
/// where `V_group` is the mean over all leaves of the group and `V_before` the value of the segment
/// before (`V_group` for the first). `local = 0.5` is the sum of TreeRL (arXiv:2506.11902) without
/// the factor 2; its down-weighting of segments in many samples is not needed here, because a
/// shared step is trained once. `local = 1` compares with the state before the step, as VinePPO
/// (arXiv:2410.01679) does. Without shared steps the result is bitwise that of `group_normalized`.
pub fn tree_advantages(leaves: &[Leaf], local: f64, deviation: Deviation, epsilon: f64) -> Vec<Vec<f64>> {
    let mut advantages: Vec<Vec<f64>> = leaves.iter().map(|leaf| vec![0.0; leaf.nodes.len()]).collect();
    let groups: Vec<u64> = leaves.iter().map(|leaf| leaf.group).collect();
    for places in places_of(&groups).values() {
        let totals: Vec<f64> = places.iter().map(|&i| leaves[i].total).collect();
        let (centre, scale) = centre(&totals, deviation, epsilon);
        let mut through: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for &i in places {
            for node in &leaves[i].nodes {
                through.entry(*node).or_default().push(leaves[i].total);
            }
        }
        for &i in places {
            let (mut before, mut value, mut count) = (centre, centre, totals.len());
            for (node, advantage) in leaves[i].nodes.iter().zip(&mut advantages[i]) {
                let own = &through[node];
                if own.len() < count {
                    (before, count) = (value, own.len());
                }
                value = mean(own);
                let overall = value - centre;
                *advantage = (overall + local * ((value - before) - overall)) / scale;
            }
        }
    }
    advantages
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;
    use crate::rl::advantages::group_normalized;

    fn leaf(total: f64, nodes: &[u64]) -> Leaf {
        Leaf { group: 0, total, nodes: nodes.to_vec() }
    }

    /// Two roots of three and two steps; one branch after the first step of the first, one after
    /// its second.
    fn forest() -> Vec<Leaf> {
        vec![leaf(1.0, &[1, 2, 3]), leaf(0.0, &[1, 4]), leaf(1.0, &[1, 2, 5, 6]), leaf(0.0, &[10, 11])]
    }

    #[test]
    fn the_closed_form() {
        // V: node 1 is 2/3, node 2 is 1, the group 1/2.
        let local = tree_advantages(&forest(), 1.0, Deviation::None, 0.0);
        let third = 1.0 / 3.0;
        let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15);
        assert!(close(&local[0], &[third / 2.0, third, 0.0]), "{local:?}");
        assert!(close(&local[1], &[third / 2.0, -2.0 * third]), "{local:?}");
        assert!(close(&local[2], &[third / 2.0, third, 0.0, 0.0]), "{local:?}");
        assert!(close(&local[3], &[-0.5, -0.5]), "the steps of a segment are one: {local:?}");
        let overall = tree_advantages(&forest(), 0.0, Deviation::None, 0.0);
        assert!(close(&overall[0], &[third / 2.0, 0.5, 0.5]) && close(&overall[1], &[third / 2.0, -0.5]));
        let both = tree_advantages(&forest(), 0.5, Deviation::None, 0.0);
        assert!(close(&both[0], &[third / 2.0, 5.0 / 12.0, 0.25]), "{both:?}");
        // Divided by the deviation of the totals: of 1, 0, 1, 0 it is 1/sqrt 3.
        let scaled = tree_advantages(&forest(), 0.5, Deviation::Std, 0.0);
        assert!((scaled[0][1] - both[0][1] * 3.0_f64.sqrt()).abs() < 1e-15);
    }

    /// A root, a branch after its first step, a twig after the branch's second, a shoot after the
    /// twig's third.
    #[test]
    fn forks_of_forks() {
        let deep =
            [leaf(1.0, &[1, 2, 3]), leaf(0.0, &[1, 4, 5]), leaf(0.0, &[1, 4, 6, 7]), leaf(1.0, &[1, 4, 6, 8, 9])];
        // V: node 1 is the group's 1/2, node 4 is 1/3, node 6 is 1/2.
        let local = tree_advantages(&deep, 1.0, Deviation::None, 0.0);
        let overall = tree_advantages(&deep, 0.0, Deviation::None, 0.0);
        let (sixth, close) = (1.0 / 6.0, |a: f64, b: f64| (a - b).abs() < 1e-15);
        let wanted = [
            (vec![0.0, 0.5, 0.5], vec![0.0, 0.5, 0.5]),
            (vec![0.0, -sixth, -2.0 * sixth], vec![0.0, -sixth, -0.5]),
            (vec![0.0, -sixth, sixth, -0.5], vec![0.0, -sixth, 0.0, -0.5]),
            (vec![0.0, -sixth, sixth, 0.5, 0.5], vec![0.0, -sixth, 0.0, 0.5, 0.5]),
        ];
        for (leaf, (by_step, whole)) in wanted.iter().enumerate() {
            assert!(local[leaf].iter().zip(by_step).all(|(a, b)| close(*a, *b)), "{local:?}");
            assert!(overall[leaf].iter().zip(whole).all(|(a, b)| close(*a, *b)), "{overall:?}");
        }
    }

    #[test]
    fn steps_of_all_leaves_and_equal_totals_have_no_advantage() {
        let stem = [leaf(3.0, &[1, 2, 3]), leaf(-1.0, &[1, 2, 4]), leaf(0.1, &[1, 5])];
        for local in [0.0, 0.3, 0.5, 1.0] {
            let found = tree_advantages(&stem, local, Deviation::Std, 1e-6);
            assert!(found.iter().all(|own| own[0] == 0.0), "{found:?}");
            let equal: Vec<Leaf> = forest().into_iter().map(|leaf| Leaf { total: 0.1, ..leaf }).collect();
            assert!(tree_advantages(&equal, local, Deviation::Std, 1e-6).concat().iter().all(|a| *a == 0.0));
        }
    }

    #[test]
    fn tree_advantages_without_forks_equal_grpo() {
        let leaves: Vec<Leaf> = [0.3, -1.7, 0.1, 9.0]
            .iter()
            .zip(0..)
            .map(|(total, n)| Leaf { group: n / 3, total: *total, nodes: vec![2 * n, 2 * n + 1] })
            .collect();
        let (totals, groups) = leaves.iter().map(|leaf| (leaf.total, leaf.group)).unzip::<_, _, Vec<_>, Vec<_>>();
        for deviation in [Deviation::Std, Deviation::Population, Deviation::None] {
            let plain = group_normalized(&totals, &groups, deviation, 1e-6);
            for local in [0.0, 0.3, 0.5, 1.0] {
                let found = tree_advantages(&leaves, local, deviation, 1e-6);
                for (own, plain) in found.iter().zip(&plain) {
                    assert!(own.iter().all(|a| a.to_bits() == plain.to_bits()), "{own:?} {plain}");
                }
            }
        }
    }
}
