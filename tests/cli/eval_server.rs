//! `r1 eval` with a model behind a server: figures, stored trajectories, retries, failures,
//! refusals, comparisons with early stop.

use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use r1::mdp::{Status, Trajectory};
use r1::store::read_trajectories;
use serde_json::{Value, json};

use super::hub::server::{Received, Response, Server};
use super::infer::{delta, finish, serving, streamed};
use super::run_files::files;
use super::{directory, printed, r1, shown, succeed};

/// Six tasks: the policy doubles a number with a tool and answers.
const RECIPE: &str = r#"
local double = r1.tool {
  name = "double", description = "Doubles a number", parameters = { n = "integer" },
  run = function(args) return args.n * 2 end,
}
return r1.recipe {
  env = r1.env { tools = { double }, system = "Use the tool.", max_steps = 3 },
  reward = function(state, outcome)
    return { acc = (outcome.text == "<answer>" .. state.task.n * 2 .. "</answer>") and 1 or 0 }
  end,
  data = { eval = "tasks.jsonl" },
  eval = { accuracy = "acc" },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo {},
}
"#;

/// Makes the response of a server.
type Reply = fn() -> Response;

fn tasks(count: usize) -> String {
    (1..=count).map(|n| json!({ "n": n, "prompt": format!("Twice {n}?") }).to_string() + "\n").collect()
}

fn body(request: &Received) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

/// The number of the task in a request.
fn number(request: &Received) -> u64 {
    let text = String::from_utf8_lossy(&request.body).into_owned();
    let (_, rest) = text.split_once("Twice ").unwrap();
    rest.split('?').next().unwrap().parse().unwrap()
}

fn usage(prompt: u64, response: u64) -> Value {
    json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": response } })
}

/// The reply of a policy that solves the tasks: a call, then the answer.
fn solving(request: &Received) -> Response {
    let messages = body(request)["messages"].as_array().unwrap().clone();
    let last = &messages[messages.len() - 1];
    if last["role"] == "tool" {
        let text = format!("<answer>{}</answer>", last["content"].as_str().unwrap());
        return streamed(&[delta(&json!({ "content": text })), finish("stop"), usage(30, 5)]);
    }
    let call = json!({ "index": 0, "id": "x", "type": "function",
        "function": { "name": "double", "arguments": format!("{{\"n\": {}}}", number(request)) } });
    streamed(&[delta(&json!({ "tool_calls": [call] })), finish("tool_calls"), usage(20, 7)])
}

fn eval(dir: &Path, base: &str, more: &[&str]) -> Output {
    let base = format!("policy.api_base={base}");
    let args = [&["eval", "a.lua", &base, "policy.model=gpt-x", "--json"], more].concat();
    let mut command = r1(dir, &args);
    command.env("NO_PROXY", "127.0.0.1").env("OPENAI_API_KEY", "sk-secret").env("ANTHROPIC_API_KEY", "ak-secret");
    command.output().unwrap()
}

