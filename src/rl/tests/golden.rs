//! Agreement with verl, TRL and PyTorch: `tests/golden/rl/golden.json` (made by `make.py` in that
//! folder), in f64.

use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::estimators::estimated;
use super::padded::{Mask, Padded, assert_close, floats};
use crate::adamw::{AdamW, AdamWOptions};
use crate::config::LossAgg;
use crate::rl::advantages::{Deviation, Whiten, gae, group_normalized, whiten};
use crate::rl::aggregate::{Denominators, aggregate};
use crate::rl::kl::{KlKind, kl, kl_straight_through};
use crate::rl::losses::{Clip, ppo_clip};

#[derive(Deserialize)]
struct Golden {
    batch: Batch,
    advantages: Advantages,
    ppo_clip: Vec<PpoCase>,
    kl: Vec<KlCase>,
    adamw: AdamWCase,
}

#[derive(Deserialize)]
struct Batch {
    mask: Mask,
    groups: Vec<u64>,
    logp_old: Padded,
    logp: Padded,
    logp_ref: Padded,
    advantages: Padded,
    rewards: Padded,
    values: Padded,
}

#[derive(Deserialize)]
struct Advantages {
    gamma: f64,
    lambda: f64,
    grpo: Padded,
    grpo_mean: Padded,
    rloo: Padded,
    opo: Padded,
    reinforce_pp: Padded,
    reinforce_pp_baseline: Padded,
    gae: Padded,
}

#[derive(Deserialize)]
struct PpoCase {
    by: String,
    low: f64,
    high: f64,
    dual: Option<f64>,
    loss_agg: LossAgg,
    loss: f64,
    gradient: Padded,
    clipfrac: Option<f64>,
    clipfrac_dual: Option<f64>,
    kl_k1: Option<f64>,
}

#[derive(Deserialize)]
struct KlCase {
    kind: String,
    kl: Padded,
    gradient: Padded,
}

#[derive(Deserialize)]
struct AdamWCase {
    start: (Padded, Vec<f64>),
    steps: Vec<AdamWStep>,
}

#[derive(Deserialize)]
struct AdamWStep {
    lr: f64,
    gradients: (Padded, Vec<f64>),
    norm: f64,
    after: (Padded, Vec<f64>),
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../tests/golden/rl/golden.json")).unwrap()
}

#[test]
fn advantages_are_verls() {
    let Golden { batch, advantages: golden, .. } = golden();
    let rewards = batch.mask.sampled(&batch.rewards);
    let returns: Vec<f64> = rewards.iter().map(|row| row.iter().sum()).collect();
    let per_token = |advantages: &[f64]| batch.mask.per_token(advantages);
    let check = |name: &str, got: &[f64], want: &Padded, tolerance: f64| {
        assert_close(name, got, &batch.mask.sampled(want).concat(), tolerance);
    };
    let groups = &batch.groups;
    let grpo = |deviation| group_normalized(&returns, groups, deviation, 1e-6);
    check("grpo", &per_token(&grpo(Deviation::Std)), &golden.grpo, 1e-12);
    check("grpo without std", &per_token(&grpo(Deviation::None)), &golden.grpo_mean, 1e-12);
    let of = |name: &str, options: Value| estimated(name, &options, &rewards, groups);
    check("rloo", &of("rloo", json!({})), &golden.rloo, 1e-12);
    check("opo", &of("opo", json!({})), &golden.opo, 1e-12);
    // verl whitens with sqrt(variance + 1e-8) and a mean over n + 1e-8, r1 with deviation + 1e-8
    // and n.
    check("reinforce_pp_baseline", &of("reinforce_pp_baseline", json!({})), &golden.reinforce_pp_baseline, 1e-7);
    let discounted = of("reinforce_pp", json!({ "gamma": golden.gamma }));
    check("reinforce_pp", &discounted, &golden.reinforce_pp, 1e-7);
    let raw: Padded = rewards
        .iter()
        .zip(batch.mask.sampled(&batch.values))
        .map(|(rewards, values)| gae(rewards, &values, 0.0, golden.gamma, golden.lambda))
        .collect();
    check("gae", &whiten(&raw.concat(), Whiten::Variance), &golden.gae, 1e-7);
}

