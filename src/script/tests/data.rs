//! Datasets: JSONL files and generated rows.

use insta::assert_snapshot;
use serde_json::json;

use super::*;

fn jsonl(text: &str, data: &str) -> Bench {
    let bench = Bench::new(&format!(
        "return r1.recipe {{ data = {{ train = {data} }}, trainer = r1.grpo {{}}, reward = function() return 0 end }}"
    ));
    bench.file("t.jsonl", text);
    bench
}

#[test]
fn rows_are_found_by_line_and_columns_renamed() {
    let text = "\u{feff}{\"q\": \"a\", \"r\": {\"gt\": 1}}\r\n\n{\"q\": \"b\", \"r\": {\"gt\": [2, null]}}";
    let bench = jsonl(text, "r1.data.jsonl { path = 't.jsonl', columns = { problem = 'q', answer = 'r.gt' } }");
    let worker = bench.worker();
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(2));
    assert_eq!(worker.rows(Split::Eval).unwrap(), None);
    assert_eq!(worker.row(Split::Train, 0).unwrap()["answer"], 1);
    let row = worker.row(Split::Train, 1).unwrap();
    assert_eq!((&row["problem"], &row["answer"]), (&json!("b"), &json!([2, null])));
    assert!(bench.show(worker.place_of_row(Split::Train, 1)).ends_with("t.jsonl:3"));
}

#[test]
fn what_is_wrong_with_a_row_is_told_with_its_line() {
    let message = |text: &str, data: &str| {
        let bench = jsonl(text, data);
        let error = bench.worker().row(Split::Train, 0).unwrap_err();
        assert_eq!(error.kind, crate::error::Kind::Data);
        bench.show(error)
    };
    assert_snapshot!(message("{\"problem\": \"x\",}\n", "'t.jsonl'"), @r#"
    the row is not JSON: trailing comma in column 17
      --> t.jsonl:1
      hint: a dataset holds one JSON object a line
    "#);
    assert_snapshot!(message("[1]\n", "'t.jsonl'"), @r#"
    the row is not a JSON object
      --> t.jsonl:1
    "#);
    assert_snapshot!(message("\n{\"answer\": 1, \"quesion\": \"?\"}\n", "'t.jsonl'"), @r#"
    the row has no column `prompt` or `problem` or `question` or `messages`, which the default reset needs
      --> t.jsonl:2
      hint: it has `answer`, `quesion`; columns = { prompt = "…" } renames one
    "#);
    assert_snapshot!(message("{\"qestion\": 1}\n", "{ path = 't.jsonl', columns = { problem = 'question' } }"), @r#"
    the row has no column `question`
      --> t.jsonl:1
      hint: did you mean `qestion`?
    "#);
    assert_snapshot!(message("\n \n", "'t.jsonl'"), @r#"
    the dataset has no rows
      --> t.jsonl
      hint: data.train of x.lua names it
    "#);
    assert_snapshot!(message("", "'missing.jsonl'"), @r#"
    can't read the dataset: no such file or directory
      --> missing.jsonl
      hint: data.train of x.lua names it
    "#);
    let sft = Bench::new("return r1.recipe { trainer = r1.sft {}, data = { train = 't.jsonl' } }");
    sft.file("t.jsonl", "{\"text\": \"x\"}");
    assert_snapshot!(sft.show(sft.worker().row(Split::Train, 0).unwrap_err()), @r#"
    the row has no column `messages`, which r1.sft needs
      --> t.jsonl:1
      hint: it has `text`; columns = { messages = "…" } renames one
    "#);
    assert_snapshot!(sft.show(sft.worker().row(Split::Train, 1).unwrap_err()), @r#"
    there is no row 1; the dataset has 1
      --> t.jsonl
    "#);
    assert_snapshot!(sft.show(sft.worker().row(Split::Eval, 0).unwrap_err()), @"the recipe has no data.eval");
}

#[test]
fn a_generated_row_is_a_pure_function_of_its_index() {
    let source = "return r1.recipe { data = { train = r1.data.generate { count = 3, seed = SEED, row = function(index)\n\
                  return { problem = index .. ':' .. math.random(1000000) .. ':' .. math.random() } end } },\n\
                  reward = function() return 0 end }";
    let first = Bench::new(&source.replace("SEED", "1")).worker();
    let again = Bench::new(&source.replace("SEED", "1")).worker();
    let other = Bench::new(&source.replace("SEED", "2")).worker();
    let row = |worker: &Worker, index| worker.row(Split::Train, index).unwrap()["problem"].as_str().unwrap().to_owned();
    assert!(row(&first, 0).starts_with("1:"));
    assert_eq!(row(&first, 2), row(&again, 2));
    assert_eq!(row(&first, 2), row(&first, 2));
    assert_ne!(row(&first, 1)[2..], row(&first, 2)[2..]);
    assert_ne!(row(&first, 2), row(&other, 2));
    assert_snapshot!(first.row(Split::Train, 3).unwrap_err(), @"there is no row 3; data.train has 3");
}

#[test]
fn a_row_function_that_fails() {
    let message = |body: &str| {
        let bench = Bench::new(&format!(
            "return r1.recipe {{ data = {{ train = r1.data.generate {{ count = 3, row = function(index) {body} end }} }},\n\
             reward = function() return 0 end }}"
        ));
        bench.show(bench.worker().row(Split::Train, 1).unwrap_err())
    };
    assert_snapshot!(message(""), @r#"
    row(2) returned nil; it must return a table
      --> x.lua:1
    "#);
    assert_snapshot!(message("return { problem = print }"), @r#"
    row.problem is a function; plain data holds text, numbers, booleans and tables
      --> x.lua:1
    "#);
    assert_snapshot!(message("return index.x"), @r#"
    attempt to index number with 'x'
      --> x.lua:1
    "#);
    assert_snapshot!(message("return { answer = 1 }"), @r#"
    the row has no column `prompt` or `problem` or `question` or `messages`, which the default reset needs
      --> x.lua:1
      hint: it has `answer`
    "#);
}

#[test]
fn a_file_from_the_command_line_replaces_a_generator() {
    let bench = jsonl("{\"problem\": \"from file\"}", "r1.data.generate { count = 3, row = function() return {} end }");
    let path = format!("data.train={}", bench.dir.path().join("t.jsonl").display());
    let worker = Worker::new(&bench.load(&[&path]).unwrap(), None).unwrap();
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(1));
    assert_eq!(worker.row(Split::Train, 0).unwrap()["problem"], "from file");
}
