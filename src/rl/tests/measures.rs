//! Metrics other than losses and advantages, against values computed by hand: clipped shares and
//! extreme ratios of every kind of loss, the mismatch of rollout and learner, the explained
//! variance; and names and options.

use std::f64::consts::LN_2;

use serde_json::{Value, json};
use tch::Tensor;

use super::padded::assert_close;
use crate::rl::advantages::{Estimator, Level};
use crate::rl::correction::{Estimate, Measure, Mismatch, Rejection};
use crate::rl::filter::{Keep, dynamic_sampling, starpo_s};
use crate::rl::losses::explained_variance;
use crate::rl::objective::PolicyLoss;
use crate::rl::plain;
use crate::rl::rewards::{Grouping, Method, Shaping, normalize, shape};
use crate::rl::rows::StepRow;

/// Two trajectories of two tokens with ratios 1.5, 0.5 and 1.1, 0.5; only the second token has a
/// negative advantage.
fn ratios() -> Vec<StepRow> {
    let row = |trajectory: u64, ratios: [f64; 2], advantages: [f64; 2]| StepRow {
        logp_old: vec![-2.0; 2],
        logp: ratios.map(|ratio| ratio.ln() - 2.0).to_vec(),
        advantages: advantages.to_vec(),
        ..StepRow::new(0, trajectory, 0, 2, 0.0)
    };
    vec![row(0, [1.5, 0.5], [1.0, -1.0]), row(1, [1.1, 0.5], [1.0, 1.0])]
}

fn measured(name: &str, options: &Value, names: &[&str]) -> Vec<f64> {
    let metrics = plain::loss(name, &ratios(), options).unwrap().metrics;
    names.iter().map(|name| metrics[*name]).collect()
}

#[test]
fn clipped_shares_and_extreme_ratios() {
    let names = ["clipfrac_low", "clipfrac_high", "ratio_min", "ratio_max"];
    let tight = |low: f64, high: f64| json!({"clip_low": low, "clip_high": high});
    for (name, options, want) in [
        ("ppo", tight(0.2, 0.2), [0.25, 0.25, 0.5, 1.5]),
        // Only the side counts, not the advantage.
        ("cispo", tight(0.2, 0.2), [0.5, 0.25, 0.5, 1.5]),
        // As in verl: every token outside the bounds is counted by the sign of its advantage.
        ("geo_mean", tight(0.2, 0.2), [0.25, 0.5, 0.5, 1.5]),
        ("reinforce", json!({}), [0.0, 0.0, 0.5, 1.5]),
        ("sapo", json!({}), [0.0, 0.0, 0.5, 1.5]),
        // Ratios of sequences: the roots of 0.75 and 0.55.
        ("gspo", tight(0.1, 0.2), [0.25, 0.0, 0.55_f64.sqrt(), 0.75_f64.sqrt()]),
    ] {
        assert_close(name, &measured(name, &options, &names), &want, 1e-12);
    }
    let logs = [1.5_f64, 0.5, 1.1, 0.5].map(f64::ln);
    let k1 = -logs.iter().sum::<f64>() / 4.0;
    let k3 = logs.iter().map(|d| d.exp() - 1.0 - d).sum::<f64>() / 4.0;
    assert_close("kl", &measured("ppo", &json!({}), &["approx_kl_k1", "approx_kl_k3"]), &[k1, k3], 1e-12);
    // Nothing was sampled.
    let none = [StepRow { mask: vec![false], ..StepRow::new(0, 0, 0, 1, 0.0) }];
    let importance = json!({"importance": {"scope": "token", "cap": 2.0, "floor": null, "normalize": false}});
    let metrics = plain::loss("ppo", &none, &importance).unwrap().metrics;
    assert_eq!((metrics["weight"], metrics["ratio_min"], metrics["ratio_max"]), (0.0, 1.0, 1.0));
}

