//! `require("@r1/python")`: rewards of verl and TRL, and tools, in a Python process.

use serde_json::json;

use super::outside::{returned_by, twice};
use super::*;
use crate::script::{Record, Reward, Strictness};

const NEEDS: &str = "{ 'process:python3' }";

/// A recipe whose reset returns the result of `body`; `py` has the file reward.py.
fn bench(python: &str, options: &str, body: &str) -> Bench {
    let bench = Bench::new(&format!(
        "local python = require('@r1/python')\nlocal py = python {{ 'reward.py', {options} }}\n\
         local outcome = {{ text = 'the answer is 42', token_ids = {{ 5, 6 }}, steps = 1 }}\n\
         return r1.recipe {{ needs = {NEEDS}, reward = function() return 0 end,\n\
         env = r1.env {{ reset = function(task) return {{ it = (function() {body} end)() }} end }} }}"
    ));
    bench.file("reward.py", python);
    bench
}

/// The result of `body`, or the reason why it fails.
fn result_of(python: &str, options: &str, body: &str) -> Result<Json, String> {
    returned_by(&bench(python, options, body), &Record::live())
}

/// The reward function that is the first line of `body`, on a trajectory with this task and reply.
fn reward(python: &str, function: &str, task: &Json, text: &str) -> (Result<Reward, String>, Vec<String>) {
    let bench = Bench::new(&format!(
        "local py = require('@r1/python') {{ 'reward.py' }}\n\
         return r1.recipe {{ needs = {NEEDS}, env = r1.env {{}}, reward = {function}, trainer = r1.grpo {{}} }}"
    ));
    bench.file("reward.py", python);
    let worker = bench.worker();
    let result = run(async {
        let state = worker.reset(task, 0).await.map_err(|failure| bench.show(failure))?;
        worker.step(&state, &action(text)).await.map_err(|failure| bench.show(failure))?;
        let outcome = TrajectoryOutcome { token_ids: vec![1, 2, 3], ..outcome(text) };
        worker.reward(&state, &outcome).await.map_err(|failure| bench.show(failure))
    });
    (result, worker.take_log().into_iter().map(|line| line.text).collect())
}

fn value(outcome: (Result<Reward, String>, Vec<String>)) -> (f64, Json) {
    let reward = outcome.0.unwrap();
    (reward.total, json!(reward.parts))
}

const VERL: &str = r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("grading", solution_str)
    right = ground_truth in solution_str
    return {"score": 1.0 if right else 0.1, "acc": right, "pred": solution_str[-2:], "source": data_source,
            "turns": extra_info["num_turns"], "index": extra_info["index"]}

def builtin(solution_str, ground_truth, method="strict"):
    return (solution_str == ground_truth) + (0.5 if method == "flexible" else 0)

def broken(solution_str, **others):
    return {"nan": float("nan"), "none": None, "dict": {"acc": 1}, "text": "1", "list": [1.0]}[solution_str]
"#;

#[test]
fn compute_score_of_verl_is_a_reward() {
    let task = json!({
        "problem": "6 * 7?", "data_source": "openai/gsm8k",
        "reward_model": { "style": "rule", "ground_truth": "42" }, "extra_info": { "index": 9 },
    });
    let outcome = reward(VERL, "py.compute_score()", &task, "it is 42");
    assert_eq!(outcome.1, ["compute_score: grading it is 42", "compute_score: pred=\"42\" source=\"openai/gsm8k\""]);
    assert_eq!(value(outcome), (1.0, json!({ "score": 1.0, "acc": 1.0, "turns": 1.0, "index": 9.0 })));
    // A function without `data_source`, as in verl itself; arguments of the configuration.
    let task = json!({ "problem": "?", "answer": "4" });
    let outcome = reward(VERL, "py.compute_score { 'builtin', kwargs = { method = 'flexible' } }", &task, "4");
    assert_eq!(value(outcome), (1.5, json!({ "score": 1.5 })));
    for (text, why) in [
        ("nan", "returned the score nan"),
        ("none", "returned the score None"),
        ("dict", "returned a dict without `score`: it has 'acc'"),
        ("text", "returned the score '1'"),
        ("list", "returned the score [1.0]"),
    ] {
        let error = reward(VERL, "py.compute_score 'broken'", &task, text).0.unwrap_err();
        assert!(error.contains(why) && error.contains("compute_score: ") != error.contains("broken: "), "{error}");
        // No lines of r1's own module.
        assert!(!error.contains("@r1/") && !error.contains("-->"), "{error}");
    }
}

