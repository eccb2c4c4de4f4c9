//! Memory: a run's peak is the prediction of `--plan`, and checkpointing changes only the memory.
#![allow(clippy::float_cmp)]

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::run_files::{metrics, run_dir};
use super::{cli_snapshot, directory, r1, shown, succeed};

/// Long replies, more than fit into a batch, so that batches are nearly full.
const RECIPE: &str = r#"
return r1.recipe {
  env = r1.env {
    max_steps = 1,
    reset = function(task) return { messages = { r1.user("x") } } end,
    step = function(state, action) return { done = true } end,
  },
  reward = function(state, outcome)
    local sum = 0
    for i = 1, #outcome.text do sum = sum + i * outcome.text:byte(i) end
    return sum % 97
  end,
  policy = { model = "model", max_context = 256 },
  data = { train = r1.data.generate { count = 8, row = function(index) return { prompt = "x" } end } },
  sampling = { max_new_tokens = 250 },
  rollout = { concurrency = 32 },
  trainer = r1.grpo { steps = 2, group_size = 4, groups_per_step = 6, lr = 1e-5, tokens_per_batch = 2048 },
  checkpoint = { keep = 1 },
}
"#;

/// Large enough that the process itself is a small part of the memory.
const MODEL: &str = r#"
return r1.recipe {
  env = r1.env { format = "retool" },
  policy = { init = {
    hidden_size = 512, intermediate_size = 2048, num_hidden_layers = 4, num_attention_heads = 8,
    num_key_value_heads = 4, max_position_embeddings = 512, vocab_size = 272, tokenizer_rows = 9,
  } },
  data = { train = r1.data.generate { count = 9, row = function(n)
    return { messages = { r1.user("Say " .. n), r1.assistant("I say " .. n) } }
  end } },
  trainer = r1.sft { steps = 1, batch_size = 2 },
}
"#;

