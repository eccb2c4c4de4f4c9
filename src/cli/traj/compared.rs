//! `r1 traj diff`: two trajectories, by field, by token and as conversations.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::super::args::OutputArgs;
use super::super::recorded::{Id, RecordedRun};
use super::super::traj_args::DiffArgs;
use super::super::{diff, print, print_json, print_report};
use super::selected::harmless;
use crate::error::{Error, Kind, Result, without_control_characters};
use crate::mdp::{Split, Trajectory};
use crate::telemetry::ReportStyle;

pub(super) fn run(args: &DiffArgs, output: OutputArgs) -> Result<()> {
    let (run, id) = match args.second.rsplit_once(':') {
        Some((run, id)) => (PathBuf::from(run), id),
        None => (args.run.clone(), args.second.as_str()),
    };
    let second_id: Id = id.parse().map_err(|why| Error::new(Kind::Usage, format!("`{id}` {why}")).at("[RUN:]ID"))?;
    let first = single(&args.run, &args.runs_dir, &args.first)?;
    let second = single(&run, &args.runs_dir, &second_id)?;
    let fields = fields(&first, &second);
    let tokens = first_token(&first, &second);
    if output.json {
        let same = first.messages == second.messages;
        return print_json(json!({
            "event": "diff", "first": first.id, "second": second.id, "fields": fields, "first_token": tokens,
            "same_messages": same,
        }));
    }
    let reporter = output.reporter();
    let lengths = [&first, &second].map(|one| one.steps.iter().map(|step| step.response_ids.len()).collect::<Vec<_>>());
    let mut result = json!({
        "first": first.id, "second": second.id, "fields": fields, "first_token": tokens, "lengths": lengths,
    });
    harmless(&mut result);
    print_report(include_str!("../../../lua/reports/traj_diff.lua"), &result, ReportStyle::of(&reporter))?;
    let [was, is] = [&first, &second].map(|one| without_control_characters(&conversation(one)).into_owned());
    if was == is {
        print("the conversations are equal\n")
    } else {
        print(&diff::lines(&was, &is, reporter.is_coloured()))
    }
}

/// The trajectory that an id names.
fn single(run: &Path, runs_dir: &Path, id: &Id) -> Result<Trajectory> {
    let recorded = RecordedRun::open(run, runs_dir, None, Vec::new())?;
    let ids = std::slice::from_ref(id);
    let mut named = Vec::new();
    for step in recorded.steps(Split::Train, ids, 0)? {
        named.extend(recorded.trajectories(step, ids)?);
    }
    let count = named.len();
    match named.pop() {
        Some(trajectory) if count == 1 => Ok(trajectory),
        _ => Err(Error::new(Kind::Usage, format!("`{id}` names {count} trajectories; two single ones are compared"))
            .hint("an id is STEP-GROUP-SAMPLE, such as 12-3-0")),
    }
}

/// The fields that differ, with both values.
fn fields(first: &Trajectory, second: &Trajectory) -> Map<String, Value> {
    let of = |one: &Trajectory| {
        let mut fields = Map::from_iter([
            ("task".to_owned(), one.task.clone()),
            ("status".to_owned(), json!(one.status)),
            ("dropped".to_owned(), json!(one.dropped)),
            ("reward".to_owned(), json!(one.total_reward())),
            ("steps".to_owned(), json!(one.steps.len())),
            ("tokens".to_owned(), json!(one.response_tokens())),
            ("tool_calls".to_owned(), json!(one.tool_calls())),
            ("error".to_owned(), json!(one.error_text())),
            ("script_hash".to_owned(), json!(one.script_hash)),
        ]);
        fields.extend(one.reward_parts.iter().map(|(name, value)| (format!("reward_parts.{name}"), json!(value))));
        fields
    };
    let (first, second) = (of(first), of(second));
    let names = first.keys().chain(second.keys().filter(|name| !first.contains_key(*name)));
    let pair = |name: &String| (first.get(name).cloned(), second.get(name).cloned());
    let differ = names.filter(|name| pair(name).0 != pair(name).1);
    differ.map(|name| (name.clone(), json!([pair(name).0, pair(name).1]))).collect()
}

/// The first place where prompt or reply differ: step, part and index of the token; null if none
/// differs.
fn first_token(first: &Trajectory, second: &Trajectory) -> Value {
    let differs = |a: &[u32], b: &[u32]| {
        let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        (same < a.len().max(b.len())).then_some(same)
    };
    for (number, (a, b)) in first.steps.iter().zip(&second.steps).enumerate() {
        for (part, a, b) in [("prompt", &a.prompt_ids, &b.prompt_ids), ("reply", &a.response_ids, &b.response_ids)] {
            if let Some(index) = differs(a, b) {
                return json!({ "step": number, "part": part, "token": index });
            }
        }
    }
    let steps = first.steps.len().min(second.steps.len());
    if first.steps.len() == second.steps.len() { Value::Null } else { json!({ "step": steps }) }
}

/// The messages as lines: the role before the first one.
fn conversation(trajectory: &Trajectory) -> String {
    let mut text = String::new();
    for message in &trajectory.messages {
        let _ = writeln!(text, "[{}] {}", message.role.name(), message.content.text());
        for call in &message.tool_calls {
            let _ = writeln!(text, "→ {} {}", call.name, call.arguments);
        }
    }
    text
}
