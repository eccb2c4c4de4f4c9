//! `r1 traj show`: trajectories with their conversation, steps and calls, or token by token.

use serde_json::{Value, json};

use super::super::args::OutputArgs;
use super::super::recorded::RecordedRun;
use super::super::traj_args::TrajShowArgs;
use super::super::{print_json, print_report};
use super::selected::{column, harmless};
use super::tokens::{self, tokenizer};
use crate::error::Result;
use crate::mdp::{Split, Trajectory};
use crate::script::trajectory_table;
use crate::store::{ColumnValues, scan_trajectories};
use crate::telemetry::ReportStyle;

pub(super) fn run(args: &TrajShowArgs, output: OutputArgs) -> Result<()> {
    let reporter = output.reporter_beside_json();
    let style = ReportStyle::of(&reporter);
    let mut recorded = RecordedRun::open(&args.run, &args.runs_dir, None, Vec::new())?;
    for step in recorded.steps(Split::Train, &args.ids, 0)? {
        let columns = [column("id")?, column("advantages")?, column("policy_version")?];
        let file = recorded.run.files(step.0)?.into_iter().find(|file| file.step == step.1);
        let stored = file.map(|file| scan_trajectories(&file, &columns)).transpose()?.unwrap_or_default();
        for trajectory in recorded.trajectories(step, &args.ids)? {
            let mut shown = described(&trajectory, &stored);
            if args.tokens {
                let tokenizer = tokenizer(&mut recorded, &trajectory, &reporter)?;
                let advantages = shown["advantages"].as_array().cloned().unwrap_or_default();
                shown["rows"] = json!(tokens::rows(&trajectory, &advantages, &tokenizer));
            }
            if output.json {
                print_json(shown)?;
                continue;
            }
            let by = clap::ValueEnum::to_possible_value(&args.by).map(|value| value.get_name().to_owned());
            (shown["by"], shown["whole"]) = (json!(by), json!(args.whole));
            harmless(&mut shown);
            let source = if args.tokens {
                include_str!("../../../lua/reports/traj_tokens.lua")
            } else {
                include_str!("../../../lua/reports/traj_show.lua")
            };
            print_report(source, &shown, style)?;
        }
    }
    Ok(())
}

/// A trajectory as programs get it, with what the store has beside it: `stored` has the columns id,
/// advantages and policy version of its file.
fn described(trajectory: &Trajectory, stored: &[ColumnValues]) -> Value {
    let mut shown = trajectory_table(trajectory, false, false);
    shown["event"] = json!("trajectory");
    shown["seconds"] = json!(trajectory.seconds);
    shown["tokens"] = json!(trajectory.response_tokens());
    shown["tool_calls"] = json!(trajectory.tool_calls());
    if let [ids, advantages, versions] = stored
        && let Some(row) = ids.texts().iter().position(|id| id.as_deref() == Some(trajectory.id.as_str()))
    {
        shown["advantages"] = advantages.json(row);
        shown["policy_version"] = versions.json(row);
    }
    shown
}
