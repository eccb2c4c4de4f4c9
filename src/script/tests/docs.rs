//! Tests of the declarations: they match the functions, their examples run, and the generated files
//! are up to date.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use super::*;
use crate::programs::{Executor, Programs};
use crate::reference_data::up_to_date;
use crate::script::docs::{self, Entry, Scope};
use crate::telemetry::Reporter;

fn program(source: &str) -> Result<Vec<Json>, Error> {
    let program = ScriptProgram {
        path: Path::new("example.lua"),
        source,
        arguments: &[],
        seed: 0,
        api: Some(Rc::new(Programs::new(Reporter::silent()))),
        echo: Box::new(|_, _| ()),
    };
    Executor::new().unwrap().block_on(program.run()).map(|end| match end {
        End::Returned(values) => values,
        End::Exited(code) => vec![code.into()],
    })
}

/// Names of the functions and values of a program.
fn installed(source: &str) -> BTreeSet<String> {
    let names = program(source).unwrap().remove(0);
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn declared(keep: impl Fn(&Entry) -> bool) -> BTreeSet<String> {
    docs::all().filter(|entry| keep(entry)).map(|entry| entry.name.clone()).collect()
}

#[test]
fn host_functions_and_their_declarations_agree() {
    let there = installed(
        "local found = {}\n\
         local function walk(name, value)\n\
           if type(value) == 'table' then for key, inner in pairs(value) do walk(name .. '.' .. key, inner) end\n\
           else found[#found + 1] = name end\n\
         end\n\
         walk('r1', r1) walk('io', io) walk('os', os)\n\
         return found",
    );
    let is_host =
        |entry: &Entry| ["r1", "io", "os"].contains(&entry.name.split('.').next().unwrap()) && !entry.is_method();
    assert_eq!(there, declared(is_host));
    let methods = installed(
        "local found = {}\n\
         for name, value in pairs(getmetatable(r1.context {})) do\n\
           if type(value) == 'function' and name:sub(1, 2) ~= '__' then found[#found + 1] = 'Context:' .. name end\n\
         end\n\
         return found",
    );
    assert_eq!(methods, declared(|entry| entry.space() == "Context"));
    // Methods of host objects can't be listed; the declared ones exist.
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano").display().to_string();
    for entry in docs::all().filter(|entry| matches!(entry.space(), "Tokenizer" | "Template")) {
        let make = entry.space().to_lowercase();
        let source = format!("return type(r1.text.{make}('{nano}').{})", entry.short());
        assert_eq!(program(&source).unwrap(), ["function"], "{}", entry.name);
    }
    let globals = |entry: &&Entry| entry.scope != Scope::Tests && (entry.space().is_empty() || entry.space() == "math");
    for entry in docs::all().filter(globals) {
        let wanted = if entry.value { "table" } else { "function" };
        assert_eq!(program(&format!("return type({})", entry.name)).unwrap(), [wanted], "{}", entry.name);
    }
}

#[test]
fn methods_of_models_are_declared() {
    let source = "local found, model = {}, r1.model 'r1-nano'\n\
                  for _, name in ipairs { NAMES } do found[#found + 1] = type(model[name]) end\n\
                  return found";
    let names: Vec<&str> = docs::all().filter(|entry| entry.space() == "Model").map(Entry::short).collect();
    let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let values = program(&source.replace("NAMES", &list)).unwrap();
    assert_eq!(values[0], serde_json::json!(vec!["function"; names.len()]));
}

#[test]
fn methods_that_are_written_in_lua_are_declared() {
    let lua = mlua::Lua::new();
    let nothing = || lua.create_function(|_, ()| Ok(())).unwrap();
    let arity: mlua::Function = lua.load("return function(f) return debug.info(f, 'a') end").eval().unwrap();
    // The names; the functions take the declared parameters and options.
    let methods = |table: mlua::Table, of: &str| {
        let all = table.pairs::<String, mlua::Value>().map_while(Result::ok);
        let functions = all.filter_map(|(name, value)| Some((format!("{of}:{name}"), value.as_function()?.clone())));
        let mut names = BTreeSet::new();
        for (name, function) in functions.filter(|(name, _)| !name.contains("__")) {
            let entry = docs::find(&name).unwrap_or_else(|| panic!("{name} is not declared"));
            let (taken, is_open): (usize, bool) = arity.call(&function).unwrap();
            assert!(is_open || taken == entry.params.len() + 1, "{name} takes {taken} arguments with self");
            if let Some(index) = entry.params.iter().position(|param| !param.fields.is_empty()) {
                let unknown = lua.create_table_from([("zzz", 1)]).unwrap();
                let before = std::iter::repeat_with(|| lua.create_table().unwrap()).take(index + 1);
                let error = function.call::<()>(before.chain([unknown]).collect::<mlua::Variadic<_>>()).unwrap_err();
                assert_eq!(accepted(&error.to_string()), entry.field_names().into_iter().collect(), "{name}");
            }
            names.insert(name);
        }
        names
    };
    let (_, _, script, attempt): (mlua::Value, mlua::Value, mlua::Table, mlua::Table) =
        lua.load(include_str!("../../../lua/rollout.lua")).call((nothing(), nothing())).unwrap();
    assert_eq!(methods(script, "Script"), declared(|entry| entry.space() == "Script"));
    assert_eq!(methods(attempt, "Attempt"), declared(|entry| entry.space() == "Attempt"));
    let (_, training): (mlua::Value, mlua::Table) =
        lua.load(include_str!("../../../lua/training.lua")).call(nothing()).unwrap();
    assert_eq!(methods(training, "Training"), declared(|entry| entry.space() == "Training"));
    let (_, expectation): (mlua::Value, mlua::Table) =
        lua.load(include_str!("../../../lua/test.lua")).call((nothing(), nothing())).unwrap();
    assert_eq!(methods(expectation, "Expectation"), declared(|entry| entry.space() == "Expectation"));
}

/// The names of options that an error lists.
fn accepted(error: &str) -> BTreeSet<&str> {
    let list = error.split("it takes ").nth(1).unwrap_or_else(|| panic!("{error}"));
    list.lines().next().unwrap_or_default().split(", ").collect()
}

#[test]
fn options_that_are_read_in_lua_are_declared() {
    for (name, call) in [
        ("Context:drop_images", "r1.context({}):drop_images { zzz = 1 }"),
        ("Context:drop_tool_results", "r1.context({}):drop_tool_results { zzz = 1 }"),
        ("Context:shorten_tool_results", "r1.context({}):shorten_tool_results { zzz = 1 }"),
        ("Context:recall", "r1.context({}):recall { zzz = 1 }"),
        ("Context:summarize", "r1.context({}):summarize { zzz = 1 }"),
        ("r1.script", "r1.script('x', { zzz = 1 })"),
        ("r1.rollout", "r1.rollout { zzz = 1 }"),
        ("r1.training", "r1.training('x', { zzz = 1 })"),
    ] {
        let error =
            program(&format!("local _, why = pcall(function() return {call} end) return tostring(why)")).unwrap();
        let entry = docs::find(name).unwrap();
        assert_eq!(accepted(error[0].as_str().unwrap()), entry.field_names().into_iter().collect(), "{name}");
    }
}

/// A value of another type at the place of a parameter is refused, so the parameter is read.
#[test]
fn documented_parameters_are_read() {
    // Refused for another reason: the texts of the other parameters are no URL, no model.
    const OTHER: [(&str, &str); 3] =
        [("r1.observation", "result"), ("r1.text.template", "options?"), ("r1.http.post", "body?")];
    let value = |kind: &str| match kind {
        "number" => "1",
        list if list.starts_with("{string") => "{ 'x' }",
        text if text.split(" | ").any(|part| part == "string") => "'x'",
        _ => "{}",
    };
    let wrong = |kind: &str| if kind.contains("->") { "true" } else { "print" };
    let mut source = "local found = {}\n\
        local function refuses(of, call, ...)\n\
          local ok, why = pcall(call, ...)\n\
          local named = string.find(tostring(why), 'got a function') or string.find(tostring(why), 'got true')\n\
          if ok or not (named or string.find(tostring(why), 'is a function')) then table.insert(found, of) end\n\
        end\n"
        .to_owned();
    let functions = docs::all().filter(|entry| entry.name.starts_with("r1.") && !entry.value);
    for entry in functions {
        for (position, param) in entry.params.iter().enumerate() {
            let is_open = param.kind == "any" || param.name == "..." || OTHER.contains(&(&*entry.name, &*param.name));
            let one = |(index, param): (usize, &docs::Param)| {
                if index == position { wrong(&param.kind) } else { value(&param.kind) }
            };
            let arguments: Vec<&str> = entry.params.iter().enumerate().map(one).collect();
            if !is_open {
                let (name, arguments) = (&entry.name, arguments.join(", "));
                source.push_str(&format!("refuses('{name}: {}', {name}, {arguments})\n", param.name));
            }
        }
    }
    source.push_str("return table.concat(found, ', ')");
    let not_read = program(&source).unwrap();
    assert_eq!(not_read, [""], "parameters that are not read");
}

#[test]
fn functions_of_programs_are_refused_in_recipes() {
    let of_programs = |entry: &Entry| entry.scope == Scope::Programs && entry.name.starts_with("r1.");
    let names: Vec<String> = declared(of_programs).into_iter().collect();
    assert!(names.len() > 10, "{names:?}");
    let source = "local function is_refused(call)\n\
           for _, first in { 'x', { script = 'x', policy = print } } do\n\
             local _, why = pcall(call, first, {}, {})\n\
             if string.find(tostring(why), 'is for programs') then return true end\n\
           end\n\
           return false\n\
         end\n\
         local function check() for name, call in { NAMES } do if not is_refused(call) then print(name) end end end\n\
         return r1.recipe { env = r1.env { reset = function() check() return { messages = {} } end } }";
    let list: Vec<String> = names.iter().map(|name| format!("['{name}'] = {name}")).collect();
    let bench = Bench::new(&source.replace("NAMES", &list.join(", ")));
    let worker = bench.worker();
    run(worker.reset(&Json::Null, 0)).unwrap();
    let not_refused: Vec<String> = worker.take_log().into_iter().map(|line| line.text).collect();
    assert!(not_refused.is_empty(), "without the tag `programs`, or allowed: {not_refused:?}");
}

#[test]
fn modules_and_their_pages_agree() {
    for module in docs::modules() {
        assert!(module.doc.ends_with('.'), "{} has no description", module.name);
        for entry in &module.entries {
            assert!(entry.doc.contains('.'), "{} has no description", entry.name);
        }
        let source = format!(
            "local found, names = require('{}'), {{}}\n\
             if type(found) ~= 'table' then return type(found) end\n\
             for name in pairs(found) do names[#names + 1] = name end\n\
             return names",
            module.name
        );
        let there = program(&source).unwrap().remove(0);
        let declared_names: BTreeSet<&str> = module.entries.iter().map(Entry::short).collect();
        let below: BTreeSet<&str> = module.all().map(Entry::short).collect();
        match there.as_array() {
            Some(names) => {
                let names: BTreeSet<&str> = names.iter().filter_map(Json::as_str).collect();
                assert!(
                    declared_names.is_subset(&names) && names.is_subset(&below),
                    "{}: {names:?}, {declared_names:?}",
                    module.name
                );
            }
            None => assert_eq!(there == "function", module.entries.len() == 1, "{}: {there}", module.name),
        }
    }
}

#[test]
fn examples_work() {
    let mut checked = 0;
    for entry in docs::all().filter(|entry| !entry.example.is_empty()) {
        let mut before = String::new();
        for line in entry.example.lines() {
            let Some((expression, expected)) = line.split_once("  --> ") else {
                before.push_str(line);
                before.push('\n');
                continue;
            };
            // Models and estimators need the services, which the tests of the command line have.
            if entry.example.contains("r1.training")
                || entry.example.contains("r1.model")
                || entry.example.contains("r1.rl.")
            {
                continue;
            }
            let reported = program(&format!("{before}return {expression}"));
            if entry.name == "r1.process.run"
                && let Err(error) = &reported
                && !crate::tools::process::has_namespaces()
            {
                eprintln!("skipped: {error}");
                continue;
            }
            let show = |value: &Json| if value.is_null() { "nil".to_owned() } else { value.to_string() };
            let reported = reported.map(|values| values.iter().map(show).collect::<Vec<_>>().join(", "));
            assert_eq!(reported, Ok(expected.to_owned()), "{}: {line}", entry.name);
            checked += 1;
        }
        let chunk = format!("local function example(state, action, outcome, budget)\n{before}\nend");
        assert!(program(&chunk).is_ok(), "{}: {before}", entry.name);
    }
    assert!(checked >= 25, "{checked}");
}

#[test]
fn declarations_are_complete() {
    let mut names = BTreeSet::new();
    for entry in docs::all() {
        assert!(names.insert(entry.name.as_str()), "{} twice", entry.name);
        assert!(entry.doc.ends_with('.') && !entry.summary().is_empty(), "{} has no description", entry.name);
        assert!(!entry.doc.contains("@tag") && !entry.doc.contains("@param"), "{}: {}", entry.name, entry.doc);
        assert!(
            entry.name.starts_with("r1")
                || entry.scope == Scope::Programs
                || entry.is_method()
                || !entry.name.contains("io.")
        );
    }
    assert_eq!(
        docs::find("r1.re.find").unwrap().signature(),
        "r1.re.find(text, pattern, from?) -> number?, number?, ...string"
    );
    assert_eq!(docs::find("keep_first").unwrap().name, "Context:keep_first");
    assert_eq!(docs::find("re.split()").unwrap().name, "r1.re.split");
    assert!(docs::find("find").is_some() && docs::find("encode").is_none());
    assert_eq!(docs::like("r1.re.splt")[0], "r1.re.split");
    assert_eq!(docs::below("r1.json").len(), 3);
}

#[test]
fn files_made_from_the_declarations_are_up_to_date() {
    // First: the others are made from this file.
    let types = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/types/r1.d.luau")).unwrap();
    up_to_date("lua/types/r1.d.luau", &docs::made::with_settings(&types));
    up_to_date("lua/types/r1.lua", &docs::luacats());
    up_to_date("docs/reference/settings.md", &docs::made::settings_markdown());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/lua.md");
    up_to_date("docs/reference/lua.md", &docs::made::with_reference(&std::fs::read_to_string(path).unwrap()));
}

#[test]
fn editor_types_are_valid_luau() {
    // The same types in syntax that programs can use.
    let plain = |line: &str| match line.strip_prefix("declare ") {
        Some(rest) => format!("type declared_{}", rest.replacen(": ", " = ", 1)),
        None => line.to_owned(),
    };
    let types = docs::luau().lines().map(plain).collect::<Vec<_>>().join("\n");
    assert!(types.contains("type declared_expect = (value: any, ...any) -> Expectation"), "{types}");
    program(&types).unwrap();
    program(&format!("local function types()\n{}\nend", docs::luacats())).unwrap();
}

/// Fails unless a value has the fields of its declared type: all required ones, and no others.
fn agrees(name: &str, names: &BTreeSet<String>) {
    let types = docs::named_types();
    let fields = &types.iter().find(|named| named.name == name).unwrap().fields;
    let all: BTreeSet<&str> = fields.iter().map(docs::Param::bare).collect();
    for field in names {
        assert!(all.contains(field.as_str()), "{name}.{field} is not declared");
    }
    for field in fields.iter().map(|field| &field.name).filter(|field| !field.ends_with('?')) {
        assert!(names.contains(field), "{name}.{field} is declared and missing");
    }
}

#[test]
fn declared_types_have_the_fields_of_real_values() {
    let names = |value: &Json| -> BTreeSet<String> {
        let fields = value.as_object().unwrap().iter();
        fields.filter(|(_, value)| !value.is_null()).map(|(name, _)| name.clone()).collect()
    };
    let mut trajectory = crate::mdp::Trajectory {
        id: "1-0-0".to_owned(),
        task: serde_json::json!({ "problem": "?" }),
        seed: 1,
        outcome_reward: 1.0,
        reward_parts: [("solved".to_owned(), 1.0)].into(),
        ..crate::mdp::testing::trajectory(Vec::new())
    };
    let step = serde_json::json!({
        "prompt_ids": [1], "response_ids": [2], "logprobs": [-0.5], "text": "x", "finish_reason": "stop",
        "reward": 1.0, "terminated": true, "truncated": false, "prefilled": 1, "new_row": true, "next_prompt_ids": [],
        "tools": [{ "name": "t", "arguments": {}, "output": "", "ok": true, "reward": 0.0, "seconds": 0.1 }],
    });
    trajectory.steps.push(serde_json::from_value(step).unwrap());
    // r1.store has it without ids and record unless they are requested; rollouts give ids.
    for (ids, record) in [(false, false), (true, false), (true, true)] {
        let plain = trajectory_table(&trajectory, ids, record);
        agrees("Trajectory", &names(&plain));
        agrees("Step", &names(&plain["steps"][0]));
        agrees("ToolUse", &names(&plain["steps"][0]["tools"][0]));
        assert_eq!(plain["steps"][0].get("response_ids").is_some(), ids);
        assert_eq!(plain["parts"]["solved"], 1.0);
    }
    let source = "local function fields(name, value) for field in pairs(value) do print(name .. '.' .. field) end end\n\
                  local env = r1.env {\n\
                    reset = function() return { messages = { r1.user 'x' } } end,\n\
                    step = function(state, action) fields('Action', action) return { done = true } end }\n\
                  return r1.recipe { env = env, reward = function(_, outcome) fields('Outcome', outcome) return 0 end }";
    let bench = Bench::new(source);
    let worker = bench.worker();
    let state = run(worker.reset(&Json::Null, 0)).unwrap();
    let action = Action { tool_calls: vec![call("t", serde_json::json!({}))], ..action("x") };
    run(worker.step(&state, &action)).unwrap();
    run(worker.reward(&state, &outcome("x"))).unwrap();
    let logged: Vec<String> = worker.take_log().into_iter().map(|line| line.text).collect();
    for name in ["Action", "Outcome"] {
        let of = logged.iter().filter_map(|text| text.strip_prefix(name)?.strip_prefix('.'));
        agrees(name, &of.map(str::to_owned).collect());
    }
}

/// Every listing of docs/guide/luau.md runs and returns its stated result.
#[test]
fn the_examples_of_docs_luau_have_their_stated_results() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/luau.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut checked = 0;
    for block in page.split("```lua\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        let mut before = String::new();
        for line in block.lines() {
            let Some((expression, expected)) = line.split_once("  --> ") else {
                before.push_str(line);
                before.push('\n');
                continue;
            };
            let reported = program(&format!("{before}return {expression}"));
            let show = |value: &Json| if value.is_null() { "nil".to_owned() } else { value.to_string() };
            let reported = reported.map(|values| values.iter().map(show).collect::<Vec<_>>().join(", "));
            assert_eq!(reported, Ok(expected.to_owned()), "{line}");
            checked += 1;
        }
        program(&before).unwrap();
    }
    assert!(checked >= 25, "{checked}");
}
