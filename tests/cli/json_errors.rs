//! The fields of errors with `--json`: kind, message, subject, place, hint.

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::recipe::recipe;
use super::run_files::json_lines;
use super::{directory, r1, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("env", r#"r1.env { format = "retool", max_steps = 1 }"#),
        ("data", r#"{ train = { rows = { { prompt = "a" }, { prompt = "b" } } } }"#),
    ])
});

/// The objects that a failing command prints, the error last.
fn failing(dir: &std::path::Path, args: &[&str]) -> Vec<Value> {
    let output = r1(dir, &[args, &["--json"]].concat()).output().unwrap();
    assert!(!output.status.success(), "{args:?}");
    let events = json_lines(std::str::from_utf8(&output.stdout).unwrap());
    let last = events.last().unwrap();
    assert_eq!((&last["event"], last["exit_code"].as_i64()), (&json!("error"), output.status.code().map(i64::from)));
    events
}

fn error(dir: &std::path::Path, args: &[&str]) -> Value {
    failing(dir, args).pop().unwrap()
}

#[test]
fn a_setting_and_a_row_are_the_subjects_of_their_errors() {
    let dir = directory(&[("a.lua", &RECIPE), ("bad.jsonl", "{\"prompt\": \"x\"}\n{\"prompt\": ")], true);
    let unknown = error(dir.path(), &["run", "a.lua", "trainer.lrr=1"]);
    assert_eq!((&unknown["kind"], &unknown["subject"]), (&json!("usage"), &json!({ "setting": "trainer.lrr" })));
    let broken = error(dir.path(), &["run", "a.lua", "data.train=bad.jsonl"]);
    assert_eq!((&broken["kind"], &broken["place"]), (&json!("data"), &json!("bad.jsonl:2")));
    assert_eq!(broken["subject"], json!({ "row": { "file": "bad.jsonl", "row": 1, "field": null } }));
    fs::write(dir.path().join("bad.jsonl"), "{\"promt\": \"x\"}\n").unwrap();
    let lacking = error(dir.path(), &["run", "a.lua", "data.train=bad.jsonl"]);
    assert_eq!(lacking["subject"]["row"]["row"], 0, "{lacking}");
    assert!(lacking["hint"].as_str().unwrap().contains("promt"), "{lacking}");
}

#[test]
fn missing_tensors_are_named_as_data() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let path = dir.path().join("model/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    // Names of the same length, so that offsets stay valid.
    let renamed = header.replace("model.norm.weight", "model.norn.weight");
    assert_ne!(renamed, header);
    fs::write(&path, [&bytes[..8], renamed.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
    let error = error(dir.path(), &["run", "a.lua", "seed=3"]);
    assert_eq!((&error["kind"], &error["exit_code"]), (&json!("model"), &json!(5)));
    assert_eq!(error["subject"], json!({ "tensors": ["model.norm.weight", "model.norn.weight"] }));
    assert!(error["place"].as_str().unwrap().ends_with("model.safetensors"), "{error}");
}

#[test]
fn an_error_of_the_script_that_ends_a_run_has_its_fields() {
    let step = "max_steps = 1, step = function(state, action)\n    error(\"no step\")\n  end }";
    let dir = directory(&[("a.lua", &RECIPE.replace("max_steps = 1 }", step))], true);
    let events = failing(dir.path(), &["run", "a.lua", "seed=3", "eval.before=false"]);
    let failure = events.iter().find(|event| event["event"] == "failure").unwrap();
    let fields = &failure["error_fields"];
    assert_eq!((&fields["message"], &fields["place"]), (&json!("no step"), &json!("a.lua:3")), "{failure}");
    assert_eq!((&fields["kind"], &failure["count"]), (&json!("script"), &json!(4)));
    let last = events.last().unwrap();
    assert_eq!(last["subject"], json!({ "trajectories": { "numbers": [0, 1, 2, 3], "step": null } }), "{last}");
    // The same from the file.
    let program = "local one = r1.store.trajectories('a', 1)[1]
        return { one.error_fields.message, one.error_fields.place, one.error ~= nil }";
    assert_eq!(succeed(dir.path(), &["lua", "-e", program]).trim(), r#"["no step","a.lua:3",true]"#);
}

#[test]
fn a_file_and_an_argument_are_the_subjects_of_their_errors() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let missing = error(dir.path(), &["run", "b.lua"]);
    assert_eq!((&missing["subject"], &missing["place"]), (&json!({ "file": "b.lua" }), &json!("b.lua")));
    fs::write(dir.path().join("model/config.json"), "{ \"model_type\": ").unwrap();
    let broken = error(dir.path(), &["run", "a.lua", "seed=3"]);
    assert_eq!((&broken["kind"], &broken["exit_code"]), (&json!("model"), &json!(5)));
    assert_eq!(broken["subject"], json!({ "file": "model/config.json" }), "{broken}");
    let flag = error(dir.path(), &["infer", "--model", "model", "--temperature", "hot"]);
    assert_eq!((&flag["kind"], &flag["exit_code"]), (&json!("usage"), &json!(2)));
    assert!(flag["subject"]["argument"].as_str().unwrap().starts_with("--temperature"), "{flag}");
}

#[test]
fn the_field_of_a_row_and_of_a_result_are_named() {
    let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"bot\", \"content\": \"y\"}]}\n";
    let sft = "return r1.recipe { policy = { model = 'model' }, data = { train = 'rows.jsonl' },
        trainer = r1.sft { steps = 1 } }";
    let dir = directory(&[("sft.lua", sft), ("rows.jsonl", row), ("a.lua", &RECIPE)], true);
    let error = error(dir.path(), &["sft", "sft.lua", "seed=3"]);
    assert_eq!((&error["kind"], &error["place"]), (&json!("data"), &json!("rows.jsonl:1")), "{error}");
    assert_eq!(error["subject"], json!({ "row": { "file": "rows.jsonl", "row": 0, "field": "messages[2].role" } }));
    let reward = RECIPE.replace("return #outcome.text % 2", "return { format = { value = 1, weight = 'x' } }");
    fs::write(dir.path().join("a.lua"), reward).unwrap();
    let events = failing(dir.path(), &["run", "a.lua", "seed=3", "eval.before=false"]);
    let failure = events.iter().find(|event| event["event"] == "failure").unwrap();
    let subject = json!({ "returned": { "function": "reward", "field": "format.weight" } });
    assert_eq!(failure["error_fields"]["subject"], subject, "{failure}");
}

#[test]
fn a_value_of_the_script_is_named_by_its_path() {
    let dir = directory(&[], false);
    let tool = "r1.tool { name = 't', run = print,\n  parameters = {\n    n = { type = 'integr' } } }";
    for (program, path, location) in [
        ("r1.json.encode({ a = { b = print } })", "value.a.b", "-e:1"),
        (tool, "parameters.n", "-e:3"),
        ("r1.tool { name = 't', run = print, parameters = { n = 4 } }", "parameters.n", "-e:1"),
    ] {
        let error = error(dir.path(), &["lua", "-e", program]);
        assert_eq!((&error["subject"], &error["place"]), (&json!({ "setting": path }), &json!(location)), "{error}");
    }
}
