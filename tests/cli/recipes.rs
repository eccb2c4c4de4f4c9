//! Every recipe in scripts/ in a chat and in the REPL, with scripted replies.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::infer::{delta, finish, infer, serving, streamed};
use super::{directory, piped, r1, shown};

/// The recipes for reinforcement learning in scripts/, without the one that needs a package of
/// Python.
fn recipes() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let is_recipe = |path: &PathBuf| {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "lua") || stem.ends_with("_test") {
            return false;
        }
        let text = std::fs::read_to_string(path).unwrap();
        // A cold start, which is one level deeper, has a supervised trainer too.
        text.contains("r1.recipe") && !text.contains("\n  trainer = r1.sft") && !text.contains("env_gym")
    };
    let mut recipes: Vec<PathBuf> = entries.filter(is_recipe).collect();
    recipes.sort();
    assert!(recipes.len() >= 20, "{recipes:?}");
    recipes
}

#[test]
fn every_recipe_can_be_chatted_with() {
    let dir = directory(&[], false);
    let server = serving(|_, _| {
        streamed(&[delta(&json!({ "content": "I move right. <answer>\\boxed{7}</answer>" })), finish("stop")])
    });
    for recipe in recipes() {
        let path = recipe.display().to_string();
        let output = infer(dir.path(), &server, &["--script", &path, "-p", "What is 3 + 4?", "--json"]);
        let text = shown(dir.path(), &output);
        assert!(output.status.success(), "{path}: {text}");
        let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
        let reply: Value = serde_json::from_str(&last).unwrap_or_else(|_| panic!("{path}: {text}"));
        assert_eq!(reply["event"], "reply", "{path}: {text}");
    }
}

#[test]
fn every_recipe_runs_in_the_repl() {
    let dir = directory(&[], false);
    for recipe in recipes() {
        let path = recipe.display().to_string();
        let typed = ":obs\n:step <answer>\\boxed{7}</answer>\n:reward\n";
        let output = piped(r1(dir.path(), &["repl", &path, "--json"]), typed);
        let text = shown(dir.path(), &output);
        assert!(output.status.success() && !text.contains("\"error\""), "{path}: {text}");
        let events: Vec<Value> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{path}: {text}")))
            .collect();
        let of = |command: &str| events.iter().find(|event| event["command"] == command);
        assert!(of("obs").is_some_and(|event| !event["observation"].is_null()), "{path}: {text}");
        assert!(of("step").is_some_and(|event| event["steps"][0]["text"].is_string()), "{path}: {text}");
        assert!(of("reward").is_some_and(|event| event["reward"]["total"].is_number()), "{path}: {text}");
    }
}

/// A game: its board is not the question, and its moves and outcome are shown.
#[test]
fn a_game_is_played_with_its_own_tasks() {
    let game = r#"
        return r1.recipe {
          env = r1.env {
            max_steps = 3,
            reset = function(task)
              return { place = task.start, messages = { r1.user("You are at " .. task.start) } }
            end,
            step = function(state, action)
              r1.push(state.messages, r1.assistant(action))
              state.place = state.place + (action.text == "right" and 1 or 0)
              r1.push(state.messages, r1.user("Now at " .. state.place))
              return { done = state.place == 7 }
            end,
          },
          reward = function(state) return state.place == 7 and 1 or 0 end,
          data = { eval = { { start = 5 }, { start = 1 } } },
          trainer = r1.grpo {},
        }"#;
    let text = r#"
        return r1.recipe {
          env = r1.env {
            max_steps = 2,
            reset = function(task) return { place = task.start } end,
            context = function(state) return { r1.user("place " .. state.place) } end,
            step = function(state, action) state.place = state.place + 1 return { done = state.place == 7 } end,
          },
          reward = function(state) return state.place == 7 and 1 or 0 end,
          data = { eval = { { start = 5 } } },
          trainer = r1.grpo {},
        }"#;
    let dir = directory(&[("game.lua", game), ("plain.lua", text)], false);
    let server = serving(|_, _| streamed(&[delta(&json!({ "content": "right" })), finish("stop")]));
    let output = infer(dir.path(), &server, &["--script", "game.lua", "-p", "Play"]);
    insta::assert_snapshot!(shown(dir.path(), &output), @r"
    exit: 0
    --- stdout
    right
    right
    --- stderr
      this recipe has tasks of its own: the question is not shown to the policy
      | You are at 5
      | Now at 6
      the task is done; outcome reward +1
    ");
    let sent: Value = serde_json::from_slice(&server.requests()[0].body).unwrap();
    assert_eq!(sent["messages"], json!([{ "role": "user", "content": "You are at 5" }]));
    let output = infer(dir.path(), &server, &["--script", "plain.lua", "-p", "Play"]);
    insta::assert_snapshot!(shown(dir.path(), &output), @r"
    exit: 0
    --- stdout
    right
    right
    --- stderr
      this recipe has tasks of its own: the question is not shown to the policy
      | place 5
      | place 6
      the task is done; outcome reward +1
    ");
}

/// A flow that samples plans and lets their votes choose: test-time choice in a chat.
#[test]
fn a_flow_chooses_among_plans_in_a_chat() {
    let flow = r#"
        return r1.recipe {
          flow = function(task, policy)
            local votes, best = {}, nil
            for _ = 1, 3 do
              local plan = r1.generate("Plan: " .. task.question, { temperature = 1 })
              votes[plan] = (votes[plan] or 0) + 1
              if best == nil or votes[plan] > votes[best] then best = plan end
            end
            local action = policy:generate { r1.user(task.question .. " Plan: " .. best) }
            return { reward = action.text == "done" and 1 or 0 }
          end,
          data = { eval = { { question = "How?" } } },
          trainer = r1.grpo {},
        }"#;
    let dir = directory(&[("plans.lua", flow)], false);
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server = serving(move |request, _| {
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let plan = ["a", "b", "b"][count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 3];
        let reply = if text.contains("\"Plan: ") { plan } else { "done" };
        streamed(&[delta(&json!({ "content": reply })), finish("stop")])
    });
    let output = infer(dir.path(), &server, &["--script", "plans.lua", "-p", "Why?"]);
    assert_eq!(shown(dir.path(), &output), "exit: 0\n--- stdout\ndone");
    let bodies: Vec<Value> = server.requests().iter().map(|one| serde_json::from_slice(&one.body).unwrap()).collect();
    // The flow is begun with the row of the dataset, whose column is then replaced.
    assert_eq!(bodies.len(), 7);
    assert_eq!((&bodies[3]["temperature"], &bodies[3]["messages"][0]["content"]), (&json!(1.0), &json!("Plan: Why?")));
    assert_eq!(bodies[6]["messages"][0]["content"], "Why? Plan: b");
}
