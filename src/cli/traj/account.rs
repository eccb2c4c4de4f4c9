//! `r1 traj account`: what became of each task that a run has drawn from its data.

use std::process::ExitCode;

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::recorded::stop_if_interrupted;
use super::super::traj_args::AccountArgs;
use super::super::{print_json, print_report};
use super::selected::harmless;
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;
use crate::store::{RunProgress, StoredRun, TaskAccount, latest_checkpoint};
use crate::telemetry::{ReportStyle, ctrl_c};

/// The exit code is a failure if something does not fit together.
pub(super) fn run(args: &AccountArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    let reporter = output.reporter();
    let run = StoredRun::open(&args.run, &args.runs_dir)?;
    // Before the files: a run that goes on writes the files of a step before its checkpoint.
    let checkpoint = latest_checkpoint(run.path())?;
    let files = run.files(Split::Train)?;
    let Some((first, last)) = files.first().zip(files.last()).map(|(first, last)| (first.step, last.step)) else {
        let error = Error::new(Kind::Store, "the run has no stored trajectories of training").at_path(run.path());
        return Err(error.hint("a run of r1 sft samples none"));
    };
    let mut account = TaskAccount::new(run.fork().map(|fork| fork.step));
    let bar = reporter.bar("reading", files.len() as u64, "files");
    for file in &files {
        stop_if_interrupted(interrupt)?;
        account.add(file);
        bar.inc(1);
    }
    bar.finish();
    if let Some((step, path)) = checkpoint {
        match RunProgress::load(&path) {
            Ok(state) => account.compare_checkpoint(step, state.data_position),
            Err(error) => reporter.warn(&error.to_string()),
        }
    }
    let is_right = account.problems.is_empty();
    let mut result = json!(account);
    result["event"] = json!("account");
    result["run"] = json!(run.name());
    result["steps"] = json!([first, last]);
    result["epochs"] = json!(account.epochs());
    result["fork"] = json!(run.fork());
    result["right"] = json!(is_right);
    if output.json {
        print_json(result)?;
    } else {
        harmless(&mut result);
        print_report(include_str!("../../../lua/reports/traj_account.lua"), &result, ReportStyle::of(&reporter))?;
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(Kind::Store.exit_code()) })
}
