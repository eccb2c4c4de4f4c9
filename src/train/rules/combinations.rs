//! Rules about the estimator, the loss and the critic of a recipe together, one row each. Settings
//! alone are compared in `refusals.rs`.

use super::objective::Objective;
use super::refusals::Rule;
use crate::config::{Input, KlPlace, Learner, MiniBatchBy, Shape};
use crate::rl::advantages::{AlgorithmNeed, Estimator, Level};
use crate::rl::objective::{self as policy, Unit};
use crate::rl::rewards::Shaping;

/// The estimator, loss and critic of a recipe.
pub(crate) struct Combination {
    pub(crate) learner: Learner,
    /// Whether the loop trains a critic.
    pub(crate) critic: bool,
    /// `None` for the recipe's function `advantage`.
    pub(crate) estimator: Option<Estimator>,
    /// With the options of the recipe, including the KL penalty.
    pub(crate) loss: policy::PolicyLoss,
    /// The coefficient of the KL, in the loss or in the reward.
    pub(crate) kl_coef: f64,
}

impl Combination {
    fn needs(&self, need: AlgorithmNeed) -> bool {
        self.estimator.as_ref().is_some_and(|estimator| estimator.needs().contains(&need))
    }

    /// The names of estimator and loss, if the loss needs one advantage per sequence.
    fn by_sequence(&self) -> Option<(&Estimator, &'static str)> {
        let estimator = self.estimator.as_ref()?;
        self.loss.formula.one_advantage_per_sequence().then_some((estimator, self.loss.name))
    }

    /// The same, if a sequence of the loss is a trajectory.
    fn by_trajectory(&self) -> Option<(&Estimator, &'static str)> {
        self.by_sequence().filter(|_| self.loss.terms.ratio_over == Unit::Trajectory)
    }
}

/// Combinations that do not work or make no sense.
pub(crate) const COMBINATIONS: &[Rule<Combination>] = &[
    Rule {
        setting: "trainer.estimator",
        broken: |combination| {
            let name = combination.estimator.as_ref()?.name();
            (combination.critic && !combination.needs(AlgorithmNeed::Critic))
                .then(|| format!("trainer.estimator is {name}, which does not use the critic that r1.ppo trains"))
        },
        hint: "use r1.grpo, or estimator = \"gae\"",
    },
    Rule {
        setting: "trainer.estimator",
        broken: |combination| {
            let name = combination.estimator.as_ref()?.name();
            (combination.needs(AlgorithmNeed::Critic) && !combination.critic)
                .then(|| format!("trainer.estimator is {name}, which needs the values of a critic"))
        },
        hint: "use r1.ppo",
    },
    Rule {
        setting: "trainer.estimator",
        broken: |combination| {
            let (name, size) = (combination.estimator.as_ref()?.name(), combination.learner.group_size);
            (combination.needs(AlgorithmNeed::Groups) && size < 2).then(|| {
                format!(
                    "trainer.estimator is {name}, which compares the trajectories of a group, and trainer.group_size \
                     is {size}"
                )
            })
        },
        hint: "raise trainer.group_size, or choose an estimator without groups, such as reinforce_pp",
    },
    Rule {
        setting: "trainer.mini_batch_by",
        broken: |combination| {
            (combination.critic && combination.learner.mini_batch_by == MiniBatchBy::Step)
                .then(|| "trainer.mini_batch_by is \"step\", which is defined without a critic".to_owned())
        },
        hint: "use r1.grpo, or trainer.mini_batch_by = \"trajectory\"",
    },
    Rule {
        setting: "trainer.estimator",
        broken: |combination| {
            let Learner { shaping, kl, .. } = &combination.learner;
            let shaped = *shaping != Shaping::default() || (kl.place == KlPlace::Reward && kl.coef > 0.0);
            (combination.needs(AlgorithmNeed::Parts) && shaped).then(|| {
                "trainer.estimator is gdpo, which reads the parts of the reward: trainer.shaping and a KL in the reward \
                 act on their sum, and do nothing"
                    .to_owned()
            })
        },
        hint: "leave them out, or put the KL into the loss",
    },
    Rule {
        setting: "trainer.loss",
        broken: |combination| {
            let (estimator, loss) = combination.by_sequence()?;
            (estimator.level() == Level::Token).then(|| {
                format!(
                    "trainer.loss is {loss}, which has one ratio for a sequence, and trainer.estimator is {}, which \
                     gives every token of it an advantage of its own",
                    estimator.name()
                )
            })
        },
        hint: "choose an estimator by step or trajectory, such as gae or grpo, or a loss by token, such as ppo",
    },
    Rule {
        setting: "trainer.loss",
        broken: |combination| {
            let estimator = combination.estimator.as_ref()?.name();
            (combination.loss.name == "pspo" && estimator != "gae").then(|| {
                format!("trainer.loss is pspo, which is defined with the step-level gae, not with {estimator}")
            })
        },
        hint: "trainer.loss = \"gspo\" is the same loss for other estimators",
    },
    Rule {
        setting: "trainer.loss.ratio_over",
        broken: |combination| {
            let (_, loss) = combination.by_trajectory()?;
            (combination.learner.branch.roots > 0).then(|| {
                format!(
                    "{loss} over trajectories needs one advantage for each, and with trainer.branch the steps that \
                     trajectories share have their own"
                )
            })
        },
        hint: "set ratio_over = \"step\"",
    },
    Rule {
        setting: "trainer.loss.ratio_over",
        broken: |combination| {
            let (estimator, loss) = combination.by_trajectory()?;
            (estimator.level() == Level::Step).then(|| {
                let name = estimator.name();
                format!(
                    "{loss} over trajectories needs one advantage for each, and trainer.estimator is {name}, which \
                     gives one per step"
                )
            })
        },
        hint: "set ratio_over = \"step\"",
    },
    Rule {
        setting: "trainer.kl.target",
        broken: |combination| {
            (combination.learner.kl.target > 0.0 && combination.kl_coef == 0.0)
                .then(|| "trainer.kl.target adapts the coefficient by factors, and trainer.kl.coef is 0".to_owned())
        },
        hint: "set trainer.kl.coef to the initial coefficient, such as 0.01",
    },
];

