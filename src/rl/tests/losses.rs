//! Losses, gradients, corrections and the critic's loss, compared with the packages: the second
//! half of `cases.json`, and the slope of every loss by finite differences.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tch::Tensor;

use super::padded::{Padded, floats};
use super::parity::Parity;
use crate::rl::correction::{Importance, Rejection};
use crate::rl::losses::value_loss;
use crate::rl::objective::PolicyLoss;
use crate::rl::plain;
use crate::rl::rows::StepRow;

#[derive(Deserialize)]
pub(super) struct Cases {
    pub(super) batches: BTreeMap<String, Vec<StepRow>>,
    losses: Vec<LossCase>,
    five_ways: Vec<LossCase>,
    corrections: Corrections,
    values: Values,
}

#[derive(Deserialize)]
struct LossCase {
    batch: String,
    name: String,
    options: Value,
    by: String,
    loss: f64,
    gradient: Padded,
    tolerance: f64,
}

#[derive(Deserialize)]
struct Corrections {
    batch: String,
    by: String,
    weights: Vec<CorrectionCase>,
    masks: Vec<CorrectionCase>,
}

#[derive(Deserialize)]
struct CorrectionCase {
    over: String,
    options: Value,
    made: Padded,
}

#[derive(Deserialize)]
struct Values {
    old: Vec<f64>,
    new: Vec<f64>,
    returns: Vec<f64>,
    cases: Vec<ValueCase>,
}

#[derive(Deserialize)]
struct ValueCase {
    by: String,
    clip: Option<f64>,
    loss: f64,
    gradient: Vec<f64>,
}

pub(super) fn cases() -> Cases {
    serde_json::from_str(include_str!("../../../tests/golden/rl/cases.json")).unwrap()
}

/// Compares every loss with its references, and records the worst difference.
pub(super) fn compare_losses(parity: &mut Parity) {
    let Cases { batches, losses, five_ways, .. } = cases();
    let compare = |parity: &mut Parity, function: &str, case: &LossCase| {
        let what = format!("{} {} on {} by {}", case.name, case.options, case.batch, case.by);
        let got = plain::loss(&case.name, &batches[&case.batch], &case.options).unwrap();
        let by = &case.by;
        parity.compare(function, by, &[got.loss], &[case.loss], case.tolerance, &what);
        parity.compare(function, by, &got.gradient.concat(), &case.gradient.concat(), case.tolerance, &what);
    };
    for case in &losses {
        compare(parity, &case.name, case);
    }
    for case in &five_ways {
        compare(parity, "ppo, token-mean, no dual clip", case);
    }
    let seen: std::collections::BTreeSet<&str> = losses.iter().map(|case| case.name.as_str()).collect();
    // `pspo` is `gspo` over steps with its own defaults.
    assert!(PolicyLoss::names().iter().all(|name| seen.contains(name) || *name == "pspo"));
}

pub(super) fn compare_corrections(parity: &mut Parity) {
    let Cases { batches, corrections, .. } = cases();
    let rows = &batches[&corrections.batch];
    let at = |list: fn(&StepRow) -> &Vec<f64>| -> Vec<f64> {
        rows.iter().flat_map(|row| list(row).iter().zip(&row.mask).filter(|(_, m)| **m).map(|(x, _)| *x)).collect()
    };
    let log_ratio = Tensor::from_slice(&at(|row| &row.logp_old)) - Tensor::from_slice(&at(|row| &row.logp_rollout));
    let numbers = |number: &dyn Fn(usize, &StepRow) -> i64| -> Tensor {
        let all: Vec<i64> = rows.iter().enumerate().flat_map(|(i, row)| vec![number(i, row); row.sampled()]).collect();
        Tensor::from_slice(&all)
    };
    let sequence = |over: &str| match over {
        "step" => numbers(&|i, _| i as i64),
        _ => numbers(&|_, row| row.trajectory as i64),
    };
    let sampled = |made: &Padded| -> Vec<f64> {
        rows.iter()
            .zip(made)
            .flat_map(|(row, row_weights)| row_weights.iter().zip(&row.mask).filter(|(_, m)| **m).map(|(x, _)| *x))
            .collect()
    };
    for case in &corrections.weights {
        let importance: Importance = serde_json::from_value(case.options.clone()).unwrap();
        let got = importance.weights(&log_ratio, &sequence(&case.over)).unwrap();
        let what = format!("weights {} over {}", case.options, case.over);
        let name = if importance.normalize { "importance, normalised" } else { "importance" };
        parity.compare(name, &corrections.by, &floats(&got), &sampled(&case.made), 1e-10, &what);
    }
    for case in &corrections.masks {
        let rejection: Rejection = serde_json::from_value(case.options.clone()).unwrap();
        let got = rejection.mask(&log_ratio, &sequence(&case.over)).unwrap();
        let what = format!("mask {} over {}", case.options, case.over);
        parity.compare("rejection", &corrections.by, &floats(&got), &sampled(&case.made), 0.0, &what);
    }
}

pub(super) fn compare_values(parity: &mut Parity) {
    let Values { old, new, returns, cases } = cases().values;
    for case in &cases {
        let values = Tensor::from_slice(&new).set_requires_grad(true);
        let (loss, _) =
            value_loss(&values, &Tensor::from_slice(&old), &Tensor::from_slice(&returns), case.clip).unwrap();
        let loss = loss.mean(tch::Kind::Double);
        loss.backward();
        let what = format!("value loss {:?} by {}", case.clip, case.by);
        parity.compare("value_loss", &case.by, &floats(&loss), &[case.loss], 1e-10, &what);
        parity.compare("value_loss", &case.by, &floats(&values.grad()), &case.gradient, 1e-10, &what);
    }
}