#[test]
fn importance_weights_are_per_token_or_per_sequence() {
    let mut rows = vec![ratios().remove(0)];
    rows[0].logp = vec![-2.0; 2];
    rows[0].advantages = vec![1.0; 2];
    rows[0].logp_rollout = vec![-2.0 - LN_2, -2.0 - 3.0 * LN_2];
    let loss = |name: &str, cap: f64| {
        let importance = json!({"scope": "token", "cap": cap, "floor": null, "normalize": false});
        let rejection = json!({"measure": "token", "estimate": "k1", "upper": 4.0, "lower": 0.1});
        let plain =
            plain::loss(name, &rows, &json!({"importance": importance, "loss_agg": "seq-mean-token-mean"})).unwrap();
        let kept = plain::loss(name, &rows, &json!({"rejection": rejection})).unwrap();
        (plain.metrics["policy_loss"], plain.metrics["weight"], kept.metrics["rejected"])
    };
    // Weights 2 and 8: their mean is 5, their geometric mean 4. k1 is the logarithm of 1/8 at the
    // second token.
    let close = |actual: (f64, f64, f64), want: [f64; 3]| {
        assert_close("weights", &[actual.0, actual.1, actual.2], &want, 1e-8);
    };
    close(loss("ppo", 10.0), [-5.0, 5.0, 0.0]);
    close(loss("geo_mean", 10.0), [-4.0, 5.0, 0.0]);
    close(loss("geo_mean", 4.5), [-3.0, 3.25, 0.0]);
}

#[test]
fn mismatch_measures_equal_values_by_hand() {
    let d = [0.5_f64, -0.2, 0.1, -0.9];
    let mean = |f: &dyn Fn(f64) -> f64| d.iter().map(|d| f(*d)).sum::<f64>() / 4.0;
    let Mismatch { k1, k3, largest, chi2 } = Mismatch::of(&Tensor::from_slice(&d)).unwrap();
    let want = [mean(&|d| -d), mean(&|d| d.exp() - 1.0 - d), 0.9, mean(&|d| (2.0 * d).exp()) - 1.0];
    assert_close("mismatch", &[k1, k3, largest, chi2], &want, 1e-12);
    assert_eq!(Mismatch::of(&Tensor::from_slice::<f64>(&[])).unwrap(), Mismatch::default());
    // Small bounds are bounds.
    let rejection = Rejection { measure: Measure::Token, estimate: Estimate::K2, upper: 0.005, lower: None };
    let kept = rejection.mask(&Tensor::from_slice(&[0.05, 0.2]), &Tensor::from_slice(&[0_i64, 0])).unwrap();
    assert_eq!(Vec::<f64>::try_from(kept).unwrap(), [1.0, 0.0]);
}

#[test]
fn explained_variance_equals_values_by_hand() {
    // Var(R - V) of 0, 1, 1 is 2/9, Var(R) is 8/3.
    assert_close("variance", &[explained_variance(&[1.0, 2.0, 4.0], &[1.0, 3.0, 5.0])], &[11.0 / 12.0], 1e-12);
    assert_close("variance", &[explained_variance(&[2.0, 1.0], &[1.0, 2.0])], &[-3.0], 1e-12);
    assert!(explained_variance(&[1.0, 2.0], &[3.0, 3.0]).is_nan());
}

#[test]
fn groups_with_tiny_differences_are_kept() {
    assert_eq!(dynamic_sampling(&[1.0, 1.001, 0.5, 0.5, 2.0], &[1, 1, 2, 2, 3]), [1, 3]);
}

#[test]
fn names_options_and_their_defaults() {
    let ppo = PolicyLoss::new("ppo", &json!({})).unwrap();
    assert!(ppo.has_option("clip_high") && ppo.has_option("loss_agg") && !ppo.has_option("tau_pos"));
    let estimator = |name: &str, options: Value| Estimator::new(name, &options).unwrap();
    assert_eq!(estimator("remax", json!({})).level(), Level::Trajectory);
    assert_eq!(estimator("remax", json!({"reward_to_go": true})).level(), Level::Token);
    let rapo = Estimator::reference().find(|estimator| estimator.name == "rapo").unwrap();
    let defaults = json!({"normalize": "std", "epsilon": 1e-6, "threshold": 1, "margin": 0.5, "bonus": 0.1});
    assert_eq!(Value::Object(rapo.options), defaults);
}

/// A step without sampled tokens is not a turn; its reward is added to the turn before it.
#[test]
fn rewards_of_steps_without_a_sample_are_added_to_the_turn_before() {
    let row = |step: u64, tokens: usize, reward: f64| StepRow {
        values: vec![0.3; tokens.max(1)],
        mask: vec![tokens > 0; tokens.max(1)],
        terminated: step == 2,
        ..StepRow::new(0, 0, step, tokens.max(1), reward)
    };
    let advantages = |rewards: [f64; 3]| {
        let rows = [row(0, 2, rewards[0]), row(1, 0, rewards[1]), row(2, 1, rewards[2])];
        let options = json!({"gamma_turn": 0.9, "gamma": 0.8, "lambda": 0.7, "whiten": "none"});
        let result = Estimator::new("gae_bilevel", &options).unwrap().estimate(&rows, false).unwrap();
        result.advantages.concat()
    };
    let joined = advantages([3.0, 0.0, 0.5]);
    assert_close("joined", &advantages([1.0, 2.0, 0.5]), &joined, 1e-12);
    assert!(joined[1] > 1.0, "{joined:?}");
}

