//! Tool-call formats that a recipe defines.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::mdp::Message;
use crate::text::{Renderer, Reply};

/// A recipe whose format is `r1.format { FIELDS }`, with an environment that uses it.
fn with_format(fields: &str) -> String {
    format!("local own = r1.format {{\n{fields}\n}}\n{}", recipe("local env = r1.env { format = own }"))
}

fn renderer(bench: &Bench) -> Result<Arc<Renderer>, String> {
    let script = bench.load(&[]).map_err(|error| bench.show(error))?;
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    Ok(Arc::new(Renderer::load_styled(&nano, &script.style().unwrap()).unwrap()))
}

fn parsed(fields: &str, reply: &str) -> Result<Reply, String> {
    let bench = Bench::new(&with_format(fields));
    let renderer = renderer(&bench)?;
    renderer.parse(reply, &[json!({ "type": "function" })]).map_err(|error| bench.show(error))
}

/// The message for a `parse` that returns this.
fn nonsense(returned: &str) -> String {
    parsed(&format!("parse = function(text)\n  return {returned}\nend"), "x").expect_err("this must be refused")
}

#[test]
fn a_custom_format_parses_the_reply() {
    let fields = r#"
name = "lines", starts = { "CALL " },
parse = function(text, tools)
  local calls = {}
  for name, value in text:gmatch("CALL (%w+) (%w*)") do
    if value == "" then table.insert(calls, { error = name .. " has no value." })
    else table.insert(calls, { name = name, arguments = { value = value, tools = #tools }, id = "c" .. #calls }) end
  end
  return calls
end"#;
    let reply = parsed(fields, "<think>hm</think>So:\nCALL f 1\nCALL g \n").unwrap();
    assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "So:"));
    let expected =
        ToolCall { id: Some("c0".to_owned()), name: "f".to_owned(), arguments: json!({ "value": "1", "tools": 1 }) };
    assert_eq!(reply.tool_calls, [expected]);
    assert_eq!(reply.errors, ["g has no value."]);
    // nil and a message is a malformed call; no value means that there is no call.
    assert_eq!(parsed("parse = function() return nil, 'No.' end", "x").unwrap().errors, ["No."]);
    let none = parsed("parse = function() end", " x ").unwrap();
    assert_eq!((none.content.as_str(), none.tool_calls.len(), none.errors.len()), ("x", 0, 0));
    // A format may parse the thinking text itself.
    let whole = parsed("thinking = false, parse = function(text) return nil, text end", "<think>a</think>b").unwrap();
    assert_eq!(whole.errors, ["<think>a</think>b"]);
}

#[test]
fn results_of_a_format_are_validated_by_field() {
    let wanted = "it must return a list of calls { name =, arguments = } or { error = }\n  --> x.lua:2";
    let message = |why: &str| format!("`parse` of the format `custom` returned {why}");
    assert_eq!(nonsense("5"), message(&format!("the number 5; {wanted}")));
    assert_eq!(nonsense("{ name = 'f' }"), message(&format!("a call instead of a list of calls: {wanted}")));
    assert_eq!(nonsense("{ calls = {} }"), message(&format!("a list with the field `calls`; {wanted}")));
    assert_eq!(nonsense("{ nil, { name = 'f' } }"), message(&format!("a list with gaps; {wanted}")));
    for (returned, why) in [
        ("nil, 5", "nil and the number 5; the second value must be an error message"),
        ("{ 'f' }", "calls[1] = the text \"f\"; a call is { name =, arguments = } or { error = }"),
        ("{ {} }", "calls[1] without `name`"),
        ("{ { name = 'f' }, { name = 3 } }", "calls[2].name = the number 3; it must be a text that is not empty"),
        ("{ { name = 'f', error = 'x' } }", "calls[1] with both `name` and `error`"),
        (
            "{ { name = 'f', arguments = 'x' } }",
            "calls[1].arguments = the text \"x\"; it must be a table of named arguments",
        ),
        (
            "{ { name = 'f', arguments = { 1 } } }",
            "calls[1].arguments = a table; it must be a table of named arguments",
        ),
        (
            "{ { name = 'f', argumnets = {} } }",
            "calls[1] with the unknown field `argumnets`; did you mean `arguments`?",
        ),
    ] {
        assert_eq!(nonsense(returned), format!("{}\n  --> x.lua:2", message(why)), "{returned}");
    }
    let function = nonsense("{ { name = 'f', arguments = { x = print } } }");
    assert!(function.starts_with(&message("calls[1].arguments.x is a function")), "{function}");
}

#[test]
fn an_error_inside_parse_names_its_line() {
    let error = parsed("parse = function(text)\n  local t = nil\n  return t.x\nend", "x").unwrap_err();
    assert_eq!(error, "`parse` of the format `custom`: attempt to index nil with 'x'\n  --> x.lua:4");
    let error = parsed("parse = function(text)\n  while true do end\nend", "x").unwrap_err();
    assert!(
        error.starts_with("`parse` of the format `custom`: format used more than") && error.contains("x.lua:"),
        "{error}"
    );
}

#[test]
fn a_custom_format_is_validated_when_the_recipe_is_loaded() {
    let parse = "parse = function() end";
    for (fields, message) in [
        ("", "r1.format: needs `parse`, a function that reads the calls of a reply\n  --> x.lua:1"),
        ("parse = 1", "r1.format: `parse` must be a function, got the number 1\n  --> x.lua:2"),
        ("parze = print", "r1.format: unknown field `parze`\n  --> x.lua:2\n  hint: did you mean `parse`?"),
        ("name = 'hermes',", "r1.format: `name` is \"hermes\", the name of a built-in format\n  --> x.lua:2"),
        ("name = 'auto',", "r1.format: `name` is \"auto\", the name of a built-in format\n  --> x.lua:2"),
        ("name = 'a b',", "r1.format: `name` must be a word\n  --> x.lua:2"),
        (
            "stop = 'x',",
            "r1.format: `stop` must be a list of texts that are not empty, got the text \"x\"\n  --> x.lua:2",
        ),
        (
            "starts = { '' },",
            "r1.format: `starts` must be a list of texts that are not empty, got a table\n  --> x.lua:2",
        ),
        ("thinking = 1,", "r1.format: `thinking` must be true or false, got the number 1\n  --> x.lua:2"),
        (
            "same_turn = true,",
            "r1.format: `same_turn` needs `stop`: the strings after which a response waits for tool results\n  --> x.lua:2",
        ),
    ] {
        let fields = if fields.ends_with(',') { format!("{fields} {parse}") } else { fields.to_owned() };
        assert_eq!(refused(&with_format(&fields)), message, "{fields}");
    }
    let twice =
        format!("local function f() return r1.format {{ {parse} }} end\nf()\nf()\n{}", recipe("local env = r1.env {}"));
    assert_eq!(
        refused(&twice),
        "r1.format: two formats are called `custom`\n  --> x.lua:1\n  hint: give each a `name` of its own"
    );
    let wrong = "local env = r1.env {\n  format = {},\n}";
    assert_eq!(
        refused(&recipe(wrong)),
        "r1.env: `format` must be a name, or a result of r1.format, got a table\n  --> x.lua:2"
    );
}

#[test]
fn a_format_is_chosen_by_its_name() {
    let bench = Bench::new(&format!(
        "r1.format {{ name = 'mine', parse = function() end }}\n{}",
        recipe("local env = r1.env { format = 'mine' }")
    ));
    let format = |overrides: &[&str]| bench.load(overrides).map(|script| script.settings.env.format.clone());
    assert_eq!(format(&[]).unwrap(), "mine");
    assert_eq!(format(&["env.format=hermes"]).unwrap(), "hermes");
    let error = bench.show(format(&["env.format=mien"]).unwrap_err());
    assert_eq!(error, "`env.format`: unknown format `mien`\n  --> x.lua:2\n  hint: did you mean `mine`?");
}

#[test]
fn results_and_tools_are_written_by_the_recipe() {
    let fields = "parse = function() end,\n\
         result = function(results) return 'got ' .. results[1].content .. ' from ' .. results[1].name end,\n\
         schema = function(tools) return 'Tools: ' .. tools[1]['function'].name end";
    let renderer = renderer(&Bench::new(&with_format(fields))).unwrap();
    let tools = [json!({ "type": "function", "function": { "name": "find" } })];
    let mut result = Message::tool("it");
    result.name = Some("find".to_owned());
    let text = renderer.prompt_text(&[Message::user("q"), Message::assistant("a"), result], &tools).unwrap();
    assert!(text.contains("system\nTools: find<") && text.contains("user\ngot it from find<"), "{text}");
    // A result that is not text is refused at the line of the function.
    let bench = Bench::new(&with_format("parse = function() end,\nschema = function() return {} end"));
    let renderer = self::renderer(&bench).unwrap();
    let error = bench.show(renderer.prompt_text(&[Message::user("q")], &tools).unwrap_err());
    assert_eq!(error, "`schema` of the format `custom` returned a table; it must return text\n  --> x.lua:3");
    let mut message = Message::assistant("a");
    message.tool_calls = vec![call("find", json!({}))];
    let error = bench.show(renderer.prompt_text(&[Message::user("q"), message], &[]).unwrap_err());
    assert!(
        error.starts_with("the format `custom` has no `write`: calls can't be written as text\n  --> x.lua:2"),
        "{error}"
    );
}

#[test]
fn output_of_a_format_is_logged() {
    let bench = Bench::new(&with_format("parse = function(text) print('read ' .. text) end"));
    let renderer = renderer(&bench).unwrap();
    let worker = bench.worker();
    worker.take_log();
    renderer.parse("abc", &[]).unwrap();
    let lines: Vec<String> = worker.take_log().into_iter().map(|line| line.text).collect();
    assert_eq!(lines, ["read abc"]);
}

/// A later version of the script reads replies with its own functions, over the renderer of the
/// first.
#[test]
fn a_new_version_of_the_script_parses_with_its_own_format() {
    let fields = |word: &str| with_format(&format!("parse = function() return nil, '{word}' end"));
    let first = Bench::new(&fields("old"));
    let renderer = renderer(&first).unwrap();
    first.file("x.lua", &fields("new"));
    let worker = Worker::new(&first.load(&[]).unwrap(), Some(renderer.clone())).unwrap();
    let state = run(worker.reset(&json!({ "prompt": "?" }), 0)).unwrap();
    let new_renderer = state.renderer().expect("a renderer of its own");
    assert_eq!(renderer.parse("x", &[]).unwrap().errors, ["old"]);
    assert_eq!(new_renderer.parse("x", &[]).unwrap().errors, ["new"]);
}

/// `r1.text.template` with a format of the script writes what rollouts write.
#[test]
fn a_template_takes_a_format_of_the_script() {
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let bench = Bench::new(&format!(
        r#"
local own = r1.format {{
  name = "lines",
  parse = function() return {{}} end,
  write = function(calls) return "CALL " .. r1.json.encode(calls[1].arguments) end,
  schema = function(tools) return "There is " .. tools[1]["function"].name end,
}}
local tools = {{ {{ type = "function", ["function"] = {{ name = "find" }} }} }}
local env = r1.env {{ format = own, reset = function(task)
  local template = r1.text.template("{0}", {{ format = own }})
  local ids = template:encode(task.messages, {{ tools = tools }})
  return {{ name = template:format(), text = template:render(task.messages, {{ tools = tools, add_generation_prompt = true }}),
    encoded = r1.text.tokenizer("{0}"):decode(ids), broken = tostring(select(2, pcall(r1.text.template, "{{{{ x }}}}", {{ format = own }}))) }}
end }}
return r1.recipe {{ env = env, reward = function() return 0 end }}"#,
        nano.display()
    ));
    let messages = vec![
        Message::user("q"),
        Message { tool_calls: vec![call("find", json!({ "b": null, "a": 1 }))], ..Message::assistant("So:") },
    ];
    let state = run(bench.worker().reset(&json!({ "messages": messages }), 0)).map_err(|failure| bench.show(failure));
    let state = state.unwrap().snapshot().unwrap()["state"].clone();
    let tools = [json!({ "type": "function", "function": { "name": "find" } })];
    let expected = renderer(&bench).unwrap().prompt_text(&messages, &tools).unwrap();
    assert!(expected.contains("There is find") && expected.contains("So:\nCALL {\"b\":null,\"a\":1}"), "{expected}");
    assert_eq!((&state["text"], &state["name"]), (&json!(expected), &json!("lines")));
    assert!(expected.starts_with(state["encoded"].as_str().unwrap()), "{state}");
    assert!(state["broken"].as_str().unwrap().contains("`format` needs a model directory"), "{state}");
}
