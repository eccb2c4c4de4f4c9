//! The start of a run: new, or from a checkpoint of an earlier one, which it continues, or from
//! which it is forked.
//!
//! A resumed run continues the interrupted run, with the current script, the `key=value` settings
//! of all its command lines (the last one for a key is in effect), and its original seed.
//! Differences from the run's last configuration are listed before training. docs/guide/resume.md
//! has the rules.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::changed::{self, explained};
use super::checkpoint::with_note;
use super::cold_start_result;
use super::files::run_name;
use super::interrupt::InterruptState;
use super::origins;
use super::resume_point::{ResumePoint, ResumeSource};
use crate::config::refuse_server;
use crate::config::{Choice, PolicySettings, Settings};
use crate::error::{Error, Kind, Result};
use crate::load::load_script;
use crate::script::{Change, Script, changes};
use crate::store::{Configuration, FileVersion, ForkOrigin, Origin, Origins, RunDir, RunProgress, ScriptVersion};
use crate::telemetry::{OutputMode, Reporter, last_step};
use crate::train::options::RunOptions;

/// The state at the start of a training loop.
pub(crate) struct StartState {
    pub(crate) script: Script,
    /// As typed, with the overrides in effect.
    pub(crate) options: RunOptions,
    /// The run to resume; `None` for a new one.
    pub(crate) resumed: Option<Resumed>,
    pub(crate) standing: InterruptState,
}

/// What `--resume` or `--fork` reads from a run directory before the script is loaded.
pub(crate) struct Resumed {
    pub(crate) source: ResumeSource,
    pub(crate) point: ResumePoint,
    /// The run's last configuration; for a fork the one at its step.
    pub(crate) stored: Configuration,
}

impl StartState {
    /// Loads the script, and opens the run that `options` name.
    ///
    /// # Errors
    /// `Kind::Store` if the run can't be read or another process writes to it, `Kind::Usage` for a
    /// seed or an algorithm other than the run's; errors of [`Script::load`].
    pub(crate) fn new(options: &RunOptions, reporter: &Reporter) -> Result<Self> {
        Self::load(options, reporter, Ok)
    }

    /// As [`new`](Self::new), for supervised training: for a recipe for reinforcement learning, its
    /// cold start.
    pub(crate) fn supervised(options: &RunOptions, reporter: &Reporter) -> Result<Self> {
        Self::load(options, reporter, supervised)
    }

