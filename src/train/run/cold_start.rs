//! A cold start: supervised training before reinforcement learning, in one run.
//!
//! `cold_start` of a recipe is a recipe with `r1.sft`. `r1 run` first trains `policy.model` with
//! it, as a separate run in the folder `sft` of the run directory, with its own checkpoints,
//! metrics and configuration. Its result (the model with the lowest held-out loss, or the last one)
//! is the policy and the reference policy that reinforcement learning starts from. A run that is
//! interrupted during the cold start resumes there.

use std::path::PathBuf;

use super::sft;
use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::script::Script;
use crate::store::{Origins, RunDir};
use crate::telemetry::Reporter;
use crate::train::options::RunOptions;
use crate::train::rules::unused::unused_settings;
use crate::train::rules::validate::{check_supervised, validate};
use crate::train::start::cold_start_result::{FOLDER, no_result, result};
use crate::train::start::resume::{Resumed, StartState, record};
use crate::train::start::resume_point::{ResumePoint, ResumeSource};

/// Runs the recipe's cold start, if it has one and this run has not completed it. If the user stops
/// it, returns the directory of the run.
///
/// # Errors
/// Errors of `r1 sft` and of [`validate`], so that a contradiction is found before the cold start.
pub(crate) fn run(opened: &mut StartState, reporter: &Reporter) -> Result<Option<PathBuf>> {
    if opened.script.settings.cold_start.is_none() {
        return Ok(None);
    }
    validate(&opened.script)?;
    let resumed = opened.resumed.take();
    let (script, options) = (&opened.script, &opened.options);
    let mut resumed = if let Some(resumed) = resumed {
        resumed
    } else {
        check(script)?;
        let run = opened.directory()?;
        record(&run, script, &options.overrides, &Origins::default(), 0, 0)?;
        let stored = run.configuration()?;
        let source = ResumeSource { path: run.path().to_owned(), is_fork: false, run: Some(run) };
        Resumed { source, point: ResumePoint::default(), stored }
    };
    // Reinforcement learning records its model when it begins.
    let finished = resumed.point.checkpoint.is_some() || resumed.stored.origins.model.is_some();
    if !finished {
        let run = resumed.source.path.as_path();
        let folder = run.join(FOLDER);
        let begun = folder.join("config.json").is_file();
        if !begun && !RunDir::is_free(&folder)? {
            return Err(Error::new(Kind::Store, "the folder of the cold start has files and no config.json")
                .at_path(&folder)
                .hint("move it away; the cold start then begins again"));
        }
        let supervised = RunOptions {
            runs_dir: if options.ranks.is_first() { run.to_owned() } else { options.runs_dir.clone() },
            name: Some(FOLDER.to_owned()),
            resume: begun.then_some(folder),
            from_step: None,
            out: None,
            cold_start: true,
            confirm: false,
            // The settings of the run, even if the script has changed.
            overrides: [options.overrides.as_slice(), &[format!("seed={}", script.settings.seed)]].concat(),
            ..options.clone()
        };
        reporter.section("Cold start");
        let summary = sft::run(&supervised, reporter)?;
        if summary.interrupted {
            reporter.text("next");
            reporter.text(&format!("  {}", options.resume_command("run", run)));
            return Ok(Some(run.to_owned()));
        }
        if options.ranks.is_first() && result(run)?.is_none() {
            return Err(no_result(run));
        }
    }
    // The directory with the result, after it was written.
    resumed.source.path = options.ranks.of_first(resumed.source.path)?;
    opened.resumed = Some(resumed);
    Ok(None)
}

/// Validates the settings of a recipe's cold start before anything runs; returns the warnings.
///
/// # Errors
/// `Kind::Script` or `Kind::Usage` names a setting that contradicts another or is invalid.
pub fn check(script: &Script) -> Result<Vec<Error>> {
    let Some(phase) = script.cold_start()? else { return Ok(Vec::new()) };
    let of_cold_start = |error: Error| Error { message: format!("cold_start: {}", error.message), ..error };
    if let Trainer::Sft(sft) = &phase.settings.trainer {
        check_supervised(sft).map_err(|error| of_cold_start(phase.placed(error)))?;
    }
    let warnings = unused_settings(&phase).map_err(of_cold_start)?;
    Ok(warnings.into_iter().map(of_cold_start).collect())
}
