//! The changes by a reload of the script: the settings that differ, those that change now and those
//! that wait for a restart.

use serde_json::Value as Json;

use crate::config::Settings;
use crate::schema::Section;

/// A setting whose value has changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// `trainer.lr`
    pub key: String,
    pub old: Json,
    pub new: Json,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Json| if value.is_null() { "nothing".to_owned() } else { value.to_string() };
        write!(f, "{} {} -> {}", self.key, show(&self.old), show(&self.new))
    }
}

/// The settings of the continued run after the recipe's settings have changed to `new`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Merged {
    pub(crate) settings: Settings,
    pub(crate) changed: Vec<Change>,
    /// The changes that need a restart.
    pub(crate) waiting: Vec<Change>,
}

/// The declaration of each setting says whether it may change ([`Reload`](crate::schema::Reload)).
pub(crate) fn merge(old: &Settings, new: &Settings) -> Merged {
    let settings = <Settings as Section>::reloaded(old, new);
    let (changed, waiting) = (differences(old, &settings), differences(&settings, new));
    Merged { settings, changed, waiting }
}

/// Every field that differs, by its dotted name.
fn differences(old: &Settings, new: &Settings) -> Vec<Change> {
    let json = |settings: &Settings| serde_json::to_value(settings).unwrap_or(Json::Null);
    changes(&json(old), &json(new))
}

/// Every field that differs between two settings as JSON, by its dotted name.
pub fn changes(old: &Json, new: &Json) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", old, new, &mut changes);
    changes
}

fn compare(key: &str, old: &Json, new: &Json, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let (Json::Object(before), Json::Object(after)) = (old, new) else {
        changes.push(Change { key: key.to_owned(), old: old.clone(), new: new.clone() });
        return;
    };
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    for name in names {
        let inner = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        let of = |fields: &serde_json::Map<String, Json>| fields.get(name).cloned().unwrap_or(Json::Null);
        compare(&inner, &of(before), &of(after), changes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::{Branch, Choice, Learner, Trainer};

    #[test]
    fn reload_applies_settings_that_may_change_in_a_run() {
        let old = Settings::default();
        let mut new = old.clone();
        new.seed = 7;
        new.policy.model = "other".to_owned();
        new.sampling.temperature = 0.5;
        new.env.max_steps = 3;
        new.env.format = "hermes".to_owned();
        new.limits.cpu = 9.0;
        new.eval.every = 4;
        let learner = Learner {
            lr: 1e-3,
            group_size: 3,
            branch: Branch { roots: 2, ..Branch::default() },
            estimator: Choice::new("rloo"),
            loss: Choice {
                options: [("dual_clip".to_owned(), 3.0.into())].into_iter().collect(),
                ..Choice::new("ppo")
            },
            ..Learner::default()
        };
        new.trainer = Trainer::Rl { learner, critic: false };
        let merged = merge(&old, &new);
        let keys = |changes: &[Change]| changes.iter().map(|change| change.key.clone()).collect::<Vec<_>>();
        assert_eq!(
            keys(&merged.changed),
            [
                "sampling.temperature",
                "env.max_steps",
                "trainer.branch.roots",
                "trainer.loss.dual_clip",
                "trainer.lr",
                "eval.every",
                "limits.cpu"
            ]
        );
        assert_eq!(
            keys(&merged.waiting),
            ["seed", "policy.model", "env.format", "trainer.group_size", "trainer.estimator.name"]
        );
        assert_eq!(merged.waiting[0].to_string(), "seed 0 -> 7");
        assert_eq!(merged.settings.policy, old.policy);
        assert_eq!(merge(&old, &old), Merged { settings: old.clone(), changed: Vec::new(), waiting: Vec::new() });
    }

    #[test]
    fn reload_defers_another_algorithm_to_a_restart() {
        let old = Settings::default();
        let learner = Learner { lr: 1.0, ..Learner::default() };
        let new = Settings { trainer: Trainer::Rl { learner, critic: true }, ..old.clone() };
        let merged = merge(&old, &new);
        assert!(merged.changed.is_empty());
        assert!(merged.waiting.iter().any(|change| change.key == "trainer.algorithm"));
        assert_eq!(merged.settings, old);
    }
}
