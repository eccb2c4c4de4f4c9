//! Settings of reinforcement learning: `r1.grpo { … }`, `r1.ppo { … }`, and the algorithms by name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Branch, LossAgg};

/// Settings of policy optimisation. The defaults are those of GRPO; [`Algorithm::settings`] has
/// those of other algorithms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Learner {
    pub steps: usize,
    /// Trajectories per task.
    pub group_size: usize,
    /// Tasks per step.
    pub groups_per_step: usize,
    /// Tree sampling: some trajectories of a group continue from intermediate states of others.
    pub branch: Branch,

    /// Advantage estimator: one of `rl::advantages::Estimator::NAMES`, or `custom` for the recipe's
    /// function `advantage`.
    pub estimator: Choice,
    /// Reward shaping before the estimator: `rl::rewards::Shaping`.
    pub shaping: Map<String, Value>,
    /// Policy loss: one of `rl::objective::Objective::NAMES`, or `custom` for the recipe's function
    /// `loss`.
    pub loss: Choice,
    /// `{ clip_low, clip_high }`; the default of the loss if `nil`.
    pub clip: Option<(f64, f64)>,
    /// Aggregation of token losses; the default of the loss if `nil`.
    pub loss_agg: Option<LossAgg>,
    /// Coefficient of the entropy bonus.
    pub entropy: f64,
    pub kl: Kl,
    /// Importance weights for the mismatch between sampler and learner:
    /// `rl::correction::Importance`.
    pub importance: Option<Map<String, Value>>,
    /// Rejection of sequences that are too unlikely under the learner: `rl::correction::Rejection`.
    pub rejection: Option<Map<String, Value>>,

    pub lr: f64,
    /// Steps over which the learning rate rises from 0.
    pub warmup: usize,
    /// Schedule of the learning rate after the warm-up.
    pub decay: Decay,
    /// Final learning rate of `linear` and `cosine`, as a fraction of `lr`.
    pub final_lr: f64,
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down; 0 is off.
    pub max_grad_norm: f64,
    /// Parameter groups with their own settings; the first match applies.
    pub groups: Vec<WeightGroup>,
    /// Frozen weights, by name; `*` matches anything.
    pub freeze: Vec<String>,
    /// Decay of the exponential moving average of the weights, saved as a model in `ema/`; 0 is
    /// off.
    pub ema: f64,

    /// Passes over each rollout.
    pub epochs: usize,
    /// Optimiser steps per pass.
    pub mini_batches: usize,
    /// Content of a mini-batch: whole trajectories, or all steps with the same index, last index
    /// first.
    pub mini_batch_by: MiniBatchBy,
    /// With `mini_batch_by = "step"`: clip range of the factor on the advantages of earlier steps,
    /// the probability ratio of the later steps after their update in this pass.
    pub step_ratio_clip: f64,
    /// Maximum number of tokens per micro-batch. It affects memory and speed; results are equal up
    /// to rounding.
    pub tokens_per_batch: usize,
    /// Keeps only the inputs of the layers and recomputes the other activations in the backward
    /// pass: less memory, more time, the same gradients.
    pub gradient_checkpointing: bool,

    /// Routing of sampled tokens in the learner, for mixture-of-experts models.
    pub routing_replay: RoutingReplay,

    pub filter: Filter,
    /// Used by algorithms with a critic.
    pub critic: CriticSettings,

    /// Handling of a NaN or infinite loss or gradient.
    pub on_nan: OnNan,
    /// Stops the run when log-probabilities of sampler and learner differ by more; 0 is off.
    pub max_mismatch: f64,
    /// Recomputes the behaviour log-probabilities with the learner when they differ by more; 0 is
    /// off.
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

/// A parameter group: the weights that match a pattern, and their settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WeightGroup {
    /// Name pattern, `*` matches anything; all weights by default.
    pub weights: String,
    /// Replaces `trainer.weight_decay`, also for norm gains and biases.
    pub weight_decay: Option<f64>,
    /// Factor on the learning rate.
    pub lr: f64,
}

impl Default for WeightGroup {
    fn default() -> Self {
        Self { weights: "*".to_owned(), weight_decay: None, lr: 1.0 }
    }
}

/// The name of an estimator or a loss that a recipe writes in Lua.
pub const CUSTOM: &str = "custom";

