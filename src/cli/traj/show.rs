//! `r1 traj show`: trajectories with their conversation, steps and calls, or token by token.

use serde_json::{Value, json};

use super::super::args::OutputArgs;
use super::super::recorded::{RecordedRun, StoredStep};
use super::super::traj_args::TrajShowArgs;
use super::super::{print_json, print_report};
use super::selected::{column, harmless, number};
use super::tokens::{self, tokenizer};
use crate::error::Result;
use crate::mdp::{Split, Trajectory};
use crate::script::trajectory_table;
use crate::store::{ColumnValues, StoredRun, scan_trajectories};
use crate::telemetry::ReportStyle;

pub(super) fn run(args: &TrajShowArgs, output: OutputArgs) -> Result<()> {
    let reporter = output.reporter_beside_json();
    let style = ReportStyle::of(&reporter);
    let mut recorded = RecordedRun::open(&args.run, &args.runs_dir, None, Vec::new())?;
    for step in recorded.steps(Split::Train, &args.ids, 0)? {
        let stored = StoredNumbers::read(&recorded.run, step)?;
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

/// A trajectory as programs get it, with what the store has beside it.
fn described(trajectory: &Trajectory, stored: &StoredNumbers) -> Value {
    let mut shown = trajectory_table(trajectory, false, false);
    shown["event"] = json!("trajectory");
    shown["seconds"] = json!(trajectory.seconds);
    shown["tokens"] = json!(trajectory.response_tokens());
    shown["tool_calls"] = json!(trajectory.tool_calls());
    let row = stored.ids.iter().position(|id| id.as_deref() == Some(trajectory.id.as_str()));
    let list = row.and_then(|row| serde_json::from_str(stored.advantages.get(row)?.as_deref()?).ok());
    shown["advantages"] = list.unwrap_or_else(|| json!([]));
    shown["policy_version"] = row.and_then(|row| stored.versions.get(row)).map_or(Value::Null, |it| number(*it));
    shown
}

/// Columns of a file that no trajectory has as a value.
struct StoredNumbers {
    ids: Vec<Option<String>>,
    advantages: Vec<Option<String>>,
    versions: Vec<f64>,
}

impl StoredNumbers {
    fn read(run: &StoredRun, (split, step): StoredStep) -> Result<Self> {
        let columns = [column("id")?, column("advantages")?, column("policy_version")?];
        let file = run.files(split)?.into_iter().find(|file| file.step == step);
        let mut read = file.map_or_else(|| Ok(Vec::new()), |file| scan_trajectories(&file, &columns))?.into_iter();
        let mut next = || read.next().unwrap_or(ColumnValues::Texts(Vec::new()));
        let (ids, advantages, versions) = (next(), next(), next());
        Ok(Self {
            ids: ids.texts().to_vec(),
            advantages: advantages.texts().to_vec(),
            versions: versions.numbers().to_vec(),
        })
    }
}
