//! A model behind a server as the policy of an evaluation. It is not trained.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::refuse_reply_prefix;
use crate::config::{PolicySettings, Settings};
use crate::error::Result;
use crate::hub::Fetching;
use crate::load::{MODEL_NANO, attach_stand_in_images, text_dir};
use crate::mdp::{Policy, Trajectory};
use crate::remote::{Patience, Server, ServerOptions, ServerPolicy};
use crate::rollout::{OnFinished, Pool, PoolOptions, Spec, no_progress};
use crate::script::Script;
use crate::store::IMAGES;
use crate::telemetry::Reporter;
use crate::text::{Format, FormatChoice, Renderer, Style};
use crate::train::rows::selection::Selection;
use crate::train::start::origins::fetch_data;
use crate::train::start::script_log::ScriptLog;

/// A recipe whose policy is behind a server.
pub(crate) struct ServerSession {
    pub(crate) settings: Settings,
    pub(crate) renderer: Arc<Renderer>,
    pub(crate) policy: Arc<ServerPolicy>,
    pool: Pool,
    pub(crate) rows: Selection,
    pub(crate) log: ScriptLog,
    /// Receives each trajectory when it has ended.
    pub(crate) finished: OnFinished,
}

impl ServerSession {
    /// # Errors
    /// `Kind::Usage` for settings that no server accepts; errors of the data and the script.
    pub(crate) fn open(script: &mut Script, run: Option<&Path>, fetching: Fetching<'_>) -> Result<Self> {
        let settings = script.settings.clone();
        refuse_reply_prefix(&settings)?;
        let log = ScriptLog::new(fetching.reporter);
        script.listen(log.sink());
        fetch_data(script, fetching)?;
        let renderer = counting_renderer(script, fetching)?;
        if let (Some(images), Some(run)) = (renderer.images(), run) {
            images.read_from(&run.join(IMAGES))?;
        }
        let server = Server::new(options(&settings.policy))?;
        let interrupt = fetching.interrupt;
        let stop = move || interrupt.is_some_and(|interrupt| interrupt.count() > 0);
        let policy = Arc::new(ServerPolicy::new(server, &settings.policy.template_kwargs, stop));
        let rollout = &settings.rollout;
        let options =
            PoolOptions { workers: rollout.workers, concurrency: rollout.concurrency, retries: rollout.retries };
        let pool = Pool::new(script, &renderer, &options)?;
        let longest = if settings.policy.max_context == 0 { usize::MAX } else { settings.policy.max_context };
        let rows = Selection::new(script, &renderer, longest, fetching)?;
        Ok(Self { settings, renderer, policy, pool, rows, log, finished: no_progress() })
    }

    /// Runs trajectories to their end. After Ctrl-C, or an error of all requests, those that are
    /// finished are returned with the error: their replies may have cost money.
    pub(crate) fn rollout(
        &mut self,
        specs: Vec<Spec>,
        reporter: &Reporter,
        label: &str,
    ) -> (Vec<Trajectory>, Result<()>) {
        let concurrency = self.settings.rollout.concurrency as u64;
        let bar = reporter.bar(label, specs.len() as u64, "trajectories").concurrent(concurrency);
        let finished: Arc<Mutex<Vec<Trajectory>>> = Arc::default();
        let (counter, kept, also) = (bar.clone(), Arc::clone(&finished), Arc::clone(&self.finished));
        let progress: OnFinished = Arc::new(move |trajectory| {
            counter.inc(1);
            also(trajectory);
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(trajectory.clone());
        });
        let policy: Arc<dyn Policy> = Arc::clone(&self.policy) as _;
        let ended = self.pool.start(&policy, specs, &progress).and_then(|pending| {
            let stop = pending.stop_flag();
            pending.finish().inspect_err(|_| {
                stop.store(true, Ordering::Relaxed);
                self.pool.abandon();
            })
        });
        bar.finish();
        let flushed = self.log.flush();
        let finished = std::mem::take(&mut *finished.lock().unwrap_or_else(PoisonError::into_inner));
        (finished, ended.and(flushed))
    }
}

fn options(policy: &PolicySettings) -> ServerOptions {
    ServerOptions {
        base: policy.api_base.clone(),
        api: policy.api,
        model: policy.model.clone(),
        setting: "policy.api_base",
        silence: Duration::try_from_secs_f64(policy.api_timeout).unwrap_or(Duration::MAX),
        attempts: u32::try_from(policy.api_attempts).unwrap_or(u32::MAX),
        patience: Patience::Rollout,
    }
}

/// The renderer for a model behind a server: its tokenizer counts the tokens of context policies,
/// and its format parses calls in the text. `auto` is the most common text format, because the
/// server's template is not known.
///
/// # Errors
/// If the tokenizer of `policy.tokenizer` can't be loaded.
pub fn counting_renderer(script: &Script, fetching: Fetching<'_>) -> Result<Arc<Renderer>> {
    let tokenizer = &script.settings.policy.tokenizer;
    let dir = text_dir(if tokenizer.is_empty() { MODEL_NANO } else { tokenizer }, fetching)
        .map_err(|error| error.at(script.place_of("policy.tokenizer")))?;
    let mut style = Style::of_format(script.style()?.format);
    if style.format == FormatChoice::Auto {
        style.format = FormatChoice::Is(Format::from_name("hermes")?);
    }
    let renderer = Renderer::load_styled(&dir, &style)?;
    attach_stand_in_images(&renderer, &script.settings.policy, true)?;
    Ok(Arc::new(renderer))
}
