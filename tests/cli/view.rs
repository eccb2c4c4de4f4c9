//! `r1 view`: the server, its address and its end, and static copies.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{directory, fail, r1, succeed};

/// A directory with the run `a`.
fn with_a_run() -> tempfile::TempDir {
    let dir = directory(&[], false);
    let run = dir.path().join("runs/a");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("metrics.jsonl"), "{\"step\":1,\"time\":1,\"reward/mean\":0.5}\n").unwrap();
    std::fs::write(run.join("recipe.lua"), "return 1\n").unwrap();
    let config = "{\"r1\":\"0\",\"script\":{\"path\":\"x.lua\",\"hash\":\"0\"},\"seed\":0,\"settings\":{}}";
    std::fs::write(run.join("config.json"), config).unwrap();
    dir
}

/// A server that ends with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and the address that it prints.
fn serving(dir: &Path, token: &str) -> (Serving, String) {
    let mut command = r1(dir, &["view", "--port", "0", "--json"]);
    command.env("R1_VIEW_TOKEN", token).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["event"], "view");
    (Serving(child), event["url"].as_str().unwrap().to_owned())
}

fn get(url: &str, path: &str) -> String {
    let (host, root) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{root}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn r1_view_serves_pages_at_an_address_with_a_token() {
    let dir = with_a_run();
    let (first, url) = serving(dir.path(), "");
    let token = url.trim_end_matches('/').rsplit('/').next().unwrap();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{url}");
    assert!(get(&url, "").starts_with("HTTP/1.1 200") && get(&url, "api/runs").contains("\"name\":\"a\""));
    let other = url.replace(token, &"0".repeat(32));
    assert!(get(&other, "api/runs").starts_with("HTTP/1.1 403"));
    let (_second, second_url) = serving(dir.path(), "");
    assert!(!second_url.contains(token), "the token of each server is another one");
    let port = url.split(':').nth(2).unwrap().split('/').next().unwrap().to_owned();
    let text = fail(dir.path(), &["view", "--port", &port]);
    assert!(text.contains("can't listen on") && text.contains("--port 0"), "{text}");
    drop(first);
    let (_third, url) = serving(dir.path(), "a-token-of-my-own");
    assert!(url.ends_with("/a-token-of-my-own/"), "{url}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_r1_view() {
    let dir = with_a_run();
    let (mut server, url) = serving(dir.path(), "");
    // A stream of events does not delay the end.
    let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let path = url.strip_prefix("http://").unwrap().strip_prefix(host).unwrap();
    write!(stream, "GET {path}api/events HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    let pid = server.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn what_r1_view_can_not_show_is_refused() {
    let dir = with_a_run();
    for (args, part) in [
        (&["view", "b"][..], "there is no run `b`"),
        (&["view", "--runs-dir", "none"], "there is no directory of runs"),
        (&["view", "--last", "3"], "--export"),
        (&["view", "a", "--export", "runs"], "the directory has other files"),
    ] {
        let refused = fail(dir.path(), args);
        assert!(refused.contains(part), "{args:?}: {refused}");
    }
    let output = r1(dir.path(), &["view"]).env("R1_VIEW_TOKEN", "short").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("R1_VIEW_TOKEN must have 16 or more characters"));
}

#[test]
fn r1_view_writes_a_static_copy() {
    let dir = with_a_run();
    let printed = succeed(dir.path(), &["view", "a", "--export", "pages"]);
    assert!(printed.contains("0 trajectories in 9 files; open pages/index.html"), "{printed}");
    let metrics = std::fs::read_to_string(dir.path().join("pages/data/metrics~3frun=a.js")).unwrap();
    assert!(metrics.contains("\"reward/mean\":[0.5]"), "{metrics}");
    let event: Value = serde_json::from_str(&succeed(dir.path(), &["view", "--export", "pages", "--json"])).unwrap();
    assert_eq!((&event["event"], &event["files"]), (&Value::from("export"), &Value::from(9)));
}
