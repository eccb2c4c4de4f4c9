//! Names of settings in verl, TRL and Agent-R1, and the r1 settings that correspond to them.
//!
//! The table is used for the hint on an unknown setting that is a name of another system, and for
//! the tables of docs/coming-from.md. A test checks every r1 name against the settings reference.

mod agent_r1;
mod synonyms;
mod trl;
mod verl;

use std::fmt::Write;

use self::synonyms::SYNONYMS;

/// A system whose setting names are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Verl,
    Trl,
    /// Agent-R1: the settings of verl, and these.
    AgentR1,
}

impl System {
    pub const ALL: [Self; 3] = [Self::Verl, Self::Trl, Self::AgentR1];

    pub fn name(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Trl => "TRL",
            Self::AgentR1 => "Agent-R1",
        }
    }

    /// Its settings, in the order of the page.
    pub fn settings(self) -> &'static [Counterpart] {
        match self {
            Self::Verl => verl::SETTINGS,
            Self::Trl => trl::SETTINGS,
            Self::AgentR1 => agent_r1::SETTINGS,
        }
    }
}

/// A setting of another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counterpart {
    /// Dotted name in that system.
    pub name: &'static str,
    /// The r1 settings that do the same; empty where there is none.
    pub settings: &'static [&'static str],
    /// Form of the value in r1, or the alternative if r1 has no such setting. May be empty.
    pub value: &'static str,
}

/// A name of an algorithm, an estimator, a loss or a KL estimator in another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueName {
    pub system: System,
    /// Value in that system, such as `reinforce_plus_plus`.
    pub name: &'static str,
    /// The r1 setting, and its value: `trainer.algorithm`, `reinforce_pp`.
    pub setting: &'static str,
    pub value: &'static str,
}

