//! Names of settings in verl, TRL and Agent-R1, and the r1 settings that correspond to them, from
//! counterparts.tsv.
//!
//! They are used for the hint on an unknown setting that is a name of another system, and for the
//! tables of docs/reference/coming-from.md. A test checks every r1 name against the settings
//! reference.

use std::sync::LazyLock;

/// A setting of another system.
#[derive(Debug, PartialEq, Eq)]
struct Counterpart {
    /// verl, TRL or Agent-R1.
    system: &'static str,
    /// Dotted name in that system.
    name: &'static str,
    /// The r1 settings that do the same; empty where there is none.
    settings: Vec<&'static str>,
    /// Form of the value in r1, or the alternative if r1 has no such setting. May be empty.
    value: &'static str,
}

/// A name of an algorithm, an estimator, a loss or a KL estimator in another system.
#[derive(Debug, PartialEq, Eq)]
struct ValueName {
    system: &'static str,
    /// Value in that system, such as `reinforce_plus_plus`.
    name: &'static str,
    /// The r1 setting, and its value: `trainer.algorithm`, `reinforce_pp`.
    setting: &'static str,
    value: &'static str,
}

/// The rows of counterparts.tsv, in its order.
#[derive(Debug, Default)]
struct CounterpartNames {
    settings: Vec<Counterpart>,
    values: Vec<ValueName>,
    /// (name, r1 setting)
    synonyms: Vec<(&'static str, &'static str)>,
}

static NAMES: LazyLock<CounterpartNames> = LazyLock::new(|| {
    let mut names = CounterpartNames::default();
    for line in include_str!("counterparts.tsv").lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["setting", system, name, settings, value] => {
                let settings = settings.split(',').filter(|setting| !setting.is_empty()).collect();
                names.settings.push(Counterpart { system, name, settings, value });
            }
            ["value", system, name, setting, value] => names.values.push(ValueName { system, name, setting, value }),
            ["synonym", name, setting] => names.synonyms.push((name, setting)),
            // A comment or an empty line; a test refuses others.
            _ => {}
        }
    }
    names
});

