//! Validates all rows before a run: each can be read, names an existing environment, and has a
//! first prompt that fits into the context.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Spec;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Observation, Status};
use crate::script::{Failure, Record, Script, Split, Strictness, Worker};
use crate::text::Renderer;

/// The rows to validate.
#[derive(Clone)]
pub struct RowSearch<'a> {
    pub script: &'a Script,
    pub renderer: &'a Arc<Renderer>,
    pub split: Split,
    /// Rows to validate.
    pub rows: &'a [u64],
    /// Whether first prompts are made; otherwise rows are only read.
    pub prompts: bool,
    /// Maximum prompt plus response tokens.
    pub max_context: usize,
    /// Maximum tokens of the first prompt.
    pub longest: usize,
}

#[derive(Clone, Debug, Default)]
pub struct RowValidation {
    /// Rows whose first prompt is too long, in order.
    pub overlong: Vec<u64>,
    /// The longest of them, with its tokens and place. The number of tokens is unknown if a context
    /// function failed.
    pub example: Option<(u64, Option<usize>, String)>,
    /// Rows whose `reset` makes external calls. The calls are not made and the rows are kept.
    pub unseen: usize,
    /// Rows whose first prompt cannot be made, and the first reason.
    pub failed: Option<(usize, u64, Error)>,
    /// Warnings about columns that are not used.
    pub notices: BTreeSet<String>,
}

/// Rows per chunk of work.
const CHUNK: usize = 64;

/// Minimum rows per thread, since each thread needs a virtual machine.
const ROWS_PER_THREAD: usize = 256;

/// Validates rows on all cores. `seen` receives the number of newly validated rows.
///
/// # Errors
/// [`Kind::Data`] for the first row that cannot be read; [`Kind::Interrupted`] if `stop` is set.
pub fn validate_rows(
    search: &RowSearch<'_>,
    stop: &(dyn Fn() -> bool + Sync),
    seen: &(dyn Fn(u64) + Sync),
) -> Result<RowValidation> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = search.rows.len().div_ceil(ROWS_PER_THREAD).clamp(1, cores);
    let chunks = Mutex::new(search.rows.chunks(CHUNK));
    let over = AtomicBool::new(false);
    let shared: Mutex<std::result::Result<RowValidation, (u64, Error)>> = Mutex::new(Ok(RowValidation::default()));
    std::thread::scope(|scope| {
        let work = || {
            let searched = thread(search, &chunks, &over, stop, seen);
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match searched {
                Ok(more) => {
                    if let Ok(all) = &mut *shared {
                        all.add(more);
                    }
                }
                Err((row, error)) => {
                    // The first invalid row, independent of the thread that finds it.
                    if shared.as_ref().err().is_none_or(|(first_row, _)| row < *first_row) {
                        *shared = Err((row, error));
                    }
                }
            }
        };
        let started: Vec<_> =
            (1..threads).map(|_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)).collect();
        work();
        drop(started);
    });
    let validation = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut validation = validation.map_err(|(_, error)| error)?;
    validation.overlong.sort_unstable();
    Ok(validation)
}

/// Stack size of a thread in bytes, as for script workers.
const STACK: usize = 16 << 20;

type RowChunks<'a> = Mutex<std::slice::Chunks<'a, u64>>;

/// Validates chunks until none is left; the error names its row.
fn thread(
    search: &RowSearch<'_>,
    chunks: &RowChunks<'_>,
    over: &AtomicBool,
    stop: &(dyn Fn() -> bool + Sync),
    seen: &(dyn Fn(u64) + Sync),
) -> std::result::Result<RowValidation, (u64, Error)> {
    let worker = || Worker::new(search.script, Some(Arc::clone(search.renderer))).map_err(|error| (0, error));
    let runtime = Worker::runtime().map_err(|error| (0, error))?;
    let mut validator = worker()?;
    let mut validation = RowValidation::default();
    loop {
        let chunk = chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(chunk) = chunk.filter(|_| !over.load(Ordering::Relaxed)) else { return Ok(validation) };
        if stop() {
            return Err((0, Error::new(Kind::Interrupted, "stopped while the data was validated")));
        }
        for &row in chunk {
            let validated = runtime.block_on(validate_row(search, &validator, row, &mut validation));
            validated.map_err(|error| {
                over.store(true, Ordering::Relaxed);
                (row, error)
            })?;
        }
        drop(validator.take_log());
        if validator.needs_replacement() {
            validator = worker()?;
        }
        seen(chunk.len() as u64);
    }
}

