//! `r1 replay`: replays stored trajectories and compares them with their record.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::json;

use super::args::{OutputArgs, ReplayArgs};
use super::recorded::{IdOrSetting, RecordedRun, stop_if_interrupted};
use super::{diff, print, print_json};
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;
use crate::rollout::{ReplayMismatch, first_difference};
use crate::script::Strictness;
use crate::telemetry::ctrl_c;

/// Number of trajectories whose difference is shown in full.
const SHOWN: usize = 5;

/// The exit code is a failure if anything differs.
pub(super) fn run(args: ReplayArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    let reporter = output.reporter();
    let colour = reporter.is_coloured();
    let (mut ids, mut overrides) = (Vec::new(), Vec::new());
    for argument in args.ids_or_settings {
        match argument {
            IdOrSetting::Id(id) => ids.push(id),
            IdOrSetting::Setting(setting) => overrides.push(setting),
        }
    }
    if args.last > 0 && !ids.is_empty() {
        return Err(Error::new(Kind::Usage, "--last selects steps, and trajectories are named too")
            .hint("leave out one of the two"));
    }
    let mut recorded = RecordedRun::open(&args.run, &args.runs_dir, args.script, overrides)?;
    let steps = recorded.steps(Split::Train, &ids, args.last)?;
    let bar = reporter.bar("replaying", steps.len() as u64, "steps");
    let (mut count, mut differ) = (0, 0);
    for step in &steps {
        for trajectory in recorded.trajectories(*step, &ids)? {
            stop_if_interrupted(interrupt)?;
            let loaded = recorded.script_of(&trajectory, &reporter)?;
            let replayed = recorded.replay(&loaded, &trajectory, Strictness::Exact)?;
            let difference = first_difference(&loaded.renderer, &trajectory, &replayed);
            count += 1;
            if output.json {
                let same = difference.is_none();
                print_json(json!({ "event": "replay", "id": trajectory.id, "same": same, "difference": difference }))?;
            }
            if let Some(difference) = difference {
                differ += 1;
                if !output.json && differ <= SHOWN {
                    print(&shown(&trajectory.id, &difference, colour))?;
                }
            }
        }
        bar.inc(1);
    }
    bar.finish();
    let plural = |count: usize| if count == 1 { "y" } else { "ies" };
    if output.json {
        print_json(json!({ "event": "summary", "trajectories": count, "differ": differ }))?;
    } else if differ == 0 {
        print(&format!("{count} trajector{}: every observation, reward and status as recorded\n", plural(count)))?;
    } else {
        let more = if differ > SHOWN { format!("{} more differ; ", differ - SHOWN) } else { String::new() };
        print(&format!("{more}{differ} of {count} trajector{} not as recorded\n", plural(count)))?;
    }
    Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::from(Kind::Env.exit_code()) })
}

/// The first difference of a trajectory, as text.
fn shown(id: &str, difference: &ReplayMismatch, colour: bool) -> String {
    let mut text = format!("{id}: {difference}\n");
    let ReplayMismatch { recorded, now, .. } = difference;
    if recorded.contains('\n') || now.contains('\n') {
        text.push_str("  - recorded\n  + now\n\n");
        text.push_str(&diff::lines(recorded, now, colour));
    } else {
        let _ = writeln!(text, "  recorded  {recorded}\n  now       {now}");
    }
    text.push('\n');
    text
}
