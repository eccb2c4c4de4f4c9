//! Settings of reinforcement learning: `r1.grpo { … }`, `r1.ppo { … }`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use super::algorithms::WITH_CRITIC;
use super::{Branch, Importance, Kl, LossAgg, Rejection, Shaping};
use crate::schema::{Field, Misfit, Reload, Section, ValueSyntax, choices, section};

section! {
    /// Settings of policy optimisation. The defaults are GRPO's; other algorithms change some.
    pub struct Learner: "trainer." {
        /// Training steps: rollouts, each followed by updates.
        steps: usize = 100, unit("steps"), range("≥ 0");
        /// Trajectories per task; 1 for ppo, remax and reinforce_pp.
        group_size: usize = 8, unit("trajectories"), range("≥ 1"), restart();
        /// Tasks per step; 128 for ppo, remax and reinforce_pp.
        groups_per_step: usize = 16, unit("tasks"), range("≥ 1");
        /// Tree sampling: some trajectories of a group continue from states of others.
        branch: Branch = Branch::default();
        /// Advantage estimator: a name, or a table of `name` and its options. The recipe's function
        /// `advantage` takes its place.
        estimator: Choice = Choice::new("grpo"), range("one of docs/reference/algorithms.md"), reload(Reload::Options);
        /// Reward shaping before the estimator.
        shaping: Shaping = Shaping::default();
        /// Policy loss: a name, or a table of `name` and its options. The recipe's function `loss`
        /// takes its place.
        loss: Choice = Choice::new("ppo"), range("one of docs/reference/algorithms.md"), reload(Reload::Options);
        /// { low, high }: clip range of the ratio; the default of the loss if not set.
        clip: Option<(f64, f64)> = None, range("0 < low ≤ 1, high > 0");
        /// Aggregation of token losses; the default of the loss if not set.
        loss_agg: Option<LossAgg> = None;
        /// Coefficient of the entropy bonus.
        entropy: f64 = 0.0;
        /// KL penalty to the reference policy.
        kl: Kl = Kl::default();
        /// Importance weights for the mismatch between sampler and learner.
        importance: Option<Importance> = None, needs("trainer.recompute_above", Is::Positive);
        /// Rejects sequences that are too unlikely under the learner.
        rejection: Option<Rejection> = None, needs("trainer.recompute_above", Is::Positive);
        /// Learning rate of AdamW.
        lr: f64 = 1e-6, range("≥ 0");
        /// Steps over which the learning rate rises linearly from 0.
        warmup: usize = 0, unit("steps"), range("≥ 0");
        /// The learning rate after the warm-up.
        decay: Decay = Decay::Constant;
        /// Learning rate at the end of the decay, as a fraction of lr.
        final_lr: f64 = 0.0, range("≥ 0"), needs("trainer.decay", Is::OneOf(&["linear", "cosine"]));
        /// Decoupled weight decay of AdamW.
        weight_decay: f64 = 0.0, range("≥ 0"), restart();
        /// Global gradient norm above which gradients are scaled down; 0 is off.
        max_grad_norm: f64 = 1.0, range("≥ 0");
        /// Parameter groups { weights, lr, weight_decay } by name (* matches anything); lr is a
        /// factor, the first match applies.
        groups: Vec<WeightGroup> = Vec::new(), restart();
        /// Frozen weights, by name (* matches anything).
        freeze: Vec<String> = Vec::new(), restart();
        /// Decay of the exponential moving average of the weights, saved as a model in ema/; 0 is
        /// off. At optimiser step n the decay is min(ema, (1 + n) / (10 + n)).
        ema: f64 = 0.0, range("0 ≤ x < 1"), restart();
        /// Passes over the trajectories of a step.
        epochs: usize = 1, range("≥ 1");
        /// Optimiser steps per pass; mini-batches hold whole trajectories.
        mini_batches: usize = 1, range("≥ 1");
        /// Content of a mini-batch: whole trajectories, or all steps with the same index, last
        /// index first (SeeUPO, arXiv:2602.06554).
        mini_batch_by: MiniBatchBy = MiniBatchBy::Trajectory;
        /// Clip range of the ratio of later steps, a factor on the advantages of earlier steps.
        step_ratio_clip: f64 = 0.2, range("0 ≤ x < 1"), needs("trainer.mini_batch_by", Is::OneOf(&["step"]));
        /// Maximum number of tokens per micro-batch: memory against speed; results are equal up to
        /// rounding. 0 is 4,096 on the CPU, and on CUDA the most of 32,768, 16,384, 8,192 and 4,096
        /// for which there is memory (`r1 run --plan`).
        tokens_per_batch: usize = 0, unit("tokens"), range("≥ 0");
        /// Parts into which the micro-batches of an optimiser step are divided; 0 is one for each
        /// process. Runs with the same number of shards have the same bits on 1, 2, 4, …
        /// processes (docs/guide/scale.md).
        gradient_shards: usize = 0, unit("shards"), range("≥ 0"), restart();
        /// What the processes divide among them (ZeRO, arXiv:1910.02054): 0 nothing, 1 the state of
        /// the optimiser, 2 gradients too, 3 also the weights of layers while gradients are
        /// computed (docs/guide/scale.md).
        zero_stage: usize = 0, range("0 to 3"), restart();
        /// Size of the gradients that the processes exchange together.
        bucket_cap_mb: f64 = 4.0, unit("MiB"), range("> 0"), restart();
        /// Keeps only the inputs of the layers and recomputes activations in the backward pass:
        /// less memory, more time.
        gradient_checkpointing: bool = false, restart();
        /// Mixture-of-experts models: experts that the learner uses for sampled tokens, selected
        /// by its router or recorded during sampling (R3, arXiv:2510.11370).
        routing_replay: RoutingReplay = RoutingReplay::Off, restart();
        /// The groups that are trained on.
        filter: Filter = Filter::default();
        /// The value model of algorithms with a critic.
        critic: CriticSettings = CriticSettings::default(), restart();
        /// Handling of a NaN or infinite advantage, loss or gradient: stop ends the run with exit
        /// code 9, skip omits the optimiser step, reports and counts it. A NaN reward is a failure
        /// of its trajectory.
        on_nan: OnNan = OnNan::Stop;
        /// Stops the run when log-probabilities of sampler and learner differ by more; 0 is off.
        max_mismatch: f64 = 0.0, unit("nats"), range("≥ 0");
        /// Recomputes the behaviour log-probabilities with the learner when they differ by more; 0
        /// is off.
        recompute_above: f64 = 0.0, unit("nats"), range("≥ 0");
    }
}

