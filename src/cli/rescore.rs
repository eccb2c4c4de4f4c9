//! `r1 rescore`: stored trajectories under a changed script, with the new rewards next to the old
//! ones.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{OutputArgs, RescoreArgs};
use super::print;
use super::recorded::{RecordedRun, stop_if_interrupted};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Split, Trajectory};
use crate::rl::compare::{against_group, spearman};
use crate::rollout::Replayed;
use crate::script::Strictness;
use crate::telemetry::{Reporter, counted, ctrl_c};

/// Number of trajectories that are shown, those with the largest changes.
const SHOWN: usize = 10;

/// A trajectory with its rewards under both scripts.
struct RescoredPair {
    id: String,
    /// Step and group in one number.
    group: u64,
    old: f64,
    new: f64,
    old_parts: BTreeMap<String, f64>,
    new_parts: BTreeMap<String, f64>,
    task: String,
    /// Group-relative advantages.
    advantages: (f64, f64),
}

impl RescoredPair {
    fn flips(&self) -> bool {
        let sign = |advantage: f64| if advantage.abs() < 1e-12 { 0 } else { advantage.signum() as i8 };
        sign(self.advantages.0) != sign(self.advantages.1)
    }
}

pub(super) fn run(args: RescoreArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    let reporter = output.reporter();
    let name = match &args.script {
        Some(script) => script.display().to_string(),
        None => args.overrides.join(" "),
    };
    let mut recorded = RecordedRun::open(&args.run, &args.runs_dir, args.script, args.overrides)?;
    let split = if args.eval { Split::Eval } else { Split::Train };
    let steps = recorded.steps(split, &[], args.last)?;
    let strictness = if args.live { Strictness::Live } else { Strictness::Found };
    let bar = reporter.bar("rescoring", steps.len() as u64, "steps");
    let (mut pairs, mut left_out) = (Vec::new(), LeftOut::default());
    for (number, step) in steps.iter().enumerate() {
        for trajectory in recorded.trajectories(*step, &[])? {
            stop_if_interrupted(interrupt)?;
            if trajectory.status.is_failure() {
                left_out.failed += 1;
                continue;
            }
            let loaded = recorded.script_of(&trajectory, &reporter)?;
            let replayed = recorded.replay(&loaded, &trajectory, strictness)?;
            if !left_out.takes(&trajectory, &replayed) {
                pairs.push(pair(number as u64, &trajectory, &replayed.trajectory));
            }
        }
        bar.inc(1);
    }
    bar.finish();
    if pairs.is_empty() {
        return Err(left_out.into_error(&name));
    }
    let groups: Vec<u64> = pairs.iter().map(|pair| pair.group).collect();
    let old = against_group(&pairs.iter().map(|pair| pair.old).collect::<Vec<_>>(), &groups);
    let new = against_group(&pairs.iter().map(|pair| pair.new).collect::<Vec<_>>(), &groups);
    for (pair, advantages) in pairs.iter_mut().zip(old.into_iter().zip(new)) {
        pair.advantages = advantages;
    }
    let range = (steps[0].1, steps[steps.len() - 1].1);
    if output.json {
        return as_json(&pairs, &left_out, range).map(|()| ExitCode::SUCCESS);
    }
    print_report(&reporter, &recorded.run.name(), &name, pairs, &left_out, range)?;
    Ok(ExitCode::SUCCESS)
}

fn pair(step: u64, old: &Trajectory, new: &Trajectory) -> RescoredPair {
    let task = match old.task.as_object() {
        Some(columns) => columns.values().find_map(Value::as_str).map_or_else(|| old.task.to_string(), str::to_owned),
        None => old.task.to_string(),
    };
    RescoredPair {
        id: old.id.clone(),
        group: step << 32 | old.group,
        old: old.total_reward(),
        new: new.total_reward(),
        old_parts: old.reward_parts.clone(),
        new_parts: new.reward_parts.clone(),
        task,
        advantages: (0.0, 0.0),
    }
}

/// Trajectories without a new reward, and the reasons.
#[derive(Default)]
struct LeftOut {
    /// They failed when they were recorded.
    failed: usize,
    /// Reason -> the first trajectory, and how many.
    now: BTreeMap<String, (String, usize)>,
}

impl LeftOut {
    /// Whether a trajectory can be compared; otherwise the reason is stored.
    fn takes(&mut self, old: &Trajectory, replayed: &Replayed) -> bool {
        let reason = if let Some(left) = &replayed.left {
            let call = left.requested.as_ref().map_or_else(String::new, |(kind, _)| format!(" ({kind})"));
            format!("the record lacks a call of the script{call}; --live runs it")
        } else if let Some(error) = &replayed.trajectory.error {
            error.to_string()
        } else if replayed.unfinished && old.status == crate::mdp::Status::Terminated {
            "the env continues after the last recorded reply".to_owned()
        } else {
            return false;
        };
        self.now.entry(reason).or_insert_with(|| (old.id.clone(), 0)).1 += 1;
        true
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.failed > 0 {
            lines.push(format!("{} failed when they were recorded", self.failed));
        }
        for (reason, (first, count)) in &self.now {
            lines.push(format!("{count} from {first} on: {}", reason.replace('\n', "\n  ")));
        }
        lines
    }

