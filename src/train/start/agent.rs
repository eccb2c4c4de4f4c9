//! A run as an agent, for the commands that use what was trained: the version of the script, the
//! settings and the model of the run. Settings of the command line come on top.
//!
//! A run is given by its directory, its name, or a model in it, such as a checkpoint. A script that
//! is named together with a run replaces the run's version; it gets those settings of the run that
//! it knows.

use std::path::{Path, PathBuf};

use super::resume::{in_effect, of_the_run};
use crate::error::{Error, Kind, Result};
use crate::load::{kept_script, load_script};
use crate::mdp::Split;
use crate::script::{Change, Script, changes};
use crate::store::{FileVersion, Sources, StoredRun, find_model, no_run};

/// Sections of the settings that decide what the policy sees and what its tools do.
const SECTIONS: [&str; 5] = ["params", "env", "envs", "limits", "policy.template_kwargs"];

/// A script, a run, or both.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Path of the script's file; `None`: the run's version.
    file: Option<PathBuf>,
    run: Option<OfRun>,
}

#[derive(Clone, Debug)]
struct OfRun {
    stored: StoredRun,
    /// As given: the run, or a model in it.
    model: PathBuf,
    /// The script version and the settings that the model was trained with.
    sources: Sources,
    hash: String,
}

#[derive(Debug)]
pub struct LoadedAgent {
    pub script: Script,
    /// All `key=value` in effect: first the run's, then the command line's.
    pub overrides: Vec<String>,
    /// Settings of the run that the script does not know.
    pub left_out: Vec<String>,
}

