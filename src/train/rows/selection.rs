//! The dataset rows of a run: all usable ones, selected before it starts.

use std::sync::Arc;

use super::order::Order;
use super::row_check::RowCheck;
use crate::config::OverlongPrompts;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::rollout::{RowSearch, RowValidation, validate_rows};
use crate::script::{DataPart, Script, Split, Worker};
use crate::telemetry::Interrupt;
use crate::text::Renderer;

/// The rows of both splits.
pub(crate) struct Selection {
    pub(crate) train: Option<Order>,
    pub(crate) eval: Option<Order>,
    /// Reads the rows that were not checked, if there are any.
    pub(crate) rest: Option<RowCheck>,
}

/// Minimum number of rows for a progress bar.
const MANY: usize = 2000;

impl Selection {
    /// Selects the rows of a recipe by `data.overlong_prompts`.
    ///
    /// # Errors
    /// [`Kind::Data`] for a row that can't be read, or names an unknown environment or
    /// tool; with `overlong_prompts = "error"` for one that is too long.
    pub(crate) fn new(
        script: &Script,
        renderer: &Arc<Renderer>,
        max_context: usize,
        fetching: Fetching<'_>,
    ) -> Result<Self> {
        // Its output is printed when it runs.
        let script = &script.without_log_sink();
        let worker = Worker::new(script, None)?;
        for note in script.left_out_of_rows() {
            fetching.reporter.warn(&note);
        }
        let split = |split| -> Result<Option<Order>> {
            let parts = worker.parts(split)?;
            if parts.iter().all(|part| part.rows == 0) {
                return Ok(None);
            }
            let left_out = select_rows(script, renderer, split, &parts, max_context, fetching)?;
            let order = Order::new(&parts, &left_out)?;
            if split == Split::Train { arranged(order, &worker, script, fetching).map(Some) } else { Ok(Some(order)) }
        };
        let (train, eval) = (split(Split::Train)?, split(Split::Eval)?);
        let data = &script.settings.data;
        let mut unseen = 0;
        for part in worker.parts(Split::Train)?.iter().chain(&worker.parts(Split::Eval)?) {
            unseen += if part.generated { 0 } else { part.rows - data.checked(part.rows) };
        }
        let mut rest = None;
        if unseen > 0 {
            let limit = data.check_rows;
            fetching.reporter.info(&format!(
                "{} after the first {limit} of their dataset are read during training (data.check_rows)",
                plural(usize::try_from(unseen).unwrap_or(usize::MAX), "row")
            ));
            rest = Some(RowCheck::start(script, limit)?);
        }
        Ok(Self { train, eval, rest })
    }
}

/// Training rows in the order of the recipe: shuffled in every epoch, as stored, or sorted by its
/// function `row_order`.
///
/// # Errors
/// Errors of the function; [`Kind::Interrupted`].
pub(crate) fn arranged(order: Order, worker: &Worker, script: &Script, fetching: Fetching<'_>) -> Result<Order> {
    if !worker.has_row_order() {
        return Ok(if script.settings.data.shuffle { order } else { order.unshuffled() });
    }
    let rows = order.rows();
    let bar = (rows >= MANY as u64).then(|| fetching.reporter.bar("sorting train data", rows, "rows"));
    let sorted = order.sorted(script.settings.seed, &mut |row| {
        if fetching.interrupt.is_some_and(Interrupt::is_set) {
            return Err(Error::new(Kind::Interrupted, "stopped while sorting the rows"));
        }
        if let Some(bar) = &bar {
            bar.inc(1);
        }
        let missing = || Error::new(Kind::Internal, "the recipe has no `row_order`");
        worker.row_key(row)?.ok_or_else(missing)
    });
    if let Some(bar) = &bar {
        bar.finish();
    }
    sorted
}

/// Rows that are left out.
fn select_rows(
    script: &Script,
    renderer: &Arc<Renderer>,
    split: Split,
    parts: &[DataPart],
    max_context: usize,
    fetching: Fetching<'_>,
) -> Result<Vec<u64>> {
    let data = &script.settings.data;
    let mut first = 0;
    let mut rows = Vec::new();
    for part in parts {
        // A function may make an unlimited number of rows.
        let looked_at = match data.overlong_prompts {
            OverlongPrompts::Auto | OverlongPrompts::Keep => !part.generated,
            OverlongPrompts::Filter | OverlongPrompts::Error => true,
        };
        if looked_at {
            rows.extend(first..first + data.checked(part.rows));
        }
        first += part.rows;
    }
    if rows.is_empty() {
        return Ok(rows);
    }
    let room = max_context.saturating_sub(1);
    let longest = if data.max_prompt_tokens == 0 { room } else { data.max_prompt_tokens.min(room) };
    let prompts = data.overlong_prompts != OverlongPrompts::Keep;
    let search = RowSearch { script, renderer, split, rows: &rows, prompts, max_context, longest };
    let reporter = fetching.reporter;
    let bar = (rows.len() >= MANY)
        .then(|| reporter.bar(&format!("reading {} data", split.name()), rows.len() as u64, "rows"));
    let stop = || fetching.interrupt.is_some_and(Interrupt::is_set);
    let validation = validate_rows(&search, &stop, &|more| {
        if let Some(bar) = &bar {
            bar.inc(more);
        }
    });
    if let Some(bar) = &bar {
        bar.finish();
    }
    let RowValidation { overlong, example, unseen, failed, notices } = validation?;
    for notice in notices {
        reporter.warn(&notice);
    }
    let name = split.name();
    if let Some((count, row, error)) = failed {
        let (rows, Error { message, place: location, .. }) = (plural(count, "row"), error);
        let at = location.map(|location| format!(" ({location})")).unwrap_or_default();
        reporter.warn(&format!("{rows} of data.{name} can't be started; row {row}: {message}{at}"));
    }
    if unseen > 0 {
        let rows = plural(unseen, "row");
        reporter.info(&format!("{rows} of data.{name} could not be measured: their reset makes external calls"));
    }
    if let Some((row, tokens, location)) = example {
        let tokens = tokens.map_or_else(String::new, |tokens| format!(" ({tokens} tokens)"));
        let message = format!(
            "{} of {} in data.{name} have a first prompt of more than {longest} tokens, such as row {row}{tokens}",
            overlong.len(),
            plural(rows.len(), "row")
        );
        if data.overlong_prompts == OverlongPrompts::Error {
            let hint = "data.overlong_prompts=filter leaves such rows out; policy.max_context and data.max_prompt_tokens set the limit";
            return Err(Error::new(Kind::Data, message).at(location).hint(hint));
        }
        reporter.warn(&format!("{message} ({location}): left out"));
    }
    Ok(overlong)
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
