//! Policies that read images, with several processes: the same results as with one.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use r1::mdp::{StepSeconds, Trajectory, renumber_images};

use super::images::{grid, script, stored, weights};
use super::processes::without_seconds;
use super::run_files::read_json;
use super::{directory, printed, succeed};

/// Settings with which the number of processes changes no bits.
const SAME: [&str; 4] = ["--threads", "1", "trainer.gradient_shards=2", "cold_start.trainer.gradient_shards=2"];

/// A run of the picture world with `count` processes.
fn processes(dir: &Path, name: &str, count: &str, more: &[&str]) -> std::path::PathBuf {
    grid(dir, name, &[&SAME[..], &["--nproc", count], more].concat())
}

/// Hashes of the stored images by number.
fn hashes(run: &Path) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(run.join("images")).unwrap();
    let of = |name: &str| {
        let (number, hash) = name.split_once('-').unwrap();
        (number.parse().unwrap(), hash.split('.').next().unwrap().to_owned())
    };
    entries.map(|entry| of(entry.unwrap().file_name().to_str().unwrap())).collect()
}

/// The trajectories of a file of a run without times, with images numbered in the order of their
/// hashes. Images that are not stored fail the test.
fn trajectories(run: &Path, file: &str) -> Vec<Trajectory> {
    let hashes = hashes(run);
    let mut order: Vec<&String> = hashes.values().collect();
    order.sort();
    let mut all = r1::store::read_trajectories(&run.join(file)).unwrap();
    for trajectory in &mut all {
        let number = |number| order.binary_search(&&hashes[&number]).map(|index| index as u32);
        renumber_images(trajectory, number).unwrap();
        trajectory.seconds = 0.0;
        for step in &mut trajectory.steps {
            (step.seconds, step.prefilled) = (StepSeconds::default(), 0);
        }
    }
    all
}

/// What a run of these steps leaves is equal, but for the numbers of images.
fn assert_same(one: &Path, other: &Path, steps: u64) {
    let sets = [one, other].map(|run| {
        let numbers = stored(run);
        assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
        let mut all: Vec<String> = hashes(run).into_values().collect();
        all.sort();
        all
    });
    assert_eq!(sets[0], sets[1], "other images");
    for step in 1..=steps {
        let file = format!("trajectories/step-{step:06}.parquet");
        let (expected, same) = (trajectories(one, &file), trajectories(other, &file));
        assert!(expected.len() == 16 && expected == same, "{file}");
    }
    assert!(weights(one, steps) == weights(other, steps), "other weights");
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn pictures_have_the_same_bits_with_two_processes() {
    let dir = directory(&[], false);
    let dir = dir.path();
    // Rows are put into small micro-batches in the order of their ids.
    let small = ["trainer.tokens_per_batch=120"];
    let one = processes(dir, "one", "1", &[&small[..], &["trainer.steps=3"]].concat());
    let two = processes(dir, "two", "2", &[&small[..], &["trainer.steps=2"]].concat());
    let resume = ["run", &script(), "--resume", "two", "-q", "--nproc", "2", "--threads", "1", "trainer.steps=3"];
    succeed(dir, &resume);
    assert_same(&one, &two, 3);
    let output = printed(dir, &["replay", "two", "-q"]);
    assert!(output.ends_with("48 trajectories: every observation, reward and status as recorded"), "{output}");
    succeed(dir, &["traj", "verify", "two"]);

    let eval = |more: &[&str]| {
        let args = ["eval", "two", "-q", "--threads", "1", "eval.limit=6", "eval.samples=2"];
        succeed(dir, &[&args[..], more].concat());
    };
    eval(&["--name", "alone", "--nproc", "1"]);
    eval(&["--name", "both", "--nproc", "2"]);
    let report = |name: &str| {
        let mut report = read_json(dir.join("runs").join(name).join("report.json"));
        without_seconds(&mut report);
        report
    };
    assert_eq!(report("alone"), report("both"));
    let [alone, both] = ["alone", "both"].map(|name| dir.join("runs").join(name));
    let file = "evaluations/step-000000.parquet";
    assert!(trajectories(&alone, file) == trajectories(&both, file));
    // Nothing is left to sample: process 1 gets the trajectories of process 0, and their images.
    succeed(dir, &["eval", "two", "-q", "--nproc", "2", "--resume", "both"]);
    assert_eq!(report("alone"), report("both"));
}

/// Divided weights, and rows of supervised training that a resumed run draws.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn divided_weights_and_supervised_training_with_pictures_have_the_same_bits() {
    let dir = directory(&[], false);
    let dir = dir.path();
    let divided = ["trainer.steps=2", "trainer.zero_stage=3", "cold_start.trainer.zero_stage=2"];
    let [one, two] = ["1", "2"].map(|count| processes(dir, count, count, &divided));
    assert_same(&one, &two, 2);
    let script = script();
    let sft = |name: &str, count: &str, more: &[&str]| {
        let small = ["policy.init.tokenizer_rows=20", "cold_start.trainer.batch_size=4", SAME[3]];
        let start = ["sft", &script, "-q", "--threads", "1", "--nproc", count];
        succeed(dir, &[&start[..], &small, more].concat());
        dir.join("runs").join(name)
    };
    let whole = sft("whole", "1", &["--name", "whole", "cold_start.trainer.steps=3"]);
    let divided = sft("divided", "2", &["--name", "divided", "cold_start.trainer.steps=3"]);
    assert!(weights(&whole, 3) == weights(&divided, 3), "supervised training has other weights");
    assert_eq!(stored(&whole).len(), stored(&divided).len());
}

