//! The record: external calls are stored, and a replay answers from it without external calls.

use serde_json::json;

use super::*;
use crate::mdp::{Answer, Split, Status};

/// Every step runs the reply's calls; a Lua tool calls rhai twice and draws a random number.
const TOOLS: &str = r#"
local rhai = r1.tools.rhai {}
local function rhai_says(code) return r1.call_tools({ { name = "rhai", arguments = { code = code } } })[1].content end
local twice = r1.tool { name = "twice", parameters = { x = "integer" }, run = function(arguments)
  local once = rhai_says("print(" .. arguments.x .. " * 2)")
  return rhai_says("print(" .. once .. " * 2)") .. " and " .. math.random(1000000)
end }
local env = r1.env { tools = { rhai, twice },
  reset = function() return { messages = { r1.user(rhai_says("print(6 * 7)")) } } end,
  step = function(state, action)
    for _, result in ipairs(r1.call_tools(action.tool_calls)) do r1.push(state.messages, r1.observation(result)) end
    state.die = math.random(1000000)
    return {}
  end }
return r1.recipe { env = env, reward = function(state, outcome) return #rhai_says("print(1)") end }
"#;

fn two_calls() -> Action {
    let calls = vec![call("twice", json!({ "x": 3 })), call("twice", json!({ "x": 5 }))];
    Action { tool_calls: calls, ..action("") }
}

/// A trajectory of one step: its snapshot, its reward, its record.
fn one_step(worker: &Worker, record: &Record, action: &Action) -> Result<(Json, f64), Failure> {
    run(async {
        let state = worker.reset_as(Split::Train, &json!({}), 7, record).await?;
        worker.step(&state, action).await?;
        let reward = worker.reward(&state, &outcome("")).await?;
        Ok((state.snapshot().unwrap(), reward.total))
    })
}

#[test]
fn a_replay_gives_the_same_result_without_live_calls() {
    let worker = Bench::new(TOOLS).worker();
    let record = Record::live();
    let live = one_step(&worker, &record, &two_calls()).unwrap();
    let exchanges = record.take();
    let places: Vec<(u64, &str)> = exchanges.iter().map(|e| (e.step, e.at.as_str())).collect();
    assert_eq!(places[0], (0, "reset/1"));
    let mut lanes: Vec<&str> = places[1..5].iter().map(|(_, at)| *at).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, ["step/1/1", "step/1/2", "step/2/1", "step/2/2"]);
    assert_eq!(places[5], (1, "reward/1"));

    // The same answers in another order in time: records of concurrent calls do not mix.
    let mut turned = exchanges.clone();
    turned[1..5].reverse();
    let replay = Record::replay(turned, Strictness::Exact);
    assert_eq!(one_step(&worker, &replay, &two_calls()).unwrap(), live);
    assert_eq!(replay.close(), None);

    // All answers come from the record.
    let mut lied = exchanges.clone();
    for exchange in &mut lied {
        if let Some(Answer::Ok(answer)) = &mut exchange.answer {
            answer["text"] = json!("8");
        }
    }
    lied[2..5].iter_mut().for_each(|exchange| {
        if exchange.at.ends_with("/2") {
            exchange.request["arguments"]["code"] = json!("print(8 * 2)");
        }
    });
    lied[1..5].sort_by(|a, b| a.at.cmp(&b.at));
    let replay = Record::replay(lied, Strictness::Exact);
    let (snapshot, reward) = one_step(&worker, &replay, &two_calls()).unwrap();
    assert_eq!(snapshot["state"]["messages"][0]["content"], "8");
    assert!(snapshot["state"]["messages"][1]["content"].as_str().unwrap().starts_with("8 and "));
    assert_eq!(reward.to_bits(), 1.0_f64.to_bits());
}

