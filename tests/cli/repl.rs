//! `r1 repl` with input from a pipe: output and exit codes.

use std::fs;
use std::path::Path;

use super::{directory, piped, printed, r1, shown, succeed};

/// Guess a number; a reply that is not a number fails.
pub(super) const GUESS: &str = r#"
local function answer_to(guess, secret)
  if guess < secret then return "higher" end
  if guess > secret then return "lower" end
  return "right"
end
local env = r1.env {
  max_steps = 3,
  reset = function(task) return { secret = task.secret, tries = 0, messages = { r1.user("Guess") } } end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    state.tries = state.tries + 1
    local said = answer_to(tonumber(action.text), state.secret)
    r1.push(state.messages, r1.user(said))
    r1.log("said", said)
    return { reward = 0.1, done = said == "right" }
  end,
}
return r1.recipe {
  env = env, policy = { model = "model" }, sampling = { max_new_tokens = 4 },
  reward = function(state, outcome) return { solved = outcome.terminated and 1 or 0 } end,
  data = { train = r1.data.generate { count = 3, row = function(index) return { secret = index * 10 } end } },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 1 },
  rollout = { max_failure_rate = 1 },
}
"#;

/// What `r1 repl` prints for lines from a pipe.
pub(super) fn type_in(dir: &Path, args: &[&str], lines: &str) -> String {
    shown(dir, &piped(r1(dir, &[&["repl"], args].concat()), lines))
}

#[test]
fn repl_call_arguments_are_json_or_lua() {
    let tool = r#"
        local double = r1.tool {
          name = "double", parameters = { n = "integer" },
          run = function(arguments) return tostring(2 * arguments.n) end,
        }
        return r1.recipe {
          env = r1.env { tools = { double }, max_steps = 9 },
          reward = function() return 0 end, data = { train = { { prompt = "Go" } } },
          trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 1 },
        }"#;
    let dir = directory(&[("tool.lua", tool)], true);
    let results = |typed: &str| {
        let text = type_in(dir.path(), &["tool.lua"], &format!(":reset 0\n{typed}\n"));
        text.lines()
            .filter(|line| line.contains("tool  ") || line.contains("error"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for typed in [":tool double {\"n\": 21}", ":tool double { n = 21 }", ":tool double {n=40+2-21}"] {
        let printed = results(typed);
        assert!(printed.len() == 1 && printed[0].ends_with("42"), "{typed}: {printed:?}");
    }
    let odd = results(":tool double {n: 21}").join("\n");
    assert!(odd.contains("neither JSON (key must be a string at line 1 column 2) nor Lua ("), "{odd}");
    assert!(results(":tool double 21").join("\n").contains("`21` names no arguments"));
    let unknown = type_in(dir.path(), &["tool.lua"], ":reset 0\n:tool duble {n=1}\n");
    assert!(unknown.contains("there is no tool `duble`") && unknown.contains("did you mean `double`"), "{unknown}");
}

#[test]
fn a_repl_trajectory_is_stepped_inspected_and_undone() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":reset 1 seed=4\n:step 30\n:diff\n:state secret\n:step 20\n:undo\n:fork mine\n:step 5\n:branches\n\
                 :branch main\n:reward\n:tokens\n:quit\nnever read";
    insta::assert_snapshot!(type_in(dir.path(), &["guess.lua"], typed), @r#"
    exit: 0
    --- stdout
      user      Guess
      user      Guess
    guess.lua:15: said lower
    step 1: reward +0.1
      assistant 30
      user      lower
              role = "user",
            },
      +     {
      +       content = "30",
      +       role = "assistant",
      +     },
      +     {
      +       content = "lower",
      +       role = "user",
      +     },
          },
          secret = 20,
      -   tries = 0,
      +   tries = 1,
        }
    20
    guess.lua:15: said right
    step 2: reward +0.1
      assistant 20
      user      right
    terminated after 2 steps: reward +1.2 = steps +0.1 +0.1 and outcome +1  (solved 1)
    guess.lua:15: said higher
    step 2: reward +0.1
      assistant 5
      user      higher
      main             1 step, running
    * mine             2 steps, running
    reward +0.1 = steps +0.1 and outcome +0  (solved 0)
    [sampled by the policy: trained on], written by the environment: context, <special>
    <|im_start|>user⏎Guess<|im_end|>⏎<|im_start|>assistant⏎[3][0][<|im_end|>]⏎<|im_start|>user⏎lower
    <|im_end|>⏎<|im_start|>assistant⏎
    52 tokens, 3 of them sampled; the budget is 124, the context holds 128
    "#);
}

