//! Hints for fields and functions that belong to another table of the recipe.

use insta::assert_snapshot;

use super::*;

#[test]
fn misplaced_functions_get_a_hint() {
    assert_snapshot!(refused("return r1.recipe {\n  trainer = r1.grpo {\n    lr = 1,\n    estimator = function(group) return {} end,\n  },\n}"), @r#"
    r1.grpo: `trainer.estimator` is a function; it takes an estimator's name
      --> x.lua:4
      hint: the recipe's own function goes next to the trainer: r1.recipe { advantage = function(group) … end, trainer = r1.grpo { … } } (docs/guide/your-own-algorithm.md)
    "#);
    assert_snapshot!(refused("r1.ppo { estimator = { name = function() end } }"), @r#"
    r1.ppo: `trainer.estimator.name` is a function; it takes an estimator's name
      --> x.lua:1
      hint: the recipe's own function goes next to the trainer: r1.recipe { advantage = function(group) … end, trainer = r1.grpo { … } } (docs/guide/your-own-algorithm.md)
    "#);
    assert_snapshot!(refused("r1.trainer { algorithm = 'rloo', loss = function() end }"), @r#"
    r1.trainer: `trainer.loss` is a function; it takes a loss's name
      --> x.lua:1
      hint: the recipe's own function goes next to the trainer: r1.recipe { loss = function(b) … end, trainer = r1.grpo { … } } (docs/guide/your-own-algorithm.md)
    "#);
    assert_snapshot!(refused("r1.grpo { lr = function(step) return 1 end }"), @r#"
    r1.grpo: `trainer.lr` is a function; it takes plain data
      --> x.lua:1
      hint: the schedule of the learning rate is set by lr = 1e-6, warmup = 10, decay = "cosine", final_lr = 0.1
    "#);
    assert_snapshot!(refused("r1.grpo { kl = { kind = print } }"), @"
    r1.grpo: `trainer.kl.kind` is a function; it takes plain data: text, numbers, booleans and tables
      --> x.lua:1
    ");
    assert_snapshot!(refused("r1.env { format = print }"), @r#"
    r1.env: `format` is a function; it takes a format name, or a result of r1.format
      --> x.lua:1
      hint: such as format = "hermes", or format = r1.format { parse = function(reply) … end } (docs/reference/lua.md)
    "#);
    assert_snapshot!(refused("return r1.recipe {\n  seed = 1,\n  eval = { accuracy = print },\n}"), @r#"
    r1.recipe: `eval.accuracy` is a function; it takes the name of a part of the reward
      --> x.lua:3
      hint: eval = { accuracy = "correct" }, where `reward` returns { correct = … }
    "#);
    assert_snapshot!(refused("return r1.recipe { data = { train = function(index) end } }"), @"
    r1.recipe: data: `train` is a function; it takes a path or a dataset of r1.data
      --> x.lua:1
      hint: generate rows: r1.data.generate { count = 1000, row = function(index) … end }
    ");
}

#[test]
fn misplaced_fields_get_a_hint() {
    assert_snapshot!(refused("r1.grpo { advantage = print }"), @"
    r1.grpo: unknown field `advantage`
      --> x.lua:1
      hint: `advantage` is a field of r1.recipe { … }, next to `trainer`
    ");
    assert_snapshot!(refused("r1.grpo { algorithm = 'rloo' }"), @r#"
    r1.grpo: unknown field `algorithm`
      --> x.lua:1
      hint: another algorithm is r1.trainer { algorithm = "NAME", … }
    "#);
    assert_snapshot!(refused("r1.env { advantage = print }"), @"
    r1.env: unknown field `advantage`
      --> x.lua:1
      hint: `advantage` is a field of r1.recipe { … }, next to `env`
    ");
    assert_snapshot!(refused("return r1.recipe { tools = {} }"), @"
    r1.recipe: unknown field `tools`
      --> x.lua:1
      hint: `tools` is a field of the env: env = r1.env { tools = …, … }
    ");
    assert_snapshot!(refused("return r1.recipe { lr = 1 }"), @"
    r1.recipe: unknown field `lr`
      --> x.lua:1
      hint: `lr` is a field of the trainer: trainer = r1.grpo { lr = …, … }
    ");
}
