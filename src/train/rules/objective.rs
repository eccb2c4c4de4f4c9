//! The objective of a recipe, from its settings: estimator, reward shaping and loss.
//!
//! It is validated before anything runs. The rules are data: ranges and `needs` are part of the
//! declaration of a setting, rules about several settings are rows of `lua/rules.lua`. This file
//! has the checks that are computed: the estimator and the loss read their own options, and the
//! bounds of shaping and corrections are those that programs have too (`rl`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::refusals;
use crate::config::{Input, KlPlace, Learner, LossGraph, Over, Settings, Shape, Trainer, check_ranges};
use crate::error::{Error, Kind, Result};
use crate::mdp::Sampling;
use crate::rl::advantages::{AdvantageFunction, AlgorithmNeed, Estimator};
use crate::rl::correction::{Importance, Rejection};
use crate::rl::kl::KlController;
use crate::rl::losses::Formula;
use crate::rl::objective as policy;
use crate::rl::rewards::{KlPenalty, RewardShaping};
use crate::script::Script;

/// Estimator, reward shaping and loss of a recipe.
#[derive(Clone, Debug)]
pub struct Objective {
    /// `None` for the recipe's function `advantage`.
    pub estimator: Option<Estimator>,
    /// What is known of that function.
    pub function: AdvantageFunction,
    pub shaping: RewardShaping,
    pub policy: policy::PolicyLoss,
    pub importance: Option<Importance>,
    pub rejection: Option<Rejection>,
    /// The coefficient of the KL, in the loss or in the reward.
    pub kl_coef: KlController,
}

impl Objective {
    /// The objective of a script; `critic`: whether its loop trains one.
    ///
    /// # Errors
    /// As [`policy::PolicyLoss::new`]; `Kind::Script` for a custom loss that its settings
    /// contradict.
    pub fn of(script: &Script, learner: &Learner, critic: bool) -> Result<Self> {
        let custom_loss = script.loss.clone().filter(|_| learner.loss.is_of_recipe());
        let objective = Self::new(learner, &script.settings.sampling, critic)?;
        let function = match &script.declared {
            Some(algorithm) if algorithm.advantage => AdvantageFunction::of(algorithm, &script.advantage_options),
            _ => AdvantageFunction::default(),
        };
        Self { function, ..objective }.with_loss(custom_loss)
    }

    /// With the recipe's own policy loss.
    ///
    /// # Errors
    /// `Kind::Script` for settings that the loss does not use.
    pub fn with_loss(mut self, custom_loss: Option<Arc<LossGraph>>) -> Result<Self> {
        if let Some(graph) = custom_loss {
            let loss = json!({
                "is_total": graph.nodes.get(graph.result).is_some_and(|node| node.shape == Shape::Total),
                "weighs": self.importance.is_some() || self.rejection.is_some(),
                "reads_weights": graph.reads(Input::Weights),
            });
            refusals::check("custom_loss", &loss).map_err(|error| error.at(graph.location.clone()))?;
            self.policy.formula = Formula::of_graph(graph);
        }
        Ok(self)
    }

    /// The graph of a loss in Lua.
    pub(crate) fn graph(&self) -> Option<&LossGraph> {
        self.policy.formula.graph().map(Arc::as_ref)
    }