#[test]
fn the_first_error_of_a_piped_repl_is_its_exit_code() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let failed = type_in(dir.path(), &["guess.lua"], ":step what?\n:state");
    insta::assert_snapshot!(failed, @r#"
    exit: 3
    --- stdout
      user      Guess
    --- stderr
    error: attempt to compare nil < number
      --> guess.lua:3
         3 |   if guess < secret then return "higher" end
      hint: called from guess.lua:13 in step
    "#);
    let unknown = type_in(dir.path(), &["guess.lua"], ":rset 1");
    assert!(unknown.starts_with("exit: 2") && unknown.contains("did you mean `reset`?"), "{unknown}");
    let program = type_in(
        dir.path(),
        &[],
        "for i = 1, 2 do\n  print(i)\nend\nlocal x = 3\nx * 2\nr1.math_equal('1/2', '0.5')\nprint(y)",
    );
    assert!(
        program.starts_with("exit: 3\n--- stdout\n1\n2\n6\ntrue\n--- stderr\nerror: undefined global `y`"),
        "{program}"
    );
    let nothing = type_in(dir.path(), &[], ":step 3");
    assert!(nothing.contains("`:step` needs a script"), "{nothing}");
}

#[test]
fn repl_breakpoints_stop_a_step_and_reload_replays_it() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":break answer_to\n:step 5\nguess, secret\n:where\n:next\n:continue\n:clear\n:reload\n:step 10";
    insta::assert_snapshot!(type_in(dir.path(), &["guess.lua"], typed), @r#"
    exit: 0
    --- stdout
      user      Guess
    stops at guess.lua:3
    guess.lua:3  if guess < secret then return "higher" end
    5
    10
    guess.lua:3 in answer_to
    guess.lua:13 in step
    guess.lua:14  r1.push(state.messages, r1.user(said))
    guess.lua:15: said higher
    step 1: reward +0.1
      assistant 5
      user      higher
    guess.lua loaded
    guess.lua:15: said higher
    step 1: reward +0.1
      assistant 5
      user      higher
    guess.lua:15: said right
    step 2: reward +0.1
      assistant 10
      user      right
    terminated after 2 steps: reward +1.2 = steps +0.1 +0.1 and outcome +1  (solved 1)
    "#);
    let nothing = type_in(dir.path(), &["guess.lua"], ":break answer_to\n:step what?\nguess, secret\n:locals\n:abort");
    assert!(nothing.contains("\nnil\n10\n") && nothing.contains("\nguess = nil\nsecret = 10"), "{nothing}");
    let wrong = type_in(dir.path(), &["guess.lua"], ":break answer_to\n:step 5\n:cotninue");
    assert!(wrong.starts_with("exit: 2") && wrong.contains("did you mean `continue`?"), "{wrong}");
}

