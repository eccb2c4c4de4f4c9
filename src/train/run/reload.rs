//! Hot reload in a run: valid versions of the script are applied, functions at the next group,
//! settings at the next step.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::run_state::RunState;
use super::training::{Reloads, Training};
use crate::error::{Error, Kind, Result};
use crate::rollout::Spec;
use crate::script::{Change, ReloadedScript, Script, Split, Watcher, WatcherOptions, reloaded};
use crate::telemetry::{Metrics, OutputMode, Reporter};
use crate::train::rules::objective::Objective;
use crate::train::rules::validate::{ValidatedTrainer, validate};
use crate::train::start::resume::record;
use crate::train::watch::report;

impl Training {
    /// Starts a step with its first operation: the newest version since the last step is applied.
    /// The watcher starts with the first step.
    pub(crate) fn begin_step(&mut self) -> Result<()> {
        if self.step.began.is_some() {
            return Ok(());
        }
        self.run.check_stop()?;
        self.step.began = Some(Instant::now());
        if self.reloads.is_none() {
            self.reloads = Some(self.watch_script()?);
        }
        self.apply_reload()
    }

    /// Starts to watch the script, unless the user has disabled reloads.
    fn watch_script(&self) -> Result<Reloads> {
        let inbox: Arc<Mutex<Vec<ReloadedScript>>> = Arc::default();
        let RunState { options, reporter, .. } = &self.run;
        // Rank 0 decides when several processes reload.
        if options.no_reload || !options.ranks.is_first() {
            return Ok(Reloads { inbox, applied: 0, _watcher: None });
        }
        let (pool, scripts, shared_inbox) = (self.session.pool.replacer(), self.run.dir.scripts(), Arc::clone(&inbox));
        let (log, alone) = (reporter.clone(), options.ranks.size() == 1);
        let reference = self.policy.reference.is_some();
        // Reported once for each setting and value.
        let mut waiting: Vec<Change> = Vec::new();
        let mut warned: Vec<String> = self.warned.clone();
        let mut running = self.run.script.clone();
        let take = move |reload: &ReloadedScript| {
            let script = &reload.script;
            let ValidatedTrainer { objective, warnings, .. } = validate(script)?;
            if objective.has_reference() && !reference {
                let message = "the loss now reads b.logp_ref, and the run began without a reference policy";
                let location = objective.graph().map(|graph| graph.location.clone()).unwrap_or_default();
                return Err(Error::new(Kind::Script, message)
                    .at(location)
                    .hint("stop the run and continue with --resume"));
            }
            let new = warnings.into_iter().filter(|error| !warned.contains(&error.message));
            let new: Vec<Error> = new.collect();
            report::warn(&log, &new);
            warned.extend(new.into_iter().map(|error| error.message));
            scripts.write_tool_lists(&script.listings.to_json())?;
            scripts.write(&script.hash, &script.path, &script.source, &script.modules())?;
            let generation = if alone { pool.replace(script.clone()) } else { pool.generation() + 1 };
            shared_inbox.lock().unwrap_or_else(PoisonError::into_inner).push(reload.clone());
            let new: Vec<Change> = reload.waiting.iter().filter(|change| !waiting.contains(change)).cloned().collect();
            let from = if alone { "groups that begin now use it" } else { "the next step uses it" };
            report(&log, reload, (&reload.script.edited_since(&running), from), generation, &new);
            running = reload.script.clone();
            waiting.extend(new);
            Ok(())
        };
        let (on_refusal, again, path) = (reporter.clone(), reporter.clone(), self.run.script.path.clone());
        let spec =
            Spec { max_context: self.session.max_context, ..Spec::new(Split::Train, 0, &self.run.script.settings) };
        let watcher = Watcher::start(WatcherOptions {
            script: self.run.script.clone(),
            overrides: options.overrides.clone(),
            renderer: Arc::clone(&self.session.renderer),
            budget: spec.budget(),
            take: Box::new(take),
            refused: Box::new(move |error| refused(&on_refusal, &path, error)),
            restored: Box::new(move |script| restored(&again, script)),
        })?;
        Ok(Reloads { inbox, applied: 0, _watcher: Some(watcher) })
    }

