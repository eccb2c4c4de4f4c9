//! `r1 infer`: refused arguments, and a model behind a real server in this process.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::hub::server::{Received, Repo, Response, Server};
use super::run_files::{json_lines, read_json};
use super::{cli_snapshot, directory, piped, r1, shown};

/// A server whose responses `answer` computes from the request and the number of earlier requests.
pub(crate) fn serving(answer: impl Fn(&Received, usize) -> Response + Send + Sync + 'static) -> Server {
    Server::changed(Repo::new(&[]), move |request, before, _| answer(request, before))
}

/// A streamed response with these events, split at arbitrary positions.
pub(crate) fn streamed(events: &[Value]) -> Response {
    let mut body: String = events.iter().map(|event| ["data: ", &event.to_string(), "\n\n"].concat()).collect();
    body.push_str("data: [DONE]\n\n");
    let mut answer = Response::new(200, "").with("Content-Type", "text/event-stream");
    // A pause follows each piece: a long body has larger ones.
    let size = (body.len() / 50).max(7);
    answer.pieces = body.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
    answer
}

pub(crate) fn delta(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

pub(crate) fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

pub(crate) fn infer(dir: &Path, server: &Server, more: &[&str]) -> Output {
    let base = format!("{}/v1/", server.url);
    let args = [&["infer", "--api-base", &base, "--model", "some-model"], more].concat();
    let mut command = r1(dir, &args);
    command.env("NO_PROXY", "127.0.0.1").env_remove("OPENAI_API_KEY").output().unwrap()
}

pub(crate) fn bodies(server: &Server) -> Vec<Value> {
    server.requests().iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

#[test]
fn infer_uses_an_openai_compatible_server() {
    let dir = directory(&[], false);
    let server = serving(|_, _| {
        streamed(&[
            delta(&json!({ "role": "assistant", "content": "" })),
            delta(&json!({ "reasoning_content": "Hm." })),
            delta(&json!({ "content": "Grüße, " })),
            delta(&json!({ "content": "Wélt 😀" })),
            finish("stop"),
            json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 5 } }),
        ])
    });
    let more = ["-p", "Hello?", "--system", "Be brief.", "--temperature", "0.5", "--top-k", "7", "--max-tokens", "20"];
    let output = infer(dir.path(), &server, &more);
    insta::assert_snapshot!(shown(dir.path(), &output), @r"
    exit: 0
    --- stdout
    Grüße, Wélt 😀
    --- stderr
    Hm.
    ");
    let request = server.requests();
    assert_eq!((request[0].method.as_str(), request[0].path.as_str()), ("POST", "/v1/chat/completions"));
    assert!(!request[0].headers.contains_key("authorization"));
    assert_eq!(
        bodies(&server)[0],
        json!({
            "model": "some-model", "stream": true, "stream_options": { "include_usage": true },
            "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hello?" }],
            "temperature": 0.5, "top_k": 7, "max_tokens": 20,
        })
    );
    let output = infer(dir.path(), &server, &["-p", "Hello?", "--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&reply["text"], &reply["tokens"], &reply["reasoning"], &reply["finish_reason"]),
        (&json!("Grüße, Wélt 😀"), &json!(5), &json!("Hm."), &json!("stop"))
    );
    assert_eq!(bodies(&server)[1].as_object().unwrap().len(), 4);
}

const TOOLS: &str = r#"
    local double = r1.tool {
      name = "double", description = "Doubles a number", parameters = { n = "integer" },
      run = function(args) return args.n * 2 end,
    }
    return r1.recipe {
      env = r1.env { tools = { double }, system = "Use tools." },
      reward = function() return 0 end,
      trainer = r1.grpo {},
    }"#;

