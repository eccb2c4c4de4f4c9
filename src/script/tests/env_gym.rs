//! `require("@r1/env_gym")` on a stand-in for gymnasium, and `r1.connection` to a program.

use std::time::Instant;

use serde_json::json;

use super::env_http::episode;
use super::outside::{recipe_with, returned_by};
use super::*;
use crate::script::{Record, Strictness};

const GYMNASIUM: &str = include_str!("../../../tests/fixtures/gymnasium.py");

/// A recipe with an environment of the stand-in.
fn gym(options: &str) -> Bench {
    let bench = Bench::new(&format!(
        "local env_gym = require('@r1/env_gym')\n\
         return r1.recipe {{ needs = {{ 'process:python3' }},\n\
         env = env_gym {{ {options}, env = {{ PYTHONPATH = 'lib' }} }} }}"
    ));
    bench.file("lib/gymnasium.py", GYMNASIUM);
    bench
}

/// The reason why an episode with these replies fails.
fn failure(bench: &Bench, replies: &[&str]) -> String {
    episode(bench, &Record::live(), replies).unwrap_err()
}

#[test]
fn a_gymnasium_environment_is_stepped_and_replayed_without_python() {
    let bench = gym(
        "'Count-v0', system = 'Count.', kwargs = { last = 3 }, seed = function(task) return 40 + task.index end,\n\
         options = function(task) return { start = task.index } end,\n\
         observation = function(seen, info, text) return `{seen} {info.seed or info.steps} {text == nil}` end",
    );
    let record = Record::live();
    let played = episode(&bench, &record, &["1", "left", "1"]).unwrap();
    let refused = "Error: the action must be a whole number from 0 to 2, got \"left\"";
    let messages = ["Count.", "3 43 true", "1", "4 1 true", "left", refused, "1", "5 2 true"].map(str::to_owned);
    assert_eq!(played, (messages.to_vec(), vec![1.0, 0.0, 1.0], false));
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    std::fs::remove_dir_all(bench.dir.path().join("lib")).unwrap();
    assert_eq!(episode(&bench, &replay, &["1", "left", "1"]).unwrap(), played);
    assert_eq!(replay.close(), None);
}

#[test]
fn terminated_and_truncated_are_kept_apart() {
    let bench = gym("'Count-v0', kwargs = { last = 2 }");
    let worker = bench.worker();
    run(async {
        for (replies, done, truncated) in
            [(["1", "2"], true, true), (["0", "1"], false, true), (["1", "7"], false, false)]
        {
            let state = worker.reset(&json!({ "seed": 1 }), 0).await.map_err(|failure| bench.show(failure)).unwrap();
            worker.step(&state, &action(replies[0])).await.map_err(|failure| bench.show(failure)).unwrap();
            let last = worker.step(&state, &action(replies[1])).await.map_err(|failure| bench.show(failure)).unwrap();
            assert_eq!((last.done, last.truncated), (done, truncated), "{replies:?}");
        }
    });
}

#[test]
fn trajectories_of_a_group_start_from_the_same_seed() {
    let bench = gym("'Count-v0', kwargs = { render_mode = 'ansi' }");
    let first = |seed: u64, task: Json| {
        let worker = bench.worker();
        let state = run(worker.reset(&task, seed)).map_err(|failure| bench.show(failure)).unwrap();
        state.snapshot().unwrap()["state"]["messages"][0]["content"].clone()
    };
    let (one, again, other) = (first(7, json!({})), first(7, json!({})), first(8, json!({})));
    assert!(one.as_str().unwrap().starts_with("at ["), "{one}");
    assert!(one == again && one != other, "{one} {again} {other}");
    assert_eq!(first(7, json!({ "seed": 5 })), first(8, json!({ "seed": 5 })));
}

