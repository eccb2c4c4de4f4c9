//! Settings: defaults, conversion of Lua numbers, and `key=value`.

use insta::assert_snapshot;

use super::*;
use crate::config::{DataFile, Source, Trainer};
use crate::error::Kind;

const RECIPE: &str = "return r1.recipe { trainer = r1.grpo { steps = 3 }, reward = function() return 0 end, data = { train = r1.data.generate { count = 5, row = function() return {} end } } }";

fn with(overrides: &[&str]) -> Result<Script, Error> {
    Bench::new(RECIPE).load(overrides)
}

/// The message for an override that must be refused.
fn no(argument: &str) -> String {
    let bench = Bench::new(RECIPE);
    let error = bench.load(&[argument]).unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
    bench.show(error)
}

#[test]
fn overrides_set_anything_in_the_recipe() {
    let script = with(&[
        "trainer.lr=2e-6",
        "policy.model=Qwen/Qwen2.5-1.5B-Instruct",
        "data.train=tasks.jsonl",
        "name=7",
        "sampling.stop=[\"x\"]",
        "trainer.clip=[0.1,0.3]",
        "trainer.estimator.normalize=none",
        "trainer.kl.coef=0.01",
        "data.train.columns.problem=q.text",
        "policy.init.hidden_size=64",
        "limits.cpu=2",
        "data.eval.path=e.jsonl",
    ])
    .unwrap();
    let settings = &script.settings;
    let grpo = settings.trainer.learner().unwrap();
    assert_eq!((grpo.steps, grpo.lr, grpo.clip, grpo.kl.coef), (3, 2e-6, Some((0.1, 0.3)), 0.01));
    assert_eq!(grpo.estimator.shown(), "grpo");
    assert_eq!(grpo.estimator.options["normalize"], "none");
    assert_eq!((settings.name.as_str(), settings.limits.cpu), ("7", 2.0));
    assert_eq!(settings.policy.model, "Qwen/Qwen2.5-1.5B-Instruct");
    assert_eq!(settings.policy.init.as_ref().unwrap().hidden_size, 64);
    let columns = [("problem".to_owned(), "q.text".to_owned())].into();
    assert_eq!(settings.data.train, Some(Source::File(DataFile { path: "tasks.jsonl".into(), format: None, columns })));
    let round: crate::config::Settings = serde_json::from_value(serde_json::to_value(settings).unwrap()).unwrap();
    assert_eq!(&round, settings);
}

#[test]
fn an_algorithm_name_selects_its_settings_and_loop() {
    let script = with(&["trainer.algorithm=pspo", "trainer.clip=[0.1,0.3]"]).unwrap();
    let Trainer::Rl { learner, critic: true } = &script.settings.trainer else { panic!() };
    assert_eq!((learner.estimator.shown(), learner.loss.shown()), ("gae", "pspo"));
    // Settings of the recipe and the command line stay.
    assert_eq!((learner.steps, learner.clip), (3, Some((0.1, 0.3))));
}

#[test]
fn a_script_is_named_after_its_file() {
    assert_eq!(with(&[]).unwrap().settings.name, "x");
}

#[test]
fn unknown_and_unfit_overrides_are_refused() {
    assert_snapshot!(no("trainer.goup_size=4"), @"
    unknown setting `trainer.goup_size`
      --> trainer.goup_size=4
      hint: did you mean `trainer.group_size` or `trainer.groups`?
    ");
    assert_snapshot!(no("temprature=1"), @r#"
    unknown setting `temprature`
      --> temprature=1
      hint: did you mean `eval.temperature` or `sampling.temperature` or `policy.template_kwargs`?
    "#);
    assert_snapshot!(no("lr"), @r#"
    `lr` is not a setting
      --> lr
      hint: write settings as key=value: trainer.lr=2e-6
    "#);
    assert_snapshot!(no("trainer.lr=fast"), @r#"
    `trainer.lr` must be a number, got the text "fast"
      --> trainer.lr=fast
    "#);
    assert_snapshot!(no("trainer.steps=-1"), @r#"
    `trainer.steps` must be a whole number, 0 or more, got the number -1
      --> trainer.steps=-1
    "#);
    assert_snapshot!(no("trainer=5"), @"
    unknown setting `trainer`
      --> trainer=5
      hint: `trainer` is a section of settings, which `r1 doc trainer` lists
    ");
    assert_snapshot!(no("trainer.algorithm=gipo"), @r#"
    `trainer.algorithm` is "gipo", which does not exist
      --> trainer.algorithm=gipo
      hint: did you mean `gigpo` or `gdpo` or `gmpo`?
    "#);
    assert_snapshot!(no("trainer.kl.coeff=1"), @"
    unknown setting `trainer.kl.coeff`
      --> trainer.kl.coeff=1
      hint: did you mean `trainer.kl.coef`?
    ");
    assert_snapshot!(no("policy.dtype=f16"), @r#"
    `policy.dtype` is "f16"; it is one of `auto`, `f32`, `bf16`
      --> policy.dtype=f16
      hint: did you mean `bf16`?
    "#);
    assert_snapshot!(no("data.eval.count=5"), @r#"
    `data.eval` has no row function
      --> x.lua
      hint: give a file: data.eval=tasks.jsonl
    "#);
    assert_snapshot!(no("data.train.columns.x=5"), @r#"
    unknown field `data.train.columns`
      --> data.train.columns.x=5
      hint: did you mean `count`?
    "#);
}

#[test]
fn times_and_sizes_have_units_on_the_command_line_and_in_recipes() {
    let limits = with(&["limits.memory=2GiB", "limits.cpu=250ms", "limits.result=1MiB", "sampling.max_seconds=2min"]);
    let settings = limits.unwrap().settings;
    assert_eq!((settings.limits.memory, settings.limits.cpu, settings.limits.result), (2048, 0.25, 1024));
    assert_eq!(settings.sampling.max_seconds, 120.0);
    let source = RECIPE.replace("reward =", "limits = { wait = '5s', text = '8MiB', trajectory = 32 }, reward =");
    let limits = Bench::new(&source).load(&[]).unwrap().settings.limits;
    assert_eq!((limits.wait, limits.text, limits.trajectory), (5.0, 8, 32));
    assert_snapshot!(no("limits.memory=much"), @r#"
    `limits.memory` must be a whole number, or text such as "512MiB", got the text "much"
      --> limits.memory=much
    "#);
    assert_snapshot!(no("limits.cpu=fast"), @r#"
    `limits.cpu` must be a number of seconds, or text such as "5s", got the text "fast"
      --> limits.cpu=fast
    "#);
}
