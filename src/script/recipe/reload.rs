//! Hot reload: a thread detects changes of the script or its modules, loads and tries the new
//! version in its own virtual machine, and reports the result. The running version is not affected.
//!
//! The files are polled: any kind of write (in place, by rename, `git checkout`, a changed link),
//! on any file system, changes their time, size or identity. A change counts after a quiet period,
//! and only if the contents differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::load::Script;
use super::rows::Split;
use super::worker::Worker;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, FinishReason, Status};
use crate::script::runtime::failure::Failure;
use crate::script::runtime::log::LogSink;
use crate::script::runtime::resource::FileStamp;
use crate::script::runtime::results::TrajectoryOutcome;
use crate::script::settings::reload::{Change, merge};
use crate::text::Renderer;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Quiet period: editors may write a file in pieces, a checkout writes several files.
const QUIET: Duration = Duration::from_millis(50);
/// Time that a file may be missing before this counts as a change.
const GONE: Duration = Duration::from_secs(1);

/// The policy's response when a new version is tried.
const REPLY: &str = "I don't know.";

/// A new version that loads and runs.
#[derive(Clone, Debug)]
pub struct ReloadedScript {
    /// With the settings of the continued run.
    pub script: Script,
    /// Settings that change with it.
    pub changed: Vec<Change>,
    /// Settings that only change after a restart.
    pub waiting: Vec<Change>,
}

/// Applies a version to the run.
pub type Take = dyn FnMut(&ReloadedScript) -> Result<()> + Send;

/// Configuration of a [`Watcher`].
pub struct WatcherOptions {
    /// The running version.
    pub script: Script,
    /// Overrides `key=value` as typed; they apply to every version.
    pub overrides: Vec<String>,
    pub renderer: Arc<Renderer>,
    /// Maximum prompt tokens when a version is tried.
    pub budget: usize,
    /// Applies a valid version to the run, or returns why it cannot.
    pub take: Box<Take>,
    /// Receives the reason if a version is refused; once per content of the files.
    pub refused: Box<dyn FnMut(&Error) + Send>,
    /// Called when the files return to the running version after a refused one.
    pub restored: Box<dyn FnMut(&Script) + Send>,
}

