//! `r1 traj export`: selected trajectories as lines of JSON, or as a file of the store.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::args::OutputArgs;
use super::super::recorded::RecordedRun;
use super::super::traj_args::ExportArgs;
use super::super::{print, print_json};
use super::selected::{Damage, Selected};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Role, Trajectory};
use crate::script::{add_notes, trajectory_table};
use crate::store::{Curation, read_curation, write_atomic, write_selected};

/// What was written, and what was left out with the reason.
#[derive(Default)]
struct ExportCounts {
    written: usize,
    left_out: BTreeMap<NoExample, usize>,
}

/// Why a trajectory is no example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
enum NoExample {
    #[error("failed")]
    Failed,
    #[error("without a reply in its messages")]
    NoReply,
    #[error("with images")]
    Images,
    /// A note of `r1 view`.
    #[error("by a note")]
    Excluded,
}

impl ExportCounts {
    fn leave_out(&mut self, why: NoExample, count: usize) {
        if count > 0 {
            *self.left_out.entry(why).or_default() += count;
        }
    }
}

pub(super) fn run(args: &ExportArgs, output: OutputArgs) -> Result<()> {
    let selected = Selected::open(&args.selection, args.condition.as_deref(), output)?;
    let mut counts = ExportCounts::default();
    match &args.out {
        Some(path) if args.parquet => parquet(&selected, path, &mut counts)?,
        Some(path) => write_atomic(path, |file| {
            let failed = |error: &io::Error| Error::io(Kind::Store, "write the file", path, error);
            lines(args, &selected, &mut counts, &mut |line| writeln!(file, "{line}").map_err(|e| failed(&e)))
        })?,
        None => lines(args, &selected, &mut counts, &mut |line| print(&format!("{line}\n")))?,
    }
    // Standard output has the lines alone.
    let Some(path) = &args.out else { return Ok(()) };
    if output.json {
        let left_out = counts.left_out.iter().map(|(why, count)| (why.to_string(), *count));
        let left_out = left_out.collect::<BTreeMap<String, usize>>();
        return print_json(json!({
            "event": "export", "path": path, "written": counts.written, "left_out": left_out,
        }));
    }
    let left_out = counts.left_out.iter().map(|(why, count)| format!("; {count} left out: {why}"));
    let left_out = left_out.collect::<Vec<_>>().concat();
    selected.reporter.info(&format!("{} trajectories in {}{left_out}", counts.written, path.display()));
    Ok(())
}

/// Calls `each` for the selected trajectories of every file that can be read, with their notes.
/// Returns the number of those that a note leaves out.
fn each(selected: &Selected, mut each: impl FnMut(Trajectory, u64, Option<&Curation>) -> Result<()>) -> Result<usize> {
    let (mut damage, mut excluded) = (Damage::default(), 0);
    let notes = read_curation(selected.run.path())?;
    for file in &selected.files {
        let Some(scanned) = damage.or_warn(selected.scan(file, &["policy_version"]), &selected.reporter)? else {
            continue;
        };
        if scanned.rows.is_empty() {
            continue;
        }
        let read = selected.run.trajectories(file.split, file.step);
        let Some(trajectories) = damage.or_warn(read, &selected.reporter)? else { continue };
        let mut wanted = scanned.rows.iter().peekable();
        for (row, trajectory) in trajectories.into_iter().enumerate() {
            if wanted.next_if(|wanted| **wanted == row).is_some() {
                match notes.get(&trajectory.id) {
                    Some(notes) if notes.exclude => excluded += 1,
                    notes => each(trajectory, scanned.numbers("policy_version")[row] as u64, notes)?,
                }
            }
        }
    }
    damage.unless_all(selected.files.len()).map(|()| excluded)
}

fn parquet(selected: &Selected, path: &Path, counts: &mut ExportCounts) -> Result<()> {
    let (mut trajectories, mut versions) = (Vec::new(), Vec::new());
    let excluded = each(selected, |trajectory, version, _| {
        trajectories.push(trajectory);
        versions.push(version);
        Ok(())
    })?;
    counts.leave_out(NoExample::Excluded, excluded);
    counts.written = trajectories.len();
    write_selected(path, &versions, &trajectories)
}

fn lines(
    args: &ExportArgs,
    selected: &Selected,
    counts: &mut ExportCounts,
    write: &mut dyn FnMut(&Value) -> Result<()>,
) -> Result<()> {
    let mut tools = ToolSchemas::new(args, selected)?;
    let excluded = each(selected, |trajectory, _, notes| {
        let line = if args.jsonl {
            let mut table = trajectory_table(&trajectory, true, true);
            add_notes(&mut table, notes);
            Ok(table)
        } else {
            conversation(&trajectory).map(|messages| {
                let schemas = tools.of(&trajectory, selected);
                if args.openai { openai(messages, schemas) } else { with_tools(&messages, schemas) }
            })
        };
        match line {
            Ok(line) => {
                counts.written += 1;
                write(&line)
            }
            Err(why) => {
                counts.leave_out(why, 1);
                Ok(())
            }
        }
    })?;
    counts.leave_out(NoExample::Excluded, excluded);
    Ok(())
}

/// The messages up to the last reply, or the reason why it is no example.
fn conversation(trajectory: &Trajectory) -> Result<&[Message], NoExample> {
    if trajectory.status.is_failure() {
        return Err(NoExample::Failed);
    }
    // The images are in the run, and not in the file.
    if trajectory.messages.iter().any(|message| message.content.images().next().is_some()) {
        return Err(NoExample::Images);
    }
    let last = trajectory.messages.iter().rposition(|message| message.role == Role::Assistant);
    last.map(|last| &trajectory.messages[..=last]).ok_or(NoExample::NoReply)
}