fn report(dir: &Path, base: &str, more: &[&str]) -> Value {
    let output = eval(dir, base, more);
    assert!(output.status.success(), "{}", shown(dir, &output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stored(dir: &Path) -> Vec<Trajectory> {
    read_trajectories(&dir.join("runs/a-eval/evaluations/step-000000.parquet")).unwrap()
}

fn value(report: &Value, metric: &str) -> f64 {
    report["metrics"][metric]["value"].as_f64().unwrap_or_else(|| panic!("{metric}: {report}"))
}

#[test]
fn a_server_is_evaluated_with_tools_usage_and_cost() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(6))], false);
    let (now, highest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&highest);
    let server = serving(move |request, _| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        let response = solving(request);
        now.fetch_sub(1, Ordering::SeqCst);
        response
    });
    let base = format!("{}/v1", server.url);
    let report = report(
        dir.path(),
        &base,
        &["policy.price.input=10", "policy.price.output=100", "n=2", "eval.temperature=0.5", "rollout.concurrency=3"],
    );
    assert_eq!((&report["tasks"], &report["samples"], &report["missing"]), (&6.into(), &12.into(), &0.into()));
    for (metric, wanted) in [
        ("mean@2", 1.0),
        ("maj@2", 1.0),
        ("steps", 2.0),
        ("tool_calls", 1.0),
        ("tool_calls.double", 1.0),
        ("tokens", 12.0),
        ("prompt_tokens", 50.0),
        // 50 prompt tokens and 12 response tokens.
        ("cost", 0.0017),
    ] {
        assert!((value(&report, metric) - wanted).abs() < 1e-9, "{metric}: {}", report["metrics"][metric]);
    }
    assert!((report["cost"].as_f64().unwrap() - 12.0 * 0.0017).abs() < 1e-9);
    assert!(value(&report, "seconds") >= 0.06, "two requests of 30 ms: {}", report["metrics"]["seconds"]);
    assert!(value(&report, "tool_seconds.double") < value(&report, "seconds"));
    assert!((2..=3).contains(&highest.load(Ordering::SeqCst)), "{highest:?} requests at once");
    let requests = server.requests();
    assert_eq!(requests.len(), 24);
    assert!(requests.iter().all(|request| request.path == "/v1/chat/completions"));
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Bearer sk-secret"));
    let first = body(&requests[0]);
    assert_eq!(first["temperature"], 0.5);
    assert_eq!(first["max_tokens"], 64);
    assert_eq!(first["tools"][0]["function"]["name"], "double");
    assert_eq!(first["messages"][0], json!({ "role": "system", "content": "Use the tool." }));
    let later = requests.iter().map(body).find(|body| body["messages"].as_array().unwrap().len() > 2).unwrap();
    let call = &later["messages"][2]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "double");
    assert_eq!(later["messages"][3]["tool_call_id"], call["id"]);

    // Steps have no token ids; replies, usage and prompts are stored.
    let all = stored(dir.path());
    let step = &all[0].steps[0];
    assert!(step.prompt_ids.is_empty() && step.response_ids.is_empty() && step.logprobs.is_empty());
    let reply = step.server.as_ref().unwrap();
    assert_eq!((reply.usage.prompt_tokens, reply.usage.response_tokens, reply.retries), (20, 7, 0));
    assert_eq!((reply.tool_calls[0].name.as_str(), reply.prompt.len()), ("double", 2));
    assert_eq!(all[0].response_tokens(), 12);
    for (name, bytes) in files(&dir.path().join("runs")) {
        assert!(!bytes.windows(9).any(|part| part == b"sk-secret"), "the key is in {name}");
    }

    let replayed = succeed(dir.path(), &["replay", "a-eval", "eval", "-q"]);
    assert_eq!(replayed, "12 trajectories: every observation, reward and status as recorded\n");
    std::fs::write(dir.path().join("b.lua"), RECIPE.replace("and 1 or 0", "and 0.5 or 0")).unwrap();
    let rescored = succeed(dir.path(), &["rescore", "a-eval", "--script", "b.lua", "--eval", "-q", "--json"]);
    assert_eq!(rescored.matches("\"old\":1.0,\"new\":0.5").count(), 12, "{rescored}");
    std::fs::write(dir.path().join("c.lua"), RECIPE.replace("Use the tool.", "Use tools.")).unwrap();
    let text = printed(dir.path(), &["replay", "a-eval", "eval-0-0-0", "--script", "c.lua"]);
    assert!(text.contains("step 1, prompt") && text.contains("Use tools."), "{text}");
}

