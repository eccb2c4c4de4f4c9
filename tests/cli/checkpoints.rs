//! Which checkpoint a run continues from: of a given step, the one before a damaged one, or one of
//! another run; and which ones stay.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::recipe::{HELD_OUT, THIRDS, TWO_STEPS, recipe};
use super::run_files::{checkpoint_files, metrics, read_json, run_dir};
use super::running::Running;
use super::{directory, exits, fail, r1, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("env", TWO_STEPS),
        ("reward", THIRDS),
        ("data", HELD_OUT),
        ("eval", "{ every = 2, before = false, after = false }"),
        ("trainer", "r1.grpo { steps = 5, group_size = 2, groups_per_step = 2, lr = 1e-3 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ])
});

fn run(dir: &Path, more: &[&str]) {
    succeed(dir, &[&["run", "a.lua", "-q", "--no-reload"], more].concat());
}

/// The steps of a run's checkpoints.
fn steps(run: &Path) -> Vec<u64> {
    r1::store::checkpoints(run).unwrap().into_iter().map(|(step, _)| step).collect()
}

/// The steps in the metrics of a run.
fn logged(run: &Path) -> Vec<u64> {
    metrics(run).iter().map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_resumes_from_an_earlier_step_and_says_what_is_dropped() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let dir = dir.path();
    run(dir, &["--name", "whole"]);
    run(dir, &["--name", "k"]);
    let path = run_dir(dir, "k");
    let resume = ["run", "a.lua", "--no-reload", "--resume", "k", "--resume-from", "2", "trainer.steps=4"];
    let notes = path.join("curation.jsonl");
    fs::write(&notes, "{\"id\":\"1-0-0\",\"note\":\"a\"}\n{\"id\":\"4-0-0\",\"exclude\":true}\n").unwrap();
    let reported = exits(dir, 0, &resume);
    // The ids of repeated steps have other trajectories now.
    let [kept, removed] = [notes, path.join("curation.removed.jsonl")].map(|path| fs::read_to_string(path).unwrap());
    assert!(kept.contains("1-0-0") && !kept.contains("4-0-0") && removed.contains("4-0-0"), "{kept} {removed}");
    for part in [
        "the notes about 1 trajectory after step 2 are moved to curation.removed.jsonl",
        "resuming runs/k from step 2 (runs/k/checkpoints/step-000002)",
        "steps 3 to 5 are repeated: trajectories, evaluations, metrics and TensorBoard events after step 2 are removed, and \
         the checkpoints step-000003, step-000004, step-000005",
    ] {
        assert!(reported.contains(part), "{reported}");
    }
    let files = |folder: &str| fs::read_dir(path.join(folder)).unwrap().count();
    assert_eq!((steps(&path), logged(&path)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    assert_eq!((files("trajectories"), files("evaluations")), (4, 1));
    assert!(checkpoint_files(dir, "k", 4) == checkpoint_files(dir, "whole", 4));
    // For programs.
    let events = succeed(dir, &[&resume[..7], &["trainer.steps=3", "--json"]].concat());
    let event =
        events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|e| e["event"] == "resume");
    let dropped = json!({ "steps": [3, 4], "damaged": [],
        "checkpoints": ["runs/k/checkpoints/step-000003", "runs/k/checkpoints/step-000004"] });
    assert_eq!(event.unwrap()["dropped"], dropped);

    let error = fail(dir, &["run", "a.lua", "--resume", "k", "--resume-from", "9"]);
    assert!(error.contains("no checkpoint of step 9") && error.contains("of the steps 1, 2, 3;"), "{error}");
    let error = fail(dir, &["run", "a.lua", "--resume-from", "1"]);
    assert!(error.contains("--resume"), "{error}");
    let error = fail(dir, &["run", "a.lua", "--resume", "--name", "other", "--resume-from", "1"]);
    assert!(error.contains("there is no run to resume"), "{error}");
    assert_eq!(steps(&path), [1, 2, 3]);
}

#[test]
fn checkpoints_of_every_kth_step_stay() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    run(dir.path(), &["checkpoint.every=2", "checkpoint.keep=1", "checkpoint.keep_every=3", "trainer.steps=7"]);
    assert_eq!(steps(&run_dir(dir.path(), "a")), [3, 6, 7]);
    // Also when the run is resumed.
    run(dir.path(), &["--resume", "a", "trainer.steps=8"]);
    assert_eq!(steps(&run_dir(dir.path(), "a")), [3, 6, 8]);
}

