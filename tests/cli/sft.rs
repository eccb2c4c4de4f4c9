//! Supervised fine-tuning: formats of rows, rows that are too long, held-out loss, early stopping,
//! ReTool's format.

use std::fs;
use std::path::Path;

use super::run_files::metrics;
use super::{directory, fail, r1, shown, succeed};

/// Trains on nine sentences; `steps`, `every` and the rest come from the command line.
const RECIPE: &str = r#"
return r1.recipe {
  env = r1.env { format = "hermes" },
  policy = { model = "model" },
  data = { train = "train.jsonl" },
  trainer = r1.sft { steps = 2, batch_size = 2, lr = 1e-3, warmup = 0 },
}
"#;

const ROWS: &str = r#"{"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": null, "weight": 1, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}], "tools": "[]", "parallel_tool_calls": false}
{"prompt": "Say 3", "completion": "I say 3"}
{"conversations": [{"from": "human", "value": "Say 4"}, {"from": "gpt", "value": "I say 4"}]}
{"instruction": "Say", "input": "5", "output": "I say 5"}
"#;

fn values(run: &Path, name: &str) -> Vec<f64> {
    metrics(run).iter().filter_map(|line| line[name].as_f64()).collect()
}

#[test]
fn sft_trains_on_rows_of_every_published_format() {
    let dir = directory(&[("a.lua", RECIPE), ("train.jsonl", ROWS)], true);
    succeed(dir.path(), &["sft", "a.lua", "-q", "--name", "a", "trainer.batch_size=4"]);
    let run = dir.path().join("runs/a");
    assert_eq!(values(&run, "sft/loss").len(), 2);
    // Packing without padding: four conversations of different lengths.
    for (name, low, high) in [
        ("sft/supervised_share", 0.05, 0.9),
        ("sft/fill", 1e-3, 0.5),
        ("sft/padding_avoided", 0.1, 0.9),
        ("sft/packed_tokens", 100.0, 400.0),
        ("sft/overlong", 0.0, 0.0),
    ] {
        let losses = values(&run, name);
        assert!(losses.len() == 2 && losses.iter().all(|value| (low..=high).contains(value)), "{name}: {losses:?}");
    }
}

