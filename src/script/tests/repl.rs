//! Typed code: values, completion, breakpoints.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::json;

use super::*;

const SCRIPT: &str = "local factor = 3
local function twice(x)
  local y = x * 2
  return y
end
local env = r1.env {
  reset = function(task) return { n = task.n, messages = { r1.user 'x' } } end,
  step = function(state, action)
    for i = 1, 2 do
      state.n = twice(state.n) * factor
    end
    return {}
  end,
}
return r1.recipe { env = env, reward = function() return 0 end }";

fn eval(console: &Console, text: &str) -> String {
    match run(console.eval(text)) {
        Ok(values) => values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "),
        Err(failure) => format!("! {failure}"),
    }
}

#[test]
fn repl_code_sees_the_session_the_script_and_the_host() {
    let worker = Bench::new(SCRIPT).worker();
    let console = worker.console().unwrap();
    let state = run(worker.reset(&json!({ "n": 5 }), 0)).unwrap();
    console.give_state(&state).unwrap();
    assert_eq!(eval(&console, "state.n + 1"), "6");
    assert_eq!(eval(&console, "_ * 2"), "12");
    // A local of the script that a function uses, directly or not.
    assert_eq!(eval(&console, "twice(4), factor"), "8 | 3");
    assert_eq!(eval(&console, "local a, b = 1, 'two'"), "");
    assert_eq!(eval(&console, "a, b"), "1 | \"two\"");
    assert_eq!(eval(&console, "local function half(x) return x / 2 end"), "");
    assert_eq!(eval(&console, "half(a)"), "0.5");
    assert_eq!(eval(&console, "state.n = 7 a = 3"), "");
    assert_eq!(state.snapshot().unwrap()["state"]["n"], 7);
    assert_eq!(eval(&console, "state = {}").lines().next(), Some("! `state` is given by the session"));
    assert_eq!(eval(&console, "nothing.x").lines().next(), Some("! undefined global `nothing`"));
    assert_eq!(eval(&console, "1 +").lines().next(), Some("! Expected identifier when parsing expression, got <eof>"));
    assert_eq!(eval(&console, "\nerror('here')"), "! here\n  --> input:2");
    assert_eq!(
        run(console.data("{ 1, x = 2 }")).map_err(|f| f.to_string()).unwrap_err().lines().next(),
        Some("it mixes a list with named keys")
    );
}

#[test]
fn repl_inputs_of_several_lines_are_detected() {
    for open in ["for i = 1, 2 do", "f(", "{ 1,", "function f()\n  return 1", "x = [[\nabc", "1 +", "if a then"] {
        assert!(is_open(open), "{open}");
    }
    for whole in ["1", "for i = 1, 2 do end", "f()", "x = 1", "for for", "[[a]]", "return", "end"] {
        assert!(!is_open(whole), "{whole}");
    }
}

#[test]
fn printed_values_are_limited_and_sorted() {
    let console = Bench::new(SCRIPT).worker().console().unwrap();
    assert_eq!(
        eval(&console, "{ 10, 20, z = 1, a = { true }, ['two words'] = 'q\"\\n' }"),
        r#"{ 10, 20, a = { true }, ["two words"] = "q\"\n", z = 1 }"#
    );
    assert_eq!(
        eval(&console, "{ [3] = 'c', [-1.5] = 'n', [100] = 'h' }"),
        r#"{ [-1.5] = "n", [3] = "c", [100] = "h" }"#
    );
    assert_eq!(eval(&console, "(function() local t = {} t.t = t return t end)()"), "{ t = (contains itself) }");
    let long = eval(&console, "(function() local t = {} for k = 1, 1000 do t[k] = k end return t end)()");
    assert!(long.contains("… 940 more") && long.lines().count() < 70, "{long}");
    assert!(eval(&console, "string.rep('x', 5000)").ends_with("\" … 4400 more"));
    let wide = eval(&console, "{ a = { b = string.rep('x', 90) }, c = 1 }");
    assert_eq!(wide, format!("{{\n  a = {{\n    b = \"{}\",\n  }},\n  c = 1,\n}}", "x".repeat(90)));
    assert!(eval(&console, "twice").starts_with("function twice ("), "{}", eval(&console, "twice"));
    // The depth of printed tables is limited.
    let deep = eval(&console, "(function() local t = {} for _ = 1, 5000 do t = { t } end return t end)()");
    assert!(deep.contains("{…}") && deep.len() < 300, "{deep}");
}

