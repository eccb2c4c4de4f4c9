//! `r1.logprobs` in the rewards of a run.

use std::fs;
use std::sync::LazyLock;

use super::recipe::recipe;
use super::run_files::{metrics, run_dir};
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let reward = r#"function(state, outcome)
    local function of(model)
      return r1.logprobs { model = model, prompt = state.messages, text = "I say 4" }
    end
    local policy, reference, named = of("policy"), of("reference"), of("model")
    assert(policy.tokens == #policy.logprobs and math.abs(policy.sum - policy.mean * policy.tokens) < 1e-6)
    local long, why = r1.logprobs { prompt = "Say", text = string.rep("long ", 200) }
    assert(long == nil and why:find("the context holds 128"))
    return {
      outcome = #outcome.text % 2,
      moved = { value = math.abs(policy.sum - reference.sum), weight = 0 },
      named = { value = math.abs(named.sum - reference.sum), weight = 0 },
    }
  end"#;
    recipe(&[
        ("reward", reward),
        ("trainer", "r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-2 }"),
        ("checkpoint", "{ every = 0 }"),
    ])
});

#[test]
fn rewards_can_compute_log_probabilities_of_models() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    let lines = metrics(&run_dir(dir.path(), "a"));
    let part = |step: usize, name: &str| lines[step][format!("reward/{name}")].as_f64().unwrap();
    assert_eq!((part(0, "moved"), part(0, "named"), part(1, "named")), (0.0, 0.0, 0.0));
    assert!(part(1, "moved") > 1e-4, "{lines:?}");
    // The numbers are recorded: a replay needs no model.
    succeed(dir.path(), &["replay", "runs/a"]);
    succeed(dir.path(), &["check", "a.lua"]);
    let program = r#"
local found = r1.logprobs { model = "model", prompt = "Say 4", text = "I say 4" }
assert(found.tokens > 0 and found.sum < 0)
print(r1.logprobs { prompt = "Say 4", text = "I say 4" })"#;
    fs::write(dir.path().join("p.lua"), program).unwrap();
    let error = fail(dir.path(), &["lua", "p.lua"]);
    assert!(error.contains("there is no policy here") && error.contains("name a model"), "{error}");
}