/// Trains; returns the prediction and the last step's metrics.
fn measure(dir: &Path, settings: &[&str]) -> (f64, Value) {
    let run = |more: &[&str]| {
        let args = [&["run", "a.lua"], more, settings].concat();
        // Started and not forked: a forked process has a larger peak.
        let output = r1(dir, &args).0.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", shown(dir, &output));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan: Value = serde_json::from_str(&run(&["--plan", "--json"])).unwrap();
    let _ = fs::remove_dir_all(dir.join("runs"));
    run(&["-q"]);
    let last = metrics(&run_dir(dir, "a")).pop().unwrap();
    (plan["peak_bytes"].as_f64().unwrap() / f64::from(1 << 20), last)
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn the_memory_plan_matches_a_run() {
    let dir = directory(&[("a.lua", RECIPE), ("model.lua", MODEL)], false);
    succeed(dir.path(), &["sft", "model.lua", "--out", "model"]);
    let mut peaks = Vec::new();
    let mut results = Vec::new();
    // Short prompts and long replies, so that little is shared between rows.
    let adapter = ["policy.lora.rank=4", "trainer.steps=1", "policy.max_context=128", "trainer.groups_per_step=5"];
    let adapter_again = [&adapter[..], &["trainer.gradient_checkpointing=true"]].concat();
    for settings in [&[][..], &["trainer.gradient_checkpointing=true"], &adapter, &adapter_again] {
        let (plan, metrics) = measure(dir.path(), settings);
        let peak = metrics["memory/peak"].as_f64().unwrap();
        eprintln!(
            "{settings:?}: planned {plan:.0} MiB, took {peak:.0} MiB in {} + {} s",
            metrics["time/sampling"], metrics["time/training"]
        );
        assert!((plan / peak - 1.0).abs() < 0.15, "{settings:?}: planned {plan:.0} MiB, took {peak:.0} MiB");
        peaks.push(peak);
        results.push(["policy/loss", "policy/grad_norm", "policy/entropy"].map(|name| metrics[name].as_f64().unwrap()));
    }
    // Less memory and the same numbers, also in the second step.
    assert!(peaks[1] < 0.92 * peaks[0] && peaks[3] < 0.8 * peaks[2], "{peaks:?}");
    assert_eq!(results[0], results[1]);
    // libtorch's products may depend on the addresses of their operands.
    for (kept, again) in results[2].iter().zip(results[3]) {
        assert!((kept - again).abs() < 1e-4 * kept.abs().max(0.01), "{results:?}");
    }
}

#[test]
fn an_adapters_kl_penalty_needs_no_second_model() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let settings = ["policy.max_context=64", "sampling.max_new_tokens=20", "trainer.kl.coef=0.1", "trainer.lr=0.05"];
    let shares = |more: &[&str]| {
        let args = [&["run", "a.lua", "--plan", "--json"], &settings[..], more].concat();
        let plan: Value = serde_json::from_slice(&r1(dir.path(), &args).output().unwrap().stdout).unwrap();
        plan["held"]
            .as_array()
            .unwrap()
            .iter()
            .map(|share| share["what"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(shares(&[]).contains(&"reference".to_owned()));
    let adapted = shares(&["policy.lora.rank=2"]);
    assert!(adapted.contains(&"adapter".to_owned()) && !adapted.contains(&"reference".to_owned()));

    let args = [&["run", "a.lua", "-q", "policy.lora.rank=2"], &settings[..]].concat();
    succeed(dir.path(), &args);
    let kl: Vec<f64> = metrics(&run_dir(dir.path(), "a")).iter().filter_map(|line| line["kl/mean"].as_f64()).collect();
    // A new adapter changes nothing; training moves it away from the base.
    assert!(kl[0].abs() < 1e-6 && kl[1] > 1e-6, "{kl:?}");
}

#[test]
fn the_memory_plan_includes_sampling_supports() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let planned = |setting: &str, part: &str| {
        let groups = "trainer.groups_per_step=8";
        let args = ["run", "a.lua", "--plan", "--json", "policy.max_context=64", groups, setting];
        let plan: Value = serde_json::from_slice(&r1(dir.path(), &args).output().unwrap().stdout).unwrap();
        let is_support = |share: &&Value| share["what"] == "sets that tokens were drawn from";
        plan[part].as_array().unwrap().iter().find(is_support).map(|share| share["bytes"].as_u64().unwrap())
    };
    // 32 trajectories of 64 tokens; micro-batches of 2048.
    assert_eq!(planned("sampling.top_k=20", "sampling"), Some(20 * 4 * 2048));
    assert_eq!(planned("sampling.top_k=20", "learning"), Some(20 * (8 * 2048 + 8 * 2048)));
    assert_eq!(planned("sampling.top_p=0.9", "sampling"), Some(256 * 4 * 2048));
    assert_eq!(planned("sampling.top_p=1", "sampling"), None);
}

#[test]
fn parameter_groups_have_their_own_settings() {
    let groups = |text: &str| {
        let recipe = RECIPE.replace("max_context = 256", "max_context = 128").replace("= 250", "= 100");
        recipe.replace("lr = 1e-5,", &format!("lr = 1e-5, groups = {{ {text} }},"))
    };
    let dir = directory(&[("a.lua", &groups("{ weights = \"*norm*\", lr = 0 }"))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "policy.max_context=64"]);
    let read = |path: &str| -> std::collections::HashMap<String, tch::Tensor> {
        tch::Tensor::read_safetensors(dir.path().join(path)).unwrap().into_iter().collect()
    };
    let (before, after) = (read("model/model.safetensors"), read("runs/a/checkpoints/step-000002/model.safetensors"));
    for (name, tensor) in &before {
        let moved = (tensor - &after[name]).abs().max().double_value(&[]) > 0.0;
        assert_eq!(moved, !name.contains("norm"), "{name}");
    }
    cli_snapshot!(model, { "a.lua" => groups("{ weights = \"model.layers.0.mlp.up_prj.weight\" }") }, ["run", "a.lua", "-q"], @"
    exit: 3
    --- stderr
    error: trainer.groups: no weight is called `model.layers.0.mlp.up_prj.weight`
      --> a.lua:17
      hint: did you mean `model.layers.0.mlp.up_proj.weight` or `model.layers.0.mlp.down_proj.weight` or `model.layers.0.mlp.gate_proj.weight`?
    ");
    cli_snapshot!(model, { "a.lua" => groups("{ weights = \"*\", lr = -1 }") }, ["run", "a.lua", "-q"], @"
    exit: 3
    --- stderr
    error: trainer.groups: lr of `*` is -1
      --> a.lua:17
      hint: 0 or more
    ");
    cli_snapshot!(model, { "a.lua" => groups("{ wheights = \"*\" }") }, ["run", "a.lua", "-q"], @"
    exit: 3
    --- stderr
    error: r1.grpo: unknown field `trainer.groups[1].wheights`
      --> a.lua:17
      hint: did you mean `weights`?
    ");
}