#[test]
fn actions_outside_of_their_space_are_observations() {
    let bench = gym("'Nested-v0'");
    let replies =
        ["{\"move\": [5, \"up\"]}", "[1]", "{\"move\": [5]}", "{\"move\": [4, \"up\"]}", "{\"move\": [6, \"Up!\"]}"];
    let (messages, rewards, _) = episode(&bench, &Record::live(), &replies).unwrap();
    let read: Vec<&str> = messages.iter().skip(4).step_by(2).map(String::as_str).collect();
    assert_eq!(
        read,
        [
            "Error: the action must be an object with the fields move, got [1]",
            "Error: the action.move must be a list of 2 values, got [5]",
            "Error: the action.move[1] must be a whole number from 5 to 6, got 4",
            "Error: the action.move[2] must be text of 1 to 8 characters, of: abcdefghijklmnopqrstuvwxyz",
        ]
    );
    assert_eq!(rewards, [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(failure(&bench, &["{\"move\": [5, \"nan\"]}"]).contains("the reward is \"nan\", not a number"));
    // Whole numbers in any form; true is not 1.
    let (messages, rewards, _) = episode(&gym("'Count-v0'"), &Record::live(), &["1.0", "true", "1.5"]).unwrap();
    assert_eq!(rewards, [1.0, 0.0, 0.0]);
    assert!(messages[4].ends_with("got true or false") && messages[6].ends_with("got 1.5"), "{messages:?}");
    // A function of the recipe gives the action, or a reason.
    let bench = gym("'Count-v0', action = function(action) return tonumber(action.text), 'no number' end");
    let (messages, rewards, _) = episode(&bench, &Record::live(), &["x", "1"]).unwrap();
    assert_eq!((messages[2].as_str(), rewards), ("Error: no number", vec![0.0, 1.0]));
}

#[test]
fn environments_that_break_fail_their_trajectory_only() {
    let bench = gym("'Trouble-v0', timeout = 2");
    for (reply, why) in [
        ("raise", "step of Trouble-v0: ValueError: broken (gymnasium.py:"),
        ("exit", "step of Trouble-v0: SystemExit: 3"),
        ("read", "step of Trouble-v0: EOFError"),
        ("big", "is more than max_bytes = 1048576"),
        ("die", "step of Trouble-v0: it ended (exit status: 9)"),
        ("spin", "step of Trouble-v0: no answer within 2 s"),
    ] {
        let error = failure(&bench, &[reply]);
        assert!(error.contains(why), "{reply}: {error}");
    }
    // What an environment prints is no answer. Objects without a form in JSON are text.
    let (messages, rewards, _) = episode(&bench, &Record::live(), &["flood", "x"]).unwrap();
    assert_eq!(rewards, [1.0, 1.0]);
    assert_eq!(messages[2], messages[4]);
}

#[test]
fn a_process_that_dies_is_started_again_and_its_trajectories_fail() {
    let bench = gym("'Trouble-v0'");
    let worker = bench.worker();
    run(async {
        let reset = || async { worker.reset(&json!({}), 0).await.map_err(|failure| bench.show(failure)) };
        let (one, two) = (reset().await.unwrap(), reset().await.unwrap());
        let step = async |state: &State, text: &str| {
            worker.step(state, &action(text)).await.map_err(|failure| bench.show(failure))
        };
        step(&two, "x").await.unwrap();
        assert!(step(&one, "die").await.unwrap_err().contains("it ended (exit status: 9)"));
        let lost = step(&two, "x").await.unwrap_err();
        assert!(lost.contains("was started again, and the state of this trajectory is lost"), "{lost}");
        let three = reset().await.unwrap();
        step(&three, "x").await.unwrap();
        // A copy of a lost trajectory is made again from its messages.
        step(&two.fork().unwrap(), "x").await.unwrap();
    });
}

#[test]
fn a_slow_environment_does_not_hold_up_the_others() {
    let bench = gym("'Trouble-v0'");
    let worker = bench.worker();
    run(async {
        let reset = || async { worker.reset(&json!({}), 0).await.map_err(|failure| bench.show(failure)).unwrap() };
        let (slow, fast) = (reset().await, reset().await);
        let started = Instant::now();
        let step = async |state: &State, text: &str| {
            worker.step(state, &action(text)).await.map_err(|failure| bench.show(failure)).unwrap();
            started.elapsed().as_secs_f64()
        };
        let many = async {
            for _ in 0..20 {
                step(&fast, "x").await;
            }
            started.elapsed().as_secs_f64()
        };
        let (slow, many) = tokio::join!(step(&slow, "slow"), many);
        assert!(many < slow && slow >= 1.0, "{many} {slow}");
    });
}

#[test]
fn environments_are_used_again_unless_they_broke() {
    let bench = gym("'Trouble-v0'");
    let worker = bench.worker();
    run(async {
        let mut made = Vec::new();
        for text in ["made", "made", "raise", "made"] {
            let state = worker.reset(&json!({}), 0).await.map_err(|failure| bench.show(failure)).unwrap();
            if worker.step(&state, &action(text)).await.is_ok() {
                made.push(state.snapshot().unwrap()["state"]["messages"][2]["content"].to_string());
            }
            worker.close(&state).await;
        }
        assert_eq!(made, ["\"1\"", "\"1\"", "\"2\""]);
    });
}

#[test]
fn several_processes_share_the_trajectories() {
    let bench = gym("'Trouble-v0', processes = 2");
    // One worker: its programs end with the last one that uses them.
    let worker = bench.worker();
    let pid = async || {
        let state = worker.reset(&json!({}), 0).await.map_err(|failure| bench.show(failure)).unwrap();
        worker.step(&state, &action("x")).await.map_err(|failure| bench.show(failure)).unwrap();
        state.snapshot().unwrap()["state"]["messages"][2]["content"].to_string()
    };
    let mut pids: Vec<String> = (0..4).map(|_| run(pid())).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 2, "{pids:?}");
}

#[test]
fn what_an_environment_misses_is_reported_before_a_run() {
    for (options, why, hint) in [
        (
            "'Cont-v0'",
            "Cont-v0 can't be made: Environment `Cont-v0` doesn't exist. Did you mean: `Count-v0`?",
            "MODULE:NAME",
        ),
        ("'Needs-v0'", "Needs-v0 can't be made: Box2D is not installed", "-m pip"),
        ("'Count-v0', kwargs = { lst = 1 }", "TypeError: ", "lst"),
        ("'Strange-v0'", "is not supported", "wrap the environment"),
        ("'Count-v0', python = 'no-such-python'", "there is no program `no-such-python` on the PATH", "install it"),
    ] {
        let bench = gym(options);
        let needs = "needs = { 'process:python3', 'process:no-such-python' }";
        let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
        bench.file("x.lua", &text.replace("needs = { 'process:python3' }", needs));
        let error = bench.show(bench.worker().prepare().unwrap_err());
        assert!(error.contains(why) && error.contains(hint), "{options}: {error}");
        assert!(error.contains("--> x.lua:3"), "{error}");
    }
    // Without gymnasium, the command that installs it.
    let bench = gym("'Count-v0'");
    bench.file("lib/gymnasium.py", "raise ImportError('no gymnasium here')");
    let error = bench.show(bench.worker().prepare().unwrap_err());
    assert!(
        error.contains("has no gymnasium: no gymnasium here") && error.contains("-m pip install gymnasium"),
        "{error}"
    );
    let bench = gym("'Count-v0'");
    let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
    bench.file("x.lua", &text.replace("needs = { 'process:python3' },", ""));
    let error = bench.show(bench.worker().prepare().unwrap_err());
    assert!(error.contains("needs = { \"process:python3\" }"), "{error}");
}

#[test]
fn options_of_a_gymnasium_environment_are_checked() {
    for (options, why) in [
        ("{}", "the first value is the id of an environment"),
        ("5", "takes a table, got a number"),
        ("{ 'A-v0', obervation = 1 }", "unknown option `obervation`"),
        ("{ 'A-v0', action = 'text' }", "`action` must be a function, got a string"),
        ("{ 'A-v0', kwargs = 'x' }", "`kwargs` must be a table"),
        ("{ 'A-v0', kwargs = { render_mode = 'human' } }", "render_mode \"human\" shows the policy nothing"),
        ("{ 'A-v0', processes = 0 }", "`processes` must be a whole number from 1 to 256"),
    ] {
        let error = refused(&format!("return r1.recipe {{ env = require('@r1/env_gym')({options}) }}"));
        assert!(error.contains(why), "{options}: {error}");
    }
    let bench = gym("'Count-v0', seed = function() return 1.5 end");
    assert!(failure(&bench, &[]).contains("the seed is 1.5; it must be a whole number"));
}

/// A program that handles each line of its input with `body`.
fn program(body: &str, options: &str) -> Bench {
    let ask = format!(
        "local program = r1.connection {{ command = {{ 'python3', 'p.py' }}, {options} }}\n\
         local a, why = program:request('a')\n local b, again = program:request('b')\n\
         return {{ why or a, again or b }}"
    );
    let bench = recipe_with("{ 'process:python3' }", &ask);
    bench.file("p.py", &format!("import sys, json, time\nfor line in sys.stdin:\n    it = json.loads(line)\n    if 'end' in it: continue\n    {body}\n"));
    bench
}

#[test]
fn programs_that_print_something_else_are_failures_with_a_reason() {
    let returned = |body: &str, options: &str| returned_by(&program(body, options), &Record::live()).unwrap();
    let answer = "print(json.dumps({'id': it['id'], 'answer': it['message']}), flush=True)";
    assert_eq!(returned(answer, ""), json!(["a", "b"]));
    // Lines that are not answers, repeated answers, and an answer without a request.
    assert_eq!(
        returned(&format!("print('hello'); {answer}; {answer}; print('{{\"id\": 99}}')"), ""),
        json!(["a", "b"])
    );
    assert_eq!(
        returned("print(json.dumps({'id': it['id'], 'error': 'no', 'hint': 'ask less'}), flush=True)", ""),
        json!(["no (ask less)", "no (ask less)"])
    );
    let long = returned("print('x' * 100000, flush=True)", "max_bytes = 1000");
    assert_eq!(long[0], "the program printed a line of more than 5096 bytes");
    assert_eq!(returned("time.sleep(9)", "timeout = 0.3"), json!(["no answer within 0.3 s", "no answer within 0.3 s"]));
    let dead = returned("sys.exit('no licence')", "restarts = 0");
    assert_eq!(dead[0], "it ended (exit status: 1): no licence");
    assert_eq!(
        dead[1],
        "program `python3`: it ended (exit status: 1): no licence (it has ended 1 times in a row, and is not started again)"
    );
    let garbage = returned("print('no JSON'); sys.exit(1)", "restarts = 0");
    assert_eq!(garbage[0], "it ended (exit status: 1); it printed 1 lines that are no answers");
    let flood = returned("[print('x' * 1000000) for _ in range(80)]", "restarts = 0");
    assert_eq!(flood[0], "it printed more than 64 MiB without an answer, and was stopped");
    for (options, why) in [
        ("command = {}", "`command` must be a list"),
        ("command = { 'a' }, url = 'ws://a.co'", "has both `command` and `url`"),
        ("command = { 'a' }, close_message = 1", "`close_message` is for a connection with `url`"),
        ("url = 'ws://a.co', processes = 2", "`processes` is for a connection with `command`"),
        ("url = 'ws://a.co', restarts = 2", "`restarts` is for a connection with `command`"),
        ("url = 'ws://a.co', open_message = 2", "`open_message` is for a connection with `command`"),
        ("url = 'ws://a.co', env = {}", "`env` is for a server with `command`"),
    ] {
        let error = refused(&format!("local c = r1.connection {{ {options} }}"));
        assert!(error.contains(why), "{options}: {error}");
    }
}

/// The answers, or the reasons, of a program with these requests. `close` closes the session; a
/// request that begins with `x` has a short time limit.
fn answers(body: &str, options: &str, requests: &[&str]) -> Json {
    let calls: String = requests
        .iter()
        .map(|request| match *request {
            "close" => "program:close()\n".to_owned(),
            text => format!("ask '{text}'\n"),
        })
        .collect();
    let bench = recipe_with(
        "{ 'process:python3' }",
        &format!(
            "local program = r1.connection {{ command = {{ 'python3', 'p.py' }}, {options} }}\n\
             local all = {{}}\n\
             local function ask(text)\n\
               local limit = if text:sub(1, 1) == 'x' then {{ timeout = 0.3 }} else nil\n\
               local answer, why = program:request(text, limit)\n\
               r1.push(all, why or answer)\n\
             end\n\
             {calls} return all"
        ),
    );
    bench.file(
        "p.py",
        &format!(
            "import sys, json, time, os, glob\nends = 0\nfor line in sys.stdin:\n    it = json.loads(line)\n    \
             if 'end' in it:\n        ends += 1\n        continue\n    text = it['message']\n    {body}\n    \
             print(json.dumps({{'id': it['id'], 'answer': [text, ends]}}), flush=True)\n"
        ),
    );
    returned_by(&bench, &Record::live()).unwrap()
}

#[test]
fn a_program_that_answers_no_requests_is_stopped_and_started_again() {
    // Only the second process answers.
    let second = "if text == 'open': open('pid%d' % os.getpid(), 'w').close()\n    \
                  elif len(glob.glob('pid*')) == 1: continue";
    let late = "no answer within 0.3 s";
    let replies = answers(second, "open_message = 'open'", &["x", "x", "x", "a"]);
    assert_eq!(replies, json!([late, late, late, ["a", 0]]));
    // An answer in between: the requests are not in a row.
    let some = "if text == 'x': continue";
    let replies = answers(some, "", &["a", "x", "x", "b", "x", "c"]);
    assert_eq!(replies, json!([["a", 0], late, late, ["b", 0], late, ["c", 0]]));
    // An answer that comes too late does not answer the next request.
    let slow = "if text == 'xslow': time.sleep(0.5)";
    assert_eq!(answers(slow, "", &["a", "xslow", "b"]), json!([["a", 0], late, ["b", 0]]));
}

#[test]
fn restarts_of_a_program_are_counted_between_two_answers() {
    let die = "if text == 'die': os._exit(3)";
    let ended = "it ended (exit status: 3)";
    let replies = answers(die, "restarts = 1", &["a", "die", "close", "b", "die", "close", "c"]);
    assert_eq!(replies, json!([["a", 0], ended, ["b", 0], ended, ["c", 0]]));
    let replies = answers(die, "restarts = 1", &["a", "die", "close", "die", "close", "c"]);
    assert_eq!(replies[2], ended);
    assert!(replies[3].as_str().unwrap().contains("has ended 2 times in a row, and is not started again"), "{replies}");
}

#[test]
fn a_program_reads_the_end_of_a_session() {
    assert_eq!(answers("pass", "", &["a", "close", "b"]), json!([["a", 0], ["b", 1]]));
}