    fn into_error(self, script: &str) -> Error {
        let causes: Vec<String> = self.lines().iter().map(|line| format!("\n  {line}")).collect();
        Error::new(Kind::Env, format!("no reward under {script} for{}", causes.concat()))
    }
}

fn as_json(pairs: &[RescoredPair], left_out: &LeftOut, (first, last): (u64, u64)) -> Result<()> {
    for pair in pairs {
        let line = json!({
            "event": "rescore", "id": pair.id, "old": pair.old, "new": pair.new,
            "advantage": { "old": pair.advantages.0, "new": pair.advantages.1 }, "flips": pair.flips(),
            "parts": { "old": pair.old_parts, "new": pair.new_parts },
        });
        print(&format!("{line}\n"))?;
    }
    let summary = RescoreSummary::of(pairs);
    let left: Vec<Value> = left_out
        .now
        .iter()
        .map(|(reason, (first, count))| json!({ "reason": reason, "first": first, "count": count }))
        .collect();
    let line = json!({
        "event": "summary", "steps": [first, last], "trajectories": pairs.len(), "old_mean": summary.old,
        "new_mean": summary.new, "rank_correlation": summary.correlation, "sign_flips": summary.flips,
        "left_out": { "failed": left_out.failed, "now": left },
    });
    print(&format!("{line}\n"))
}

struct RescoreSummary {
    old: f64,
    new: f64,
    correlation: Option<f64>,
    flips: usize,
}

impl RescoreSummary {
    fn of(pairs: &[RescoredPair]) -> Self {
        let (old, new): (Vec<f64>, Vec<f64>) = pairs.iter().map(|pair| (pair.old, pair.new)).unzip();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        Self {
            old: mean(&old),
            new: mean(&new),
            correlation: spearman(&old, &new),
            flips: pairs.iter().filter(|pair| pair.flips()).count(),
        }
    }
}

fn print_report(
    reporter: &Reporter,
    run: &str,
    script: &str,
    mut pairs: Vec<RescoredPair>,
    left_out: &LeftOut,
    (first, last): (u64, u64),
) -> Result<()> {
    let summary = RescoreSummary::of(&pairs);
    let steps = if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
    let trajectories = counted(pairs.len(), "trajectory", "trajectories");
    print(&format!("{run}, {steps}: {trajectories} under {script}\n\n"))?;
    let number = |value: f64| format!("{value:+.4}");
    let mut rows = vec![["mean of", "old", "new"].map(str::to_owned).to_vec()];
    rows.push(vec!["reward".to_owned(), number(summary.old), number(summary.new)]);
    let names: BTreeSet<&String> =
        pairs.iter().flat_map(|pair| pair.old_parts.keys().chain(pair.new_parts.keys())).collect();
    for name in names {
        let mean = |of: fn(&RescoredPair) -> &BTreeMap<String, f64>| {
            let rewards: Vec<f64> = pairs.iter().filter_map(|pair| of(pair).get(name).copied()).collect();
            if rewards.is_empty() { "-".to_owned() } else { number(rewards.iter().sum::<f64>() / rewards.len() as f64) }
        };
        rows.push(vec![name.clone(), mean(|pair| &pair.old_parts), mean(|pair| &pair.new_parts)]);
    }
    reporter.table(&rows);
    let correlation =
        summary.correlation.map_or_else(|| "undefined: one side is constant".to_owned(), |r| format!("{r:.3}"));
    print(&format!("\nrank correlation {correlation}\n"))?;
    let flips = if summary.flips == 0 {
        "no trajectory's advantage changes its sign".to_owned()
    } else {
        format!("{} of {} advantages change their sign", summary.flips, pairs.len())
    };
    print(&format!("{flips} (reward less the mean of the group)\n"))?;
    pairs.retain(|pair| pair.old.to_bits() != pair.new.to_bits());
    pairs.sort_by(|a, b| {
        let change = |pair: &RescoredPair| (pair.advantages.1 - pair.advantages.0).abs();
        change(b).total_cmp(&change(a)).then((b.new - b.old).abs().total_cmp(&(a.new - a.old).abs()))
    });
    if pairs.is_empty() {
        print("no reward changed\n")?;
    } else {
        let mut rows = vec![["changed most", "old", "new", "advantage", "now", "task"].map(str::to_owned).to_vec()];
        for pair in pairs.iter().take(SHOWN) {
            let task: String = pair.task.lines().next().unwrap_or_default().chars().take(40).collect();
            rows.push(vec![
                pair.id.clone(),
                number(pair.old),
                number(pair.new),
                number(pair.advantages.0),
                number(pair.advantages.1),
                task,
            ]);
        }
        print("\n")?;
        reporter.table(&rows);
    }
    let left = left_out.lines();
    if !left.is_empty() {
        let lines: Vec<String> = left.iter().map(|line| format!("  {line}\n")).collect();
        print(&format!("\nleft out:\n{}", lines.concat()))?;
    }
    Ok(())
}
