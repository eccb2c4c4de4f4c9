//! `r1 plan`: memory and time of a step on devices that need not be there.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{cli_snapshot, directory, exits, r1, shown, succeed};

const RECIPE: &str = r#"
return r1.recipe {
  env = r1.env {
    max_steps = 1,
    reset = function(task) return { messages = { r1.user("x") } } end,
    step = function(state, action) return { done = true } end,
  },
  reward = function(state, outcome) return #outcome.text end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { prompt = "x" } end } },
  sampling = { max_new_tokens = 28 },
  trainer = r1.grpo { group_size = 4, groups_per_step = 8 },
}
"#;

const SFT: &str = r#"
return r1.recipe {
  env = r1.env { format = "retool" },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 9, row = function(n)
    return { messages = { r1.user("Say " .. n), r1.assistant("I say " .. n) } }
  end } },
  trainer = r1.sft { batch_size = 8 },
}
"#;

/// A directory with the shape of a model of the Qwen2.5 family, without weights.
fn shape(dir: &Path, (hidden, inner, layers, heads): (u32, u32, u32, u32)) {
    let config = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152_064, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32_768,
    });
    fs::create_dir(dir.join("shape")).unwrap();
    fs::write(dir.join("shape/config.json"), config.to_string()).unwrap();
}

fn planned(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeed(dir, &[&["plan"], args, &["--json"]].concat())).unwrap()
}

#[test]
fn a_step_is_planned_for_many_gpus() {
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h200", "--world", "16"], @"");
}

#[test]
fn wrong_devices_and_numbers_are_refused() {
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h20"], @"");
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--world", "0"], @"");
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h200", "--like", "nothing"], @"");
}

#[test]
fn json_has_parts_that_add_up_to_the_step() {
    let dir = directory(&[("a.lua", RECIPE), ("b.lua", SFT)], true);
    let plan = planned(dir.path(), &["a.lua", "--device", "h100", "--world", "4"]);
    let time = &plan["time"];
    let parts = time["parts"].as_array().unwrap();
    let sum: f64 = parts.iter().map(|part| part["seconds"].as_f64().unwrap()).sum();
    assert!((sum / time["step_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{plan}");
    assert_eq!((&plan["device"], &plan["world"], &plan["fits"]), (&json!("h100"), &json!(4), &json!(true)));
    assert_eq!(plan["available_bytes"], json!(79_u64 << 30));
    let of = |args: &[&str]| planned(dir.path(), args)["time"]["step_seconds"].as_f64().unwrap();
    let (short, long) = (["a.lua", "--device", "h100", "--response-tokens", "5"], ["a.lua", "--device", "h100"]);
    assert!(of(&short) < of(&long));
    // Supervised training has no sampling.
    let plan = planned(dir.path(), &["b.lua", "--device", "h100", "trainer.gradient_checkpointing=true"]);
    let names: Vec<&str> =
        plan["time"]["parts"].as_array().unwrap().iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["forward and backward", "optimiser"]);
}

#[test]
fn this_machine_is_measured_and_shared_by_its_processes() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let args = ["plan", "a.lua", "--world", "2"];
    let text = succeed(dir.path(), &args);
    for part in ["at most, while", "on the CPU", "TFLOP/s", "forward and backward", "exchange of gradients"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_reported_with_what_helps() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    shape(dir.path(), (8192, 29_568, 80, 64));
    let args = ["plan", "a.lua", "policy.model=shape", "policy.max_context=4096", "--device", "h200", "--world", "64"];
    let text = succeed(dir.path(), &args);
    for part in ["does not fit: ", "of 139.0 GiB on each h200", "policy.lora.rank=16", "every rank has the whole model"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let plan = planned(dir.path(), &args[1..]);
    assert_eq!(plan["fits"], json!(false), "{plan}");
}

#[test]
fn lengths_are_taken_from_a_run() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=2"]);
    let time = planned(dir.path(), &["a.lua", "--device", "h200", "--like", "a"])["time"].clone();
    let lines = fs::read_to_string(dir.path().join("runs/a/metrics.jsonl")).unwrap();
    let steps = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let values: Vec<f64> = steps.filter_map(|step| step["rollout/response_tokens"].as_f64()).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!((time["lengths"]["response"].as_f64().unwrap() - mean).abs() < 1e-9, "{time}");
    assert_eq!(time["lengths"]["from"], "the means of a");
    assert!(exits(dir.path(), 2, &["plan", "a.lua", "--response-tokens", "0"]).contains("--response-tokens"));
    let output = r1(dir.path(), &["plan", "a.lua", "policy.model=absent", "--device", "h200"]).output().unwrap();
    assert!(!output.status.success(), "{}", shown(dir.path(), &output));
}
