//! The error messages of invalid scripts.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_syntax_error_has_its_line() {
    assert_snapshot!(refused("local x = 1\nlocal y = = 2\n"), @r#"
    Expected identifier when parsing expression, got '='
      --> x.lua:2
    "#);
    assert_snapshot!(refused("return r1.recipe {\n  seed = 1\n  name = 'x',\n}"), @r#"
    Expected ',' after table constructor element
      --> x.lua:3
    "#);
}

#[test]
fn a_missing_script_is_an_error() {
    let error = Script::load("nowhere/x.lua".as_ref(), &[]).unwrap_err();
    assert_snapshot!(error, @r#"
    can't read the script: no such file or directory
      --> nowhere/x.lua
    "#);
}

#[test]
fn a_missing_script_is_named_with_its_neighbours() {
    for (path, hint) in [("scripts/retol.lua", "`scripts/retool.lua`"), ("retool", "`scripts/retool.lua`")] {
        let error = Script::load(path.as_ref(), &[]).unwrap_err();
        assert!(error.hint.as_deref().is_some_and(|actual| actual.contains(hint)), "{error}");
    }
}

#[test]
fn a_script_must_return_a_recipe() {
    assert_snapshot!(refused("local x = 1"), @r#"
    the script returns nothing; it must return r1.recipe { … }
      --> x.lua
    "#);
    assert_snapshot!(refused("return { env = 1 }"), @r#"
    the script returns a table; it must return r1.recipe { … }
      --> x.lua
    "#);
    assert_snapshot!(refused("return 5"), @r#"
    the script returns the number 5; it must return r1.recipe { … }
      --> x.lua
    "#);
}

/// The line of a setting is the line of its key: not of a nested table's key of the same name, of a
/// comment, or of another call in the same line. Values from variables and modules are followed.
#[test]
fn a_refused_setting_has_the_line_where_it_is_set() {
    let nested =
        "return r1.recipe {\n  trainer = r1.ppo {\n    critic = { lr = 1e-5 },\n    -- lr = 1\n    lr = 'x',\n  },\n}";
    assert!(refused(nested).contains("x.lua:5"), "{}", refused(nested));
    let two_values = "local a, b = r1.env { step = function() end }, r1.grpo {\n  lr = true,\n}\nreturn r1.recipe { env = a, trainer = b }";
    assert!(refused(two_values).contains("x.lua:2"), "{}", refused(two_values));
    let variable = "local sampling = {\n  temperature = 'warm',\n}\n\nreturn r1.recipe { sampling = sampling }";
    assert!(refused(variable).contains("x.lua:2"), "{}", refused(variable));
    let computed =
        "local function half(x) return { temperature = x } end\n\nreturn r1.recipe {\n  sampling = half('x'),\n}";
    assert!(refused(computed).contains("x.lua:4"), "{}", refused(computed));
}

#[test]
fn a_refused_setting_of_a_required_module_has_its_line() {
    let module = "local M = {}\nM.trainer = {\n  group_size = 4,\n  lr = 'fast',\n}\nreturn M";
    let bench =
        Bench::new("local shared = require('shared')\nreturn r1.recipe {\n  trainer = r1.grpo(shared.trainer),\n}");
    std::fs::write(bench.dir.path().join("shared.lua"), module).unwrap();
    assert_snapshot!(bench.refusal(), @r#"
    r1.grpo: `trainer.lr` must be a number, got the text "fast"
      --> shared.lua:4
    "#);
    let computed = "local options = {}\nfor _, name in ipairs { 'lr' } do options[name] = 'fast' end\nr1.grpo(options)";
    assert_snapshot!(refused(computed), @r#"
    r1.grpo: `trainer.lr` must be a number, got the text "fast"
      --> x.lua:3
      hint: the script computes trainer.lr: the line is that of the nearest known table or call
    "#);
}

#[test]
fn unknown_fields_name_the_nearest() {
    assert_snapshot!(refused("return r1.recipe {\n  polciy = {},\n}"), @r#"
    r1.recipe: unknown field `polciy`
      --> x.lua:2
      hint: did you mean `policy`?
    "#);
    assert_snapshot!(refused("return r1.recipe {\n  trainer = r1.grpo { goup_size = 4 },\n}"), @"
    r1.grpo: unknown field `goup_size`
      --> x.lua:2
      hint: did you mean `group_size` or `groups`?
    ");
    assert_snapshot!(refused("local env = r1.env { tolls = {} }"), @r#"
    r1.env: unknown field `tolls`
      --> x.lua:1
      hint: did you mean `tools`?
    "#);
    assert_snapshot!(refused("return r1.recipe {\n  sampling = { temprature = 1 },\n}"), @r#"
    r1.recipe: unknown field `sampling.temprature`
      --> x.lua:2
      hint: did you mean `temperature`?
    "#);
    assert_snapshot!(refused("return r1.recipe { policy = { init = { hiden_size = 1 } } }"), @r#"
    r1.recipe: unknown field `policy.init.hiden_size`
      --> x.lua:1
      hint: did you mean `hidden_size`?
    "#);
    assert_snapshot!(refused("r1.tools.python { tiemout = 1 }"), @r#"
    r1.tools.python: unknown field `tiemout`
      --> x.lua:1
      hint: did you mean `timeout`?
    "#);
    assert_snapshot!(refused("return r1.recipe { data = { test = 'x.jsonl' } }"), @r#"
    r1.recipe: data: unknown field `test`
      --> x.lua:1
      hint: known: `check_rows`, `curriculum`, `eval`, `max_prompt_tokens`, `overlong_prompts`, `shuffle`, `train`
    "#);
    assert_snapshot!(refused("return r1.recipe { data = { train = { path = 'x', colums = {} } } }"), @r#"
    r1.recipe: unknown field `data.train.colums`
      --> x.lua:1
      hint: did you mean `columns`?
    "#);
}

#[test]
fn wrong_types_name_the_field() {
    assert_snapshot!(refused("local recipe = r1.grpo {\n  steps = 3, -- lr = 1\n\n  lr = 'fast',\n}"), @r#"
    r1.grpo: `trainer.lr` must be a number, got the text "fast"
      --> x.lua:4
    "#);
    assert_snapshot!(refused("r1.grpo { group_size = 1.5 }"), @r#"
    r1.grpo: `trainer.group_size` must be a whole number, 0 or more, got the number 1.5
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo { steps = -1 }"), @r#"
    r1.grpo: `trainer.steps` must be a whole number, 0 or more, got the number -1
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo { clip = { 0.2 } }"), @r#"
    r1.grpo: `trainer.clip` must be a list of two numbers, got a list of 1
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo { clip = 0.2 }"), @r#"
    r1.grpo: `trainer.clip` must be a list of two numbers, got the number 0.2
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo { decay = 'cosin' }"), @r#"
    r1.grpo: `trainer.decay` is "cosin"; it is one of `constant`, `linear`, `cosine`
      --> x.lua:1
      hint: did you mean `cosine`?
    "#);
    assert_snapshot!(refused("r1.ppo { critic = { shard = true } }"), @"
    r1.ppo: unknown field `trainer.critic.shard`
      --> x.lua:1
      hint: did you mean `shared`?
    ");
    assert_snapshot!(refused("r1.ppo { critic = { lr = 'fast' } }"), @r#"
    r1.ppo: `trainer.critic.lr` must be a number, got the text "fast"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo { estimator = 5 }"), @"
    r1.grpo: `trainer.estimator` must be a name, or a table with `name`, got the number 5
      --> x.lua:1
    ");
    assert_snapshot!(refused("r1.trainer { algorithm = 'grop' }"), @r#"
    r1.trainer: `trainer.algorithm` is "grop", which does not exist
      --> x.lua:1
      hint: did you mean `grpo`?
    "#);
    assert_snapshot!(refused("r1.grpo { lr = 0/0 }"), @r#"
    r1.grpo: lr is NaN
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.grpo(5)"), @r#"
    r1.grpo: takes a table, got the number 5
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { seed = 'x' }"), @r#"
    r1.recipe: `seed` must be a whole number, 0 or more, got the text "x"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { policy = 'r1-nano' }"), @r#"
    r1.recipe: `policy` must be a table, got the text "r1-nano"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { sampling = { stop = 'x' } }"), @r#"
    r1.recipe: `sampling.stop` must be a list, got the text "x"
      --> x.lua:1
      hint: a list is written [1, 2] on the command line, and { 1, 2 } in a script
    "#);
    assert_snapshot!(refused("return r1.recipe { reward = 1 }"), @r#"
    r1.recipe: `reward` must be a function, got the number 1
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { env = {} }"), @r#"
    r1.recipe: `env` must be a result of r1.env { … }, got a table
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { trainer = { lr = 1 } }"), @"
    r1.recipe: `trainer` must be a result of r1.grpo { … }, r1.ppo { … } or r1.sft { … }, got a table
      --> x.lua:1
    ");
    assert_snapshot!(refused("return r1.recipe { data = 'x.jsonl' }"), @r#"
    r1.recipe: `data` must be { train =, eval = }, got the text "x.jsonl"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("return r1.recipe { trainer = r1.grpo {} }"), @"
    r1.recipe: reinforcement learning needs a `reward` function, or an env whose `step` or `flow` returns rewards
      --> x.lua:1
    ");
    assert_snapshot!(refused("r1.env { tools = { 'python' } }"), @r#"
    r1.env: `tools` contains the text "python"; tools are made by r1.tool and r1.tools.*, such as r1.tools.python
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.env { format = 'retol' }"), @r#"
    r1.env: unknown format `retol`
      --> x.lua:1
      hint: did you mean `retool`?
    "#);
    assert_snapshot!(refused("r1.env { system = 'x', reset = function() end }"), @r#"
    r1.env: `system` is for the default reset; with a `reset` of your own, put r1.system(…) first in its messages
      --> x.lua:1
    "#);
    assert_snapshot!(refused("local t = r1.tools.rhai(); r1.env { tools = { t, t } }"), @r#"
    r1.env: two tools are called `rhai`
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.tool { name = 'x' }"), @r#"
    r1.tool: needs `run`, a function of the arguments
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.tool { name = 'x', run = print, timeout = 'soon' }"), @r#"
    r1.tool: `timeout` must be a number of seconds, or text such as "5s", got the text "soon"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.tools.python { memory = 'lots' }"), @r#"
    r1.tools.python: `memory` must be a size such as "512MiB", got the text "lots"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.data.generate { count = 5 }"), @r#"
    r1.data.generate: needs `row`, a function that makes row `index`
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.data.generate { count = 'many', row = function() end }"), @r#"
    r1.data.generate: `generate.count` must be a whole number, 0 or more, got the text "many"
      --> x.lua:1
    "#);
    assert_snapshot!(refused("r1.data.jsonl { columns = {} }"), @r#"
    r1.data.jsonl: `jsonl` needs `path`, the file to read
      --> x.lua:1
    "#);
}

#[test]
fn globals_are_fixed_and_read_only() {
    assert_snapshot!(refused("local function reward()\n  return rewrad\nend\nreward()"), @r#"
    undefined global `rewrad`
      --> x.lua:2
    "#);
    assert_snapshot!(refused("count = 1"), @r#"
    assignment to global `count`
      --> x.lua:1
      hint: write `local` before it; keep data that must last in the environment's state
    "#);
    assert_snapshot!(refused("function reset() end"), @r#"
    assignment to global `reset`
      --> x.lua:1
      hint: write `local` before it; keep data that must last in the environment's state
    "#);
    assert_snapshot!(refused("print = 1"), @r#"
    attempt to modify a readonly table
      --> x.lua:1
      hint: globals, libraries and r1 are read-only
    "#);
    assert_snapshot!(refused("r1.user = 1"), @r#"
    attempt to modify a readonly table
      --> x.lua:1
      hint: globals, libraries and r1 are read-only
    "#);
    assert_snapshot!(refused("string.rep = 1"), @r#"
    attempt to modify a readonly table
      --> x.lua:1
      hint: globals, libraries and r1 are read-only
    "#);
    assert_snapshot!(refused("r1.mathequal(1, 1)"), @r#"
    `r1.mathequal` does not exist
      --> x.lua:1
      hint: did you mean `math_equal`?
    "#);
    assert_snapshot!(refused("r1.data.json 'x'"), @r#"
    `r1.data.json` does not exist
      --> x.lua:1
      hint: did you mean `jsonl`?
    "#);
    for name in [
        "coroutine",
        "loadstring",
        "getfenv",
        "setfenv",
        "collectgarbage",
        "os",
        "io",
        "debug",
        "_G",
        "newproxy",
        "gcinfo",
    ] {
        assert!(refused(&format!("return {name}")).starts_with(&format!("undefined global `{name}`")), "{name}");
    }
}

#[test]
fn errors_raised_by_a_script_have_their_line() {
    assert_snapshot!(refused("error('no')"), @r#"
    no
      --> x.lua:1
    "#);
    assert_snapshot!(refused("error { code = 7 }"), @r#"
    {"code":7}
      --> x.lua:1
    "#);
    assert_snapshot!(refused("local ok, e = pcall(error, { code = 7 }); assert(e.code == 7); error(e)"), @r#"
    {"code":7}
      --> x.lua:1
    "#);
    assert_snapshot!(refused("error()"), @r#"
    nil
      --> x.lua:1
    "#);
    assert_snapshot!(refused("assert(false)"), @r#"
    assertion failed!
      --> x.lua:1
    "#);
    assert_snapshot!(refused("local function f() error('blame the caller', 2) end\n\nf()"), @r#"
    blame the caller
      --> x.lua:3
    "#);
    assert_snapshot!(refused("local ok, e = pcall(r1.user) error(e)"), @r#"
    r1.user: the content must be text or a list of parts, got nil
      --> x.lua:1
    "#);
    assert_snapshot!(refused("math.random(0.5)"), @r#"
    math.random takes whole numbers, got 0.5
      --> x.lua:1
    "#);
    assert_snapshot!(refused("math.random(3, 1)"), @r#"
    math.random: the range 3 to 1 is empty
      --> x.lua:1
    "#);
}

#[test]
fn require_stays_inside_the_directory() {
    let bench = Bench::new("return r1.recipe { name = require('lib/a').name .. require('b') }");
    bench.file("lib/a.lua", "return { name = require 'b' }");
    bench.file("b.lua", "return 'b'");
    let script = bench.load(&[]).unwrap();
    assert_eq!(script.settings.name, "bb");
    assert_eq!(script.files().len(), 3);
    // Workers run the loaded version, even if the files change.
    bench.file("b.lua", "return 5 +");
    Worker::new(&script, None).unwrap();
    let same = Bench::new("return r1.recipe { name = require('lib/a').name .. require('b') }");
    same.file("lib/a.lua", "return { name = require 'b' }");
    same.file("b.lua", "return 'c'");
    assert_ne!(same.load(&[]).unwrap().hash, script.hash);

    assert_snapshot!(bench.refusal(), @r#"
    Expected identifier when parsing expression, got <eof>
      --> b.lua:1
    "#);
    assert_snapshot!(refused("require '../x'"), @r#"
    require: `../x` is not inside the script's directory
      --> x.lua:1
    "#);
    assert_snapshot!(refused("require '/etc/passwd'"), @r#"
    require: `/etc/passwd` is not inside the script's directory
      --> x.lua:1
    "#);
    assert_snapshot!(refused("require 'nowhere'"), @r#"
    require: no file nowhere.lua
      --> x.lua:1
    "#);
    assert_snapshot!(refused("require(5)"), @r#"
    require takes the name of a module, got the number 5
      --> x.lua:1
    "#);
    let cycle = Bench::new("require 'a'");
    cycle.file("a.lua", "return require 'a'");
    assert_snapshot!(cycle.refusal(), @r#"
    require: `a` requires itself
      --> a.lua:1
    "#);
    let escape = Bench::new("require 'out'");
    let outside = Bench::new("return 1");
    std::os::unix::fs::symlink(outside.dir.path().join("x.lua"), escape.dir.path().join("out.lua")).unwrap();
    assert_snapshot!(escape.refusal(), @r#"
    require: out.lua leads outside the script's directory
      --> x.lua:1
    "#);
    let late = Bench::new(&recipe("local env = r1.env { reset = function() return require 'b' end }"));
    late.file("b.lua", "return {}");
    let failure = run(late.worker().reset(&Json::Null, 0)).unwrap_err();
    assert_snapshot!(late.show(failure), @r#"
    require("b") after loading: require modules at the top of the script
      --> x.lua:1
    "#);
}

/// A read of a FIFO would block, and a device may have no end.
#[test]
fn scripts_must_be_regular_files() {
    let bench = Bench::new("return require('pipe')");
    let pipe = bench.dir.path().join("pipe.lua");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(bench.refusal().contains("not a regular file"));
    let error = Script::load(&pipe, &[]).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let error = Script::load(std::path::Path::new("/dev/zero"), &[]).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let data = Bench::new(
        "return r1.recipe { reward = function() return 0 end, data = { train = r1.data.jsonl '/dev/zero' } }",
    );
    let error = data.worker().rows(Split::Train).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn a_flow_replaces_reset_step_and_context() {
    let flow = "flow = function(task, policy) return 1 end";
    assert_snapshot!(refused(&format!("return r1.recipe {{ env = r1.env {{ {flow}, step = function() end }} }}")), @r#"
    r1.env: `flow` and `step` are both set
      --> x.lua:1
      hint: a flow replaces them: it runs its own loop over policy:generate; leave out `step`, or `flow` (docs/guide/environments.md)
    "#);
    assert_snapshot!(refused(&format!("return r1.recipe {{ {flow}, context = function() end }}")), @r#"
    r1.recipe: `flow` and `context` are both set
      --> x.lua:1
      hint: a flow chooses the prompt itself: it passes the messages to policy:generate; leave out `context`, or `flow` (docs/guide/environments.md)
    "#);
    assert_snapshot!(refused(&format!("return r1.recipe {{ {flow}, env = r1.env {{}} }}")), @r#"
    r1.recipe: `flow` and `env` or `envs` are both set
      --> x.lua:1
      hint: put it into the env: r1.env { flow = function(task, policy) … end, … }
    "#);
    assert_snapshot!(refused(&format!("return r1.recipe {{ env = r1.env {{ {flow}, system = 'x' }} }}")), @r#"
    r1.env: `system` is for the default reset; with a `flow` of your own, put r1.system(…) first in its messages
      --> x.lua:1
    "#);
}
