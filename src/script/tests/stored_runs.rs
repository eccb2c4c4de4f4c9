//! `r1.store`: programs read the trajectories of a run.

use insta::assert_snapshot;
use serde_json::json;

use super::outside::{recipe_with, returned_by};
use super::*;
use crate::script::Record;

#[test]
fn programs_read_the_trajectories_of_a_run() {
    use crate::mdp::{Message, Step, TrainedTokens, Trajectory, testing};
    let dir = tempfile::tempdir().unwrap();
    let run_dir = crate::store::RunDir::create(dir.path(), "demo").unwrap();
    let mut configuration = crate::store::Configuration { max_context: 9, ..Default::default() };
    configuration.script.path = "a.lua".into();
    configuration.script.hash = "aa".to_owned();
    run_dir.write_recipe(configuration, "", &[]).unwrap();
    let step = Step {
        logprobs: vec![-0.5],
        text: "hi".to_owned(),
        reward: 0.5,
        terminated: true,
        prefilled: 2,
        new_row: true,
        trained: TrainedTokens { advantages: vec![0.25], loss_mask: vec![true], ..TrainedTokens::default() },
        ..testing::step(&[1, 2], &[3])
    };
    let trajectory = Trajectory {
        id: "7-0-0".to_owned(),
        task_index: 3,
        task: json!({"problem": "?"}),
        seed: 5,
        script_hash: "aa".to_owned(),
        outcome_reward: 0.5,
        reward_parts: [("right".to_owned(), 1.0)].into(),
        messages: vec![Message::user("?")],
        ..testing::trajectory(vec![step])
    };
    run_dir.write_trajectories(7, 0, None, &[trajectory]).unwrap();
    let program = |code: &str| {
        let path = dir.path().join("demo").display().to_string();
        let program = ScriptProgram {
            path: std::path::Path::new("p.lua"),
            source: code,
            arguments: &[path],
            seed: 0,
            api: None,
            echo: Box::new(|_, _| ()),
        };
        match run(program.run()).unwrap() {
            End::Returned(values) => Json::Array(values),
            End::Exited(code) => json!(code),
        }
    };
    assert_eq!(
        program(
            "local run = ... local steps = r1.store.steps(run) local t = r1.store.trajectories(run, steps[1])[1]\n\
             return steps, t.id, t.status, t.reward, t.parts.right, t.task.problem, t.steps[1].text, t.steps[1].prompt_ids, t.messages[1].role"
        ),
        json!([[7], "7-0-0", "terminated", 0.5, 1, "?", "hi", null, "user"])
    );
    assert_eq!(
        program(
            "local t = r1.store.trajectories((...), 7, { ids = true })[1].steps[1] return t.prompt_ids, t.logprobs"
        ),
        json!([[1, 2], [-0.5]])
    );
    assert_eq!(
        program(
            "local t = r1.store.trajectories((...), 7, { ids = true })[1].steps[1].trained \
             return t.advantages, t.loss_mask, t.values == nil"
        ),
        json!([[0.25], [true], true])
    );
    assert_snapshot!(returned_by(&recipe_with("{}", "return r1.store.steps 'x'"), &Record::live()).unwrap_err(), @r#"
    r1.store.steps: is for programs (`r1 lua`)
      --> x.lua:2
      from x.lua:2 in reset
    "#);
}
