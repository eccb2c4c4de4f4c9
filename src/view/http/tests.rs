//! Tests of the server over connections.
#![allow(clippy::unwrap_used)]
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::*;
use crate::view::shown::tests::written;

const TOKEN: &str = "0123456789abcdef";

/// A server of a run, on its own thread.
fn serving(root: &std::path::Path) -> SocketAddr {
    let view = Arc::new(View::new(&[], root).unwrap());
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(listener, view, TOKEN.to_owned(), std::future::pending()).await;
        });
    });
    address.recv().unwrap()
}

fn sent(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

#[test]
fn everything_is_below_the_token_and_other_pages_are_refused() {
    let root = tempfile::tempdir().unwrap();
    written(root.path(), "demo");
    let address = serving(root.path());
    let get = |path: &str, headers: &str| sent(address, "GET", path, headers, "");
    for path in ["/", "/app.js", "/api/runs", "/x/", "/x/api/runs", "//api/runs", &format!("/{TOKEN}x/"), "/api/events"]
    {
        let (status, text) = get(path, "");
        assert_eq!(status, 403, "{path}");
        assert!(text.contains("lacks the token") && !text.contains("demo") && !text.contains(TOKEN), "{text}");
    }
    for (path, content) in
        [("", "<title>"), ("app.js", "javascript"), ("app.css", "text/css"), ("api/runs", "\"demo\"")]
    {
        let (status, text) = get(&format!("/{TOKEN}/{path}"), "");
        assert_eq!(status, 200, "{path}");
        let text_start: String = text.chars().take(900).collect();
        assert!(text.contains(content), "{path}: {text_start}");
        assert!(text.contains("default-src 'none'; script-src 'self'") && text.contains("nosniff"), "{text_start}");
    }
    let (status, text) = get(&format!("/{TOKEN}"), "");
    assert_eq!((status, text.contains(&format!("location: /{TOKEN}/"))), (308, true), "{text}");
    assert_eq!(get(&format!("/{TOKEN}/"), "Origin: http://evil.example\r\n").0, 403);
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(evil.replace("GET /", &format!("GET /{TOKEN}/")).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 403"), "{text}");
    for (path, status) in [("nothing", 404), ("api/nothing", 400), ("api/metrics", 400), ("api/metrics?run=x", 400)] {
        assert_eq!(get(&format!("/{TOKEN}/{path}"), "").0, status, "{path}");
    }
}

#[test]
fn notes_are_written_by_requests_of_the_page_only() {
    let root = tempfile::tempdir().unwrap();
    let path = written(root.path(), "demo");
    let address = serving(root.path());
    let to = format!("/{TOKEN}/api/curation?run=demo");
    let json = "Content-Type: application/json\r\n";
    let body = r#"{"id":"1-0-0","tags":["odd"],"note":"x","quality":2,"exclude":true}"#;
    assert_eq!(sent(address, "GET", &to, "", "").0, 405);
    assert_eq!(sent(address, "POST", &format!("/{TOKEN}/api/runs"), json, body).0, 405);
    assert_eq!(sent(address, "POST", &to, "Content-Type: text/plain\r\n", body).0, 415);
    assert_eq!(sent(address, "POST", &to, json, r#"{"id":"9-9-9"}"#).0, 400);
    assert_eq!(sent(address, "POST", &to, json, r#"{"id":"1-0-0","other":1}"#).0, 400);
    assert_eq!(sent(address, "POST", &to, &format!("{json}Origin: http://evil.example\r\n"), body).0, 403);
    assert!(!path.join("curation.jsonl").exists());
    assert_eq!(sent(address, "POST", &to, json, body).0, 200);
    let notes = crate::store::read_curation(&path).unwrap();
    assert_eq!((notes["1-0-0"].quality, notes["1-0-0"].exclude), (Some(2), true));
    let (_, text) = sent(address, "GET", &format!("/{TOKEN}/api/trajectory?run=demo&id=1-0-0"), "", "");
    assert!(text.contains(r#""notes":{"id":"1-0-0","tags":["odd"]"#), "{text}");
}

#[test]
fn a_change_of_a_file_is_pushed() {
    let root = tempfile::tempdir().unwrap();
    let path = written(root.path(), "demo");
    let address = serving(root.path());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("GET /{TOKEN}/api/events HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    let mut until = |text: &mut String, count: usize| {
        while text.matches("data: ").count() < count {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    until(&mut text, 1);
    assert!(text.contains("text/event-stream") && text.contains("{\"demo\":[null,["), "{text}");
    std::fs::write(path.join("metrics.jsonl"), "{\"step\":1}\n").unwrap();
    until(&mut text, 2);
}
