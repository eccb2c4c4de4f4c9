//! Tools of MCP servers over HTTP: `tests/fixtures/mcp_server.py --http`.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::json;

use super::mcp::{ANSWERS, FIXTURE, good, recipe_with, result, results, start_error};
use super::*;

/// A server over HTTP; ends when it is dropped.
struct Remote {
    child: Child,
    url: String,
}

impl Remote {
    fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("port");
        let mut child = Command::new("python3")
            .arg(FIXTURE)
            .arg("--http")
            .arg(&port)
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while !port.exists() {
            assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "the server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { url: format!("http://127.0.0.1:{}/mcp", std::fs::read_to_string(port).unwrap()), child }
    }

    fn bench(&self, options: &str, needs: &str) -> Bench {
        recipe_with(&format!("{{ r1.tools.mcp {{ url = '{}', {options} }} }}", self.url), needs)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.stdin.take().map(|mut stdin| stdin.flush());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mcp_servers_over_http_answer_with_json_and_events() {
    for mode in [&[][..], &["--sse"]] {
        let remote = Remote::start(mode);
        let bench = remote.bench("timeout = '500ms'", "{ 'http:127.0.0.1' }");
        let replies = results(
            &bench,
            &[
                ("add", json!({ "a": 1, "b": 2 })),
                ("progress", json!({})),
                ("twice", json!({})),
                ("fail", json!({})),
                ("refuse", json!({})),
                ("wait", json!({ "seconds": 1 })),
                ("echo", json!({ "text": "after" })),
            ],
        );
        let expected = [
            good("3"),
            good("done"),
            good("first"),
            ("it did not work".to_owned(), false),
            ("Error: the disk is full".to_owned(), false),
            ("Error: timed out after 0.5 s".to_owned(), false),
            good("after"),
        ];
        assert_eq!(replies, expected, "{mode:?}");
    }
}

/// An error without the id of the call is the answer to the request that waits for it.
#[test]
fn unusual_answers_of_mcp_servers_over_http_are_read_or_end_their_call_at_once() {
    for mode in [&[][..], &["--sse"]] {
        let remote = Remote::start(mode);
        let bench = remote.bench("timeout = 60, restarts = 0", "{ 'http:127.0.0.1' }");
        let calls: Vec<(&str, Json)> = ANSWERS.iter().map(|(text, ..)| ("raw", json!({ "text": text }))).collect();
        for ((result_text, ok), (sent, text, expected)) in results(&bench, &calls).into_iter().zip(ANSWERS) {
            assert!(ok == expected && result_text.starts_with(text), "{mode:?} {sent}: {result_text}");
        }
    }
    let remote = Remote::start(&[]);
    let bench = remote.bench("timeout = 60, restarts = 0", "{ 'http:127.0.0.1' }");
    for id in ["null", "\"server-error\"", "ID", "7000"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32600,"message":"no credit"}}}}"#);
        for status in [400, 500, 200] {
            let result_text = result(&bench, "raw", json!({ "text": text, "status": status }));
            assert_eq!(result_text, ("Error: no credit".to_owned(), false), "{id} {status}");
        }
    }
    let foreign = json!({ "text": r#"{"jsonrpc":"2.0","id":7000,"result":{"content":"x"}}"# });
    let (result_text, ok) = result(&bench, "raw", foreign);
    assert!(!ok && result_text.contains("is not an answer of an MCP server"), "{result_text}");
    // It is asked again, as it has not run the tool.
    assert_eq!(result(&bench, "busy", json!({})), good("ready"));
}

/// A server that answers with JSON can send progress on the stream of messages without a request.
#[test]
fn progress_over_http_may_come_on_the_stream_of_the_server() {
    let remote = Remote::start(&["--mode", "stream"]);
    let bench = remote.bench("timeout = '1s', progress = true", "{ 'http:127.0.0.1' }");
    assert_eq!(result(&bench, "steps", json!({ "count": 4, "seconds": 0.4 })), good("all steps"));
}

#[test]
fn answers_over_http_are_limited_as_json_and_as_events() {
    for arguments in [&[][..], &["--sse"]] {
        let remote = Remote::start(arguments);
        let bench = remote.bench("name = 'web'", "{ 'http:127.0.0.1' }");
        let (text, ok) = result(&bench, "big", json!({ "bytes": 9 << 20 }));
        assert!(!ok && text.len() < 300 && text.contains('8'), "{arguments:?}: {text}");
    }
}

#[test]
fn mcp_servers_over_http_that_fail_are_reported() {
    let shown = |remote: &Remote, bench: &Bench| {
        let port = remote.url.trim_start_matches("http://127.0.0.1:").trim_end_matches("/mcp");
        start_error(bench).replace(port, "PORT")
    };
    let html = Remote::start(&["--mode", "html"]);
    assert_snapshot!(shown(&html, &html.bench("name = 'web'", "{ 'http:127.0.0.1' }")), @r#"
    MCP server `web`: HTTP 200 (text/html) is not an answer of an MCP server: "<html>Welcome</html>"
      --> x.lua:6
      hint: is there an MCP server at http://127.0.0.1:PORT/mcp? The path is often /mcp
    "#);
    let redirect = Remote::start(&["--mode", "redirect"]);
    assert_snapshot!(shown(&redirect, &redirect.bench("name = 'web'", "{ 'http:127.0.0.1' }")), @r"
    MCP server `web`: it redirects to http://127.0.0.1:9/mcp, which is not followed: give that URL
      --> x.lua:6
      hint: is there an MCP server at http://127.0.0.1:PORT/mcp? The path is often /mcp
    ");
    let closed = Remote::start(&["--token", "CARGO"]);
    assert_snapshot!(shown(&closed, &closed.bench("name = 'web'", "{ 'http:127.0.0.1' }")), @r"
    MCP server `web`: HTTP 401 Unauthorized: `headers` sends a token, such as r1.secret(…)
      --> x.lua:6
      hint: is there an MCP server at http://127.0.0.1:PORT/mcp? The path is often /mcp
    ");
    let key = "name = 'web', headers = { Authorization = 'Bearer CARGO' }";
    assert_eq!(result(&closed.bench(key, "{ 'http:127.0.0.1' }"), "data", json!({})), good("{\"sum\":3}"));
    // A need of public hosts does not allow this address.
    assert_snapshot!(shown(&closed, &closed.bench("name = 'web'", "{ 'http' }")), @r#"
    MCP server `web`: the recipe does not declare that it connects to 127.0.0.1
      --> x.lua:6
      hint: add needs = { "http:127.0.0.1" } to r1.recipe
    "#);
    let url = closed.url.clone();
    drop(closed);
    let dead = recipe_with(&format!("{{ r1.tools.mcp {{ url = '{url}', name = 'web' }} }}"), "{ 'http:127.0.0.1' }");
    let error = start_error(&dead);
    assert!(error.contains("MCP server `web`: no connection: connection refused"), "{error}");
}