    /// The objective of `learner`; `critic`: whether its loop trains one.
    ///
    /// # Errors
    /// `Kind::Script` names the setting and the reason.
    pub fn new(learner: &Learner, sampling: &Sampling, critic: bool) -> Result<Self> {
        check_ranges(&Settings { trainer: Trainer::Rl { learner: learner.clone(), critic }, ..Settings::default() })?;
        refusals::check("trainer", learner)?;
        refusals::check("sampling", sampling)?;
        let options = Value::Object(learner.estimator.options.clone());
        let estimator = learner.estimator.name.as_ref().map(|name| Estimator::new(name, &options));
        let estimator = estimator.transpose().map_err(|error| at("estimator", error))?;
        let mut policy = policy_objective(learner).map_err(|error| at("loss", error))?;
        learner.shaping.check().map_err(|error| at("shaping", error))?;
        let mut shaping = RewardShaping::from(learner.shaping.clone());
        let mut coef = learner.kl.coef;
        if learner.kl.place == KlPlace::Reward && coef > 0.0 {
            shaping.kl = Some(KlPenalty { coef, kind: learner.kl.kind });
        } else if coef > 0.0 {
            policy.terms.kl_coef = coef;
            policy.terms.kl = learner.kl.kind;
            policy.terms.kl_straight_through = learner.kl.straight_through;
        } else {
            coef = policy.terms.kl_coef;
        }
        let estimator_facts = estimator.as_ref().map(
            |estimator| json!({ "name": estimator.name(), "level": estimator.level(), "needs": estimator.needs() }),
        );
        let facts = json!({
            "trainer": learner,
            "critic": critic,
            "estimator": estimator_facts,
            "loss": refusals::loss_facts(&policy),
            "kl_coef": coef,
        });
        refusals::check("objective", &facts)?;
        let kl_coef = if learner.kl.target > 0.0 {
            KlController::Adaptive { coef, target: learner.kl.target, horizon: learner.kl.horizon }
        } else {
            KlController::Fixed { coef }
        };
        let (importance, rejection) = (learner.importance, learner.rejection);
        importance.map_or(Ok(()), |settings| settings.check()).map_err(|error| at("importance", error))?;
        rejection.map_or(Ok(()), |settings| settings.check()).map_err(|error| at("rejection", error))?;
        let function = AdvantageFunction::default();
        Ok(Self { estimator, function, shaping, policy, importance, rejection, kl_coef })
    }

    /// Whether the estimator or the loss needs this.
    pub fn needs(&self, need: AlgorithmNeed) -> bool {
        self.estimator.as_ref().map_or(&self.function.needs[..], Estimator::needs).contains(&need)
            || self.policy.needs().contains(&need)
    }

    /// Whether there is a reference policy.
    pub fn has_reference(&self) -> bool {
        self.kl_coef.coef() > 0.0 || self.reads(Input::LogpRef)
    }

    /// Whether a loss in Lua reads this.
    pub(crate) fn reads(&self, input: Input) -> bool {
        self.graph().is_some_and(|graph| graph.reads(input))
    }

    /// The largest unit whose rows must be in one micro-batch.
    pub(crate) fn together(&self) -> Over {
        self.graph().map_or(Over::Step, LossGraph::together)
    }

    /// The current coefficient of the KL in the loss, if `trainer.kl.coef` is `coef`; a penalty in
    /// the reward is independent of it.
    pub(crate) fn loss_kl(&self, coef: f64) -> f64 {
        if self.shaping.kl.is_some() { self.policy.terms.kl_coef } else { coef }
    }

    /// Whether a row without advantages has no gradient.
    pub(crate) fn only_advantages(&self) -> bool {
        let terms = &self.policy.terms;
        // Tokens of other steps in the sequence of such a loss have the same advantage.
        let whole = self.policy.formula.one_advantage_per_sequence();
        let vanishes =
            |graph: &LossGraph| graph.vanishes_without_advantages() || whole && graph.is_zero_without_advantages();
        let loss = self.graph().is_none_or(vanishes);
        loss && terms.kl_coef == 0.0 && terms.entropy_coef == 0.0
    }
}

/// Converts an error of a table of options to an error of the setting that contains it.
fn at(field: &str, error: Error) -> Error {
    let option = error.setting().map_or_else(String::new, |option| format!(".{option}"));
    let message = format!("trainer.{field}: {}", error.message);
    let error = Error { kind: Kind::Script, message, subject: None, ..error };
    error.about_setting(format!("trainer.{field}{option}"))
}

