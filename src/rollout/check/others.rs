//! The rows that the rules of the contract were not tested on: each begins a trajectory, with
//! replies of random words, so that a row without a column or a reference is found before a run.
//! Conversations of supervised fine-tuning are read and tokenized.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::contract::{self, HIDDEN_TOOLS, TestedTask};
use super::replies::ReplyKind;
use super::{CheckOptions, CheckReport, Finding, Severity, TriedRows};
use crate::config::OverlongPrompts;
use crate::error::Result;
use crate::mdp::{Demonstration, ErrorRecord, Status};
use crate::rollout::Stage;
use crate::script::{Script, Split, Worker};
use crate::text::Renderer;

/// Seconds for the rows of a split.
const SECONDS: f64 = 3.0;

/// Different causes of failures after which no more rows are tried.
const CAUSES: usize = 10;

/// Rows evenly spread over a list come first.
const SPREAD: u64 = 64;

/// Failures of several rows with one cause.
struct RowFailureCause {
    finding: Finding,
    rows: u64,
}

/// The rows of a split that a run may draw, as ranges. Those of a function are all made alike, and
/// are left out if no number is given.
struct DrawnRows(Vec<Range<u64>>);

impl DrawnRows {
    fn of(worker: &Worker, script: &Script, split: Split, options: &CheckOptions) -> Result<Self> {
        let limit = script.settings.eval.limit as u64;
        let (mut ranges, mut first) = (Vec::new(), 0);
        for part in worker.parts(split)? {
            let rows = if split == Split::Eval && limit > 0 { part.rows.min(limit) } else { part.rows };
            if options.rows.is_some() || !part.generated {
                ranges.push(first..first + rows);
            }
            first += part.rows;
        }
        Ok(Self(ranges))
    }

    fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// All rows; those that are evenly spread come first.
    fn rows(&self) -> impl Iterator<Item = u64> {
        let (len, stride) = (self.len(), self.len().div_ceil(SPREAD).max(1));
        let places = (0..stride).flat_map(move |start| (start..len).step_by(stride as usize));
        places.filter_map(|mut offset| {
            self.0.iter().find_map(|range| {
                let row = range.start + offset;
                let within = row < range.end;
                offset = offset.saturating_sub(range.end - range.start);
                within.then_some(row)
            })
        })
    }
}

/// Whether the rows so far are enough.
fn enough(tried: u64, started: Instant, options: &CheckOptions) -> bool {
    (options.stop)() || options.rows.map_or_else(|| started.elapsed().as_secs_f64() > SECONDS, |limit| tried >= limit)
}

/// Tries the rows of both splits that are not among `tested`.
///
/// # Errors
/// A row without a reference, as in a run.
pub(super) async fn check(
    stage: Stage<'_>,
    script: &Script,
    tested: &[TestedTask],
    options: &CheckOptions,
    report: &mut CheckReport,
) -> Result<()> {
    for split in [Split::Train, Split::Eval] {
        // A dataset that can't be opened is another finding.
        let Ok(drawn) = DrawnRows::of(stage.worker, script, split, options) else { continue };
        let tested_rows: BTreeSet<u64> =
            tested.iter().filter(|task| task.split == split).map(|task| task.row).collect();
        let tested_rows: BTreeSet<u64> =
            tested_rows.into_iter().filter(|row| drawn.0.iter().any(|range| range.contains(row))).collect();
        let (mut causes, mut tried): (Vec<RowFailureCause>, _) = (Vec::new(), tested_rows.len() as u64);
        let started = Instant::now();
        for row in drawn.rows().filter(|row| !tested_rows.contains(row)) {
            if enough(tried, started, options) || causes.len() == CAUSES || stage.worker.needs_replacement() {
                break;
            }
            tried += 1;
            let failed = begun(stage, script, (split, row), options).await?;
            drop(stage.worker.take_log());
            let Some((finding, ends)) = failed else { continue };
            let same = |cause: &&mut RowFailureCause| {
                cause.finding.message == finding.message && cause.finding.place == finding.place
            };
            match causes.iter_mut().find(same) {
                Some(cause) => cause.rows += 1,
                None => causes.push(RowFailureCause { finding, rows: 1 }),
            }
            if ends {
                break;
            }
        }
        for RowFailureCause { mut finding, rows } in causes {
            // The other rules have found it.
            let is_reported = |reported: &Finding| {
                reported.place.is_some() && reported.place == finding.place && reported.rule == finding.rule
            };
            if report.findings.iter().any(is_reported) {
                continue;
            }
            if rows > 1 {
                finding.message = format!("{rows} rows: {}", finding.message);
            }
            report.add(finding);
        }
        if tried > tested_rows.len() as u64 {
            report.tried.push(TriedRows { split, tried, of: drawn.len() });
        }
    }
    Ok(())
}

