//! `r1.reward_model` in the rewards of a run.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use safetensors::tensor::{Dtype, TensorView};

use super::recipe::recipe;
use super::run_files::{metrics, run_dir};
use super::{copy, directory, fail, succeed};

/// Writes `reward`: the tiny model with a head that returns a part of the hidden state.
fn reward_model(dir: &Path) {
    copy(&dir.join("model"), &dir.join("reward"));
    let config = dir.join("reward/config.json");
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    json["architectures"] = serde_json::json!(["Qwen2ForSequenceClassification"]);
    let width = json["hidden_size"].as_u64().unwrap() as usize;
    fs::write(&config, json.to_string()).unwrap();
    let path = dir.join("reward/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let head: Vec<u8> = (0..width).flat_map(|at| if at < 2 { 1_f32 } else { 0.0 }.to_le_bytes()).collect();
    let mut all: Vec<(String, TensorView<'_>)> = tensors.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    all.push(("score.weight".to_owned(), TensorView::new(Dtype::F32, vec![1, width], &head).unwrap()));
    fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
}

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let reward = r#"function(state, outcome)
    local found = r1.reward_model { model = "reward", prompt = state.messages, text = outcome.text }
    local long, why = r1.reward_model { model = "reward", prompt = string.rep("long ", 200) }
    assert(long == nil and why:find("more than the reward model's context of 128"), why)
    return found.score
  end"#;
    recipe(&[("reward", reward), ("checkpoint", "{ every = 0 }")])
});

#[test]
fn rewards_can_be_the_scores_of_a_reward_model() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    reward_model(dir.path());
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    let lines = metrics(&run_dir(dir.path(), "a"));
    let reward = lines[0]["reward/mean"].as_f64().unwrap();
    assert!(reward != 0.0 && reward.is_finite(), "{lines:?}");
    // The numbers are recorded: a replay needs no model.
    fs::remove_dir_all(dir.path().join("reward")).unwrap();
    succeed(dir.path(), &["replay", "runs/a"]);
}

#[test]
fn a_reward_model_reads_conversations_by_its_chat_template() {
    let program = r#"
local messages = { r1.user("Say 4"), r1.assistant("I say 4") }
local text = r1.text.template("reward"):render(messages)
local whole = r1.reward_model { model = "reward", prompt = messages }
local split = r1.reward_model { model = "reward", prompt = "Say 4", text = "I say 4" }
local plain = r1.reward_model { model = "reward", prompt = text }
local ids = r1.text.tokenizer("reward"):encode(text)
assert(whole.tokens == #ids and split.tokens == #ids and plain.tokens == #ids)
assert(#whole.scores == 1 and whole.scores[1] == whole.score)
assert(whole.score == split.score and whole.score == plain.score)
local other = r1.reward_model { model = "reward", prompt = "Say 4", text = "I say 5" }
assert(other.score ~= whole.score)
local calls = {}
for n = 1, 20 do
  calls[n] = function() return r1.reward_model { model = "reward", prompt = "Say " .. n % 2, text = "I say 4" } end
end
local found = { r1.join(calls) }
assert(math.abs(found[1].score - found[19].score) < 1e-5 and math.abs(found[1].score - found[2].score) > 1e-5)
"#;
    let dir = directory(&[("p.lua", program)], true);
    reward_model(dir.path());
    succeed(dir.path(), &["lua", "p.lua"]);
    for (call, why) in [
        ("r1.reward_model { prompt = 'a' }", "needs `model`"),
        ("r1.reward_model { model = 'reward' }", "`prompt` must be messages or text"),
        ("r1.reward_model { model = 'reward', prompt = 'a', texts = 'b' }", "unknown field `texts`"),
        ("r1.reward_model { model = 'model', prompt = 'a' }", "a reward model is a …ForSequenceClassification"),
        ("r1.reward_model { model = 'missing', prompt = 'a' }", "missing"),
    ] {
        let error = fail(dir.path(), &["lua", "-e", call]);
        assert!(error.contains(why), "{call}: {error}");
    }
}
