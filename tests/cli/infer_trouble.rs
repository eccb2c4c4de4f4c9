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