section! {
    /// A parameter group: the weights that match a pattern, and their settings.
    pub struct WeightGroup: "trainer.groups[].", restart() {
        /// Name pattern, `*` matches anything; all weights by default.
        weights: String = "*".to_owned();
        /// Replaces `trainer.weight_decay`, also for norm gains and biases.
        weight_decay: Option<f64> = None;
        /// Factor on the learning rate.
        lr: f64 = 1.0;
    }
}

impl Learner {
    /// Tokens per micro-batch without a GPU.
    const TOKENS: usize = 4096;

    /// Maximum number of tokens per micro-batch.
    pub fn tokens_at_once(&self) -> usize {
        if self.tokens_per_batch == 0 { Self::TOKENS } else { self.tokens_per_batch }
    }

    /// The settings of the continued run after `old` has become `new` in the script.
    pub(super) fn reload(old: &Self, new: &Self) -> Self {
        let mut merged = <Self as Section>::reloaded(old, new);
        // Without a coefficient no reference policy was loaded, so the KL penalty waits as a whole.
        if (old.kl.coef > 0.0) != (new.kl.coef > 0.0) {
            merged.kl = old.kl.clone();
        }
        merged
    }
}

/// An estimator or a loss with options: `"grpo"`, or `{ name = "grpo", normalize = "none" }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// `None`: the recipe's function.
    #[serde(serialize_with = "shown")]
    pub name: Option<String>,
    #[serde(flatten)]
    pub options: Map<String, Value>,
}

impl Field for Choice {
    type Value = Self;
    const WRITTEN: ValueSyntax = ValueSyntax::TextOrTable;
    const OPEN: bool = true;

    fn kind() -> String {
        "string or table".to_owned()
    }

    fn lua() -> String {
        "string | {[string]: any}".to_owned()
    }

    fn read(key: &str, json: &Value, default_value: Option<&Self>) -> Result<Self, Misfit> {
        let odd = || Misfit::wanted(key, "a name, or a table with `name`", json);
        match json {
            Value::String(name) => Ok(Self::new(name)),
            Value::Object(fields) => {
                let mut options = fields.clone();
                let Self { name, .. } = match options.remove("name") {
                    Some(Value::String(name)) => Self::new(&name),
                    None => default_value.cloned().ok_or_else(odd)?,
                    Some(_) => return Err(odd()),
                };
                Ok(Self { name, options })
            }
            _ => Err(odd()),
        }
    }

    /// If only the options may change, another name waits for a restart with all its options.
    fn reloaded(class: Reload, old: &Self, new: &Self) -> Self {
        let waits = class == Reload::Restart || class == Reload::Options && old.name != new.name;
        if waits { old.clone() } else { new.clone() }
    }
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read("", &Value::deserialize(deserializer)?, None).map_err(de::Error::custom)
    }
}

impl Choice {
    /// The recipe's function in stored settings and in messages.
    pub const OF_RECIPE: &str = "the recipe's function";

    /// The same in recipes and in the runs of older versions.
    const OF_RECIPE_BEFORE: &str = "custom";

    pub fn new(name: &str) -> Self {
        let named = ![Self::OF_RECIPE, Self::OF_RECIPE_BEFORE].contains(&name);
        Self { name: named.then(|| name.to_owned()), options: Map::new() }
    }

    /// The recipe's function, without options.
    pub fn of_recipe() -> Self {
        Self::new(Self::OF_RECIPE)
    }

