//! Equal seeds give equal weights, independent of the number of concurrent trajectories.

use std::fs;

use super::recipe::recipe;
use super::{directory, succeed};

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_adapter_does_not_depend_on_rollout_concurrency() {
    let recipe = recipe(&[
        ("policy", "{ model = 'r1-nano', lora = { rank = 4, alpha = 64 } }"),
        (
            "data",
            "{ train = r1.data.generate { count = 64, row = function(index)
    return { prompt = 'Ana has ' .. math.random(99) .. ' boxes.' .. (' How many?'):rep(index % 7) }
  end } }",
        ),
        ("sampling", "{ max_new_tokens = 24 }"),
        ("trainer", "r1.grpo { steps = 3, group_size = 4, groups_per_step = 4, lr = 1e-2 }"),
    ]);
    let dir = directory(&[("a.lua", &recipe)], false);
    let adapter = |name: &str, concurrency: usize| {
        let concurrency = format!("rollout.concurrency={concurrency}");
        succeed(dir.path(), &["run", "a.lua", "-q", "seed=11", "--name", name, &concurrency]);
        let checkpoint = dir.path().join("runs").join(name).join("checkpoints/step-000003");
        fs::read(checkpoint.join("adapter_model.safetensors")).unwrap()
    };
    let all_at_once = adapter("many", 16);
    assert!(adapter("few", 3) == all_at_once, "the weights depend on the batch of the sampler");
}