#[test]
fn anthropics_messages_api_is_used_with_its_blocks() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(3))], false);
    let server = serving(|request, _| {
        let body = body(request);
        let last = body["messages"].as_array().unwrap().last().unwrap()["content"][0].clone();
        let start =
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": 20, "output_tokens": 1 } } });
        let (block, piece, reason) = if last["type"] == "tool_result" {
            let text = format!("<answer>{}</answer>", last["content"].as_str().unwrap());
            let block = json!({ "type": "text", "text": "" });
            (block, json!({ "type": "text_delta", "text": text }), "end_turn")
        } else {
            let block = json!({ "type": "tool_use", "id": "toolu_1", "name": "double", "input": {} });
            let input = format!("{{\"n\": {}}}", number(request));
            (block, json!({ "type": "input_json_delta", "partial_json": input }), "tool_use")
        };
        streamed(&[
            start,
            json!({ "type": "content_block_start", "index": 0, "content_block": block }),
            json!({ "type": "ping" }),
            json!({ "type": "content_block_delta", "index": 0, "delta": piece }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 9 } }),
            json!({ "type": "message_stop" }),
        ])
    });
    let base = format!("{}/v1", server.url);
    let report = report(dir.path(), &base, &["policy.api=anthropic"]);
    for (metric, wanted) in [("mean@1", 1.0), ("tool_calls", 1.0), ("tokens", 18.0), ("prompt_tokens", 40.0)] {
        assert!((value(&report, metric) - wanted).abs() < 1e-9, "{metric}: {report}");
    }
    let requests = server.requests();
    let request = requests.iter().find(|request| body(request)["messages"].as_array().unwrap().len() == 3).unwrap();
    assert_eq!(request.path, "/v1/messages");
    assert_eq!((request.headers["x-api-key"].as_str(), request.headers.get("authorization")), ("ak-secret", None));
    assert_eq!(request.headers["anthropic-version"], "2023-06-01");
    let sent = body(request);
    assert_eq!((&sent["system"], &sent["max_tokens"]), (&json!("Use the tool."), &json!(64)));
    assert_eq!(sent["tools"][0]["input_schema"]["properties"]["n"]["type"], "integer");
    let call = &sent["messages"][1]["content"][0];
    assert_eq!((&call["type"], &call["input"]["n"]), (&json!("tool_use"), &json!(number(request))));
    assert_eq!(sent["messages"][2]["content"][0]["tool_use_id"], call["id"]);
    let replayed = succeed(dir.path(), &["replay", "a-eval", "eval", "-q"]);
    assert!(replayed.starts_with("3 trajectories: every observation"), "{replayed}");
}

/// A server whose requests for one task fail in one way, always; the others are solved.
fn failing(task: u64, failure: impl Fn() -> Response + Send + Sync + 'static) -> Server {
    serving(move |request, _| if number(request) == task { failure() } else { solving(request) })
}

#[test]
fn failures_of_a_server_are_missing_samples_with_their_kind() {
    let cut = || {
        let mut answer = streamed(&[delta(&json!({ "content": "<answer>" }))]);
        answer.pieces.truncate(12);
        answer
    };
    let hang = || {
        let mut answer = Response::new(200, "data: {}").with("Content-Type", "text/event-stream");
        (answer.cut, answer.stall) = (Some(0), Duration::from_secs(20));
        answer
    };
    let page = || Response::new(200, "<html><title>Login</title></html>").with("Content-Type", "text/html");
    let busy = || Response::new(429, "slow down").with("Retry-After", "0");
    let down = || Response::new(500, "Internal Server Error").with("Retry-After", "0");
    let kinds: [(&str, Reply); 5] = [
        ("interrupted its reply", cut),
        ("no data for", hang),
        ("it sends a web page", page),
        ("responded with 429: slow down", busy),
        ("responded with 500: Internal Server Error", down),
    ];
    for (message, failure) in kinds {
        let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(4))], false);
        // The last task: the server has replied before.
        let server = failing(4, failure);
        let fast = ["policy.api_attempts=1", "policy.api_timeout=2", "rollout.retries=0", "rollout.concurrency=1"];
        let output = eval(dir.path(), &server.url, &fast);
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{message}: {notes}"));
        assert_eq!(report["failures"], json!({ "policy_error": 1 }), "{message}");
        assert_eq!((&report["tasks"], &report["missing"]), (&3.into(), &1.into()), "{message}");
        assert!((value(&report, "mean@1") - 1.0).abs() < 1e-9, "{message}");
        // Three of three solved tasks leave an uncertainty.
        assert!(report["metrics"]["mean@1"]["low"].as_f64().unwrap() < 0.5, "{message}: {report}");
        assert!(notes.contains("1 of 4 samples are missing"), "{message}: {notes}");
        let failed = stored(dir.path()).into_iter().find(|one| one.status == Status::PolicyError).unwrap();
        assert!(failed.error_text().unwrap().contains(message), "{message}: {:?}", failed.error_text());
    }
}