    fn load(options: &RunOptions, reporter: &Reporter, part: impl Fn(Script) -> Result<Script>) -> Result<Self> {
        let standing = InterruptState::new(options.interrupt, reporter)?;
        let load = |overrides: &[String]| {
            options.ranks.load(|| load_script(&options.script, overrides).and_then(&part), |script| &script.hash)
        };
        let Some(source) = ResumeSource::open(options)? else {
            let script = load(&options.overrides)?;
            refuse_server(&script.settings.policy).map_err(|error| script.placed(error))?;
            options.ranks.require_same(&script, None)?;
            return Ok(Self { script, options: options.clone(), resumed: None, standing });
        };
        let mut point = source.point(options.from_step, reporter)?;
        let (path, stored) = (&source.path, source.configuration(&point)?);
        let is_fork = source.is_fork;
        if point.checkpoint.is_none() {
            refuse_lost_checkpoints(path, &stored)?;
            if is_fork {
                return Err(Error::new(Kind::Store, "the run has no checkpoint to begin from").at_path(path));
            }
        }
        let overrides = in_effect(&stored.overrides, &options.overrides);
        let script = load(&overrides);
        let mut script = script.map_err(|error| of_the_run(error, &stored.overrides, &path.join("config.json")))?;
        if !is_fork {
            refuse_other_recipe(&script, &stored, path)?;
        }
        let seed = point.checkpoint.as_ref().map_or(stored.seed, |(_, state)| state.seed);
        let typed = options.overrides.iter().find(|typed| key_of(typed) == "seed");
        if let (Some((_, state)), true, Some(_)) = (&mut point.checkpoint, is_fork, typed) {
            state.seed = script.settings.seed;
        } else if script.settings.seed != seed {
            let new = script.settings.seed;
            if let Some(typed) = typed {
                return Err(Error::new(Kind::Usage, format!("the run's seed is {seed}, and a run keeps its seed"))
                    .at(typed)
                    .hint("leave it out, or start a new run"));
            }
            reporter.warn(&format!("the script's seed is {new} now; the run keeps its seed, {seed}"));
            script.settings.seed = seed;
        }
        let supervised = script.algorithm == "sft";
        if !stored.algorithm.is_empty() && supervised != (stored.algorithm == "sft") {
            let (verb, algorithm) = (if supervised { "run" } else { "sft" }, &stored.algorithm);
            return Err(Error::new(
                Kind::Usage,
                format!("the run was made by `r1 {verb}`: its algorithm is {algorithm}"),
            )
            .at_path(path)
            .hint("start a new run with policy.model=RUN to continue from its weights"));
        }
        // The policy keeps the tools of its first start.
        script.listings.extend(&source.tool_lists()?);
        origins::pin_data(&mut script, &stored.origins, options.fetching(reporter))?;
        let resumed = Resumed { source, point, stored };
        let changed = resumed.changed(&script);
        resumed.print_summary(&script, &changed, reporter);
        if options.confirm && !resumed.source.is_fork && resumed.point.checkpoint.is_some() {
            let path = Some(script.path.as_path()).filter(|_| resumed.stored.script.hash != script.hash);
            let untyped: Vec<&str> = changed
                .iter()
                .map(|change| change.key.as_str())
                // A script that was renamed.
                .filter(|key| *key != "name")
                .filter(|key| !options.overrides.iter().any(|typed| decides(key_of(typed), key)))
                .collect();
            changed::confirm(reporter, &resumed.source.path, path, &untyped)?;
        }
        options.ranks.require_same(&script, resumed.point.checkpoint.as_ref().map(|(_, state)| state.step))?;
        let options = RunOptions { overrides, ..options.clone() };
        Ok(Self { script, options, resumed: Some(resumed), standing })
    }

    /// The directory of the run, which a new run makes; a fork with the checkpoint that it begins
    /// from.
    ///
    /// # Errors
    /// Errors of [`RunDir::create`] and [`RunDir::adopt`].
    pub(crate) fn directory(&self) -> Result<Arc<RunDir>> {
        if let Some(run) = self.resumed.as_ref().and_then(|resumed| resumed.source.run.as_ref()) {
            return Ok(Arc::clone(run));
        }
        let run = RunDir::create(&self.options.runs_dir, &run_name(&self.options, &self.script))?;
        let begun = self.resumed.as_ref().filter(|_| self.options.ranks.is_first());
        if let Some((checkpoint, state)) = begun.and_then(|resumed| resumed.point.checkpoint.as_ref()) {
            run.adopt(checkpoint, state)?;
        }
        Ok(Arc::new(run))
    }

    /// The run and the step that this one was forked from, now or when it began.
    pub(crate) fn fork_origin(&self) -> Option<ForkOrigin> {
        let Resumed { source, point, stored } = self.resumed.as_ref()?;
        source.fork_origin(point).or_else(|| stored.origins.fork.clone())
    }

    /// Checkpoints that the run had after the one that it continues from, and can't use.
    pub(crate) fn damaged(&self) -> &[PathBuf] {
        self.resumed.as_ref().map_or(&[], |resumed| &resumed.point.damaged)
    }

