//! Closed forms of the estimators in `lua/algorithms`.
#![allow(clippy::float_cmp)]

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::rl::advantages::{Estimator, Whiten, whiten};
use crate::rl::plain;
use crate::rl::rows::StepRow;

/// The advantages of tokens by an estimator, for trajectories of one step with the reward of each
/// sampled token.
pub(super) fn estimated(name: &str, options: &Value, rewards: &[Vec<f64>], groups: &[u64]) -> Vec<f64> {
    let row = |((rewards, &group), number): ((&Vec<f64>, &u64), u64)| StepRow {
        mask: vec![true; rewards.len()],
        rewards: rewards.clone(),
        ..StepRow::new(group, number, 0, 0, 0.0)
    };
    let rows: Vec<StepRow> = rewards.iter().zip(groups).zip(0..).map(row).collect();
    Estimator::new(name, options).unwrap().estimate(&rows, false).unwrap().advantages.concat()
}

/// The advantages of trajectories of one token.
fn of_returns(name: &str, options: &Value, returns: &[f64], groups: &[u64]) -> Vec<f64> {
    let rewards: Vec<Vec<f64>> = returns.iter().map(|&reward| vec![reward]).collect();
    estimated(name, options, &rewards, groups)
}

fn close(actual: &[f64], wanted: &[f64]) -> bool {
    actual.len() == wanted.len() && actual.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-14)
}

#[test]
fn rloo_subtracts_the_mean_of_the_others() {
    let returns = [1.0, 2.0, 6.0];
    for (i, got) in of_returns("rloo", &json!({}), &returns, &[0; 3]).into_iter().enumerate() {
        let others = (returns.iter().sum::<f64>() - returns[i]) / 2.0;
        assert!((got - (returns[i] - others)).abs() < 1e-14);
    }
    assert_eq!(of_returns("rloo", &json!({}), &[3.0], &[0]), [3.0]);
}

#[test]
fn the_baseline_of_opo_is_weighted_by_length() {
    let reward = |tokens: usize, total: f64| [vec![0.0; tokens - 1], vec![total]].concat();
    let rewards = [reward(30, 1.0), reward(10, 0.0), reward(5, 7.0)];
    let actual = estimated("opo", &json!({}), &rewards, &[0, 0, 1]);
    assert_eq!((actual[0], actual[30], actual[40]), (0.25, -0.75, 7.0));
}

#[test]
fn gpg_scales_by_the_share_of_nonzero_returns() {
    let actual = of_returns("gpg", &json!({ "f_norm": 2 }), &[1.0, 0.0, 0.0, 0.0], &[0, 0, 1, 1]);
    assert_eq!(actual, [1.0, -1.0, 0.0, 0.0]);
    assert_eq!(of_returns("gpg", &json!({}), &[0.0, 0.0], &[0, 0]), [0.0, 0.0]);
}

#[test]
fn max_rl_weighs_by_the_success_rate() {
    let exact = json!({ "epsilon": 0 });
    let actual = of_returns("max_rl", &exact, &[1.0, 0.0, 0.0, 0.0, 7.0], &[0, 0, 0, 0, 1]);
    assert_eq!(actual, [3.0, -1.0, -1.0, -1.0, 7.0]);
    assert_eq!(of_returns("max_rl", &json!({}), &[0.0, 0.0], &[0, 0]), [0.0, 0.0]);
}

