//! What a shell can complete after an argument: Lua files, runs, models, settings and their values,
//! names with documentation.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};

use crate::algorithms;
use crate::config::{algorithm_names, settings};
use crate::hub::Hub;
use crate::load::{MODEL_NANO, MODEL_SMOLLM2};
use crate::rl::advantages::Estimator;
use crate::rl::objective::PolicyLoss;
use crate::script::docs;
use crate::store::run_names;

/// Completes a Lua file.
pub(super) fn lua_files() -> ArgValueCompleter {
    ArgValueCompleter::new(lua_paths())
}

fn lua_paths() -> PathCompleter {
    PathCompleter::file().filter(|path| path.is_dir() || path.extension() == Some("lua".as_ref()))
}

/// Completes a Lua file, or a run.
pub(super) fn scripts_and_runs() -> ArgValueCompleter {
    runs_and(lua_paths())
}

/// Completes a run: its name, or its directory.
pub(super) fn runs() -> ArgValueCompleter {
    runs_and(PathCompleter::dir())
}

fn runs_and(paths: PathCompleter) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let paths = paths.complete(typed);
        typed.to_str().map(runs_of).unwrap_or_default().into_iter().chain(paths).collect()
    })
}

/// Completes a model: a run, a model with a name, one in the Hub's cache, a directory, a GGUF file.
pub(super) fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let text = typed.to_str().unwrap_or_default();
        let cached = Hub::from_env().map(|hub| hub.cached_models()).unwrap_or_default();
        let named = cached.into_iter().chain([MODEL_NANO, MODEL_SMOLLM2].map(str::to_owned));
        let named = named.filter(|name| name.starts_with(text));
        let is_model = |path: &Path| path.is_dir() || path.extension().is_some_and(|extension| extension == "gguf");
        let paths = PathCompleter::any().filter(is_model).complete(typed);
        named.map(CompletionCandidate::new).chain(runs_of(text)).chain(paths).collect()
    })
}

/// Completes what `r1 doc` documents: functions, namespaces, sections of settings, settings.
pub(super) fn documented_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| typed.to_str().map(documented).unwrap_or_default())
}

fn documented(typed: &str) -> Vec<CompletionCandidate> {
    let entries = |entry: &'static docs::Entry| (entry.name.as_str(), entry.summary());
    let settings = settings().map(|setting| (setting.path, setting.doc));
    let files = algorithms::all().iter().map(|file| (file.name, file.paper.as_str()));
    let modules = if typed.starts_with('@') { docs::modules() } else { &[] };
    let of_modules = modules.iter().map(|module| (module.name.as_str(), module.summary()));
    let functions = docs::all().chain(modules.iter().flat_map(|module| &module.entries)).map(entries);
    let mut seen = BTreeSet::new();
    let all = of_modules
        .chain(functions)
        .chain(settings)
        .chain(files)
        .filter(|(name, _)| name.starts_with(typed) && seen.insert(*name));
    all.map(|(name, about)| CompletionCandidate::new(name).help(Some(about.into()))).collect()
}

/// Completes an algorithm that `r1 new --algorithm` copies.
pub(super) fn algorithm_files() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let text = typed.to_str().unwrap_or_default();
        let names = algorithms::all().iter().map(|file| file.name).filter(|name| name.starts_with(text));
        names.map(CompletionCandidate::new).collect()
    })
}

/// The runs in the directory `runs`, by name, and in other directories by path.
fn runs_of(typed: &str) -> Vec<CompletionCandidate> {
    let (folder, name) = typed.rsplit_once('/').map_or(("", typed), |(folder, name)| (folder, name));
    let root = if folder.is_empty() { "runs" } else { folder };
    let names = run_names(Path::new(root)).into_iter().filter(|names| names.starts_with(name));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    names.map(|names| CompletionCandidate::new(format!("{folder}{names}"))).collect()
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
        return algorithm_names().into_iter().map(str::to_owned).collect();
    }
    let mut values = BTreeSet::new();
    match key {
        "trainer.estimator" => values.extend(Estimator::names().into_iter().map(str::to_owned)),
        "trainer.loss" => values.extend(PolicyLoss::names().into_iter().map(str::to_owned)),
        _ => {}
    }
    for setting in settings().filter(|setting| setting.path == key) {
        for kind in setting.kind.split('|').map(str::trim) {
            match kind.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                Some(literal) => drop(values.insert(literal.to_owned())),
                None if kind == "boolean" => values.extend(["false".to_owned(), "true".to_owned()]),
                None => {}
            }
        }
    }
    values
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
