//! Tools in the system prompt, for chat templates that print none: the schemas of the tools, and a
//! call in the format's own syntax. The format's writer writes the call, so that its parser reads
//! it.

use serde_json::{Map, Value, json};

use super::Format;
use super::python;
use super::template::Template;
use r1_base::error::Result;
use r1_base::mdp::{DescribeTools, Role, ToolCall};

/// Optional arguments that an example has if none is required.
const OPTIONAL: usize = 2;

/// Nested values of an example.
const DEPTH: usize = 6;

/// How a template treats tools and system messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolSupport {
    /// It prints the same text without tools.
    pub hides_tools: bool,
    /// It prints a system message.
    pub takes_system: bool,
}

impl ToolSupport {
    /// Renders probes.
    pub(super) fn of(template: &Template) -> Self {
        const MARK: &str = "qXsystemXq";
        let tool = json!({"type": "function", "function": {"name": "probe", "description": "d", "parameters":
            {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}, "required": ["a"]}}});
        let user = json!({"role": Role::User.name(), "content": "u"});
        let system = json!({"role": Role::System.name(), "content": MARK});
        let tools = [tool];
        let render = |messages: &[&Value], tools: Option<&[Value]>| template.render(&messages, tools, true).ok();
        let hides = |messages: &[&Value]| {
            let without = render(messages, None);
            without.is_some() && without == render(messages, Some(&tools))
        };
        let takes_system = render(&[&system, &user], None).is_some_and(|text| text.contains(MARK));
        Self { hides_tools: hides(&[&user]) && (!takes_system || hides(&[&system, &user])), takes_system }
    }
}

/// Whether the host describes tools for a format that does not do so itself.
pub(super) fn is_wanted(wanted: DescribeTools, format: &Format, shown: ToolSupport) -> bool {
    match wanted {
        DescribeTools::Never => false,
        DescribeTools::Auto => format.rules().shows_tools && shown.hides_tools,
        DescribeTools::Always => shown.hides_tools || !format.rules().shows_tools,
    }
}

/// The text for the system prompt; `None` for a format that has no syntax to show.
///
/// # Errors
/// Errors of the format's writer.
pub(super) fn text(format: &Format, tools: &[Value], code_tool: &str) -> Result<Option<String>> {
    let (Some(syntax), Some(example)) = (format.rules().syntax, example(format, tools, code_tool)) else {
        return Ok(None);
    };
    let schemas: Vec<String> = tools.iter().map(python::dumps).collect();
    let call = format.write(String::new(), &[example])?;
    Ok(Some(format!("# Tools\n\nYou can use these tools:\n{}\n\n{syntax}\n{}", schemas.join("\n"), call.trim())))
}

/// The call that shows the syntax of a format. `None` without a tool that can be called.
fn example(format: &Format, tools: &[Value], code_tool: &str) -> Option<ToolCall> {
    (format.rules().example)(tools, code_tool).or_else(|| first_call(tools))
}

/// A call of the first tool, with a value for each required argument.
pub(super) fn first_call(tools: &[Value]) -> Option<ToolCall> {
    let function = &tools.first()?["function"];
    let name = function["name"].as_str()?.to_owned();
    Some(ToolCall { id: None, name, arguments: object(&function["parameters"], &function["parameters"], DEPTH) })
}

fn object(schema: &Value, root: &Value, depth: usize) -> Value {
    let properties = schema["properties"].as_object();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names: Vec<&str> = if required.is_empty() {
        properties.into_iter().flatten().map(|(name, _)| name.as_str()).take(OPTIONAL).collect()
    } else {
        required
    };
    let value = |name: &str| {
        properties
            .and_then(|properties| properties.get(name))
            .map_or_else(|| "…".into(), |property| sample(property, root, depth))
    };
    names.into_iter().map(|name| (name.to_owned(), value(name))).collect::<Map<_, _>>().into()
}

