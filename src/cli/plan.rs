//! `r1 plan`: memory and time of a training step on a device, before anything is loaded.

use super::args::OutputArgs;
use super::plan_args::PlanArgs;
use super::{print_json, set_threads};
use crate::error::Result;
use crate::telemetry::{ReportStyle, ctrl_c, report};
use crate::train::{RunOptions, StepPlanOptions, plan_step};

pub(super) fn run(args: PlanArgs, output: OutputArgs) -> Result<()> {
    set_threads(args.threads);
    let reporter = output.reporter_beside_json();
    let PlanArgs { script, overrides, runs_dir, world, device, like, prompt_tokens, response_tokens, .. } = args;
    let options = RunOptions { script, overrides, runs_dir, interrupt: Some(ctrl_c()), ..RunOptions::default() };
    let wanted = StepPlanOptions { device, world, like, prompt_tokens, response_tokens };
    let plan = plan_step(&options, &wanted, &reporter)?;
    if output.json {
        return print_json(plan.result);
    }
    reporter.table(&plan.memory.table());
    let text = report(include_str!("../../lua/reports/plan.lua"), &plan.result, ReportStyle::of(&reporter))?;
    reporter.text(text.trim_end_matches('\n'));
    Ok(())
}