    /// Whether it is the recipe's function.
    pub fn is_of_recipe(&self) -> bool {
        self.name.is_none()
    }

    /// Its name, for readers.
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(Self::OF_RECIPE)
    }

    /// Whether two names in stored settings, of runs of any version, are the same.
    pub fn is_same_name(old: &Value, new: &Value) -> bool {
        let name = |stored: &Value| stored.as_str().map(|name| Self::new(name).name);
        old == new || name(old).is_some() && name(old) == name(new)
    }

    #[cfg(test)]
    pub(super) fn with(name: &str, option: &str, value: Value) -> Self {
        Self { options: Map::from_iter([(option.to_owned(), value)]), ..Self::new(name) }
    }
}

#[allow(clippy::ref_option)] // the signature that serde requires
fn shown<S: Serializer>(name: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_deref().unwrap_or(Choice::OF_RECIPE))
}

choices! {
    /// Schedule of the learning rate after the warm-up.
    pub enum Decay {
        Constant = "constant",
        Linear = "linear",
        Cosine = "cosine",
    }
}

choices! {
    /// Content of a mini-batch.
    pub enum MiniBatchBy {
        /// Whole trajectories, distributed over `trainer.mini_batches`.
        Trajectory = "trajectory",
        /// The steps with the same index of all trajectories, from the last index to the first
        /// (SeeUPO, arXiv:2602.06554).
        Step = "step",
    }
}

choices! {
    /// Experts that the learner uses for sampled tokens.
    pub enum RoutingReplay {
        /// The choice of the learner's router.
        Off = "off",
        /// The choice during sampling, recorded in the trajectories (R3, arXiv:2510.11370).
        Rollout = "rollout",
    }
}

choices! {
    /// Handling of NaN and infinite values.
    pub enum OnNan {
        /// The run ends with an error; the last checkpoint is kept.
        Stop = "stop",
        /// The optimiser step is skipped, reported and counted.
        Skip = "skip",
    }
}

section! {
    /// Selection of the groups that are trained on.
    pub struct Filter: "trainer.filter." {
        /// Replaces groups with equal rewards by new groups in the same step (dynamic sampling,
        /// DAPO, arXiv:2503.14476).
        uniform: bool = false;
        /// Maximum number of such replacement rounds per step.
        refills: usize = 4, range("≥ 0"), needs("trainer.filter.uniform", Is::True);
        /// Fraction of groups kept: those with the largest standard deviation of rewards (StarPO-S,
        /// arXiv:2504.20073).
        keep: f64 = 1.0, range("0 < x ≤ 1");
    }
}

section! {
    /// The value model of PPO.
    pub struct CriticSettings: "trainer.critic.", restart(), needs("trainer.algorithm", Is::OneOf(&WITH_CRITIC)) {
        /// The critic is a value head on the policy's hidden states instead of a separate model.
        shared: bool = false;
        /// Learning rate of the critic.
        lr: f64 = 1e-5, range("≥ 0");
        /// Initial steps that train only the critic.
        warmup: usize = 0, unit("steps"), range("≥ 0");
        /// Clip range of the value change per update; 0 is off.
        clip: f64 = 0.5, range("≥ 0");
        /// Weight of the value loss.
        weight: f64 = 0.5, range("≥ 0"), needs("trainer.critic.shared", Is::True);
        /// Text prepended to the critic's rows only, with {column} for columns of the dataset row;
        /// empty is off. The recipe's function privileged returns a text per step.
        privileged: String = String::new();
        /// Maximum number of tokens of that text; a longer text ends the run.
        privileged_tokens: usize = 256, unit("tokens"), range("≥ 1"), needs("trainer.critic.privileged", Is::Set);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_choice_is_a_name_or_a_table() {
        let default_value = Choice::new("gae");
        let read = |json: Value| Choice::read("trainer.estimator", &json, Some(&default_value));
        assert_eq!(read(json!("rloo")).unwrap(), Choice::new("rloo"));
        assert_eq!(read(json!({ "lambda": 0.9 })).unwrap(), Choice::with("gae", "lambda", json!(0.9)));
        assert!(read(json!({ "name": 3 })).unwrap_err().to_string().contains("a name, or a table with `name`"));
        let table = read(json!({ "name": "grpo", "normalize": "none" })).unwrap();
        assert_eq!(table, Choice::with("grpo", "normalize", json!("none")));
        assert_eq!(serde_json::to_value(&table).unwrap(), json!({ "name": "grpo", "normalize": "none" }));
        // The recipe's function, as it is stored now and as it was stored before.
        let of_recipe = serde_json::to_value(Choice::of_recipe()).unwrap();
        assert_eq!(of_recipe, json!({ "name": "the recipe's function" }));
        for stored in [of_recipe, json!("custom"), json!({ "name": "custom" })] {
            assert_eq!(read(stored).unwrap(), Choice::of_recipe());
        }
        let same = |old: &str, new: &str| Choice::is_same_name(&json!(old), &json!(new));
        assert!(same("custom", "the recipe's function") && same("grpo", "grpo") && !same("custom", "grpo"));
    }
}