#[test]
fn passk_rewards_the_lead_of_the_best() {
    let plain = json!({ "normalize": "none", "epsilon": 0 });
    assert_eq!(of_returns("grpo_passk", &plain, &[1.0, 4.0, 3.0, 9.0], &[0, 0, 0, 1]), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(of_returns("grpo_passk", &plain, &[4.0, 4.0, 3.0], &[0; 3]), [0.0; 3]);
    let got = of_returns("grpo_passk", &json!({ "epsilon": 0 }), &[0.0, 2.0], &[0, 0]);
    assert!((got[1] - 2.0_f64.sqrt()).abs() < 1e-15);
}

#[test]
fn rapo_strengthens_pairs_that_are_ranked_wrongly() {
    // Winners 0 and 1, losers 2 and 3; only winner 0 leads only loser 3 by the margin. The other
    // group has no loser.
    let logp = [-1.0, -2.0, -1.2, -3.0, -9.0];
    let returns = [2.0, 2.0, 0.0, 1.0, 3.0];
    let row = |i: usize| StepRow {
        logp_old: vec![logp[i]],
        ..StepRow::new(if i == 4 { 5 } else { 0 }, i as u64, 0, 1, returns[i])
    };
    let rows: Vec<StepRow> = (0..5).map(row).collect();
    let of = |name: &str| plain::advantages(name, &rows, &json!({ "normalize": "none" })).unwrap().advantages.concat();
    let factors = [1.05, 1.05, 1.1, 1.0, 1.0];
    let wanted: Vec<f64> = of("grpo").iter().zip(factors).map(|(advantage, factor)| advantage * factor).collect();
    assert!(close(&of("rapo"), &wanted), "{:?}", of("rapo"));
}

#[test]
fn reinforce_pp_whitens_discounted_returns_over_the_whole_batch() {
    let rewards = [vec![0.0, 1.0], vec![], vec![4.0]];
    let actual = estimated("reinforce_pp", &json!({ "gamma": 0.5, "whiten": "std" }), &rewards, &[0, 1, 2]);
    assert_eq!(actual, whiten(&[0.5, 1.0, 4.0], Whiten::Std));
    let plain = json!({ "gamma": 0.5, "whiten": "none" });
    assert_eq!(estimated("reinforce_pp", &plain, &[vec![1.0, 0.0, 4.0]], &[0]), [2.0, 2.0, 4.0]);
}

#[test]
fn reinforce_pp_baseline_is_whitened_over_tokens() {
    let reward = |tokens: usize, total: f64| [vec![0.0; tokens - 1], vec![total]].concat();
    let rewards = [reward(1, 3.0), reward(2, 1.0), reward(4, 0.5), reward(3, 2.0)];
    let centred = [1.0, -1.0, -0.75, 0.75];
    let each_token: Vec<f64> =
        centred.iter().zip(&rewards).flat_map(|(&a, row_rewards)| vec![a; row_rewards.len()]).collect();
    for (how, name) in [(Whiten::Std, "std"), (Whiten::Variance, "variance"), (Whiten::None, "none")] {
        let actual = estimated("reinforce_pp_baseline", &json!({ "whiten": name }), &rewards, &[0, 0, 1, 1]);
        assert!(close(&actual, &whiten(&each_token, how)), "{name}");
    }
}

/// The order of groups does not change the order in which whitening sums.
#[test]
fn trajectories_of_several_groups_may_alternate() {
    let rewards: Vec<Vec<f64>> = [0.1, 0.7, 0.3, 0.2, 0.9, 0.4].map(|reward| vec![reward]).to_vec();
    let (mixed, apart) = ([1, 0, 1, 0, 1, 0], [0, 1, 2, 3, 4, 5]);
    let of = |groups: &[u64]| estimated("reinforce_pp", &json!({}), &rewards, groups);
    assert_eq!(of(&mixed), of(&apart));
    let alternating = estimated("rloo", &json!({}), &rewards, &mixed);
    let sorted = of_returns("rloo", &json!({}), &[0.1, 0.3, 0.9], &[0; 3]);
    assert_eq!([alternating[0], alternating[2], alternating[4]], sorted[..]);
}

proptest! {
    #[test]
    fn equal_returns_have_advantages_of_exactly_zero(value in 0.0..1e3_f64, n in 2..40_usize) {
        let reward = |i: usize| [vec![0.0; 3 * i], vec![value]].concat();
        let rewards: Vec<Vec<f64>> = (0..n).map(reward).collect();
        for name in ["rloo", "opo", "gpg", "max_rl", "grpo_passk"] {
            let all = estimated(name, &json!({}), &rewards, &vec![1; n]);
            prop_assert!(all.iter().all(|advantage| *advantage == 0.0), "{}", name);
        }
        for whiten in ["std", "variance", "none"] {
            let all = estimated("reinforce_pp_baseline", &json!({ "whiten": whiten }), &rewards, &vec![1; n]);
            prop_assert!(all.iter().all(|advantage| *advantage == 0.0));
        }
    }
}

/// A trajectory with a reward of two parts.
fn with_parts(trajectory: u64, correct: f64, style: f64) -> StepRow {
    let parts = [("correct".to_owned(), correct), ("style".to_owned(), style)].into();
    StepRow { parts, ..StepRow::new(0, trajectory, 0, 1, correct + style) }
}

#[test]
fn gdpo_normalises_each_part_of_the_reward() {
    // Two trajectories: a part that differs is +-1/sqrt 2 at any scale, one that does not is 0.
    let rows = [with_parts(0, 1.0, 70.0), with_parts(1, 0.0, 90.0)];
    let of = |options: Value, rows: &[StepRow]| plain::advantages("gdpo", rows, &options).unwrap().advantages.concat();
    let half = 0.5_f64.sqrt();
    let near = |actual: &[f64], want: [f64; 2]| actual.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-15);
    assert!(near(&of(json!({ "whiten": "none", "epsilon": 0.0 }), &rows), [0.0, 0.0]));
    let weighed = json!({ "whiten": "none", "epsilon": 0.0, "weights": { "correct": 3.0, "style": 1.0 } });
    assert!(near(&of(weighed, &rows), [2.0 * half, -2.0 * half]));
    let one = json!({ "whiten": "none", "epsilon": 0.0, "weights": { "style": 1.0 } });
    assert!(near(&of(one, &rows), [-half, half]));
    let same = [with_parts(0, 1.0, 5.0), with_parts(1, 0.0, 5.0)];
    let actual = of(json!({ "whiten": "none" }), &same);
    assert!((actual[0] - half).abs() < 1e-5 && (actual[1] + half).abs() < 1e-5, "a part that is equal: {actual:?}");
}

