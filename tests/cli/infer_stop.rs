//! `r1 infer` and Ctrl-C: the current reply or tool ends, the conversation continues.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::hub::server::Server;
use super::infer::{delta, finish, serving, streamed};
use super::{directory, r1};
use crate::fork_server::R1;

/// A tool that takes an hour, called at the first question.
const SLOW: &str = r#"
    local slow = r1.tool {
      name = "slow", description = "Takes long", parameters = { n = "integer" },
      run = function(args) r1.sleep(3600) return "done" end, timeout = 7200,
    }
    return r1.recipe {
      env = r1.env { tools = { slow } }, limits = { wait = 7200 },
      reward = function() return 0 end,
      trainer = r1.grpo {},
    }"#;

/// Calls the slow tool at the first question, and answers the others.
fn calling() -> Server {
    serving(|request, before| {
        if before > 0 {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let count = body["messages"].as_array().unwrap().len();
            return streamed(&[delta(&json!({ "content": format!("Heard {count}.") })), finish("stop")]);
        }
        let function = json!({ "name": "slow", "arguments": "{\"n\": 1}" });
        let call = json!({ "tool_calls": [{ "index": 0, "id": "a", "type": "function", "function": function }] });
        streamed(&[delta(&call), finish("tool_calls")])
    })
}

fn command(dir: &Path, server: &Server, more: &[&str]) -> R1 {
    let base = format!("{}/v1", server.url);
    let mut command =
        r1(dir, &[&["infer", "--api-base", &base, "--model", "m", "--script", "slow.lua"], more].concat());
    command.env("NO_PROXY", "127.0.0.1").env_remove("OPENAI_API_KEY").env("HOME", dir).env_remove("XDG_STATE_HOME");
    command
}

#[allow(unsafe_code)]
fn ctrl_c(child: &Child) {
    // SAFETY: no pointers; the process is a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
}

/// The output of a program so far.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<String>>);

impl Seen {
    fn of(mut output: impl Read + Send + 'static) -> Self {
        let seen = Self::default();
        let all = Arc::clone(&seen.0);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // Reading from a terminal whose other end is closed fails.
            while let Ok(count @ 1..) = output.read(&mut piece) {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
            }
        });
        seen
    }

    /// Waits for a text after `from`; returns the position after it.
    fn wait(&self, from: usize, text: &str) -> usize {
        let begin = Instant::now();
        loop {
            let all = self.0.lock().unwrap().clone();
            if let Some(at) = all[from..].find(text) {
                return from + at + text.len();
            }
            assert!(begin.elapsed() < Duration::from_mins(10), "no {text:?} in {all}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn ctrl_c_during_a_tool_ends_a_single_question() {
    let (dir, server) = (directory(&[("slow.lua", SLOW)], false), calling());
    let mut child = command(dir.path(), &server, &["-p", "Go"]).stderr(Stdio::piped()).spawn().unwrap();
    let seen = Seen::of(child.stderr.take().unwrap());
    seen.wait(0, "slow");
    ctrl_c(&child);
    let code = child.wait().unwrap().code();
    seen.wait(0, "stopped\n");
    assert_eq!(code, Some(130));
    assert!(!seen.0.lock().unwrap().contains("error"), "{}", seen.0.lock().unwrap());
}

/// The two ends of a new terminal.
#[allow(unsafe_code)]
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the numbers and the size live for the call; the returned descriptors have no other
    // owner.
    unsafe {
        let made =
            libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size);
        assert_eq!(made, 0);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    }
}

/// A chat in a terminal.
struct Chat {
    keyboard: File,
    seen: Seen,
    child: Child,
    at: usize,
}

impl Chat {
    fn start(mut command: R1, dir: &Path) -> Self {
        let (keyboard, theirs) = terminal();
        let seen = Seen::of(keyboard.try_clone().unwrap());
        let end = || Stdio::from(theirs.try_clone().unwrap());
        command.env("NO_PROXY", "127.0.0.1").env("HOME", dir).env_remove("XDG_STATE_HOME").env("TERM", "xterm");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self { keyboard, seen, child, at: 0 }
    }

    fn wait(&mut self, text: &str) {
        self.at = self.seen.wait(self.at, text);
    }

    /// Types at the prompt and waits for the expected output.
    fn talk(&mut self, text: &str, expected: &str) {
        self.wait("\x1b[?2004h");
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.wait(expected);
    }

    /// Ends the chat; returns what it printed.
    fn end(mut self, last: &str) -> String {
        self.talk(last, "");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let printed = self.seen.0.lock().unwrap();
        printed.clone()
    }
}

/// Counts the messages that it has heard.
fn counting(reason: &'static str) -> Server {
    serving(move |request, _| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let count = body["messages"].as_array().unwrap().len();
        streamed(&[delta(&json!({ "content": format!("Heard {count}.") })), finish(reason)])
    })
}

#[test]
fn a_chat_continues_after_ctrl_c_during_a_tool() {
    let (dir, server) = (directory(&[("slow.lua", SLOW)], false), calling());
    let mut chat = Chat::start(command(dir.path(), &server, &["--no-color"]), dir.path());
    chat.talk("Go\r", "slow\r\n");
    ctrl_c(&chat.child);
    chat.wait("stopped and undone: /retry sends the question again");
    chat.talk("/retry\r", "Heard 1.");
    chat.talk("More\r", "Heard 3.");
    chat.talk("/undo\r", "undone: More");
    chat.talk("/undo\r", "undone: Go");
    chat.talk("Else\r", "Heard 1.");
    let printed = chat.end("\x04");
    assert!(!printed.contains("error"), "{printed}");
}

#[test]
fn undo_works_for_a_loaded_conversation() {
    let (dir, server) = (directory(&[], false), counting("length"));
    let command = r1(dir.path(), &["infer", "--api-base", &server.url, "--model", "m", "--no-color"]);
    let mut chat = Chat::start(command, dir.path());
    for (typed, expected) in [
        ("Go\r", "cut off"),
        ("/save chat.json\r", "2 messages written to chat.json"),
        ("/reset\r", "the conversation is cleared"),
        ("/undo\r", "no question yet"),
        ("/load chat.json\r", "2 messages read"),
        ("More\r", "Heard 3."),
        ("/undo\r", "undone: More"),
        ("/undo\r", "undone: Go"),
        ("Else\r", "Heard 1."),
    ] {
        chat.talk(typed, expected);
    }
    chat.end("\x04");
}

/// Lines that are pasted into a terminal without bracketed paste, or typed during a reply.
#[test]
fn lines_that_arrive_together_are_questions_of_their_own() {
    let (dir, server) = (directory(&[], false), counting("stop"));
    let command = r1(dir.path(), &["infer", "--api-base", &server.url, "--model", "m", "--no-color"]);
    let mut chat = Chat::start(command, dir.path());
    chat.talk("One\rTwo\r\x04", "Heard 1.");
    chat.wait("Heard 3.");
    assert_eq!(chat.child.wait().unwrap().code(), Some(0));
}