/// The counterpart of an unknown setting: the entry that shares most trailing segments with `name`.
///
/// Names of one word without `_`, such as `lr` or `path`, and names that r1 has too, such as
/// `max_tokens`, are not recognised by the last segment alone, unless the other system has no
/// sections (TRL).
fn counterpart(name: &str) -> Option<&'static Counterpart> {
    // A setting of r1 that does not apply to this recipe, such as `env.max_steps` together with
    // `envs`.
    if super::settings().any(|setting| setting.path == name) {
        return None;
    }
    let mut best = None;
    let mut longest = 0;
    for entry in &NAMES.settings {
        let shared = shared_segments(entry.name, name);
        let last = last_part(entry.name);
        let named = last.contains('_') && !super::settings().any(|setting| setting.name() == last);
        let significant = shared > 1 || named || !entry.name.contains('.');
        if shared > longest && significant {
            longest = shared;
            best = Some(entry);
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
    if let Some(entry) = counterpart(key) {
        return Some(hint_of(key, entry));
    }
    let named = |name: &str| shared_segments(name, key) == name.split('.').count();
    let (name, setting) = NAMES.synonyms.iter().find(|(name, _)| named(name))?;
    Some(synonym_hint(name, setting))
}

/// As [`hint`] for the name that is most similar to the last part of `key`, and how similar it is.
pub fn misspelt(key: &str) -> Option<(f64, String)> {
    // Shorter names resemble too many others.
    const SHORTEST: usize = 5;
    let last = last_part(key);
    let similar = |name: &str| if name.len() < SHORTEST { 0.0 } else { similarity(last, name) };
    let entries = NAMES.settings.iter().map(|entry| (similar(last_part(entry.name)), entry));
    let synonym = NAMES.synonyms.iter().map(|(name, setting)| (similar(last_part(name)), (name, setting)));
    let entry = entries.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let synonym = synonym.max_by(|a, b| a.0.total_cmp(&b.0))?;
    if synonym.0 > entry.0 {
        let (name, setting) = synonym.1;
        return Some((synonym.0, synonym_hint(name, setting)));
    }
    Some((entry.0, hint_of(key, entry.1)))
}

/// Similarity of two names; 1 is equality.
pub(super) fn similarity(a: &str, b: &str) -> f64 {
    // No name is that long; comparing one takes time.
    if a.len() > 200 { 0.0 } else { strsim::normalized_damerau_levenshtein(a, b) }
}

fn synonym_hint(name: &str, setting: &str) -> String {
    format!("`{}` is `{setting}` in r1", last_part(name))
}

fn hint_of(key: &str, entry: &Counterpart) -> String {
    let (system, theirs) = (entry.system, entry.name);
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

/// The name of a setting without its tables.
pub(super) fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// The hint for an unknown value of `setting` that another system has.
pub fn value_hint(setting: &str, value: &str) -> Option<String> {
    let in_setting = |entry: &&ValueName| entry.name == value && entry.setting == setting;
    let elsewhere = |entry: &&ValueName| entry.name == value;
    let counterpart = NAMES.values.iter().find(in_setting).or_else(|| NAMES.values.iter().find(elsewhere))?;
    Some(format!("`{value}` of {} is `{}={}` in r1", counterpart.system, counterpart.setting, counterpart.value))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" with ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::fmt::Write;

    use super::*;

    /// The systems, in the order of the page.
    const SYSTEMS: [&str; 3] = ["verl", "TRL", "Agent-R1"];

    /// The table of a system's settings in docs/reference/coming-from.md.
    fn table(system: &str) -> String {
        let mut table = format!("| {system} | r1 | value in r1 |\n|---|---|---|\n");
        for entry in NAMES.settings.iter().filter(|entry| entry.system == system) {
            let ours = if entry.settings.is_empty() { "–".to_owned() } else { quoted(&entry.settings) };
            let value = entry.value.replace('|', "\\|").replace('*', "\\*");
            let _ = writeln!(table, "| `{}` | {ours} | {value} |", entry.name);
        }
        table
    }

    /// The table of values in docs/reference/coming-from.md.
    fn value_table() -> String {
        let mut table = "| value | system | r1 |\n|---|---|---|\n".to_owned();
        for ValueName { system, name, setting, value } in &NAMES.values {
            let _ = writeln!(table, "| `{name}` | {system} | `{setting}={value}` |");
        }
        table
    }

    /// The same tables refuse these names on the command line. `just docs` updates the page.
    #[test]
    fn files_made_from_the_declarations_of_counterparts() {
        let mut parts: Vec<(String, String)> =
            SYSTEMS.iter().map(|system| (system.to_lowercase(), table(system))).collect();
        parts.push(("values".to_owned(), value_table()));
        let parts: Vec<(&str, String)> = parts.iter().map(|(name, part)| (name.as_str(), part.clone())).collect();
        crate::reference_data::parts_up_to_date("docs/reference/coming-from.md", &parts);
    }

    fn is_setting(path: &str) -> bool {
        crate::config::settings().any(|setting| setting.is_below(path))
            // Options of the estimator and the loss that are chosen by name.
            || path.starts_with("trainer.estimator.")
            || path.starts_with("trainer.loss.")
    }

    #[test]
    fn every_counterpart_is_a_setting_of_the_reference() {
        let mut names = BTreeSet::new();
        for Counterpart { system, name, settings, value } in &NAMES.settings {
            assert!(SYSTEMS.contains(system), "{system}");
            assert!(names.insert(name), "{name} twice");
            assert!(!settings.is_empty() || !value.is_empty(), "{name} has neither a setting nor a remark");
            let named = value.split('`').skip(1).step_by(2).filter(|word| {
                crate::config::settings()
                    .any(|s| !s.section().is_empty() && word.starts_with(&format!("{}.", s.section())))
            });
            let named = named.map(|word| word.split([' ', '=']).next().unwrap_or_default());
            for path in settings.iter().copied().chain(named) {
                assert!(is_setting(path), "{name}: r1 has no `{path}`");
            }
        }
        assert!(names.len() > 200, "{}", names.len());
    }

    #[test]
    fn every_row_is_read() {
        let text = include_str!("counterparts.tsv");
        let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")).count();
        assert_eq!(rows, NAMES.settings.len() + NAMES.values.len() + NAMES.synonyms.len());
    }

    #[test]
    fn no_name_of_another_system_is_a_setting_of_r1() {
        for entry in &NAMES.settings {
            let same = crate::config::settings().any(|setting| setting.path == entry.name);
            assert!(!same, "`{}` is a setting of r1 and is never refused", entry.name);
        }
    }

    #[test]
    fn every_synonym_is_a_setting_of_the_reference() {
        for (name, setting) in &NAMES.synonyms {
            assert!(is_setting(setting), "{name}: r1 has no `{setting}`");
            assert!(counterpart(name).is_none(), "{name} is a name of another system");
        }
    }

    #[test]
    fn values_are_those_that_r1_takes() {
        for entry in &NAMES.values {
            let is_valid = match entry.setting {
                "trainer.algorithm" => crate::config::algorithm_names().contains(&entry.value),
                "trainer.estimator" => crate::rl::advantages::Estimator::names().contains(&entry.value),
                "trainer.loss" => crate::rl::objective::PolicyLoss::names().contains(&entry.value),
                "trainer.kl.kind" => ["k1", "k2", "k3"].contains(&entry.value),
                other => panic!("{other}"),
            };
            assert!(is_valid, "{entry:?}");
        }
    }

    #[test]
    fn the_longest_match_wins() {
        let of = |name: &str| counterpart(name).map(|entry| &entry.settings[..]);
        assert_eq!(of("critic.optim.lr"), Some(&["trainer.critic.lr"][..]));
        assert_eq!(of("actor_rollout_ref.actor.optim.lr"), Some(&["trainer.lr"][..]));
        assert_eq!(of("rollout.n"), Some(&["trainer.group_size"][..]));
        assert_eq!(of("trainer.beta"), Some(&["trainer.kl.coef"][..]));
        assert_eq!(of("trainer.clip_ratio_low"), Some(&["trainer.clip"][..]));
        assert_eq!(of("eval.n"), None);
        assert_eq!(of("env.max_steps"), None);
        assert_eq!(of("trainer.lrr"), None);
        assert!(hint("trainer.enforce_eager").unwrap().contains("r1 does not have"));
    }

    #[test]
    fn a_value_of_another_system_has_its_name_in_r1() {
        let hint = value_hint("trainer.algorithm", "reinforce_plus_plus").unwrap();
        assert_eq!(hint, "`reinforce_plus_plus` of verl is `trainer.algorithm=reinforce_pp` in r1");
        assert!(value_hint("trainer.algorithm", "token_gae").unwrap().contains("trainer.estimator=gae_token"));
        assert_eq!(value_hint("trainer.algorithm", "grop"), None);
    }
}
