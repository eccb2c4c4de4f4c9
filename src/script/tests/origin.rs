//! Properties of JSON that Luau tables do not show are preserved: nulls, long whole numbers,
//! floats, the order of keys.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::mdp::{Observation, Scripted};
use crate::rollout::{Spec, drive};
use crate::text::Renderer;

const ROW: &str = r#"{"z":null,"id":9007199254740993,"b":{"y":[1,null,-9223372036854775807],"x":3.0,"e":1e-7},"a":"9007199254740993"}"#;

/// The JSON text that `body` returns, with `it` decoded from [`ROW`].
fn encoded(body: &str) -> Json {
    eval(&format!("(function() local it = r1.json.decode([=[{ROW}]=]) {body} return r1.json.encode(it) end)()"))
}

#[test]
fn json_that_a_script_does_not_change_is_encoded_unchanged() {
    assert_eq!(encoded(""), ROW);
    // Copies too.
    assert_eq!(encoded("it = { inner = table.clone(it) }"), format!("{{\"inner\":{ROW}}}"));
    assert_eq!(
        eval("r1.json.encode(r1.json.decode('[3.0, 18446744073709551615, null]'))"),
        "[3.0,18446744073709551615,null]"
    );
    // Scripts read plain values.
    assert_eq!(
        eval(&format!(
            "(function() local it = r1.json.decode([=[{ROW}]=]) return {{ it.z == nil, it.id, it.b.x, #it.b.y }} end)()"
        )),
        json!([true, "9007199254740993", 3, 3])
    );
}

#[test]
fn changed_json_has_the_values_of_the_script() {
    let changed = "it.z = 1 it.id = 'other' it.b.x = 4 it.b.e = nil it.a = nil it.new = true it.also = 0";
    let reported = r#"{"z":1,"id":"other","b":{"y":[1,null,-9223372036854775807],"x":4},"also":0,"new":true}"#;
    assert_eq!(encoded(changed), reported);
    // Long whole numbers are recognised at another place of their list, but not in another list.
    assert_eq!(
        encoded("it = { table.remove(it.b.y), it.b.y, it.id }"),
        r#"["-9223372036854775807",[1,null],"9007199254740993"]"#
    );
    assert_eq!(encoded("it = it.b.y table.insert(it, 1, 0)"), "[0,1,null,-9223372036854775807]");
    assert_eq!(
        eval("r1.json.encode((function() local it = r1.json.decode('[3.0]') it[1] = nil return it end)())"),
        "[]"
    );
}

#[test]
fn a_metatable_of_a_script_is_not_a_note() {
    for meta in ["{ __r1_json = 'x' }", "{ __r1_json = 5 }", "{ __index = {} }"] {
        let bench = Bench::new(&recipe(&format!(
            "local env = r1.env {{ reset = function() return {{ t = setmetatable({{ b = 1 }}, {meta}) }} end }}"
        )));
        let state = run(bench.worker().reset(&Json::Null, 0)).map(|state| state.snapshot());
        assert!(matches!(state, Err(_) | Ok(Err(_))), "{meta}");
    }
}

/// A state keeps them over a snapshot and a fork, and `print` shows them.
#[test]
fn states_keep_json_details_of_their_tables() {
    let bench = Bench::new(&recipe(
        "local env = r1.env { reset = function(task) print(task) return { task = task, list = { task.b, { task.b.y } } } end,\n\
         step = function(state) state.said = r1.json.encode(state.task) .. r1.json.encode(state.list) return { done = true } end }",
    ));
    let worker = bench.worker();
    let row: Json = serde_json::from_str(ROW).unwrap();
    let state = run(worker.reset(&row, 0)).unwrap();
    assert_eq!(worker.take_log()[0].text, ROW);
    let snapshot = state.snapshot().unwrap();
    let copy = worker.restore(&serde_json::from_str(&snapshot.to_string()).unwrap()).unwrap();
    assert_eq!(copy.snapshot().unwrap(), snapshot);
    let list = format!("[{},[{}]]", row["b"], row["b"]["y"]);
    for state in [state.fork().unwrap(), copy, state] {
        run(worker.step(&state, &action("r"))).unwrap();
        assert_eq!(state.snapshot().unwrap()["state"]["said"], format!("{ROW}{list}"));
    }
}