#[test]
fn repl_opens_a_failed_trajectory_at_the_failed_step() {
    // The tiny model never writes numbers: every trajectory fails.
    let dir = directory(&[("guess.lua", GUESS)], true);
    let output = r1(dir.path(), &["run", "guess.lua", "-q"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let reported = shown(dir.path(), &output);
    let again = reported.lines().find_map(|line| line.trim().strip_prefix("again: r1 repl ")).unwrap();
    let again = type_in(dir.path(), &again.split(' ').collect::<Vec<_>>(), ":step");
    assert!(again.starts_with("exit: 3") && again.contains("attempt to compare nil < number"), "{again}");
    let seen = type_in(dir.path(), &["--replay", "guess:1-0-0"], ":state tries\n:step");
    assert!(seen.starts_with("exit: 3\n--- stdout\n1-0-0: 1 step, env_error: attempt to"), "{seen}");
    assert!(seen.contains("\n0\n--- stderr\nerror: attempt to compare nil < number\n  --> guess.lua:3"), "{seen}");
    // After the script is fixed on disk, the same reply no longer fails.
    fs::write(dir.path().join("guess.lua"), GUESS.replace("tonumber(action.text)", "tonumber(action.text) or 0"))
        .unwrap();
    let mended = type_in(dir.path(), &["guess.lua", "--replay", "guess:1-0-0:1"], ":step");
    assert!(mended.starts_with("exit: 0") && mended.contains("step 1: reward +0.1"), "{mended}");
    let model = type_in(dir.path(), &["guess.lua"], ":sample");
    assert!(model.starts_with("exit: 0") && model.contains("step 1: reward +0.1"), "{model}");
    let wrong = type_in(dir.path(), &["--replay", "guess:1-0-0:9"], "");
    assert!(wrong.starts_with("exit: 2") && wrong.contains("steps 1 to 1"), "{wrong}");
}

#[test]
fn a_repl_session_is_saved_as_a_test() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":reset 1 seed=4\n:step 30\n:step 20\n:save kept_test.lua\n:save kept_test.lua";
    let seen = type_in(dir.path(), &["guess.lua", "env.max_steps=5"], typed);
    assert!(seen.starts_with("exit: 2") && seen.contains("the file exists already"), "{seen}");
    let passes = |expected: bool| {
        let output = r1(dir.path(), &["test", "kept_test.lua"]).output().unwrap();
        assert_eq!(output.status.success(), expected, "{}", shown(dir.path(), &output));
    };
    passes(true);
    fs::write(dir.path().join("guess.lua"), GUESS.replace("reward = 0.1", "reward = 0.2")).unwrap();
    passes(false);
    // A bug in the observation, with the same rewards.
    fs::write(dir.path().join("guess.lua"), GUESS.replace(r#"return "higher""#, r#"return "lower""#)).unwrap();
    passes(true);
    fs::write(dir.path().join("guess.lua"), GUESS.replace(r#"return "lower""#, r#"return "higher""#)).unwrap();
    passes(false);
    fs::write(dir.path().join("guess.lua"), GUESS.replace("r1.user(\"Guess\")", "r1.user(\"Guess!\")")).unwrap();
    passes(false);
    fs::write(dir.path().join("guess.lua"), GUESS).unwrap();
    passes(true);
}

#[test]
fn a_saved_session_keeps_its_exact_seed() {
    let drawn = GUESS.replace("secret = task.secret", "secret = math.random(2^52)");
    let dir = directory(&[("guess.lua", &drawn)], true);
    let typed = ":reset 1 seed=17400000000000000001\n:step 30\n:save kept_test.lua";
    let seen = type_in(dir.path(), &["guess.lua"], typed);
    assert!(seen.starts_with("exit: 0"), "{seen}");
    let kept = fs::read_to_string(dir.path().join("kept_test.lua")).unwrap();
    assert!(kept.contains(r#"seed = "17400000000000000001""#), "{kept}");
    succeed(dir.path(), &["test", "kept_test.lua"]);
    // Another seed draws another secret, so the state distinguishes them.
    let code = "local s = r1.script('guess.lua') \
                for _, seed in ipairs { '17400000000000000001', '17400000000000000002', 3 } do \
                  print(s:reset({ seed = seed }):state().secret) end \
                print(pcall(function() return s:reset { seed = 1.74e19 } end))";
    let text = printed(dir.path(), &["lua", "-e", code]);
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert!(lines[0] != lines[1] && lines[1] != lines[2], "{text}");
    assert!(lines[3].contains("a whole number from 0 to 2^53"), "{text}");
}

#[test]
fn a_state_changed_by_hand_is_not_saved_as_a_test() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":reset 1\n:step 30\nstate.secret = 40\n:step 40\n:save kept_test.lua";
    let seen = type_in(dir.path(), &["guess.lua"], typed);
    assert!(seen.contains("typed code has changed the state: a test could not repeat it"), "{seen}");
    let typed = ":reset 1\n:step 30\nstate.secret = 40\n:undo\n:step 20\n:save kept_test.lua";
    let seen = type_in(dir.path(), &["guess.lua"], typed);
    assert!(seen.starts_with("exit: 0"), "{seen}");
}

#[test]
fn environment_seeds_of_a_run_fit_lua_numbers() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    succeed(dir.path(), &["run", "guess.lua", "-q", "trainer.groups_per_step=3"]);
    let code = "for _, t in ipairs(r1.store.trajectories('guess', 1)) do print(type(t.seed), t.seed < 2^53) end";
    let text = printed(dir.path(), &["lua", "-e", code]);
    assert_eq!(text.matches("number\ttrue").count(), 6, "{text}");
}

#[test]
fn repl_tokens_of_a_finished_trajectory_include_the_sampled_reply() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let text = type_in(dir.path(), &["guess.lua"], ":reset 1\n:step 20\n:tokens");
    assert!(text.contains("[2][0][<|im_end|>]") && text.contains("3 of them sampled"), "{text}");
    let text = type_in(dir.path(), &["guess.lua"], ":reset 1\n:step 30\n:step 20\n:tokens");
    assert!(text.contains("[3][0]") && text.contains("[2][0]") && text.contains("6 of them sampled"), "{text}");
}

#[test]
fn repl_uses_the_tokenizer_of_the_sampling_model() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let text = type_in(dir.path(), &["guess.lua"], ":tokens");
    assert!(text.contains("the context holds 128"), "{text}");
    let text = type_in(dir.path(), &["guess.lua", "--model", "r1-nano"], ":tokens");
    assert!(text.contains("the context holds 1024"), "{text}");
}

#[test]
fn a_halted_repl_session_can_quit_and_an_aborted_step_is_undone() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let left = type_in(dir.path(), &["guess.lua"], ":break answer_to\n:step 5\n:quit\n:step 7");
    assert!(left.starts_with("exit: 0") && !left.contains("step 1"), "{left}");
    let text = type_in(dir.path(), &["guess.lua"], ":break answer_to\n:step 5\n:abort\n:clear\n:state tries\n:step 10");
    assert!(text.starts_with("exit: 0") && text.contains("\n0\n"), "{text}");
    assert!(text.contains("terminated after 1 step"), "{text}");
}

#[test]
fn breakpoints_are_ignored_while_saving_a_test() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let text = type_in(dir.path(), &["guess.lua"], ":break reward\n:reset 1\n:step 30\n:save kept_test.lua\n:branches");
    assert!(text.starts_with("exit: 0") && text.contains("kept_test.lua written"), "{text}");
    assert!(text.contains("* main"), "{text}");
}

#[test]
fn repl_tasks_are_json_or_lua_and_branches_are_replayed_by_name() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    for task in [r#"{"secret": 4}"#, "{ secret = 4 }"] {
        let text = type_in(dir.path(), &["guess.lua"], &format!(":reset {task}\n:step 4"));
        assert!(text.starts_with("exit: 0") && text.contains("terminated after 1 step"), "{task}: {text}");
    }
    let text = type_in(dir.path(), &["guess.lua"], ":reset 1\n:step 5\n:fork mine\n:step 6\n:reload");
    let after = text.split("guess.lua loaded").nth(1).unwrap();
    assert!(after.contains("\nbranch main\n") && after.contains("\nbranch mine\n"), "{text}");
}