/// The evaluations of five steps are after steps 2 and 4.
#[test]
fn the_best_model_is_that_of_the_metric() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    for (name, mode) in [("most", "max"), ("least", "min")] {
        let settings = ["checkpoint.best=eval/response_tokens", &format!("checkpoint.best_mode={mode}")];
        let more = ["--name", name, "eval.every=1", "trainer.lr=1", "sampling.max_new_tokens=8"];
        let printed = exits(dir.path(), 0, &[&["run", "a.lua", "--no-reload"], &settings[..], &more].concat());
        let lines = metrics(&run_dir(dir.path(), name));
        let values: Vec<(u64, f64)> = lines
            .iter()
            .filter_map(|line| Some((line["step"].as_u64()?, line["eval/response_tokens"].as_f64()?)))
            .collect();
        let best = values.iter().copied().reduce(|best, one| {
            let is_better = if mode == "max" { one.1 > best.1 } else { one.1 < best.1 };
            if is_better { one } else { best }
        });
        let step = read_json(run_dir(dir.path(), name).join("best/trainer_state/state.json"))["step"].as_u64();
        assert_eq!((step, values.len()), (best.map(|best| best.0), 4), "{name}: {values:?}\n{printed}");
    }
    let printed =
        exits(dir.path(), 0, &["run", "a.lua", "--no-reload", "--name", "no", "checkpoint.best=eval/acuracy"]);
    assert!(printed.contains("checkpoint.best is `eval/acuracy`, which evaluations do not have"), "{printed}");
    assert!(printed.contains("eval/accuracy") && !run_dir(dir.path(), "no").join("best").exists(), "{printed}");
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let dir = dir.path();
    run(dir, &["--name", "whole"]);
    run(dir, &["--name", "k"]);
    let path = run_dir(dir, "k");
    let checkpoint = |step: u64, file: &str| path.join(format!("checkpoints/step-{step:06}/{file}"));
    let model = fs::read(checkpoint(5, "model.safetensors")).unwrap();
    fs::write(checkpoint(5, "model.safetensors"), &model[1..]).unwrap();
    fs::write(checkpoint(4, "trainer_state/manifest.json"), "{").unwrap();
    let reported = exits(dir, 0, &["run", "a.lua", "--no-reload", "--resume", "k"]);
    for part in [
        "the checkpoint of step 5 is damaged: runs/k/checkpoints/step-000005/model.safetensors: the file has ",
        "the checkpoint of step 4 is damaged: runs/k/checkpoints/step-000004/trainer_state/manifest.json: damaged file: ",
        "the run continues from the checkpoint of step 3",
        "resuming runs/k from step 3",
        "steps 4 to 5 are repeated",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(checkpoint_files(dir, "k", 5) == checkpoint_files(dir, "whole", 5));
    assert_eq!((steps(&path), logged(&path)), (vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5]));
    // It may be repaired.
    assert_eq!(fs::read(path.join("checkpoints/damaged-step-000005/model.safetensors")).unwrap(), &model[1..]);
    // One that is named is not replaced by another one.
    fs::write(checkpoint(2, "trainer_state/state.json"), "{}").unwrap();
    let error = fail(dir, &["run", "a.lua", "--resume", "k", "--resume-from", "2"]);
    assert!(error.contains("state.json") && error.contains("2 bytes"), "{error}");
    assert_eq!(steps(&path), [1, 2, 3, 4, 5]);
}

