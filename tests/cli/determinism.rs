//! Equal seeds give equal weights, independent of the number of concurrent trajectories.

use std::fs;

use super::recipe::{HELD_OUT, THIRDS, TWO_STEPS, recipe};
use super::run_contents::{assert_same, left};
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

/// Weights, optimiser, trajectories and metrics, with groups that are refilled and with branches.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_does_not_depend_on_workers_and_rollout_concurrency() {
    let refilled = "r1.grpo { steps = 3, group_size = 4, groups_per_step = 3, lr = 1e-3, \
        filter = { uniform = true, refills = 3 } }";
    let branches = "r1.grpo { steps = 3, group_size = 4, groups_per_step = 3, lr = 1e-3, \
        estimator = 'tree', branch = { roots = 2, at = 'entropy' } }";
    for trainer in [refilled, branches] {
        let recipe = recipe(&[
            ("env", TWO_STEPS),
            ("reward", THIRDS),
            ("data", HELD_OUT),
            ("trainer", trainer),
            ("eval", "{ every = 2 }"),
            ("checkpoint", "{ every = 1, keep = 0 }"),
        ]);
        let dir = directory(&[("a.lua", &recipe)], true);
        let dir = dir.path();
        let run = |workers: usize, concurrency: usize| {
            let name = format!("{workers}-{concurrency}");
            let settings = [format!("rollout.workers={workers}"), format!("rollout.concurrency={concurrency}")];
            let settings = settings.each_ref().map(String::as_str);
            succeed(dir, &[&["run", "a.lua", "-q", "--no-reload", "seed=3", "--name", &name], &settings[..]].concat());
            dir.join("runs").join(name)
        };
        let one = left(&run(1, 1));
        assert!(one.keys().filter(|name| name.starts_with("trajectories/")).count() == 3, "{:?}", one.keys());
        for (workers, concurrency) in [(1, 5), (2, 1), (2, 3), (2, 64)] {
            assert_same(
                &one,
                &run(workers, concurrency),
                &format!("{workers} workers, {concurrency} at once, {trainer}"),
            );
        }
    }
}