#[test]
fn the_solution_is_the_last_reply_or_all_of_them() {
    let body = |options: &str| {
        format!(
            "local state = {{ task = {{ answer = 'x' }}, messages = {{ r1.user('q'), r1.assistant('one'),\n\
             {{ role = 'tool', content = 'two' }}, r1.assistant('three') }} }}\n\
             return py.compute_score {{ 'f', {options} }}(state, {{ text = 'three', steps = 2, token_ids = {{}} }}).score"
        )
    };
    let python = "def f(solution_str, ground_truth): return len(solution_str) * 1000 + len(ground_truth)\n";
    for (options, score) in
        [("", 5001), ("solution = 'all'", 13001), ("solution = function() return 'ab' end, ground_truth = 'xyz'", 2003)]
    {
        assert_eq!(result_of(python, "", &body(options)).unwrap(), score, "{options}");
    }
}

const TRL: &str = r#"
def lengths(completions, **kwargs):
    return [float(len(completion)) for completion in completions]

def contents(prompts, completions, answer, **kwargs):
    assert prompts[0][-1] == {"role": "user", "content": "6 * 7?"}, prompts
    return [1.0 if completion[0]["content"] == text else 0.0 for completion, text in zip(completions, answer)]

def tokens(completion_ids, log_metric, **kwargs):
    log_metric("ids", len(completion_ids[0]))
    return [sum(ids) for ids in completion_ids]

def never(completions, **kwargs): return [None] * len(completions)
def nan(completions, **kwargs): return [float("nan")]
def many(completions, **kwargs): return [1.0, 2.0]
def one(completions, **kwargs): return 1.0
def bare(completions, **kwargs): return [len(one[0]["content"]) for one in completions]
def infinite(completions, **kwargs): return [float("inf")]
async def later(completions, solution, **kwargs): return [len(solution[0])]
"#;

#[test]
fn reward_functions_of_trl_are_parts_of_a_reward() {
    let messages = json!({ "prompt": [{ "role": "user", "content": "6 * 7?" }], "answer": "42", "solution": "abc" });
    let outcome =
        reward(TRL, "py.reward_funcs { 'contents', 'tokens', 'never', weights = { 2, 0.1, 5 } }", &messages, "42");
    assert_eq!(value(outcome), (2.6, json!({ "contents": 1.0, "tokens": 6.0, "ids": 3.0 })));
    // Texts where the prompt is a text.
    let text = json!({ "prompt": "6 * 7?", "answer": "42", "solution": "abc" });
    let outcome =
        reward(TRL, "py.reward_funcs { 'lengths', 'later', weights = { lengths = 1, later = 0 } }", &text, "42!");
    assert_eq!(value(outcome), (3.0, json!({ "lengths": 3.0, "later": 3.0 })));
    // No function is applicable.
    let (outcome, log) = reward(TRL, "py.reward_funcs { 'never', 'nan' }", &text, "42");
    assert_eq!((outcome.unwrap().total, log.len()), (0.0, 1), "{log:?}");
    assert!(log[0].contains("no function of reward_funcs is applicable: never, nan"), "{log:?}");
    for (function, why) in [
        ("many", "`many` returned 2 rewards for 1 completions"),
        ("one", "`one` returned a float (it must return a list"),
        ("infinite", "`infinite` returned the reward inf"),
        ("bare", "`conversational = true` passes lists of messages"),
    ] {
        let error = reward(TRL, &format!("py.reward_funcs '{function}'"), &text, "x").0.unwrap_err();
        assert!(error.contains(why), "{function}: {error}");
    }
    // A column that the row lacks.
    let python = "def f(completions, level): return [0]\n";
    let error = reward(python, "py.reward_funcs 'f'", &text, "x").0.unwrap_err();
    assert!(error.contains("`f` needs the argument `level`") && error.contains("`answer`"), "{error}");
}