fn with_tools(messages: &impl Serialize, tools: &[Value]) -> Value {
    if tools.is_empty() { json!({ "messages": messages }) } else { json!({ "messages": messages, "tools": tools }) }
}

/// A row of OpenAI's fine-tuning: arguments are text, a result names its call, and reasoning is
/// left out, which that format does not have.
fn openai(messages: &[Message], tools: &[Value]) -> Value {
    let (mut rows, mut open, mut number) = (Vec::new(), VecDeque::new(), 0);
    for message in messages {
        let text = message.content.text();
        let mut row = json!({ "role": message.role, "content": text });
        let mut calls = Vec::new();
        for call in &message.tool_calls {
            number += 1;
            let id = call.id.clone().unwrap_or_else(|| format!("call_{number}"));
            let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
            calls.push(json!({ "id": id, "type": "function", "function": function }));
            open.push_back(id);
        }
        if !calls.is_empty() {
            row["tool_calls"] = json!(calls);
        }
        if message.role == Role::Tool {
            let named = message.tool_call_id.as_ref().and_then(|id| open.iter().position(|other| other == id));
            match open.remove(named.unwrap_or(0)) {
                Some(id) => row["tool_call_id"] = json!(id),
                // The call is text of a format that is not OpenAI's.
                None => row["role"] = json!(Role::User),
            }
        }
        rows.push(row);
    }
    with_tools(&rows, tools)
}

/// The schemas of the tools of the run's scripts.
struct ToolSchemas {
    /// `None` if the format has none, or after a script that could not be opened.
    recorded: Option<RecordedRun>,
    by_hash: BTreeMap<String, Vec<Value>>,
}

impl ToolSchemas {
    fn new(args: &ExportArgs, selected: &Selected) -> Result<Self> {
        let open = || RecordedRun::open(selected.run.path(), &args.selection.runs_dir, None, Vec::new());
        let recorded = if args.jsonl { None } else { Some(open()?) };
        Ok(Self { recorded, by_hash: BTreeMap::new() })
    }

    fn of(&mut self, trajectory: &Trajectory, selected: &Selected) -> &[Value] {
        let recorded = &mut self.recorded;
        self.by_hash.entry(trajectory.script_hash.clone()).or_insert_with(|| {
            let script = recorded.as_mut().map(|recorded| recorded.script_of(trajectory, &selected.reporter));
            match script {
                Some(Ok(loaded)) => loaded.worker.tools().to_vec(),
                Some(Err(error)) => {
                    selected
                        .reporter
                        .warn(&format!("the rows have no tools, because the script can't be opened: {error}"));
                    Vec::new()
                }
                None => Vec::new(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mdp::{Demonstration, ToolCall, testing};

    fn trajectory() -> Trajectory {
        let call = |id: Option<&str>, name: &str| ToolCall {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            arguments: json!({ "a": 1 }),
        };
        let calling = Message {
            tool_calls: vec![call(None, "add"), call(Some("x"), "sub")],
            reasoning_content: Some("Hm.".to_owned()),
            ..Message::assistant("")
        };
        let named = Message { tool_call_id: Some("x".to_owned()), ..Message::tool("0") };
        let messages = vec![
            Message::user("1+1?"),
            calling,
            named,
            Message::tool("2"),
            Message::assistant("2"),
            Message::tool("by format"),
            Message::assistant("done"),
            Message::user("never answered"),
        ];
        Trajectory { messages, ..testing::trajectory(vec![testing::step(&[1], &[2])]) }
    }

    #[test]
    fn rows_of_openai_name_the_call_of_each_result() {
        let (one, tools) = (trajectory(), [json!({ "type": "function", "function": { "name": "add" } })]);
        let row = openai(conversation(&one).unwrap(), &tools);
        let messages = row["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 7);
        assert_eq!(messages[1]["tool_calls"][0]["function"], json!({ "name": "add", "arguments": "{\"a\":1}" }));
        assert_eq!(messages[1]["tool_calls"][0]["id"], "call_1");
        assert_eq!(messages[1].get("reasoning_content"), None);
        assert_eq!((&messages[2]["tool_call_id"], &messages[3]["tool_call_id"]), (&json!("x"), &json!("call_1")));
        assert_eq!((&messages[5]["role"], messages[5].get("tool_call_id")), (&json!("user"), None));
        assert_eq!(row["tools"], json!(tools));
    }

    #[test]
    fn rows_of_sft_are_read_as_the_same_messages() {
        let one = trajectory();
        let row = with_tools(&conversation(&one).unwrap(), &[]);
        let read = Demonstration::read(&row).unwrap();
        assert_eq!(read.messages, one.messages[..7]);
        assert_eq!(read.trained, [false, true, false, false, true, false, true]);
    }

    #[test]
    fn failures_and_conversations_without_a_reply_are_left_out() {
        let failed = Trajectory { status: crate::mdp::Status::EnvError, ..trajectory() };
        assert_eq!(conversation(&failed), Err(NoExample::Failed));
        let silent = Trajectory { messages: vec![Message::user("?")], ..trajectory() };
        assert_eq!(conversation(&silent), Err(NoExample::NoReply));
    }
}
