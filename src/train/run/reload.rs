//! Hot reload in a run: valid versions of the script are applied, functions at the next group,
//! settings at the next step.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::training::{Training, schedule_of};
use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::rollout::Spec;
use crate::script::{Change, Reload, Script, Split, Watcher, WatcherOptions};
use crate::telemetry::{Metrics, Mode, Reporter};
use crate::train::options::RunOptions;
use crate::train::rules::objective::Objective;
use crate::train::rules::validate::{ValidatedTrainer, validate};
use crate::train::start::resume::record;
use crate::train::start::session;
use crate::train::watch::report;

/// The watcher of a run, and its results since the last step.
pub(crate) struct Reloads {
    inbox: Arc<Mutex<Vec<Reload>>>,
    /// Versions applied since the last step.
    taken: usize,
    _watcher: Option<Watcher>,
}

impl Reloads {
    /// Starts to watch the script, unless the user has disabled reloads.
    pub(crate) fn start(training: &Training, options: &RunOptions, reporter: &Reporter) -> Result<Self> {
        let inbox: Arc<Mutex<Vec<Reload>>> = Arc::default();
        if options.no_reload {
            return Ok(Self { inbox, taken: 0, _watcher: None });
        }
        let (pool, scripts, found) = (training.session.pool.replacer(), training.run.scripts(), Arc::clone(&inbox));
        let log = reporter.clone();
        let reference = training.policy.reference.is_some();
        // Reported once for each setting and value.
        let mut waiting: Vec<Change> = Vec::new();
        let mut warned: Vec<String> = training.warned.clone();
        let take = move |reload: &Reload| {
            let script = &reload.script;
            let ValidatedTrainer { objective, warnings, .. } = validate(script)?;
            if objective.has_reference() && !reference {
                let message = "the loss now reads b.logp_ref, and the run began without a reference policy";
                let place = objective.custom.as_ref().map(|graph| graph.place.clone()).unwrap_or_default();
                return Err(Error::new(Kind::Script, message)
                    .at(place)
                    .hint("stop the run and continue with --resume"));
            }
            let new = warnings.into_iter().filter(|error| !warned.contains(&error.message));
            let new: Vec<Error> = new.collect();
            report::warn(&log, &new);
            warned.extend(new.into_iter().map(|error| error.message));
            scripts.write_tool_lists(&script.tool_lists())?;
            scripts.write(&script.hash, &script.path, &script.source, &script.modules())?;
            let generation = pool.replace(script.clone());
            found.lock().unwrap_or_else(PoisonError::into_inner).push(reload.clone());
            let new: Vec<Change> = reload.waiting.iter().filter(|change| !waiting.contains(change)).cloned().collect();
            report(&log, reload, generation, &new);
            waiting.extend(new);
            Ok(())
        };
        let (on_refusal, again, path) = (reporter.clone(), reporter.clone(), training.script.path.clone());
        let spec =
            Spec { max_context: training.session.max_context, ..Spec::new(Split::Train, 0, &training.script.settings) };
        let watcher = Watcher::start(WatcherOptions {
            script: training.script.clone(),
            overrides: options.overrides.clone(),
            renderer: Arc::clone(&training.session.renderer),
            budget: spec.budget(),
            take: Box::new(take),
            refused: Box::new(move |error| refused(&on_refusal, &path, error)),
            restored: Box::new(move |script| restored(&again, script)),
        })?;
        Ok(Self { inbox, taken: 0, _watcher: Some(watcher) })
    }

    /// Applies the newest version since the last step: its settings, and its function `advantage`.
    pub(crate) fn apply(&mut self, training: &mut Training, options: &RunOptions) -> Result<()> {
        let found = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.taken += found.len();
        let Some(Reload { script, .. }) = found.into_iter().next_back() else { return Ok(()) };
        let settings = script.settings.clone();
        if let Trainer::Grpo(learner) | Trainer::Ppo(learner) = &settings.trainer {
            training.objective = Objective::of(&script, learner, training.policy.critic.is_some())?;
            if learner.kl != training.learner.kl {
                training.policy.kl = training.objective.kl_coef;
            }
            training.schedule = schedule_of(learner);
            // The number that was selected for the device stays.
            let selected = training.learner.tokens_per_batch;
            training.learner = learner.clone();
            if learner.tokens_per_batch == 0 {
                training.learner.tokens_per_batch = selected;
            }
        }
        training.session.pool.set_retries(settings.rollout.retries);
        training.session.settings = settings;
        record(
            &training.run,
            &script,
            &options.overrides,
            &training.origins,
            training.session.max_context,
            training.state.step,
        )?;
        script.logged.iter().for_each(|line| training.session.log.line(line));
        training.script = script;
        training.policy.custom_estimator = None;
        if let Some(curriculum) = &mut training.session.curriculum {
            curriculum.reload(&training.script)?;
        }
        Ok(())
    }

    /// Marks reloads in the metrics of a step.
    pub(crate) fn log(&mut self, metrics: &mut Metrics, session: &session::Session) {
        metrics.set("script/generation", session.pool.generation() as f64);
        metrics.set("script/reloads", std::mem::take(&mut self.taken) as f64);
        metrics.set("script/memory", session.pool.memory());
    }
}

fn report(reporter: &Reporter, reload: &Reload, generation: u64, waiting: &[Change]) {
    let Reload { script, changed, .. } = reload;
    if reporter.mode() == Mode::Json {
        let object = |changes: &[Change]| -> Map<String, Value> {
            changes.iter().map(|change| (change.key.clone(), json!([change.old, change.new]))).collect()
        };
        let (changed, waiting) = (object(changed), object(waiting));
        let fields = json!({ "hash": script.hash, "generation": generation, "changed": changed, "waiting": waiting });
        return reporter.event("reload", &fields);
    }
    let short: String = script.hash.chars().take(12).collect();
    let mut text = format!("reloaded {} ({short}); groups that begin now use it", script.path.display());
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
    let Error { message, place, hint, kind, subject } = error;
    let line = place.as_deref().and_then(line_at);
    if reporter.mode() == Mode::Json {
        let fields = json!({
            "kind": kind.name(), "message": message, "subject": subject, "place": place, "line": line, "hint": hint,
        });
        return reporter.event("reload_refused", &fields);
    }
    let mut text =
        format!("{} has changed and is not reloaded; the run continues with the old version", path.display());
    text.extend(["\n  ", message]);
    text.extend(place.iter().map(|place| format!("\n  --> {place}")));
    if let (Some(line), Some((_, number))) = (line, place.as_deref().and_then(|place| place.rsplit_once(':'))) {
        text.extend([format!("\n  {number:>4} | {line}")]);
    }
    text.extend(hint.iter().map(|hint| format!("\n  hint: {hint}")));
    reporter.warn(&text);
}

fn restored(reporter: &Reporter, script: &Script) {
    if reporter.mode() == Mode::Json {
        return reporter.event("reload_restored", &json!({ "hash": script.hash }));
    }
    let short: String = script.hash.chars().take(12).collect();
    reporter.info(&format!("{} is the running version again ({short})", script.path.display()));
}

/// The text of the line at `path:line`.
fn line_at(place: &str) -> Option<String> {
    let (path, number) = place.rsplit_once(':')?;
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
    Some(line.trim_end().to_owned()).filter(|line| !line.trim().is_empty())
}
