//! Reports as tables for a terminal and as Markdown.

use std::fmt::Write;

use super::interval::Estimate;
use super::paired::Difference;
use super::report::{Comparison, Figures, PolicyReport, Report};
use super::sequential::Sequential;

/// A table with its title; the first row is the heading.
pub(super) type Titled = (String, Vec<Vec<String>>);

/// Maximum number of values of a column in the tables; files have all.
const SLICES: usize = 20;

/// The tables of a report: metrics, slices, failures. `all`: every metric, not only the most
/// important ones.
pub fn tables(report: &Report, all: bool) -> Vec<Titled> {
    let mut tables = vec![(title(report), metrics(report, all))];
    let columns: std::collections::BTreeSet<&String> =
        report.policies.iter().flat_map(|policy| policy.slices.keys()).collect();
    for column in columns {
        let rows = slices(report, column, if all { usize::MAX } else { SLICES });
        if rows.len() > 1 {
            tables.push((format!("mean@{} by {column}", report.n), rows));
        }
    }
    let failures = failures(report);
    if failures.len() > 1 {
        tables.push(("Trajectories that failed or were truncated".to_owned(), failures));
    }
    tables
}

fn title(report: &Report) -> String {
    let tasks = report.policies.iter().map(|policy| policy.figures.tasks).max().unwrap_or_default();
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!(
        "{}: {}, {} each, temperature {}; means over tasks with intervals of 95 %",
        report.recipe,
        plural(tasks, "task"),
        plural(report.n, "sample"),
        report.temperature
    )
}

/// Names of models as headings: the last part of a path, unless two are equal.
fn headings(report: &Report) -> Vec<String> {
    let short = |policy: &PolicyReport| {
        let name = policy.model.trim_end_matches('/');
        // A model behind a server may be `URL#NAME`.
        let name = name.rsplit_once('#').filter(|(url, _)| url.contains("://")).map_or(name, |(_, fragment)| fragment);
        name.rsplit('/').next().unwrap_or(name).to_owned()
    };
    let names: Vec<String> = report.policies.iter().map(short).collect();
    let repeats = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let full = report.policies.iter().map(|policy| {
        match policy.model.rsplit_once('#').filter(|(url, _)| url.contains("://")) {
            Some((url, name)) => format!("{name} at {}", host(url)),
            None => policy.model.clone(),
        }
    });
    names.iter().zip(full).map(|(name, full)| if repeats(name) { full } else { name.clone() }).collect()
}

/// The host of an address, with its port.
fn host(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    rest.split('/').next().unwrap_or(rest)
}

fn metrics(report: &Report, all: bool) -> Vec<Vec<String>> {
    let models = headings(report);
    let mut heading = vec!["metric".to_owned()];
    heading.extend(models.iter().cloned());
    let against = |name: &String| {
        if report.comparisons.len() == 1 { "difference".to_owned() } else { format!("{name} - {}", models[0]) }
    };
    heading.extend(models.iter().skip(1).map(against));
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in report.policies.iter().flat_map(|policy| &policy.figures.metrics) {
        if !names.contains(&name) && (all || is_shown(name, report.n)) {
            names.push(name);
        }
    }
    let row = |name: &String| {
        let mut row = vec![name.clone()];
        row.extend(report.policies.iter().map(|policy| policy.figures.metric(name).map_or_else(String::new, estimate)));
        row.extend(report.comparisons.iter().map(|comparison| {
            let metric = comparison.metrics.iter().find(|(key, _)| key == name);
            metric.map_or_else(String::new, |(_, metric)| difference(*metric))
        }));
        row
    };
    std::iter::once(heading).chain(names.into_iter().map(row)).collect()
}

/// The terminal shows the figures at k = n, and every pass@k.
fn is_shown(name: &str, n: usize) -> bool {
    match name.split_once('@') {
        None | Some(("pass", _)) => true,
        Some(("mean", k)) => k == n.to_string(),
        Some((_, k)) => n > 1 && k == n.to_string(),
    }
}

fn estimate(of: Estimate) -> String {
    format!("{} [{}, {}]", number(of.value), number(of.low), number(of.high))
}

fn difference(of: Difference) -> String {
    let sign = if of.estimate.value > 0.0 { "+" } else { "" };
    let p = if of.p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {:.3}", of.p) };
    format!("{sign}{} {p}", estimate(of.estimate))
}

/// Three decimals for shares, one for counts.
pub(super) fn number(value: f64) -> String {
    let text = if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") };
    // A small negative number is rounded to -0.000.
    if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') {
        text.trim_start_matches('-').to_owned()
    } else {
        text
    }
}

