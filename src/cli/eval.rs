//! `r1 eval`: evaluate one model or several on the held-out tasks of a recipe.

use std::process::ExitCode;

use super::args::OutputArgs;
use super::eval_args::EvalArgs;
use super::launch::launch;
use super::{print_json, set_threads};
use crate::error::{Error, Kind, Result};
use crate::eval::{missing_notes, sequential_notes, tables};
use crate::telemetry::{counted, ctrl_c};
use crate::train::{Evaluated, evaluate_models};

pub(super) fn run(args: EvalArgs, output: OutputArgs) -> Result<ExitCode> {
    let (processes, threads) = (args.processes, args.threads);
    let launched = launch(processes)?;
    set_threads(threads);
    // The result is the only object on stdout.
    let reporter = OutputArgs { json: false, quiet: output.quiet || output.json, ..output };
    let reporter = launched.reporter(|| reporter.reporter());
    let done = args.options(ctrl_c()).map(|options| launched.eval_options(options)).and_then(|options| {
        let evaluated = evaluate_models(&options, &reporter)?;
        Ok((evaluated, options))
    });
    let is_first = launched.is_first();
    let (Evaluated { directory, report, left }, options) = launched.finish(done)?;
    if !is_first {
        return Ok(ExitCode::SUCCESS);
    }
    for note in missing_notes(&report)? {
        reporter.warn(&note);
    }
    for note in sequential_notes(&report)? {
        reporter.info(&note);
    }
    if output.json {
        let mut json = report.to_json().map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        json["directory"] = directory.display().to_string().into();
        if left > 0 {
            json["left"] = left.into();
        }
        print_json(json)?;
    } else if report.policies.iter().any(|policy| policy.figures.tasks > 0) {
        for (title, rows) in tables(&report, false)? {
            reporter.section(&title);
            reporter.table(&rows);
        }
        let files = [directory.join("report.html"), directory.join("examples.txt")];
        reporter.text(&format!("\n  {}", files.map(|path| path.display().to_string()).join("\n  ")));
    }
    if left > 0 {
        let trajectories = counted(left, "trajectory is", "trajectories are");
        reporter.warn(&format!(
            "{trajectories} left: the figures are of those so far; r1 eval {} --resume {} continues",
            options.agent.given().display(),
            directory.display()
        ));
        return Ok(ExitCode::from(Kind::Interrupted.exit_code()));
    }
    Ok(ExitCode::SUCCESS)
}
