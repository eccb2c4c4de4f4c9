//! `r1.connection`, and `require("@r1/env_http")` with OpenEnv, on a WebSocket server of the tests.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, WebSocket, accept};

use super::env_http::episode;
use super::outside::{recipe_with, returned_by};
use super::*;
use crate::net::AllowedAddresses;
use crate::script::{Record, Split, Strictness};
use crate::tools::connection::{Socket, SocketOptions};

/// The actions of the clients of a server: `open 0`, each message, `close 0`.
type Seen = Arc<Mutex<Vec<String>>>;

/// A WebSocket server. `talk` serves one connection; its number counts from 0.
fn sockets(talk: impl Fn(usize, &mut WebSocket<TcpStream>, &Seen) + Send + Sync + 'static) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (seen, talk) = (Seen::default(), Arc::new(talk));
    let log = seen.clone();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (log, talk) = (log.clone(), talk.clone());
            std::thread::spawn(move || {
                let Ok(mut socket) = accept(stream.unwrap()) else { return };
                log.lock().unwrap().push(format!("open {number}"));
                talk(number, &mut socket, &log);
                log.lock().unwrap().push(format!("close {number}"));
            });
        }
    });
    (address, seen)
}

/// Answers each message with the texts of `answer`, until the client closes the connection.
fn answering(answer: impl Fn(usize, &Value) -> Vec<String> + Send + Sync + 'static) -> (String, Seen) {
    sockets(move |number, socket, seen| {
        while let Ok(message) = socket.read() {
            if let Message::Text(text) = message {
                let message: Value = serde_json::from_str(&text).unwrap();
                seen.lock().unwrap().push(format!("{number} {message}"));
                for text in answer(number, &message) {
                    socket.send(Message::text(text)).unwrap();
                }
                if message["type"] == "close" {
                    let _ = socket.close(None);
                }
            }
        }
    })
}