/// A choice by name with options: `"grpo"`, or `{ name = "grpo", normalize = "none" }`.
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

    /// Whether it is the recipe's own function.
    pub fn is_custom(&self) -> bool {
        self.name == CUSTOM
    }

    fn with(name: &str, option: &str, value: Value) -> Self {
        Self { name: name.to_owned(), options: Map::from_iter([(option.to_owned(), value)]) }
    }
}

/// Schedule of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    Constant,
    Linear,
    Cosine,
}

/// Content of a mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MiniBatchBy {
    /// Whole trajectories, distributed over `trainer.mini_batches`.
    Trajectory,
    /// The steps with the same index of all trajectories, from the last index to the first (SeeUPO,
    /// arXiv:2602.06554).
    Step,
}

/// Experts that the learner uses for sampled tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingReplay {
    /// The choice of the learner's router.
    Off,
    /// The choice during sampling, recorded in the trajectories (R3, arXiv:2510.11370).
    Rollout,
}

/// Handling of NaN and infinite values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNan {
    /// The run ends with an error; the last checkpoint is kept.
    Stop,
    /// The optimiser step is skipped, reported and counted.
    Skip,
}

/// KL penalty to the reference policy: the policy at the start of the run, or the base model of the
/// adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kl {
    /// Coefficient; 0 needs no reference policy, unless the loss reads its log-probabilities.
    pub coef: f64,
    /// `k1`, `abs`, `k2` or `k3`.
    pub kind: String,
    /// Uses the gradient of k2 for every kind.
    pub straight_through: bool,
    /// Term of the loss, or penalty in the reward of each token.
    pub place: KlPlace,
    /// Target KL per token of an adaptive coefficient; 0 is a fixed coefficient.
    pub target: f64,
    /// Trajectories over which the coefficient adapts.
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

/// Where the KL penalty is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    Loss,
    Reward,
}

/// Selection of the groups that are trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Replaces groups with equal rewards by new groups in the same step (dynamic sampling, DAPO,
    /// arXiv:2503.14476).
    pub uniform: bool,
    /// Maximum number of such replacement rounds per step.
    pub refills: usize,
    /// Fraction of groups kept: those with the largest standard deviation of rewards (StarPO-S,
    /// arXiv:2504.20073).
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
    /// The critic is a value head on the policy's hidden states instead of a separate model.
    pub shared: bool,
    pub lr: f64,
    /// Initial steps that train only the critic.
    pub warmup: usize,
    /// Clip range of the value change per update; 0 is off.
    pub clip: f64,
    /// Weight of the value loss with a shared critic.
    pub weight: f64,
    /// Text prepended to the critic's rows only, with `{column}` for columns of the dataset row;
    /// empty is off. Requires a separate critic model.
    pub privileged: String,
    /// Maximum number of tokens of that text.
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

/// An algorithm: its default settings, and whether it needs a critic.
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithm {
    /// Whether a critic is trained.
    pub critic: bool,
    pub settings: Learner,
}

impl Algorithm {
    /// One of [`ALGORITHMS`].
    pub fn named(name: &str) -> Option<Self> {
        let defaults = Learner::default();
        let one = Learner { group_size: 1, groups_per_step: 128, ..defaults.clone() };
        let of = |estimator: &str| Learner { estimator: Choice::new(estimator), ..defaults.clone() };
        let by = |loss: &str| Learner { loss: Choice::new(loss), ..defaults.clone() };
        let settings = match name {
            "grpo" => defaults,
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
            // Action-level values (GAE per step) and the length-normalised ratio of the whole
            // action, with the paper's clip range.
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
                ..defaults
            },
            _ => return None,
        };
        Some(Self { critic: matches!(name, "ppo" | "pspo" | "capo"), settings })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Differences of each algorithm from `Learner::default()`, and whether it has a critic.
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
        let defaults = fields(&Learner::default());
        assert_eq!((&defaults["estimator"], &defaults["loss"]), (&named("grpo"), &named("ppo")));
        for (name, critic, differs) in expected {
            let algorithm = Algorithm::named(name).unwrap();
            let mut found = fields(&algorithm.settings);
            found.retain(|field, value| defaults[field] != *value);
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