    /// The policy's settings with the model that the run started from: for a resumed run its
    /// original one, even if the name now refers to another one.
    ///
    /// # Errors
    /// `Kind::Store` if the run has not begun, and the recipe's cold start has no result.
    pub(crate) fn base(&self) -> Result<PolicySettings> {
        let mut policy = self.script.settings.policy.clone();
        if self.script.settings.cold_start.is_some()
            && let Some(resumed) = &self.resumed
        {
            let run = resumed.source.path.as_path();
            if let Some(made) = cold_start_result::result(run)? {
                policy.model = made.display().to_string();
                return Ok(policy);
            }
            if resumed.stored.origins.model.is_none() {
                return Err(cold_start_result::no_result(run));
            }
        }
        if let Some(origin) = self.model_origin() {
            policy.model = origins::recorded(&origin);
        }
        Ok(policy)
    }

    /// The recorded origin of the model that a resumed run started from.
    pub(crate) fn model_origin(&self) -> Option<Origin> {
        let origin = self.resumed.as_ref()?.stored.origins.model.clone()?;
        (origin.name == self.script.settings.policy.model).then_some(origin)
    }

    /// The checkpoint that a resumed run continues from.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        let (path, _) = self.resumed.as_ref()?.point.checkpoint.as_ref()?;
        Some(path)
    }

    /// The first step that a resumed run repeats, or writes for the first time; `None` for a new
    /// run.
    pub(crate) fn repeats_from(&self) -> Option<u64> {
        let resumed = self.resumed.as_ref()?;
        Some(resumed.point.checkpoint.as_ref().map_or(0, |(_, state)| state.step + 1))
    }

    /// Whether a resumed run continues from a checkpoint with the script that it had.
    pub(crate) fn same_script(&self) -> bool {
        let goes_on = |resumed: &&Resumed| resumed.point.checkpoint.is_some() && !resumed.source.is_fork;
        self.resumed.as_ref().filter(goes_on).is_some_and(|resumed| resumed.stored.script.hash == self.script.hash)
    }

    /// Whether a resumed run has another script or other settings than before, and so samples other
    /// trajectories.
    pub(crate) fn differs(&self) -> bool {
        let differs = |resumed: &Resumed| {
            let samples = |change: &Change| !["checkpoint.", "eval."].iter().any(|part| change.key.starts_with(part));
            resumed.stored.script.hash != self.script.hash || resumed.changed(&self.script).iter().any(samples)
        };
        self.resumed.as_ref().is_some_and(differs)
    }

    /// The progress of training: after the checkpoint's step, or at the beginning.
    pub(crate) fn state(&self) -> RunProgress {
        let saved = self.resumed.as_ref().and_then(|resumed| resumed.point.checkpoint.as_ref());
        saved.map_or_else(
            || RunProgress { seed: self.script.settings.seed, ..RunProgress::default() },
            |(_, state)| state.clone(),
        )
    }
}

impl Resumed {
    /// Prints the step from which the run continues, and the changes.
    fn print_summary(&self, script: &Script, changed: &[Change], reporter: &Reporter) {
        let (run, stored) = (self.source.path.display(), &self.stored);
        let step = self.point.checkpoint.as_ref().map_or(0, |(_, state)| state.step);
        let is_fork = self.source.is_fork;
        let hashes = [&stored.script.hash, &script.hash].map(|hash| hash.chars().take(12).collect::<String>());
        if reporter.mode() == OutputMode::Json {
            let fields: Map<String, Value> =
                changed.iter().map(|change| (change.key.clone(), json!([change.old, change.new]))).collect();
            let checkpoint = self.point.checkpoint.as_ref().map(|(path, _)| path);
            let resources = differing(&stored.script.resources, script.resources());
            let indexes = differing(&stored.script.indexes, script.indexes());
            let fields = json!({ "run": self.source.path, "step": step, "checkpoint": checkpoint, "changed": fields,
                "script": hashes, "resources": resources, "indexes": indexes, "dropped": self.point.dropped_json() });
            return reporter.event(if is_fork { "fork" } else { "resume" }, &fields);
        }
        match &self.point.checkpoint {
            Some((path, _)) if is_fork => {
                reporter.info(&format!("a new run begins from step {step} of {run} ({})", path.display()));
            }
            Some((path, _)) => reporter.info(&format!("resuming {run} from step {step} ({})", path.display())),
            None => reporter.info(&format!("resuming {run} from step 0: it has no checkpoint yet")),
        }
        if let Some(dropped) = self.point.dropped() {
            reporter.info(&dropped);
        }
        if hashes[0] != hashes[1] {
            let [old, new] = hashes;
            reporter.info(&format!("the script has changed ({old} -> {new}); the current version is used"));
        }
        for file in differing(&stored.script.resources, script.resources()) {
            reporter
                .warn(&format!("{} has changed since the run read it; the current version is used", file.display()));
        }
        for index in differing(&stored.script.indexes, script.indexes()) {
            let index = index.display();
            let what = "is not the index or re-ranking model that the run used; the current version is used";
            reporter.warn(&format!("{index} {what}"));
        }
        if !changed.is_empty() {
            let list: Vec<String> = changed.iter().map(|change| format!("\n    {}", explained(change))).collect();
            reporter.info(&format!("settings that differ from the run's last configuration:{}", list.concat()));
        }
    }

