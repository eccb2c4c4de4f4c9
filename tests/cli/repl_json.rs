//! `r1 repl --json`: one object per command.

use std::path::Path;

use serde_json::{Value, json};

use super::repl::GUESS;
use super::run_files::json_lines;
use super::{directory, piped, r1};

/// The objects that `r1 repl --json` prints for lines from a pipe.
pub(super) fn answers(dir: &Path, args: &[&str], lines: &str) -> Vec<Value> {
    let output = piped(r1(dir, &[&["repl", "--json"], args].concat()), lines);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    json_lines(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_repl_command_prints_one_json_object() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":reset 1 seed=4\n:step 30\nstate.secret, print\n:state secret\n:tokens\n:diff\n:step 20\n:undo\n:fork mine\n\
                 :branches\n:reward\n:break step\n:clear\n:obs\n:help undo\n:save t.lua\n";
    let all = answers(dir.path(), &["guess.lua"], typed);
    let names: Vec<&str> = all.iter().map(|one| one["command"].as_str().unwrap()).collect();
    let expected = "reset reset step eval state tokens diff step undo fork branches reward break clear obs help save";
    assert_eq!(names.join(" "), expected);
    assert!(all.iter().all(|one| one["event"] == "answer"));
    let named = |name: &str| all.iter().rfind(|one| one["command"] == name).unwrap();

    let task = json!({ "split": "train", "row": 1, "task": { "secret": 20 }, "seed": 4 });
    assert_eq!(named("reset")["start"], task);
    assert_eq!(named("reset")["observation"], json!({ "messages": [{ "role": "user", "content": "Guess" }] }));
    let first = &all[2];
    assert_eq!(first["log"], json!([{ "place": "guess.lua:15", "text": "said lower" }]));
    let step = &first["steps"][0];
    assert_eq!((&step["step"], &step["text"], &step["reward"]), (&json!(1), &json!("30"), &json!(0.1)));
    assert_eq!(first["observation"]["messages"].as_array().unwrap().len(), 3);
    assert!(first.get("end").is_none());
    let end = &named("step")["end"];
    assert_eq!((&end["status"], &end["steps"]), (&json!("terminated"), &json!(2)));
    assert_eq!(end["reward"]["parts"], json!({ "solved": 1.0 }));
    // A function is not data: it is only shown.
    assert_eq!(named("eval")["values"], json!([20, null]));
    assert!(named("eval")["shown"][1].as_str().unwrap().starts_with("function"), "{}", named("eval"));
    assert_eq!(named("state")["values"], json!([20]));
    let tokens = &named("tokens")["tokens"];
    let count = |name: &str| tokens[name].as_array().unwrap().len();
    assert_eq!((count("ids"), count("texts"), count("sampled")), (52, 52, 52));
    assert_eq!(tokens["sampled"].as_array().unwrap().iter().filter(|one| **one == json!(true)).count(), 3);
    assert!(named("diff")["diff"].as_str().unwrap().contains("-   tries = 0,"));
    assert_eq!((&named("undo")["steps"], &named("fork")["branch"]), (&json!(1), &json!("mine")));
    assert_eq!(named("branches")["branches"][1]["current"], true);
    assert_eq!(named("reward")["reward"]["steps"], json!([0.1]));
    assert_eq!((&named("clear")["removed"], &named("save")["file"]), (&json!(1), &json!("t.lua")));
    assert_eq!(named("break")["breakpoints"][0]["path"], "guess.lua");
}

#[test]
fn repl_halts_and_failures_are_json_objects() {
    let dir = directory(&[("guess.lua", GUESS)], true);
    let typed = ":break 15\n:step 20\nsaid\n:locals\n:continue\n:step again\n";
    let all = answers(dir.path(), &["guess.lua"], typed);
    let names: Vec<String> =
        all.iter().map(|one| one["command"].as_str().or(one["event"].as_str()).unwrap().to_owned()).collect();
    assert_eq!(names, ["reset", "break", "halt", "eval", "locals", "step", "step", "error"]);
    assert_eq!((&all[2]["place"], &all[3]["values"]), (&json!("guess.lua:15"), &json!(["lower"])));
    let locals = all[4]["locals"].as_array().unwrap();
    assert!(locals.iter().any(|local| local["name"] == "said" && local["shown"] == "\"lower\""), "{locals:?}");
    assert_eq!(all[5]["steps"][0]["text"], "20");
    assert!(all[7]["message"].as_str().unwrap().contains("nil"), "{}", all[7]);
}

#[test]
fn repl_evaluates_lua_without_a_script() {
    let dir = directory(&[], false);
    let all = answers(dir.path(), &[], "print(1, 2)\n{ a = { 1, 2 } }, 'x'\n");
    assert_eq!(all[0], json!({ "event": "answer", "command": "eval", "printed": ["1\t2\n"] }));
    assert_eq!((&all[1]["values"], &all[1]["shown"][1]), (&json!([{ "a": [1, 2] }, "x"]), &json!("\"x\"")));
}
