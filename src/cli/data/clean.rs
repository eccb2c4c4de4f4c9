//! `r1 data dedup` and `r1 data decontaminate`: leave rows out, with a report.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::super::args::OutputArgs;
use super::super::data_args::{DecontaminateArgs, DedupArgs};
use super::super::{print_json, print_report};
use super::rows::{check_interrupt, check_out, in_rows, open, write_selected};
use crate::data::{Dataset, DatasetTexts, OverlapOptions, TextColumns, check_output, duplicates, overlap, write_rows};
use crate::error::{Error, Kind, Result};
use crate::telemetry::{Interrupt, ReportStyle, ctrl_c, thousands};

pub(super) fn dedup(args: &DedupArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows.open()?;
    check_outputs(&data, args.out.as_deref(), args.report.as_deref())?;
    let interrupt = ctrl_c();
    let columns = TextColumns::new(&args.column);
    let reporter = output.reporter_beside_json();
    let bar = reporter.bar("comparing", data.len(), "rows");
    let last = std::cell::Cell::new(0);
    let text = |index: u64| {
        if index > last.get() {
            bar.inc(index - last.get());
            last.set(index);
        }
        text(&data, &columns, index, interrupt)
    };
    let pairs_found = duplicates(data.len(), args.near, &text);
    bar.finish();
    let pairs_found = pairs_found?;
    let exact = pairs_found.iter().filter(|duplicate| duplicate.exact).count() as u64;
    let near = pairs_found.len() as u64 - exact;
    let pairs: Vec<Json> = pairs_found
        .iter()
        .map(|duplicate| {
            json!({
                "row": duplicate.row, "of": duplicate.of, "similarity": duplicate.similarity,
                "place": data.place(duplicate.row), "of_place": data.place(duplicate.of),
            })
        })
        .collect();
    let kept = write(&data, &pairs, args.out.as_deref(), args.report.as_deref(), interrupt)?;
    let result = json!({
        "rows": data.len(), "kept": kept, "equal": exact, "similar": near, "out": args.out, "pairs": pairs,
    });
    show(&result, args.near, args.report.as_deref(), output)
}

pub(super) fn decontaminate(args: &DecontaminateArgs, output: OutputArgs) -> Result<()> {
    let (train, eval) = (args.rows.open()?, open(&args.against)?);
    check_outputs(&train, args.out.as_deref(), args.report.as_deref())?;
    let interrupt = ctrl_c();
    let columns = TextColumns::new(&args.column);
    let eval_columns = if args.eval_column.is_empty() { &args.column } else { &args.eval_column };
    let eval_columns = TextColumns::new(eval_columns);
    let reporter = output.reporter_beside_json();
    let train_text = |index: u64| text(&train, &columns, index, interrupt);
    let eval_text = |index: u64| text(&eval, &eval_columns, index, interrupt);
    let options = OverlapOptions { n: usize::from(args.ngram), common: args.common };
    let overlaps = overlap(
        &DatasetTexts { count: train.len(), text: &train_text },
        &DatasetTexts { count: eval.len(), text: &eval_text },
        options,
    )?;
    let rows: Vec<Json> = overlaps
        .rows
        .iter()
        .map(|contaminated| {
            json!({
                "row": contaminated.row, "eval": contaminated.eval, "ngrams": contaminated.ngrams, "ngram": contaminated.ngram,
                "place": train.place(contaminated.row), "eval_place": eval.place(contaminated.eval),
            })
        })
        .collect();
    let kept = write(&train, &rows, args.out.as_deref(), args.report.as_deref(), interrupt)?;
    let result = json!({
        "rows": train.len(), "kept": kept, "ngram": args.ngram, "eval_rows": eval.len(),
        "eval_rows_found": overlaps.eval_rows, "eval_rows_short": overlaps.short, "ignored_ngrams": overlaps.ignored,
        "out": args.out, "overlaps": rows,
    });
    show(&result, None, args.report.as_deref(), output)?;
    if overlaps.short > 0 {
        let short = in_rows(overlaps.short);
        reporter.info(&format!("{short} of the evaluation with fewer than {} words: compared as a whole", args.ngram));
    }
    if let Some(first) = overlaps.ignored.first() {
        reporter.info(&format!(
            "{} n-grams are in more than {} training texts and were ignored (--common), such as \"{first}\"",
            thousands(overlaps.ignored.len() as f64),
            args.common
        ));
    }
    Ok(())
}

fn text(data: &Dataset, columns: &TextColumns, index: u64, interrupt: Interrupt) -> Result<String> {
    check_interrupt(interrupt)?;
    columns.text(&data.raw_row(index)?).map_err(|error| error.at(data.place(index)))
}

fn check_outputs(data: &Dataset, out: Option<&Path>, report: Option<&Path>) -> Result<()> {
    if let Some(out) = out {
        check_out(out, data)?;
    }
    if let Some(report) = report {
        check_out(report, data)?;
        if Some(report) == out {
            return Err(Error::new(Kind::Usage, "--out and --report are the same file").at_path(report));
        }
    }
    Ok(())
}

/// Writes the report, and the rows of which it has none; returns their number.
fn write(
    data: &Dataset,
    left_out: &[Json],
    out: Option<&Path>,
    report_path: Option<&Path>,
    interrupt: Interrupt,
) -> Result<usize> {
    if let Some(path) = report_path {
        report(path, left_out)?;
    }
    let left_out: HashSet<u64> = left_out.iter().filter_map(|row| row["row"].as_u64()).collect();
    let kept: Vec<u64> = (0..data.len()).filter(|row| !left_out.contains(row)).collect();
    if let Some(out) = out {
        if kept.is_empty() {
            return Err(Error::new(Kind::Data, "no row is left, and no file was written").at_path(out));
        }
        write_selected(out, data, &kept, interrupt)?;
    }
    Ok(kept.len())
}

fn report(path: &Path, rows: &[Json]) -> Result<()> {
    check_output(path)?;
    let row = |index: u64| Ok(rows[index as usize].as_object().cloned().unwrap_or_default());
    if rows.is_empty() && path.extension().is_some_and(|end| end == "parquet") {
        return Err(Error::new(Kind::Usage, "an empty report can't be a Parquet file")
            .at_path(path)
            .hint("name it .jsonl"));
    }
    write_rows(path, rows.len() as u64, &row)
}

/// Prints the result. `near` and `file` are what its text has in addition to the JSON.
fn show(result: &Json, near: Option<f64>, file: Option<&Path>, output: OutputArgs) -> Result<()> {
    if output.json {
        return print_json(result);
    }
    let shown = json!({ "result": result, "near": near, "report": file });
    print_report(include_str!("../../../lua/reports/data_clean.lua"), &shown, ReportStyle::default())
}
