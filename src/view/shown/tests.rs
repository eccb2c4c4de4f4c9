//! Tests of what is shown of a trajectory, and a run for tests of other files.
#![allow(clippy::unwrap_used)]
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::mdp::{Fork, Message, Step, TrainedTokens, testing};
use crate::store::{Configuration, RunDir, ScriptVersion};

/// A run with two steps, of one group with a branch and of one trajectory with a hostile text.
pub(in crate::view) fn written(root: &Path, name: &str) -> PathBuf {
    let run = RunDir::create(root, name).unwrap();
    let script =
        ScriptVersion { path: "a.lua".into(), hash: "0123456789abcdef".to_owned(), ..ScriptVersion::default() };
    let now = Configuration { script, settings: json!({ "trainer": { "steps": 2 } }), ..Configuration::default() };
    run.write_recipe(now, "return 1\n", &[]).unwrap();
    let step = |prompt: &[u32], reply: &[u32], reward| Step { reward, ..testing::step(prompt, reply) };
    let of = |id: &str, sample, steps: Vec<Step>| Trajectory {
        id: id.to_owned(),
        sample,
        task: json!({ "question": "1+1?" }),
        ..testing::trajectory(steps)
    };
    let mut first = of("1-0-0", 0, vec![step(&[1, 2], &[3], 0.0), step(&[1, 2, 3, 4], &[5, 6], 1.0)]);
    for step in &mut first.steps {
        let advantages = vec![0.5; step.response_ids.len()];
        step.trained =
            TrainedTokens { advantages, entropies: vec![0.25; step.response_ids.len()], ..TrainedTokens::default() };
    }
    let fork = Some(Fork { parent: "1-0-0".to_owned(), step: 1 });
    let branch = Trajectory { fork, ..of("1-0-1", 1, vec![step(&[1, 2], &[3], 0.0), step(&[1, 4], &[5], -1.0)]) };
    let hostile = "</script><script>alert(1)</script>\u{1b}[2J".to_owned();
    let messages = vec![Message::user("x"), Message::assistant(hostile)];
    let other = Trajectory { messages, ..of("2-0-0", 0, vec![step(&[1], &[2, 7, 8], 0.5)]) };
    run.write_trajectories(1, 0, None, &[first, branch]).unwrap();
    run.write_trajectories(2, 1, None, &[other]).unwrap();
    run.path().to_owned()
}

fn shown(view: &View, id: &str) -> Result<Value> {
    let query = [("run".to_owned(), "demo".to_owned()), ("id".to_owned(), id.to_owned())];
    Ok(serde_json::from_str(&view.get("trajectory", Query(&query))?).unwrap())
}

#[test]
fn a_trajectory_is_shown_with_its_group_and_its_prompts_as_changes() {
    let root = tempfile::tempdir().unwrap();
    let run = written(root.path(), "demo");
    let view = View::new(&[], root.path()).unwrap();
    let first = shown(&view, "1-0-0").unwrap();
    assert_eq!(first["trajectory"]["steps"][0]["prompt_ids"], json!([]));
    assert_eq!(first["prompts"], json!([[{ "add": [1, 2] }], [{ "keep": 3 }, { "add": [4] }]]));
    assert_eq!((&first["prompt_tokens"], &first["advantages"]), (&json!([2, 4]), &json!([0.5, 0.5])));
    let trained = json!({ "advantages": [0.5, 0.5], "entropies": [0.25, 0.25] });
    assert_eq!(first["trajectory"]["steps"][1]["trained"], trained);
    assert_eq!((first["summary"]["reward"].as_f64(), first["group"].as_array().unwrap().len()), (Some(1.0), 2));
    assert_eq!(first["texts"], json!({}), "there is no tokenizer");
    let branch = shown(&view, "1-0-1").unwrap();
    assert_eq!(branch["trajectory"]["fork"], json!({ "parent": "1-0-0", "step": 1 }));
    assert_eq!(branch["prompts"][1], json!([{ "keep": 1 }, { "drop": 2 }, { "add": [4] }]));
    assert!(shown(&view, "1-0-7").unwrap_err().hint.unwrap().contains("1-0-"));
    for wrong in ["7-0-0", "x", "", "eval-1-0-0"] {
        assert_eq!(shown(&view, wrong).unwrap_err().kind, Kind::Usage, "{wrong}");
    }
    // The texts of tokens come from the tokenizer of the run.
    let init = run.join("init");
    std::fs::create_dir(&init).unwrap();
    crate::text::train_tokenizer(["a b c".to_owned()].into_iter(), 272, &[]).unwrap().save(&init).unwrap();
    let texts = shown(&view, "1-0-0").unwrap()["texts"].clone();
    assert_eq!(texts.as_object().unwrap().len(), 6, "{texts}");
}

#[test]
fn the_changes_of_a_prompt_restore_it() {
    for (was, is) in [
        (vec![1, 2, 3], vec![1, 2, 3, 4]),
        (vec![1, 2, 3, 4, 5], vec![1, 9, 4, 5, 6]),
        (vec![1, 2], vec![]),
        (vec![], vec![]),
        (vec![5, 6], vec![7]),
    ] {
        let (mut at, mut restored) = (0, Vec::new());
        for part in changes(&was, &is) {
            match part {
                PromptPart::Keep(count) => {
                    restored.extend(&was[at..at + count]);
                    at += count;
                }
                PromptPart::Drop(count) => at += count,
                PromptPart::Add(ids) => restored.extend(ids),
            }
        }
        assert_eq!(restored, is);
    }
}