async fn validate_row(search: &RowSearch<'_>, worker: &Worker, row: u64, validation: &mut RowValidation) -> Result<()> {
    let task = worker.row(search.split, row)?;
    validation.notices.extend(worker.envs.notice(search.split, &task));
    if !search.prompts {
        return Ok(());
    }
    let spec = Spec { max_context: search.max_context, ..Spec::new(search.split, row, &search.script.settings) };
    // External calls are not made: rows that depend on them are unknown.
    let record = Record::replay(Vec::new(), Strictness::Exact);
    let made = prompt(search, worker, &task, &spec, &record).await;
    if record.close().is_some() {
        validation.unseen += 1;
        return Ok(());
    }
    match made {
        Ok(Some(tokens)) => validation.too_long(row, Some(tokens), worker.place_of_row(search.split, row)),
        Ok(None) => {}
        Err(failure) if failure.status == Status::ContextOverflow => {
            validation.too_long(row, None, worker.place_of_row(search.split, row));
        }
        Err(failure) => match &mut validation.failed {
            Some((count, first, error)) => {
                *count += 1;
                if row < *first {
                    (*first, *error) = (row, failure.error);
                }
            }
            none => *none = Some((1, row, failure.error)),
        },
    }
    Ok(())
}

/// The tokens of a first prompt that is too long.
async fn prompt(
    search: &RowSearch<'_>,
    worker: &Worker,
    task: &serde_json::Value,
    spec: &Spec,
    record: &Record,
) -> std::result::Result<Option<usize>, Failure> {
    /// Minimum bytes per token.
    const BYTES: f64 = 0.25;
    let budget = spec.budget();
    let state = worker.reset_within(search.split, task, spec.env_seed, record, budget).await?;
    let observation = worker.observe(&state, budget).await?;
    let renderer = state.renderer().unwrap_or(search.renderer);
    let failed = |error: Error| Failure::new(Status::EnvError, error);
    let tokens = match &observation {
        Observation::TokenIds(ids) => ids.len(),
        Observation::Text(text) => renderer.tokenizer().encode(text).map_err(failed)?.len(),
        Observation::Messages(messages) => {
            // Most prompts are far below the limit, and need not be encoded.
            let text = renderer.prompt_text(messages, &state.tools()).map_err(failed)?;
            if text.len() as f64 <= search.longest as f64 * BYTES {
                return Ok(None);
            }
            renderer.count(messages, &state.tools()).map_err(failed)?
        }
    };
    let longest = if worker.has_context(&state) { search.longest.min(budget) } else { search.longest };
    Ok((tokens > longest).then_some(tokens))
}

impl RowValidation {
    fn too_long(&mut self, row: u64, tokens: Option<usize>, location: String) {
        self.overlong.push(row);
        self.longer((row, tokens, location));
    }

    /// Keeps the longest as the example; the first one on ties.
    fn longer(&mut self, new: (u64, Option<usize>, String)) {
        let key = |(row, tokens, _): &(u64, Option<usize>, String)| (tokens.unwrap_or(0), std::cmp::Reverse(*row));
        if self.example.as_ref().is_none_or(|longest| key(&new) > key(longest)) {
            self.example = Some(new);
        }
    }

    fn add(&mut self, other: Self) {
        self.overlong.extend(other.overlong);
        self.unseen += other.unseen;
        self.notices.extend(other.notices);
        if let Some(example) = other.example {
            self.longer(example);
        }
        self.failed = match (self.failed.take(), other.failed) {
            (Some((a, x, one)), Some((b, y, two))) => Some(if x <= y { (a + b, x, one) } else { (a + b, y, two) }),
            (one, two) => one.or(two),
        };
    }
}