/// A setting with a counterpart.
const fn c(name: &'static str, settings: &'static [&'static str], value: &'static str) -> Counterpart {
    Counterpart { name, settings, value }
}

/// A setting without one.
const fn none(name: &'static str, value: &'static str) -> Counterpart {
    Counterpart { name, settings: &[], value }
}

/// A value of verl.
const fn v(name: &'static str, setting: &'static str, value: &'static str) -> ValueName {
    ValueName { system: System::Verl, name, setting, value }
}

/// A value of TRL.
const fn t(name: &'static str, setting: &'static str, value: &'static str) -> ValueName {
    ValueName { system: System::Trl, name, setting, value }
}

/// Values with another name in other systems. Values with the same name in r1 are not listed.
pub const VALUES: &[ValueName] = &[
    v("gae", "trainer.algorithm", "ppo"),
    v("reinforce_plus_plus", "trainer.algorithm", "reinforce_pp"),
    v("reinforce_plus_plus_baseline", "trainer.algorithm", "reinforce_pp_baseline"),
    v("grpo_vectorized", "trainer.algorithm", "grpo"),
    v("rloo_vectorized", "trainer.algorithm", "rloo"),
    ValueName { system: System::AgentR1, name: "token_gae", setting: "trainer.estimator", value: "gae_token" },
    v("reinforce_plus_plus", "trainer.estimator", "reinforce_pp"),
    v("reinforce_plus_plus_baseline", "trainer.estimator", "reinforce_pp_baseline"),
    v("vanilla", "trainer.loss", "ppo"),
    v("geo_mean", "trainer.algorithm", "gmpo"),
    v("kl", "trainer.kl.kind", "k1"),
    v("mse", "trainer.kl.kind", "k2"),
    v("low_var_kl", "trainer.kl.kind", "k3"),
    t("grpo", "trainer.loss", "ppo"),
    t("bnpo", "trainer.loss", "bnpo"),
];

/// The counterpart of an unknown setting: the entry that shares most trailing segments with `name`.
///
/// Names of one word without `_`, such as `lr` or `path`, and names that r1 has too, such as
/// `max_tokens`, are not recognised by the last segment alone, unless the other system has no
/// sections (TRL).
pub fn counterpart(name: &str) -> Option<(System, &'static Counterpart)> {
    // A setting of r1 that does not apply to this recipe, such as `env.max_steps` together with
    // `envs`.
    if super::settings().any(|setting| setting.path == name) {
        return None;
    }
    let mut best = None;
    let mut most = 0;
    for system in System::ALL {
        for entry in system.settings() {
            let shared = shared_segments(entry.name, name);
            let last = last_part(entry.name);
            let named = last.contains('_') && !super::settings().any(|setting| setting.name() == last);
            let significant = shared > 1 || named || !entry.name.contains('.');
            if shared > most && significant {
                most = shared;
                best = Some((system, entry));
            }
        }
    }
    best
}

fn shared_segments(a: &str, b: &str) -> usize {
    a.rsplit('.').zip(b.rsplit('.')).take_while(|(a, b)| a == b).count()
}

/// The hint for an unknown setting that has a name of another system, or a common one; `None` for
/// any other name.
pub fn hint(key: &str) -> Option<String> {
    if let Some((system, entry)) = counterpart(key) {
        return Some(hint_of(key, system, entry));
    }
    let named = |name: &str| shared_segments(name, key) == name.split('.').count();
    let (name, setting) = SYNONYMS.iter().find(|(name, _)| named(name))?;
    Some(synonym_hint(name, setting))
}

/// As [`hint`] for the name that is most similar to the last part of `key`, and how similar it is.
pub fn misspelt(key: &str) -> Option<(f64, String)> {
    // Shorter names resemble too many others.
    const SHORTEST: usize = 5;
    let last = last_part(key);
    let similar = |name: &str| if name.len() < SHORTEST { 0.0 } else { similarity(last, name) };
    let entries = System::ALL.into_iter().flat_map(|system| system.settings().iter().map(move |entry| (system, entry)));
    let entries = entries.map(|(system, entry)| (similar(last_part(entry.name)), (system, entry)));
    let synonym = SYNONYMS.iter().map(|(name, setting)| (similar(last_part(name)), (name, setting)));
    let entry = entries.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let synonym = synonym.max_by(|a, b| a.0.total_cmp(&b.0))?;
    if synonym.0 > entry.0 {
        let (name, setting) = synonym.1;
        return Some((synonym.0, synonym_hint(name, setting)));
    }
    let (system, found) = entry.1;
    Some((entry.0, hint_of(key, system, found)))
}

/// Similarity of two names; 1 is equality.
pub(super) fn similarity(a: &str, b: &str) -> f64 {
    // No name is that long; comparing one takes time.
    if a.len() > 200 { 0.0 } else { strsim::normalized_damerau_levenshtein(a, b) }
}

fn synonym_hint(name: &str, setting: &str) -> String {
    format!("`{}` is `{setting}` in r1", last_part(name))
}

fn hint_of(key: &str, system: System, entry: &Counterpart) -> String {
    let (system, theirs) = (system.name(), entry.name);
    let value = if entry.value.is_empty() { String::new() } else { format!(": {}", entry.value) };
    if entry.settings.is_empty() {
        return format!("`{theirs}` is a setting of {system} that r1 does not have{value}");
    }
    // `trainer.critic.learning_rate` is meant to be `trainer.critic.lr`.
    let short_name = |setting: &'static str| {
        let (table, _) = key.rsplit_once('.')?;
        let path = format!("{table}.{}", last_part(setting));
        super::settings().find(|setting| setting.path == path).map(|setting| setting.path)
    };
    let names: Vec<&str> = entry.settings.iter().map(|setting| short_name(setting).unwrap_or(setting)).collect();
    format!("`{theirs}` of {system} is {} in r1{value}", quoted(&names))
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// The hint for an unknown value of `setting` that another system has.
pub fn value_hint(setting: &str, value: &str) -> Option<String> {
    let known = |entry: &&ValueName| entry.name == value && entry.setting == setting;
    let elsewhere = |entry: &&ValueName| entry.name == value;
    let found = VALUES.iter().find(known).or_else(|| VALUES.iter().find(elsewhere))?;
    Some(format!("`{value}` of {} is `{}={}` in r1", found.system.name(), found.setting, found.value))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" with ")
}

/// The table of a system's settings in docs/coming-from.md.
pub fn table(system: System) -> String {
    let mut table = format!("| {} | r1 | value in r1 |\n|---|---|---|\n", system.name());
    for entry in system.settings() {
        let ours = if entry.settings.is_empty() { "–".to_owned() } else { quoted(entry.settings) };
        let value = entry.value.replace('|', "\\|").replace('*', "\\*");
        // Writing to a string can't fail.
        let _ = writeln!(table, "| `{}` | {ours} | {value} |", entry.name);
    }
    table
}

