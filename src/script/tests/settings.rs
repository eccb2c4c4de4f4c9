//! Settings: defaults, what Lua numbers become, and `key=value`.

use insta::assert_snapshot;

use super::*;
use crate::config::{Source, Trainer};
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
        "trainer.normalize=none",
        "data.train.columns.problem=q.text",
        "policy.init.hidden_size=64",
        "limits.cpu=2",
        "data.eval.path=e.jsonl",
    ])
    .unwrap();
    let settings = &script.settings;
    let Trainer::Grpo(grpo) = &settings.trainer else { panic!() };
    assert_eq!((grpo.steps, grpo.lr, grpo.clip), (3, 2e-6, (0.1, 0.3)));
    assert_eq!((settings.name.as_str(), settings.limits.cpu), ("7", 2.0));
    assert_eq!(settings.policy.model, "Qwen/Qwen2.5-1.5B-Instruct");
    assert_eq!(settings.policy.init.as_ref().unwrap().hidden_size, 64);
    let columns = [("problem".to_owned(), "q.text".to_owned())].into();
    assert_eq!(settings.data.train, Some(Source::Jsonl { path: "tasks.jsonl".into(), columns }));
    let round: crate::config::Settings = serde_json::from_value(serde_json::to_value(settings).unwrap()).unwrap();
    assert_eq!(&round, settings);
}

#[test]
fn a_script_is_named_after_its_file() {
    assert_eq!(with(&[]).unwrap().settings.name, "x");
}

#[test]
fn unknown_and_unfit_overrides_are_refused() {
    assert_snapshot!(no("trainer.goup_size=4"), @r#"
    unknown setting `trainer.goup_size`
      --> trainer.goup_size=4
      hint: did you mean `trainer.group_size`?
    "#);
    assert_snapshot!(no("temprature=1"), @r#"
    unknown setting `temprature`
      --> temprature=1
      hint: did you mean `eval.temperature` or `sampling.temperature`?
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
    assert_snapshot!(no("trainer=5"), @r#"
    unknown setting `trainer`
      --> trainer=5
      hint: did you mean `trainer.lr` or `trainer.clip` or `data.train`?
    "#);
    assert_snapshot!(no("trainer.algorithm=sft"), @r#"
    unknown setting `trainer.algorithm`
      --> trainer.algorithm=sft
      hint: known: `trainer.clip`, `trainer.epochs`, `trainer.group_size`, `trainer.groups_per_step`, `trainer.loss_agg`, `trainer.lr`, `trainer.max_grad_norm`, `trainer.max_mismatch`, `trainer.mini_batches`, `trainer.normalize`, `trainer.steps`, `trainer.tokens_per_batch`, `trainer.warmup`, `trainer.weight_decay`
    "#);
    assert_snapshot!(no("policy.dtype=f16"), @r#"
    `policy.dtype` is "f16"; it is one of `auto`, `f32`, `bf16`
      --> policy.dtype=f16
      hint: did you mean `bf16`?
    "#);
    assert_snapshot!(no("data.eval.count=5"), @r#"
    `data.eval` has no row function to make rows with
      --> x.lua
      hint: give a file: data.eval=tasks.jsonl
    "#);
    assert_snapshot!(no("data.train.columns.x=5"), @r#"
    unknown field `data.train.columns`
      --> data.train.columns.x=5
      hint: did you mean `count`?
    "#);
}