/// A value that fits a schema.
fn sample(schema: &Value, root: &Value, depth: usize) -> Value {
    if depth == 0 {
        return Value::Null;
    }
    let referred = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    let first = |name: &str| schema[name].as_array().and_then(|all| all.first());
    if let Some(schema) = referred.or_else(|| first("anyOf")).or_else(|| first("oneOf")).or_else(|| first("allOf")) {
        return sample(schema, root, depth - 1);
    }
    for name in ["const", "default"] {
        if let Some(value) = schema.get(name).filter(|value| !value.is_null()) {
            return value.clone();
        }
    }
    if let Some(value) = first("enum").or_else(|| first("examples")) {
        return value.clone();
    }
    let kind = schema["type"].as_str().or_else(|| first("type").and_then(Value::as_str));
    let bound = ["minimum", "maximum"].into_iter().find_map(|name| schema.get(name).filter(|value| value.is_number()));
    match kind.unwrap_or_default() {
        "integer" => bound.filter(|value| !value.is_f64()).cloned().unwrap_or_else(|| 1.into()),
        "number" => bound.cloned().unwrap_or_else(|| 1.5.into()),
        "boolean" => true.into(),
        "null" => Value::Null,
        "array" => Value::Array(vec![sample(&schema["items"], root, depth - 1)]),
        "object" => object(schema, root, depth - 1),
        _ if schema["properties"].is_object() => object(schema, root, depth - 1),
        _ => "…".into(),
    }
}