#[test]
fn a_replay_reports_the_first_difference() {
    let worker = Bench::new(TOOLS).worker();
    let record = Record::live();
    one_step(&worker, &record, &two_calls()).unwrap();
    let exchanges = record.take();

    let other = Action { tool_calls: vec![call("twice", json!({ "x": 4 }))], ..action("") };
    let replay = Record::replay(exchanges.clone(), Strictness::Exact);
    let failure = one_step(&worker, &replay, &other).unwrap_err();
    assert_eq!(failure.status, Status::EnvError);
    let difference = replay.close().unwrap();
    assert_eq!((difference.step, difference.at.as_str()), (0, "step/1/1"));
    assert_eq!(
        difference.to_string(),
        r#"step 0, step/1/1: the record has tool {"tool":"rhai","arguments":{"code":"print(3 * 2)"}} and the script requests tool {"tool":"rhai","arguments":{"code":"print(4 * 2)"}}"#
    );

    // An entry that was not requested is a difference too.
    let replay = Record::replay(exchanges.clone(), Strictness::Exact);
    one_step(&worker, &replay, &action("")).unwrap();
    let difference = replay.close().unwrap();
    assert_eq!((difference.at.as_str(), difference.requested), ("step/1/1", None));

    // A changed script finds its results at any place of the record, or makes the call.
    let replay = Record::replay(exchanges.clone(), Strictness::Found);
    let five = Action { tool_calls: vec![call("twice", json!({ "x": 5 }))], ..action("") };
    one_step(&worker, &replay, &five).unwrap();
    assert_eq!(replay.close(), None);
    let replay = Record::replay(exchanges.clone(), Strictness::Found);
    one_step(&worker, &replay, &other).unwrap_err();
    let replay = Record::replay(exchanges, Strictness::Live);
    let (snapshot, _) = one_step(&worker, &replay, &other).unwrap();
    assert!(snapshot["state"]["messages"][1]["content"].as_str().unwrap().starts_with("16 and "));
}

#[test]
fn a_recorded_timeout_times_out_on_a_replay() {
    let source = |timeout: &str, wait: &str| {
        format!(
            "local python = r1.tools.python {{}}\n\
             local slow = r1.tool {{ name = 'slow', {timeout} run = function()\n\
             return r1.call_tools({{ {{ name = 'python', arguments = {{ code = 'import time; time.sleep(20)' }} }} }})[1].content end }}\n\
             local env = r1.env {{ tools = {{ python, slow }}, reset = function() return {{ messages = {{ r1.user 'x' }} }} end,\n\
             step = function(state, action) state.said = r1.call_tools(action.tool_calls)[1].content return {{}} end }}\n\
             return r1.recipe {{ env = env, reward = function() return 0 end, {wait} }}"
        )
    };
    let slow = Action { tool_calls: vec![call("slow", json!({}))], ..action("") };
    for (short, long, status) in [
        (("timeout = 0.2,", ""), ("timeout = 3600,", ""), None),
        (("", "limits = { wait = 0.2 }"), ("", "limits = { wait = 3600 }"), Some(Status::ToolTimeout)),
    ] {
        let record = Record::live();
        let live = one_step(&Bench::new(&source(short.0, short.1)).worker(), &record, &slow);
        let exchanges = record.take();
        assert_eq!(exchanges.last().unwrap().answer, None);
        // Under a limit of an hour it would be noticed if a replay waited for the clock.
        let replay = Record::replay(exchanges, Strictness::Exact);
        let again = one_step(&Bench::new(&source(long.0, long.1)).worker(), &replay, &slow);
        assert_eq!(replay.close(), None);
        for (end, limit) in [(live, "0.2 s"), (again, "3600 s")] {
            let text = match end {
                Ok((snapshot, _)) => snapshot["state"]["said"].as_str().unwrap().to_owned(),
                Err(failure) => {
                    assert_eq!(Some(failure.status), status);
                    failure.to_string()
                }
            };
            assert!(text.contains(limit), "{text}");
        }
    }
}

#[test]
fn a_fork_keeps_the_record_of_earlier_calls() {
    let worker = Bench::new(TOOLS).worker();
    let record = Record::live();
    run(async {
        let state = worker.reset_as(Split::Train, &json!({}), 7, &record).await.unwrap();
        worker.step(&state, &two_calls()).await.unwrap();
        let fork = state.fork().unwrap();
        worker.step(&fork, &two_calls()).await.unwrap();
        assert_eq!(state.record().exchanges().len(), 5);
        assert_eq!(fork.record().exchanges().len(), 9);
        let replay = Record::replay(fork.record().take(), Strictness::Exact);
        let again = worker.reset_as(Split::Train, &json!({}), 7, &replay).await.unwrap();
        worker.step(&again, &two_calls()).await.unwrap();
        worker.step(&again, &two_calls()).await.unwrap();
        assert_eq!(again.snapshot().unwrap(), fork.snapshot().unwrap());
        assert_eq!(replay.close(), None);
    });
}
