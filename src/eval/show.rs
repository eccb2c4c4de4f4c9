//! Reports as tables, notes and Markdown: functions of `lua/reports/eval.lua`.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::report::Report;
use crate::error::Result;
use crate::host_lua::HostFile;
use crate::mdp::{Limit, Status};

thread_local! {
    static FUNCTIONS: Result<HostFile> = HostFile::load("reports/eval", include_str!("../../lua/reports/eval.lua"), |_| Ok(()));
}

/// A report as the functions read it.
#[derive(Serialize)]
struct ShownReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// Names of metrics, of failures and of limits in the order in which they are shown.
    metrics: Vec<&'a str>,
    statuses: Vec<&'static str>,
    limits: [&'static str; Limit::ALL.len()],
    /// Every metric, not only the most important ones.
    all: bool,
}

/// The result of a function for a report.
pub(super) fn call<T: DeserializeOwned>(function: &str, report: &Report, all: bool) -> Result<T> {
    let mut metrics: Vec<&str> = Vec::new();
    for (name, _) in report.policies.iter().flat_map(|policy| &policy.figures.metrics) {
        if !metrics.contains(&name.as_str()) {
            metrics.push(name);
        }
    }
    let shown = ShownReport {
        report,
        metrics,
        statuses: Status::ALL.into_iter().filter(|status| status.is_failure()).map(Status::name).collect(),
        limits: Limit::ALL.map(Limit::name),
        all,
    };
    FUNCTIONS.with(|functions| functions.as_ref().map_err(Clone::clone)?.call(function, &shown))
}

/// A table with its title; the first row is the heading.
pub(super) type TitledTable = (String, Vec<Vec<String>>);

/// The tables of a report: metrics, slices, failures. `all`: every metric, not only the most
/// important ones.
///
/// # Errors
/// `Kind::Internal` for a mistake in the functions, as of those below.
pub fn tables(report: &Report, all: bool) -> Result<Vec<TitledTable>> {
    call("tables", report, all)
}

/// Notes on missing samples.
pub fn missing_notes(report: &Report) -> Result<Vec<String>> {
    call("missing", report, true)
}

/// Notes on comparisons whose sampling could stop early.
pub fn sequential_notes(report: &Report) -> Result<Vec<String>> {
    call("sequential", report, true)
}

/// The report as Markdown, with every metric.
pub fn markdown(report: &Report) -> Result<String> {
    call("markdown", report, true)
}
