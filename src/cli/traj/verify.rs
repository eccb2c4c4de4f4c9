//! `r1 traj verify`: checks the files of trajectories of a run.

use std::process::ExitCode;

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::recorded::stop_if_interrupted;
use super::super::traj_args::VerifyArgs;
use super::super::{print_json, print_report};
use super::selected::harmless;
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;
use crate::store::{StoredRun, TrajectoryChecks, missing_steps, unfinished_files};
use crate::telemetry::{ReportStyle, ctrl_c};

/// The exit code is a failure if anything is wrong.
pub(super) fn run(args: &VerifyArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    let reporter = output.reporter();
    let run = StoredRun::open(&args.run, &args.runs_dir)?;
    let [train, eval] = [run.files(Split::Train)?, run.files(Split::Eval)?];
    if train.is_empty() && eval.is_empty() {
        return Err(Error::new(Kind::Store, "the run has no stored trajectories").at_path(run.path()));
    }
    let bar = reporter.bar("checking", (train.len() + eval.len()) as u64, "files");
    let mut checks = TrajectoryChecks::default();
    let (mut damaged, mut readable) = (Vec::new(), [0; 4]);
    for file in train.iter().chain(&eval) {
        stop_if_interrupted(interrupt)?;
        let check = checks.file(file);
        let counts = [usize::from(check.is_readable), check.trajectories, check.steps, check.tokens];
        readable.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        if !check.problems.is_empty() {
            damaged.push(json!({
                "event": "damaged", "path": file.path, "split": file.split, "step": file.step,
                "readable": check.is_readable, "trajectories": check.trajectories, "problems": check.problems,
            }));
        }
        bar.inc(1);
    }
    bar.finish();
    let (missing, unfinished) = (missing_steps(&train), unfinished_files(&run)?);
    let is_right = damaged.is_empty() && missing.is_empty();
    let [files, trajectories, steps, tokens] = readable;
    let summary = json!({
        "event": "summary", "right": is_right, "files": train.len() + eval.len(), "readable": files,
        "trajectories": trajectories, "steps": steps, "tokens": tokens, "damaged": damaged.len(), "missing": missing,
        "unfinished": unfinished,
    });
    if output.json {
        damaged.into_iter().chain([summary]).try_for_each(print_json)?;
    } else {
        let mut result = json!({ "run": run.name(), "damaged": damaged, "summary": summary });
        harmless(&mut result);
        print_report(include_str!("../../../lua/reports/traj_verify.lua"), &result, ReportStyle::of(&reporter))?;
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(Kind::Store.exit_code()) })
}
