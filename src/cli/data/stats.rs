//! `r1 data stats`: statistics of columns.

use std::fmt::Write;

use super::super::args::OutputArgs;
use super::super::data_args::StatsArgs;
use super::super::print;
use super::rows::{check_interrupt, in_rows, quiet_with_json};
use crate::data::{Distribution, statistics};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::{local_model_dir, text_dir};
use crate::telemetry::{compact, counted, ctrl_c, sparkline, thousands};
use crate::text::Tokenizer;

/// Columns of a histogram.
const WIDTH: usize = 40;

pub(super) fn run(args: &StatsArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows.open()?;
    let reporter = quiet_with_json(output);
    let interrupt = ctrl_c();
    let tokenizer = match &args.tokenizer {
        None => None,
        Some(name) => {
            let fetching = Fetching { reporter: &reporter, interrupt: Some(interrupt) };
            let local =
                local_model_dir(name).or_else(|| Some(name.into()).filter(|dir: &std::path::PathBuf| dir.is_dir()));
            let dir = local.map_or_else(|| text_dir(name, fetching), Ok)?;
            Some(Tokenizer::load(&dir)?)
        }
    };
    let bar = reporter.bar("reading", data.len(), "rows");
    let row = |index: u64| {
        check_interrupt(interrupt)?;
        bar.inc(1);
        data.raw_row(index)
    };
    let tokens = tokenizer.as_ref().map(|tokenizer| |text: &str| Ok(tokenizer.encode(text)?.len()));
    let tokens = tokens.as_ref().map(|tokens| tokens as &dyn Fn(&str) -> Result<usize>);
    let report = statistics(data.len(), &row, tokens);
    bar.finish();
    let report = report?;
    if output.json {
        let json = serde_json::to_string(&report)
            .map_err(|error| Error::new(Kind::Internal, format!("the statistics can't be shown: {error}")))?;
        return print(&format!("{json}\n"));
    }
    let repeated = match report.repeated_rows {
        0 => String::new(),
        count => format!(", {} equal to an earlier one", thousands(count as f64)),
    };
    print(&format!("{}{repeated}\n", in_rows(report.rows)))?;
    for column in &report.columns {
        let types: Vec<String> = column
            .types
            .iter()
            .map(|(name, count)| if column.types.len() == 1 { (*name).to_owned() } else { format!("{name} {count}") })
            .collect();
        let mut line =
            format!("\n{}  {}", column.name, if types.is_empty() { "no values".to_owned() } else { types.join(", ") });
        if column.missing > 0 {
            let _ = write!(line, ", {} missing", thousands(column.missing as f64));
        }
        let distinct = usize::try_from(column.distinct).unwrap_or(usize::MAX);
        let _ = writeln!(line, ", {}", counted(distinct, "value", "different values"));
        let summaries = [
            ("characters", &column.characters),
            ("tokens", &column.tokens),
            ("numbers", &column.numbers),
            ("items", &column.items),
        ];
        for (unit, summary) in summaries {
            if let Some(summary) = summary {
                line.push_str(&described(unit, summary, reporter.is_unicode()));
            }
        }
        if !column.values.is_empty() {
            let values: Vec<String> =
                column.values.iter().map(|(value, count)| format!("{value} {}", thousands(*count as f64))).collect();
            let _ = writeln!(line, "  values      {}", values.join(", "));
        }
        print(&crate::error::without_control_characters(&line))?;
    }
    Ok(())
}

fn described(unit: &str, distribution: &Distribution, unicode: bool) -> String {
    let number =
        |value: f64| if value.fract() == 0.0 && value.abs() < 1e15 { thousands(value) } else { compact(value) };
    let figures = [
        ("least", distribution.least),
        ("mean", distribution.mean),
        ("median", distribution.median),
        ("95%", distribution.p95),
        ("most", distribution.most),
    ];
    let figures: Vec<String> = figures.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
    let mut text = format!("  {unit:<11} {}\n", figures.join(", "));
    if distribution.histogram.len() > 1 {
        let counts: Vec<f64> = distribution.histogram.iter().map(|count| *count as f64).collect();
        let highest = counts.iter().copied().fold(1.0, f64::max);
        let drawn = sparkline(&counts, WIDTH, (0.0, highest), unicode);
        let _ = writeln!(text, "  {:<11} {} {drawn} {}", "", number(distribution.least), number(distribution.most));
    }
    text
}
