//! `r1 run` and `r1 sft`: train a policy from a recipe.

use std::process::ExitCode;

use super::args::{OutputArgs, RecipeArgs, RunArgs, SftArgs};
use super::launch::launch;
use super::{print_json, set_threads};
use crate::error::{Kind, Result};
use crate::store::check_writable;
use crate::telemetry::{Reporter, ctrl_c};
use crate::train::{self, RunOptions, Summary};

/// Reinforcement learning.
pub(super) fn run(args: RunArgs, output: OutputArgs) -> Result<ExitCode> {
    let (no_reload, profile) = (args.no_reload, args.profile);
    train(args.recipe, output, false, |options, reporter| {
        train::run(&RunOptions { no_reload, profile, ..options.clone() }, reporter)
    })
}

/// Supervised fine-tuning.
pub(super) fn sft(args: SftArgs, output: OutputArgs) -> Result<ExitCode> {
    train(args.recipe, output, true, train::run_supervised)
}

/// The memory of a run, as a table.
fn plan(args: RecipeArgs, output: OutputArgs, supervised: bool) -> Result<()> {
    let reporter = output.reporter();
    let plan = train::plan(&args.options(ctrl_c())?, supervised, &reporter)?;
    if output.json {
        return print_json(plan.to_json());
    }
    reporter.table(&plan.table());
    if let Some(available) = plan.available.filter(|available| plan.peak() > *available) {
        reporter.warn(&format!(
            "that is more than the {} MiB that are free: lower policy.max_context, rollout.concurrency or \
             trainer.tokens_per_batch, or set trainer.gradient_checkpointing",
            available >> 20
        ));
    }
    Ok(())
}

fn train(
    args: RecipeArgs,
    output: OutputArgs,
    supervised: bool,
    body: impl FnOnce(&RunOptions, &Reporter) -> Result<Summary>,
) -> Result<ExitCode> {
    set_threads(args.threads);
    if args.plan {
        return plan(args, output, supervised).map(|()| ExitCode::SUCCESS);
    }
    let (processes, threads) = (args.processes, args.threads);
    // Before signals are handled: until all processes are there, the first one ends this process.
    let launched = launch(processes)?;
    set_threads(threads);
    let reporter = launched.reporter(|| output.reporter());
    let done = args.options(ctrl_c()).map(|options| launched.run_options(options)).and_then(|options| {
        options.out.as_deref().map_or(Ok(()), check_writable)?;
        body(&options, &reporter)
    });
    let summary = launched.finish(done)?;
    // The training loop has printed the progress and how to resume.
    let stopped = summary.interrupted;
    Ok(if stopped { ExitCode::from(Kind::Interrupted.exit_code()) } else { ExitCode::SUCCESS })
}
