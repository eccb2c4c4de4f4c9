//! Settings of reinforcement learning: `r1.grpo { … }`, `r1.ppo { … }`, and the algorithms by name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Branch, LossAgg};

/// How to learn from trajectories. The defaults are those of GRPO; [`Algorithm::settings`] gives those of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Learner {
    pub steps: usize,
    /// Trajectories per task.
    pub group_size: usize,
    /// Tasks per step.
    pub groups_per_step: usize,
    /// Some of a group's tries go on from the middle of others.
    pub branch: Branch,

    /// From rewards (and values) to advantages: one of `rl::advantages::Estimator::NAMES`, or `custom` for the recipe's
    /// function `advantage`.
    pub estimator: Choice,
    /// What is done to rewards before: `rl::rewards::Shaping`.
    pub shaping: Map<String, Value>,
    /// From log-probabilities and advantages to a loss: one of `rl::objective::Objective::NAMES`.
    pub loss: Choice,
    /// `{ clip_low, clip_high }` of the loss; its own where this is left out.
    pub clip: Option<(f64, f64)>,
    /// How token losses become one number; the loss's own way where this is left out.
    pub loss_agg: Option<LossAgg>,
    /// Weight of the entropy bonus.
    pub entropy: f64,
    pub kl: Kl,
    /// Weights for tokens that other weights, or other arithmetic, sampled: `rl::correction::Importance`.
    pub importance: Option<Map<String, Value>>,
    /// Sequences left out because they are too unlikely under the learner: `rl::correction::Rejection`.
    pub rejection: Option<Map<String, Value>>,

    pub lr: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup: usize,
    /// What it does then.
    pub decay: Decay,
    /// Where `linear` and `cosine` end, as a share of `lr`.
    pub final_lr: f64,
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down; 0 is off.
    pub max_grad_norm: f64,
    /// Weights with settings of their own; the first that names a weight counts.
    pub groups: Vec<WeightGroup>,
    /// Weights that stay as they are: names, with `*` for anything.
    pub freeze: Vec<String>,
    /// Decay of an average of the weights, which the run leaves as a model in `ema/`; 0 is off.
    pub ema: f64,

    /// Passes over each rollout.
    pub epochs: usize,
    /// Optimiser steps a pass.
    pub mini_batches: usize,
    /// What a mini-batch holds: whole trajectories, or the steps of one number, the last ones first.
    pub mini_batch_by: MiniBatchBy,
    /// By step: the advantages of a trajectory's earlier steps are multiplied by how much likelier its later steps have
    /// become in this pass, kept within `1 ± step_ratio_clip`.
    pub step_ratio_clip: f64,
    /// Most tokens computed at once; changes memory and speed, never the result beyond rounding.
    pub tokens_per_batch: usize,
    /// Keep only the inputs of the layers until the backward pass, which computes the rest again: less memory, more time,
    /// the same gradients.
    pub gradient_checkpointing: bool,

    /// What a learner does with the experts that sampled tokens were routed to, in a mixture of experts.
    pub routing_replay: RoutingReplay,

    pub filter: Filter,
    /// Of the loop with a critic.
    pub critic: CriticSettings,

    /// What to do about a loss or gradient that is not a number.
    pub on_nan: OnNan,
    /// Stop when sampler and learner log-probabilities differ by more than this; 0 is off.
    pub max_mismatch: f64,
    /// Take the behaviour log-probabilities from the learner when they differ by more than this; 0 never does.
    pub recompute_above: f64,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            steps: 100,
            group_size: 8,
            groups_per_step: 16,
            branch: Branch::default(),
            estimator: Choice::new("grpo"),
            shaping: Map::new(),
            loss: Choice::new("ppo"),
            clip: None,
            loss_agg: None,
            entropy: 0.0,
            kl: Kl::default(),
            importance: None,
            rejection: None,
            lr: 1e-6,
            warmup: 0,
            decay: Decay::Constant,
            final_lr: 0.0,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            groups: Vec::new(),
            freeze: Vec::new(),
            ema: 0.0,
            epochs: 1,
            mini_batches: 1,
            mini_batch_by: MiniBatchBy::Trajectory,
            step_ratio_clip: 0.2,
            tokens_per_batch: 4096,
            gradient_checkpointing: false,
            routing_replay: RoutingReplay::Off,
            filter: Filter::default(),
            critic: CriticSettings::default(),
            on_nan: OnNan::Stop,
            max_mismatch: 0.0,
            recompute_above: 0.0,
        }
    }
}

