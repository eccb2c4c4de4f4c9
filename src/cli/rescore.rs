//! `r1 rescore`: stored trajectories under a changed script, with the new rewards next to the old
//! ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::args::{OutputArgs, RescoreArgs};
use super::recorded::{RecordedRun, stop_if_interrupted};
use super::{print_json, print_report};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Split, Trajectory};
use crate::rl::compare::{against_group, spearman};
use crate::rollout::Replayed;
use crate::script::Strictness;
use crate::telemetry::{ReportStyle, ctrl_c};

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

pub(super) fn run(args: RescoreArgs, output: OutputArgs) -> Result<()> {
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
    let summary = summary(&pairs, &left_out, range);
    if output.json {
        return pairs.iter().map(RescoredPair::as_json).chain([summary]).try_for_each(print_json);
    }
    let with_task = |pair: &RescoredPair| {
        let mut shown = pair.as_json();
        shown["task"] = pair.task.as_str().into();
        shown
    };
    let result = json!({
        "run": recorded.run.name(), "script": name, "summary": summary, "left_out": left_out.lines(),
        "pairs": pairs.iter().map(with_task).collect::<Vec<_>>(), "quiet": output.quiet,
    });
    print_report(include_str!("../../lua/reports/rescore.lua"), &result, ReportStyle::of(&reporter))
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

impl RescoredPair {
    fn as_json(&self) -> Value {
        json!({
            "event": "rescore", "id": self.id, "old": self.old, "new": self.new,
            "advantage": { "old": self.advantages.0, "new": self.advantages.1 }, "flips": self.flips(),
            "parts": { "old": self.old_parts, "new": self.new_parts },
        })
    }
}

fn summary(pairs: &[RescoredPair], left_out: &LeftOut, (first, last): (u64, u64)) -> Value {
    let (old, new): (Vec<f64>, Vec<f64>) = pairs.iter().map(|pair| (pair.old, pair.new)).unzip();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let left: Vec<Value> = left_out
        .now
        .iter()
        .map(|(reason, (first, count))| json!({ "reason": reason, "first": first, "count": count }))
        .collect();
    json!({
        "event": "summary", "steps": [first, last], "trajectories": pairs.len(), "old_mean": mean(&old),
        "new_mean": mean(&new), "rank_correlation": spearman(&old, &new),
        "sign_flips": pairs.iter().filter(|pair| pair.flips()).count(),
        "left_out": { "failed": left_out.failed, "now": left },
    })
}
