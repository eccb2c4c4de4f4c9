//! `r1 infer --input FILE --output FILE`: a reply to every row of a dataset, in their order.
//!
//! The output has a line of JSON for each row. A row is written when its reply has ended, so that
//! the same command continues after a kill.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::infer_args::InferArgs;
use super::chat::{Chat, QuestionAnswer};
use crate::data::{Dataset, find};
use crate::error::{Error, Kind, Result};
use crate::mdp::{FinishReason, Message, conversation};
use crate::store::find_model;
use crate::telemetry::{Interrupt, Reporter, counted};
use crate::train::with_images;

pub(super) struct RowReplies {
    data: Dataset,
    output: PathBuf,
    /// Rows that the file has already.
    done: u64,
    /// A hash of what the replies depend on besides the rows: the model, the script, the flags.
    settings: String,
}

/// How rows become prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowForm {
    /// As tasks of the recipe.
    Task,
    /// By the column `prompt` or `messages`.
    Question,
}

impl RowReplies {
    /// Opens the rows, and reads how many of them have a reply.
    ///
    /// # Errors
    /// [`Kind::Data`] for an unreadable dataset, and for a file of something else than replies to
    /// these rows with these settings.
    pub(super) fn open(input: &Path, output: &Path, args: &InferArgs) -> Result<Self> {
        let data = Dataset::open(&find(&[input.to_owned()], Path::new("."), None)?, None, &BTreeMap::new())?;
        let settings = settings_of(args);
        let done = replied(output, &data, &settings)?;
        Ok(Self { data, output: output.to_owned(), done, settings })
    }
}

/// A hash of the model, the script and the flags. Of a run it has the newest checkpoint.
fn settings_of(args: &InferArgs) -> String {
    let model = args.model.as_ref().map(PathBuf::from).map(|model| {
        let below = args.runs_dir.join(&model);
        let model = if !model.exists() && below.is_dir() { below } else { model };
        find_model(&model).unwrap_or(model)
    });
    let script = args.script.as_ref().map(|path| (path, std::fs::read(path).unwrap_or_default()));
    let agent = (model, &args.hf, &args.base, script, args.plain, &args.overrides, &args.system);
    let server = (&args.api_base, args.api);
    let sampling = (args.temperature, args.top_p, args.top_k, args.min_p, args.repetition_penalty, args.max_new_tokens);
    let others = (&args.reply_prefix, &args.template_arg, args.seed.unwrap_or(0));
    let digest = Sha256::digest(format!("{agent:?}{server:?}{sampling:?}{others:?}"));
    let mut digits = format!("{digest:x}");
    digits.truncate(12);
    digits
}

/// The number of complete lines of the file. An incomplete last line is cut off, if the file is one
/// of replies.
fn replied(output: &Path, data: &Dataset, settings: &str) -> Result<u64> {
    let failed = |error: &std::io::Error| Error::io(Kind::Data, "read the replies", output, error);
    let file = match OpenOptions::new().read(true).write(true).open(output) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(|error| failed(&error))?,
    };
    let (mut lines, mut count, mut length, mut last) = (BufReader::new(&file), 0, 0, String::new());
    let rest = loop {
        let mut line = String::new();
        let read = lines.read_line(&mut line).map_err(|error| failed(&error))?;
        if read == 0 || !line.ends_with('\n') {
            break line;
        }
        (count, length, last) = (count + 1, length + read as u64, line);
    };
    let other = |what: &str| {
        Err(Error::new(Kind::Data, format!("the file exists and has {what}"))
            .at_path(output)
            .hint("name another --output, or remove the file"))
    };
    let begins = format!("{{\"index\":{count},");
    let is_cut = begins.starts_with(&rest) || rest.starts_with(&begins);
    let last: Value = serde_json::from_str(&last).unwrap_or_default();
    let is_last = count == 0
        || (count <= data.len()
            && last["index"] == count - 1
            && last["row"] == Value::Object(data.raw_row(count - 1)?));
    if !is_cut || !is_last {
        return other("not the replies to the first rows of --input");
    }
    if count > 0 && last["settings"] != settings {
        return other("replies of another model, script or seed, or with other flags");
    }
    file.set_len(length).map_err(|error| failed(&error))?;
    Ok(count)
}

