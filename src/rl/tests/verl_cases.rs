//! Agreement with verl on a larger set of cases in f32: tests/golden/rl/verl_cases.jsonl, computed
//! by verl's `core_algos` (2026-08-22).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, from_value, json};
use tch::{Kind, Tensor};

use super::estimators::estimated;
use super::padded::{Mask, Padded, assert_close, floats};
use crate::config::LossAgg;
use crate::rl::advantages::{Deviation, Whiten, gae, group_normalized, whiten};
use crate::rl::aggregate::aggregate;
use crate::rl::kl::{KlKind, kl};
use crate::rl::losses::{Clip, ppo_clip, value_loss};
use crate::rl::objective::{Inputs, MicroBatchLoss, PolicyLoss};

/// Inputs are printed to 7 decimals.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Case {
    id: String,
    #[serde(rename = "fn")]
    function: String,
    input: Value,
    output: Value,
}

impl Case {
    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> T {
        from_value(self.input[name].clone()).unwrap_or_else(|error| panic!("{} {name}: {error}", self.id))
    }

    fn want(&self, name: &str) -> Padded {
        from_value(self.output[name].clone()).unwrap()
    }
}

#[test]
fn estimators_losses_and_kl_agree_with_verl() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rl/verl_cases.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut checked: BTreeMap<String, usize> = BTreeMap::new();
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let done = match case.function.as_str() {
            "policy_loss" => policy_loss(&case),
            "kl" => kl_case(&case),
            "gspo_loss" => sequence_loss(&case),
            "value_loss" => critic_loss(&case),
            _ => advantages(&case),
        };
        *checked.entry(case.function).or_default() += usize::from(done);
    }
    let expected = [
        ("gae", 11),
        ("grpo", 7),
        ("gspo_loss", 5),
        ("kl", 16),
        ("opo", 5),
        ("policy_loss", 41),
        ("reinforce_pp", 5),
        ("reinforce_pp_baseline", 6),
        ("rloo", 5),
        ("value_loss", 2),
    ];
    assert_eq!(checked, expected.map(|(name, n)| (name.to_owned(), n)).into());
}

/// Compares a case, and returns false for estimators that r1 does not have.
fn advantages(case: &Case) -> bool {
    if !case.input["token_level_rewards"].is_array() {
        return false;
    }
    let mask: Mask = case.read("response_mask");
    let rewards = mask.sampled(&case.read("token_level_rewards"));
    let returns: Vec<f64> = rewards.iter().map(|row| row.iter().sum()).collect();
    let groups = || -> Vec<u64> { case.read("index") };
    let got = match case.function.as_str() {
        "grpo" => {
            let deviation = if case.read("norm_by_std") { Deviation::Std } else { Deviation::None };
            mask.per_token(&group_normalized(&returns, &groups(), deviation, 1e-6))
        }
        name @ ("rloo" | "opo" | "reinforce_pp_baseline") => estimated(name, &json!({}), &rewards, &groups()),
        "reinforce_pp" => {
            let alone: Vec<u64> = (0..rewards.len() as u64).collect();
            estimated("reinforce_pp", &json!({ "gamma": case.read::<f64>("gamma") }), &rewards, &alone)
        }
        "gae" => {
            let values = mask.sampled(&case.read("values"));
            let row = |(rewards, values): (&Vec<f64>, &Vec<f64>)| {
                gae(rewards, values, 0.0, case.read("gamma"), case.read("lam"))
            };
            whiten(&rewards.iter().zip(&values).map(row).collect::<Padded>().concat(), Whiten::Variance)
        }
        _ => return false,
    };
    assert_close(&case.id, &got, &mask.sampled(&case.want("advantages")).concat(), TOLERANCE);
    true
}

