//! Hermes: calls are JSON objects between `<tool_call>` tags, as many as the policy likes; results come back in a
//! turn of their own, which the chat template writes (role `tool`). Qwen2.5 and Qwen3 were trained on it.

use std::fmt::Write;

use serde_json::Value;

use super::format::{Reply, Turn, split_reasoning};
use super::python;
use crate::mdp::{Message, Role, ToolCall};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// One message, one turn. Calls are written into the content as the policy would have, so that what a prompt shows
/// of an old reply is what the format asks for, whatever style the chat template prefers.
pub(super) fn turn(message: &Message) -> Turn {
    let mut text = message.content.text();
    if message.role == Role::Assistant && !text.contains(OPEN) {
        for call in &message.tool_calls {
            if !text.is_empty() {
                text.push('\n');
            }
            let name = python::dumps(&Value::from(call.name.as_str()));
            let arguments = python::dumps(&call.arguments);
            // Writing to a string can't fail.
            let _ = write!(text, "{OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CLOSE}");
        }
    }
    Turn {
        reasoning: message.reasoning_content.clone().filter(|reasoning| !reasoning.is_empty()),
        name: message.name.clone(),
        tool_call_id: message.tool_call_id.clone(),
        ..Turn::new(message.role, text)
    }
}

/// Reads a reply. Never fails: what can't be read is told in `errors`.
pub(super) fn parse(text: &str, thinking: bool) -> Reply {
    // A call ends a thought that is not finished otherwise.
    let call = if text.contains("</think>") { None } else { text.find(OPEN) };
    let (thought, calls) = text.split_at(call.unwrap_or(text.len()));
    let (reasoning, answer) = split_reasoning(thought, thinking);
    let answer = if calls.is_empty() { answer.to_owned() } else { format!("{answer}{calls}") };
    let mut reply = Reply { reasoning: reasoning.map(str::to_owned), ..Reply::default() };
    let (mut content, mut rest) = (String::new(), answer.as_str());
    let mut number = 0;
    while let Some(start) = rest.find(OPEN) {
        content.push_str(&rest[..start]);
        number += 1;
        let block = &rest[start + OPEN.len()..];
        let (call, used) = read_call(block);
        match call {
            Ok(call) => reply.tool_calls.push(call),
            Err(why) => reply.errors.push(format!("Tool call {number} can't be read: {why}.")),
        }
        rest = &block[used..];
    }
    content.push_str(rest);
    content.trim().clone_into(&mut reply.content);
    reply
}

/// One call behind its opening tag, and how many bytes it takes, closing tag included.
fn read_call(block: &str) -> (Result<ToolCall, String>, usize) {
    // The JSON reader finds the end of the object, so that a `</tool_call>` inside a string doesn't end the call.
    let mut stream = serde_json::Deserializer::from_str(block).into_iter::<Value>();
    let value = match stream.next() {
        Some(Ok(value)) => value,
        None => return (Err("nothing stands between the tags".to_owned()), block.len()),
        Some(Err(error)) => {
            // Go on behind the closing tag, or at the next call, whichever comes first.
            let close = block.find(CLOSE).map(|at| at + CLOSE.len());
            let next = block.find(OPEN);
            let end = close.into_iter().chain(next).min().unwrap_or(block.len());
            let inside = block[..block.find(CLOSE).unwrap_or(end).min(end)].trim();
            let why = if inside.is_empty() {
                "nothing stands between the tags".to_owned()
            } else if error.is_eof() && close.is_none() {
                format!("it is cut off, {CLOSE} is missing")
            } else {
                format!("not valid JSON, {error}")
            };
            return (Err(why), end);
        }
    };
    let used = stream.byte_offset();
    let behind = &block[used..];
    let gap = behind.len() - behind.trim_start().len();
    let end = if behind[gap..].starts_with(CLOSE) {
        used + gap + CLOSE.len()
    } else if behind.trim().is_empty() {
        // The end of the reply serves as the closing tag.
        block.len()
    } else {
        let end = behind.find(CLOSE).map(|at| used + at + CLOSE.len()).into_iter();
        let end = end.chain(behind.find(OPEN).map(|at| used + at)).min().unwrap_or(block.len());
        return (Err(format!("something stands between the JSON object and {CLOSE}")), end);
    };
    (call_of(value), end)
}