    /// The newest version since the last step. Several processes take it only if each has it.
    fn newest_reload(&mut self) -> Result<Option<Script>> {
        let Some(reloads) = &mut self.reloads else { return Ok(None) };
        let all = std::mem::take(&mut *reloads.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        let (count, newest) = (all.len(), all.into_iter().next_back());
        let ranks = &self.run.options.ranks;
        if ranks.size() == 1 {
            reloads.applied += count;
            return Ok(newest.map(|reload| reload.script));
        }
        let Some(hash) = ranks.of_first(newest.as_ref().map(|reload| reload.script.hash.clone()))? else {
            return Ok(None);
        };
        let newest = match newest {
            Some(reload) => Some(reload),
            None => reloaded(&self.run.script, &self.run.options.overrides).ok(),
        };
        let newest = newest.filter(|reload| reload.script.hash == hash);
        let without: Vec<String> = ranks
            .gather(newest.is_some())?
            .iter()
            .enumerate()
            .filter(|(_, has)| !**has)
            .map(|(rank, _)| rank.to_string())
            .collect();
        let Some(newest) = newest.clone().filter(|_| without.is_empty()) else {
            self.run.reporter.warn(&format!(
                "the new version of the script waits for the next step: rank {} has another one",
                without.join(", ")
            ));
            // Unless there is a newer one by then.
            if let Some(reload) = newest.filter(|_| ranks.is_first()) {
                reloads.inbox.lock().unwrap_or_else(PoisonError::into_inner).insert(0, reload);
            }
            return Ok(None);
        };
        reloads.applied += 1;
        self.session.pool.replacer().replace(newest.script.clone());
        Ok(Some(newest.script))
    }

    /// Applies the newest version since the last step: its settings, and its function `advantage`.
    fn apply_reload(&mut self) -> Result<()> {
        let Some(script) = self.newest_reload()? else { return Ok(()) };
        let settings = script.settings.clone();
        if let Some(learner) = settings.trainer.learner() {
            self.objective = Objective::of(&script, learner, self.has_critic)?;
            if learner.kl != self.learner.kl {
                self.policy.kl = self.objective.kl_coef;
            }
            // The number that was selected for the device stays.
            let selected = self.learner.tokens_per_batch;
            self.learner = learner.clone();
            if learner.tokens_per_batch == 0 {
                self.learner.tokens_per_batch = selected;
            }
        }
        self.session.pool.set_retries(settings.rollout.retries);
        self.session.settings = settings;
        record(
            &self.run.dir,
            &script,
            &self.run.options.overrides,
            &self.run.origins,
            self.session.max_context,
            self.run.state.step,
        )?;
        script.logged.iter().for_each(|line| self.session.log.line(line));
        self.run.script = script;
        self.policy.custom_estimator = None;
        if let Some(curriculum) = &mut self.session.curriculum {
            curriculum.reload(&self.run.script)?;
        }
        Ok(())
    }

    /// Marks reloads in the metrics of a step.
    pub(crate) fn log_reloads(&mut self, metrics: &mut Metrics) {
        let applied = self.reloads.as_mut().map_or(0, |reloads| std::mem::take(&mut reloads.applied));
        metrics.set("script/generation", self.session.pool.generation() as f64);
        metrics.set("script/reloads", applied as f64);
        metrics.set("script/memory", self.session.pool.memory());
    }
}

/// Reports a version whose files `edited` differ from the one before, and which is used `from` then
/// on.
fn report(
    reporter: &Reporter,
    reload: &ReloadedScript,
    (edited, from): (&[String], &str),
    generation: u64,
    waiting: &[Change],
) {
    let ReloadedScript { script, changed, .. } = reload;
    if reporter.mode() == OutputMode::Json {
        let object = |changes: &[Change]| -> Map<String, Value> {
            changes.iter().map(|change| (change.key.clone(), json!([change.old, change.new]))).collect()
        };
        let (changed, waiting) = (object(changed), object(waiting));
        let fields = json!({ "hash": script.hash, "generation": generation, "changed": changed, "waiting": waiting });
        return reporter.event("reload", &fields);
    }
    let short: String = script.hash.chars().take(12).collect();
    let files = if edited.is_empty() { script.path.display().to_string() } else { edited.join(", ") };
    let mut text = format!("reloaded {files} ({short}); {from}");
    for change in changed {
        text.extend(["\n    ", &change.to_string(), " from the next step on"]);
    }
    reporter.info(&text);
    if !waiting.is_empty() {
        let list: Vec<String> = waiting.iter().map(|change| format!("\n    {change}")).collect();
        reporter.warn(&format!("these settings wait for a restart, and keep their values:{}", list.concat()));
    }
}

fn refused(reporter: &Reporter, path: &Path, error: &Error) {
    let Error { message, place: location, hint, kind, subject } = error;
    let line = location.as_deref().and_then(line_at);
    if reporter.mode() == OutputMode::Json {
        let fields = json!({
            "kind": kind.name(), "message": message, "subject": subject, "place": location, "line": line, "hint": hint,
        });
        return reporter.event("reload_refused", &fields);
    }
    let mut text =
        format!("{} has changed and is not reloaded; the run continues with the old version", path.display());
    text.extend(["\n  ", message]);
    text.extend(location.iter().map(|location| format!("\n  --> {location}")));
    if let (Some(line), Some((_, number))) = (line, location.as_deref().and_then(|location| location.rsplit_once(':')))
    {
        text.extend([format!("\n  {number:>4} | {line}")]);
    }
    text.extend(hint.iter().map(|hint| format!("\n  hint: {hint}")));
    reporter.warn(&text);
}

fn restored(reporter: &Reporter, script: &Script) {
    if reporter.mode() == OutputMode::Json {
        return reporter.event("reload_restored", &json!({ "hash": script.hash }));
    }
    let short: String = script.hash.chars().take(12).collect();
    reporter.info(&format!("{} is the running version again ({short})", script.path.display()));
}

/// The text of the line at `path:line`.
fn line_at(location: &str) -> Option<String> {
    let (path, number) = location.rsplit_once(':')?;
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
    Some(line.trim_end().to_owned()).filter(|line| !line.trim().is_empty())
}
