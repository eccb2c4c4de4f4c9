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
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h200", "--world", "16"], @"
    exit: 0
    --- stdout
      memory                                                                      MiB
      weights, 1 million numbers in bf16                                            1
      AdamW, two moments in f32                                                     1
      master weights, in f32                                                        1
      key-value cache, 128 slots of 128 tokens                                      1
      sampling: activations, 2048 prompt tokens at once, logits of 128 sequences    2
      learning: gradients, 1 million numbers                                        1
      learning: activations, 32768 tokens at once                                  34
      learning: logits, 2048 tokens at once                                         7
      learning: gradients, of the head, until they are added up                     1
      at most, while learning, on h200                                             41

    fits: 0.0 GiB of 139.0 GiB on each h200; one rank is enough, because every rank has the whole model, its gradients and its optimiser

      part of a step                  s  share
      prefill                     2e-09   0.0%                                                100 prompt tokens
      decode                     0.0011  56.0%  28 steps of 0.041 ms with 4 sequences, limited by the bandwidth
      tools                           0   0.0%                                            not known: taken as 0
      forward and backward       0.0004  19.5%                             106 tokens in micro-batches of 32768
      optimiser                 7.5e-08   0.0%                                1 x 0.000234 GB of memory traffic
      exchange of gradients     0.00045  22.2%                                    1 x 4 exchanges of 2.6e-05 GB
      exchange of trajectories  4.9e-05   2.4%                                          0.0983 MB to every rank
      step                       0.0021

    lengths      100 tokens of prompt and results, 28 sampled
    rate         436,536 tokens/s, 15,591 sequences/s on 16 ranks
    exchange     24.5% of the step; gradients by NCCL, which r1 does not use: 9.8e-[time]

    assumptions
      lengths: the limits of the settings, the maximum
      device: 989 TFLOP/s, 4.8 TB/s of memory for each rank
      of the peak rate: 50% in updates, 40% in prefill
      of the bandwidth: 90% for weights and 17% for keys and values in decoding, 65% in optimiser steps
      fixed: 41 us a layer in a decode step, 0.4 ms in a micro-batch
      exchange: Gloo, 2 GB/s between ranks of a machine
      exchange: 2 GB/s to other machines, one interface for 8 ranks
      exchange: these rates were not measured on GPU machines
      not included: evaluations, checkpoints, rewards, reading data, waiting for the slowest rank
    ");
}

#[test]
fn wrong_devices_and_numbers_are_refused() {
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h20"], @"
    exit: 2
    --- stderr
    error: there is no device `h20`
      --> --device
      hint: one of a100-80, b200, cpu, h100, h200
    ");
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--world", "0"], @"
    exit: 2
    --- stderr
    error: invalid value '0' for '--world <N>': 0 is not in 1..=4294967295

    For more information, try '--help'.
    ");
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["plan", "a.lua", "--device", "h200", "--like", "nothing"], @"
    exit: 8
    --- stderr
    error: there is no run `nothing`
      hint: runs has no runs; `r1 run SCRIPT` creates one
    ");
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

/// Asynchronous rollouts overlap sampling and training; ranks that only sample do not train.
#[test]
fn asynchronous_rollouts_overlap_sampling_and_training() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let of = |more: &[&str]| {
        let plan = planned(dir.path(), &[&["a.lua", "--device", "h100", "--world", "4"], more].concat());
        let parts = plan["time"]["parts"].as_array().unwrap().clone();
        let seconds = move |names: &[&str]| -> f64 {
            let chosen =
                parts.iter().filter(|part| names.is_empty() || names.contains(&part["part"].as_str().unwrap()));
            chosen.map(|part| part["seconds"].as_f64().unwrap()).sum()
        };
        (plan["time"]["step_seconds"].as_f64().unwrap(), seconds)
    };
    let near = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-9, "{one} {other}");
    let sampling = ["prefill", "decode", "tools"];
    let (alone, parts) = of(&[]);
    assert!(parts(&["overlap"]).abs() < 1e-12);
    // Every rank does both in turns, and nothing waits for tools: they take no time here.
    let (step, parts_of_async) = of(&["rollout.async.staleness=1"]);
    near(step, parts_of_async(&[]));
    near(step, alone);
    // A half of the ranks samples, and a half learns.
    let (step, divided) = of(&["rollout.async.staleness=1", "rollout.async.ranks=2"]);
    near(step, divided(&[]));
    let sent = divided(&["exchange of new weights", "exchange of trajectories"]);
    let learning = step - divided(&["overlap"]) - divided(&sampling) - sent;
    near(step, learning.max(divided(&sampling)) + sent);
    assert!(divided(&sampling) > parts(&sampling) && divided(&["exchange of new weights"]) > 0.0);
    assert!(divided(&["exchange of gradients"]) < parts(&["exchange of gradients"]));
    let all =
        ["plan", "a.lua", "--device", "h100", "--world", "2", "rollout.async.staleness=1", "rollout.async.ranks=2"];
    let refused = exits(dir.path(), 2, &all);
    assert!(refused.contains("rollout.async.ranks is 2, and there are 2 ranks"), "{refused}");
}

#[test]
fn this_machine_is_measured_and_shared_by_its_processes() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let args = ["plan", "a.lua", "--world", "2"];
    let text = succeed(dir.path(), &args);
    for part in ["at most, while", "on the CPU", "FLOP/s", "forward and backward", "exchange of gradients"] {
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
