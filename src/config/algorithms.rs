//! Algorithms by name: `trainer = r1.trainer { algorithm = "gspo" }`. A name is a file of
//! `lua/algorithms`: a training loop, an estimator and a loss with their defaults; settings of the
//! recipe take precedence.

use serde_json::Value;

use super::learner::{Choice, Learner};
use crate::algorithms::{self, AlgorithmFile as File, FileLoss};
use crate::schema::Field;

/// The algorithms that train a critic.
pub(super) const WITH_CRITIC: [&str; 3] = ["ppo", "pspo", "capo"];

/// An algorithm: its default settings, and whether it needs a critic.
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithm {
    /// Whether a critic is trained.
    pub critic: bool,
    pub settings: Learner,
}

/// The files that are algorithms.
fn files() -> impl Iterator<Item = &'static File> {
    algorithms::all().iter().filter(|file| file.is_algorithm())
}

/// The names of all algorithms.
pub fn algorithm_names() -> Vec<&'static str> {
    files().map(|file| file.name).collect()
}

impl Algorithm {
    /// One of [`algorithm_names`].
    pub fn named(name: &str) -> Option<Self> {
        files().find(|file| file.name == name).map(Self::of)
    }

    fn of(file: &File) -> Self {
        let written = Value::Object(file.trainer.clone());
        let mut settings = Learner::read("trainer", &written, Some(&Learner::default())).unwrap_or_default();
        let choice =
            |(name, options): &algorithms::NamedChoice| Choice { options: options.clone(), ..Choice::new(name) };
        if file.advantage {
            settings.estimator = Choice::new(file.name);
        } else if let Some(estimator) = &file.estimator {
            settings.estimator = choice(estimator);
        }
        match &file.loss {
            Some(_) if file.is_loss() => settings.loss = Choice::new(file.name),
            Some(FileLoss::Of(other)) => settings.loss = choice(other),
            _ => {}
        }
        Self { critic: file.critic, settings }
    }
}

/// The algorithms as a table in Markdown.
#[cfg(test)]
pub(crate) fn table() -> String {
    use std::fmt::Write;

    let mut out = "| name | estimator | loss | remarks | paper |\n|---|---|---|---|---|\n".to_owned();
    for file in files() {
        let Learner { estimator, loss, .. } = Algorithm::of(file).settings;
        let (estimator, loss) = (shown(&estimator), shown(&loss));
        let _ = writeln!(out, "| `{}` | {estimator} | {loss} | {} | {} |", file.name, file.remarks, file.paper);
    }
    out
}

/// Names of algorithms with their papers.
pub fn papers() -> impl Iterator<Item = (&'static str, &'static str)> {
    files().map(|file| (file.name, file.paper.as_str()))
}

/// `` `gspo` with `seq = "step"` ``
#[cfg(test)]
fn shown(choice: &Choice) -> String {
    let (name, options) = (choice.shown(), &choice.options);
    let options: Vec<String> = options.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
    if options.is_empty() { format!("`{name}`") } else { format!("`{name}` with {}", options.join(", ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

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
            ("tir_optimal_token_baseline", false, json!({ "estimator": named("tir_optimal_token_baseline") })),
            ("tree", false, json!({ "estimator": named("tree") })),
            ("luspo", false, json!({ "loss": named("luspo") })),
            ("vespo", false, json!({ "loss": named("vespo") })),
            ("dro", false, json!({ "loss": named("dro") })),
        ];
        assert_eq!(expected.each_ref().map(|(name, ..)| *name).to_vec(), algorithm_names());
        let critics: Vec<&str> = files().filter(|file| file.critic).map(|file| file.name).collect();
        assert_eq!(critics, WITH_CRITIC);
        let fields = |learner: &Learner| serde_json::to_value(learner).unwrap().as_object().unwrap().clone();
        let defaults = fields(&Learner::default());
        assert_eq!((&defaults["estimator"], &defaults["loss"]), (&named("grpo"), &named("ppo")));
        for (name, critic, differs) in expected {
            let algorithm = Algorithm::named(name).unwrap();
            let mut actual = fields(&algorithm.settings);
            actual.retain(|field, value| defaults[field] != *value);
            assert_eq!(Value::Object(actual), differs, "{name}");
            assert_eq!(algorithm.critic, critic, "{name}");
        }
        assert!(Algorithm::named("grop").is_none());
    }
}