/// The table of values in docs/coming-from.md.
pub fn value_table() -> String {
    let mut table = "| value | system | r1 |\n|---|---|---|\n".to_owned();
    for entry in VALUES {
        let system = entry.system.name();
        // Writing to a string can't fail.
        let _ = writeln!(table, "| `{}` | {system} | `{}={}` |", entry.name, entry.setting, entry.value);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    fn is_setting(path: &str) -> bool {
        crate::config::settings().any(|setting| setting.is_below(path))
            // Options of the estimator and the loss that are chosen by name.
            || path.starts_with("trainer.estimator.")
            || path.starts_with("trainer.loss.")
    }

    #[test]
    fn every_counterpart_is_a_setting_of_the_reference() {
        let mut names = BTreeSet::new();
        for system in System::ALL {
            for entry in system.settings() {
                assert!(names.insert(entry.name), "{} twice", entry.name);
                assert!(
                    !entry.settings.is_empty() || !entry.value.is_empty(),
                    "{} has neither a setting nor a remark",
                    entry.name
                );
                let named = entry.value.split('`').skip(1).step_by(2).filter(|word| {
                    crate::config::settings()
                        .any(|s| !s.section().is_empty() && word.starts_with(&format!("{}.", s.section())))
                });
                let named = named.map(|word| word.split([' ', '=']).next().unwrap_or_default());
                for path in entry.settings.iter().copied().chain(named) {
                    assert!(is_setting(path), "{}: r1 has no `{path}`", entry.name);
                }
            }
        }
    }

    #[test]
    fn no_name_of_another_system_is_a_setting_of_r1() {
        for entry in System::ALL.into_iter().flat_map(System::settings) {
            let same = crate::config::settings().any(|setting| setting.path == entry.name);
            assert!(!same, "`{}` is a setting of r1 and is never refused", entry.name);
        }
    }

    #[test]
    fn every_synonym_is_a_setting_of_the_reference() {
        for (name, setting) in SYNONYMS {
            assert!(is_setting(setting), "{name}: r1 has no `{setting}`");
            assert!(counterpart(name).is_none(), "{name} is a name of another system");
        }
    }

    #[test]
    fn values_are_those_that_r1_takes() {
        for entry in VALUES {
            let known = match entry.setting {
                "trainer.algorithm" => crate::config::ALGORITHMS.contains(&entry.value),
                "trainer.estimator" => crate::rl::advantages::Estimator::NAMES.contains(&entry.value),
                "trainer.loss" => crate::rl::objective::Objective::NAMES.contains(&entry.value),
                "trainer.kl.kind" => ["k1", "k2", "k3"].contains(&entry.value),
                other => panic!("{other}"),
            };
            assert!(known, "{entry:?}");
        }
    }

    #[test]
    fn the_longest_match_wins() {
        let of = |name: &str| counterpart(name).map(|(_, entry)| entry.settings);
        assert_eq!(of("critic.optim.lr"), Some(&["trainer.critic.lr"][..]));
        assert_eq!(of("actor_rollout_ref.actor.optim.lr"), Some(&["trainer.lr"][..]));
        assert_eq!(of("rollout.n"), Some(&["trainer.group_size"][..]));
        assert_eq!(of("trainer.beta"), Some(&["trainer.kl.coef"][..]));
        assert_eq!(of("trainer.clip_ratio_low"), Some(&["trainer.clip"][..]));
        assert_eq!(of("eval.n"), None);
        assert_eq!(of("env.max_steps"), None);
        assert_eq!(of("trainer.lrr"), None);
        assert!(hint("trainer.fsdp_config").unwrap().contains("r1 does not have"));
    }

    #[test]
    fn a_value_of_another_system_has_its_name_in_r1() {
        let hint = value_hint("trainer.algorithm", "reinforce_plus_plus").unwrap();
        assert_eq!(hint, "`reinforce_plus_plus` of verl is `trainer.algorithm=reinforce_pp` in r1");
        assert!(value_hint("trainer.algorithm", "token_gae").unwrap().contains("trainer.estimator=gae_token"));
        assert_eq!(value_hint("trainer.algorithm", "grop"), None);
    }
}
