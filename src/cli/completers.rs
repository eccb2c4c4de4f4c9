//! What a shell can complete after an argument: Lua files, settings and their values.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter};

use crate::config::{ALGORITHMS, settings};
use crate::rl::advantages::Estimator;
use crate::rl::objective::Objective;

/// Completes a Lua file.
pub(super) fn lua_files() -> ArgValueCompleter {
    ArgValueCompleter::new(
        PathCompleter::file().filter(|path| path.is_dir() || path.extension() == Some("lua".as_ref())),
    )
}

/// Completes `key=value`: names of settings, then values of those with a fixed set.
pub(super) fn recipe_settings() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| typed.to_str().map(of_settings).unwrap_or_default())
}

fn of_settings(typed: &str) -> Vec<CompletionCandidate> {
    if let Some((key, begun)) = typed.split_once('=') {
        let values = values(key);
        return values
            .iter()
            .filter(|value| value.starts_with(begun))
            .map(|value| CompletionCandidate::new(format!("{key}={value}")))
            .collect();
    }
    let mut seen = BTreeSet::new();
    settings()
        // Parts in capitals stand for names of the recipe's own.
        .filter(|setting| setting.path.starts_with(typed) && !setting.path.contains(char::is_uppercase))
        .filter(|setting| seen.insert(setting.path))
        .map(|setting| CompletionCandidate::new(format!("{}=", setting.path)).help(Some(setting.doc.into())))
        .collect()
}

/// The values of a setting with a fixed set: its literals, `true` and `false`.
fn values(key: &str) -> BTreeSet<String> {
    if key == "trainer.algorithm" {
        return ALGORITHMS.iter().map(|name| (*name).to_owned()).collect();
    }
    let mut found = BTreeSet::new();
    match key {
        "trainer.estimator" => found.extend(Estimator::NAMES.map(str::to_owned)),
        "trainer.loss" => found.extend(Objective::NAMES.map(str::to_owned)),
        _ => {}
    }
    for setting in settings().filter(|setting| setting.path == key) {
        for kind in setting.kind.split('|').map(str::trim) {
            match kind.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                Some(literal) => drop(found.insert(literal.to_owned())),
                None if kind == "boolean" => found.extend(["false".to_owned(), "true".to_owned()]),
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(typed: &str) -> Vec<String> {
        of_settings(typed).iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_complete_by_name_and_value() {
        assert_eq!(names("policy.lora.r"), ["policy.lora.rank=", "policy.lora.rank_stabilized="]);
        assert_eq!(names("policy.dtype="), ["policy.dtype=auto", "policy.dtype=bf16", "policy.dtype=f32"]);
        assert_eq!(names("policy.cuda_graphs=t"), ["policy.cuda_graphs=true"]);
        assert_eq!(names("trainer.algorithm=gs"), ["trainer.algorithm=gspo"]);
        assert_eq!(names("trainer.estimator=rl"), ["trainer.estimator=rloo"]);
        assert_eq!(names("trainer.loss=dppo"), ["trainer.loss=dppo_kl", "trainer.loss=dppo_tv"]);
        assert!(names("trainer.lr=").is_empty() && names("trainer.lrr").is_empty());
        assert!(names("").len() > 100);
    }
}