#[test]
fn infer_sends_tools_to_the_server_and_runs_its_calls() {
    let dir = directory(&[("tools.lua", TOOLS)], false);
    let call = |index: u64, id: Value, name: Value, arguments: &str| {
        delta(&json!({ "tool_calls": [{ "index": index, "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments } }] }))
    };
    let server = serving(move |request, _| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        if body["messages"].as_array().unwrap().len() > 2 {
            return streamed(&[delta(&json!({ "content": "It is 42." })), finish("stop")]);
        }
        streamed(&[
            delta(&json!({ "content": "I compute." })),
            call(0, json!("same"), json!("double"), "{\"n\""),
            call(0, Value::Null, Value::Null, ": 21}"),
            call(1, json!("same"), json!("double"), "{\"n\": 4"),
            call(2, json!("same"), json!("double"), "{\"n\": \"x\"}"),
            finish("tool_calls"),
        ])
    });
    let output = infer(dir.path(), &server, &["--script", "tools.lua", "-p", "Twice 21?"]);
    insta::assert_snapshot!(shown(dir.path(), &output), @r#"
    exit: 0
    --- stdout
    I compute.
    It is 42.
    --- stderr
      double
      > {"n":21}
      Tool call 2 can't be read: the arguments of `double` are not JSON: EOF while parsing an object at line 1 column 7.
      double
      > x
      | 42
      | Error: arguments.n must be integer, got "x"
    "#);
    let bodies = bodies(&server);
    assert_eq!(bodies[0]["tools"][0]["function"]["name"], "double");
    assert_eq!(bodies[0]["messages"][0], json!({ "role": "system", "content": "Use tools." }));
    let messages = bodies[1]["messages"].as_array().unwrap();
    let calls = messages[2]["tool_calls"].as_array().unwrap();
    assert_eq!(messages[2]["content"], "I compute.");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"], json!({ "name": "double", "arguments": "{\"n\":21}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(messages[3], json!({ "role": "tool", "tool_call_id": calls[0]["id"], "content": "42" }));
    assert_eq!((&messages[4]["role"], &messages[4]["tool_call_id"]), (&json!("tool"), &calls[1]["id"]));
    // The call that could not be parsed also gets a result, an error message.
    assert_eq!(messages[5]["role"], "user");

    let output = infer(dir.path(), &server, &["--script", "tools.lua", "-p", "Twice 21?", "--json"]);
    let events = json_lines(&String::from_utf8_lossy(&output.stdout));
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["call", "malformed_call", "call", "turn", "result", "result", "result", "reply"]);
    assert_eq!(events[3]["text"], "I compute.");
    assert_eq!(events[7]["text"], "It is 42.");
    // All calls with results, including the malformed one.
    let calls = events[7]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 3);
    assert_eq!((&calls[0]["name"], &calls[0]["output"]), (&json!("double"), &json!("42")));
}

#[test]
fn infer_runs_tool_calls_in_the_text_of_a_server() {
    let recipe = |format: &str| {
        format!(
            r#"
            local python = r1.tool {{
              name = "python", description = "Runs a program", parameters = {{ code = "string" }},
              run = function(args) return "ran " .. args.code end,
            }}
            return r1.recipe {{
              env = r1.env {{ tools = {{ python }}, format = "{format}" }},
              reward = function() return 0 end,
              trainer = r1.grpo {{}},
            }}"#
        )
    };
    let dir = directory(&[("retool.lua", &recipe("retool")), ("auto.lua", &recipe("auto"))], false);
    let replying = |first: &'static str| {
        serving(move |request, _| {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let again = body["messages"].as_array().unwrap().len() > 1;
            let text = if again { "It is done." } else { first };
            let letters: Vec<Value> =
                text.chars().map(|letter| delta(&json!({ "content": letter.to_string() }))).collect();
            streamed(&[letters, vec![finish("stop")]].concat())
        })
    };
    // The server omits the stop string.
    let server = replying("I run it.\n<code>\nprint(6 * 7)\n");
    let output = infer(dir.path(), &server, &["--script", "retool.lua", "-p", "Go"]);
    insta::assert_snapshot!(shown(dir.path(), &output), @r"
    exit: 0
    --- stdout
    I run it.
    <code>
    print(6 * 7)
    </code>
    It is done.
    --- stderr
      | ran print(6 * 7)
    ");
    let request = bodies(&server);
    assert_eq!(request[0]["stop"], json!(["</code>"]));
    assert_eq!(request[1]["messages"][1]["content"], "I run it.\n<code>\nprint(6 * 7)\n</code>");
    let answer = json!({ "role": "user", "content": "<interpreter>\nran print(6 * 7)\n</interpreter>" });
    assert_eq!(request[1]["messages"][2], answer);

    let server =
        replying(r#"I run it. <tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>"#);
    let output = infer(dir.path(), &server, &["--script", "auto.lua", "-p", "Go"]);
    insta::assert_snapshot!(shown(dir.path(), &output), @r"
    exit: 0
    --- stdout
    I run it.
    It is done.
    --- stderr
      python
      > print(6 * 7)
      | ran print(6 * 7)
    ");
    assert_eq!(bodies(&server)[0].get("stop"), None);
}

#[test]
fn infer_accepts_a_server_without_streaming() {
    let dir = directory(&[], false);
    let server = serving(|request, _| {
        assert_eq!(request.headers["authorization"], "Bearer secret");
        let message = json!({ "role": "assistant", "content": "Yes." });
        let whole = json!({ "choices": [{ "message": message, "finish_reason": "stop" }], "usage": { "completion_tokens": 2 } });
        Response::new(200, whole.to_string()).with("Content-Type", "application/json; charset=utf-8")
    });
    let base = server.url.clone();
    let mut command = r1(dir.path(), &["infer", "--api-base", &base, "-m", "x"]);
    command.env("NO_PROXY", "127.0.0.1").env("OPENAI_API_KEY", "secret");
    // The question comes from a pipe.
    let output = piped(command, "  Is it?\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Yes.\n");
    assert_eq!(bodies(&server)[0]["messages"], json!([{ "role": "user", "content": "Is it?" }]));
}

#[test]
fn invalid_infer_flags_are_refused() {
    cli_snapshot!(["infer", "--model", "x", "--input", "a.jsonl", "--output", "b.jsonl", "--image", "cat.png"], @r"
    exit: 2
    --- stderr
    error: the argument '--input <FILE>' cannot be used with '--image <FILE>'

    Usage: r1 infer --input <FILE> --output <FILE> <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>> [KEY=VALUE]...

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>>

    Usage: r1 infer --prompt <TEXT> <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>> [KEY=VALUE]...

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--hf", "a/b", "--model", "x", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: the argument '--hf <ORG/NAME[@REVISION]>' cannot be used with '--model <MODEL>'

    Usage: r1 infer --prompt <TEXT> <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>> [KEY=VALUE]...

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--hf", "../../x", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: `../../x` is not the name of a model on the Hub: it has more than two parts
      hint: write ORG/NAME or ORG/NAME@REVISION, as in Qwen/Qwen2.5-1.5B-Instruct@main
    ");
    cli_snapshot!(["infer", "--api-base", "http://localhost", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      --model <MODEL>

    Usage: r1 infer --prompt <TEXT> <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>> [KEY=VALUE]...

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--model", "x", "--min-p", "1", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: invalid value '1' for '--min-p <SHARE>': must be a number from 0, below 1

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--model", "x", "--temperature", "-1", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: invalid value '-1' for '--temperature <NUMBER>': must be a number from 0 to 10

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--model", "x", "--top-pp", "1", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: unexpected argument '--top-pp' found

      tip: a similar argument exists: '--top-p'

    Usage: r1 infer --top-p <SHARE> <--model <MODEL>|--hf <ORG/NAME[@REVISION]>|--script <SCRIPT>|--api-base <URL>> [KEY=VALUE]...

    For more information, try '--help'.
    ");
    cli_snapshot!(["infer", "--model", "x", "--script", "none.lua", "-p", "Hello"], @r"
    exit: 3
    --- stderr
    error: can't read the script: no such file or directory
      --> none.lua
    ");
}

#[test]
fn infer_reads_the_models_generation_config() {
    let dir = directory(&[("model.bin", "PK")], true);
    let ask = |model: &str, more: &[&str]| {
        let output =
            r1(dir.path(), &[&["infer", "-m", model, "-p", "Say 4", "--json"], more].concat()).output().unwrap();
        shown(dir.path(), &output)
    };
    assert!(ask("model.bin", &[]).contains("`model.bin` is a file; a model is a directory or a .gguf file"));

    // The model's own limit; a reply that reaches it is marked as truncated.
    let written = |name: &str, text: &str| std::fs::write(dir.path().join("model").join(name), text).unwrap();
    written("generation_config.json", r#"{"max_new_tokens": 2, "do_sample": false, "num_beams": 4}"#);
    let reported = ask("model", &[]);
    assert!(reported.contains("`num_beams` is not supported"), "{reported}");
    assert!(reported.contains(r#""finish_reason":"length""#) && reported.contains(r#""tokens":2"#), "{reported}");
    assert!(ask("model", &["--max-new-tokens", "3"]).contains(r#""tokens":3"#));
    written("generation_config.json", r#"{"temperature": "hot"}"#);
    assert!(ask("model", &[]).contains(r#"`temperature` is \"hot\" in generation_config.json; it must be a number"#));

    // Without a chat template plain ChatML is used, with a warning.
    written("generation_config.json", "{}");
    let path = dir.path().join("model/tokenizer_config.json");
    let mut config = read_json(&path);
    config.as_object_mut().unwrap().shift_remove("chat_template");
    written("tokenizer_config.json", &config.to_string());
    let reported = ask("model", &[]);
    assert!(reported.contains("the model has no chat template: plain ChatML is used"), "{reported}");
}