    fn changed(&self, script: &Script) -> Vec<Change> {
        let defaults = json!(Settings::default());
        let of = |settings: &Settings, algorithm: &str| {
            let mut settings = json!(settings);
            settings["trainer"]["algorithm"] = json!(algorithm);
            settings
        };
        // The first versions of r1 stored the loop's name.
        let has_algorithm = !self.stored.algorithm.is_empty();
        let new = of(&script.settings, if has_algorithm { &script.algorithm } else { "" });
        let mut old = self.stored.settings.clone();
        if !has_algorithm && old["trainer"].is_object() {
            old["trainer"]["algorithm"] = json!("");
        }
        let mut changed = changes(&old, &new);
        // A setting that the stored version of r1 did not have is not a change if it has its
        // default.
        let default = |key: &str| defaults.pointer(&format!("/{}", key.replace('.', "/"))).cloned();
        changed.retain(|change| !(change.old.is_null() && default(&change.key).as_ref() == Some(&change.new)));
        changed.retain(|change| !Choice::is_same_name(&change.old, &change.new));
        changed
    }
}

/// Refuses to continue a run with another recipe: it would train its model on other tasks, and
/// replace its best model. A script that was edited has its file name, and one that was renamed its
/// text.
fn refuse_other_recipe(script: &Script, stored: &Configuration, run: &Path) -> Result<()> {
    let (name, file) = (&script.settings.name, script.path.file_name());
    let Some(old) = stored.settings["name"].as_str().filter(|old| *old != name) else { return Ok(()) };
    if file == stored.script.path.file_name() || script.hash == stored.script.hash {
        return Ok(());
    }
    let (run, path) = (run.display(), stored.script.path.display());
    Err(Error::new(Kind::Usage, format!("{run} is a run of {path} (`{old}`), and this is another recipe, `{name}`"))
        .at_path(&script.path)
        .hint(format!("name={old} continues the run with it; policy.model={run} starts a new run from its weights")))
}

/// Refuses a run whose checkpoints were removed. Without them it would begin again, and remove the
/// trajectories of all its steps.
fn refuse_lost_checkpoints(run: &Path, stored: &Configuration) -> Result<()> {
    let every = stored.settings["checkpoint"]["every"].as_u64().unwrap_or(0);
    match last_step(run)? {
        // The first checkpoint may be incomplete until the second one is due.
        Some(done) if every > 0 && done > 2 * every => Err(Error::new(
            Kind::Store,
            format!("the run has done {done} steps, with a checkpoint every {every}, and there is none"),
        )
        .at_path(run.join("checkpoints"))
        .hint("put the checkpoints back, or start a new run")),
        _ => Ok(()),
    }
}

