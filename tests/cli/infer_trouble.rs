//! `r1 infer --api-base` with servers that refuse, disconnect, or are not OpenAI-compatible: one
//! clear message each.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;

use super::hub::server::{Received, Response, Server};
use super::infer::{delta, finish, infer, serving, streamed};
use super::{cli_snapshot, directory, shown};

/// The output for a question to this server.
fn reply_output(server: &Server) -> String {
    let dir = directory(&[], false);
    shown(dir.path(), &infer(dir.path(), server, &["-p", "Hello?"])).replace(&server.url, "SERVER")
}

fn refusing(status: u16, body: &str) -> String {
    let body = body.to_owned();
    reply_output(&serving(move |_, _| Response::new(status, body.clone()).with("Retry-After", "0")))
}

#[test]
fn server_errors_show_the_servers_message() {
    insta::assert_snapshot!(refusing(401, r#"{"error": {"message": "No key."}}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 401: No key.
      hint: set OPENAI_API_KEY to a key of that server
    ");
    insta::assert_snapshot!(refusing(404, r#"{"detail": "Not Found"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 404: Not Found
      hint: the server has no model `some-model`, or --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(refusing(405, ""), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 405
      hint: the server has no model `some-model`, or --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(refusing(400, r#"{"object": "error", "message": "This model's context is 4096 tokens."}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 400: This model's context is 4096 tokens.
    ");
    insta::assert_snapshot!(refusing(422, r#"{"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs are not permitted"}]}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 422: top_k: Extra inputs are not permitted
    ");
    let page = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>";
    insta::assert_snapshot!(refusing(502, page), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 502: Bad Gateway
      hint: the server failed: see its log
    ");
    insta::assert_snapshot!(refusing(500, "Internal Server Error"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 500: Internal Server Error
      hint: the server failed: see its log
    ");
    let moved = serving(|_, _| Response::new(301, "").with("Location", "https://new.example/v1/chat/completions"));
    insta::assert_snapshot!(reply_output(&moved), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 responded with 301: it moved to https://new.example/v1
      hint: use the new address in --api-base
    ");
    let busy = serving(|_, before| match before {
        0 => Response::new(429, "slow down").with("Retry-After", "0"),
        _ => streamed(&[delta(&json!({ "content": "At last." })), finish("stop")]),
    });
    insta::assert_snapshot!(reply_output(&busy), @r"
    exit: 0
    --- stdout
    At last.
    ");
}

#[test]
fn interrupted_streams_are_distinguished_from_complete_ones() {
    insta::assert_snapshot!(reply_output(&serving(|_, _| {
        streamed(&[delta(&json!({ "content": "It is" })), json!({ "error": { "message": "out of memory" } })])
    })), @r"
    exit: 5
    --- stdout
    It is
    --- stderr
    error: SERVER/v1 failed during its reply: out of memory
      hint: see the server's log
    ");
    // The connection ends between two events, and inside the first.
    let ended = |pieces: usize| {
        reply_output(&serving(move |_, _| {
            let mut answer = streamed(&[delta(&json!({ "content": "It is" }))]);
            answer.pieces.truncate(pieces);
            answer
        }))
    };
    insta::assert_snapshot!(ended(12), @r"
    exit: 5
    --- stdout
    It is
    --- stderr
    error: SERVER/v1 interrupted its reply
      hint: try again; see the server's log
    ");
    insta::assert_snapshot!(ended(9), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 interrupted its reply
      hint: try again; see the server's log
    ");
    // The connection ends before the announced length.
    let lost = |_: &Received, _: usize| {
        let body = format!("data: {}\n\n", delta(&json!({ "content": "It is" })));
        let mut answer = Response::new(200, body.as_bytes()).with("Content-Type", "text/event-stream");
        answer.cut = Some(body.len() - 1);
        answer
    };
    insta::assert_snapshot!(reply_output(&serving(lost)), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 interrupted its reply: Peer disconnected
      hint: try again; see the server's log
    ");
    let whole = |_: &Received, _: usize| {
        let mut answer = Response::new(200, r#"{"choices": [{"message": "#).with("Content-Type", "application/json");
        answer.no_length = true;
        answer
    };
    insta::assert_snapshot!(reply_output(&serving(whole)), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 interrupted its reply: what it sent is cut short
      hint: try again; see the server's log
    ");
}

#[test]
fn a_server_that_is_not_openai_compatible_is_an_error() {
    let sending = |kind: &'static str, body: &'static str| {
        reply_output(&serving(move |_, _| Response::new(200, body).with("Content-Type", kind)))
    };
    insta::assert_snapshot!(sending("text/html; charset=utf-8", "<html><title>Open chat</title></html>"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 is not an OpenAI-compatible server: it sends a web page
      hint: --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("text/plain", "Ollama is running"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 is not an OpenAI-compatible server: there is no event in what it streams
      hint: --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("text/event-stream", "data: hello\n\n"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 is not an OpenAI-compatible server: what it sends is not JSON: expected value at line 1 column 1
      hint: --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("application/json", r#"{"version": "1.0"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 is not an OpenAI-compatible server: its answer has no `choices`
      hint: --api-base has a wrong path; for example http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("application/json", r#"{"error": "model is loading"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 failed during its reply: model is loading
      hint: see the server's log
    ");
}

#[test]
fn unreachable_servers_are_an_error() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = directory(&[], false);
    let ask = |base: &str| {
        let mut command = super::r1(dir.path(), &["infer", "--api-base", base, "-m", "x", "-p", "Hello"]);
        command.env("NO_PROXY", "127.0.0.1").env_remove("OPENAI_API_KEY");
        shown(dir.path(), &command.output().unwrap()).replace(&port.to_string(), "PORT")
    };
    insta::assert_snapshot!(ask(&format!("http://127.0.0.1:{port}/v1")), @r"
    exit: 5
    --- stderr
    error: can't reach http://127.0.0.1:PORT/v1: connection refused
      hint: is the server running, and is --api-base its address? (HTTPS_PROXY and NO_PROXY are used)
    ");
    // A server without TLS at an https URL.
    let plain = serving(|_, _| Response::new(200, ""));
    let printed = ask(&plain.url.replace("http:", "https:"));
    assert!(printed.contains("exit: 5") && printed.contains("can't reach https://127.0.0.1:"), "{printed}");
    // A server that closes the connection.
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", rude.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in rude.incoming().map_while(Result::ok) {
            std::thread::sleep(Duration::from_millis(50));
            drop(stream);
        }
    });
    let printed = ask(&base);
    assert!(printed.contains("exit: 5") && printed.contains("can't reach http://127.0.0.1:"), "{printed}");
    cli_snapshot!(["infer", "--api-base", "localhost:8000", "--model", "x", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: --api-base is `localhost:8000`, which is not an http URL
      hint: as in --api-base http://localhost:8000/v1
    ");
}

#[test]
fn a_reasoning_model_gets_max_completion_tokens() {
    let dir = directory(&[], false);
    let server = serving(|request, _| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        if body.get("max_tokens").is_some() {
            let error =
                json!({ "message": "Unsupported parameter", "param": "max_tokens", "code": "unsupported_parameter" });
            return Response::new(400, json!({ "error": error }).to_string());
        }
        streamed(&[delta(&json!({ "content": format!("up to {}", body["max_completion_tokens"]) })), finish("stop")])
    });
    let output = infer(dir.path(), &server, &["-p", "Hello?", "--max-tokens", "20"]);
    let reply_output = shown(dir.path(), &output);
    assert!(output.status.success() && reply_output.contains("up to 20"), "{reply_output}");
    assert_eq!(server.requests().len(), 2);
    // Other refusals are reported unchanged.
    let server = serving(|_, _| Response::new(400, r#"{"error": {"message": "No.", "param": "model"}}"#));
    let reply_output = shown(dir.path(), &infer(dir.path(), &server, &["-p", "Hello?", "--max-tokens", "20"]));
    assert!(reply_output.contains("responded with 400: No."), "{reply_output}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn content_filters_and_refusals_are_reported() {
    let cut = serving(|_, _| streamed(&[delta(&json!({ "content": "Once upon" })), finish("content_filter")]));
    let printed = reply_output(&cut);
    assert!(printed.contains("exit: 5") && printed.contains("its content filter stopped the reply"), "{printed}");
    let refusing = serving(|_, _| {
        streamed(&[delta(&json!({ "refusal": "I can't do " })), delta(&json!({ "refusal": "that." })), finish("stop")])
    });
    let printed = reply_output(&refusing);
    assert!(printed.contains("exit: 0") && printed.contains("I can't do that."), "{printed}");
}

#[test]
fn unusual_server_streams_are_parsed_or_refused() {
    // A byte order mark before the first event.
    let marked = serving(|_, _| {
        let event = delta(&json!({ "content": "marked" }));
        let body = format!("\u{feff}data: {event}\n\ndata: {}\n\ndata: [DONE]\n\n", finish("stop"));
        Response::new(200, body).with("Content-Type", "text/event-stream")
    });
    let printed = reply_output(&marked);
    assert!(printed.contains("exit: 0") && printed.contains("marked"), "{printed}");
    // An endless reply.
    let endless = serving(|_, _| {
        let event = format!("data: {}\n\n", delta(&json!({ "content": "x".repeat(1 << 20) })));
        Response::new(200, event.repeat(80)).with("Content-Type", "text/event-stream")
    });
    let dir = directory(&[], false);
    let output = infer(dir.path(), &endless, &["-p", "Hello?"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains("its reply has more than 8 MiB"), "{printed}");
}

#[test]
fn streamed_tool_calls_without_an_index_are_separated() {
    let dir = directory(
        &[(
            "a.lua",
            r#"return r1.recipe {
                 env = r1.env { tools = { r1.tool { name = "double", description = "Doubles.", parameters = { n = "number" },
                   run = function(arguments) return tostring(arguments.n * 2) end } } },
                 reward = function() return 0 end,
               }"#,
        )],
        false,
    );
    let call = |id: &str, name: &str, arguments: &str| {
        let mut call = json!({ "function": { "arguments": arguments } });
        for (field, value) in [("id", id), ("type", if id.is_empty() { "" } else { "function" })] {
            if !value.is_empty() {
                call[field] = json!(value);
            }
        }
        if !name.is_empty() {
            call["function"]["name"] = json!(name);
        }
        delta(&json!({ "tool_calls": [call] }))
    };
    let server = serving(move |_, before| {
        if before > 0 {
            return streamed(&[delta(&json!({ "content": "Done." })), finish("stop")]);
        }
        streamed(&[
            call("a", "double", "{\"n\""),
            call("", "", ": 4}"),
            call("b", "double", "{\"n\": "),
            call("b", "", "5}"),
            finish("tool_calls"),
        ])
    });
    let output = infer(dir.path(), &server, &["--script", "a.lua", "-p", "Hello?", "--json"]);
    let printed = shown(dir.path(), &output);
    let results: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &serde_json::Value| event["event"] == "result")
        .collect();
    let texts: Vec<&str> = results.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts, ["8", "10"], "{printed}");
}
