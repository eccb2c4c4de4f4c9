//! `r1 data prep`, `show`, `stats`, `split`, `dedup` and `decontaminate` on files.

use serde_json::{Value, json};

use super::{cli_snapshot, directory, fail, shown, succeed};

const TASKS: &str = r#"{"problem": "Ann has 3 apples and buys 4 more. How many apples does Ann have now?", "answer": "7", "level": 1}
{"problem": "Bob sells 12 of his 30 pens on Monday and half of the rest on Tuesday. How many are left?", "answer": "9", "level": 2}
{"problem": "ANN has 3 apples and  buys 4 more. How many apples does Ann have now?", "answer": "7", "level": 1}
{"problem": "Bob sells 12 of his 40 pens on Monday and half of the rest on Tuesday. How many are left?", "answer": "14", "level": 2}
"#;

#[test]
fn rows_become_those_of_verl_and_return() {
    let dir = directory(&[("tasks.jsonl", TASKS)], false);
    let run = |args: &[&str]| shown(dir.path(), &super::r1(dir.path(), args).output().unwrap());
    insta::assert_snapshot!(run(&["data", "prep", "tasks.jsonl", "--to", "verl", "--split", "train"]), @r##"
    exit: 0
    --- stdout
    tasks.verl.parquet: 4 rows
    --- stderr
    warning: data_source is "tasks", the name of the file; verl selects its scoring function by it (--data-source NAME)
    "##);
    let shown = succeed(dir.path(), &["data", "show", "tasks.verl.parquet", "-n", "1", "--json"]);
    insta::assert_snapshot!(shown, @r##"
    {"data_source":"tasks","prompt":[{"role":"user","content":"Ann has 3 apples and buys 4 more. How many apples does Ann have now?"}],"ability":"","reward_model":{"style":"rule","ground_truth":"7"},"extra_info":{"level":1,"split":"train","index":0,"r1":{"added":{"data_source":"tasks","ability":"","split":"train","index":0}}}}
    "##);
    insta::assert_snapshot!(run(&["data", "prep", "tasks.verl.parquet", "--to", "r1", "--out", "back.jsonl.gz"]), @r##"
    exit: 0
    --- stdout
    back.jsonl.gz: 4 rows
    "##);
    let back = succeed(dir.path(), &["data", "show", "back.jsonl.gz", "-n", "1", "--json"]);
    let back: Value = serde_json::from_str(&back).unwrap();
    assert_eq!(
        (&back["problem"], &back["answer"]),
        (&json!("Ann has 3 apples and buys 4 more. How many apples does Ann have now?"), &json!("7"))
    );
    insta::assert_snapshot!(run(&["data", "prep", "tasks.jsonl", "--to", "verl", "--answer", "anwser"]), @r##"
    exit: 4
    --- stderr
    warning: data_source is "tasks", the name of the file; verl selects its scoring function by it (--data-source NAME)
    error: the row has no column `anwser`
      --> tasks.jsonl:1
      hint: did you mean `answer`?; --answer COLUMN names another
    "##);
    insta::assert_snapshot!(run(&["data", "prep", "tasks.jsonl", "--to", "r1"]), @r##"
    exit: 4
    --- stderr
    error: the row has no column `prompt`
      --> tasks.jsonl:1
      hint: known: `answer`, `level`, `problem`; verl's columns are data_source, prompt, ability, reward_model, extra_info
    "##);
    insta::assert_snapshot!(run(&["data", "prep", "tasks.jsonl", "--to", "verl", "--out", "tasks.jsonl"]), @r##"
    exit: 2
    --- stderr
    error: the output is a file that is read
      --> tasks.jsonl
      hint: choose another --out
    "##);
    insta::assert_snapshot!(run(&["data", "prep", "tasks.jsonl", "--to", "verl", "--out", "tasks.csv"]), @r##"
    exit: 2
    --- stderr
    error: rows can't be written in the format of this file name
      --> tasks.csv
      hint: name it .jsonl, .jsonl.gz, .jsonl.zst, .json or .parquet
    "##);
}

#[test]
fn rows_are_shown() {
    let tasks = r#"{"id": 1, "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?\nSay."}], "answer": 4}"#;
    cli_snapshot!({ "a.jsonl" => tasks }, ["data", "show", "a.jsonl"], @r##"
    exit: 0
    --- stdout
    row 0  a.jsonl:1
      id      1
      prompt  system: Be brief.
              user: Why?
              Say.
      answer  4
    "##);
    cli_snapshot!({ "a.jsonl" => tasks }, ["data", "show", "a.jsonl", "--column", "answr"], @r##"
    exit: 4
    --- stderr
    error: the row has no column `answr`
      --> a.jsonl:1
      hint: did you mean `answer`?
    "##);
    cli_snapshot!({ "a.jsonl" => tasks }, ["data", "show", "a.jsonl", "--row", "1"], @r##"
    exit: 2
    --- stderr
    error: there is no row 1
      --> --row
      hint: rows are counted from 0, and the data has 1
    "##);
    cli_snapshot!({ "a.csv" => "problem,answer\n1+1?,2\n2+2?\n" }, ["data", "show", "a.csv"], @r##"
    exit: 4
    --- stderr
    error: the row has 1 cells and the first line 2
      --> a.csv:3
    "##);
    cli_snapshot!({ "a.jsonl" => "" }, ["data", "show", "a.jsonl"], @r##"
    exit: 4
    --- stderr
    error: the dataset has no rows
      --> a.jsonl
    "##);
    cli_snapshot!(["data", "show", "none.jsonl"], @r##"
    exit: 4
    --- stderr
    error: can't read the dataset: no such file or directory
      --> none.jsonl
    "##);
    let long = format!("{{\"problem\": \"{}\"}}\n", "x".repeat(3_000_000));
    let dir = directory(&[("a.jsonl", &long)], false);
    let text = succeed(dir.path(), &["data", "show", "a.jsonl"]);
    assert!(text.len() < 600 && text.contains("… (3000000 characters)"), "{text}");
    assert!(succeed(dir.path(), &["data", "show", "a.jsonl", "--full"]).len() > 3_000_000);
    let dir = directory(&[("tasks.jsonl", TASKS)], false);
    let sample =
        |seed: &str| succeed(dir.path(), &["data", "show", "tasks.jsonl", "--sample=2", "--seed", seed, "--json"]);
    assert_eq!(sample("1").lines().count(), 2);
    assert_eq!(sample("1"), sample("1"));
}

#[test]
fn statistics_of_columns_are_printed() {
    cli_snapshot!({ "tasks.jsonl" => TASKS }, ["data", "stats", "tasks.jsonl"], @r##"
    exit: 0
    --- stdout
    4 rows

    problem  text, 4 different values
      characters  least 68, mean 78.8, median 69, 95% 89, most 89
                  68 ▅▅▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█ 89

    answer  text, 3 different values
      characters  least 1, mean 1.250, median 1, 95% 2, most 2
                  1 █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▃ 2
      values      7 2, 14 1, 9 1

    level  number, 2 different values
      numbers     least 1, mean 1.500, median 1, 95% 2, most 2
                  1 █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█ 2
      values      1 2, 2 2
    "##);
    let dir = directory(&[("tasks.jsonl", TASKS)], true);
    let statistics = succeed(dir.path(), &["data", "stats", "tasks.jsonl", "--tokenizer", "model", "--json"]);
    let statistics: Value = serde_json::from_str(&statistics).unwrap();
    let problem = &statistics["columns"][0];
    assert_eq!(
        (&problem["name"], &problem["types"]["text"], &problem["distinct"]),
        (&json!("problem"), &json!(4), &json!(4))
    );
    assert!(problem["tokens"]["most"].as_f64().unwrap() > 1.0 && problem["characters"]["least"] == 68.0, "{problem}");
    assert_eq!(statistics["columns"][2]["values"], json!([["1", 2], ["2", 2]]));
}

#[test]
fn rows_are_split_by_seed_stratum_and_group() {
    let row = |n| format!("{{\"n\": {n}, \"table\": {{\"name\": \"t{}\"}}}}\n", n / 4);
    let rows = (0..40).map(row).collect::<Vec<_>>().concat();
    let dir = directory(&[("a.jsonl", &rows)], false);
    let split = |more: &[&str]| -> Value {
        let text = succeed(dir.path(), &[&["data", "split", "a.jsonl", "--out", "parts", "--json"], more].concat());
        serde_json::from_str(&text).unwrap()
    };
    let read = |name: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(dir.path().join("parts").join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64().unwrap()).collect()
    };
    split(&[]);
    assert_eq!((read("test.jsonl").len(), read("train.jsonl").len()), (4, 36));
    let one = read("test.jsonl");
    split(&["--seed", "1"]);
    assert_ne!(one, read("test.jsonl"));
    split(&["--part", "dev=25%", "--stratify", "table.name"]);
    let mut tables: Vec<u64> = read("dev.jsonl").iter().map(|n| n / 4).collect();
    tables.dedup();
    assert_eq!(tables.len(), 10);
    let parts = split(&["--part", "test=9", "--part", "dev=0.2", "--group", "table.name"]);
    assert_eq!((&parts["parts"]["test"]["rows"], &parts["parts"]["dev"]["rows"]), (&json!(8), &json!(8)));
    let (test, dev) = (read("test.jsonl"), read("dev.jsonl"));
    assert!(test.iter().all(|n| !dev.iter().any(|other| other / 4 == n / 4)));
    let error = |more: &[&str]| fail(dir.path(), &[&["data", "split", "a.jsonl", "--out", "parts"], more].concat());
    insta::assert_snapshot!(error(&["--part", "test=50"]), @r##"
    error: the parts have 50 rows, and the data has 40
      --> --part
      hint: what no part takes is the rest; lower an amount
    "##);
    insta::assert_snapshot!(error(&["--part", "train=5"]), @r##"
    error: two parts are called `train`
      --> --part
    "##);
    insta::assert_snapshot!(error(&["--group", "tabel"]), @r##"
    error: the row has no column `tabel`
      --> a.jsonl:1
      hint: did you mean `table`?
    "##);
    insta::assert_snapshot!(error(&["--part", "test"]), @r##"
    error: invalid value 'test' for '--part <NAME=AMOUNT>': must be NAME=AMOUNT, such as test=500, test=10% or test=0.1

    For more information, try '--help'.
    "##);
}

#[test]
fn duplicates_are_left_out_and_reported() {
    let dir = directory(&[("tasks.jsonl", TASKS)], false);
    let run = |args: &[&str]| shown(dir.path(), &super::r1(dir.path(), args).output().unwrap());
    insta::assert_snapshot!(run(&["data", "dedup", "tasks.jsonl", "--out", "clean.jsonl"]), @r##"
    exit: 0
    --- stdout
    4 rows, 1 equal to an earlier one
    clean.jsonl: 3 rows
    "##);
    let near = ["data", "dedup", "tasks.jsonl", "--near", "0.5", "--out", "clean.jsonl.zst", "--report", "pairs.jsonl"];
    insta::assert_snapshot!(run(&near), @r##"
    exit: 0
    --- stdout
    4 rows, 1 equal to an earlier one, 1 similar to one (at least 0.5)
    clean.jsonl.zst: 2 rows
    pairs.jsonl: the report
    "##);
    insta::assert_snapshot!(std::fs::read_to_string(dir.path().join("pairs.jsonl")).unwrap(), @r##"
    {"row":2,"of":0,"similarity":1.0,"place":"tasks.jsonl:3","of_place":"tasks.jsonl:1"}
    {"row":3,"of":1,"similarity":0.5238095238095238,"place":"tasks.jsonl:4","of_place":"tasks.jsonl:2"}
    "##);
    let kept = succeed(dir.path(), &["data", "show", "clean.jsonl.zst", "-n", "9", "--json"]);
    assert_eq!(kept.lines().count(), 2);
    insta::assert_snapshot!(run(&["data", "dedup", "tasks.jsonl", "--out", "x.jsonl", "--column", "problm"]), @r##"
    exit: 4
    --- stderr
    error: the row has no column `problm`
      --> tasks.jsonl:1
      hint: did you mean `problem`?
    "##);
    insta::assert_snapshot!(run(&["data", "dedup", "tasks.jsonl", "--out", "x.jsonl", "--near", "2"]), @r##"
    exit: 2
    --- stderr
    error: invalid value '2' for '--near [<SIMILARITY>]': must be a number above 0, at most 1

    For more information, try '--help'.
    "##);
}

#[test]
fn rows_that_overlap_with_evaluation_are_left_out() {
    let eval =
        "{\"question\": \"On Sunday, Bob sells 12 of his 30 pens on Monday and half of the rest on Tuesday, then?\"}\n";
    let dir = directory(&[("tasks.jsonl", TASKS), ("eval.jsonl", eval)], false);
    let run = |args: &[&str]| shown(dir.path(), &super::r1(dir.path(), args).output().unwrap());
    let clean = ["data", "decontaminate", "tasks.jsonl", "--against", "eval.jsonl", "--out", "clean.jsonl"];
    insta::assert_snapshot!(run(&clean), @r##"
    exit: 0
    --- stdout
    4 rows, 1 with a 13-gram of words of 1 of 1 evaluation rows
      tasks.jsonl:2 has "bob sells 12 of his 30 pens on monday and half of the" of eval.jsonl:1
    clean.jsonl: 3 rows
    "##);
    let overlaps = succeed(dir.path(), &[&clean[..], &["--ngram", "8", "--json", "--report", "rows.jsonl"]].concat());
    let overlaps: Value = serde_json::from_str(&overlaps).unwrap();
    assert_eq!((&overlaps["rows"], &overlaps["kept"]), (&json!(4), &json!(2)), "{overlaps}");
    assert_eq!(overlaps["overlaps"][1]["ngram"], "pens on monday and half of the rest");
    assert_eq!(std::fs::read_to_string(dir.path().join("rows.jsonl")).unwrap().lines().count(), 2);
    insta::assert_snapshot!(run(&["data", "decontaminate", "tasks.jsonl", "--against", "none.jsonl", "--out", "x.jsonl"]), @r##"
    exit: 4
    --- stderr
    error: can't read the dataset: no such file or directory
      --> none.jsonl
    "##);
    insta::assert_snapshot!(run(&["data", "decontaminate", "tasks.jsonl", "--against", "eval.jsonl"]), @r##"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      --out <FILE>

    Usage: r1 data decontaminate --against <FILE> --out <FILE> <FILE>...

    For more information, try '--help'.
    "##);
}

/// JSON has neither bytes nor NaN: files of r1 have an object in their place.
#[test]
fn columns_of_bytes_reach_the_script_if_they_are_named() {
    let rows = r#"{"problem": "a", "image": {"bytes": {"$r1": "bytes", "value": "/wD+"}, "path": "a.png"}, "x": {"$r1": "number", "value": "NaN"}}
{"problem": "b", "image": {"bytes": {"$r1": "bytes", "value": "AAAA"}, "path": "b.png"}, "x": 0.5}
"#;
    let recipe = |columns: &str| {
        format!(
            "return r1.recipe {{ env = r1.env {{ max_steps = 1,\n\
             reset = function(task)\n\
             local image = task.image or {{}}\n\
             print(task.problem, image.path, image.bytes and #image.bytes, tostring(task.x))\n\
             return {{ task = task, messages = {{ r1.user(task.problem) }} }} end,\n\
             step = function() return {{ done = true }} end }},\n\
             reward = function(state, outcome) return #outcome.text % 2 end, sampling = {{ max_new_tokens = 8 }},\n\
             data = {{ train = r1.data.parquet {{ path = 'rows.parquet', columns = {{ {columns} }} }} }},\n\
             trainer = r1.grpo {{ group_size = 2 }} }}"
        )
    };
    let files = [("rows.jsonl", rows), ("all.lua", &recipe("image = 'image'")), ("none.lua", &recipe(""))];
    let dir = directory(&files, false);
    let _ = succeed(dir.path(), &["data", "dedup", "rows.jsonl", "--out", "rows.parquet"]);
    let text = succeed(dir.path(), &["data", "show", "rows.parquet", "-n", "1"]);
    assert!(text.contains(r#"{"bytes":"3 bytes","path":"a.png"}"#), "{text}");
    let json = succeed(dir.path(), &["data", "show", "rows.parquet", "-n", "1", "--json"]);
    let [json, first]: [Value; 2] =
        [&json, rows.lines().next().unwrap()].map(|text| serde_json::from_str(text).unwrap());
    assert_eq!(json, first);
    let text = succeed(dir.path(), &["check", "all.lua"]);
    assert!(text.contains("a a.png 3 nan") && text.contains("b b.png 3 0.5"), "{text}");
    assert!(!text.contains("left out"), "{text}");
    let text = succeed(dir.path(), &["check", "none.lua"]);
    assert!(text.contains("a a.png nil nan"), "{text}");
    let note =
        "note (data): rows.parquet: bytes are left out of its rows: `image.bytes`; columns = { image = \"image\" }";
    assert!(text.contains(note), "{text}");
}