#[test]
fn a_server_that_fails_half_of_the_time_is_asked_again() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(6))], false);
    // Every second request fails, in turn in four ways.
    let count = AtomicUsize::new(0);
    let server = serving(move |request, _| match count.fetch_add(1, Ordering::SeqCst) {
        even if even.is_multiple_of(2) => solving(request),
        odd => match odd / 2 % 4 {
            0 => Response::new(503, "busy").with("Retry-After", "0"),
            1 => Response::new(429, "slow down").with("Retry-After", "0.01"),
            2 => Response::new(500, "oops").with("Retry-After", "0"),
            _ => Response::new(529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#)
                .with("Retry-After", "0"),
        },
    });
    let report = report(dir.path(), &server.url, &["rollout.concurrency=1"]);
    assert_eq!((&report["missing"], &report["failures"]), (&0.into(), &json!({})));
    assert!((value(&report, "mean@1") - 1.0).abs() < 1e-9);
    assert_eq!(report["repeated_requests"], 11, "all but the first of 12 requests fail once");
}

#[test]
fn an_evaluation_with_missing_samples_continues_with_them() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(4))], false);
    let broken = Arc::new(Mutex::new(true));
    let state = Arc::clone(&broken);
    let server =
        serving(
            move |request, _| {
                if number(request) > 2 && *state.lock().unwrap() { Response::new(500, "") } else { solving(request) }
            },
        );
    let more = ["policy.api_attempts=1", "rollout.retries=0", "rollout.concurrency=1"];
    assert_eq!(report(dir.path(), &server.url, &more)["missing"], 2);
    *broken.lock().unwrap() = false;
    let output =
        r1(dir.path(), &["eval", "a.lua", "--resume", "--json"]).env("NO_PROXY", "127.0.0.1").output().unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(dir.path(), &output)));
    assert_eq!((&report["missing"], &report["tasks"]), (&0.into(), &4.into()));
}

/// Of the samples that are left, the server refuses all: the figures are computed from the others.
#[test]
fn an_evaluation_with_refused_samples_is_reported_when_it_continues() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(4))], false);
    let refuse = || Response::new(400, r#"{"error": {"message": "not allowed"}}"#);
    let server = serving(move |request, _| if number(request) > 2 { refuse() } else { solving(request) });
    let more = ["policy.api_attempts=1", "rollout.retries=0", "rollout.concurrency=1"];
    assert_eq!(report(dir.path(), &server.url, &more)["missing"], 2);
    let output =
        r1(dir.path(), &["eval", "a.lua", "--resume", "--json"]).env("NO_PROXY", "127.0.0.1").output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["missing"], &report["tasks"], value(&report, "mean@1")), (&2.into(), &2.into(), 1.0), "{text}");
}

#[test]
fn a_server_that_never_replies_ends_the_evaluation() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(4))], false);
    let ends = |server: &str, more: &[&str]| {
        let output = eval(dir.path(), server, &[&["policy.api_attempts=1"], more].concat());
        assert!(!output.status.success(), "{}", shown(dir.path(), &output));
        let text = shown(dir.path(), &output).replace(server, "SERVER");
        std::fs::remove_dir_all(dir.path().join("runs")).unwrap();
        text
    };
    let key = serving(|_, _| Response::new(401, r#"{"error": {"message": "Wrong key: sk-secret"}}"#));
    let text = ends(&key.url, &[]);
    assert!(text.contains("SERVER responded with 401: Wrong key: ***"), "{text}");
    assert!(text.contains("the server refuses the key in OPENAI_API_KEY"), "{text}");
    let page = serving(|_, _| Response::new(200, "<html></html>").with("Content-Type", "text/html"));
    let text = ends(&page.url, &[]);
    assert!(text.contains("SERVER is not an OpenAI-compatible server: it sends a web page"), "{text}");
    assert!(text.contains("policy.api_base has a wrong path"), "{text}");
    let text = ends("http://127.0.0.1:9", &[]);
    assert!(text.contains("can't reach SERVER: connection refused"), "{text}");
}

#[test]
fn prompts_that_are_too_long_for_the_server_are_wrong_answers() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(2))], false);
    let server = serving(|request, _| {
        let long = body(request)["messages"].as_array().unwrap().len() > 2;
        if number(request) == 2 || (number(request) == 1 && !long) {
            return if number(request) == 1 { solving(request) } else { too_long() };
        }
        too_long()
    });
    let report = report(dir.path(), &server.url, &["rollout.concurrency=1"]);
    // The first task ends after its first step, the second before it.
    assert_eq!(report["truncated"], json!({ "context_overflow": 1 }));
    assert_eq!(report["failures"], json!({ "context_overflow": 1 }));
    assert_eq!((&report["missing"], value(&report, "mean@1")), (&0.into(), 0.0));
    let replayed = succeed(dir.path(), &["replay", "a-eval", "eval", "-q"]);
    assert!(replayed.starts_with("2 trajectories: every observation"), "{replayed}");
}