/// Settings of the weights that a pattern names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WeightGroup {
    /// A name, with `*` for anything; all of them by default.
    pub weights: String,
    /// In place of `trainer.weight_decay`, also for gains and biases.
    pub weight_decay: Option<f64>,
    /// The learning rate is multiplied by this.
    pub lr: f64,
}

impl Default for WeightGroup {
    fn default() -> Self {
        Self { weights: "*".to_owned(), weight_decay: None, lr: 1.0 }
    }
}

impl Learner {
    /// Whether its estimator wants the values of a critic.
    pub fn wants_values(&self) -> bool {
        self.estimator.name.starts_with("gae")
    }
}

/// Something chosen by name, with options of its own: `"grpo"`, or `{ name = "grpo", normalize = "none" }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "ChoiceForm")]
pub struct Choice {
    pub name: String,
    #[serde(flatten)]
    pub options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChoiceForm {
    Name(String),
    Table {
        name: String,
        #[serde(flatten)]
        options: Map<String, Value>,
    },
}

impl From<ChoiceForm> for Choice {
    fn from(form: ChoiceForm) -> Self {
        match form {
            ChoiceForm::Name(name) => Self { name, options: Map::new() },
            ChoiceForm::Table { name, options } => Self { name, options },
        }
    }
}

impl Choice {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), options: Map::new() }
    }

    fn with(name: &str, option: &str, value: Value) -> Self {
        Self { name: name.to_owned(), options: Map::from_iter([(option.to_owned(), value)]) }
    }
}

/// The learning rate after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    Constant,
    Linear,
    Cosine,
}

/// What a mini-batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MiniBatchBy {
    /// Whole trajectories, dealt into `trainer.mini_batches`.
    Trajectory,
    /// The steps of one number of all trajectories, from the last number to the first (SeeUPO, arXiv:2602.06554).
    Step,
}

/// Which experts the learner computes sampled tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingReplay {
    /// Those that its router chooses.
    Off,
    /// Those that sampling chose, which trajectories record (R3, arXiv:2510.11370).
    Rollout,
}

/// What happens when a number is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNan {
    /// The run ends with an error; the last checkpoint stays.
    Stop,
    /// The optimiser step is left out, named and counted.
    Skip,
}

/// The leash to the reference policy: the policy as it was when the run began, or the model under its adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kl {
    /// 0 means that there is no reference policy, unless the loss has a KL term of its own.
    pub coef: f64,
    /// `k1`, `abs`, `k2` or `k3`.
    pub kind: String,
    /// The gradient of k2, whatever the kind.
    pub straight_through: bool,
    /// A term of the loss, or a penalty on every token's reward.
    pub place: KlPlace,
    /// KL a token that an adaptive coefficient steers towards; 0 keeps it fixed.
    pub target: f64,
    /// Trajectories over which it adapts.
    pub horizon: f64,
}

impl Default for Kl {
    fn default() -> Self {
        Self {
            coef: 0.0,
            kind: "k3".to_owned(),
            straight_through: false,
            place: KlPlace::Loss,
            target: 0.0,
            horizon: 10_000.0,
        }
    }
}

/// Where the KL acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    Loss,
    Reward,
}

/// Which groups are learned from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Groups without variance are replaced by new ones, sampled in the same step (DAPO, arXiv:2503.14476).
    pub uniform: bool,
    /// Most times new ones are sampled in a step.
    pub refills: usize,
    /// Share of groups that is kept, those with the largest deviation of rewards (StarPO-S, arXiv:2504.20073).
    pub keep: f64,
}