#[test]
fn calls_are_replayed_without_python() {
    let python = "import os\ndef pid(): return os.getpid()\ndef score(solution_str, ground_truth):\n    print('x')\n    return 0.5\n";
    let body = "return { py.call('pid'), py.call('pid'), py.compute_score('score')({ task = {} }, outcome).score }";
    let bench = bench(python, "", body);
    let record = Record::live();
    let live = returned_by(&bench, &record).unwrap();
    // One process for all calls.
    assert!(live[0] == live[1] && live[2] == 0.5, "{live}");
    let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
    bench.file("x.lua", &text.replace("{ 'reward.py',", "{ 'reward.py', python = 'no-such-python',"));
    let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
    bench.file("x.lua", &text.replace(NEEDS, "{ 'process:no-such-python' }"));
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(returned_by(&bench, &replay).unwrap(), live);
    assert_eq!(replay.close(), None);
}

#[test]
fn an_exception_has_its_traceback() {
    let python = "import json\n\n\ndef inner(text):\n    print('reading')\n    return json.loads(text)\n\n\ndef outer(text):\n    return inner(text)\n";
    let error = result_of(python, "", "return py.call('outer', { '{' })").unwrap_err();
    for part in [
        "outer: JSONDecodeError: Expecting property name enclosed in double quotes",
        "  reward.py:10 in outer: return inner(text)",
        "  reward.py:6 in inner: return json.loads(text)",
        "printed: reading",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(error.contains("  --> x.lua:5") && !error.contains("@r1/"), "{error}");
    let error = result_of("def f(): raise SystemExit(3)\n", "", "return py.call('f')").unwrap_err();
    assert!(error.contains("f: SystemExit: 3"), "{error}");
}

#[test]
fn a_function_that_hangs_or_ends_its_process_costs_one_call() {
    let python = "import os, re, time\nsize = 0\ndef hang(): re.match('(a+)+b', 'a' * 60)\ndef die(): os._exit(9)\n\
                  def crash():\n    import ctypes\n    ctypes.string_at(0)\ndef fine():\n    global size\n    size += 1\n    return size\n";
    let body = "local function try(name) local ok, why = pcall(py.call, name) return ok and why or tostring(why) end\n\
                return { try('fine'), try('fine'), try('hang'), try('fine'), try('die'), try('crash'), try('fine') }";
    let returned = result_of(python, "timeout = 0.5", body).unwrap();
    let text = |index: usize| returned[index].as_str().unwrap_or_else(|| panic!("{returned}"));
    assert_eq!(
        (&returned[0], &returned[1], &returned[3], &returned[6]),
        (&json!(1), &json!(2), &json!(1), &json!(1)),
        "{returned}"
    );
    assert!(text(2).contains("`hang` had no result within 0.5 s, and the Python process was stopped"), "{returned}");
    assert!(
        text(4).contains("the Python process ended (exit code 9) during `die`, and is started again"),
        "{returned}"
    );
    assert!(text(5).contains("ended (SIGSEGV) during `crash`") && text(5).contains("Segmentation fault"), "{returned}");
}

#[test]
fn what_functions_print_and_read_is_not_the_protocol() {
    let python = "import os, subprocess, sys\nprint('imported')\ndef f():\n    print('one'); print('two', file=sys.stderr)\n    \
                  os.write(1, b'{\"id\": 1, \"answer\": 7}\\n'); subprocess.run(['echo', 'three'])\n    \
                  return [sys.stdin.read(), 'x' * 3]\ndef long():\n    print('y' * 20000)\n    return 1\n";
    assert_eq!(twice(&bench(python, "", "return py.call('f')"), || {}), json!(["", "xxx"]));
    let bench = bench(python, "", "py.call('f') return py.call('long')");
    let worker = bench.worker();
    run(worker.reset(&json!({}), 0)).map_err(|_| ()).unwrap();
    let log: Vec<String> = worker.take_log().into_iter().map(|line| line.text).collect();
    assert_eq!((log[0].as_str(), log[1].as_str(), log.len()), ("f: one", "f: two", 4), "{log:?}");
    assert!(log[3].contains("… (3617 more characters)"), "{}", log[3]);
}

#[test]
fn what_python_misses_is_reported_before_a_run() {
    for (python, options, why, hint) in [
        (
            "import no_such_package\n",
            "",
            "reward.py can't be imported: ModuleNotFoundError: No module named 'no_such_package'",
            "-m pip install",
        ),
        ("from .lib import x\n", "", "ImportError: attempted relative import", "its directory is on sys.path"),
        ("\ndef f(:\n", "", "reward.py can't be imported: SyntaxError", "reward.py:2: def f(:"),
        (
            "def f(): pass\n",
            "python = 'no-such-python'",
            "there is no program `no-such-python` on the PATH",
            "install it",
        ),
        ("def f(): pass\nraise SystemExit('no licence')\n", "", "SystemExit: no licence", "reward.py:2"),
    ] {
        let bench = bench(python, options, "return 1");
        let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
        bench.file("x.lua", &text.replace(NEEDS, "{ 'process:python3', 'process:no-such-python' }"));
        let error = bench.show(bench.worker().prepare().unwrap_err());
        assert!(error.contains(why) && error.contains(hint) && error.contains("--> x.lua:2"), "{options}: {error}");
    }
    let bench = bench("def f(): pass\n", "", "return 1");
    let text = std::fs::read_to_string(bench.dir.path().join("x.lua")).unwrap();
    bench.file("x.lua", &text.replace(&format!("needs = {NEEDS},"), ""));
    let error = bench.show(bench.worker().prepare().unwrap_err());
    assert!(error.contains("needs = { \"process:python3\" }"), "{error}");
}

#[test]
fn files_functions_and_options_are_checked_when_the_script_is_loaded() {
    let bench = |line: &str| {
        let bench = Bench::new(&format!(
            "local python = require('@r1/python')\nlocal py = {line}\nreturn r1.recipe {{ env = r1.env {{}} }}"
        ));
        bench.file("a.py", "def compute(x): pass\ndef _own(): pass\n");
        bench.file("lib/a.py", "x = 1\n");
        bench.refusal()
    };
    for (line, why) in [
        ("python {}", "the first values are Python files"),
        ("python { 'a.lua' }", "`a.lua` is not the path of a Python file"),
        ("python { 'b.py' }", "no file b.py; a path is relative to the script's directory"),
        ("python { '../a.py' }", "is not inside the script's directory"),
        ("python { 'a.py', 'lib/a.py' }", "have the same name"),
        ("python { 'a.py', timout = 1 }", "unknown option `timout`"),
        ("python { 'a.py', timeout = 0 }", "`timeout` is a number above 0"),
        ("python 'a.py'.compute_score()", "a.py has no function `compute_score`; there are compute, _own"),
        ("python 'a.py'.compute_score { 'compute', weight = 1 }", "unknown option `weight`"),
        (
            "python 'a.py'.compute_score { 'compute', solution = 'first' }",
            "`solution` is \"last\", \"all\" or a function",
        ),
        ("python 'a.py'.reward_funcs {}", "the first values are names of functions"),
        ("python 'a.py'.reward_funcs { 'compute', weights = {} }", "`weights` has no number for `compute`"),
        ("python 'a.py'.reward_funcs { 'compute', weights = { 1, 2 } }", "`weights` has an entry for `2`"),
        (
            "python 'a.py'.reward_funcs { 'compute', weights = { compute = 1, other = 2 } }",
            "entry for `other`; the functions are compute",
        ),
        ("python 'a.py'.tools()", "a.py:1: parameter `x` of `compute` has no type hint"),
        ("python 'a.py'.call('nothing')", "has no function `nothing`"),
        ("python 'a.py'.compute_scor()", "there is no `compute_scor`; there are call, compute_score"),
    ] {
        let error = bench(line);
        assert!(error.contains(why) && error.contains("--> x.lua:2"), "{line}: {error}");
    }
}

const TOOLS: &str = r#"
from typing import List, Literal, Optional

def convert(amount: float, unit: Literal["km", "miles"] = "km", *, digits: Optional[int] = None) -> str:
    """Converts a distance.

    Works both ways.

    Args:
        amount (float): how much,
            as a number
        unit: its unit

    Returns:
        the text
    """
    if amount < 0:
        raise ValueError("a distance is not negative")
    return "%s %s" % (amount, unit)

@staticmethod
def _hidden(x): pass

async def shapes(names: List[str], options: dict[str, int] | None = None):
    'Counts "names".'
    return {"count": len(names), "options": options}
"#;

#[test]
fn functions_are_tools_with_their_signature_and_docstring() {
    let bench = Bench::new(&format!(
        "local py = require('@r1/python') {{ 'reward.py' }}\n\
         return r1.recipe {{ needs = {NEEDS}, env = r1.env {{ tools = py.tools() }}, reward = function() return 0 end }}"
    ));
    bench.file("reward.py", TOOLS);
    let worker = bench.worker();
    run(async {
        let state = worker.reset(&json!({ "problem": "x" }), 0).await.map_err(|failure| bench.show(failure)).unwrap();
        let tools = state.tools();
        assert_eq!(
            json!(tools),
            json!([
                { "type": "function", "function": {
                    "name": "convert", "description": "Converts a distance.\n\nWorks both ways.",
                    "parameters": { "type": "object", "required": ["amount"], "properties": {
                        "amount": { "type": "number", "description": "how much, as a number" },
                        "digits": { "type": "integer" },
                        "unit": { "type": "string", "enum": ["km", "miles"], "description": "its unit" },
                    } },
                } },
                { "type": "function", "function": {
                    "name": "shapes", "description": "Counts \"names\".",
                    "parameters": { "type": "object", "required": ["names"], "properties": {
                        "names": { "type": "array", "items": { "type": "string" } },
                        "options": { "type": "object", "additionalProperties": { "type": "integer" } },
                    } },
                } },
            ])
        );
        let mut act = action("");
        act.tool_calls = vec![
            call("convert", json!({ "amount": 2.5, "unit": "miles" })),
            call("convert", json!({ "amount": -1 })),
            call("convert", json!({ "amount": 1, "unit": "m" })),
            call("shapes", json!({ "names": ["a", "b"] })),
        ];
        let result = worker.step(&state, &act).await.map_err(|failure| bench.show(failure)).unwrap();
        let outputs: Vec<&str> = result.tools.iter().map(|tool| tool.output.as_str()).collect();
        assert_eq!(outputs[0], "2.5 miles");
        assert_eq!(outputs[1], "Error: ValueError: a distance is not negative");
        assert!(outputs[2].contains("unit"), "{outputs:?}");
        assert_eq!(outputs[3], "{\"count\": 2, \"options\": null}");
        assert_eq!(result.tools.iter().map(|tool| tool.ok).collect::<Vec<_>>(), [true, false, false, true]);
    });
}

#[test]
fn an_edited_file_is_a_new_version_that_a_new_process_runs() {
    let bench = bench("def f(): return 1\n", "", "return py.call('f')");
    let old = bench.load(&[]).unwrap();
    bench.file("reward.py", "def f(): return 2\n");
    let new = bench.load(&[]).unwrap();
    assert_ne!(old.hash, new.hash);
    assert!(old.modules().iter().any(|(name, text)| *name == "reward.py" && text.contains("return 1")));
    let value = |script: &Script| {
        let worker = Worker::new(script, None).unwrap();
        let state = run(worker.reset(&json!({}), 0)).map_err(|failure| bench.show(failure)).unwrap();
        state.snapshot().unwrap()["state"]["it"].clone()
    };
    // The old version is the one that was read, whatever the file has now.
    assert_eq!((value(&old), value(&new), value(&old)), (json!(1), json!(2), json!(1)));
}