/// Puts a text into the system message, or before the first message of a conversation without one.
/// A template without system messages has it at the start of the first message of the user.
pub(super) fn put(messages: &mut Vec<Value>, text: &str, takes_system: bool) {
    let is = |message: &Value, role: Role| message["role"] == role.name();
    let first = messages.first().is_some_and(|message| is(message, Role::System));
    let message = if first || takes_system {
        messages.first_mut().filter(|_| first)
    } else {
        messages.iter_mut().find(|message| is(message, Role::User))
    };
    match message {
        Some(message) => {
            let content = message["content"].as_str().unwrap_or_default();
            let parts = if first { [content, text] } else { [text, content] };
            message["content"] = parts.join("\n\n").into();
        }
        None => messages.insert(0, json!({ "role": Role::System.name(), "content": text })),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::with_template;
    use crate::{Renderer, Style};
    use r1_base::mdp::Message;

    /// ChatML without tools.
    const BARE: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}\
        {%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

    fn tools() -> Vec<Value> {
        vec![
            json!({"type": "function", "function": {"name": "book", "description": "Books a \"room\".\nAsk first.", "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"}, "nights": {"type": "integer", "minimum": 2}, "price": {"type": "number"},
                    "sea": {"type": "boolean"}, "kind": {"enum": ["single", "double"]}, "day": {"const": "Mon"},
                    "guests": {"type": "array", "items": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}},
                    "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
                    "extra": {"type": ["object", "null"], "properties": {"a": {"type": "string", "default": "it's \"b\""}}},
                    "other": {"type": "string"}
                },
                "$defs": {"tag": {"type": "string", "examples": ["quiet"]}},
                "required": ["name", "nights", "price", "sea", "kind", "day", "guests", "notes", "tags", "extra"]
            }}}),
            json!({"type": "function", "function": {"name": "python", "description": "Runs code.", "parameters":
                {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}),
        ]
    }

    fn styled(template: &str, format: &str, describe: DescribeTools) -> std::sync::Arc<Renderer> {
        let renderer = with_template(template, "bare", format);
        let style = Style { describe, ..Style::of_format(crate::FormatChoice::named(format).unwrap()) };
        renderer.styled(&style).unwrap()
    }

    #[test]
    fn every_built_in_format_describes_calls_that_it_reads() {
        for format in Format::all() {
            let renderer = styled(BARE, format.name(), DescribeTools::Always);
            let prompt = renderer.prompt_text(&[Message::system("Be kind."), Message::user("q")], &tools()).unwrap();
            let system = prompt.split("<|im_end|>").next().unwrap();
            for wanted in ["Be kind.\n\n# Tools", "Books a \\\"room\\\".\\nAsk first.", "\"Runs code.\""] {
                assert!(system.contains(wanted), "{}: {system}", format.name());
            }
            let example = example(&format, &tools(), "python").unwrap();
            let written = format.write(String::new(), std::slice::from_ref(&example)).unwrap();
            assert!(system.ends_with(written.trim()), "{}: {system}", format.name());
            let reply = renderer.parse(&written, &tools()).unwrap();
            assert_eq!(reply.errors, [""; 0], "{}", format.name());
            let [call] = &reply.tool_calls[..] else { panic!("{}: {reply:?}", format.name()) };
            assert_eq!((&call.name, &call.arguments), (&example.name, &example.arguments), "{}", format.name());
            if example.name == "book" {
                crate::schema::check(&tools()[0]["function"]["parameters"], &call.arguments).unwrap();
            }
        }
    }

    #[test]
    fn tools_are_described_once_and_where_the_template_takes_text() {
        let text = |template: &str, format: &str, describe: DescribeTools, tools: &[Value]| {
            styled(template, format, describe).prompt_text(&[Message::user("q")], tools).unwrap()
        };
        let (auto, always, never) = (DescribeTools::Auto, DescribeTools::Always, DescribeTools::Never);
        let bare = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
        let shows = format!("{{{{ tools|tojson if tools else '' }}}}{BARE}");
        insta::assert_snapshot!(text(BARE, "hermes", auto, &tools()[1..]), @r#"
        <|im_start|>system
        # Tools

        You can use these tools:
        {"type": "function", "function": {"name": "python", "description": "Runs code.", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}

        To call one, write a JSON object with its name and arguments between <tool_call> and </tool_call>, a block for each call. The results are in the next message. For example:
        <tool_call>
        {"name": "python", "arguments": {"code": "…"}}
        </tool_call><|im_end|>
        <|im_start|>user
        q<|im_end|>
        <|im_start|>assistant
        "#);
        assert_eq!(text(BARE, "hermes", never, &tools()), bare);
        assert_eq!(text(BARE, "hermes", auto, &[]), bare);
        for describe in [auto, always, never] {
            assert!(!text(&shows, "hermes", describe, &tools()).contains("# Tools"));
        }
        // Formats that run code are described on request.
        assert_eq!(text(BARE, "retool", auto, &tools()), bare);
        insta::assert_snapshot!(text(BARE, "retool", always, &tools()[1..]), @r#"
        <|im_start|>system
        # Tools

        You can use these tools:
        {"type": "function", "function": {"name": "python", "description": "Runs code.", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}

        To run a program, write it between <code> and </code>. Its output follows between <interpreter> and </interpreter>, and you go on from there. For example:
        <code>
        print(6 * 7)
        </code><|im_end|>
        <|im_start|>user
        q<|im_end|>
        <|im_start|>assistant
        "#);
        // A template that refuses system messages, as Gemma 2's does.
        let strict = format!(
            "{{%- if messages[0].role == 'system' -%}}{{{{ raise_exception('no system') }}}}{{%- endif -%}}{BARE}"
        );
        let prompt = text(&strict, "hermes", auto, &tools()[1..]);
        assert!(
            prompt.starts_with("<|im_start|>user\n# Tools\n")
                && prompt.ends_with(&format!("\n\n{}", &bare["<|im_start|>user\n".len()..])),
            "{prompt}"
        );
        let renderer = styled(BARE, "hermes", auto);
        assert_eq!(renderer.hidden_tools(&tools()), None);
        assert!(styled(BARE, "hermes", never).hidden_tools(&tools()).unwrap().contains("`book`, `python`"));
        // The next prompt extends the first.
        let shown = [Message::user("q")];
        let prompt = renderer.prompt(&shown, &tools()).unwrap();
        let reply = "<tool_call>\n{\"name\": \"python\", \"arguments\": {\"code\": \"1\"}}\n</tool_call>";
        let response = renderer.tokenizer().encode(&format!("{reply}<|im_end|>")).unwrap();
        let now = [shown[0].clone(), Message::assistant(reply), Message::tool("1")];
        let crate::Extension::Appends(added) = renderer.extend(&shown, &response, reply, &now, &tools()).unwrap()
        else {
            panic!("the prompt is rendered again")
        };
        let whole = renderer.prompt(&now, &tools()).unwrap();
        assert_eq!([prompt, response, added].concat(), whole);
    }
}
