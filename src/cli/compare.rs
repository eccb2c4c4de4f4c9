//! `r1 compare`: curves and final figures of runs, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::args::OutputArgs;
use super::compare_args::CompareArgs;
use super::print;
use crate::error::{Error, Kind, Result, suggest};
use crate::store::{StoredRun, write_atomic};
use crate::telemetry::{Curve, Panel, compact, is_share, picture, read_curves, sparkline};

/// Metrics that are shown without `--metric`, in this order.
const USUAL: [&str; 12] = [
    "eval/accuracy",
    "eval/reward",
    "eval/loss",
    "sft/loss",
    "rollout/accuracy",
    "reward/mean",
    "rollout/response_tokens",
    "rollout/tool_call_share",
    "policy/entropy",
    "kl/mean",
    "policy/grad_norm",
    "time/step",
];

/// Columns of a curve in the terminal.
const WIDTH: usize = 32;

type RunCurves = BTreeMap<String, Curve>;

pub(super) fn run(args: &CompareArgs, output: OutputArgs) -> Result<ExitCode> {
    let runs = names(&args.runs);
    let open = |folder: &PathBuf| read_curves(StoredRun::open(folder, &args.runs_dir)?.path());
    let curves = args.runs.iter().map(open).collect::<Result<Vec<RunCurves>>>()?;
    let metrics = metrics(args, &curves, output.json)?;
    if let Some(path) = &args.out {
        draw(path, &runs, &metrics, &curves)?;
    }
    if output.json {
        print(&format!("{}\n", as_json(&args.runs, &metrics, &curves)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let reporter = output.reporter();
    for metric in &metrics {
        reporter.section(metric);
        reporter.table(&table(metric, &runs, &curves, reporter.is_unicode()));
    }
    if let Some(path) = &args.out {
        reporter.info(&format!("picture {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The last part of each path, or the whole one where two are equal.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let repeats = |path: &PathBuf| paths.iter().filter(|other| short(other) == short(path)).count() > 1;
    let full = |path: &PathBuf| path.display().to_string();
    paths.iter().map(|path| short(path).filter(|_| !repeats(path)).unwrap_or_else(|| full(path))).collect()
}

/// The metrics to show: the given ones, or the usual ones that a run has.
///
/// # Errors
/// [`Kind::Usage`] for a metric that no run has, with the nearest one.
fn metrics(args: &CompareArgs, curves: &[RunCurves], json: bool) -> Result<Vec<String>> {
    let available: BTreeSet<&str> = curves.iter().flat_map(|curves| curves.keys().map(String::as_str)).collect();
    if let Some(unknown) = args.metric.iter().find(|metric| !available.contains(metric.as_str())) {
        let error = Error::new(Kind::Usage, format!("no run has the metric `{unknown}`")).at("--metric");
        return Err(error.hint(suggest(unknown, available.iter().copied())));
    }
    let all = || available.iter().map(|name| (*name).to_owned()).collect();
    let default_metrics =
        || USUAL.iter().filter(|name| available.contains(**name)).map(|name| (*name).to_owned()).collect();
    Ok(match args.metric.is_empty() {
        false => args.metric.clone(),
        true if args.all || json => all(),
        true => default_metrics(),
    })
}

fn table(metric: &str, runs: &[String], curves: &[RunCurves], unicode: bool) -> Vec<Vec<String>> {
    let share = is_share(metric);
    let heading = ["run", "curve", "first", "end", "last", "lowest", "highest"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let run_curves = curves.iter().filter_map(|curves| curves.get(metric));
    // All runs of a metric are drawn in the same range.
    let bounds = run_curves
        .flat_map(Curve::values)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let bounds = if share { (0.0, 1.0) } else { bounds };
    for (run, curves) in runs.iter().zip(curves) {
        let Some(curve) = curves.get(metric) else {
            rows.push(vec![run.clone(), "-".to_owned()]);
            continue;
        };
        let values: Vec<f64> = curve.values().collect();
        let number = |value: Option<f64>| value.map_or_else(String::new, compact);
        let at = |point: Option<(u64, f64)>| {
            point.map_or_else(String::new, |(step, value)| format!("{} at {step}", compact(value)))
        };
        rows.push(vec![
            run.clone(),
            sparkline(&values, WIDTH, bounds, unicode),
            number(curve.first().map(|(_, value)| value)),
            number(curve.tail()),
            at(curve.last()),
            at(curve.lowest()),
            at(curve.highest()),
        ]);
    }
    rows
}

fn as_json(runs: &[PathBuf], metrics: &[String], curves: &[RunCurves]) -> Value {
    let of = |curve: &Curve| {
        let point = |point: Option<(u64, f64)>| point.map(|(step, value)| json!({ "step": step, "value": value }));
        json!({
            "first": point(curve.first()),
            "last": point(curve.last()),
            "end": curve.tail(),
            "lowest": point(curve.lowest()),
            "highest": point(curve.highest()),
            "values": curve.0,
        })
    };
    let run = |(run, curves): (&PathBuf, &RunCurves)| {
        let metrics: Map<String, Value> =
            metrics.iter().filter_map(|name| Some((name.clone(), of(curves.get(name)?)))).collect();
        json!({ "run": run, "metrics": metrics })
    };
    json!({ "runs": runs.iter().zip(curves).map(run).collect::<Vec<_>>() })
}

fn draw<'a>(path: &Path, runs: &[String], metrics: &'a [String], curves: &'a [RunCurves]) -> Result<()> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err(Error::new(Kind::Usage, "the picture is an SVG file").at("--out").hint("as in --out curves.svg"));
    }
    let panel = |metric: &'a String| Panel {
        metric,
        is_share: is_share(metric),
        curves: curves.iter().map(|curves| curves.get(metric)).collect(),
    };
    let panels: Vec<Panel<'_>> = metrics.iter().map(panel).collect();
    let text = picture(runs, &panels);
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the file", path, error);
    write_atomic(path, |file| file.write_all(text.as_bytes()).map_err(|error| failed(&error)))
}
