//! `r1 eval`: figures, files, replay, resume, comparison, refusals.

use std::path::Path;

use r1::mdp::{Split, Trajectory};
use r1::store::{read_trajectories, write_trajectories};
use serde_json::Value;

use super::recipe::recipe;
use super::run_files::read_json;
use super::{directory, exits, fail, r1, ran, succeed};

/// Six held-out tasks. The part `even` depends on the task alone, `acc` on the response.
const RECIPE: &str = r#"
return r1.recipe {
  env = r1.env {
    format = "retool", max_steps = 2,
    reset = function(task) return { task = task, messages = { r1.user(task.prompt) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      if state.task.broken then error("the service is down") end
      return { done = true }
    end,
  },
  reward = function(state, outcome)
    return { acc = #outcome.text % 2, em = 1 - state.task.n % 2 }
  end,
  policy = { model = "model" },
  data = { eval = "tasks.jsonl" },
  eval = { accuracy = "acc", max_new_tokens = 5 },
  sampling = { max_new_tokens = 4, temperature = 2 },
  trainer = r1.grpo { steps = 1 },
}
"#;

const TASKS: &str = r#"{"n":1,"prompt":"say 1","level":"easy"}
{"n":2,"prompt":"say 2","level":"easy"}
{"n":3,"prompt":"say 3","level":"hard"}
{"n":4,"prompt":"say 4","level":"hard"}
{"n":5,"prompt":"say 5","level":"hard"}
{"n":6,"prompt":"say 6","level":"hard"}
"#;

fn json(dir: &Path, args: &[&str]) -> Value {
    let printed = succeed(dir, &[&["eval", "a.lua", "--json"], args].concat());
    assert_eq!(printed.trim().lines().count(), 1, "{printed}");
    serde_json::from_str(&printed).unwrap()
}

fn stored(run: &Path) -> Vec<Trajectory> {
    read_trajectories(&run.join("evaluations/step-000000.parquet")).unwrap()
}

fn near(value: &Value, wanted: f64) {
    let mean = value["value"].as_f64().unwrap_or_else(|| panic!("{value}"));
    assert!((mean - wanted).abs() < 1e-9, "{mean}, not {wanted}");
    let (low, high) = (value["low"].as_f64().unwrap(), value["high"].as_f64().unwrap());
    assert!(low <= mean && mean <= high, "{value}");
}

#[test]
fn an_evaluation_reports_figures_of_its_stored_trajectories() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    let report = json(dir.path(), &["n=4", "seed=3", "--by", "level"]);
    assert_eq!((&report["tasks"], &report["samples"], &report["n"]), (&6.into(), &24.into(), &4.into()));
    assert_eq!(report["temperature"], 2.0, "that of training for several samples");
    let run = dir.path().join("runs/a-eval");
    let all = stored(&run);
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|one| one.split == Split::Eval));
    let scores: Vec<Vec<f64>> = (0..6)
        .map(|task| all.iter().filter(|one| one.task_index == task).map(|one| one.reward_parts["acc"]).collect())
        .collect();
    let mean = |of: &dyn Fn(&Vec<f64>) -> f64| scores.iter().map(of).sum::<f64>() / 6.0;
    let solved = |scores: &Vec<f64>| scores.iter().sum::<f64>();
    assert!((1.0..23.0).contains(&(mean(&solved) * 6.0)), "the samples of a task differ: {scores:?}");
    let metrics = &report["metrics"];
    near(&metrics["mean@1"], mean(&|scores| solved(scores) / 4.0));
    near(&metrics["mean@4"], mean(&|scores| solved(scores) / 4.0));
    near(&metrics["best@4"], mean(&|scores| solved(scores).min(1.0)));
    near(&metrics["worst@4"], mean(&|scores| f64::from(u8::from(solved(scores) > 3.5))));
    // Two of four: 1 - C(4 - c, 2) / 6.
    near(&metrics["pass@2"], mean(&|scores| 1.0 - (4.0 - solved(scores)) * (3.0 - solved(scores)) / 12.0));
    near(&metrics["em"], 0.5);
    near(&metrics["steps"], 1.0);
    assert!(metrics.get("maj@4").is_none(), "no response has a final answer");
    let easy: f64 = scores[..2].iter().flatten().sum::<f64>() / 8.0;
    near(&report["slices"]["level"]["easy"]["metrics"]["mean@4"], easy);
    assert_eq!(report["slices"]["level"]["hard"]["tasks"], 4);
    assert_eq!(report["failures"], serde_json::json!({}));

    let written = read_json(run.join("report.json"));
    assert_eq!(written["metrics"], report["metrics"]);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("pass@2") && page.ends_with("</html>\n"), "{page}");
    let markdown = std::fs::read_to_string(run.join("report.md")).unwrap();
    assert!(markdown.contains("| pass@2 | ") && markdown.contains("| hard | 4 | "), "{markdown}");
    let replayed = succeed(dir.path(), &["replay", "a-eval", "eval", "-q"]);
    assert_eq!(replayed, "24 trajectories: every observation, reward and status as recorded\n");
    let rescored = succeed(dir.path(), &["rescore", "a-eval", "--script", "a.lua", "--eval", "-q"]);
    assert!(rescored.contains("no reward changed"), "{rescored}");
}