impl Agent {
    /// A script alone.
    pub fn of_script(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), run: None }
    }

    /// A script's file, or a run: its directory, its name in `runs_dir`, a model in it.
    ///
    /// # Errors
    /// [`Kind::Store`] for a damaged run; [`Kind::Script`] if there is no such script or run.
    pub fn find(path: &Path, runs_dir: &Path) -> Result<Self> {
        if path.is_file() && path.extension().is_some_and(|extension| extension == "lua") {
            return Ok(Self::of_script(path));
        }
        if let Some(run) = Self::of_model(path, runs_dir)? {
            return Ok(run);
        }
        if !path.exists() && path.extension().is_none_or(|extension| extension != "lua") {
            let message = format!("there is no script or run `{}`", path.display());
            let scripts = load_script(path, &[]).err().and_then(|error| error.hint);
            let hint = scripts.or(no_run(path, runs_dir).hint).unwrap_or_default();
            return Err(Error::new(Kind::Script, message).hint(hint));
        }
        Ok(Self::of_script(path))
    }

    /// The run that a model belongs to: a run by its directory or its name in `runs_dir`, or a
    /// model in a run. `None` for other models.
    ///
    /// # Errors
    /// [`Kind::Store`] for a damaged run.
    pub fn of_model(model: &Path, runs_dir: &Path) -> Result<Option<Self>> {
        let below = runs_dir.join(model);
        let model = if !model.exists() && below.is_dir() { below } else { model.to_owned() };
        let Some(stored) = StoredRun::containing(&model)? else { return Ok(None) };
        let config = stored.configuration_of(&model);
        let (hash, overrides) = (config.script.hash.clone(), config.overrides.clone());
        let sources = Sources { overrides, ..stored.sources(&hash)? };
        Ok(Some(Self { file: None, run: Some(OfRun { stored, model, sources, hash }) }))
    }

    /// A script version of a run, by its hash, or `file` in its place.
    ///
    /// # Errors
    /// [`Kind::Store`] if the run does not have it.
    pub fn of_version(run: &StoredRun, hash: &str, file: Option<&Path>) -> Result<Self> {
        let (stored, model) = (run.clone(), run.path().to_owned());
        let run = OfRun { stored, model, sources: run.sources(hash)?, hash: hash.to_owned() };
        Ok(Self { file: file.map(Path::to_owned), run: Some(run) })
    }

    /// This run with another script.
    #[must_use]
    pub fn with_script(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }

    /// As given: a script, or a run.
    pub fn given(&self) -> &Path {
        let run = self.run.as_ref().map(|run| run.model.as_path());
        self.file.as_deref().or(run).unwrap_or(Path::new(""))
    }

    /// Whether the script is read from its file.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    pub fn run(&self) -> Option<&StoredRun> {
        self.run.as_ref().map(|run| &run.stored)
    }

    /// The run's model: as given, or the newest checkpoint. `None` without a run.
    pub fn model(&self) -> Option<&Path> {
        self.run.as_ref().map(|run| run.model.as_path())
    }

    /// Refuses a run without a model, unless `typed` names one: the model that it started from is
    /// not what it trained. An evaluation has the model that it evaluated.
    ///
    /// # Errors
    /// [`Kind::Store`] if the run has no model, or it can't be read.
    pub fn refuse_untrained(&self, typed: &[String]) -> Result<()> {
        let named = |setting: &&str| typed.iter().any(|typed| typed.starts_with(&format!("{setting}=")));
        let Some(run) = &self.run else { return Ok(()) };
        if ["policy.model", "policy.api_base"].iter().any(named) || run.stored.is_evaluation() {
            return Ok(());
        }
        find_model(&run.model).map(drop).map_err(|error| match &error.hint {
            None => error.hint("policy.model=MODEL names another model"),
            Some(_) => error,
        })
    }

    /// Loads the script with the settings of the run, the run's model and `typed`.
    ///
    /// # Errors
    /// Errors of [`Script::load`].
    pub fn open(&self, typed: &[String]) -> Result<LoadedAgent> {
        let Some(run) = &self.run else {
            let script = self.load(typed)?;
            return Ok(LoadedAgent { script, overrides: typed.to_vec(), left_out: Vec::new() });
        };
        let mut overrides = run.sources.overrides.clone();
        if find_model(&run.model).is_ok() {
            overrides = in_effect(&overrides, &[format!("policy.model={}", serde_json::json!(run.model))]);
        }
        self.open_with(overrides, typed)
    }

    /// As [`open`](Self::open), with the model that the run started from.
    ///
    /// # Errors
    /// Errors of [`Script::load`].
    pub fn open_as_recorded(&self, typed: &[String]) -> Result<LoadedAgent> {
        let recorded = self.run.as_ref().map(|run| run.sources.overrides.clone());
        self.open_with(recorded.unwrap_or_default(), typed)
    }

    /// Loads with the settings `stored` of the run and with `typed`. If another script replaces the
    /// run's, settings of the run that it refuses are left out.
    fn open_with(&self, mut stored: Vec<String>, typed: &[String]) -> Result<LoadedAgent> {
        let mut left_out = Vec::new();
        loop {
            let overrides = in_effect(&stored, typed);
            let error = match self.load(&overrides) {
                Ok(script) => return Ok(LoadedAgent { script, overrides, left_out }),
                Err(error) => error,
            };
            let refused = |setting: &String| error.place.as_ref() == Some(setting) && !typed.contains(setting);
            match (stored.iter().position(refused), &self.run) {
                (Some(at), _) if self.file.is_some() && error.kind == Kind::Usage => left_out.push(stored.remove(at)),
                (Some(_), Some(run)) => {
                    return Err(of_the_run(error, &stored, &run.stored.path().join("config.json")));
                }
                _ => return Err(error),
            }
        }
    }

    /// The resources that the run's version of the script read.
    pub fn resources(&self) -> &[FileVersion] {
        self.run.as_ref().map_or(&[], |run| &run.sources.resources)
    }

    /// Loads the script with these settings alone.
    ///
    /// # Errors
    /// Errors of [`Script::load`].
    pub fn load(&self, overrides: &[String]) -> Result<Script> {
        let script = match (&self.file, &self.run) {
            (None, Some(OfRun { sources, .. })) => {
                kept_script(&sources.path, sources.source.clone(), sources.modules.clone(), overrides)?
            }
            (file, _) => load_script(file.as_deref().unwrap_or(Path::new("")), overrides)?,
        };
        if let Some(run) = &self.run {
            script.listings.extend(&run.stored.tool_lists()?);
        }
        Ok(script)
    }

    /// What was taken from the run, in one or two lines; empty without a run.
    pub fn in_words(&self, loaded: &LoadedAgent) -> Vec<String> {
        let Some(run) = &self.run else { return Vec::new() };
        let LoadedAgent { script, overrides, left_out } = loaded;
        let version = match &self.file {
            None => format!("{} (version {:.12})", run.sources.path.display(), run.hash),
            Some(file) => file.display().to_string(),
        };
        let shown = |setting: &&String| SECTIONS.iter().any(|section| is_in(setting, section));
        let settings: Vec<&str> = overrides.iter().filter(shown).map(String::as_str).collect();
        let with = if settings.is_empty() { String::new() } else { format!(" with {}", settings.join(" ")) };
        let mut lines = vec![format!("agent of {}: {version}{with}", run.stored.path().display())];
        if let Ok(model) = find_model(&run.model) {
            let format = &script.settings.env.format;
            let indexes = script.indexes().into_iter().map(|index| format!(", index {}", index.path.display()));
            lines.push(format!("model {}, format {format}{}", model.display(), indexes.collect::<String>()));
        }
        if !left_out.is_empty() {
            lines.push(format!("settings of the run that {version} does not know: {}", left_out.join(" ")));
        }
        let (resources, indexes) = self.changed(script);
        for path in resources.iter().chain(&indexes) {
            lines.push(format!("{} has changed since the run read it", path.display()));
        }
        lines
    }

    /// The resources and search indexes that differ from the run's.
    fn changed(&self, script: &Script) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let Some(run) = &self.run else { return (Vec::new(), Vec::new()) };
        let version = &run.stored.configuration_of(&run.model).script;
        let differing = |old: &[FileVersion], now: Vec<FileVersion>| {
            let differs = |now: &FileVersion| {
                old.iter().any(|old| old.path.file_name() == now.path.file_name() && old.sha256 != now.sha256)
            };
            now.into_iter().filter(differs).map(|now| now.path).collect()
        };
        (differing(&version.resources, script.resources()), differing(&version.indexes, script.indexes()))
    }

    /// The settings of a run that decide what its policy saw, where `script` has others.
    pub fn differing(&self, script: &Script) -> Vec<Change> {
        let Some(run) = &self.run else { return Vec::new() };
        let stored = &run.stored.configuration_of(&run.model).settings;
        let mut differing = changes(stored, &serde_json::json!(script.settings));
        // A setting that the run's version of r1 did not have is null.
        differing.retain(|change| !change.old.is_null() && SECTIONS.iter().any(|section| is_in(&change.key, section)));
        differing
    }

    /// The task of a stored trajectory of the run, for a machine without the dataset.
    pub fn recorded_task(&self) -> Option<serde_json::Value> {
        let run = &self.run.as_ref()?.stored;
        let first = |split| {
            let step = run.steps(split).ok()?.into_iter().next_back()?;
            run.trajectories(split, step).ok()?.into_iter().next().map(|one| one.task)
        };
        first(Split::Eval).or_else(|| first(Split::Train))
    }
}

/// Whether a setting, with or without its value, is in a section.
fn is_in(setting: &str, section: &str) -> bool {
    setting.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '=']))
}
