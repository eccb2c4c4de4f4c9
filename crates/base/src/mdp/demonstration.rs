//! A dataset row as a conversation for supervised fine-tuning. docs/guide/sft.md lists the
//! supported formats.

use serde_json::Value;

use super::conversation::{self, DatasetMessage, kind};
use super::{Invalid, Message, Role, ToolCall};
use crate::json;

/// A conversation for supervised fine-tuning.
#[derive(Clone, Debug, PartialEq)]
pub struct Demonstration {
    pub messages: Vec<Message>,
    /// One per message: whether it has a loss. Only assistant messages do.
    pub trained: Vec<bool>,
    /// JSON schemas of the tools in the prompt.
    pub tools: Vec<Value>,
    /// The tool-call format, if the row names one.
    pub format: Option<String>,
}

/// The format of a row, detected from its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowFormat {
    /// `messages`
    Messages,
    /// `prompt` and `completion`, text or messages
    Completion,
    /// ShareGPT: `conversations` of `{ from, value }`
    ShareGpt,
    /// Alpaca: `instruction`, `input` and `output`
    Alpaca,
}

impl RowFormat {
    fn of(row: &Value) -> Option<Self> {
        let has = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
        if has("messages") {
            Some(Self::Messages)
        } else if has("prompt") && has("completion") {
            Some(Self::Completion)
        } else if has("conversations") {
            Some(Self::ShareGpt)
        } else if has("instruction") && has("output") {
            Some(Self::Alpaca)
        } else {
            None
        }
    }
}

impl Demonstration {
    /// Whether the row has the columns of one of the formats.
    pub fn is_supported(row: &Value) -> bool {
        RowFormat::of(row).is_some()
    }

