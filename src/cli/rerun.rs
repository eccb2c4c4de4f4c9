//! `r1 rerun`: repeats steps of a stored run and reports what differs.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::args::{OutputArgs, RerunArgs};
use super::{print, print_json, set_threads};
use crate::error::{Error, Kind, Result};
use crate::script::Script;
use crate::store::StoredRun;
use crate::telemetry::{ReportStyle, Reporter, ctrl_c, report};
use crate::train::{self, RepeatedStep, RerunOptions, RunOptions};

/// An evaluation changes nothing that is compared.
const WITHOUT_EVALUATIONS: [&str; 3] = ["eval.before=false", "eval.every=0", "eval.after=false"];

/// The exit code is a failure if anything differs.
pub(super) fn run(args: RerunArgs, output: OutputArgs) -> Result<ExitCode> {
    set_threads(args.threads);
    let stored = StoredRun::open(&args.run, &args.runs_dir)?;
    let script = match args.script {
        Some(script) => script,
        None => unchanged(&stored)?,
    };
    let folder = tempfile::Builder::new().prefix("r1-rerun-").tempdir();
    let folder = folder.map_err(|error| Error::io(Kind::Store, "make a directory in", std::env::temp_dir(), &error))?;
    let (runs_dir, name) = match args.name {
        Some(name) => (args.runs_dir, name),
        None => (folder.path().to_owned(), "rerun".to_owned()),
    };
    let settings = WITHOUT_EVALUATIONS.into_iter().map(str::to_owned);
    let options = RunOptions {
        script,
        overrides: settings.chain(args.overrides).collect(),
        runs_dir,
        name: Some(name),
        fork: Some(stored.path().to_owned()),
        from_step: Some(args.from),
        no_reload: true,
        interrupt: Some(ctrl_c()),
        ..RunOptions::default()
    };
    let options = RerunOptions { run: options, steps: args.steps, sample: args.sample };
    // The lines of the repeated run are not the result.
    let (quiet, style) = (Reporter::new(true, false, false), ReportStyle::of(&output.reporter()));
    let show = |result: &serde_json::Value| -> Result<()> {
        if output.json { print_json(result) } else { print(&report(REPORT, result, style)?) }
    };
    let (mut count, mut first, mut printed) = (0, None, Ok(()));
    train::rerun(&options, &quiet, |step| {
        count += 1;
        first = first.take().or_else(|| differs(step));
        let mut line = json!(step);
        line["event"] = json!("step");
        line["order"] =
            json!(train::COMPARED.into_iter().filter(|name| step.compared.contains_key(name)).collect::<Vec<_>>());
        if printed.is_ok() {
            printed = show(&line);
        }
    })?;
    printed?;
    let same = first.is_none();
    show(&json!({ "event": "summary", "last": true, "steps": count, "first": first }))?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::from(Kind::Env.exit_code()) })
}

const REPORT: &str = include_str!("../../lua/reports/rerun.lua");

/// The names of what differs first in a step.
fn differs(step: &RepeatedStep) -> Option<serde_json::Value> {
    let name = train::COMPARED.into_iter().find(|name| step.compared.get(name).is_some_and(|it| it.differ > 0))?;
    Some(json!({ "step": step.step, "name": name }))
}

/// The run's script where it was, if it is still the same.
fn unchanged(run: &StoredRun) -> Result<PathBuf> {
    let (path, hash) = run.script();
    let now = Script::load(&path, &[])?.hash;
    if now == hash {
        return Ok(path);
    }
    let copy = run.path().join("scripts").join(&hash[..hash.len().min(12)]).join(path.file_name().unwrap_or_default());
    let other =
        format!("--script {} repeats with the new version, --script {} with the run's", path.display(), copy.display());
    Err(Error::new(Kind::Usage, "the script has changed since the run").at_path(&path).hint(other))
}