#[test]
fn ppo_clip_equals_that_of_verl_and_trl() {
    let Golden { batch, ppo_clip: cases, .. } = golden();
    let denominators = Denominators::of(&batch.mask.rows());
    for case in &cases {
        let what = format!("{} {:?} {:?}", case.by, case.loss_agg, (case.low, case.high, case.dual));
        // verl divides the sum over a trajectory by its length + 1e-8.
        let tolerance = if case.by == "verl" && case.loss_agg == LossAgg::SeqMeanTokenMean { 1e-8 } else { 1e-12 };
        let logp = batch.mask.gathered(&batch.logp).set_requires_grad(true);
        let clip = Clip { low: case.low, high: case.high, dual: case.dual };
        let (loss, stats) =
            ppo_clip(&logp, &batch.mask.gathered(&batch.logp_old), &batch.mask.gathered(&batch.advantages), clip)
                .unwrap();
        let loss = aggregate(&loss, &batch.mask.sequence(), case.loss_agg, &denominators).unwrap();
        loss.backward();
        assert_close(&what, &floats(&loss), &[case.loss], tolerance);
        assert_close(&what, &floats(&logp.grad()), &batch.mask.sampled(&case.gradient).concat(), tolerance);
        let stats = stats.read().unwrap();
        for (name, got, want) in [
            ("clipfrac", stats.clipfrac_low() + stats.clipfrac_high(), case.clipfrac),
            ("clipfrac_dual", stats.clipfrac_dual(), case.clipfrac_dual),
            ("kl", stats.approx_kl_k1(), case.kl_k1),
        ] {
            // verl's fractions are f32.
            if let Some(want) = want {
                assert_close(&format!("{what} {name}"), &[got], &[want], 1e-6);
            }
        }
    }
    assert_eq!(cases.len(), 11);
}

#[test]
fn kl_is_verls() {
    let Golden { batch, kl: cases, .. } = golden();
    for case in &cases {
        let logp = batch.mask.gathered(&batch.logp).set_requires_grad(true);
        let logp_ref = batch.mask.gathered(&batch.logp_ref);
        let value = match case.kind.as_str() {
            "k1" => kl(&logp, &logp_ref, KlKind::K1),
            "abs" => kl(&logp, &logp_ref, KlKind::Abs),
            "k2" => kl(&logp, &logp_ref, KlKind::K2),
            "k3" => kl(&logp, &logp_ref, KlKind::K3),
            "k1+" => kl_straight_through(&logp, &logp_ref, KlKind::K1),
            "k3+" => kl_straight_through(&logp, &logp_ref, KlKind::K3),
            other => panic!("the fixture has a new kind {other}"),
        }
        .unwrap();
        value.sum(Kind::Double).backward();
        assert_close(&case.kind, &floats(&value), &batch.mask.sampled(&case.kl).concat(), 1e-12);
        assert_close(&case.kind, &floats(&logp.grad()), &batch.mask.sampled(&case.gradient).concat(), 1e-12);
    }
}

#[test]
fn adamw_is_pytorchs() {
    let AdamWCase { start, steps } = golden().adamw;
    for (kind, tolerance) in [(Kind::Double, 1e-12), (Kind::Float, 1e-6)] {
        let tensor = |values: &[f64], size: &[i64]| Tensor::from_slice(values).view(size).to_kind(kind);
        let matrix = tensor(&start.0.concat(), &[3, 4]).set_requires_grad(true);
        let vector = tensor(&start.1, &[5]).set_requires_grad(true);
        let options = AdamWOptions { betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1, decay_matrices_only: false };
        let parameters =
            vec![("matrix".to_owned(), matrix.shallow_clone()), ("vector".to_owned(), vector.shallow_clone())];
        let mut optimizer = AdamW::new(parameters, options).unwrap();
        for step in &steps {
            optimizer.zero_grad();
            let gradients = (tensor(&step.gradients.0.concat(), &[3, 4]), tensor(&step.gradients.1, &[5]));
            ((&matrix * &gradients.0).sum(kind) + (&vector * &gradients.1).sum(kind)).backward();
            let norm = optimizer.step(step.lr, 1.0).unwrap();
            assert_close("norm", &[norm], &[step.norm], tolerance);
            assert_close("matrix", &floats(&matrix), &step.after.0.concat(), tolerance);
            assert_close("vector", &floats(&vector), &step.after.1, tolerance);
        }
    }
}