/// Settings that a custom loss must read.
pub(crate) const CUSTOM_LOSS: &[Rule<Objective>] = &[Rule {
    setting: "trainer.importance",
    broken: |objective| {
        let graph = objective.graph()?;
        let total = graph.nodes.get(graph.result)?.shape == Shape::Total;
        let weighs = objective.importance.is_some() || objective.rejection.is_some();
        (total && weighs && !graph.reads(Input::Weights)).then(|| {
            "trainer.importance and trainer.rejection weigh tokens, and the recipe's `loss` gives one number without \
             b.weights"
                .to_owned()
        })
    },
    hint: "multiply the loss of a token by b.weights, or return a loss for each token",
}];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::config::{Branch, Choice, Kl};
    use crate::error::Error;
    use crate::mdp::Sampling;

    fn choice(name: &str, options: Value) -> Choice {
        Choice { name: name.to_owned(), options: serde_json::from_value::<Map<String, Value>>(options).unwrap() }
    }

    /// Settings with an estimator and a loss, the latter with options.
    fn learner(estimator: &str, loss: &str, options: Value) -> Learner {
        Learner { estimator: choice(estimator, json!({})), loss: choice(loss, options), ..Learner::default() }
    }

    fn refused(learner: &Learner) -> Option<Error> {
        let critic =
            Estimator::new(&learner.estimator.name, &Value::Null).unwrap().needs().contains(&AlgorithmNeed::Critic);
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
        assert!(
            refused(&Learner { kl: Kl { place: reward_penalty, ..kl }, ..with(json!({ "kl_coef": 0.2 })) }).is_none()
        );
    }

    #[test]
    fn a_custom_loss_has_options_of_its_own() {
        assert!(refused(&learner("grpo", "custom", json!({ "clip_low": 0.1 }))).is_none());
        let clipped = Learner { clip: Some((0.1, 0.2)), ..learner("grpo", "custom", json!({ "kl_coef": 0.1 })) };
        let error = refused(&clipped).map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.contains("set the same value"), "{error}");
    }
}
