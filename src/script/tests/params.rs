//! `r1.params`: values of a recipe that the command line changes, in every virtual machine of the
//! script; `tool.schema`; `cold_start=false`.

use serde_json::json;

use super::*;
use crate::error::Kind;

const RECIPE: &str = "local params = r1.params { index = '', k = 3, deep = false }
return r1.recipe {
  reward = function() return 0 end,
  env = r1.env { reset = function() return { index = params.index, k = params.k, deep = params.deep } end },
  data = { train = r1.data.generate { count = 1, row = function() return { k = params.k } end } },
  cold_start = {
    trainer = r1.sft { steps = 1 },
    data = { train = r1.data.generate { count = 1, row = function() return { prompt = 'k', completion = tostring(params.k) } end } },
  },
}";

fn state(script: &Script) -> Json {
    let worker = Worker::new(script, None).unwrap();
    run(worker.reset(&Json::Null, 0)).unwrap().snapshot().unwrap()["state"].clone()
}

#[test]
fn parameters_have_the_values_of_the_command_line_in_every_worker() {
    let bench = Bench::new(RECIPE);
    let script = bench.load(&[]).unwrap();
    assert_eq!(state(&script), json!({ "index": "", "k": 3, "deep": false }));
    let script = bench.load(&["params.index=18", "params.k=5", "params.deep=true"]).unwrap();
    assert_eq!(state(&script), json!({ "index": "18", "k": 5, "deep": true }));
    assert_eq!(Worker::new(&script, None).unwrap().row(Split::Train, 0).unwrap()["k"], 5);
    let cold = script.cold_start().unwrap().unwrap();
    assert_eq!(Worker::new(&cold, None).unwrap().row(Split::Train, 0).unwrap()["completion"], "5");
    // The settings of a run have them, so that a replay has the same values.
    assert_eq!(serde_json::to_value(&script.settings).unwrap()["params"]["k"], 5);
}

#[test]
fn unknown_parameters_and_other_types_are_refused() {
    let bench = Bench::new(RECIPE);
    let no = |argument: &str| {
        let error = bench.load(&[argument]).unwrap_err();
        assert_eq!(error.kind, Kind::Usage, "{argument}");
        bench.show(error)
    };
    assert!(no("params.indx=x").contains("unknown setting `params.indx`"), "{}", no("params.indx=x"));
    assert!(no("params.indx=x").contains("params.index"), "{}", no("params.indx=x"));
    assert!(no("params=3").contains("unknown setting `params`"));
    assert!(no("params.k=many").contains("`params.k` must be a number, got \"many\""));
    assert!(no("params.deep=1").contains("`params.deep` must be true or false, got 1"));
    let none = Bench::new("return r1.recipe { reward = function() return 0 end }");
    assert!(none.show(none.load(&["params.k=1"]).unwrap_err()).contains("unknown setting `params.k`"));
}

#[test]
fn a_declaration_that_is_wrong_is_refused() {
    let wrong = |text: &str| refused(&format!("{text} return r1.recipe {{ reward = function() return 0 end }}"));
    assert!(wrong("r1.params { k = {} }").contains("`k` must be text, a number, true or false, got a table"));
    assert!(wrong("r1.params { ['a.b'] = 1 }").contains("`a.b` is not a name of letters, digits and _"));
    assert!(wrong("r1.params { 1 }").contains("parameters have names, got 1"));
    assert!(wrong("r1.params { a = 1 } r1.params { b = 1 }").contains("is called once in a script"));
    assert!(wrong("r1.params(3)").contains("takes a table of defaults"));
    let field = refused("return r1.recipe { params = { k = 1 }, reward = function() return 0 end }");
    assert!(field.contains("`params` is not a field of r1.recipe"), "{field}");
}

#[test]
fn a_tool_has_its_name_and_schema() {
    let bench = Bench::new(
        "local tool = r1.tool { name = 'f', description = 'd', parameters = { x = 'string' }, run = function() return '' end }
         return r1.recipe { reward = function() return 0 end, env = r1.env { tools = { tool },
           reset = function() return { name = tool.name, schema = tool.schema } end } }",
    );
    let worker = bench.worker();
    let state = run(worker.reset(&Json::Null, 0)).unwrap().snapshot().unwrap()["state"].clone();
    assert_eq!(state["name"], "f");
    // The schema of a demonstration is the schema that the policy reads.
    assert_eq!(state["schema"], worker.tools()[0]);
}

#[test]
fn a_cold_start_can_be_left_out() {
    let bench = Bench::new(RECIPE);
    assert!(bench.load(&[]).unwrap().cold_start().unwrap().is_some());
    assert!(bench.load(&["cold_start=false"]).unwrap().cold_start().unwrap().is_none());
    let error = bench.load(&["cold_start=sft.lua"]).unwrap_err();
    assert!(bench.show(&error).contains("`cold_start` takes false"), "{error}");
    let none = Bench::new("return r1.recipe { reward = function() return 0 end }");
    assert!(none.load(&["cold_start=false"]).unwrap().cold_start().unwrap().is_none());
    assert!(none.load(&["cold_start=true"]).is_err());
}