fn slices(report: &Report, column: &str, limit: usize) -> Vec<Vec<String>> {
    let mut heading = vec![column.to_owned(), "tasks".to_owned()];
    heading.extend(headings(report));
    let of = |policy: &PolicyReport, value: &str| -> Option<Figures> { policy.slices.get(column)?.get(value).cloned() };
    let mut values: Vec<&String> = report
        .policies
        .iter()
        .filter_map(|policy| policy.slices.get(column))
        .flat_map(|slices| slices.keys())
        .collect();
    values.sort();
    values.dedup();
    let mut rows = vec![heading];
    for value in values.iter().take(limit) {
        let row_figures: Vec<Option<Figures>> = report.policies.iter().map(|policy| of(policy, value)).collect();
        let tasks = row_figures.iter().flatten().map(|figures| figures.tasks).max().unwrap_or_default();
        let mut row = vec![(*value).clone(), tasks.to_string()];
        let name = format!("mean@{}", report.n);
        let mean = |figures: Option<Figures>| figures?.metric(&name);
        row.extend(row_figures.into_iter().map(|figures| mean(figures).map_or_else(String::new, estimate)));
        rows.push(row);
    }
    if values.len() > limit {
        rows.push(vec![format!("… {} more", values.len() - limit)]);
    }
    rows
}

fn failures(report: &Report) -> Vec<Vec<String>> {
    let mut heading = vec!["status".to_owned()];
    heading.extend(headings(report));
    let mut rows = vec![heading];
    let mut add = |label: &str, of: &dyn Fn(&PolicyReport) -> usize| {
        let counts: Vec<usize> = report.policies.iter().map(of).collect();
        if counts.iter().any(|count| *count > 0) {
            rows.push(std::iter::once(label.to_owned()).chain(counts.iter().map(usize::to_string)).collect());
        }
    };
    for status in crate::mdp::Status::ALL.iter().filter(|status| status.is_failure()) {
        add(status.name(), &|policy| policy.failures.get(status.name()).copied().unwrap_or_default());
    }
    for limit in crate::mdp::Limit::ALL {
        let label = format!("truncated: {}", limit.name());
        add(&label, &|policy| policy.truncated.get(limit.name()).copied().unwrap_or_default());
    }
    rows
}

/// A note on missing samples; `None` if there are none.
pub fn missing_note(policy: &PolicyReport, n: usize) -> Option<String> {
    let Figures { samples, missing, .. } = policy.figures;
    if missing == 0 {
        return None;
    }
    let all = samples + missing;
    let bounds = policy.figures.metric(&format!("mean@{n}")).or_else(|| policy.figures.metric("mean@1")).map(|mean| {
        let sum = mean.value * samples as f64;
        format!(
            "; with all of them wrong the mean would be about {}, with all right {}",
            number(sum / all as f64),
            number((sum + missing as f64) / all as f64)
        )
    });
    Some(format!(
        "{}: {missing} of {all} samples are missing, and the figures are those of the others{}",
        policy.model,
        bounds.unwrap_or_default()
    ))
}

/// A note on a comparison whose sampling could stop early; `None` without `eval.early_stop`.
pub fn sequential_note(comparison: &Comparison) -> Option<String> {
    let Sequential { p, tasks, level, stopped } = comparison.sequential?;
    let ended = if stopped { "; sampling stopped there, so other p-values and intervals are too narrow" } else { "" };
    Some(format!(
        "{} against {}: p = {p:.4} after {tasks} tasks, valid at any number of tasks (level {level}){ended}",
        comparison.model, comparison.baseline
    ))
}

/// The report as Markdown, with every metric.
pub fn markdown(report: &Report) -> String {
    let mut text = String::from("# Evaluation\n");
    for (title, rows) in tables(report, true) {
        let _ = writeln!(text, "\n{title}\n");
        for (number, row) in rows.iter().enumerate() {
            let width = rows[0].len();
            let cell = |at: usize| row.get(at).map_or_else(String::new, |cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} |", (0..width).map(cell).collect::<Vec<_>>().join(" | "));
            if number == 0 {
                let _ = writeln!(text, "|{}", "---|".repeat(width));
            }
        }
    }
    for note in report.policies.iter().filter_map(|policy| missing_note(policy, report.n)) {
        let _ = writeln!(text, "\n{note}.");
    }
    for note in report.comparisons.iter().filter_map(sequential_note) {
        let _ = writeln!(text, "\n{note}.");
    }
    text
}