impl Default for Filter {
    fn default() -> Self {
        Self { uniform: false, refills: 4, keep: 1.0 }
    }
}

/// The value model of PPO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CriticSettings {
    /// A head on the policy's own hidden states, not on a model of its own.
    pub shared: bool,
    pub lr: f64,
    /// Steps in which only the critic learns.
    pub warmup: usize,
    /// How far a value may move from that before the update; 0 is off.
    pub clip: f64,
    /// Weight of the value loss beside the policy's, where the critic is shared.
    pub weight: f64,
    /// Text that the critic alone reads before each of its rows, with `{column}` for columns of the dataset row; empty is
    /// off. For a critic with a model of its own.
    pub privileged: String,
    /// Most tokens of it.
    pub privileged_tokens: usize,
}

impl Default for CriticSettings {
    fn default() -> Self {
        Self {
            shared: false,
            lr: 1e-5,
            warmup: 0,
            clip: 0.5,
            weight: 0.5,
            privileged: String::new(),
            privileged_tokens: 256,
        }
    }
}

/// Algorithms by name.
pub const ALGORITHMS: [&str; 26] = [
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "gmpo",
    "gpg",
    "rloo",
    "opo",
    "max_rl",
    "grpo_passk",
    "rapo",
    "gigpo",
    "remax",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "ppo",
    "pspo",
    "capo",
    "seeupo",
    "gdpo",
    "optimal_token_baseline",
    "luspo",
    "vespo",
    "dro",
];

/// A way to learn, and what its settings are unless a recipe says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithm {
    /// Whether its loop trains a critic.
    pub critic: bool,
    pub settings: Learner,
}

