//! Combinations of estimator, loss and critic.
#![allow(clippy::unwrap_used)]

use serde_json::{Map, Value, json};

use super::objective::Objective;
use crate::config::{Branch, Choice, Kl, KlPlace, Learner};
use crate::error::Error;
use crate::mdp::Sampling;
use crate::rl::advantages::{AlgorithmNeed, Estimator};

fn choice(name: &str, options: Value) -> Choice {
    Choice { options: serde_json::from_value::<Map<String, Value>>(options).unwrap(), ..Choice::new(name) }
}

/// Settings with an estimator and a loss, the latter with options.
fn learner(estimator: &str, loss: &str, options: Value) -> Learner {
    Learner { estimator: choice(estimator, json!({})), loss: choice(loss, options), ..Learner::default() }
}

fn refused(learner: &Learner) -> Option<Error> {
    let critic =
        Estimator::new(learner.estimator.shown(), &Value::Null).unwrap().needs().contains(&AlgorithmNeed::Critic);
    Objective::new(learner, &Sampling::default(), critic).err()
}

#[test]
fn every_estimator_works_with_every_loss_by_token() {
    let by_token = ["ppo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl"];
    for estimator in Estimator::names() {
        for loss in by_token.into_iter().chain(["gpg", "reinforce", "vespo", "dro"]) {
            assert!(refused(&learner(estimator, loss, json!({}))).is_none(), "{estimator} {loss}");
        }
    }
    assert!(refused(&learner("gae", "pspo", json!({}))).is_none());
    assert!(refused(&learner("grpo", "gspo", json!({ "ratio_over": "trajectory" }))).is_none());
    let single = Learner { group_size: 1, ..learner("reinforce_pp", "ppo", json!({})) };
    assert!(refused(&single).is_none());
}

#[test]
fn contradicting_combinations_are_refused_with_setting_and_hint() {
    let says = |learner: &Learner, setting: &str, message: &str, hint: &str| {
        let error = refused(learner).unwrap();
        let about = error.setting().map(str::to_owned);
        assert_eq!(about.as_deref(), Some(setting), "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.hint.as_deref().is_some_and(|text| text.contains(hint)), "{error}");
    };
    let single = Learner { group_size: 1, ..learner("grpo", "ppo", json!({})) };
    says(&single, "trainer.estimator", "trainer.group_size is 1", "raise trainer.group_size");
    says(&learner("gae_token", "gspo", json!({})), "trainer.loss", "one ratio for a sequence", "gae or grpo");
    says(&learner("reinforce_pp", "geo_mean", json!({})), "trainer.loss", "one ratio for a sequence", "ppo");
    says(&learner("grpo", "pspo", json!({})), "trainer.loss", "step-level gae, not with grpo", "gspo");
    let over = json!({ "ratio_over": "trajectory" });
    let by_step = learner("gigpo", "gspo", over.clone());
    says(&by_step, "trainer.loss.ratio_over", "gigpo, which gives one per step", "ratio_over = \"step\"");
    let branch = Branch { roots: 2, ..Branch::default() };
    let tree = Learner { branch, ..learner("grpo", "gspo", over) };
    says(&tree, "trainer.loss.ratio_over", "steps that trajectories share", "ratio_over = \"step\"");
    let kl = Kl { target: 0.1, ..Kl::default() };
    let steered = Learner { kl, ..learner("grpo", "ppo", json!({})) };
    says(&steered, "trainer.kl.target", "trainer.kl.coef is 0", "trainer.kl.coef");
}

#[test]
fn a_number_given_as_setting_and_as_option_of_the_loss_is_refused() {
    let twice = |learner: Learner, setting: &str, option: &str| {
        let error = refused(&learner).unwrap();
        let message = format!("{setting} and `{option}` of trainer.loss");
        assert!(error.message.contains(&message) && error.hint.is_some(), "{error}");
    };
    let with = |options: Value| learner("grpo", "ppo", options);
    let clip = Some((0.2, 0.3));
    twice(Learner { clip, ..with(json!({ "clip_low": 0.1 })) }, "trainer.clip", "clip_low");
    twice(Learner { clip, ..with(json!({ "clip_high": 0.1 })) }, "trainer.clip", "clip_high");
    let loss_agg = Some(crate::config::LossAgg::TokenMean);
    let aggregated = Learner { loss_agg, ..with(json!({ "loss_agg": "seq-mean-token-sum" })) };
    twice(aggregated, "trainer.loss_agg", "loss_agg");
    twice(Learner { entropy: 0.1, ..with(json!({ "entropy_coef": 0.1 })) }, "trainer.entropy", "entropy_coef");
    let kl = Kl { coef: 0.1, ..Kl::default() };
    twice(Learner { kl: kl.clone(), ..with(json!({ "kl_coef": 0.2 })) }, "trainer.kl.coef", "kl_coef");
    // A penalty in the reward is independent of the KL in the loss.
    let reward_penalty = KlPlace::Reward;
    assert!(refused(&Learner { kl: Kl { place: reward_penalty, ..kl }, ..with(json!({ "kl_coef": 0.2 })) }).is_none());
}

#[test]
fn a_custom_loss_has_options_of_its_own() {
    assert!(refused(&learner("grpo", Choice::OF_RECIPE, json!({ "clip_low": 0.1 }))).is_none());
    let clipped = Learner { clip: Some((0.1, 0.2)), ..learner("grpo", Choice::OF_RECIPE, json!({ "kl_coef": 0.1 })) };
    let error = refused(&clipped).map(|error| error.to_string()).unwrap_or_default();
    assert!(!error.contains("set the same value"), "{error}");
}