#[test]
fn names_are_completed_without_running_code() {
    let worker = Bench::new(SCRIPT).worker();
    let console = worker.console().unwrap();
    let state = run(worker.reset(&json!({ "n": 5 }), 0)).unwrap();
    console.give_state(&state).unwrap();
    let names = |typed: &str| {
        let (begun, candidates) = console.complete(typed);
        (begun, candidates.into_iter().map(|candidate| candidate.name).collect::<Vec<_>>())
    };
    assert_eq!(names("x = state.mess"), (4, vec!["messages".to_owned()]));
    assert_eq!(names("print(tw"), (2, vec!["twice".to_owned()]));
    assert_eq!(names("r1.json.de"), (2, vec!["decode".to_owned()]));
    assert!(names("r1.").1.contains(&"math_equal".to_owned()));
    assert_eq!(names("nothing.x").1, Vec::<String>::new());
    assert!(names("wh").1.contains(&"while".to_owned()));
    run(console.eval("word = 'abc'")).unwrap();
    assert!(names("word:up").1.contains(&"upper".to_owned()));
    assert_eq!(console.complete("state.messages").1[0].what, "list of 1");
}

/// The halts of a step, as `place: values`; `plan` has the command for each.
fn halts(places: &[(&str, bool)], plan: Vec<AfterHalt>, look: &'static str) -> Vec<String> {
    let bench = Bench::new(SCRIPT);
    let worker = bench.worker();
    let console = worker.console().unwrap();
    let reported = Rc::new(RefCell::new(Vec::new()));
    let (heard, plan) = (Rc::clone(&reported), RefCell::new(plan.into_iter()));
    console
        .on_halt(Box::new(move |halt| {
            let values = match halt.eval(look) {
                Ok(values) => values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                Err(failure) => failure.error.message,
            };
            let line = halt.place.rsplit(':').next().unwrap_or_default().to_owned();
            heard.borrow_mut().push(format!("{line}: {values}"));
            if halt.trace { AfterHalt::Continue } else { plan.borrow_mut().next().unwrap_or(AfterHalt::Continue) }
        }))
        .unwrap();
    for (location, trace) in places {
        console.set_breakpoint(location, *trace).unwrap();
    }
    let state = run(worker.reset(&json!({ "n": 1 }), 0)).unwrap();
    let stepped = run(worker.step(&state, &action("")));
    let end = match stepped {
        Ok(_) => format!("end: {}", state.snapshot().unwrap()["state"]["n"]),
        Err(failure) => format!("end: {}", failure.error.message),
    };
    // Without breakpoints nothing stops.
    console.clear_breakpoints(None).unwrap();
    let count = reported.borrow().len();
    run(worker.step(&state, &action(""))).unwrap();
    assert_eq!(reported.borrow().len(), count);
    let mut all = reported.borrow().clone();
    all.push(end);
    all
}

#[test]
fn breakpoints_stop_and_show_the_locals() {
    use AfterHalt::{Abort, Continue, Into, Next, Out};
    assert_eq!(halts(&[("twice", false)], vec![], "x"), ["3: 1", "3: 6", "end: 36"]);
    assert_eq!(halts(&[("4", false)], vec![Continue], "x, y"), ["4: 1 2", "4: 6 12", "end: 36"]);
    // Line by line in the function, over the calls that it makes, back to its caller.
    assert_eq!(
        halts(&[("twice", false)], vec![Next, Next], "x"),
        ["3: 1", "4: 1", "10: undefined global `x`", "3: 6", "end: 36"]
    );
    assert_eq!(halts(&[("10", false)], vec![Next, Continue, Continue], "i"), ["10: 1", "10: 2", "end: 36"]);
    assert_eq!(halts(&[("10", false)], vec![Into, Out], "i"), ["10: 1", "3: undefined global `i`", "10: 2", "end: 36"]);
    assert_eq!(halts(&[("twice", false)], vec![Abort], "factor"), ["3: 3", "end: stopped at a breakpoint"]);
    // A trace continues without a command, at every line of a function.
    assert_eq!(halts(&[("twice", true)], vec![], "x"), ["3: 1", "4: 1", "3: 6", "4: 6", "end: 36"]);
    assert_eq!(halts(&[("twice", false)], vec![], "x = 5")[0], "3: the local `x` can't be changed from here");
}

#[test]
fn breakpoints_at_missing_places_are_refused() {
    let console = Bench::new(SCRIPT).worker().console().unwrap();
    let refused = |location: &str| console.set_breakpoint(location, false).unwrap_err().to_string();
    assert!(refused("twcie").contains("did you mean `twice`"), "{}", refused("twcie"));
    assert!(refused("y.lua:3").contains("has no file `y.lua`"));
    assert!(refused("999").contains("there is no code at"));
    assert_eq!(console.set_breakpoint("step", false).unwrap()[0].line, 9);
    assert_eq!(console.breakpoints().len(), 1);
    assert_eq!(console.clear_breakpoints(Some("step")).unwrap(), 1);
}
