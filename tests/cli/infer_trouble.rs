//! `r1 infer --api-base` and servers that refuse, break off, or are none: one clear message each.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;

use super::hub::server::{Answer, Asked, Server};
use super::infer::{delta, finish, infer, serving, streamed};
use super::{cli_snapshot, directory, shown};

/// What a person sees who asks this server.
fn said(server: &Server) -> String {
    let dir = directory(&[], false);
    shown(dir.path(), &infer(dir.path(), server, &["-p", "Hello?"])).replace(&server.url, "SERVER")
}

fn refusing(status: u16, body: &str) -> String {
    let body = body.to_owned();
    said(&serving(move |_, _| Answer::new(status, body.clone()).with("Retry-After", "0")))
}

#[test]
fn refusals_are_told_in_the_servers_words() {
    insta::assert_snapshot!(refusing(401, r#"{"error": {"message": "No key."}}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 401: No key.
      hint: set OPENAI_API_KEY to a key of that server
    ");
    insta::assert_snapshot!(refusing(404, r#"{"detail": "Not Found"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 404: Not Found
      hint: it knows no model `some-model`, or --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(refusing(405, ""), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 405
      hint: it knows no model `some-model`, or --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(refusing(400, r#"{"object": "error", "message": "This model's context is 4096 tokens."}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 400: This model's context is 4096 tokens.
    ");
    insta::assert_snapshot!(refusing(422, r#"{"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs are not permitted"}]}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 422: top_k: Extra inputs are not permitted
    ");
    let page = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>";
    insta::assert_snapshot!(refusing(502, page), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 502: Bad Gateway
      hint: the failure is the server's: its own log may say more
    ");
    insta::assert_snapshot!(refusing(500, "Internal Server Error"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 500: Internal Server Error
      hint: the failure is the server's: its own log may say more
    ");
    let moved = serving(|_, _| Answer::new(301, "").with("Location", "https://new.example/v1/chat/completions"));
    insta::assert_snapshot!(said(&moved), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 answers 301: it has moved to https://new.example/v1
      hint: give --api-base the new address
    ");
    let busy = serving(|_, before| match before {
        0 => Answer::new(429, "slow down").with("Retry-After", "0"),
        _ => streamed(&[delta(&json!({ "content": "At last." })), finish("stop")]),
    });
    insta::assert_snapshot!(said(&busy), @r"
    exit: 0
    --- stdout
    At last.
    ");
}

#[test]
fn streams_that_break_off_are_told_from_those_that_end() {
    insta::assert_snapshot!(said(&serving(|_, _| {
        streamed(&[delta(&json!({ "content": "It is" })), json!({ "error": { "message": "out of memory" } })])
    })), @r"
    exit: 5
    --- stdout
    It is
    --- stderr
    error: SERVER/v1 failed at its reply: out of memory
      hint: its own log may say more
    ");
    // The connection ends between two events, and inside of the first.
    let ended = |pieces: usize| {
        said(&serving(move |_, _| {
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
    error: SERVER/v1 broke its reply off
      hint: ask again; its own log may say why
    ");
    insta::assert_snapshot!(ended(9), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 broke its reply off
      hint: ask again; its own log may say why
    ");
    // The connection ends where more was promised.
    let lost = |_: &Asked, _: usize| {
        let body = format!("data: {}\n\n", delta(&json!({ "content": "It is" })));
        let mut answer = Answer::new(200, body.as_bytes()).with("Content-Type", "text/event-stream");
        answer.cut = Some(body.len() - 1);
        answer
    };
    insta::assert_snapshot!(said(&serving(lost)), @r"
    exit: 5
    --- stdout
    It is
    --- stderr
    error: SERVER/v1 broke its reply off: Peer disconnected
      hint: ask again; its own log may say why
    ");
    let whole = |_: &Asked, _: usize| {
        let mut answer = Answer::new(200, r#"{"choices": [{"message": "#).with("Content-Type", "application/json");
        answer.no_length = true;
        answer
    };
    insta::assert_snapshot!(said(&serving(whole)), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 broke its reply off: what it sent is cut short
      hint: ask again; its own log may say why
    ");
}

#[test]
fn what_is_no_such_server_is_told_so() {
    let sending = |kind: &'static str, body: &'static str| {
        said(&serving(move |_, _| Answer::new(200, body).with("Content-Type", kind)))
    };
    insta::assert_snapshot!(sending("text/html; charset=utf-8", "<html><title>Open chat</title></html>"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 does not answer as an OpenAI-compatible server: it sends a web page
      hint: --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("text/plain", "Ollama is running"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 does not answer as an OpenAI-compatible server: there is no event in what it streams
      hint: --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("text/event-stream", "data: hello\n\n"), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 does not answer as an OpenAI-compatible server: what it sends is not JSON: expected value at line 1 column 1
      hint: --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("application/json", r#"{"version": "1.0"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 does not answer as an OpenAI-compatible server: its answer has no `choices`
      hint: --api-base should end otherwise, as in http://localhost:8000/v1
    ");
    insta::assert_snapshot!(sending("application/json", r#"{"error": "model is loading"}"#), @r"
    exit: 5
    --- stderr
    error: SERVER/v1 failed at its reply: model is loading
      hint: its own log may say more
    ");
}

#[test]
fn servers_that_are_not_there() {
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
    error: can't talk to http://127.0.0.1:PORT/v1: connection refused
      hint: is the server running, and is --api-base its address? (HTTPS_PROXY and NO_PROXY are heeded)
    ");
    // Without TLS behind an address that says so.
    let plain = serving(|_, _| Answer::new(200, ""));
    let told = ask(&plain.url.replace("http:", "https:"));
    assert!(told.contains("exit: 5") && told.contains("can't talk to https://127.0.0.1:"), "{told}");
    // A server that hangs up.
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", rude.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in rude.incoming().map_while(Result::ok) {
            std::thread::sleep(Duration::from_millis(50));
            drop(stream);
        }
    });
    let told = ask(&base);
    assert!(told.contains("exit: 5") && told.contains("can't talk to http://127.0.0.1:"), "{told}");
    cli_snapshot!(["infer", "--api-base", "localhost:8000", "--model", "x", "-p", "Hello"], @r"
    exit: 2
    --- stderr
    error: --api-base is `localhost:8000`, which is no http address
      hint: as in --api-base http://localhost:8000/v1
    ");
}

#[test]
fn a_reasoning_model_gets_its_own_name_of_the_limit() {
    let dir = directory(&[], false);
    let server = serving(|asked, _| {
        let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
        if body.get("max_tokens").is_some() {
            let error =
                json!({ "message": "Unsupported parameter", "param": "max_tokens", "code": "unsupported_parameter" });
            return Answer::new(400, json!({ "error": error }).to_string());
        }
        streamed(&[delta(&json!({ "content": format!("up to {}", body["max_completion_tokens"]) })), finish("stop")])
    });
    let output = infer(dir.path(), &server, &["-p", "Hello?", "--max-tokens", "20"]);
    let said = shown(dir.path(), &output);
    assert!(output.status.success() && said.contains("up to 20"), "{said}");
    assert_eq!(server.asked().len(), 2);
    // Any other refusal is told as it is.
    let server = serving(|_, _| Answer::new(400, r#"{"error": {"message": "No.", "param": "model"}}"#));
    let said = shown(dir.path(), &infer(dir.path(), &server, &["-p", "Hello?", "--max-tokens", "20"]));
    assert!(said.contains("answers 400: No."), "{said}");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn filters_and_refusals_are_told() {
    let cut = serving(|_, _| streamed(&[delta(&json!({ "content": "Once upon" })), finish("content_filter")]));
    let told = said(&cut);
    assert!(told.contains("exit: 5") && told.contains("its content filter stopped the reply"), "{told}");
    let refusing = serving(|_, _| {
        streamed(&[delta(&json!({ "refusal": "I can't do " })), delta(&json!({ "refusal": "that." })), finish("stop")])
    });
    let told = said(&refusing);
    assert!(told.contains("exit: 0") && told.contains("I can't do that."), "{told}");
}

#[test]
fn odd_streams_are_read_or_refused() {
    // A byte order mark before the first event.
    let marked = serving(|_, _| {
        let event = delta(&json!({ "content": "marked" }));
        let body = format!("\u{feff}data: {event}\n\ndata: {}\n\ndata: [DONE]\n\n", finish("stop"));
        Answer::new(200, body).with("Content-Type", "text/event-stream")
    });
    let told = said(&marked);
    assert!(told.contains("exit: 0") && told.contains("marked"), "{told}");
    // A reply without end.
    let endless = serving(|_, _| {
        let event = format!("data: {}\n\n", delta(&json!({ "content": "x".repeat(1 << 20) })));
        Answer::new(200, event.repeat(80)).with("Content-Type", "text/event-stream")
    });
    let dir = directory(&[], false);
    let output = infer(dir.path(), &endless, &["-p", "Hello?"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("bytes and does not end"), "{told}");
}

#[test]
fn calls_without_an_index_are_told_apart() {
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
    let told = shown(dir.path(), &output);
    let results: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &serde_json::Value| event["event"] == "result")
        .collect();
    let texts: Vec<&str> = results.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts, ["8", "10"], "{told}");
}