#[test]
fn a_bad_sft_row_is_named_by_its_line() {
    let rows = format!("{ROWS}{}\n", r#"{"messages": [{"role": "bot", "content": "x"}]}"#);
    let dir = directory(&[("a.lua", RECIPE), ("train.jsonl", &rows)], true);
    let error = fail(dir.path(), &["sft", "a.lua", "-q", "trainer.batch_size=5"]);
    assert!(error.contains("messages[1].role is \"bot\""), "{error}");
    assert!(error.contains("train.jsonl:5"), "{error}");
}

#[test]
fn overlong_sft_rows_are_an_error_skipped_or_truncated() {
    let long = format!("{{\"prompt\": \"Say\", \"completion\": \"{}\"}}\n", "I say all ".repeat(40));
    let rows = format!("{}{long}{}", &ROWS[ROWS.find("{\"prompt").unwrap()..], "");
    let dir = directory(&[("a.lua", RECIPE), ("train.jsonl", &rows)], true);
    let sft = |more: &[&str]| r1(dir.path(), &[&["sft", "a.lua", "-q"], more].concat()).output().unwrap();
    let one_epoch = ["trainer.batch_size=4", "trainer.steps=1"];
    let refused = sft(&one_epoch);
    let text = shown(dir.path(), &refused);
    assert_eq!(refused.status.code(), Some(4), "{text}");
    assert!(text.contains("at most 128 fit") && text.contains("train.jsonl:4"), "{text}");
    assert!(text.contains(" trainer.overlong=skip leaves such rows out"), "{text}");

    for (way, reported, tokens) in [("skip", "left out", 3.0), ("truncate", "cut", 4.0)] {
        let name = format!("--name={way}");
        let overlong = format!("trainer.overlong={way}");
        let batch = format!("trainer.batch_size={tokens}");
        let done = sft(&[&name, &overlong, &batch, "trainer.steps=1", "seed=3"]);
        let text = shown(dir.path(), &done);
        assert!(done.status.success(), "{text}");
        let run = dir.path().join("runs").join(way);
        let count = values(&run, "sft/overlong");
        // Every row is drawn once, or three that fit are found before the long one.
        assert!(count == [1.0] || (way == "skip" && count == [0.0]), "{way}: {count:?}");
        if count == [1.0] {
            assert!(text.contains(&format!("1 conversation longer than 128 tokens was {reported}")), "{text}");
        }
    }
    // An explicit limit; no row fits.
    let none = sft(&["trainer.max_length=3", "trainer.overlong=skip"]);
    let text = shown(dir.path(), &none);
    assert!(text.contains("no conversation of data.train fits into 3 tokens"), "{text}");
}

#[test]
fn the_model_with_the_lowest_held_out_loss_is_saved() {
    // The held-out rows contradict the training rows: the loss rises from some evaluation on.
    let held_out = "{\"prompt\": \"Say 3\", \"completion\": \"zzz\"}\n";
    let dir = directory(&[("a.lua", RECIPE), ("train.jsonl", ROWS), ("eval.jsonl", held_out)], true);
    let settings = ["data.eval=eval.jsonl", "eval.every=2", "trainer.lr=0.02", "trainer.final_lr=1", "seed=5"];
    let text = succeed(
        dir.path(),
        &[&["sft", "a.lua", "--name", "a", "--out", "out", "trainer.steps=200", "trainer.patience=3"], &settings[..]]
            .concat(),
    );
    let run = dir.path().join("runs/a");
    let losses = values(&run, "eval/loss");
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let at = losses.iter().position(|loss| loss.to_bits() == best.to_bits()).unwrap();
    assert_eq!(losses.len(), at + 4, "three evaluations after the best one: {losses:?}");
    assert!(losses.len() < 101, "the run stopped early: {losses:?}");
    assert!(text.contains("early: 3 evaluations in a row"), "{text}");
    // `best` and `--out` are the model of that step; the last checkpoint differs.
    let weights = |path: &str| fs::read(dir.path().join(path).join("model.safetensors")).unwrap();
    assert_eq!(weights("runs/a/best"), weights("out"));
    let steps = (losses.len() - 1) * 2;
    assert!(weights("out") != weights(&format!("runs/a/checkpoints/step-{steps:06}")));
    // A run with the best step's number of steps ends with those weights.
    let steps = format!("trainer.steps={}", at * 2);
    if at > 0 {
        succeed(dir.path(), &[&["sft", "a.lua", "-q", "--name", "b", &steps], &settings[..]].concat());
        assert_eq!(weights("runs/b/best"), weights("runs/a/best"));
    }
}

#[test]
fn evaluations_resume_to_the_same_bytes() {
    let held_out = "{\"prompt\": \"Say 3\", \"completion\": \"I say 3\"}\n";
    let dir = directory(&[("a.lua", RECIPE), ("train.jsonl", ROWS), ("eval.jsonl", held_out)], true);
    let settings = ["data.eval=eval.jsonl", "eval.every=1", "trainer.overlong=skip", "trainer.betas=[0.8,0.9]"];
    let train = |name: &str, steps: &str| {
        succeed(
            dir.path(),
            &[&["sft", "a.lua", "-q", "--name", name, steps, "trainer.final_lr=1"], &settings[..]].concat(),
        );
    };
    train("whole", "trainer.steps=4");
    train("parts", "trainer.steps=2");
    succeed(dir.path(), &["sft", "a.lua", "-q", "--resume", "runs/parts", "trainer.steps=4"]);
    let read = |run: &str, file: &str| fs::read(dir.path().join("runs").join(run).join(file)).unwrap();
    for file in [
        "best/model.safetensors",
        "checkpoints/step-000004/model.safetensors",
        "checkpoints/step-000004/trainer_state/state.json",
        "checkpoints/step-000004/trainer_state/optimizer.safetensors",
    ] {
        assert!(read("whole", file) == read("parts", file), "{file}");
    }
    let losses = |run: &str| values(&dir.path().join("runs").join(run), "eval/loss");
    assert_eq!(losses("whole"), losses("parts"));
    assert_eq!(losses("whole").len(), 5);
}

/// The recipe for ReTool's published rows, with rows in that format and a model with enough
/// context.
#[test]
fn sft_trains_on_retools_published_format() {
    const MODEL: &str = r#"
        return r1.recipe {
          env = r1.env { format = "retool" },
          policy = { init = {
            hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
            num_key_value_heads = 1, max_position_embeddings = 1024, vocab_size = 272, tokenizer_rows = 3,
          } },
          data = { train = "retool.jsonl" },
          trainer = r1.sft { steps = 1, batch_size = 1, warmup = 0 },
        }"#;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = directory(&[("make.lua", MODEL)], false);
    fs::copy(root.join("scripts/retool_sft.lua"), dir.path().join("retool_sft.lua")).unwrap();
    fs::copy(root.join("tests/golden/sft/retool.jsonl"), dir.path().join("retool.jsonl")).unwrap();
    succeed(dir.path(), &["sft", "make.lua", "-q", "--out", "model"]);
    let settings = [
        "policy.model=model",
        "data.train=retool.jsonl",
        "trainer.steps=1",
        "trainer.batch_size=3",
        "trainer.warmup=0",
        "trainer.overlong=error",
    ];
    succeed(dir.path(), &[&["sft", "retool_sft.lua", "-q", "--name", "a"], &settings[..]].concat());
    let share = values(&dir.path().join("runs/a"), "sft/supervised_share");
    assert!(share[0] > 0.0 && share[0] < 1.0, "{share:?}");
}

/// Datasets are mixed by their weights.
#[test]
fn datasets_are_mixed_by_their_weights() {
    let rows = |completion: &str| format!("{{\"prompt\": \"Say\", \"completion\": \"{completion}\"}}\n").repeat(5);
    let (long, short) = (rows("I say all of it again"), rows("I"));
    let dir = directory(&[("a.lua", RECIPE), ("long.jsonl", &long), ("short.jsonl", &short)], true);
    let tokens = |name: &str, train: &str| {
        let recipe = RECIPE.replace("train = \"train.jsonl\"", &format!("train = {train}"));
        fs::write(dir.path().join("a.lua"), recipe).unwrap();
        let settings = ["trainer.batch_size=4", "trainer.steps=2", "seed=3"];
        succeed(dir.path(), &[&["sft", "a.lua", "-q", "--name", name], &settings[..]].concat());
        values(&dir.path().join("runs").join(name), "sft/tokens")
    };
    let (long, short) = (tokens("long", "\"long.jsonl\"")[0], tokens("short", "\"short.jsonl\"")[0]);
    assert!(long > short);
    let mixed = |weights: [&str; 2]| {
        let part = |name: &str, weight: &str| format!("{name} = {{ path = \"{name}.jsonl\"{weight} }}");
        format!("{{ {}, {} }}", part("long", weights[0]), part("short", weights[1]))
    };
    assert_eq!(tokens("plain", &mixed(["", ""])), [f64::midpoint(long, short); 2], "as many rows of each");
    let weighted = tokens("weighted", &mixed([", weight = 3", ", weight = 1"]));
    assert_eq!(weighted, [0.75 * long + 0.25 * short; 2]);
}