impl Algorithm {
    /// One of [`ALGORITHMS`].
    pub fn named(name: &str) -> Option<Self> {
        let usual = Learner::default();
        let one = Learner { group_size: 1, groups_per_step: 128, ..usual.clone() };
        let of = |estimator: &str| Learner { estimator: Choice::new(estimator), ..usual.clone() };
        let by = |loss: &str| Learner { loss: Choice::new(loss), ..usual.clone() };
        let settings = match name {
            "grpo" => usual,
            "dr_grpo" => Learner { estimator: Choice::with("grpo", "normalize", json!("none")), ..by("dr_grpo") },
            "dapo" => Learner { filter: Filter { uniform: true, ..Filter::default() }, ..by("dapo") },
            "gspo" | "cispo" | "sapo" | "luspo" | "vespo" | "dro" => by(name),
            "gmpo" => by("geo_mean"),
            "gpg" => Learner { loss: Choice::new("gpg"), ..of("gpg") },
            "rloo"
            | "opo"
            | "max_rl"
            | "grpo_passk"
            | "rapo"
            | "gigpo"
            | "reinforce_pp_baseline"
            | "gdpo"
            | "optimal_token_baseline" => of(name),
            "remax" | "reinforce_pp" => Learner { estimator: Choice::new(name), ..one },
            "ppo" => Learner { estimator: Choice::new("gae"), ..one },
            "pspo" => Learner { estimator: Choice::new("gae"), loss: Choice::new("pspo"), ..one },
            // A value before each action, and the length-normalised ratio of the whole action, clipped as published.
            "capo" => {
                let clip = [("seq", json!("step")), ("clip_low", json!(3e-4)), ("clip_high", json!(3e-4))];
                let options = clip.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                let loss = Choice { name: "gspo".to_owned(), options };
                Learner { estimator: Choice::new("gae"), loss, ..one }
            }
            "seeupo" => Learner {
                estimator: Choice::with("grpo", "normalize", json!("none")),
                loss: Choice::with("gspo", "seq", json!("step")),
                mini_batch_by: MiniBatchBy::Step,
                ..usual
            },
            _ => return None,
        };
        Some(Self { critic: settings.wants_values(), settings })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What a name means: the settings in which it differs from `Learner::default()`, and whether it has a critic.
    #[test]
    fn each_algorithm_name_expands_to_these_settings() {
        let named = |name: &str| json!({ "name": name });
        let one = |other: Value| {
            let mut all = json!({ "group_size": 1, "groups_per_step": 128 });
            all.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            all
        };
        let seq_gspo = json!({ "name": "gspo", "seq": "step" });
        let no_std = json!({ "name": "grpo", "normalize": "none" });
        let capo = json!({ "name": "gspo", "seq": "step", "clip_low": 3e-4, "clip_high": 3e-4 });
        let expected = [
            ("grpo", false, json!({})),
            ("dr_grpo", false, json!({ "estimator": no_std, "loss": named("dr_grpo") })),
            ("dapo", false, json!({ "loss": named("dapo"), "filter": { "uniform": true, "refills": 4, "keep": 1.0 } })),
            ("gspo", false, json!({ "loss": named("gspo") })),
            ("cispo", false, json!({ "loss": named("cispo") })),
            ("sapo", false, json!({ "loss": named("sapo") })),
            ("gmpo", false, json!({ "loss": named("geo_mean") })),
            ("gpg", false, json!({ "estimator": named("gpg"), "loss": named("gpg") })),
            ("rloo", false, json!({ "estimator": named("rloo") })),
            ("opo", false, json!({ "estimator": named("opo") })),
            ("max_rl", false, json!({ "estimator": named("max_rl") })),
            ("grpo_passk", false, json!({ "estimator": named("grpo_passk") })),
            ("rapo", false, json!({ "estimator": named("rapo") })),
            ("gigpo", false, json!({ "estimator": named("gigpo") })),
            ("remax", false, one(json!({ "estimator": named("remax") }))),
            ("reinforce_pp", false, one(json!({ "estimator": named("reinforce_pp") }))),
            ("reinforce_pp_baseline", false, json!({ "estimator": named("reinforce_pp_baseline") })),
            ("ppo", true, one(json!({ "estimator": named("gae") }))),
            ("pspo", true, one(json!({ "estimator": named("gae"), "loss": named("pspo") }))),
            ("capo", true, one(json!({ "estimator": named("gae"), "loss": capo }))),
            ("seeupo", false, json!({ "estimator": no_std, "loss": seq_gspo, "mini_batch_by": "step" })),
            ("gdpo", false, json!({ "estimator": named("gdpo") })),
            ("optimal_token_baseline", false, json!({ "estimator": named("optimal_token_baseline") })),
            ("luspo", false, json!({ "loss": named("luspo") })),
            ("vespo", false, json!({ "loss": named("vespo") })),
            ("dro", false, json!({ "loss": named("dro") })),
        ];
        assert_eq!(expected.each_ref().map(|(name, ..)| *name), ALGORITHMS);
        let fields = |learner: &Learner| serde_json::to_value(learner).unwrap().as_object().unwrap().clone();
        let usual = fields(&Learner::default());
        assert_eq!((&usual["estimator"], &usual["loss"]), (&named("grpo"), &named("ppo")));
        for (name, critic, differs) in expected {
            let algorithm = Algorithm::named(name).unwrap();
            let mut found = fields(&algorithm.settings);
            found.retain(|field, value| usual[field] != *value);
            assert_eq!(Value::Object(found), differs, "{name}");
            assert_eq!(algorithm.critic, critic, "{name}");
        }
        assert!(Algorithm::named("grop").is_none());
    }

    #[test]
    fn a_choice_is_a_name_or_a_table() {
        let plain: Choice = serde_json::from_value(json!("rloo")).unwrap();
        assert_eq!(plain, Choice::new("rloo"));
        let table: Choice = serde_json::from_value(json!({ "name": "grpo", "normalize": "none" })).unwrap();
        assert_eq!(table, Choice::with("grpo", "normalize", json!("none")));
        assert_eq!(serde_json::to_value(&table).unwrap(), json!({ "name": "grpo", "normalize": "none" }));
    }
}