fn too_long() -> Response {
    Response::new(400, r#"{"error": {"code": "context_length_exceeded", "message": "too long"}}"#)
}

#[test]
fn a_server_is_compared_with_another_and_sampling_stops_early() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(60))], false);
    let wrong = |_: &Received, _: usize| streamed(&[delta(&json!({ "content": "No." })), finish("stop"), usage(9, 2)]);
    let (bad, good) = (serving(wrong), serving(|request, _| solving(request)));
    let models = [format!("{}#bad", bad.url), format!("{}/v1#good", good.url)];
    let run = |more: &[&str]| {
        let args = ["eval", "a.lua", "--json", "--model", &models[0], "--model", &models[1], "rollout.concurrency=4"];
        let output = r1(dir.path(), &[&args[..], more].concat()).env("NO_PROXY", "127.0.0.1").output().unwrap();
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(dir.path(), &output)));
        report
    };
    let report = run(&["eval.early_stop=0.01"]);
    let test = &report["comparisons"][0]["sequential"];
    assert_eq!((&test["stopped"], &test["level"]), (&true.into(), &0.01.into()), "{report}");
    let used = test["tasks"].as_u64().unwrap();
    assert!(used < 60 && test["p"].as_f64().unwrap() <= 0.01, "{test}");
    assert_eq!(report["models"][1]["tasks"], used);
    assert_eq!(report["models"][0]["tasks"], 60);
    let page = std::fs::read_to_string(dir.path().join("runs/a-eval/report.md")).unwrap();
    assert!(page.contains("valid at any number of tasks (level 0.01); sampling stopped there"), "{page}");
    let again = run(&["eval.early_stop=0.01", "--resume"]);
    assert_eq!(again["models"][1]["tasks"], used, "a settled comparison is not sampled further");
    let whole = run(&["--name", "whole"]);
    assert_eq!(whole["models"][1]["tasks"], 60);
    assert!(whole["comparisons"][0].get("sequential").is_none());
    let replayed = succeed(dir.path(), &["replay", "runs/whole/models/2-good", "eval-0-0-0", "-q"]);
    assert!(replayed.starts_with("1 trajectory"), "{replayed}");
}

#[test]
fn a_server_is_refused_where_weights_are_needed() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks(2))], false);
    for verb in ["run", "sft"] {
        let args =
            [verb, "a.lua", "policy.api_base=http://127.0.0.1:9/v1", "policy.model=gpt-x", "data.train=tasks.jsonl"];
        let text = printed(dir.path(), &args);
        assert!(text.starts_with("exit: 2") && text.contains("policy.api_base"), "{verb}: {text}");
    }
    let args = ["eval", "a.lua", "policy.api_base=http://u:p@127.0.0.1/v1"];
    let text = printed(dir.path(), &args);
    assert!(text.contains("URLs are stored with a run"), "{text}");
    let args = ["eval", "a.lua", "policy.api=anthropic"];
    let text = printed(dir.path(), &args);
    assert!(text.contains("policy.api_base"), "{text}");
}

/// Calls in the text are parsed by the recipe's format; their results are user messages.
#[test]
fn calls_in_the_text_of_a_server_are_run() {
    let recipe = RECIPE.replace("max_steps = 3", "max_steps = 3, format = \"hermes\"");
    let dir = directory(&[("a.lua", &recipe), ("tasks.jsonl", &tasks(1))], false);
    let server = serving(|request, before| {
        let text = if before == 0 {
            r#"<tool_call>{"name": "double", "arguments": {"n": 1}}</tool_call>"#.to_owned()
        } else {
            let sent = body(request);
            let last = sent["messages"].as_array().unwrap().last().unwrap().clone();
            assert_eq!(last["role"], "user");
            assert_eq!(last["content"], "2", "{last}");
            "<answer>2</answer>".to_owned()
        };
        streamed(&[delta(&json!({ "content": text })), finish("stop")])
    });
    let report = report(dir.path(), &server.url, &[]);
    assert_eq!((value(&report, "mean@1"), value(&report, "tool_calls")), (1.0, 1.0));
}
