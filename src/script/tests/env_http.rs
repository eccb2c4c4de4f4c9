//! `require("@r1/env_http")`: environments behind an HTTP server.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::outside::{ok, server};
use super::*;
use crate::mdp::Observation;
use crate::script::{Record, Split, Strictness};

fn status(code: &str, body: &str) -> String {
    format!("HTTP/1.1 {code}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A recipe with an environment behind the server, with these options.
fn bench(address: &str, options: &str) -> Bench {
    let retries = if options.contains("retries") { "" } else { "retries = 0," };
    Bench::new(&format!(
        "local env_http = require('@r1/env_http')\n\
         return r1.recipe {{ needs = {{ 'http:{address}' }},\n\
         env = env_http {{ url = 'http://{address}/', {retries} {options} }} }}"
    ))
}

/// Runs an episode with these replies: the messages that the policy reads, the rewards, and whether
/// the episode is over.
pub(super) fn episode(
    bench: &Bench,
    record: &Record,
    replies: &[&str],
) -> Result<(Vec<String>, Vec<f64>, bool), String> {
    let worker = bench.worker();
    run(async {
        let show = |failure| bench.show(failure);
        let state = worker.reset_as(Split::Train, &json!({ "index": 3 }), 0, record).await.map_err(show)?;
        let (mut rewards, mut done) = (Vec::new(), false);
        for reply in replies {
            let result = worker.step(&state, &action(reply)).await.map_err(show)?;
            rewards.push(result.reward);
            done = result.done;
        }
        let Observation::Messages(shown) = worker.observe(&state, 1000).await.map_err(show)? else { panic!() };
        worker.close(&state).await;
        Ok((shown.iter().map(|message| message.content.text()).collect(), rewards, done))
    })
}

#[test]
fn an_agentgym_environment_is_created_reset_stepped_and_closed() {
    for (made, id) in [("7", "env_idx"), ("{\"id\": 7}", "id")] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let (address, _) = server(move |first, _, body| {
            let path = first.split(' ').nth(1).unwrap();
            log.lock().unwrap().push(format!("{path} {body}"));
            match path.split('?').next().unwrap() {
                "/create" => ok(made),
                // WebShop gives no observation here.
                "/reset" => ok("[null, null]"),
                "/observation" => ok("\"a room\""),
                "/step" if body.contains("jump") => ok("{\"state\": \"won\", \"reward\": 1.5, \"done\": true}"),
                "/step" => ok("{\"state\": \"nothing\", \"reward\": 0, \"done\": false, \"info\": null}"),
                _ => status("404 Not Found", ""),
            }
        });
        let bench = bench(
            &address,
            "protocol = 'agentgym', system = 'Play.', reset = function(task) return { data_idx = task.index } end",
        );
        let record = Record::live();
        let played = episode(&bench, &record, &["look", "jump"]).unwrap();
        let messages = ["Play.", "a room", "look", "nothing", "jump", "won"].map(str::to_owned).to_vec();
        assert_eq!(played, (messages, vec![0.0, 1.5], true));
        let requests = seen.lock().unwrap().clone();
        assert_eq!(requests[0], "/create {}");
        assert_eq!(requests[1], format!("/reset {{\"data_idx\":3,\"{id}\":7}}"));
        assert_eq!(requests[2], format!("/observation?{id}=7 "));
        assert!(requests[3].contains("look") && requests[3].contains(&format!("\"{id}\":7")), "{requests:?}");
        assert_eq!(requests[5], format!("/close {{\"{id}\":7}}"));
        // A replay needs no server.
        let replay = Record::replay(record.exchanges(), Strictness::Exact);
        assert_eq!(episode(&bench, &replay, &["look", "jump"]).unwrap(), played);
        assert_eq!((replay.close(), seen.lock().unwrap().len()), (None, 6));
    }
}

#[test]
fn a_plain_environment_has_its_own_actions_observations_and_rewards() {
    let (address, _) = server(|first, _, body| match first.split(' ').nth(1).unwrap() {
        "/reset" => ok("{\"session_id\": \"a\", \"observation\": {\"board\": [0, 1]}}"),
        "/step" if body.contains("99") => status("422 Unprocessable", "{\"detail\": \"no such move\"}"),
        "/step" => {
            ok("{\"session_id\": \"a\", \"observation\": {\"board\": [1, 1]}, \"score\": 4, \"truncated\": true}")
        }
        _ => ok("{}"),
    });
    let bench = bench(
        &address,
        "action = function(action) local n = tonumber(action.text) if not n then return nil, 'no number' end return n end,\n\
         observation = function(seen) return 'board ' .. table.concat(seen.board, ' ') end,\n\
         reward = function(answer) return answer.score end",
    );
    let (messages, rewards, done) = episode(&bench, &Record::live(), &["left", "99", "1"]).unwrap();
    assert_eq!(messages[0], "board 0 1");
    assert_eq!(messages[2], "Error: no number");
    assert!(messages[4].starts_with("Error: POST") && messages[4].contains("no such move"), "{messages:?}");
    assert_eq!((messages[6].as_str(), rewards, done), ("board 1 1", vec![0.0, 0.0, 4.0], false));
}

#[test]
fn answers_that_are_no_steps_fail_the_trajectory_with_the_reason() {
    let reset = "{\"session_id\": \"a\", \"observation\": \"go\"}";
    for (first, step, why) in [
        ("<html>", "", "/reset: the answer is not JSON: <html>"),
        ("{\"observation\": \"go\"}", "", "/reset gave no `session_id`"),
        ("[1]", "", "/reset gave no `session_id`"),
        ("3", "", "/reset: the answer is not an object"),
        ("{\"error\": \"full\"}", "", "the server reports an error: full"),
        (reset, "<html>", "/step: the answer is not JSON: <html>"),
        (reset, "null", "/step: the answer is not an object"),
        (reset, "{\"session_id\": \"b\"}", "the answer is for session b, not a"),
        (reset, "{\"done\": \"yes\"}", "`done` is yes, not true or false"),
        (reset, "{\"reward\": \"1\"}", "the reward is 1, not a number"),
    ] {
        let (address, _) = server(move |line, _, _| ok(if line.contains("/reset") { first } else { step }));
        let error = episode(&bench(&address, ""), &Record::live(), &["left"]).unwrap_err();
        assert!(error.contains(why), "{first} {step}: {error}");
    }
    let (address, count) = server(|_, _, _| status("503 Busy", "later"));
    let error = episode(&bench(&address, ""), &Record::live(), &[]).unwrap_err();
    assert!(error.contains("status 503: later"), "{error}");
    assert_eq!(*count.lock().unwrap(), 1);
}

#[test]
fn options_of_an_http_environment_are_checked() {
    for (options, why) in [
        ("protocol = 'openai'", "`protocol` must be plain, agentgym or openenv, got openai"),
        ("obervation = 1", "unknown option `obervation`"),
        ("action = 'text'", "`action` must be a function, got a string"),
        ("url = false", "`url` is required"),
    ] {
        let bench = bench("127.0.0.1:1", options);
        let error = bench.load(&[]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{options}: {error}");
    }
}

#[test]
fn requests_of_a_reset_are_repeated() {
    let failures = Mutex::new(1);
    let (address, count) = server(move |_, _, _| {
        let mut left = failures.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return status("500 No", "");
        }
        ok("{\"session_id\": 1, \"observation\": \"go\"}")
    });
    let played = episode(&bench(&address, "retries = 1"), &Record::live(), &[]).unwrap();
    assert_eq!((played.0, *count.lock().unwrap()), (vec!["go".to_owned()], 3));
}

#[test]
fn a_step_is_sent_once_and_terminated_ends_the_episode() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let log = steps.clone();
    let (address, _) = server(move |first, _, _| {
        if first.contains("/reset") {
            return ok("{\"session_id\": 1, \"observation\": \"go\"}");
        }
        let mut steps = log.lock().unwrap();
        steps.push(first.contains("/step"));
        match steps.iter().filter(|step| **step).count() {
            1 => ok("{\"observation\": \"end\", \"reward\": 1, \"terminated\": true}"),
            _ => status("500 No", ""),
        }
    });
    let bench = bench(&address, "retries = 2");
    let (messages, rewards, done) = episode(&bench, &Record::live(), &["left"]).unwrap();
    assert_eq!((messages[2].as_str(), rewards, done), ("end", vec![1.0], true));
    // The server may have taken a step whose answer is an error.
    let error = episode(&bench, &Record::live(), &["left"]).unwrap_err();
    assert!(error.contains("status 500"), "{error}");
    assert_eq!(steps.lock().unwrap().iter().filter(|step| **step).count(), 2);
}

#[test]
fn a_session_of_a_failed_reset_is_closed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let (address, _) = server(move |first, _, body| {
        log.lock().unwrap().push(format!("{} {body}", first.split(' ').nth(1).unwrap()));
        match first.split(' ').nth(1).unwrap() {
            "/create" => ok("7"),
            "/close" => ok("true"),
            _ => status("422 Unprocessable", "no such task"),
        }
    });
    let error = episode(&bench(&address, "protocol = 'agentgym'"), &Record::live(), &[]).unwrap_err();
    assert!(error.contains("no such task"), "{error}");
    assert_eq!(seen.lock().unwrap().last().unwrap(), "/close {\"env_idx\":7}");
}
