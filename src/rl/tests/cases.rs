//! Agreement of estimators, rewards and losses with the packages that define them:
//! `tests/golden/rl/cases.json` (made by `cases.py` in that folder), in f64, over ragged
//! trajectories of several steps with masked tokens, singletons, failures and truncation.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::losses::{compare_corrections, compare_losses, compare_values};
use super::padded::{Padded, assert_close};
use super::parity::Parity;
use crate::rl::advantages::Estimator;
use crate::rl::kl::KlController;
use crate::rl::rewards::{Method, ReturnScale, normalize};
use crate::rl::rows::StepRow;

#[derive(Deserialize)]
struct Cases {
    batches: BTreeMap<String, Vec<StepRow>>,
    advantages: Vec<AdvantageCase>,
    rewards: Rewards,
}

#[derive(Deserialize)]
struct AdvantageCase {
    batch: String,
    name: String,
    options: Value,
    by: String,
    advantages: Padded,
    returns: Option<Padded>,
}

#[derive(Deserialize)]
struct Rewards {
    running: Running,
    normalize: Normalized,
    controller: Controller,
}

#[derive(Deserialize)]
struct Running {
    gamma: f64,
    updates: Vec<RunningUpdate>,
}

#[derive(Deserialize)]
struct RunningUpdate {
    rewards: Vec<Vec<f64>>,
    factor: f64,
}

#[derive(Deserialize)]
struct Normalized {
    returns: Vec<f64>,
    keys: Vec<u64>,
    made: BTreeMap<String, Vec<f64>>,
    by: String,
}

#[derive(Deserialize)]
struct Controller {
    coef: f64,
    target: f64,
    horizon: f64,
    updates: Vec<ControllerUpdate>,
}

#[derive(Deserialize)]
struct ControllerUpdate {
    kl: f64,
    n: usize,
    coef: f64,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("../../../tests/golden/rl/cases.json")).unwrap()
}

/// Compares every estimator with its reference, and records the worst difference.
fn compare_advantages(parity: &mut Parity) {
    let Cases { batches, advantages, .. } = cases();
    for case in &advantages {
        let what = format!("{} {} on {} by {}", case.name, case.options, case.batch, case.by);
        let estimator = Estimator::new(&case.name, &case.options).unwrap();
        let rows = &batches[&case.batch];
        let got = estimator.estimate(rows, false).unwrap();
        parity.compare(&case.name, &case.by, &got.advantages.concat(), &case.advantages.concat(), 1e-10, &what);
        if let Some(returns) = &case.returns {
            // verl has a target at every sampled token, r1 only where the critic is trained.
            let name = format!("{} returns", case.name);
            parity.compare(&name, &case.by, &got.returns.concat(), &returns.concat(), 1e-10, &what);
            let targets = got.targets.concat().iter().filter(|target| **target).count();
            let places = rows.iter().map(|row| if case.name == "gae" { 1 } else { row.sampled() });
            let counted = places.zip(&got.counted).filter(|(_, counted)| **counted);
            assert_eq!(targets, counted.map(|(places, _)| places).sum::<usize>(), "{what}");
        }
    }
    let seen: std::collections::BTreeSet<&str> = advantages.iter().map(|case| case.name.as_str()).collect();
    // No package has trees by steps; rl::advantages::tree has a closed-form test.
    assert_eq!(seen, Estimator::names().into_iter().filter(|name| *name != "tree").collect());
}

fn compare_normalization(parity: &mut Parity) {
    let Normalized { returns, keys, made, by } = cases().rewards.normalize;
    for (name, want) in &made {
        let method: Method = serde_json::from_value(Value::from(name.as_str())).unwrap();
        let got = normalize(&returns, &keys, method);
        parity.compare("rewards normalised", &by, &got, want, 1e-10, name);
    }
}

#[test]
fn the_page_of_differences_is_current() {
    let mut parity = Parity::default();
    compare_advantages(&mut parity);
    compare_losses(&mut parity);
    compare_corrections(&mut parity);
    compare_values(&mut parity);
    compare_normalization(&mut parity);
    parity.page();
}

#[test]
fn reward_scaling_agrees_with_other_systems() {
    let Rewards { running, controller, .. } = cases().rewards;
    let mut scale = ReturnScale::new(running.gamma);
    for update in &running.updates {
        scale.update(&update.rewards);
        assert_close("running", &[scale.factor()], &[update.factor], 1e-12);
    }
    let Controller { coef, target, horizon, updates } = controller;
    let mut adaptive = KlController::Adaptive { coef, target, horizon };
    for update in &updates {
        adaptive.update(update.kl, update.n);
        assert_close("controller", &[adaptive.coef()], &[update.coef], 1e-15);
    }
}