/// The arguments of a reply's calls are unchanged in the messages that the env makes of them.
#[test]
fn calls_keep_their_arguments() {
    let bench = Bench::new(&recipe(
        "local env = r1.env { reset = function() return { messages = {} } end, step = function(state, action)\n\
         state.messages = { { role = 'assistant', content = '', tool_calls = action.tool_calls } }\n\
         state.text = r1.text.template('{{ messages[0].tool_calls[0].arguments | tojson }}'):render(state.messages)\n\
         return { done = true } end }",
    ));
    let worker = bench.worker();
    let arguments: Json = serde_json::from_str(ROW).unwrap();
    run(async {
        let state = worker.reset(&json!({}), 0).await.unwrap();
        let calls = vec![call("f", arguments.clone())];
        worker.step(&state, &Action { tool_calls: calls, ..action("") }).await.unwrap();
        let Observation::Messages(shown) = worker.observe(&state, 100).await.unwrap() else { panic!() };
        assert_eq!(shown[0].tool_calls[0].arguments.to_string(), arguments.to_string());
        let text = state.snapshot().unwrap()["state"]["text"].as_str().unwrap().replace(": ", ":").replace(", ", ",");
        assert_eq!(text, ROW.replace("1e-7", "1e-07"));
    });
}

/// Parts of a message, from columns in which every row has every field.
#[test]
fn nulls_in_parts_and_schemas_are_absent_fields() {
    let bench = Bench::new(&recipe(
        "local schema = r1.json.decode('{\"type\": \"object\", \"items\": null, \"properties\": {\"n\": {\"type\": \"integer\", \"enum\": null}}}')\n\
         local tool = r1.tool { name = 'f', description = 'd', parameters = schema, run = function() return '' end }\n\
         local env = r1.env { tools = { tool }, reset = function(task) return { messages = task.messages } end }",
    ));
    let worker = bench.worker();
    let task = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "hash": null}]}]});
    run(async {
        let state = worker.reset(&task, 0).await.unwrap();
        let Observation::Messages(shown) = worker.observe(&state, 100).await.unwrap() else { panic!() };
        assert_eq!(shown[0].content.text(), "hi");
    });
}

/// A whole prompt of a rollout, from a data row on, is what transformers rendered of it.
#[test]
fn the_prompt_of_a_row_equals_that_of_transformers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = |name: &str| std::fs::read_to_string(root.join("tests/golden/text").join(name)).unwrap();
    let model = tempfile::tempdir().unwrap();
    std::fs::copy(root.join("models/r1-nano/tokenizer.json"), model.path().join("tokenizer.json")).unwrap();
    let template = golden("templates/llamacpp__Qwen-Qwen2.5-7B-Instruct.jinja");
    let config = json!({ "eos_token": "<|im_end|>", "chat_template": template });
    std::fs::write(model.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let bench = Bench::new(
        r#"
        local search = r1.tool {
          name = "search",
          description = "Search the passage index & return the top-k <passages>.",
          parameters = r1.json.decode [[{"type": "object", "properties": {"query": {"type": "string"},
            "k": {"type": "integer", "minimum": 1, "maximum": 20}}, "required": ["query"]}]],
          run = function() return "ok" end,
        }
        local env = r1.env { tools = { search } }
        return r1.recipe { env = env, reward = function() return 0 end, data = { train = "t.jsonl" } }
        "#,
    );
    let row = r#"{"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "call_abc123", "type": "function", "function": {"name": "search", "arguments": {"query": "a \"quoted\" \\ back\tslash\nline </tool_call>", "k": 3, "opts": {"f": 1.5, "e": 1e-07, "b": true, "n": null, "l": [1, "2", [3.0]], "emoji": "🚀"}}}}]}, {"role": "tool", "name": "search", "tool_call_id": "call_abc123", "content": "ok"}]}"#;
    bench.file("t.jsonl", &format!("{row}\n"));
    let script = bench.load(&[]).unwrap();
    let renderer = Arc::new(Renderer::load(model.path(), "hermes").unwrap());
    let worker = Worker::new(&script, Some(renderer.clone())).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (shared_renderer, prompts) = (renderer.clone(), seen.clone());
    let policy = Scripted::new(move |request| {
        prompts.lock().unwrap().push(shared_renderer.tokenizer().decode(&request.prompt_ids, false));
        shared_renderer.tokenizer().encode("done<|im_end|>").unwrap()
    });
    let trajectory = run(drive(&worker, &renderer, &policy, &Spec::new(Split::Train, 0, &script.settings))).unwrap();
    assert!(trajectory.error.is_none(), "{:?}", trajectory.error.map(|error| bench.show(error)));
    assert_eq!(seen.lock().unwrap()[0], golden("qwen2.5_nested_args.txt"));
}