#[test]
fn an_evaluation_of_one_sample_is_greedy_and_prints_tables() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    let printed = succeed(dir.path(), &["eval", "a.lua", "-q", "--name", "mine"]);
    assert_eq!(printed, "", "--quiet prints warnings only");
    let printed = succeed(dir.path(), &["eval", "a.lua"]);
    for part in ["a: 6 tasks, 1 sample each, temperature 0;", "mean@1", "em ", "0.500 [", "report.html"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let ids: Vec<String> = stored(&dir.path().join("runs/mine")).into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["eval-0-0-0", "eval-0-1-0", "eval-0-2-0", "eval-0-3-0", "eval-0-4-0", "eval-0-5-0"]);
}

/// Metrics without `seconds` and `tool_seconds`, which differ between two evaluations.
fn without_times(metrics: &Value) -> Value {
    let mut metrics = metrics.clone();
    if let Some(fields) = metrics.as_object_mut() {
        fields.retain(|name, _| !name.contains("seconds"));
    }
    metrics
}

#[test]
fn models_are_compared_on_the_same_tasks() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    let args = ["--model", "model", "--model", "model", "n=2", "eval.temperature=1", "eval.top_k=1"];
    let report = json(dir.path(), &args);
    let same = &report["comparisons"][0]["metrics"]["mean@2"];
    assert_eq!((&same["value"], &same["p"], &same["tasks"]), (&0.0.into(), &1.0.into(), &6.into()));
    assert_eq!(without_times(&report["models"][0]["metrics"]), without_times(&report["models"][1]["metrics"]));
    assert_eq!(stored(&dir.path().join("runs/a-eval/models/2-model")).len(), 12);
    let replayed = succeed(dir.path(), &["replay", "runs/a-eval/models/2-model", "eval", "-q"]);
    assert!(replayed.starts_with("12 trajectories: every observation"), "{replayed}");
}