/// Watches a script until it is dropped.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to watch the files of the script. Writes since it was loaded count as changes.
    pub fn start(watching: WatcherOptions) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || watch(watching, &stopped))
            .map_err(|error| Error::new(Kind::Internal, format!("can't start the watcher thread: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

/// File metadata; `None` if the file does not exist. Links are followed.
type FileTimes = BTreeMap<PathBuf, Option<FileStamp>>;

fn scan<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> FileTimes {
    files.into_iter().map(|path| (path.clone(), FileStamp::of(path).ok())).collect()
}

/// The thread's body.
fn watch(mut it: WatcherOptions, stop: &AtomicBool) {
    // The contents of the files when they were last loaded, and their metadata then.
    let mut current = texts(&it.script);
    let mut seen: FileTimes = current.keys().map(|path| (path.clone(), None)).collect();
    // Whether the last version was refused.
    let mut refused = false;
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(POLL_INTERVAL);
        let now = scan(seen.keys());
        if now == seen {
            continue;
        }
        seen = wait_until_unchanged(now, stop);
        let read = contents(seen.keys());
        if read == current {
            continue;
        }
        // Later writes are another change, even if their content is what is loaded now.
        current = read;
        let mut files = BTreeSet::new();
        let loaded = Script::load_with_files(&it.script.path, &it.overrides, &mut files);
        files.retain(|path| !seen.contains_key(path));
        seen.extend(scan(&files));
        current.extend(contents(&files));
        if let Ok(script) = &loaded {
            current.extend(texts(script).into_iter().filter(|(path, _)| files.contains(path)));
        }
        match loaded.and_then(|new| consider(&mut it, new)) {
            Ok(true) => refused = false,
            Ok(false) if std::mem::take(&mut refused) => (it.restored)(&it.script),
            Ok(false) => {}
            Err(error) => {
                refused = true;
                (it.refused)(&error);
            }
        }
    }
}

/// Waits until the files no longer change.
fn wait_until_unchanged(mut now: FileTimes, stop: &AtomicBool) -> FileTimes {
    let began = Instant::now();
    loop {
        std::thread::park_timeout(QUIET);
        let next = scan(now.keys());
        let gone = next.values().any(Option::is_none) && began.elapsed() < GONE;
        if stop.load(Ordering::Relaxed) || (next == now && !gone) {
            return next;
        }
        now = next;
    }
}

/// Hashes of the files of a script when it was loaded.
fn texts(script: &Script) -> BTreeMap<PathBuf, Option<String>> {
    let modules = script.modules.values().map(|module| (PathBuf::from(&module.path), module.source.as_str()));
    let all = modules.chain([(script.path.clone(), script.source.as_str())]);
    let texts = all.map(|(path, text)| (path, Some(format!("{:x}", Sha256::digest(text)))));
    texts.chain(script.resources_at().map(|(path, resource)| (path, Some(resource.sha256.clone())))).collect()
}

/// Hashes of the files; `None` for one that cannot be read.
fn contents<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> BTreeMap<PathBuf, Option<String>> {
    let hash = |path: &PathBuf| std::fs::read(path).ok().map(|bytes| format!("{:x}", Sha256::digest(bytes)));
    files.into_iter().map(|path| (path.clone(), hash(path))).collect()
}

/// The version of the files now, with the settings that a run continues with: as [`Watcher`]
/// reports it, without a trial.
///
/// # Errors
/// Errors of [`Script::load`].
pub fn reloaded(running: &Script, overrides: &[String]) -> Result<ReloadedScript> {
    Ok(merged(Script::load(&running.path, overrides)?, running))
}

fn merged(new: Script, running: &Script) -> ReloadedScript {
    let merged = merge(&running.settings, &new.settings);
    let script = new.with(merged.settings, running);
    ReloadedScript { script, changed: merged.changed, waiting: merged.waiting }
}

/// Tries a version and applies it; false for a version equal to the running one, which is skipped.
fn consider(it: &mut WatcherOptions, new: Script) -> Result<bool> {
    if new.hash == it.script.hash {
        return Ok(false);
    }
    let reload = merged(new, &it.script);
    if let Err((reached, error)) = try_out(&reload.script, &it.renderer, it.budget)? {
        // The environment may not handle that response, but the running version came as far.
        match try_out(&it.script, &it.renderer, it.budget) {
            Ok(Err((before, _))) if reached >= before => {}
            _ => return Err(error),
        }
    }
    (it.take)(&reload)?;
    it.script = reload.script;
    Ok(true)
}

/// The function that failed in a trial, in the order of a trajectory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TrialStage {
    Reset,
    Observe,
    Step,
    Reward,
}

/// Runs a trajectory of one step on the first row of each environment, under the recipe's limits.
/// The inner error is the failed function and its error.
fn try_out(script: &Script, renderer: &Arc<Renderer>, budget: usize) -> Result<Result<(), (TrialStage, Error)>> {
    let runtime = Worker::runtime()?;
    let mut script = script.clone();
    // Its log lines belong to no trajectory of the run.
    script.listen(LogSink::default());
    let worker = Worker::new(&script, Some(Arc::clone(renderer)))?;
    worker.prepare()?;
    for row in worker.rows_of_environments(Split::Train)? {
        let task = worker.row(Split::Train, row)?;
        let tried = runtime.block_on(try_task(&worker, renderer, &task, budget))?;
        if tried.is_err() {
            return Ok(tried);
        }
    }
    Ok(Ok(()))
}

/// Runs a trajectory of one step on a task.
async fn try_task(
    worker: &Worker,
    renderer: &Arc<Renderer>,
    task: &serde_json::Value,
    budget: usize,
) -> Result<Result<(), (TrialStage, Error)>> {
    let token_ids = renderer.tokenizer().encode(REPLY)?;
    let outcome = TrajectoryOutcome {
        text: REPLY.to_owned(),
        token_ids: token_ids.clone(),
        steps: 1,
        terminated: true,
        ..TrajectoryOutcome::default()
    };
    let tried = async {
        let at = |reached| move |failure| (reached, failure);
        let state = worker.reset(task, 0).await.map_err(at(TrialStage::Reset))?;
        worker.observe(&state, budget).await.map_err(at(TrialStage::Observe))?;
        let parsed = state.renderer().unwrap_or(renderer).parse(REPLY, &state.tools());
        let failed = |error| (TrialStage::Step, Failure::new(Status::EnvError, error));
        let parsed = parsed.map_err(failed)?;
        let action = Action {
            text: REPLY.to_owned(),
            token_ids,
            tool_calls: parsed.tool_calls,
            errors: parsed.errors,
            finish_reason: FinishReason::Stop,
        };
        worker.step(&state, &action).await.map_err(at(TrialStage::Step))?;
        worker.reward(&state, &outcome).await.map_err(at(TrialStage::Reward))
    };
    Ok(tried.await.map(drop).map_err(|(reached, failure): (_, Failure)| {
        let hint = "it was tried on the first row of data.train, with a reply that calls no tool";
        let message = format!("{}: {}", failure.status.name(), failure.error.message);
        (reached, Error { message, ..failure.error }.hint(hint))
    }))
}