    /// Parses a row.
    ///
    /// # Errors
    /// The invalid column or message.
    pub fn read(row: &Value) -> Result<Self, Invalid> {
        let messages = match RowFormat::of(row) {
            Some(RowFormat::Messages) => conversation::messages(&row["messages"], "messages")?,
            Some(RowFormat::Completion) => completion(row)?,
            Some(RowFormat::ShareGpt) => share_gpt(row)?,
            Some(RowFormat::Alpaca) => alpaca(row)?,
            None => {
                return Err(Invalid::new(
                    "",
                    "the row has neither `messages` nor `prompt` and `completion` nor `conversations` nor \
                     `instruction` and `output`",
                ));
            }
        };
        let trained =
            messages.iter().map(|message| message.trained && message.message.role == Role::Assistant).collect();
        Ok(Self {
            messages: messages.into_iter().map(|message| message.message).collect(),
            trained,
            tools: conversation::tools(row.get("tools"))?,
            format: row.get("format").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

/// Text is the user's message and the reply; messages of the prompt have no loss.
fn completion(row: &Value) -> Result<Vec<DatasetMessage>, Invalid> {
    let mut messages = match &row["prompt"] {
        Value::String(text) => vec![plain(Role::User, text)],
        list => conversation::messages(list, "prompt")?,
    };
    for messages in &mut messages {
        messages.trained = false;
    }
    match &row["completion"] {
        Value::String(text) => messages.push(plain(Role::Assistant, text)),
        list => messages.extend(conversation::messages(list, "completion")?),
    }
    Ok(messages)
}

fn alpaca(row: &Value) -> Result<Vec<DatasetMessage>, Invalid> {
    let text = |name: &str| match row.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(Invalid::new(name, format!("is {}; it must be text", kind(other)))),
    };
    let (system, instruction, input) = (text("system")?, text("instruction")?, text("input")?);
    let prompt = if input.is_empty() { instruction.to_owned() } else { format!("{instruction}\n\n{input}") };
    let mut messages = Vec::new();
    if !system.is_empty() {
        messages.push(plain(Role::System, system));
    }
    messages.extend([plain(Role::User, &prompt), plain(Role::Assistant, text("output")?)]);
    Ok(messages)
}

fn share_gpt(row: &Value) -> Result<Vec<DatasetMessage>, Invalid> {
    const COLUMN: &str = "conversations";
    let list = match &row[COLUMN] {
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(Invalid::new(COLUMN, "is empty")),
        other => return Err(Invalid::new(COLUMN, format!("is {}; it must be a list", kind(other)))),
    };
    if list[0].get("role").is_some() {
        return conversation::messages(&row[COLUMN], COLUMN);
    }
    let mut messages: Vec<DatasetMessage> = Vec::new();
    if let Some(system) = row.get("system").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        messages.push(plain(Role::System, system));
    }
    for (index, item) in list.iter().enumerate() {
        let at = format!("{COLUMN}[{}]", index + 1);
        let text = |name: &str| {
            let text = item.get(name).and_then(Value::as_str);
            text.ok_or_else(|| Invalid::new(&at, format!("has no `{name}`")))
        };
        let (from, value) = (text("from")?, text("value")?);
        let role = match from {
            "system" => Role::System,
            "human" | "user" => Role::User,
            "gpt" | "assistant" | "chatgpt" | "bing" | "bard" | "model" | "function_call" => Role::Assistant,
            "tool" | "observation" | "function_response" => Role::Tool,
            other => {
                let senders = "`system`, `human`, `gpt`, `function_call`, `observation`";
                return Err(Invalid::new(format!("{at}.from"), format!("is \"{other}\"; it is one of {senders}")));
            }
        };
        if from == "function_call" {
            messages.push(calls(value, &at)?);
        } else {
            messages.push(plain(role, value));
        }
    }
    Ok(messages)
}

/// The JSON text of one call or of a list of calls.
fn calls(text: &str, at: &str) -> Result<DatasetMessage, Invalid> {
    let at = format!("{at}.value");
    let json = json::read(text.as_bytes()).map_err(|error| Invalid::new(&at, format!("is not JSON: {error}")))?;
    let list = json.as_array().cloned().unwrap_or_else(|| vec![json]);
    let mut message = plain(Role::Assistant, "");
    for call in &list {
        message.message.tool_calls.push(ToolCall::from_json(call).map_err(|error| error.inside(&at))?);
    }
    Ok(message)
}

fn plain(role: Role, text: &str) -> DatasetMessage {
    DatasetMessage { message: Message::new(role, text), trained: true }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::mdp::{Content, Part};

    /// Compares every field. `trained` has the positions of the messages with a loss.
    fn assert_read(row: &Value, messages: &[Message], trained: &[usize], tools: &[Value], format: Option<&str>) {
        let expected = Demonstration {
            messages: messages.to_vec(),
            trained: (0..messages.len()).map(|position| trained.contains(&position)).collect(),
            tools: tools.to_vec(),
            format: format.map(str::to_owned),
        };
        assert_eq!(Demonstration::read(row).unwrap(), expected);
    }

    fn calling(id: Option<&str>, name: &str, arguments: Value) -> Message {
        let call = ToolCall { id: id.map(str::to_owned), name: name.to_owned(), arguments };
        Message { tool_calls: vec![call], ..Message::assistant("") }
    }

    #[test]
    fn openai_and_hugging_face_rows_are_parsed() {
        let add = json!({"type": "function", "function": {"name": "add"}});
        let openai = json!({
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "1+1?"}], "name": null},
                {"role": "assistant", "content": "Let me guess: 3", "weight": 0},
                {"role": "user", "content": "Use the tool."},
                {"role": "assistant", "content": null, "refusal": null, "weight": 1, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "assistant", "content": "2", "reasoning_content": "Easy."},
            ],
            "tools": json!([add]).to_string(),
            "parallel_tool_calls": false,
            "format": "hermes",
        });
        let messages = [
            Message::system("Be brief."),
            Message::user(Content::Parts(vec![Part::Text { text: "1+1?".to_owned() }])),
            Message::assistant("Let me guess: 3"),
            Message::user("Use the tool."),
            calling(Some("c1"), "add", json!({"a": 1})),
            Message { tool_call_id: Some("c1".to_owned()), ..Message::tool("2") },
            Message { reasoning_content: Some("Easy.".to_owned()), ..Message::assistant("2") },
        ];
        assert_read(&openai, &messages, &[4, 6], &[add], Some("hermes"));
        let hugging_face = json!({"messages": [
            {"role": "user", "content": "1+1?", "tool_calls": null},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
        ], "tools": null});
        let messages = [Message::user("1+1?"), calling(None, "add", json!({"a": 1}))];
        assert_read(&hugging_face, &messages, &[1], &[], None);
    }

    #[test]
    fn sharegpt_alpaca_and_completion_rows_are_parsed() {
        let user = |text: &str| Message::user(text);
        let reply = |text: &str| Message::assistant(text);
        assert_read(&json!({"prompt": "1+1?", "completion": "2"}), &[user("1+1?"), reply("2")], &[1], &[], None);
        let of_messages = json!({
            "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                       {"role": "user", "content": "c"}],
            "completion": [{"role": "assistant", "content": "d"}],
        });
        assert_read(&of_messages, &[user("a"), reply("b"), user("c"), reply("d")], &[3], &[], None);
        let share_gpt = json!({"system": "S", "conversations": [
            {"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
            {"from": "observation", "value": "o"}, {"from": "gpt", "value": "b"}]});
        let messages = [Message::system("S"), user("a"), calling(None, "f", json!({})), Message::tool("o"), reply("b")];
        assert_read(&share_gpt, &messages, &[2, 4], &[], None);
        let alpaca = json!({"instruction": "Add.", "input": "1 1", "output": "2"});
        assert_read(&alpaca, &[user("Add.\n\n1 1"), reply("2")], &[1], &[], None);
        let without = json!({"instruction": "Add.", "input": "", "output": "2"});
        assert_read(&without, &[user("Add."), reply("2")], &[1], &[], None);
    }

    #[test]
    fn an_invalid_conversation_row_names_the_field() {
        let why = |row: Value| Demonstration::read(&row).unwrap_err().to_string();
        let path = |row: Value| Demonstration::read(&row).unwrap_err().path;
        assert!(why(json!({"text": "x"})).starts_with("the row has neither `messages`"));
        assert_eq!(why(json!({"messages": []})), "`messages` is empty");
        assert_eq!(why(json!({"messages": [{"content": "x"}]})), "messages[1] has no `role`");
        assert_eq!(path(json!({"messages": [{"role": "bot", "content": "x"}]})), "messages[1].role");
        let role = why(json!({"messages": [{"role": "bot", "content": "x"}]}));
        assert!(role.starts_with("messages[1].role is \"bot\"; it is one of `system`"), "{role}");
        let field = why(json!({"messages": [{"role": "user", "contents": "x"}]}));
        assert!(field.starts_with("messages[1] has the unknown field `contents`"), "{field}");
        let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]});
        assert!(
            why(json!({"messages": [call]})).starts_with("messages[1].tool_calls[1] has arguments that are not JSON")
        );
        assert_eq!(
            why(json!({"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]})),
            "messages[1].weight is 0.5; it is 0 or 1"
        );
        assert_eq!(why(json!({"prompt": "x", "completion": "y", "tools": 4})), "`tools` must be a list, not a number");
    }
}
