//! Tool-call formats defined by a recipe, in complete runs.

use super::run_files::{metrics, run_dir};
use super::{directory, printed, r1, shown, succeed};

/// Every reply is a call of `note` with its first letters; a reply that begins with a vowel is
/// malformed.
const RECIPE: &str = r#"
local own = r1.format {
  name = "first",
  parse = function(text)
    local word = text:match("%w+") or "none"
    if word:match("^[aeiou]") then return nil, word .. " begins with a vowel." end
    return { { name = "note", arguments = { word = word } } }
  end,
  result = function(results) return "[" .. results[1].content .. "]" end,
  schema = function(tools) return "Use " .. tools[1]["function"].name .. "." end,
}
local note = r1.tool { name = "note", parameters = { word = "string" }, run = function(x) return "noted " .. x.word, 0.5 end }
return r1.recipe {
  policy = { model = "model" },
  env = r1.env { tools = { note }, format = own, max_steps = 2, call_rewards = { malformed = -0.25 } },
  reward = function(state, outcome) return #outcome.text end,
  data = { train = { rows = { { prompt = "a" }, { prompt = "b" } } } },
  sampling = { max_new_tokens = 8 },
  trainer = r1.grpo { steps = 2, groups_per_step = 2, group_size = 2, lr = 1e-3, warmup = 0 },
}
"#;

#[test]
fn a_recipe_trains_and_replays_with_its_own_tool_call_format() {
    let dir = directory(&[("own.lua", RECIPE)], true);
    succeed(dir.path(), &["run", "own.lua", "--name", "own", "seed=3"]);
    let lines = metrics(&run_dir(dir.path(), "own"));
    let of = |name: &str| lines.iter().filter_map(|line| line[name].as_f64()).sum::<f64>();
    // Two calls per trajectory, including malformed ones.
    assert!(of("rollout/tool_calls") > 0.0, "{lines:?}");
    assert!((of("rollout/tool_calls") + of("rollout/malformed_calls") - 4.0).abs() < 1e-9, "{lines:?}");
    let replayed = succeed(dir.path(), &["replay", "own"]);
    assert!(replayed.contains("8 trajectories: every observation, reward and status as recorded"), "{replayed}");
    let shows = "for _, t in ipairs(r1.store.trajectories('own', 1)) do\n\
                 for _, m in ipairs(t.messages) do print(m.role, m.content) end end";
    std::fs::write(dir.path().join("show.lua"), shows).unwrap();
    assert!(succeed(dir.path(), &["lua", "show.lua"]).contains("noted "));
}

#[test]
fn an_error_in_a_formats_parse_names_the_line_of_the_recipe() {
    let broken = RECIPE.replace("if word:match(\"^[aeiou]\") then", "if word.none.none then");
    let dir = directory(&[("own.lua", &broken)], true);
    let output = r1(dir.path(), &["run", "own.lua"]).output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("`parse` of the format `first`: attempt to index nil with 'none'"), "{text}");
    assert!(text.contains("own.lua:6"), "{text}");
    let checked = printed(dir.path(), &["check", "own.lua"]);
    assert!(checked.contains("`parse` of the format `first`") && checked.contains("own.lua:6"), "{checked}");
    // Invalid fields are refused by name.
    let broken = RECIPE.replace("arguments = { word = word }", "args = { word = word }");
    std::fs::write(dir.path().join("own.lua"), broken).unwrap();
    let checked = printed(dir.path(), &["check", "own.lua"]);
    assert!(checked.contains("calls[1] with the unknown field `args`; known: `arguments`"), "{checked}");
}

#[test]
fn a_reply_on_which_parse_fails_is_stored_and_replayed() {
    let broken =
        RECIPE.replace("return nil, word .. \" begins with a vowel.\"", "error(word .. \" begins with a vowel\")");
    let broken = broken.replace("^[aeiou]", "^[a-m]");
    let dir = directory(&[("own.lua", &broken)], true);
    succeed(dir.path(), &["run", "own.lua", "-q", "seed=3", "rollout.max_failure_rate=1", "rollout.retries=0"]);
    let path = dir.path().join("runs/own/trajectories/step-000001.parquet");
    let stored = ::r1::store::read_trajectories(&path).unwrap();
    let failed: Vec<_> = stored.iter().filter(|one| one.status.is_failure()).collect();
    assert!(!failed.is_empty(), "{stored:?}");
    for one in failed {
        let last = one.steps.last().unwrap();
        assert!(!last.response_ids.is_empty() && last.logprobs.len() == last.response_ids.len(), "{one:?}");
    }
    let replayed = succeed(dir.path(), &["replay", "own", "-q"]);
    assert!(replayed.contains("8 trajectories: every observation, reward and status as recorded"), "{replayed}");
    let checked = printed(dir.path(), &["check", "own.lua", "seed=3"]);
    assert!(checked.contains("begins with a vowel") && !checked.contains("another worker"), "{checked}");
}