fn call_of(value: Value) -> Result<ToolCall, String> {
    let Value::Object(mut object) = value else {
        return Err(format!("expected a JSON object with `name` and `arguments`, found {}", kind(&value)));
    };
    let name = match object.remove("name") {
        Some(Value::String(name)) if !name.is_empty() => name,
        Some(other) => return Err(format!("`name` must be a non-empty string, found {}", kind(&other))),
        None => return Err("`name` is missing".to_owned()),
    };
    let arguments = match object.remove("arguments").or_else(|| object.remove("parameters")) {
        None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
        Some(Value::Object(arguments)) => Value::Object(arguments),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(arguments)) => Value::Object(arguments),
            Ok(other) => return Err(format!("`arguments` must be a JSON object, found {}", kind(&other))),
            Err(error) => return Err(format!("`arguments` is a string that is not valid JSON, {error}")),
        },
        Some(other) => return Err(format!("`arguments` must be a JSON object, found {}", kind(&other))),
    };
    Ok(ToolCall { id: None, name, arguments })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty string",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use serde_json::json;

    use super::*;
    use crate::text::testing::shared;

    fn calls(reply: &Reply) -> Vec<(&str, String)> {
        reply.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.to_string())).collect()
    }

    #[test]
    fn calls_are_read_wherever_they_stand() {
        let reply = parse(
            "<think>\nhm\n</think>\n\nFirst.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n\
             </tool_call><tool_call>{\"arguments\": \"{\\\"b\\\": 2}\", \"name\": \"g\"}</tool_call> then \
             <tool_call> {\"name\": \"h\"} ",
            false,
        );
        assert_eq!(reply.reasoning.as_deref(), Some("hm"));
        assert_eq!(reply.content, "First.\n then");
        let expected = [("f", r#"{"a":"</tool_call>"}"#), ("g", r#"{"b":2}"#), ("h", "{}")];
        assert_eq!(calls(&reply), expected.map(|(name, arguments)| (name, arguments.to_owned())));
        assert_eq!(reply.errors, Vec::<String>::new());
    }

    /// What a policy is told about a call that can't be read, and that the calls around it are read all the same.
    #[test]
    fn malformed_calls_are_told_in_words() {
        for (block, error) in [
            ("{\"name\": \"f\", \"arguments\": {\"a\": 1}", "not valid JSON, expected `,` or `}` at line 1 column 36"),
            ("{\"name\": \"f\", \"arguments\": {'a': 1}}", "not valid JSON, key must be a string at line 1 column 29"),
            ("{\"name\": \"f\" \"arguments\": {}}", "not valid JSON, expected `,` or `}` at line 1 column 14"),
            ("f(1)", "not valid JSON, expected ident at line 1 column 2"),
            ("", "nothing stands between the tags"),
            (" \n ", "nothing stands between the tags"),
            ("[1]", "expected a JSON object with `name` and `arguments`, found a list"),
            ("{\"arguments\": {}}", "`name` is missing"),
            ("{\"name\": 3, \"arguments\": {}}", "`name` must be a non-empty string, found a number"),
            ("{\"name\": \"f\", \"arguments\": [1]}", "`arguments` must be a JSON object, found a list"),
            (
                "{\"name\": \"f\", \"arguments\": \"x=1\"}",
                "`arguments` is a string that is not valid JSON, expected value at line 1 column 1",
            ),
            ("{\"name\": \"f\"} {\"name\": \"g\"}", "something stands between the JSON object and </tool_call>"),
        ] {
            let good = "<tool_call>{\"name\": \"ok\"}</tool_call>";
            let reply = parse(&format!("{good}<tool_call>{block}</tool_call>\n{good}"), false);
            assert_eq!(reply.errors, [format!("Tool call 2 can't be read: {error}.")], "{block}");
            assert_eq!(reply.tool_calls.len(), 2, "{block}");
            assert_eq!(reply.content, "", "{block}");
        }
        let reply = parse("a <tool_call>{\"name\": \"f", false);
        assert_eq!(reply.errors, ["Tool call 1 can't be read: it is cut off, </tool_call> is missing."]);
        assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("a", 0));
        assert_eq!(parse("a </tool_call> b", false).content, "a </tool_call> b");
    }

    #[test]
    fn a_call_ends_an_unfinished_thought() {
        let reply = parse("<think>I need f.\n<tool_call>{\"name\": \"f\"}</tool_call>", false);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("I need f."), ""));
        assert_eq!(calls(&reply), [("f", "{}".to_owned())]);
        // One that is only thought about is none.
        let reply = parse("<think>maybe <tool_call>{\"name\": \"f\"}</tool_call></think>no", false);
        assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("no", 0));
    }

    #[test]
    fn calls_in_a_message_are_written_as_the_policy_writes_them() {
        let mut message = Message::assistant("Let me see.");
        message.tool_calls =
            vec![ToolCall { id: None, name: "f".to_owned(), arguments: json!({"a": [1, 2.0], "b": "é\n"}) }];
        let text = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.0], \"b\": \"é\\n\"}}\n</tool_call>";
        assert_eq!(turn(&message).content(), text);
        assert_eq!(parse(text, false).tool_calls, message.tool_calls);
        message.content = text.into();
        assert_eq!(turn(&message).content(), text);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "(<tool_call>|</tool_call>|<think>|</think>|[{}\":,]|name|arguments|\\PC|\n){0,40}") {
            for thinking in [false, true] {
                let reply = parse(&text, thinking);
                proptest::prop_assert!(reply.tool_calls.len() + reply.errors.len() <= text.matches(OPEN).count());
            }
        }
    }

    /// Recorded cases of vLLM, SGLang and llama.cpp. Prints how many agree.
    #[test]
    fn recorded_cases_agree() {
        let Some(dir) = shared("tool-call-parsers") else { return };
        let (mut good, mut other, mut wrong) = (0, 0, Vec::new());
        for line in std::fs::read_to_string(dir.join("main_families.jsonl")).unwrap().lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            if row["family"] != "hermes" {
                continue;
            }
            let input = match row["kind"].as_str().unwrap() {
                "stream" => row["chunks"].as_array().unwrap().iter().filter_map(Value::as_str).collect(),
                _ => row["input"].as_str().unwrap().to_owned(),
            };
            // llama.cpp's old parser also took bare JSON, <function=…> and code fences for calls; none is Hermes.
            if !input.contains(OPEN) && row["expected"]["calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
                other += 1;
                continue;
            }
            let options = &row["options"];
            let thinking = options["thinking_forced_open"] == true
                || options["generation_prompt"].as_str().is_some_and(|prompt| prompt.ends_with("<think>\n"));
            let reply = parse(&input, thinking);
            let agrees = if row["kind"] == "has_tool_call" {
                row["expected"] == (!reply.tool_calls.is_empty())
            } else {
                let expected: Vec<(String, Value)> = row["expected"]["calls"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|call| {
                        let text = call["arguments"].as_str().unwrap();
                        (call["name"].as_str().unwrap().to_owned(), serde_json::from_str(text).unwrap_or(Value::Null))
                    })
                    .collect();
                let found: Vec<(String, Value)> =
                    reply.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
                let content = row["expected"]["content"].as_str().unwrap_or_default().trim().to_owned();
                let reasoning = row["expected"]["reasoning_content"].as_str().unwrap_or_default().trim();
                found == expected
                    && content == reply.content
                    && reply.reasoning.as_deref().unwrap_or_default() == reasoning
            };
            if agrees {
                good += 1;
            } else {
                wrong.push(format!("{}\n  {reply:?}", serde_json::to_string(&row).unwrap()));
            }
        }
        eprintln!("hermes cases: {good} of {} agree; {other} are not Hermes", good + wrong.len());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
