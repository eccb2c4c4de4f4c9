//! A run with a secret: none of its files contains the value.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;

use super::{directory, r1, shown};

const VALUE: &str = "value-that-must-not-be-stored-4711";

/// Answers every request with its own content; counts requests with the value.
fn server() -> (String, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap_or(0) > 2 {}
            if head.contains(VALUE) {
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        }
    });
    (address, count)
}

/// The files below a directory that contain the value.
fn holding(dir: &Path, holders: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            holding(&path, holders);
        } else if std::fs::read(&path).unwrap().windows(VALUE.len()).any(|window| window == VALUE.as_bytes()) {
            holders.push(path.display().to_string());
        }
    }
}

#[test]
fn no_file_of_a_run_holds_a_secret() {
    let (address, count) = server();
    let recipe = format!(
        r#"
        return r1.recipe {{
          needs = {{ "http:{address}", "env:OWN_KEY" }},
          env = r1.env {{
            format = "retool",
            reset = function(task)
              local answer = r1.http.get("http://{address}/", {{ headers = {{ ["X-Api-Key"] = r1.secret("OWN_KEY") }} }})
              return {{ said = answer.body, messages = {{ r1.user("Hi") }} }}
            end,
          }},
          reward = function(state, outcome) return {{ outcome = #outcome.text % 2 }} end,
          policy = {{ model = "model" }},
          data = {{ train = r1.data.generate {{ count = 4, row = function(index) return {{ prompt = "Say " .. index }} end }} }},
          sampling = {{ max_new_tokens = 4 }},
          trainer = r1.grpo {{ steps = 1, group_size = 2, groups_per_step = 2 }},
        }}
        -- hf_abcdefghijABCDEFGHIJabcdefghij
        "#
    );
    let dir = directory(&[("a.lua", &recipe)], true);
    let output = r1(dir.path(), &["run", "a.lua"]).env("OWN_KEY", VALUE).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    assert!(count.load(std::sync::atomic::Ordering::Relaxed) >= 4, "the server was sent the value");
    let mut holders = Vec::new();
    holding(&dir.path().join("runs"), &mut holders);
    assert_eq!(holders, Vec::<String>::new());
    let text = shown(dir.path(), &output);
    assert!(!text.contains(VALUE), "{text}");
    assert!(text.contains("use the environment variable OWN_KEY"), "{text}");
    assert!(text.contains("a.lua:17 may contain an API key"), "{text}");

    let output = r1(dir.path(), &["run", "a.lua", "--name", "b"]).env_remove("OWN_KEY").output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(!output.status.success() && text.contains("the environment variable OWN_KEY"), "{text}");
}