#[test]
fn missing_reward_parts_are_named() {
    let refused = |rows: &[StepRow], options: Value| plain::advantages("gdpo", rows, &options).unwrap_err().to_string();
    let bare = [StepRow::new(0, 3, 0, 1, 1.0), with_parts(4, 1.0, 1.0)];
    assert!(refused(&bare[..1], json!({})).contains("there are none\n  --> trajectory 3"));
    assert!(refused(&bare, json!({})).contains("has no part `correct`\n  --> trajectory 3"));
    assert!(refused(&bare[1..], json!({ "weights": { "size": 1.0 } })).contains("has no part `size`"));
    assert!(
        refused(&bare, json!({ "weights": { "style": "x" } })).contains("`weights` of `gdpo` is a table of numbers")
    );
}

/// Trajectories of one step: group, observation, return.
fn observed(steps: &[(u64, &str, f64)]) -> Vec<StepRow> {
    let row = |(&(group, anchor, total), number): (&(u64, &str, f64), u64)| StepRow {
        anchor: Some(anchor.to_owned()),
        ..StepRow::new(group, number, 0, 1, total)
    };
    steps.iter().zip(0..).map(row).collect()
}

/// The part of GiGPO that compares steps.
fn step_part(rows: &[StepRow], similarity: &Value) -> Vec<f64> {
    let of = |weight: f64| {
        let options = json!({ "mode": "mean", "weight": weight, "similarity": similarity });
        plain::advantages("gigpo", rows, &options).unwrap().advantages.concat()
    };
    of(1.0).iter().zip(of(0.0)).map(|(both, whole)| both - whole).collect()
}

#[test]
fn gigpo_compares_equal_observations_of_a_group() {
    let rows = observed(&[(0, "a", 1.0), (0, "b", 7.0), (0, "a", 3.0), (1, "a", 50.0), (1, "a", 40.0)]);
    assert!(close(&step_part(&rows, &json!(false)), &[-1.0, 0.0, 1.0, 5.0, -5.0]));
}

#[test]
fn gigpo_compares_similar_observations_with_the_option_similarity() {
    let (long, longer) = ("you are in a dark room with a lamp", "you are in a dark room with a lamp.");
    let rows = observed(&[(0, long, 1.0), (0, longer, 3.0), (0, "elsewhere", 9.0)]);
    assert!(close(&step_part(&rows, &json!(false)), &[0.0; 3]));
    assert!(close(&step_part(&rows, &json!(0.95)), &[-1.0, 1.0, 0.0]));
}

