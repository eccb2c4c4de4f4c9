//! Datasets: JSONL files and generated rows.

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::error::Subject;

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
fn rows_can_be_written_in_the_recipe() {
    let bench = jsonl("", "{ { problem = 'a', of = { 1, 2 } }, { problem = 'b' } }");
    let worker = bench.worker();
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(2));
    assert_eq!(worker.row(Split::Train, 0).unwrap(), json!({ "problem": "a", "of": [1, 2] }));
    let error = worker.row(Split::Train, 2).unwrap_err();
    assert_eq!(error.message, "there is no row 2; data.train has 2");

    let refusal = |data: &str| {
        let bench = jsonl("", data);
        bench.show(bench.load(&[]).unwrap_err())
    };
    assert_snapshot!(refusal("{ { problem = 'a' }, 'b' }"), @r#"
    r1.recipe: `data.train[2]` must be a table, got the text "b"
      --> x.lua:1
    "#);
    let bench = jsonl("", "{\n  { problem = 'a' },\n  { answer = 1 },\n}");
    let error = bench.worker().row(Split::Train, 1).unwrap_err();
    let about = error.subject.as_deref().cloned();
    assert!(matches!(about, Some(Subject::Row { row: 1, .. })), "{about:?}");
    assert_snapshot!(bench.show(error), @"
    the row has no column `prompt` or `problem` or `question` or `messages`, which the default reset needs
      --> x.lua:3, data.train[2]
      hint: it has `answer`
    ");
    let mixed = jsonl("", "{ own = {\n  { problem = 'a' },\n  { answer = 1 } }, other = { { problem = 'b' } } }");
    let worker = mixed.worker();
    let location = |row| mixed.show(worker.place_of_row(Split::Train, row));
    assert_eq!([location(0), location(1)], ["x.lua:3, data.train.other[1]", "x.lua:2, data.train.own[1]"]);
    let error = mixed.show(worker.row(Split::Train, 2).unwrap_err());
    assert!(error.contains("x.lua:3, data.train.own[2]"), "{error}");
    // A column of the wrong kind is named with its row.
    let bench = jsonl("", "{ { problem = 'a' }, { problem = 'b', env_kwargs = '{' } }");
    let error = bench.worker().row(Split::Train, 1).unwrap_err();
    assert!(
        matches!(error.subject.as_deref(), Some(Subject::Row { row: 1, field: Some(field), .. }) if field == "env_kwargs")
    );
    assert!(bench.show(error).contains("x.lua:1, data.train[2]"));
}

#[test]
fn errors_of_dataset_rows_have_their_line() {
    let message = |text: &str, data: &str| {
        let bench = jsonl(text, data);
        let error = bench.worker().row(Split::Train, 0).unwrap_err();
        assert_eq!(error.kind, crate::error::Kind::Data);
        bench.show(error)
    };
    assert_snapshot!(message("{\"problem\": \"x\",}\n", "'t.jsonl'"), @r#"
    the row is not JSON: trailing comma in column 17
      --> t.jsonl:1
      hint: a dataset has one JSON object per line
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
    the row has no column `messages`, which r1.sft needs, nor those of another format (docs/guide/sft.md)
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

/// A prompt of a cold start equals the prompt of a rollout only if the schemas have the same order.
#[test]
fn schemas_written_as_tables_in_rows_are_ordered_as_those_of_tools() {
    let source = r#"
        local parameters = { days = { type = "integer", description = "How many" }, city = "string" }
        local tool = r1.tool { name = "weather", description = "The weather", parameters = parameters, run = print }
        local schema = { type = "object", required = { "city", "days" }, properties = {
          city = { type = "string" }, days = { type = "integer", description = "How many" } } }
        local written = { type = "function",
          ["function"] = { name = "weather", description = "The weather", parameters = schema } }
        local server = '{"name": "w", "parameters": {"title": "W", "type": "object", "properties": {}}}'
        local read = { type = "function", ["function"] = r1.json.decode(server) }
        local function row(index)
          return { prompt = "a", completion = "b", tools = { tool.schema, written, read } }
        end
        local generated = r1.data.generate { count = 1, row = row }
        return r1.recipe { data = { train = generated, eval = { row(1) } }, trainer = r1.sft {} }"#;
    let worker = Bench::new(source).worker();
    for split in [Split::Train, Split::Eval] {
        let tools: Vec<String> =
            worker.row(split, 0).unwrap()["tools"].as_array().unwrap().iter().map(ToString::to_string).collect();
        assert!(tools[0].starts_with(r#"{"type":"function","function":{"name":"weather","description""#), "{tools:?}");
        assert_eq!(tools[0], tools[1]);
        assert!(tools[2].ends_with(r#"{"title":"W","type":"object","properties":{}}}}"#), "{tools:?}");
    }
}

#[test]
fn a_row_function_that_fails_is_reported_with_its_line() {
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

/// A bench whose training data is `data`, in a directory with `files`.
fn files(data: &str, files: &[(&str, &str)]) -> Bench {
    let bench = Bench::new(&format!(
        "return r1.recipe {{ data = {{ train = {data} }}, trainer = r1.grpo {{}}, reward = function() return 0 end }}"
    ));
    for (name, text) in files {
        bench.file(name, text);
    }
    bench
}

#[test]
fn csv_rows_have_text_in_named_columns() {
    let text = "\u{feff}problem,answer\r\n\"a, \"\"b\"\"\nc\",007\r\n\r\nlast,\r\n";
    let bench = files("r1.data.csv { path = 't.csv', columns = { target = 'answer' } }", &[("t.csv", text)]);
    let worker = bench.worker();
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(2));
    assert_eq!(worker.row(Split::Train, 0).unwrap(), json!({"problem": "a, \"b\"\nc", "target": "007"}));
    assert_eq!(worker.row(Split::Train, 1).unwrap(), json!({"problem": "last", "target": ""}));
    assert!(worker.place_of_row(Split::Train, 1).ends_with("t.csv:5"), "{}", worker.place_of_row(Split::Train, 1));
    let tabs = files("'t.tsv'", &[("t.tsv", "problem\tanswer\n1,5\t\"2\"\n")]);
    assert_eq!(tabs.worker().row(Split::Train, 0).unwrap(), json!({"problem": "1,5", "answer": "2"}));
    let refused = |text: &str| {
        let bench = files("'t.csv'", &[("t.csv", text)]);
        bench.show(bench.worker().row(Split::Train, 0).unwrap_err())
    };
    assert_snapshot!(refused("problem,answer\n1,2\n3\n"), @r#"
    the row has 1 cells and the first line 2
      --> t.csv:3
      hint: data.train of x.lua names it
    "#);
    assert_snapshot!(refused("problem,problem\n1,2\n"), @r#"
    two columns are called `problem`
      --> t.csv:1
      hint: the first line of a CSV dataset names its columns
    "#);
    assert_snapshot!(refused("problem\n"), @r#"
    the dataset has no rows
      --> t.csv
      hint: data.train of x.lua names it
    "#);
    assert_snapshot!(refused(""), @r#"
    the dataset has no rows
      --> t.csv
      hint: data.train of x.lua names it
    "#);
}

#[test]
fn a_json_list_and_lines_called_json() {
    let bench = files("'t.json'", &[("t.json", " [{\"problem\": \"a\"},\n {\"problem\": \"b\"}, 3]")]);
    let worker = bench.worker();
    assert_eq!(worker.row(Split::Train, 1).unwrap(), json!({"problem": "b"}));
    assert_snapshot!(bench.show(worker.row(Split::Train, 2).unwrap_err()), @r#"
    the row is not a JSON object
      --> t.json, row 2
    "#);
    let lines = files("'t.json'", &[("t.json", "{\"problem\": \"a\"}\n{\"problem\": \"b\"}\n")]);
    assert_eq!(lines.worker().row(Split::Train, 1).unwrap(), json!({"problem": "b"}));
    let broken = files("'t.json'", &[("t.json", "[{\"problem\": \"a\"},\n }]")]);
    assert_snapshot!(broken.show(broken.worker().row(Split::Train, 0).unwrap_err()), @r#"
    the dataset is not JSON: expected value at line 2 column 2
      --> t.json:2
      hint: data.train of x.lua names it
    "#);
}

#[test]
fn datasets_with_verl_columns_work_unchanged() {
    let row = r#"{"data_source": "gsm8k", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "6*7?"}],
        "ability": "math", "reward_model": {"style": "rule", "ground_truth": "42"}, "extra_info": {"index": 0, "size": 4}}"#;
    let bench = Bench::new(
        "return r1.recipe {
          env = r1.env {},
          reward = function(state, outcome) return r1.math_equal(outcome.text, state.task.answer) and state.task.extra_info.size or 0 end,
          data = { train = 't.jsonl' },
        }",
    );
    bench.file("t.jsonl", &row.replace('\n', " "));
    let worker = bench.worker();
    let task = worker.row(Split::Train, 0).unwrap();
    assert_eq!((&task["answer"], &task["problem"]), (&json!("42"), &json!("6*7?")));
    run(async {
        let state = worker.reset(&task, 1).await.unwrap();
        let shown: Vec<String> = worker.messages(&state).iter().map(|message| message.content.text()).collect();
        assert_eq!(shown, ["s", "6*7?"]);
        // Arguments of the row reach the env: here its size is the reward.
        assert_eq!(worker.reward(&state, &outcome("42")).await.unwrap().total, 4.0);
    });
}

#[test]
fn invalid_flows_are_refused_at_their_line() {
    let reported = |data: &str| files(data, &[]).refusal();
    assert_snapshot!(reported("r1.data.jsonl 'x.parquet'"), @r#"
    r1.data.jsonl: the extension of x.parquet is that of another format; a plain path selects the format by extension
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.data.hf 'a/b/c'"), @r#"
    r1.data.hf: `a/b/c` is not the name of a dataset on the Hub: it has more than two parts
      --> x.lua:1
      hint: write ORG/NAME or ORG/NAME@REVISION, as in openai/gsm8k@main
    "#);
    assert_snapshot!(reported("r1.data.hf 'a/b' { splt = 'test' }"), @r#"
    r1.data.hf: unknown field `splt`
      --> x.lua:1
      hint: did you mean `split`?
    "#);
    assert_snapshot!(reported("r1.data.csv 'a.csv' {}"), @r#"
    r1.data: only r1.data.hf takes options after its name
      --> x.lua:1
    "#);
    assert_snapshot!(reported("{ hf = 'openai/gsm8k', path = 'x' }"), @r#"
    r1.recipe: unknown field `data.train.path`
      --> x.lua:1
      hint: known: `columns`, `env`, `file`, `hf`, `name`, `split`, `subset`, `weight`
    "#);
    assert_snapshot!(reported("{ path = 'x', format = 'xml' }"), @r#"
    r1.recipe: `data.train.format` is "xml"; it is one of `jsonl`, `json`, `csv`, `tsv`, `parquet`, `arrow`
      --> x.lua:1
    "#);
    let hf = files("r1.data.hf 'openai/gsm8k@main' { split = 'test', subset = 'main' }", &[])
        .load(&["data.train.subset=socratic"]);
    assert_eq!(
        serde_json::to_value(hf.unwrap().settings.data.train).unwrap(),
        json!({"hf": "openai/gsm8k@main", "split": "test", "subset": "socratic", "file": "", "columns": {}})
    );
}

#[test]
fn parquet_rows_by_a_plain_path() {
    use std::sync::Arc;
    let bench = files("'t.parquet'", &[]);
    let column: arrow_array::ArrayRef = Arc::new(arrow_array::StringArray::from(vec!["a", "b"]));
    let batch = arrow_array::RecordBatch::try_from_iter([("problem", column)]).unwrap();
    let file = std::fs::File::create(bench.dir.path().join("t.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let worker = bench.worker();
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(2));
    assert_eq!(worker.row(Split::Train, 1).unwrap(), json!({"problem": "b"}));
    assert!(worker.place_of_row(Split::Train, 1).ends_with("t.parquet, row 1"));
}