/// Waits until the server has seen something.
fn until(seen: &Seen, what: &str) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !seen.lock().unwrap().iter().any(|line| line == what) {
        assert!(Instant::now() < limit, "{what} is missing: {:?}", seen.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A recipe whose `reset` returns what `body` returns; `server` is a connection with `options`.
fn bench(address: &str, options: &str, body: &str) -> Bench {
    Bench::new(&format!(
        "local server = r1.connection {{ url = 'ws://{address}/ws', {options} }}\n\
         return r1.recipe {{ needs = {{ 'http:{address}' }}, reward = function() return 0 end,\n\
         env = r1.env {{ reset = function(task) return {{ it = (function() {body} end)() }} end,\n\
         step = function(state) state.it = server:request('more') return {{ reward = 0 }} end }} }}"
    ))
}

#[test]
fn a_connection_stays_open_between_requests_and_is_replayed_without_the_server() {
    let (address, seen) = answering(|_, message| vec![json!({ "echo": message, "none": null }).to_string()]);
    let bench = bench(
        &address,
        "",
        "local a = server:request({ n = 1 })\n local b = server:request({ 1, 2 }, { timeout = 5 })\n\
         return { a.echo.n, b.echo[2], a.none == nil, server.name }",
    );
    let record = Record::live();
    let live = returned_by(&bench, &record).unwrap();
    assert_eq!(live, json!([1, 2, true, format!("ws://{address}/ws")]));
    // The trajectory is over: its connection is closed.
    until(&seen, "close 0");
    assert_eq!(*seen.lock().unwrap(), ["open 0", "0 {\"n\":1}", "0 [1,2]", "close 0"]);
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(returned_by(&bench, &replay).unwrap(), live);
    assert_eq!((replay.close(), seen.lock().unwrap().len()), (None, 4));
}

#[test]
fn every_trajectory_has_its_own_connection() {
    let (address, seen) = answering(|number, _| vec![json!(number).to_string()]);
    let bench = bench(&address, "", "return server:request('hello')");
    let worker = bench.worker();
    let states: Vec<_> = (0..3).map(|_| run(worker.reset(&json!({}), 0)).map_err(|_| ()).unwrap()).collect();
    let mut numbers: Vec<u64> =
        states.iter().map(|state| state.snapshot().unwrap()["state"]["it"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
    drop(states);
    for number in 0..3 {
        until(&seen, &format!("close {number}"));
    }
}

#[test]
fn a_copy_of_a_trajectory_repeats_its_messages_on_a_connection_of_its_own() {
    let counts = Mutex::new(std::collections::BTreeMap::new());
    let (address, seen) = answering(move |number, _| {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(number).or_insert(0);
        *count += 1;
        vec![count.to_string()]
    });
    let bench = bench(&address, "", "server:request('a') return server:request('b')");
    let worker = bench.worker();
    let record = Record::live();
    let it = |state: &State| state.snapshot().unwrap()["state"]["it"].clone();
    run(async {
        let state = worker.reset_as(Split::Train, &json!({}), 0, &record).await.map_err(|_| ()).unwrap();
        let copy = state.fork().unwrap();
        for state in [&state, &copy] {
            worker.step(state, &action("x")).await.map_err(|_| ()).unwrap();
            assert_eq!(it(state), json!(3));
        }
    });
    until(&seen, "1 \"more\"");
    let of_copy: Vec<String> = seen.lock().unwrap().iter().filter(|line| line.starts_with("1 ")).cloned().collect();
    assert_eq!(of_copy, ["1 \"a\"", "1 \"b\"", "1 \"more\""]);
    // A replay that continues with live calls repeats the messages of the record.
    let replay =
        Record::replay(record.exchanges().into_iter().filter(|call| call.step == 0).collect(), Strictness::Live);
    run(async {
        let state = worker.reset_as(Split::Train, &json!({}), 0, &replay).await.map_err(|_| ()).unwrap();
        assert!(!seen.lock().unwrap().contains(&"open 2".to_owned()));
        worker.step(&state, &action("x")).await.map_err(|_| ()).unwrap();
        assert_eq!(it(&state), json!(3));
    });
}

#[test]
fn missing_and_unrequested_answers_are_failures_with_a_reason() {
    let twice = "local a, why = server:request('a')\n local b, again = server:request('b')\n\
                 return { why or '', again or '' }";
    for (answers, options, first, second) in [
        (vec!["<html>"], "", "the answer is not JSON: <html>", "the answer is not JSON: <html>"),
        (vec![], "timeout = 0.2", "no answer within 0.2 s", "the connection is closed: no answer within 0.2 s"),
        (vec!["12345678901"], "max_bytes = 10", "the message has more than 10 bytes", "the connection is closed"),
    ] {
        let replies: Vec<String> = answers.iter().map(|&text| text.to_owned()).collect();
        let (address, _) = answering(move |_, _| replies.clone());
        let returned = returned_by(&bench(&address, options, twice), &Record::live()).unwrap();
        assert_eq!(returned[0], first);
        assert!(returned[1].as_str().unwrap().starts_with(second), "{returned}");
    }
    // Two answers to one request; the second is read before the next request.
    let (address, _) = answering(|_, _| vec!["1".to_owned(), "2".to_owned()]);
    let returned = returned_by(
        &bench(
            &address,
            "",
            "local a = server:request('a') r1.sleep(0.2) local b, why = server:request('b') return { a, why }",
        ),
        &Record::live(),
    );
    assert_eq!(
        returned.unwrap(),
        json!([1, "the connection is closed: the server sent a message without a request: 2"])
    );
    // A server that closes, and one that is opened again.
    let (address, seen) = sockets(|_, socket, _| {
        let _ = socket.read();
        let _ = socket.close(None);
        let _ = socket.read();
    });
    let returned =
        returned_by(&bench(&address, "", &format!("server:request(1) server:close() {twice}")), &Record::live());
    let returned = returned.unwrap();
    assert!(returned[0].as_str().unwrap().starts_with("the server closed the connection"), "{returned}");
    assert!(returned[1].as_str().unwrap().starts_with("the connection is closed: the server closed"), "{returned}");
    until(&seen, "open 1");
    // Nothing listens, and a server without WebSockets.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let returned = returned_by(&bench(&closed, "", twice), &Record::live()).unwrap();
    assert_eq!(returned, json!(["connection refused", "connection refused"]));
    let (address, _) = outside::server(|_, _, _| "HTTP/1.1 403 No\r\nContent-Length: 4\r\n\r\nlate".to_owned());
    let returned = returned_by(&bench(&address, "", twice), &Record::live()).unwrap();
    assert_eq!(returned[0], "the server answers with status 403 and does not open a WebSocket: late");
}

#[test]
fn a_request_that_is_dropped_before_it_is_sent_leaves_the_connection_open() {
    let (address, seen) = answering(|_, message| {
        std::thread::sleep(Duration::from_millis(300));
        vec![message.to_string()]
    });
    let socket = Socket::new(SocketOptions {
        url: format!("ws://{address}/"),
        headers: Vec::new(),
        reach: AllowedAddresses::Anywhere,
        max_bytes: 1000,
        close_message: None,
        start_timeout: Duration::from_secs(20),
    });
    let limit = Duration::from_secs(20);
    let request = |number: u32| socket.request(number.to_string(), limit);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (first, dropped) = tokio::join!(request(1), tokio::time::timeout(Duration::from_millis(100), request(2)));
        assert_eq!((first.unwrap().as_str(), dropped.is_err()), ("1", true));
        assert_eq!(request(3).await.unwrap(), "3");
    });
    assert_eq!(*seen.lock().unwrap(), ["open 0", "0 1", "0 3"]);
}

#[test]
fn pings_are_answered_while_no_request_waits() {
    let (address, seen) = sockets(|_, socket, seen| {
        while let Ok(message) = socket.read() {
            match message {
                Message::Text(_) => {
                    socket.send(Message::text("1")).unwrap();
                    socket.send(Message::Ping("p".into())).unwrap();
                }
                Message::Pong(_) => seen.lock().unwrap().push("pong".to_owned()),
                _ => {}
            }
        }
    });
    let bench = bench(&address, "", "return server:request('a')");
    let worker = bench.worker();
    let _state = run(worker.reset(&json!({}), 0)).map_err(|_| ()).unwrap();
    until(&seen, "pong");
}

#[test]
fn connections_are_declared_and_their_options_checked() {
    let ask = "return r1.connection { url = 'ws://127.0.0.1:9/x' }:request('a')";
    let error = returned_by(&recipe_with("{}", ask), &Record::live()).unwrap_err();
    assert!(error.contains("the recipe does not declare that it connects to 127.0.0.1"), "{error}");
    assert!(error.contains("needs = { \"http:127.0.0.1\" }"), "{error}");
    // Public hosts only: the name leads to this machine.
    let error = returned_by(&recipe_with("{ 'http' }", ask), &Record::live()).unwrap_err();
    assert!(error.contains("does not declare that it connects to 127.0.0.1"), "{error}");
    for (options, why) in [
        ("url = 'http://a.co'", "it must begin with ws:// or wss://"),
        ("url = 'ws://'", "is not a URL"),
        ("uri = 'ws://a.co'", "did you mean `url`"),
        ("", "needs `command`, a list such as { \"python3\", \"server.py\" }, or `url`"),
        ("url = 'ws://a.co', timeout = 0", "`timeout` must be"),
    ] {
        let error = refused(&format!("local c = r1.connection {{ {options} }}"));
        assert!(error.contains(why), "{options}: {error}");
    }
    let error = refused("r1.connection { url = 'ws://a.co' }:request('a')");
    assert!(error.contains("not allowed while a recipe is loaded"), "{error}");
    let error = refused("r1.connection { url = 'ws://a.co' }.send = 1");
    assert!(!error.is_empty());
    let error = refused("return r1.connection { url = 'ws://a.co' }.reqest");
    assert!(error.contains("did you mean `request`"), "{error}");
}

/// A recipe with an OpenEnv environment, with these options.
fn openenv(address: &str, options: &str) -> Bench {
    let action = if options.contains("action =") {
        ""
    } else {
        "action = function(action) return { message = action.text } end,"
    };
    let retries = if options.contains("retries") { "" } else { "retries = 0," };
    Bench::new(&format!(
        "local env_http = require('@r1/env_http')\n\
         return r1.recipe {{ needs = {{ 'http:{address}' }},\n\
         env = env_http {{ url = 'http://{address}/', protocol = 'openenv', {action} {retries} {options} }} }}"
    ))
}

/// An answer of an OpenEnv server.
fn observation(text: &str, reward: &Value, done: bool) -> Vec<String> {
    let data = json!({ "observation": { "text": text }, "reward": reward, "done": done });
    vec![json!({ "type": "observation", "data": data }).to_string()]
}

fn failure(data: &Value) -> Vec<String> {
    vec![json!({ "type": "error", "data": data }).to_string()]
}

#[test]
fn an_openenv_environment_is_reset_stepped_and_closed_over_one_websocket() {
    let (address, seen) = answering(|_, message| match message["type"].as_str().unwrap() {
        "reset" => observation("a room", &json!(null), false),
        "close" => Vec::new(),
        "state" => vec![json!({ "type": "state", "data": { "step_count": 1 } }).to_string()],
        _ if message["data"]["message"] == "jump" => observation("won", &json!(1.5), true),
        _ => failure(&json!({ "message": "Invalid message", "code": "VALIDATION_ERROR",
                              "errors": [{ "loc": ["message", 0], "msg": "too short" }] })),
    });
    let bench = openenv(
        &address,
        "system = 'Play.', observation = function(seen) return seen.text end, server_state = true,\n\
         reset = function(task) return { seed = 40 + task.index } end,\n\
         reward = function(answer) return (answer.reward or 0) + answer.server_state.step_count end",
    );
    let record = Record::live();
    let played = episode(&bench, &record, &["look", "jump"]).unwrap();
    let refused = "Error: step: the server reports an error: Invalid message (VALIDATION_ERROR); message.0: too short";
    let messages = ["Play.", "a room", "look", refused, "jump", "won"].map(str::to_owned).to_vec();
    assert_eq!(played, (messages, vec![0.0, 2.5], true));
    until(&seen, "close 0");
    let lines = seen.lock().unwrap().clone();
    assert_eq!(lines[1], "0 {\"data\":{\"seed\":43},\"type\":\"reset\"}");
    assert!(lines.contains(&"0 {\"type\":\"close\"}".to_owned()), "{lines:?}");
    assert_eq!(lines[3], "0 {\"data\":{\"message\":\"look\"},\"type\":\"step\"}");
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(episode(&bench, &replay, &["look", "jump"]).unwrap(), played);
    assert_eq!((replay.close(), seen.lock().unwrap().len()), (None, lines.len()));
}

#[test]
fn trajectories_of_a_group_reset_openenv_with_the_same_seed() {
    let (address, seen) = answering(|_, message| match message["type"].as_str() {
        Some("reset") => observation("go", &json!(0), false),
        _ => Vec::new(),
    });
    let bench = openenv(&address, "");
    let worker = bench.worker();
    for seed in [7, 7, 8] {
        let state = run(worker.reset(&json!({}), seed)).map_err(|failure| bench.show(failure)).unwrap();
        run(worker.close(&state));
    }
    let seeds: Vec<String> =
        seen.lock().unwrap().iter().filter_map(|line| Some(line.split_once("seed")?.1.to_owned())).collect();
    assert_eq!(seeds.len(), 3, "{seeds:?}");
    assert!(seeds[0] == seeds[1] && seeds[1] != seeds[2], "{seeds:?}");
}

#[test]
fn broken_openenv_servers_fail_the_trajectory_with_the_reason() {
    let go = || observation("go", &json!(0), false);
    for (first, step, why) in [
        (
            failure(&json!({ "message": "full", "code": "CAPACITY_REACHED" })),
            go(),
            "full (CAPACITY_REACHED); allow it as many sessions",
        ),
        (failure(&json!(7)), go(), "reset: the server reports an error: 7"),
        (vec!["[]".to_owned()], go(), "reset: the answer is not of the type observation"),
        (vec!["<html>".to_owned()], go(), "reset: the answer is not JSON: <html>"),
        (observation("x", &json!(0), true), go(), "the environment is done before its first step"),
        (vec![json!({ "type": "observation", "data": {} }).to_string()], go(), "the answer has no `observation`"),
        (
            go(),
            failure(&json!({ "message": "division by zero", "code": "EXECUTION_ERROR" })),
            "step: the server reports an error: division by zero (EXECUTION_ERROR)",
        ),
        (go(), observation("x", &json!("much"), false), "step: the reward is much, not a number"),
        (
            go(),
            vec![json!({ "type": "state", "data": {} }).to_string()],
            "step: the answer is not of the type observation",
        ),
    ] {
        let (address, _) =
            answering(move |_, message| if message["type"] == "reset" { first.clone() } else { step.clone() });
        let error = episode(&openenv(&address, ""), &Record::live(), &["left"]).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn requests_to_an_openenv_server_without_a_free_session_are_repeated() {
    let (address, seen) = sockets(|number, socket, _| {
        // The server says that it is full before it reads anything, and closes.
        if number == 0 {
            let full = failure(&json!({ "message": "full", "code": "CAPACITY_REACHED" }));
            socket.send(Message::text(full[0].clone())).unwrap();
            let _ = socket.close(None);
        }
        while let Ok(message) = socket.read() {
            if message.is_text() {
                socket.send(Message::text(observation("go", &json!(0), false)[0].clone())).unwrap();
            }
        }
    });
    let played = episode(&openenv(&address, "retries = 1"), &Record::live(), &[]).unwrap();
    assert_eq!(played.0, ["{\"text\":\"go\"}"]);
    until(&seen, "open 1");
}

#[test]
fn options_of_an_openenv_environment_are_checked() {
    for (options, why) in [
        ("id = 'x'", "`id` is not an option for openenv"),
        ("server_state = 1", "`server_state` must be true or false"),
        ("action = 'message'", "`action` must be a function"),
    ] {
        let error = openenv("127.0.0.1:1", options).load(&[]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{options}: {error}");
    }
    for (options, why) in [
        ("url = 'ftp://x', protocol = 'openenv', action = function() end", "`url` must begin with http://"),
        ("url = 'http://x', protocol = 'openenv'", "`action` is required for openenv"),
        ("url = 'http://x', server_state = true", "`server_state` is an option for openenv only"),
    ] {
        let error = refused(&format!("return r1.recipe {{ env = require('@r1/env_http') {{ {options} }} }}"));
        assert!(error.contains(why), "{options}: {error}");
    }
    // An action that is not a table fails the trajectory.
    let (address, _) = answering(|_, _| observation("go", &json!(0), false));
    let error =
        episode(&openenv(&address, "action = function(action) return action.text end"), &Record::live(), &["x"]);
    assert!(error.unwrap_err().contains("must return the fields of an action for openenv, a table, got a string"));
}