/// Losses whose value has the gradient (not those with detached weights: `cispo`, `dppo_*`).
const SLOPED: [&str; 14] = [
    "ppo",
    "gspo",
    "pspo",
    "sapo",
    "geo_mean",
    "dr_grpo",
    "dapo",
    "bnpo",
    "clip_cov",
    "kl_cov",
    "gpg",
    "reinforce",
    "luspo",
    "dro",
];

#[test]
fn gradients_are_slopes() {
    let mut rows = cases().batches.remove("loss_steps").unwrap();
    for row in &mut rows {
        row.entropy = row.logp.iter().map(|logp| -0.3 * logp).collect();
    }
    for name in SLOPED {
        // With a separate weight for every token, the gradient of a straight-through ratio is not
        // the slope of its value.
        let scope = if matches!(name, "gspo" | "pspo" | "luspo") { "sequence" } else { "token" };
        let options = serde_json::json!({
            "kl_coef": 0.1, "kl_times_ratio": true, "entropy_coef": 0.2, "seq": "step",
            "importance": {"cap": 1.3, "scope": scope}, "correction_over": "step",
        });
        let actual = plain::loss(name, &rows, &options).unwrap();
        for i in 0..rows.len() {
            for k in 0..rows[i].mask.len() {
                let mut at = |by: f64| {
                    let before = rows[i].logp[k];
                    rows[i].logp[k] = before + by;
                    let loss = plain::loss(name, &rows, &options).unwrap().loss;
                    rows[i].logp[k] = before;
                    loss
                };
                let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
                let gradient = actual.gradient[i][k];
                assert!((slope - gradient).abs() < 1e-8, "{name} row {i} token {k}: {slope} {gradient}");
            }
        }
    }
}

#[test]
fn detached_weights_have_the_gradient_of_reinforce() {
    let rows = cases().batches.remove("loss_tokens").unwrap();
    let plain_of = |name: &str, options: Value| plain::loss(name, &rows, &options).unwrap().gradient.concat();
    let bare = plain_of("reinforce", Value::Null);
    let ratios: Vec<f64> =
        rows.iter().flat_map(|row| row.logp.iter().zip(&row.logp_old).map(|(new, old)| (new - old).exp())).collect();
    let wide = serde_json::json!({"clip_low": 9.0, "clip_high": 9.0});
    for (name, options) in [("cispo", serde_json::json!({"clip_low": 1.0, "clip_high": 99.0})), ("dppo_tv", wide)] {
        for ((got, bare), ratio) in plain_of(name, options).iter().zip(&bare).zip(&ratios) {
            assert!((got - bare * ratio).abs() < 1e-14, "{name}");
        }
    }
}

/// Gradients at two trajectories of two tokens and one, times the number of tokens.
fn gradients(name: &str, log_ratios: [f64; 3], advantages: [f64; 3], weights: [f64; 3], options: &Value) -> Vec<f64> {
    let old = [-1.0, -2.0, -0.5];
    let row = |trajectory: u64, tokens: std::ops::Range<usize>| StepRow {
        logp: tokens.clone().map(|k| old[k] + log_ratios[k]).collect(),
        logp_old: old[tokens.clone()].to_vec(),
        logp_rollout: tokens.clone().map(|k| old[k] - weights[k].ln()).collect(),
        advantages: advantages[tokens.clone()].to_vec(),
        ..StepRow::new(0, trajectory, 0, tokens.len(), 0.0)
    };
    let loss = plain::loss(name, &[row(0, 0..2), row(1, 2..3)], options).unwrap();
    loss.gradient.concat().iter().map(|gradient| 3.0 * gradient).collect()
}

fn close(actual: &[f64], want: [f64; 3]) {
    assert!(actual.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14), "{actual:?} {want:?}");
}

#[test]
fn dro_is_a_policy_gradient_with_a_square() {
    let options = serde_json::json!({"beta": 0.8});
    let actual = gradients("dro", [0.5, 0.0, -0.25], [2.0, -1.0, 0.0], [1.0; 3], &options);
    close(&actual, [-2.0 + 0.8 * 0.5, 1.0, 0.8 * -0.25]);
}

#[test]
fn vespo_weighs_whole_sequences_by_a_gamma_form() {
    let options = serde_json::json!({"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 1.0, "lambda_neg": 0.5});
    let phi = |w: f64, k: f64, lambda: f64| lambda.exp() * w.powf(k) * (-lambda * w).exp();
    let advantages = [2.0, 2.0, -1.0];
    let actual = gradients("vespo", [0.5, 0.25, -0.25], advantages, [1.0; 3], &options);
    let positive = phi(0.75_f64.exp(), 2.0, 3.0);
    close(&actual, [-2.0 * positive, -2.0 * positive, phi((-0.25_f64).exp(), 1.0, 0.5)]);
    // On policy it is REINFORCE.
    close(&gradients("vespo", [0.0; 3], advantages, [1.0; 3], &options), [-2.0, -2.0, 1.0]);
    // Off-policy weights are factors of the ratio.
    let mut options = options;
    options["importance"] = serde_json::json!({"cap": 10.0, "scope": "token"});
    let actual = gradients("vespo", [0.0; 3], advantages, [1.5, 1.0, 0.5], &options);
    let positive = phi(1.5, 2.0, 3.0);
    close(&actual, [-2.0 * positive, -2.0 * positive, phi(0.5, 1.0, 0.5)]);
}
