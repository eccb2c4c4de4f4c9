//! Invariants of every estimator and every loss, for any rows.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::mdp::Status;
use crate::rl::advantages::{AlgorithmNeed, Estimator};
use crate::rl::objective::PolicyLoss;
use crate::rl::plain;
use crate::rl::rows::StepRow;

/// A token: sampled or not, reward, value, log-probabilities, advantage.
type Token = (bool, f64, f64, f64, f64, f64);

fn token() -> impl Strategy<Value = Token> {
    (prop::bool::weighted(0.7), -1.0..1.0_f64, -1.0..1.0_f64, -3.0..-0.05_f64, -0.4..0.4_f64, -2.0..2.0_f64)
}

/// Rows of trajectories in groups, each group with a greedy baseline; some fail, some are
/// truncated.
fn batch() -> impl Strategy<Value = Vec<StepRow>> {
    let step = (prop::collection::vec(token(), 0..4), token(), 0..3_u8);
    let trajectory = (prop::collection::vec(step, 1..4), 0..3_u64, 0..6_u8);
    prop::collection::vec(trajectory, 1..7).prop_map(|all| {
        let mut rows = Vec::new();
        for (number, (steps, group, ending)) in all.into_iter().enumerate() {
            let last = steps.len() - 1;
            for (index, (mut tokens, mut sampled, anchor)) in steps.into_iter().enumerate() {
                sampled.0 = true; // at least one
                tokens.push(sampled);
                let list = |value: fn(&Token) -> f64| tokens.iter().map(value).collect::<Vec<f64>>();
                rows.push(StepRow {
                    mask: tokens.iter().map(|token| token.0).collect(),
                    // Not negative, for max_rl.
                    rewards: list(|token| if token.0 { token.1.abs() } else { 0.0 }),
                    values: list(|token| token.2),
                    logp_old: list(|token| token.3),
                    logp: list(|token| token.3 + token.4),
                    logp_ref: list(|token| token.3 - 0.5 * token.4),
                    logp_rollout: list(|token| token.3 + 0.3 * token.2),
                    entropy: list(|token| -token.3),
                    // A token's own probability is part of the sum.
                    sum_pi_squared: list(|token| 0.5 + 0.5 * (2.0 * token.3).exp()),
                    parts: if index == last {
                        [("right".to_owned(), f64::from(ending)), ("short".to_owned(), tokens[0].2)].into()
                    } else {
                        BTreeMap::new()
                    },
                    advantages: list(|token| token.5),
                    anchor: Some(format!("room {anchor}")),
                    truncated: index == last && ending == 1,
                    terminated: index == last && ending != 1,
                    next_value: (index == last && ending == 1).then_some(0.25),
                    status: (ending == 2).then_some(Status::ToolTimeout),
                    ..StepRow::new(group, number as u64, index as u64, 0, 0.0)
                });
            }
        }
        for group in 0..3 {
            rows.push(StepRow { greedy: true, ..StepRow::new(group, 1000 + group, 0, 1, 0.5) });
        }
        rows
    })
}

/// Rows, and the same rows in another order.
fn shuffled() -> impl Strategy<Value = (Vec<StepRow>, Vec<usize>)> {
    batch().prop_flat_map(|rows| {
        let order: Vec<usize> = (0..rows.len()).collect();
        (Just(rows), Just(order).prop_shuffle())
    })
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + a.abs()))
}

/// Whether an estimator compares the trajectories of a group.
fn compares(name: &str) -> bool {
    Estimator::new(name, &Value::Null).unwrap().needs().contains(&AlgorithmNeed::Groups)
}

/// The trajectories that are alone in their group because all others failed.
fn lone_survivors(rows: &[StepRow]) -> BTreeSet<u64> {
    let of_group = |group: u64, failed: bool| -> BTreeSet<u64> {
        let members = rows.iter().filter(|row| row.group == group && !row.greedy && row.failed() == failed);
        members.map(|row| row.trajectory).collect()
    };
    let groups: BTreeSet<u64> = rows.iter().map(|row| row.group).collect();
    let reduced =
        groups.into_iter().filter(|group| !of_group(*group, true).is_empty() && of_group(*group, false).len() == 1);
    reduced.flat_map(|group| of_group(group, false)).collect()
}