/// Replies to the rows that have none.
pub(super) fn run(
    chat: &mut Chat,
    rows: &RowReplies,
    args: &InferArgs,
    interrupt: Interrupt,
    reporter: &Reporter,
) -> Result<ExitCode> {
    let RowReplies { data, output, done, settings } = rows;
    let total = data.len();
    if *done > 0 {
        reporter.info(&format!("{} has {done} of {total} replies: continuing", output.display()));
    }
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the replies", output, error);
    let opened = OpenOptions::new().create(true).append(true).open(output);
    let mut file = opened.map_err(|error| failed(&error))?;
    file.seek(SeekFrom::End(0)).map_err(|error| failed(&error))?;
    let form = if total > *done { form(chat, data)? } else { RowForm::Question };
    let bar = reporter.bar("replying", total - done, "rows");
    let (mut refused, mut cut) = (0_usize, 0_usize);
    for index in *done..total {
        let row = data.raw_row(index)?;
        // A reply depends on its row and the seed alone.
        chat.begin_row(args.seed.unwrap_or(0) ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let answer = match form {
            RowForm::Task => chat.ask_task(Value::Object(row.clone())),
            RowForm::Question => question(chat, &Value::Object(row.clone())),
        };
        if interrupt.is_set() || answer.as_ref().is_ok_and(|answer| answer.stopped) {
            bar.finish();
            reporter.info(&format!("stopped after {index} of {total} rows; the same command continues"));
            return Ok(ExitCode::from(Kind::Interrupted.exit_code()));
        }
        let mut line = json!({ "index": index });
        match answer {
            Ok(answer) => {
                cut += usize::from(answer.finish == Some(FinishReason::Length));
                reply(&mut line, answer);
            }
            // The policy, the machine: no row has a reply.
            Err(error) if matches!(error.kind, Kind::Model | Kind::Device | Kind::Internal) => return Err(error),
            Err(error) => {
                refused += 1;
                line["error"] = error.message.into();
            }
        }
        line["settings"] = settings.as_str().into();
        line["row"] = Value::Object(row);
        writeln(&mut file, &line).map_err(|error| failed(&error))?;
        bar.inc(1);
    }
    bar.finish();
    if cut > 0 {
        reporter.warn(&format!("{} cut off (--max-new-tokens, the context)", counted(cut, "reply is", "replies are")));
    }
    reporter.info(&format!(
        "{} to {} in {}",
        counted(total as usize, "reply", "replies"),
        rows_of(args),
        output.display()
    ));
    if refused == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    reporter.warn(&format!("{} an `error` and no reply", counted(refused, "row has", "rows have")));
    Ok(ExitCode::from(Kind::Env.exit_code()))
}

fn rows_of(args: &InferArgs) -> String {
    args.input.as_ref().map(|input| input.display().to_string()).unwrap_or_default()
}

fn writeln(file: &mut File, line: &Value) -> std::io::Result<()> {
    file.write_all(format!("{line}\n").as_bytes())?;
    file.flush()
}

/// How rows become prompts: as tasks if the recipe's env accepts the first one.
fn form(chat: &mut Chat, data: &Dataset) -> Result<RowForm> {
    let first = Value::Object(data.raw_row(0)?);
    if chat.shows(&first)? {
        return Ok(RowForm::Task);
    }
    if first.get("prompt").is_some() || first.get("messages").is_some() {
        return Ok(RowForm::Question);
    }
    if chat.script.is_recipe {
        // A game shows no column of its tasks.
        return Ok(RowForm::Task);
    }
    let columns: Vec<String> = first.as_object().into_iter().flat_map(|row| row.keys().cloned()).collect();
    let why = "the rows have neither a column `prompt` nor `messages`";
    Err(Error::new(Kind::Data, why)
        .hint(format!("the columns are {}; with --script SCRIPT the rows are tasks of a recipe", columns.join(", "))))
}

/// Replies to the messages of a row.
fn question(chat: &mut Chat, row: &Value) -> Result<QuestionAnswer> {
    let messages = if row["messages"].is_array() { &row["messages"] } else { &row["prompt"] };
    let mut row = row.clone();
    row["messages"] = match messages.as_str() {
        Some(text) if chat.script.is_recipe => return chat.ask(text, &mut |_| ()),
        Some(text) => json!([{ "role": "user", "content": text }]),
        None => messages.clone(),
    };
    if !chat.script.is_recipe {
        with_images(&mut row, chat.script.renderer.images().map(AsRef::as_ref))?;
    }
    let rows = conversation::messages(&row["messages"], "messages").map_err(|invalid| {
        Error::new(Kind::Data, format!("the row has no readable `prompt` or `messages`: {invalid}"))
    })?;
    let mut messages: Vec<Message> = rows.into_iter().map(|rows| rows.message).collect();
    if chat.script.is_recipe {
        let last = messages.pop().map(|message| message.content.text()).unwrap_or_default();
        return chat.ask(&last, &mut |_| ());
    }
    chat.first = messages;
    chat.ask("", &mut |_| ())
}

fn reply(line: &mut Value, answer: QuestionAnswer) {
    line["reply"] = answer.text.into();
    if let Some(reasoning) = answer.reasoning {
        line["reasoning"] = reasoning.into();
    }
    line["finish_reason"] = answer.finish.map(FinishReason::name).into();
    line["tool_calls"] = json!(answer.tool_calls);
    line["tokens"] = answer.tokens.into();
}