/// The loss with the settings that the recipe has outside of its options.
pub(super) fn policy_objective(learner: &Learner) -> Result<policy::PolicyLoss> {
    let mut options = learner.loss.options.clone();
    let mut put = |name: &str, value: Value| drop(options.insert(name.to_owned(), value));
    // `unused` reports a clip that the loss does not have.
    let name = learner.loss.name.as_deref();
    let named = name.map(policy::PolicyLoss::named).transpose()?;
    let clips = named.is_some_and(|loss| loss.has_option("clip_low"));
    if let Some((low, high)) = learner.clip.filter(|_| clips) {
        put("clip_low", low.into());
        put("clip_high", high.into());
    }
    if let Some(loss_agg) = learner.loss_agg {
        put("loss_agg", serde_json::to_value(loss_agg).unwrap_or_default());
    }
    if learner.entropy != 0.0 {
        put("entropy_coef", learner.entropy.into());
    }
    match name {
        Some(name) => policy::PolicyLoss::new(name, &Value::Object(options)),
        None => policy::PolicyLoss::of_graph(Arc::default(), &options),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use serde_json::{Map, json};

    use super::*;
    use crate::config::{
        Algorithm, Branch, BranchAt, Choice, CriticSettings, Filter, Kl, KlKind, MiniBatchBy, OverlongPenalty, Shaping,
        algorithm_names,
    };

    fn refused(learner: &Learner, critic: bool) -> String {
        Objective::new(learner, &Sampling::default(), critic).unwrap_err().to_string()
    }

    #[test]
    fn every_algorithm_has_a_valid_objective() {
        for name in algorithm_names() {
            let Algorithm { critic, settings } = Algorithm::named(name).unwrap();
            let objective = Objective::new(&settings, &Sampling::default(), critic).unwrap();
            assert_eq!(objective.has_reference(), name == "pspo", "{name}");
        }
    }

    #[test]
    fn every_estimator_and_loss_is_accepted_or_refused_with_a_reason() {
        for estimator in Estimator::names() {
            for loss in policy::PolicyLoss::names() {
                let learner =
                    Learner { estimator: Choice::new(estimator), loss: Choice::new(loss), ..Learner::default() };
                let critic = Estimator::new(estimator, &Value::Null).unwrap().needs().contains(&AlgorithmNeed::Critic);
                match Objective::new(&learner, &Sampling::default(), critic) {
                    Ok(objective) => assert_eq!(objective.policy.name, loss),
                    Err(error) => assert!(error.hint.is_some() && error.message.contains(loss), "{error}"),
                }
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let learner = Learner::default();
        let gae = Learner { estimator: Choice::new("gae"), ..learner.clone() };
        assert!(refused(&gae, false).contains("use r1.ppo"));
        assert!(refused(&learner, true).contains("use r1.grpo"));
        assert!(refused(&Learner { group_size: 1, ..learner.clone() }, false).contains("group"));
        assert!(refused(&Learner { mini_batches: 129, ..learner.clone() }, false).contains("128 trajectories"));
        let critic = CriticSettings { shared: true, privileged: "{answer}".to_owned(), ..CriticSettings::default() };
        let both = Learner { critic, ..Algorithm::named("ppo").unwrap().settings };
        assert!(refused(&both, true).contains("is for the critic alone"));
        let by_step = Learner { mini_batch_by: MiniBatchBy::Step, ..learner.clone() };
        let several = Learner { mini_batches: 2, ..by_step.clone() };
        assert!(refused(&several, false).contains("one for each number of a step"));
        assert!(refused(&Learner { step_ratio_clip: 1.0, ..by_step.clone() }, false).contains("step_ratio_clip is 1"));
        let gae = Choice::new("gae");
        assert!(refused(&Learner { estimator: gae, ..by_step }, true).contains("without a critic"));
        let parts = Learner {
            shaping: Shaping { prime: true, ..Shaping::default() },
            ..Algorithm::named("gdpo").unwrap().settings
        };
        assert!(refused(&parts, false).contains("reads the parts of the reward"));
        assert!(refused(&Learner { clip: Some((-0.1, 0.2)), ..learner.clone() }, false).contains("trainer.clip"));
        assert!(refused(&Learner { lr: f64::NAN, ..learner.clone() }, false).contains("trainer.lr is NaN"));
        let twice = Learner {
            kl: Kl { coef: 0.1, ..Kl::default() },
            loss: Choice { options: Map::from_iter([("kl_coef".to_owned(), 0.2.into())]), ..Choice::new("ppo") },
            ..learner.clone()
        };
        assert!(refused(&twice, false).contains("trainer.kl.coef and `kl_coef` of trainer.loss"));
        let filter = Filter { uniform: true, ..Filter::default() };
        let alone = Learner { filter, ..Algorithm::named("reinforce_pp").unwrap().settings };
        assert!(refused(&alone, false).contains("filter.uniform"));
        let branch = |roots, at, width, rounds| {
            refused(&Learner { branch: Branch { roots, at, width, rounds }, ..learner.clone() }, false)
        };
        assert!(branch(9, BranchAt::Random, 1, 1).contains("trainer.branch.roots is 9 and trainer.group_size 8"));
        assert!(branch(2, BranchAt::Random, 0, 1).contains("trainer.branch.width is 0"));
        assert!(branch(2, BranchAt::Random, 1, 0).contains("trainer.branch.rounds is 0"));
        assert!(branch(2, BranchAt::Random, 1, 4).contains("is 4, and 3 trajectories branch off each root"));
        assert!(branch(2, BranchAt::Steps(vec![0, 1]), 1, 1).contains("trainer.branch.at is [0, 1]"));
        assert!(branch(2, BranchAt::Steps(Vec::new()), 1, 1).contains("list numbers of steps"));
        let shaped = |shaping: Shaping| refused(&Learner { shaping, ..learner.clone() }, false);
        let none = Shaping::default();
        assert!(shaped(Shaping { scale: Some(-1.0), ..none.clone() }).contains("trainer.shaping.scale is -1"));
        assert!(shaped(Shaping { running: Some(1.5), ..none.clone() }).contains("trainer.shaping.running is 1.5"));
        let both = Shaping { running: Some(0.9), scale: Some(2.0), ..none.clone() };
        assert!(shaped(both).contains("give one"));
        let overlong = Some(OverlongPenalty { longest: 4, buffer: 5, factor: 1.0 });
        assert!(shaped(Shaping { overlong, ..none }).contains("`overlong`"));
        let kl = Kl { target: 0.1, ..Kl::default() };
        assert!(refused(&Learner { kl, ..learner.clone() }, false).contains("trainer.kl.target"));
        // They are refused before anything is sampled, not on first use.
        let bounds = |importance: Option<Value>, rejection: Option<Value>| {
            let importance = importance.map(|options| serde_json::from_value(options).unwrap());
            let rejection = rejection.map(|options| serde_json::from_value(options).unwrap());
            refused(&Learner { importance, rejection, recompute_above: 1e-3, ..learner.clone() }, false)
        };
        assert!(bounds(Some(json!({ "cap": -1.0 })), None).contains("trainer.importance.cap is -1"));
        assert!(bounds(Some(json!({ "cap": 1.0, "floor": 2.0 })), None).contains("0 < floor <= cap"));
        assert!(bounds(None, Some(json!({ "upper": 0.0 }))).contains("trainer.rejection.upper is 0"));
        assert!(bounds(None, Some(json!({ "lower": 0.5 }))).contains("for k1 alone"));
    }

    #[test]
    fn the_kl_penalty_has_the_settings_of_the_recipe() {
        let penalty = |kl_place: KlPlace, straight_through: bool| {
            let kl = Kl { coef: 0.25, kind: KlKind::K2, straight_through, place: kl_place, ..Kl::default() };
            Objective::new(&Learner { kl, ..Learner::default() }, &Sampling::default(), false).unwrap()
        };
        for straight_through in [false, true] {
            let terms = penalty(KlPlace::Loss, straight_through).policy.terms;
            assert_eq!((terms.kl, terms.kl_straight_through), (KlKind::K2, straight_through));
            assert!((terms.kl_coef - 0.25).abs() < 1e-15);
        }
        let objective = penalty(KlPlace::Reward, false);
        assert_eq!(objective.shaping.kl, Some(KlPenalty { coef: 0.25, kind: KlKind::K2 }));
        assert!(objective.policy.terms.kl_coef == 0.0 && objective.has_reference());
        assert_eq!((objective.loss_kl(0.25), penalty(KlPlace::Loss, false).loss_kl(0.5)), (0.0, 0.5));
        // A loss with its own KL keeps its coefficient next to a penalty in the reward.
        let pspo = Learner {
            kl: Kl { coef: 0.25, place: KlPlace::Reward, ..Kl::default() },
            ..Algorithm::named("pspo").unwrap().settings
        };
        assert_eq!(Objective::new(&pspo, &Sampling::default(), true).unwrap().loss_kl(0.25), 1e-3);
    }

    #[test]
    fn sampling_settings_that_training_cannot_score_are_refused() {
        let no = |sampling: Sampling| Objective::new(&Learner::default(), &sampling, false).unwrap_err().to_string();
        assert!(no(Sampling { temperature: 0.0, ..Sampling::default() }).contains("temperature"));
        assert!(no(Sampling { repetition_penalty: 1.1, ..Sampling::default() }).contains("repetition_penalty"));
    }
}
