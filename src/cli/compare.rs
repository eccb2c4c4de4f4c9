//! `r1 compare`: curves and final figures of runs, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::args::OutputArgs;
use super::compare_args::CompareArgs;
use super::print_json;
use crate::error::{Error, Kind, Result, suggest};
use crate::store::{StoredRun, write_atomic};
use crate::telemetry::{Curve, ReportStyle, is_share, read_curves, report};

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

const SOURCE: &str = include_str!("../../lua/reports/compare.lua");

type RunCurves = BTreeMap<String, Curve>;

pub(super) fn run(args: &CompareArgs, output: OutputArgs) -> Result<()> {
    let runs = names(&args.runs);
    let open = |folder: &PathBuf| StoredRun::open(folder, &args.runs_dir);
    let stored = args.runs.iter().map(open).collect::<Result<Vec<StoredRun>>>()?;
    let curves = stored.iter().map(|run| read_curves(run.path())).collect::<Result<Vec<RunCurves>>>()?;
    let metrics = metrics(args, &curves, output.json)?;
    let mut result = as_json(&args.runs, &metrics, &curves);
    for (index, run) in stored.iter().enumerate() {
        if let Some(fork) = run.fork() {
            result["runs"][index]["fork"] = json!(fork);
        }
    }
    if let Some(path) = &args.out {
        draw(path, &shown("picture", &runs, &metrics, &result))?;
    }
    if output.json {
        return print_json(result);
    }
    let reporter = output.reporter();
    let text = report(SOURCE, &shown("text", &runs, &metrics, &result), ReportStyle::of(&reporter))?;
    reporter.text(text.trim_end_matches('\n'));
    if let Some(path) = &args.out {
        reporter.info(&format!("picture {}", path.display()));
    }
    Ok(())
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
    if !args.metric.is_empty() {
        return Ok(args.metric.clone());
    }
    let selected = || USUAL.into_iter().filter(|name| available.contains(name)).collect();
    let names: Vec<&str> = if args.all || json { available.iter().copied().collect() } else { selected() };
    Ok(names.into_iter().map(str::to_owned).collect())
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

/// What the report shows: `view` is `text` or `picture`.
fn shown(view: &str, names: &[String], metrics: &[String], result: &Value) -> Value {
    let metric = |name: &String| json!({ "name": name, "is_share": is_share(name) });
    let metrics: Vec<Value> = metrics.iter().map(metric).collect();
    json!({ "view": view, "names": names, "metrics": metrics, "runs": result["runs"] })
}

fn draw(path: &Path, picture: &Value) -> Result<()> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err(Error::new(Kind::Usage, "the picture is an SVG file").at("--out").hint("as in --out curves.svg"));
    }
    let text: String = report(SOURCE, picture, ReportStyle::default())?;
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the file", path, error);
    write_atomic(path, |file| file.write_all(text.as_bytes()).map_err(|error| failed(&error)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_picture_has_a_panel_per_metric_and_a_line_per_run() {
        let (rising, one) = (Curve(vec![(1, 0.0), (3, 1.0)]), Curve(vec![(2, 0.5)]));
        let runs = ["a".to_owned(), "b<c".to_owned()];
        let metrics = ["eval/accuracy".to_owned(), "kl/mean".to_owned()];
        let curves = [
            RunCurves::from([(metrics[0].clone(), rising)]),
            RunCurves::from([(metrics[0].clone(), one.clone()), (metrics[1].clone(), one)]),
        ];
        let result = as_json(&["a".into(), "b<c".into()], &metrics, &curves);
        let svg = report(SOURCE, &shown("picture", &runs, &metrics, &result), ReportStyle::default()).unwrap();
        assert_eq!((svg.matches("<path").count(), svg.matches("<circle").count()), (3, 2), "{svg}");
        assert!(svg.contains("M60.0 210.0L360.0 40.0") && svg.contains("b&lt;c") && svg.contains("step 3"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