fn every(estimators: &[&'static str]) -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&str, Value)> = estimators.iter().map(|name| (*name, Value::Null)).collect();
    all.push(("gigpo", json!({"similarity": 0.95, "mode": "mean"})));
    all.push(("grpo", json!({"normalize": "none", "kl_penalty": {"coef": 0.01, "kind": "k3"}})));
    all.push(("gae_token", json!({"gamma": 0.9, "lambda": 0.8, "prime": true})));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_order_of_rows_changes_no_advantage((rows, order) in shuffled()) {
        for (name, mut options) in every(&Estimator::names()) {
            // Greedy baselines have no reference policy.
            if let Some(table) = options.as_object_mut() {
                table.remove("kl_penalty");
            }
            let straight = plain::advantages(name, &rows, &options).unwrap();
            let mixed: Vec<StepRow> = order.iter().map(|&i| rows[i].clone()).collect();
            let other = plain::advantages(name, &mixed, &options).unwrap();
            for (index, &i) in order.iter().enumerate() {
                prop_assert!(close(&straight.advantages[i], &other.advantages[index]), "{name}");
                prop_assert!(close(&straight.returns[i], &other.returns[index]), "{name}");
            }
        }
    }

    #[test]
    fn masked_tokens_failures_and_greedy_baselines_have_no_advantage(rows in batch()) {
        for name in Estimator::names() {
            let actual = plain::advantages(name, &rows, &Value::Null).unwrap();
            for (i, row) in rows.iter().enumerate() {
                let counts = !row.greedy && !row.failed();
                prop_assert_eq!(actual.counted[i], counts);
                for (k, sampled) in row.mask.iter().enumerate() {
                    prop_assert!((counts && *sampled) || actual.advantages[i][k] == 0.0, "{name}");
                    prop_assert!((counts && *sampled) || !actual.targets[i][k], "{name}");
                    prop_assert!(actual.advantages[i][k].is_finite(), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_failure_changes_nothing_for_the_others(rows in batch()) {
        for name in Estimator::names() {
            // A trajectory whose group has only failures otherwise is excluded like them.
            let lone = if compares(name) { lone_survivors(&rows) } else { BTreeSet::new() };
            let left_out = |row: &StepRow| row.failed() || lone.contains(&row.trajectory);
            let without: Vec<StepRow> = rows.iter().filter(|row| !left_out(row)).cloned().collect();
            let all = plain::advantages(name, &rows, &Value::Null).unwrap();
            let others = plain::advantages(name, &without, &Value::Null).unwrap();
            let kept = rows.iter().zip(all.advantages).filter(|(row, _)| !left_out(row)).map(|(_, advantages)| advantages);
            prop_assert_eq!(kept.collect::<Vec<_>>(), others.advantages, "{}", name);
        }
    }

    #[test]
    fn a_group_reduced_to_one_by_failures_has_no_advantage(rows in batch(), reward in 1.0..50.0_f64, lost in 1..4_u64) {
        // Group 7: one trajectory with a large reward, and `lost` others that failed with or
        // without a reply.
        let mut rows = rows;
        let survivor = StepRow {
            values: vec![0.5, 0.25],
            logp_old: vec![-1.0, -2.0],
            sum_pi_squared: vec![0.5, 0.25],
            parts: [("right".to_owned(), reward), ("short".to_owned(), 1.0)].into(),
            anchor: Some("room 0".to_owned()),
            terminated: true,
            ..StepRow::new(7, 700, 0, 2, reward)
        };
        let last = rows.len();
        rows.push(survivor.clone());
        for n in 0..lost {
            let tokens = n as usize % 2;
            let status = Some(Status::EnvError);
            rows.push(StepRow { status, logp_old: vec![-1.0; tokens], ..StepRow::new(7, 701 + n, 0, tokens, 0.25) });
        }
        for name in Estimator::names().into_iter().filter(|name| compares(name)) {
            let actual = plain::advantages(name, &rows, &Value::Null).unwrap();
            prop_assert!(actual.counted[last] && actual.advantages[last].iter().all(|a| *a == 0.0), "{name}");
        }
        // A greedy baseline that failed is not compared with.
        rows.push(StepRow { greedy: true, status: Some(Status::EnvError), ..StepRow::new(7, 1007, 0, 0, 0.0) });
        let actual = plain::advantages("remax", &rows, &Value::Null).unwrap();
        prop_assert!(actual.advantages[last].iter().all(|a| *a == 0.0));
        // A group of one without failures keeps its advantage.
        let alone = [survivor];
        for (name, want) in [("rloo", reward), ("opo", reward), ("grpo", reward / (1.0 + 1e-6))] {
            prop_assert_eq!(&plain::advantages(name, &alone, &Value::Null).unwrap().advantages[0], &vec![want; 2]);
        }
    }

    #[test]
    fn rewards_of_steps_without_sampled_tokens_are_not_lost(rows in batch(), reward in 0.5..2.0_f64) {
        // The reward of a trajectory's last token is moved to a separate step without sampled
        // tokens.
        for (name, options) in every(&Estimator::names()) {
            if name == "gigpo" || !options.is_null() {
                continue;
            }
            let mut on_token = rows.clone();
            let mut apart = Vec::new();
            for (i, row) in rows.iter().enumerate() {
                let last = rows.iter().filter(|other| other.trajectory == row.trajectory).map(|other| other.step).max() == Some(row.step);
                if !last {
                    apart.push(row.clone());
                    continue;
                }
                let index = row.mask.iter().rposition(|sampled| *sampled).unwrap();
                if row.rewards.len() == 1 { on_token[i].rewards = vec![0.0; row.mask.len()]; on_token[i].rewards[index] = row.rewards[0]; }
                on_token[i].rewards[index] += reward;
                apart.push(StepRow { terminated: false, truncated: false, next_value: None, ..row.clone() });
                apart.push(StepRow {
                    mask: vec![],
                    rewards: vec![reward],
                    values: vec![],
                    logp: vec![],
                    logp_old: vec![],
                    logp_ref: vec![],
                    logp_rollout: vec![],
                    entropy: vec![],
                    advantages: vec![],
                    sum_pi_squared: vec![],
                    parts: BTreeMap::new(),
                    step: row.step + 1,
                    ..row.clone()
                });
            }
            let joined = plain::advantages(name, &on_token, &Value::Null).unwrap();
            let split = plain::advantages(name, &apart, &Value::Null).unwrap();
            let kept: Vec<f64> = split.advantages.concat();
            prop_assert!(close(&joined.advantages.concat(), &kept), "{name} {kept:?}");
        }
    }

    /// Each step of a fork's prefix is one decision: its advantage is the mean over its copies.
    /// Without `shared` the result equals the result of separate steps.
    #[test]
    fn a_shared_step_has_the_mean_of_its_copies(rows in batch(), cut in 1..3_u64, reward in 0.0..1.0_f64) {
        let rows: Vec<StepRow> = rows.into_iter().filter(|row| !row.failed()).collect();
        let Some(parent) = rows.iter().find(|row| row.step == cut && !row.greedy).map(|row| row.trajectory) else {
            return Ok(());
        };
        let shared: Vec<StepRow> = rows.iter().filter(|row| row.trajectory == parent && row.step < cut).cloned().collect();
        let mut forked = rows.clone();
        for fork in [700, 701] {
            forked.extend(shared.iter().map(|row| StepRow { trajectory: fork, shared: Some(parent), ..row.clone() }));
            forked.push(StepRow {
                logp_old: vec![-1.0],
                values: vec![0.5],
                sum_pi_squared: vec![0.5],
                parts: [("right".to_owned(), reward), ("short".to_owned(), 0.5)].into(),
                anchor: Some("room 1".to_owned()),
                terminated: true,
                ..StepRow::new(shared[0].group, fork, cut, 1, reward * (fork - 699) as f64)
            });
        }
        let apart: Vec<StepRow> = forked.iter().map(|row| StepRow { shared: None, ..row.clone() }).collect();
        for name in Estimator::names() {
            let joined = plain::advantages(name, &forked, &Value::Null).unwrap();
            for (i, row) in forked.iter().enumerate().filter(|(_, row)| row.shared.is_some()) {
                let taken = forked.iter().position(|other| other.trajectory == parent && other.step == row.step).unwrap();
                prop_assert_eq!(&joined.advantages[i], &joined.advantages[taken], "{}", name);
                prop_assert_eq!(&joined.returns[i], &joined.returns[taken], "{}", name);
            }
            // These two estimators compare more than the leaves of a tree.
            if ["gigpo", "tree"].contains(&name) {
                continue;
            }
            let plain = plain::advantages(name, &apart, &Value::Null).unwrap();
            for (i, row) in apart.iter().enumerate() {
                let copies: Vec<usize> = (0..apart.len())
                    .filter(|&j| forked[j].step == row.step && forked[j].shared.unwrap_or(forked[j].trajectory) == parent)
                    .collect();
                let mean = |k: usize| copies.iter().map(|&j| plain.advantages[j][k]).sum::<f64>() / copies.len() as f64;
                let wanted: Vec<f64> = if copies.contains(&i) {
                    (0..row.mask.len()).map(mean).collect()
                } else {
                    plain.advantages[i].clone()
                };
                prop_assert!(close(&wanted, &joined.advantages[i]), "{name}");
            }
        }
    }

    #[test]
    fn equal_rewards_have_advantages_of_exactly_zero(rows in batch(), reward in -5.0..5.0_f64) {
        // At least two groups of two, all with the same single reward.
        let mut rows = rows;
        for row in &mut rows {
            row.rewards = vec![0.0; row.mask.len()];
            if row.step == 0 {
                row.rewards[0] = reward.abs();
            }
        }
        for extra in 0..3 {
            for twin in 0..2 {
                rows.push(StepRow {
                    anchor: Some("room 0".to_owned()),
                    logp_old: vec![-1.0, -2.0],
                    ..StepRow::new(extra, 500 + 2 * extra + twin, 0, 2, reward.abs())
                });
            }
        }
        for name in ["grpo", "rloo", "opo", "gpg", "max_rl", "grpo_passk", "reinforce_pp_baseline", "rapo", "tree"] {
            let actual = plain::advantages(name, &rows, &Value::Null).unwrap();
            prop_assert!(actual.advantages.concat().iter().all(|a| *a == 0.0), "{name}");
        }
    }

    #[test]
    fn the_order_of_rows_changes_no_loss((rows, order) in shuffled()) {
        let rows: Vec<StepRow> = rows.into_iter().filter(|row| !row.greedy).collect();
        let order: Vec<usize> = order.into_iter().filter(|&i| i < rows.len()).collect();
        for name in PolicyLoss::names() {
            let options = json!({"kl_coef": 0.1, "entropy_coef": 0.01, "importance": {}, "rejection": {"upper": 0.05}});
            let straight = plain::loss(name, &rows, &options).unwrap();
            let mixed: Vec<StepRow> = order.iter().map(|&i| rows[i].clone()).collect();
            let other = plain::loss(name, &mixed, &options).unwrap();
            // The tokens that clip_cov draws depend on their positions.
            if name == "clip_cov" {
                continue;
            }
            prop_assert!(close(&[straight.loss], &[other.loss]), "{name}");
            for (index, &i) in order.iter().enumerate() {
                prop_assert!(close(&straight.gradient[i], &other.gradient[index]), "{name}");
            }
        }
    }

    #[test]
    fn masked_tokens_have_a_gradient_of_exactly_zero(rows in batch()) {
        let mut rows: Vec<StepRow> = rows.into_iter().filter(|row| !row.greedy).collect();
        for name in PolicyLoss::names() {
            let before = plain::loss(name, &rows, &Value::Null).unwrap();
            for (row, gradient) in rows.iter().zip(&before.gradient) {
                for (sampled, gradient) in row.mask.iter().zip(gradient) {
                    prop_assert!((*sampled && !row.failed()) || *gradient == 0.0, "{name}");
                }
            }
            // Their values change nothing.
            for row in &mut rows {
                for k in (0..row.mask.len()).filter(|&k| !row.mask[k]) {
                    row.logp[k] = f64::NAN;
                    row.advantages[k] = 1e9;
                }
            }
            prop_assert_eq!(before, plain::loss(name, &rows, &Value::Null).unwrap(), "{}", name);
        }
    }

    #[test]
    fn an_advantage_of_zero_has_no_gradient(rows in batch()) {
        let mut rows: Vec<StepRow> = rows.into_iter().filter(|row| !row.greedy).collect();
        for row in &mut rows {
            row.advantages = vec![0.0];
        }
        for name in PolicyLoss::names() {
            // The penalties of KL-Cov and DRO do not depend on the advantage, and PSPO has a KL
            // term.
            if !matches!(name, "kl_cov" | "dro" | "pspo") {
                let actual = plain::loss(name, &rows, &Value::Null).unwrap();
                prop_assert!(actual.gradient.concat().iter().all(|g| *g == 0.0), "{name}");
            }
        }
    }
}

#[test]
fn an_empty_batch_has_no_loss_and_no_advantage() {
    for name in PolicyLoss::names() {
        assert_eq!(plain::loss(name, &[], &Value::Null).unwrap().loss.abs().to_bits(), 0, "{name}");
    }
    for name in Estimator::names() {
        assert!(plain::advantages(name, &[], &Value::Null).unwrap().advantages.is_empty());
    }
}

#[test]
fn missing_inputs_of_a_row_are_named() {
    let rows = [StepRow::new(0, 5, 2, 1, 1.0)];
    let estimate = |name: &str| plain::advantages(name, &rows, &Value::Null).unwrap_err().to_string();
    assert!(estimate("gae").contains("a step has no `values`\n  --> trajectory 5"));
    assert!(estimate("gigpo").contains("`anchor`"));
    assert!(estimate("rapo").contains("neither `logp` nor `logp_old`"));
    assert!(estimate("remax").contains("no greedy baseline"));
    let loss = |rows: &[StepRow], options: &Value| plain::loss("ppo", rows, options).unwrap_err().to_string();
    assert!(loss(&rows, &Value::Null).contains("the loss needs `logp` for every token\n  --> trajectory 5 step 2"));
    let full = [StepRow { logp: vec![-1.0], logp_old: vec![-1.0], advantages: vec![1.0], ..rows[0].clone() }];
    assert!(loss(&full, &json!({"kl_coef": 0.1})).contains("`logp_ref`"));
    assert!(loss(&full, &json!({"importance": {"cap": 2}})).contains("`logp_rollout`"));
    let cut = [StepRow { truncated: true, values: vec![0.0], ..rows[0].clone() }];
    let error = plain::advantages("gae", &cut, &Value::Null).unwrap_err().to_string();
    assert!(error.contains("no `next_value`") && error.contains("bootstrap = false"), "{error}");
    let negative = [StepRow::new(0, 5, 2, 1, -1.0)];
    let error = plain::advantages("max_rl", &negative, &Value::Null).unwrap_err().to_string();
    assert!(error.contains("rewards of at least 0"), "{error}");
}

#[test]
fn rows_are_read_from_tables() {
    let table = json!([{"group": 1, "trajectory": 2, "step": 0, "mask": [1, 0], "rewards": [0.5, 0.0], "values": {}}]);
    let rows = StepRow::read_all(table).unwrap();
    assert_eq!((rows[0].group, rows[0].mask.clone(), rows[0].reward()), (1, vec![true, false], 0.5));
    let error = StepRow::read_all(json!([{"mask": [1]}, {"mask": [1], "reward": 2}])).unwrap_err().to_string();
    assert!(error.contains("unknown field `reward`") && error.contains("row 2"), "{error}");
    assert!(error.contains("did you mean `rewards`"), "{error}");
    let options = json!({"overlong": {"longest": 4.0, "buffer": 2.0, "factor": 1.0}, "normalize": "none"});
    let rows = [StepRow::new(0, 0, 0, 3, 1.0), StepRow::new(0, 1, 0, 1, 1.0)];
    let actual = plain::advantages("grpo", &rows, &options).unwrap();
    assert_eq!(actual.advantages, [vec![-0.25; 3], vec![0.25]]);
}
