//! A report as one page of HTML without scripts or other files.

use std::fmt::Write;

use super::interval::Estimate;
use super::report::Report;
use super::show::{missing_note, number, sequential_note, tables};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24}\
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .8rem;border-bottom:1px solid #d8dee4;text-align:left}\
td{font-variant-numeric:tabular-nums}svg{display:block;margin:1rem 0}pre{white-space:pre-wrap}\
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}}";

/// The page: the tables of the report, a drawing of the metrics from 0 to 1 with their intervals,
/// and replies as text.
pub fn html(report: &Report, examples: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title><style>{STYLE}</style></head><body>\n\
         <h1>Evaluation of {}</h1>\n",
        escaped(&report.recipe),
        escaped(&report.recipe)
    );
    page.push_str(&drawing(report));
    for (title, rows) in tables(report, true) {
        let _ = writeln!(page, "<h2>{}</h2>\n<table>", escaped(&title));
        for (at, row) in rows.iter().enumerate() {
            let tag = if at == 0 { "th" } else { "td" };
            page.push_str("<tr>");
            for cell in row {
                let _ = write!(page, "<{tag}>{}</{tag}>", escaped(cell));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</table>\n");
    }
    for note in report.policies.iter().filter_map(|policy| missing_note(policy, report.n)) {
        let _ = writeln!(page, "<p>{}.</p>", escaped(&note));
    }
    for note in report.comparisons.iter().filter_map(sequential_note) {
        let _ = writeln!(page, "<p>{}.</p>", escaped(&note));
    }
    if !examples.is_empty() {
        let _ = writeln!(page, "<details><summary>Replies</summary><pre>{}</pre></details>", escaped(examples));
    }
    page.push_str("</body></html>\n");
    page
}

/// Whether a metric is a number of things, a time or a price, which may be below 1 too.
fn is_count(name: &str) -> bool {
    let name = name.split('.').next().unwrap_or(name);
    ["steps", "tool_calls", "seconds", "tool_seconds", "cost"].contains(&name)
}

/// Colours that are distinguishable in both colour schemes.
const COLOURS: [&str; 6] = ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700"];

/// One row per metric and one line with an interval per policy.
fn drawing(report: &Report) -> String {
    let is_share = |estimate: &Estimate| estimate.low >= 0.0 && estimate.high <= 1.0;
    let names: Vec<&String> = match report.policies.first() {
        Some(first) => first
            .figures
            .metrics
            .iter()
            .filter(|(name, estimate)| is_share(estimate) && !is_count(name))
            .map(|(name, _)| name)
            .collect(),
        None => Vec::new(),
    };
    if names.is_empty() {
        return String::new();
    }
    let (left, width, line) = (140.0, 560.0, 14.0);
    let row = line * report.policies.len() as f64 + 12.0;
    let height = row * names.len() as f64 + 30.0;
    let x = |value: f64| left + width * value.clamp(0.0, 1.0);
    let mut svg = format!(
        "<svg role=\"img\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" font-size=\"12\" fill=\"currentColor\">\n"
    );
    for tick in 0..=4 {
        let (value, end) = (f64::from(tick) / 4.0, height - 22.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{end}\" stroke=\"currentColor\" stroke-opacity=\"0.15\"/>\
             <text x=\"{0}\" y=\"{1}\" text-anchor=\"middle\">{value}</text>",
            x(value),
            height - 6.0
        );
    }
    for (at, name) in names.iter().enumerate() {
        let top = row * at as f64 + 6.0;
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", top + row / 2.0, escaped(name));
        for (policy, index) in report.policies.iter().zip(0_u32..) {
            let Some(interval) = policy.figures.metric(name) else { continue };
            let (y, colour) = (top + line * (f64::from(index) + 0.5), COLOURS[index as usize % COLOURS.len()]);
            let _ = writeln!(
                svg,
                "<g stroke=\"{colour}\" fill=\"{colour}\"><line x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke-width=\"2\"/>\
                 <circle cx=\"{}\" cy=\"{y}\" r=\"4\"/><title>{} {} {} [{}, {}]</title></g>",
                x(interval.low),
                x(interval.high),
                x(interval.value),
                escaped(&policy.model),
                escaped(name),
                number(interval.value),
                number(interval.low),
                number(interval.high)
            );
        }
    }
    svg.push_str("</svg>\n");
    if report.policies.len() > 1 {
        for (policy, colour) in report.policies.iter().zip(COLOURS.iter().cycle()) {
            let _ = write!(svg, "<span style=\"color:{colour}\">&#9679;</span> {} &ensp;", escaped(&policy.model));
        }
    }
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
