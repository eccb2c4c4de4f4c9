//! The output of a command: lines of text, or with `--json` one object on stdout, whose fields are
//! collected until the command ends.

use std::cell::RefCell;

use serde_json::{Map, Value, json};

use super::terminal::Terminal;
use crate::cli::{print, print_json};
use crate::error::Result;

/// The object of the current command.
#[derive(Default)]
pub(super) struct CommandAnswer {
    command: String,
    fields: Map<String, Value>,
}

/// With `--json`, the object that collects the fields.
pub(super) type Answers = Option<RefCell<CommandAnswer>>;

impl Terminal {
    /// Whether results are JSON objects.
    pub(super) fn is_json(&self) -> bool {
        self.answers.is_some()
    }

    /// Starts the object of `command`.
    pub(super) fn begin(&self, command: &str) {
        if let Some(answer) = &self.answers {
            command.clone_into(&mut answer.borrow_mut().command);
        }
    }

    /// Prints the object of the current command, if any.
    pub(super) fn finish(&self) -> Result<()> {
        let Some(answer) = &self.answers else { return Ok(()) };
        let CommandAnswer { command, fields } = answer.take();
        if command.is_empty() {
            return Ok(());
        }
        object("answer", &command, fields)
    }

    /// A result: a text, or the field `name`.
    pub(super) fn result(&self, name: &str, text: &str, value: impl FnOnce() -> Value) -> Result<()> {
        let Some(answer) = &self.answers else { return print(&format!("{}\n", text.trim_end_matches('\n'))) };
        answer.borrow_mut().fields.insert(name.to_owned(), value());
        Ok(())
    }

    /// One of several results: a text, or the next item of the list `name`.
    pub(super) fn item(&self, name: &str, text: &str, value: impl FnOnce() -> Value) -> Result<()> {
        let Some(answer) = &self.answers else { return self.result(name, text, value) };
        let value = value();
        let mut answer = answer.borrow_mut();
        match answer.fields.get_mut(name) {
            Some(Value::Array(items)) => items.push(value),
            _ => drop(answer.fields.insert(name.to_owned(), json!([value]))),
        }
        Ok(())
    }

    /// A remark on the terminal, or a field.
    pub(super) fn remark(&self, name: &str, text: &str, value: impl FnOnce() -> Value) -> Result<()> {
        if self.is_json() {
            return self.result(name, text, value);
        }
        self.note(text);
        Ok(())
    }

    /// A line printed or logged by the script.
    pub(super) fn log(&self, location: &str, text: &str) -> Result<()> {
        self.item("log", &format!("{location}: {text}"), || json!({ "place": location, "text": text }))
    }

    /// Prints that the script has stopped at a breakpoint, and returns the fields of the
    /// interrupted command.
    pub(super) fn halt(&self, location: &str, source: &str, text: &str) -> Result<CommandAnswer> {
        let Some(answer) = &self.answers else {
            return self.result("", text, || Value::Null).map(|()| CommandAnswer::default());
        };
        let fields = [("place", json!(location)), ("source", json!(source))];
        object("halt", "", fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())?;
        Ok(answer.take())
    }

    /// Continues with the fields of the interrupted command.
    pub(super) fn go_on(&self, kept: CommandAnswer) {
        if let Some(answer) = &self.answers {
            answer.replace(kept);
        }
    }
}

fn object(event: &str, command: &str, fields: Map<String, Value>) -> Result<()> {
    let mut object = Map::from_iter([("event".to_owned(), json!(event))]);
    if !command.is_empty() {
        object.insert("command".to_owned(), json!(command));
    }
    object.extend(fields);
    print_json(Value::Object(object))
}