fn policy_loss(case: &Case) -> bool {
    let Ok(loss_agg) = from_value::<LossAgg>(case.input["agg"].clone()) else { return false };
    let mask: Mask = case.read("response_mask");
    let gathered = |name: &str| -> Tensor { mask.gathered(&case.read(name)) };
    let clip = Clip { low: case.read("clip_low"), high: case.read("clip_high"), dual: Some(case.read("dual_clip_c")) };
    let logp = gathered("log_prob").set_requires_grad(true);
    let (loss, stats) = ppo_clip(&logp, &gathered("old_log_prob"), &gathered("advantages"), clip).unwrap();
    let loss = aggregate(&loss, &mask.sequence(), loss_agg, &mask.denominators()).unwrap();
    loss.backward();
    let stats = stats.read().unwrap();
    let number = |name: &str| case.output[name].as_f64().unwrap();
    let got = [
        loss.double_value(&[]),
        stats.clipfrac_low() + stats.clipfrac_high(),
        stats.clipfrac_dual(),
        stats.approx_kl_k1(),
    ];
    let want = ["loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"].map(number);
    assert_close(&case.id, &got, &want, TOLERANCE);
    assert_close(&case.id, &floats(&logp.grad()), &mask.sampled(&case.want("grad_log_prob")).concat(), TOLERANCE);
    true
}

fn sequence_loss(case: &Case) -> bool {
    let mask: Mask = case.read("response_mask");
    let gathered = |name: &str| -> Tensor { mask.gathered(&case.read(name)) };
    let logp = gathered("log_prob").set_requires_grad(true);
    let (logp_old, advantages, sequence) = (gathered("old_log_prob"), gathered("advantages"), mask.sequence());
    let inputs = Inputs {
        logp: &logp,
        logp_old: &logp_old,
        advantages: &advantages,
        logp_ref: None,
        entropy: None,
        trajectory: &sequence,
        step: &sequence,
        sequences: sequence.numel() as i64,
        weights: None,
        selected: None,
        group: &sequence,
        rewards: None,
        units: None,
    };
    let options = json!({ "clip_low": case.read::<f64>("clip_low"), "clip_high": case.read::<f64>("clip_high") });
    let MicroBatchLoss { loss, ratios, .. } =
        PolicyLoss::new("gspo", &options).unwrap().compute(&inputs, &mask.denominators()).unwrap();
    loss.backward();
    let stats = ratios.read().unwrap();
    let number = |name: &str| case.output[name].as_f64().unwrap();
    let got = [loss.double_value(&[]), stats.clipfrac_low() + stats.clipfrac_high(), stats.approx_kl_k1()];
    assert_close(&case.id, &got, &["loss", "pg_clipfrac", "ppo_kl"].map(number), TOLERANCE);
    assert_close(&case.id, &floats(&logp.grad()), &mask.sampled(&case.want("grad_log_prob")).concat(), TOLERANCE);
    true
}

fn critic_loss(case: &Case) -> bool {
    let mask: Mask = case.read("response_mask");
    let gathered = |name: &str| -> Tensor { mask.gathered(&case.read(name)) };
    let clip = Some(case.read("cliprange"));
    let (loss, clipped) = value_loss(&gathered("vpreds"), &gathered("values"), &gathered("returns"), clip).unwrap();
    let number = |name: &str| case.output[name].as_f64().unwrap();
    let share = clipped.double_value(&[]) / loss.numel() as f64;
    let loss = loss.mean(Kind::Double).double_value(&[]);
    assert_close(&case.id, &[loss, share], &["loss", "clipfrac"].map(number), TOLERANCE);
    true
}

fn kl_case(case: &Case) -> bool {
    let kind = match case.read::<String>("kind").as_str() {
        "k1" => KlKind::K1,
        "abs" => KlKind::Abs,
        "k2" => KlKind::K2,
        "k3" => KlKind::K3,
        _ => return false,
    };
    let whole = |name: &str| Tensor::from_slice(&case.read::<Padded>(name).concat());
    let got = kl(&whole("logprob"), &whole("ref_logprob"), kind).unwrap();
    assert_close(&case.id, &floats(&got.to_kind(Kind::Double)), &case.want("kl").concat(), TOLERANCE);
    true
}