fn token_row(trajectory: u64, mask: &[bool], rewards: &[f64], squares: f64) -> StepRow {
    StepRow {
        mask: mask.to_vec(),
        rewards: rewards.to_vec(),
        // Probability 1/2 at every token: the weight of one is `squares`.
        logp_old: vec![0.5_f64.ln(); mask.len()],
        sum_pi_squared: vec![squares; mask.len()],
        ..StepRow::new(0, trajectory, 0, 0, 0.0)
    }
}

#[test]
fn token_baselines_have_the_least_variance() {
    let (yes, no) = (true, false);
    let rows = [token_row(0, &[yes, no, yes], &[1.0, 0.0, 2.0], 0.5), token_row(1, &[yes], &[5.0], 1.0)];
    let of = |name: &str, zero_tail: bool| {
        let options = json!({ "epsilon": 0.0, "zero_tail": zero_tail });
        plain::advantages(name, &rows, &options).unwrap().advantages.concat()
    };
    // First tokens: to go 3 and 5, weights 0.5 and 1: the baseline is 13/3. The last token is alone
    // at its time.
    let first = 13.0 / 3.0;
    for name in ["optimal_token_baseline", "tir_optimal_token_baseline"] {
        assert!(close(&of(name, true), &[3.0 - first, 0.0, 2.0, 5.0 - first]), "{name}");
        assert!(close(&of(name, false), &[3.0 - first, 0.0, 0.0, 5.0 - first]), "{name}");
    }
    // By position, the second sampled token of one is aligned with the third token of the other.
    let rows =
        [token_row(0, &[yes, no, yes], &[0.0, 0.0, 2.0], 0.5), token_row(1, &[yes, yes, no], &[0.0, 4.0, 0.0], 0.5)];
    let of = |name: &str| plain::advantages(name, &rows, &json!({ "epsilon": 0.0 })).unwrap().advantages.concat();
    assert_eq!(of("optimal_token_baseline"), [-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(of("tir_optimal_token_baseline"), [-1.0, 0.0, -1.0, 1.0, 1.0, 0.0]);
}

#[test]
fn a_missing_input_of_token_baselines_is_named() {
    let bare = [StepRow::new(0, 4, 0, 1, 1.0), StepRow::new(0, 5, 0, 1, 0.0)];
    let error = plain::advantages("optimal_token_baseline", &bare, &Value::Null).unwrap_err().to_string();
    assert!(error.contains("`sum_pi_squared`") && error.contains("--> trajectory 4"), "{error}");
}

/// The advantages of a tree's leaves by step. A leaf is its total and the numbers of its decisions;
/// equal numbers are shared steps.
fn tree(leaves: &[(f64, &[u64])], local: f64, normalize: &str, epsilon: f64) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    for (leaf, (total, nodes)) in leaves.iter().enumerate() {
        for (step, node) in nodes.iter().enumerate() {
            let owner = leaves[..leaf].iter().position(|(_, others)| others.get(step) == Some(node));
            let reward = if step + 1 == nodes.len() { *total } else { 0.0 };
            let row = StepRow::new(0, leaf as u64, step as u64, 1, reward);
            rows.push(StepRow { shared: owner.map(|owner| owner as u64), ..row });
        }
    }
    let options = json!({ "local": local, "normalize": normalize, "epsilon": epsilon });
    let mut advantages = plain::advantages("tree", &rows, &options).unwrap().advantages.concat().into_iter();
    leaves.iter().map(|(_, nodes)| advantages.by_ref().take(nodes.len()).collect()).collect()
}

/// Two roots of three and two steps; one branch after the first step of the first, one after its
/// second.
const FOREST: [(f64, &[u64]); 4] = [(1.0, &[1, 2, 3]), (0.0, &[1, 4]), (1.0, &[1, 2, 5, 6]), (0.0, &[10, 11])];

#[test]
fn the_closed_form_of_a_tree() {
    // V: node 1 is 2/3, node 2 is 1, the group 1/2.
    let third = 1.0 / 3.0;
    let local = tree(&FOREST, 1.0, "none", 0.0);
    assert!(close(&local[0], &[third / 2.0, third, 0.0]), "{local:?}");
    assert!(close(&local[1], &[third / 2.0, -2.0 * third]), "{local:?}");
    assert!(close(&local[2], &[third / 2.0, third, 0.0, 0.0]), "{local:?}");
    assert!(close(&local[3], &[-0.5, -0.5]), "the steps of a segment are one: {local:?}");
    let overall = tree(&FOREST, 0.0, "none", 0.0);
    assert!(close(&overall[0], &[third / 2.0, 0.5, 0.5]) && close(&overall[1], &[third / 2.0, -0.5]));
    let both = tree(&FOREST, 0.5, "none", 0.0);
    assert!(close(&both[0], &[third / 2.0, 5.0 / 12.0, 0.25]), "{both:?}");
    // Divided by the deviation of the totals: of 1, 0, 1, 0 it is 1/sqrt 3.
    let scaled = tree(&FOREST, 0.5, "std", 0.0);
    assert!((scaled[0][1] - both[0][1] * 3.0_f64.sqrt()).abs() < 1e-15);
}

/// A root, a branch after its first step, a twig after the branch's second, a shoot after the
/// twig's third.
#[test]
fn forks_of_forks() {
    let deep: [(f64, &[u64]); 4] =
        [(1.0, &[1, 2, 3]), (0.0, &[1, 4, 5]), (0.0, &[1, 4, 6, 7]), (1.0, &[1, 4, 6, 8, 9])];
    // V: node 1 is the group's 1/2, node 4 is 1/3, node 6 is 1/2.
    let (local, overall) = (tree(&deep, 1.0, "none", 0.0), tree(&deep, 0.0, "none", 0.0));
    let sixth = 1.0 / 6.0;
    let wanted = [
        (vec![0.0, 0.5, 0.5], vec![0.0, 0.5, 0.5]),
        (vec![0.0, -sixth, -2.0 * sixth], vec![0.0, -sixth, -0.5]),
        (vec![0.0, -sixth, sixth, -0.5], vec![0.0, -sixth, 0.0, -0.5]),
        (vec![0.0, -sixth, sixth, 0.5, 0.5], vec![0.0, -sixth, 0.0, 0.5, 0.5]),
    ];
    for (leaf, (by_step, whole)) in wanted.iter().enumerate() {
        assert!(close(&local[leaf], by_step), "{local:?}");
        assert!(close(&overall[leaf], whole), "{overall:?}");
    }
}

#[test]
fn steps_of_all_leaves_and_equal_totals_have_no_advantage() {
    let stem: [(f64, &[u64]); 3] = [(3.0, &[1, 2, 3]), (-1.0, &[1, 2, 4]), (0.1, &[1, 5])];
    for local in [0.0, 0.3, 0.5, 1.0] {
        let actual = tree(&stem, local, "std", 1e-6);
        assert!(actual.iter().all(|steps| steps[0] == 0.0), "{actual:?}");
        let equal = FOREST.map(|(_, nodes)| (0.1, nodes));
        assert!(tree(&equal, local, "std", 1e-6).concat().iter().all(|advantage| *advantage == 0.0));
    }
}

#[test]
fn trees_without_forks_equal_grpo() {
    let totals = [0.3, -1.7, 0.1, 9.0];
    let nodes: Vec<[u64; 2]> = (0..4).map(|leaf| [2 * leaf, 2 * leaf + 1]).collect();
    let leaves: Vec<(f64, &[u64])> = totals.iter().zip(&nodes).map(|(total, nodes)| (*total, &nodes[..])).collect();
    for normalize in ["std", "population", "none"] {
        let plain = of_returns("grpo", &json!({ "normalize": normalize }), &totals, &[0; 4]);
        for local in [0.0, 0.3, 0.5, 1.0] {
            for (steps, plain) in tree(&leaves, local, normalize, 1e-6).iter().zip(&plain) {
                assert!(steps.iter().all(|advantage| advantage.to_bits() == plain.to_bits()), "{steps:?} {plain}");
            }
        }
    }
}