#[test]
fn a_killed_evaluation_continues_to_the_same_report() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    let whole = json(dir.path(), &["n=3", "seed=8"]);
    let run = dir.path().join("runs/a-eval");
    let all = stored(&run);
    // The number of computed prompt tokens depends on the order of requests.
    let ids = |of: &[Trajectory]| {
        of.iter().map(|one| (one.id.clone(), one.steps[0].response_ids.clone())).collect::<Vec<_>>()
    };
    for kept in [0, 7] {
        write_trajectories(&run.join("evaluations/step-000000.parquet"), 0, &all[..kept]).unwrap();
        std::fs::remove_file(run.join("report.json")).unwrap();
        let continued = json(dir.path(), &["--resume"]);
        for part in ["metrics", "tasks", "samples", "failures"] {
            assert_eq!(without_times(&continued[part]), without_times(&whole[part]), "{kept}: {part}");
        }
        assert_eq!(ids(&stored(&run)), ids(&all));
    }
    // Killed before the first file of the whole evaluation: small files have what had ended.
    let unmerged = run.join("evaluations/unmerged");
    assert!(!unmerged.exists());
    std::fs::remove_file(run.join("evaluations/step-000000.parquet")).unwrap();
    std::fs::create_dir(&unmerged).unwrap();
    write_trajectories(&unmerged.join("000000.parquet"), 0, &all[..4]).unwrap();
    write_trajectories(&unmerged.join("000001.parquet"), 0, &all[4..9]).unwrap();
    let text = ran(dir.path(), &["eval", "a.lua", "--resume"]);
    assert!(text.contains("stored   9 of 18 trajectories"), "{text}");
    assert_eq!((ids(&stored(&run)), unmerged.exists()), (ids(&all), false));
    let changed = fail(dir.path(), &["eval", "a.lua", "--resume", "eval.max_new_tokens=3"]);
    assert!(changed.contains("the settings have changed since the evaluation began"), "{changed}");
    let models = fail(dir.path(), &["eval", "a.lua", "--resume", "--model", "r1-nano"]);
    assert!(models.contains("the evaluation began with --model model"), "{models}");
    std::fs::write(dir.path().join("a.lua"), RECIPE.replace("% 2, em", "% 3, em")).unwrap();
    let script = fail(dir.path(), &["eval", "a.lua", "--resume"]);
    assert!(script.contains("the script has changed since the evaluation began"), "{script}");
}

#[test]
fn samples_that_fail_are_missing_and_not_wrong() {
    let tasks = TASKS.replace(r#""level":"easy"}"#, r#""level":"easy","broken":true}"#);
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &tasks)], true);
    let report = json(dir.path(), &["rollout.retries=0"]);
    assert_eq!((&report["tasks"], &report["samples"], &report["missing"]), (&4.into(), &4.into(), &2.into()));
    assert_eq!(report["failures"], serde_json::json!({ "env_error": 2 }));
    near(&report["metrics"]["em"], 0.5);
    let output = r1(dir.path(), &["eval", "a.lua", "rollout.retries=0"]).output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("2 of 6 samples are missing") && notes.contains("the service is down"), "{notes}");
}

#[test]
fn evaluations_without_tasks_or_with_unknown_names_are_refused() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    std::fs::write(dir.path().join("b.lua"), RECIPE.replace("data = { eval = \"tasks.jsonl\" },", "")).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["eval", "b.lua"], "the recipe has no held-out tasks"),
        (&["eval", "a.lua", "--by", "levle"], "did you mean `level`?"),
        (&["eval", "a.lua", "n=0"], "eval.samples is 0"),
        (&["eval", "a.lua", "eval.sample=2"], "eval.samples"),
        (&["eval", "a.lua", "--resume"], "there is no evaluation `a-eval` to continue"),
        (&["eval", "a.lua", "--resume", "model"], "not an evaluation"),
    ];
    for (args, part) in cases {
        let refused = fail(dir.path(), args);
        assert!(refused.contains(part), "{args:?}: {refused}");
    }
}

/// A row without the column that the reward compares with ends every command, and is not a wrong
/// answer.
#[test]
fn a_row_without_its_reference_is_an_error_of_the_dataset() {
    let recipe = recipe(&[
        ("reward", "function(state, outcome) return r1.math_equal(outcome.text, state.task.answer) and 1 or 0 end"),
        ("data", "{ train = 't.jsonl', eval = 't.jsonl' }"),
    ]);
    let row = "{\"question\":\"2+2?\",\"target\":\"4\"}\n";
    let dir = directory(&[("a.lua", &recipe), ("t.jsonl", row)], true);
    for command in ["run", "eval", "check"] {
        let printed = exits(dir.path(), 4, &[command, "a.lua"]);
        for part in
            ["r1.math_equal: the reference is nil in row 0 of data.", "t.jsonl:1", "a.lua:3", "question, target"]
        {
            assert!(printed.contains(part), "{command}: no {part} in {printed}");
        }
    }
}