/// Another reward from step 2 on.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_fork_begins_from_a_step_of_another_run() {
    let other = RECIPE.replace("% 3 == 0", "% 5 == 0");
    let dir = directory(&[("a.lua", &RECIPE), ("b.lua", &other)], true);
    let dir = dir.path();
    run(dir, &["trainer.lr=2e-3"]);
    let before = super::run_files::files(&run_dir(dir, "a"));
    let reported = exits(dir, 0, &["run", "b.lua", "--no-reload", "--fork", "a@2"]);
    for part in ["a new run begins from step 2 of runs/a (runs/a/checkpoints/step-000002)", "the script has changed ("]
    {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(super::run_files::files(&run_dir(dir, "a")) == before, "the run has changed");
    let fork = run_dir(dir, "b");
    assert_eq!((steps(&fork), logged(&fork)), (vec![2, 3, 4, 5], vec![2, 3, 4, 5]));
    let config = read_json(fork.join("config.json"));
    assert_eq!(config["origins"]["fork"]["step"], 2);
    assert!(config["origins"]["fork"]["run"].as_str().unwrap().ends_with("/runs/a"), "{config}");
    assert_eq!((&config["settings"]["trainer"]["lr"], &config["from_step"]), (&json!(2e-3), &json!(2)));
    // The same script continues as the run does, also after a stop.
    run(dir, &["--fork", "a@2", "--name", "same", "trainer.steps=2"]);
    for steps in ["trainer.steps=3", "trainer.steps=5"] {
        run(dir, &["--resume", "same", steps]);
    }
    let (same, whole) = (checkpoint_files(dir, "same", 5), checkpoint_files(dir, "a", 5));
    assert!(same == whole && checkpoint_files(dir, "b", 5) != whole);
    assert_eq!(read_json(run_dir(dir, "same").join("config.json"))["origins"]["fork"]["step"], 2);
    let account = succeed(dir, &["traj", "account", "same"]);
    assert!(account.contains("before step 3: the run ") && account.contains("runs/a\n"), "{account}");
    // The newest checkpoint; another seed.
    run(dir, &["--fork", "runs/a", "--name", "on", "trainer.steps=6", "--seed", "9"]);
    let on = read_json(run_dir(dir, "on").join("config.json"));
    assert_eq!((&on["seed"], &on["origins"]["fork"]["step"]), (&json!(9), &json!(5)));
    run(dir, &["--resume", "on", "trainer.steps=7"]);
    // A fork is compared with its origin from its first step on.
    let printed = succeed(dir, &["compare", "a", "same", "--out", "c.svg"]);
    assert!(printed.contains("same begins after step 2 of ") && printed.contains("runs/a\n"), "{printed}");
    let json: Value = serde_json::from_str(&succeed(dir, &["compare", "a", "same", "--json"])).unwrap();
    let first = |run: usize| json["runs"][run]["metrics"]["reward/mean"]["first"]["step"].clone();
    assert_eq!((first(0), first(1), &json["runs"][1]["fork"]["step"]), (json!(1), json!(3), &json!(2)));

    for (fork, part) in [("a@9", "no checkpoint of step 9"), ("c@1", "there is no run `c`"), ("model", "not a run")] {
        let error = fail(dir, &["run", "b.lua", "--fork", fork, "--name", "none"]);
        assert!(error.contains(part), "{fork}: {error}");
    }
    assert!(!run_dir(dir, "none").exists());
}

/// Two processes in one run directory: the second one is told who has it.
#[test]
fn a_second_process_in_a_run_directory_is_refused() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let dir = dir.path();
    let running =
        Running::of(r1(dir, &["run", "a.lua", "--no-reload", "trainer.steps=100000", "checkpoint.keep=1"]), dir);
    running.until_lines(&run_dir(dir, "a").join("metrics.jsonl"), 2);
    let error = exits(dir, 8, &["run", "a.lua", "--resume", "a"]);
    let pid = running.pid();
    for part in [format!("is writing to this run: process {pid} on "), format!("end it after its step: kill {pid}")] {
        assert!(error.contains(&part), "{part}: {error}");
    }
    running.send(libc::SIGKILL);
    running.end();
    // The lock ends with the process; its file does not matter.
    assert!(run_dir(dir, "a").join(".lock").is_file());
    let last = logged(&run_dir(dir, "a")).pop().unwrap();
    run(dir, &["--resume", "a", &format!("trainer.steps={}", last + 1)]);
}