/// Rollouts ahead, processes that only sample, and groups that are carried over.
#[test]
fn pictures_are_stored_with_asynchronous_rollouts() {
    let dir = directory(&[], false);
    for (name, settings) in [
        ("ahead", &["rollout.async.staleness=1"][..]),
        ("sampling", &["rollout.async.staleness=1", "rollout.async.ranks=1"]),
        ("carried", &["rollout.oversample.groups=2", "rollout.oversample.unfinished=carry"]),
    ] {
        let run = processes(dir.path(), name, "2", &[&["trainer.steps=3"], settings].concat());
        for step in 1..=3 {
            assert_eq!(trajectories(&run, &format!("trajectories/step-{step:06}.parquet")).len(), 16, "{name} {step}");
        }
        let output = printed(dir.path(), &["replay", name, "-q"]);
        assert!(output.ends_with("every observation, reward and status as recorded"), "{name}: {output}");
    }
}

/// A loop that uses trajectories of an earlier step, which only process 0 has stored.
const LOOP: &str = r#"
local t = r1.training(arg[1], { name = arg[2], settings = {
  ["policy.init.tokenizer_rows"] = 20, ["cold_start.trainer.steps"] = 2, ["cold_start.trainer.batch_size"] = 4,
  ["cold_start.trainer.gradient_shards"] = 2, ["trainer.gradient_shards"] = 2, ["trainer.steps"] = 2,
  ["trainer.group_size"] = 4, ["trainer.groups_per_step"] = 4, ["rollout.retries"] = 0,
} })
local first
while t.step < t.steps do
  local batch = t:rollout()
  first = first or batch
  t:update(batch)
  print(t.step, #batch, t:logprobs(first)[3][1][1])
  if t.step == 1 then t:update(first) end
  t:next_step()
end
"#;

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_loop_of_a_program_uses_earlier_pictures_on_all_processes() {
    let dir = directory(&[("loop.lua", LOOP)], false);
    let run =
        |count: &str| succeed(dir.path(), &["lua", "--threads", "1", "--nproc", count, "loop.lua", &script(), count]);
    let printed = run("1");
    assert!(printed.starts_with("0\t16\t-"), "{printed}");
    assert_eq!(printed, run("2"));
    let [one, two] = ["1", "2"].map(|count| dir.path().join("runs").join(count));
    let file = "trajectories/step-000002.parquet";
    assert!(trajectories(&one, file) == trajectories(&two, file));
}