/// Edge cases of estimators and losses.
#[test]
fn edge_cases_of_estimators_and_losses() {
    // RAPO reads the current policy: it does not prefer the winner, though the behaviour policy
    // did.
    let row = |trajectory: u64, reward: f64, logp: f64, old: f64| StepRow {
        logp: vec![logp],
        logp_old: vec![old],
        ..StepRow::new(0, trajectory, 0, 1, reward)
    };
    let rapo = Estimator::new("rapo", &json!({"normalize": "none"})).unwrap();
    let actual = rapo.estimate(&[row(0, 2.0, -2.0, -1.0), row(1, 0.0, -2.0, -3.0)], false).unwrap();
    assert_close("rapo", &actual.advantages.concat(), &[1.1, -1.1], 1e-12);
    // A ratio of a sequence is bounded by e^10, and has no gradient there.
    let far = StepRow { advantages: vec![-1.0], ..row(0, 0.0, -1.0, -13.0) };
    let actual = plain::loss("gspo", std::slice::from_ref(&far), &Value::Null).unwrap();
    assert_close("gspo", &[actual.loss, actual.gradient[0][0]], &[10.0_f64.exp(), 0.0], 1e-12);
    // The entropy bonus is subtracted from the loss, the KL term is added.
    let both = StepRow { entropy: vec![2.0], logp_ref: vec![-3.0], advantages: vec![0.0], ..row(0, 0.0, -2.0, -2.0) };
    let loss = |options: Value| plain::loss("ppo", std::slice::from_ref(&both), &options).unwrap().loss;
    assert_close("entropy", &[loss(json!({"entropy_coef": 0.5}))], &[-1.0], 1e-12);
    assert_close("kl", &[loss(json!({"kl_coef": 0.5, "kl": "k2"}))], &[0.25], 1e-12);
    // A tiny share selects one token.
    for name in ["clip_cov", "kl_cov"] {
        let open = json!({"share": 1e-9});
        let options = if name == "kl_cov" { open } else { json!({"share": 1e-9, "cov_low": -9.0, "cov_high": 9.0}) };
        assert_eq!(measured(name, &options, &["selected"]), [0.25], "{name}");
    }
}

#[test]
fn edge_cases_of_filters_and_rewards() {
    // 0.29 x 100 is 28.999…: 29 groups, those that vary most.
    let (returns, groups): (Vec<f64>, Vec<u64>) = (0..200_u64).map(|i| ((i % 2 * (i / 2)) as f64, i / 2)).unzip();
    let kept = starpo_s(&returns, &groups, 0.29, Keep::Largest).unwrap();
    assert_eq!(kept, (71..100).collect::<Vec<u64>>());
    // A tiny deviation counts as 0.
    assert_eq!(normalize(&[1.0, 1.0 + 1e-7], &[0, 0], Method::MeanStd), [0.0, 0.0]);
    let row = |trajectory: u64, reward: f64, process: f64, tag: u64| StepRow {
        process: vec![process],
        tag,
        ..StepRow::new(trajectory, trajectory, 0, 1, reward)
    };
    // Failures do not count in the size of process rewards.
    let failed = StepRow { status: Some(crate::mdp::Status::EnvError), ..row(1, 0.0, 100.0, 0) };
    let prime = Shaping { prime: true, ..Shaping::default() };
    let shaped = shape(&[row(0, 0.0, 2.0, 0), failed], &prime.into(), false).unwrap();
    assert_close("prime", &shaped[0].rewards, &[2.0 / 2.000_001], 1e-12);
    // Tasks of one kind are compared across groups.
    let kinds = Shaping { normalize: Some((Grouping::Inductive, Method::Mean)), ..Shaping::default() };
    let shaped = shape(&[row(0, 1.0, 0.0, 7), row(1, 3.0, 0.0, 7), row(2, 9.0, 0.0, 8)], &kinds.into(), false).unwrap();
    assert_eq!(shaped.iter().map(StepRow::reward).collect::<Vec<_>>(), [-1.0, 1.0, 0.0]);
}