/// `r1.generate` and `r1.logprobs` of the script use the model of `:sample`.
#[test]
fn the_script_can_ask_the_policy_in_the_repl_and_in_tests() {
    let script = r#"
        return r1.recipe {
          env = r1.env {
            reset = function(task) return { texts = {}, messages = { r1.user(task.prompt) } } end,
            step = function(state, action)
              state.texts[#state.texts + 1] = r1.generate("Say more", { max_new_tokens = 2 })
              return { done = #state.texts > 2 }
            end,
          },
          reward = function(state) return r1.generate("Judge", { max_new_tokens = 1 }) and 1 or 0 end,
          policy = { model = "r1-nano" },
          data = { train = { { prompt = "go" } } },
          trainer = r1.grpo {},
        }"#;
    let test = r#"
        local script = r1.script("g.lua")
        test("texts in their order, the last one again", function()
          local trajectory = script:reset { generate = { "first", "second" } }
          print("begins")
          for _ = 1, 3 do trajectory:step("x") end
          expect(trajectory:state().texts):equals { "first", "second", "second" }
          expect(trajectory:reward()):near(1)
        end)
        test("without texts there is no policy", function()
          local trajectory = script:reset()
          expect(function() trajectory:step("x") end):raises("there is no policy here")
        end)"#;
    let dir = directory(&[("g.lua", script), ("g_test.lua", test)], false);
    let typed = ":step x\n:state texts[1]\nr1.generate('More', { max_new_tokens = 2 })\n:reward\n";
    let events = super::repl_json::answers(dir.path(), &["g.lua"], typed);
    let of = |command: &str| events.iter().find(|event| event["command"] == command).unwrap();
    assert!(of("state")["values"][0].is_string() && of("eval")["values"][0].is_string(), "{events:?}");
    let printed = succeed(dir.path(), &["test", "g_test.lua"]);
    assert!(printed.contains("2 passed") && printed.contains("| begins"), "{printed}");
}