/// One trajectory of a row. A finding if it fails, and whether others would take as long.
async fn begun(
    stage: Stage<'_>,
    script: &Script,
    (split, row): (Split, u64),
    options: &CheckOptions,
) -> Result<Option<(Finding, bool)>> {
    let hint = format!("the first is row {row} of data.{}: {}", split.name(), stage.worker.place_of_row(split, row));
    let value = match stage.worker.row(split, row) {
        Ok(value) => value,
        Err(error) => return Ok(Some((Finding::error("data", error), false))),
    };
    let task = TestedTask { split, row, value, thorough: false };
    let spec = contract::spec(stage.worker, script, &task, options);
    let Some(trajectory) = contract::run(stage, &spec, &task, &ReplyKind::Words).await? else { return Ok(None) };
    let Some(error) = trajectory.error else { return Ok(None) };
    let at_start = trajectory.steps.is_empty();
    let (level, rule) = match trajectory.status {
        Status::ContextOverflow if !at_start => return Ok(None),
        // A run leaves such rows out, and says so.
        Status::ContextOverflow if script.settings.data.overlong_prompts != OverlongPrompts::Error => {
            (Severity::Warning, "context")
        }
        Status::ContextOverflow => (Severity::Error, "context"),
        Status::ScriptLimit | Status::ToolTimeout => (Severity::Error, "limits"),
        _ => (Severity::Error, if at_start { "reset" } else { "replies" }),
    };
    let ErrorRecord { message, place: location, hint: error_hint, .. } = error;
    let hint = error_hint.map_or_else(|| hint.clone(), |error_hint| format!("{error_hint}; {hint}"));
    let finding = Finding { level, hint: Some(hint), ..Finding::new(level, rule, message) }.at(location);
    Ok(Some((finding, rule == "limits")))
}

/// Conversations that are validated, however long they take.
const CONVERSATIONS: u64 = 50;

pub(super) fn supervised(script: &Script, renderer: &Arc<Renderer>, options: &CheckOptions) -> Result<CheckReport> {
    let mut report = CheckReport { budget: options.max_context, ..CheckReport::default() };
    let first = Worker::new(script, Some(Arc::clone(renderer)))?;
    let second = Worker::new(script, Some(Arc::clone(renderer)))?;
    contract::rows(&first, &second, &mut report);
    report.printed(first.take_log());
    let (mut hidden, started) = (None, Instant::now());
    let count = first.rows(Split::Train).ok().flatten().unwrap_or(0);
    let spread: BTreeSet<u64> = (0..count).step_by(count.div_ceil(CONVERSATIONS).max(1) as usize).collect();
    let drawn = DrawnRows::of(&first, script, Split::Train, options).unwrap_or_else(|_| DrawnRows(Vec::new()));
    let others = drawn.rows().filter(|row| !spread.contains(row));
    for (tried, index) in (0..).zip(spread.iter().copied().chain(others)) {
        if tried >= CONVERSATIONS && (enough(tried, started, options) || report.findings.len() >= CAUSES) {
            break;
        }
        let location = Some(first.place_of_row(Split::Train, index));
        let result = first.row(Split::Train, index).and_then(|row| {
            let hint = "docs/guide/sft.md lists the formats of rows; `columns` of the dataset renames columns";
            let it = Demonstration::read(&row).map_err(|invalid| invalid.of_row().hint(hint))?;
            let own_renderer =
                it.format.as_deref().map(|name| renderer.with_format(&first.format(name)?)).transpose()?;
            let renderer = own_renderer.as_ref().unwrap_or(renderer);
            if hidden.is_none() {
                hidden = renderer.hidden_tools(&it.tools).map(|message| (message, location.clone()));
            }
            renderer.supervised_where(&it.messages, &it.tools, &it.trained)
        });
        match result {
            Ok(supervised) => {
                report.tasks += 1;
                report.longest_prompt = report.longest_prompt.max(supervised.ids.len());
                if !supervised.mask.contains(&true) {
                    let message = "a conversation has no message to train on";
                    let hint = "it needs a message with role = \"assistant\"";
                    report.add(Finding::new(Severity::Error, "masks", message).at(location).hint(hint));
                } else if options.max_context > 0 && supervised.ids.len() > options.max_context {
                    let (length, limit) = (supervised.ids.len(), options.max_context);
                    let message = format!("a conversation has {length} tokens and the context holds {limit}");
                    report.add(Finding::new(Severity::Error, "context", message).at(location));
                }
            }
            Err(error) => report.add(Finding::error("data", error).at(location)),
        }
    }
    if let Some((message, location)) = hidden {
        report.add(Finding::new(Severity::Warning, "tools", message).at(location).hint(HIDDEN_TOOLS));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_drawn_are_tried_once_and_spread_first() {
        let rows = |ranges: &[Range<u64>]| DrawnRows(ranges.to_vec()).rows().collect::<Vec<u64>>();
        assert_eq!(rows(&[]), [0_u64; 0]);
        assert_eq!(rows(&[2..5, 9..10]), [2, 3, 4, 9]);
        let many = rows(&[0..100, 500..1000]);
        assert_eq!((many.len(), &many[..4]), (600, &[0, 10, 20, 30][..]));
        assert_eq!(many.iter().copied().collect::<BTreeSet<u64>>().len(), 600);
        assert!(!many.contains(&100) && many.contains(&999));
    }
}