/// The files and indexes whose content is not the recorded one.
fn differing(recorded: &[FileVersion], now: Vec<FileVersion>) -> Vec<PathBuf> {
    let differs = |now: &FileVersion| recorded.iter().any(|old| old.path == now.path && old.sha256 != now.sha256);
    now.into_iter().filter(differs).map(|now| now.path).collect()
}

/// Warns of dataset files whose length has changed, because the order of the rows depends on their
/// number.
pub(crate) fn warn_of_data(recorded: &Origins, now: &Origins, reporter: &Reporter) {
    for file in &now.files {
        let old = recorded.files.iter().find(|old| old.path == file.path && old.bytes != file.bytes);
        if let Some(old) = old {
            reporter.warn(&format!(
                "{} has {} bytes and had {} when the run began; its current rows are used",
                file.path.display(),
                file.bytes,
                old.bytes
            ));
        }
    }
}

/// The part of a script that `r1 sft` trains: the recipe, or its cold start.
pub(crate) fn supervised(script: Script) -> Result<Script> {
    Ok(script.cold_start()?.unwrap_or(script))
}

/// Writes the configuration of a run from now on.
pub(crate) fn record(
    run: &RunDir,
    script: &Script,
    overrides: &[String],
    origins: &Origins,
    max_context: usize,
    from_step: u64,
) -> Result<()> {
    run.scripts().write_tool_lists(&script.listings.to_json())?;
    let version = ScriptVersion {
        path: script.path.clone(),
        hash: script.hash.clone(),
        resources: script.resources(),
        indexes: script.indexes(),
        ..ScriptVersion::default()
    };
    let now = Configuration {
        from_step,
        r1: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch: crate::native::libtorch_version().to_owned(),
        cpu: crate::native::cpu_name().to_owned(),
        kernels: crate::native::kernels().to_owned(),
        script: version,
        overrides: overrides.to_vec(),
        seed: script.settings.seed,
        algorithm: script.algorithm.clone(),
        max_context,
        origins: origins.clone(),
        settings: json!(script.settings),
    };
    run.write_recipe(now, &script.source, &script.modules())
}

/// The stored overrides with new ones on top: a new one replaces the overrides of its key and of
/// the keys below it.
pub(crate) fn in_effect(stored: &[String], new: &[String]) -> Vec<String> {
    let replaced = |old: &String| new.iter().any(|new| is_within(key_of(old), key_of(new)));
    stored.iter().filter(|old| !replaced(old)).chain(new).cloned().collect()
}

/// Whether a typed setting decides the setting `key`. An algorithm has defaults of its own for the
/// settings of the trainer.
fn decides(typed: &str, key: &str) -> bool {
    is_within(key, if typed == "trainer.algorithm" { "trainer" } else { typed })
}

/// Whether a key is `table`, or a key within it.
fn is_within(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn key_of(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default().trim()
}

/// The error of a script that does not load with the stored overrides, with their origin.
pub(crate) fn of_the_run(error: Error, stored: &[String], config: &Path) -> Error {
    let theirs = stored.iter().any(|setting| error.place.as_deref() == Some(setting));
    if !theirs {
        return error;
    }
    let hint = format!("the setting is one of the run's own, kept in {}", config.display());
    with_note(error, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_overrides_replace_those_of_their_keys() {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let stored = list("trainer.algorithm=ppo trainer.steps=4 trainer.loss=gspo trainer.loss.dual_clip=3 seed=7");
        assert_eq!(in_effect(&stored, &[]), stored);
        assert_eq!(
            in_effect(&stored, &list("trainer.steps=6 trainer.loss=ppo")),
            list("trainer.algorithm=ppo seed=7 trainer.steps=6 trainer.loss=ppo")
        );
        // A longer name is another key.
        assert_eq!(in_effect(&list("trainer.steps_more=1"), &list("trainer.steps=2")).len(), 2);
    }
}
