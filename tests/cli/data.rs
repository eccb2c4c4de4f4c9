//! `r1 data`: published datasets from a Hub in this process.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::hub::server::{Repo, Response, Server};
use super::hub::with_hub;
use super::recipe::recipe;
use super::run_files::read_json;
use super::{cli_snapshot, directory, fail, shown, succeed};

const COMMIT: &str = "740312add88f781978c0658806c59bc2815b9866";

/// GSM8K with two rows in each split.
fn gsm8k() -> Repo {
    let rows = |first: usize| {
        let row = |n: usize| format!("{{\"question\": \"{n}+1?\", \"answer\": \"{n}+1\\n#### 1,00{n}\"}}\n");
        [row(first), row(first + 1)].concat()
    };
    let mut repo = Repo::new(&[
        ("README.md", b"# GSM8K"),
        ("main/train-0.jsonl", rows(1).as_bytes()),
        ("main/test-0.jsonl", rows(3).as_bytes()),
        ("socratic/train-0.jsonl", b"{}"),
    ]);
    (repo.kind, repo.name, repo.commit) = ("datasets", "openai/gsm8k".to_owned(), COMMIT.to_owned());
    repo
}

fn get(dir: &Path, server: &Server, more: &[&str]) -> Output {
    with_hub(dir, server, &[&["data", "get"], more].concat()).output().unwrap()
}

fn text(dir: &Path, server: &Server, output: &Output) -> String {
    shown(dir, output).replace(&server.url, "HUB")
}

#[test]
fn a_published_dataset_is_downloaded_and_converted() {
    let dir = directory(&[], false);
    let server = Server::start(gsm8k());
    let output = get(dir.path(), &server, &["gsm8k"]);
    insta::assert_snapshot!(text(dir.path(), &server, &output), @r##"
    exit: 0
    --- stdout
    data/gsm8k/test.jsonl: 2 rows
    data/gsm8k/train.jsonl: 2 rows
    --- stderr
      gsm8k: openai/gsm8k, licence MIT, arXiv:2110.14168
      fetching gsm8k: 1 file, 0.0 MB
      fetching gsm8k: 1 file, 0.0 MB
    "##);
    let rows = std::fs::read_to_string(dir.path().join("data/gsm8k/train.jsonl")).unwrap();
    insta::assert_snapshot!(rows, @r##"
    {"problem":"1+1?","answer":"1001","solution":"1+1\n#### 1,001"}
    {"problem":"2+1?","answer":"1002","solution":"2+1\n#### 1,002"}
    "##);
    let record = read_json(dir.path().join("data/gsm8k/dataset.json"));
    assert_eq!((&record["commit"], &record["licence"]), (&COMMIT.into(), &"MIT".into()));
    // Files at the pinned commit are not requested again.
    let before = server.requests().len();
    let output = get(dir.path(), &server, &["gsm8k", "--split", "test"]);
    insta::assert_snapshot!(text(dir.path(), &server, &output), @r##"
    exit: 0
    --- stdout
    data/gsm8k/test.jsonl: 2 rows, already there at 740312add88f
    --- stderr
      gsm8k: openai/gsm8k, licence MIT, arXiv:2110.14168
    "##);
    assert_eq!(server.requests().len(), before);
    // A lost file is written again from the cache, as Parquet if wanted.
    std::fs::remove_file(dir.path().join("data/gsm8k/test.jsonl")).unwrap();
    let output = get(dir.path(), &server, &["gsm8k", "--split=test", "--format=parquet", "--json"]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["splits"]["test"]["rows"], &printed["commit"]), (&2.into(), &COMMIT.into()));
    assert!(dir.path().join("data/gsm8k/test.parquet").is_file());
    assert!(!server.lines(false).iter().skip(before).any(|line| line.starts_with("GET") && line.contains("test-0")));
}

#[test]
fn an_interrupted_download_continues_and_leaves_no_half_file() {
    let dir = directory(&[], false);
    // The connection breaks within the file, and then the server fails for good.
    let server = Server::changed(gsm8k(), |request, before, mut response| {
        if request.method == "GET" && request.path.contains("train-0") {
            if before > 0 {
                return Response::new(403, "");
            }
            response.cut = Some(20);
        }
        response
    });
    let output = get(dir.path(), &server, &["gsm8k", "--split", "train"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(dir.path(), &server, &output));
    assert!(!dir.path().join("data/gsm8k/train.jsonl").exists());
    let server = Server::start(gsm8k());
    let output = get(dir.path(), &server, &["gsm8k", "--split", "train"]);
    assert!(output.status.success(), "{}", text(dir.path(), &server, &output));
    let ranges: Vec<String> =
        server.requests().iter().filter_map(|request| request.headers.get("range").cloned()).collect();
    assert_eq!(ranges, ["bytes=20-"]);
}

#[test]
fn other_revisions_are_resolved_and_recorded() {
    let dir = directory(&[], false);
    let mut repo = gsm8k();
    repo.commit = "f".repeat(40);
    let server = Server::start(repo);
    let output = get(dir.path(), &server, &["gsm8k@main", "--out", "sets", "--split", "train"]);
    assert!(output.status.success(), "{}", text(dir.path(), &server, &output));
    assert_eq!(read_json(dir.path().join("sets/dataset.json"))["commit"], "f".repeat(40));
    // The Hub no longer has the pinned commit.
    let output = get(dir.path(), &server, &["gsm8k"]);
    insta::assert_snapshot!(text(dir.path(), &server, &output), @r##"
    exit: 4
    --- stderr
      gsm8k: openai/gsm8k, licence MIT, arXiv:2110.14168
    error: `openai/gsm8k` has no revision `740312add88f781978c0658806c59bc2815b9866`
      hint: its branches and tags are at HUB/datasets/openai/gsm8k/tree/main
    "##);
}

#[test]
fn repeated_rows_of_a_source_are_written_once() {
    let dir = directory(&[], false);
    let row = |n: usize| {
        let prompt = format!("Problem {n}");
        let row = serde_json::json!({
            "data_source": "math_dapo", "prompt": [{ "role": "user", "content": prompt }], "ability": "MATH",
            "reward_model": { "ground_truth": n.to_string(), "style": "rule-lighteval/MATH_v2" },
            "extra_info": { "index": format!("id-{n}") },
        });
        format!("{row}\n")
    };
    let rows = [row(1), row(2), row(1), row(1)].concat();
    let mut repo = Repo::new(&[("data/dapo-math-17k.jsonl", rows.as_bytes())]);
    (repo.kind, repo.name) = ("datasets", "BytedTsinghua-SIA/DAPO-Math-17k".to_owned());
    repo.commit = "65877096c24ffa7abc4e4fa5edb95cf3413a5674".to_owned();
    let server = Server::start(repo);
    let output = get(dir.path(), &server, &["dapo-math-17k", "-q"]);
    insta::assert_snapshot!(text(dir.path(), &server, &output), @r##"
    exit: 0
    --- stdout
    data/dapo-math-17k/train.jsonl: 2 rows (2 repeated ones left out)
    "##);
    let rows = std::fs::read_to_string(dir.path().join("data/dapo-math-17k/train.jsonl")).unwrap();
    insta::assert_snapshot!(rows, @r##"
    {"problem":"Problem 1","answer":"1"}
    {"problem":"Problem 2","answer":"2"}
    "##);
}

#[test]
fn changed_columns_of_a_source_are_an_error_with_the_nearest_name() {
    let dir = directory(&[], false);
    let mut repo = gsm8k();
    repo.files[1].1 = b"{\"questions\": \"1+1?\", \"answer\": \"#### 2\"}\n".to_vec();
    let server = Server::start(repo);
    let output = get(dir.path(), &server, &["gsm8k", "-q"]);
    insta::assert_snapshot!(text(dir.path(), &server, &output), @r##"
    exit: 4
    --- stderr
    error: the row has no column `question`
      --> [dir]/hf/hub/datasets--openai--gsm8k/snapshots/740312add88f781978c0658806c59bc2815b9866/main/train-0.jsonl:1
      hint: did you mean `questions`?
    "##);
}

#[test]
fn unknown_datasets_splits_and_files_are_errors() {
    cli_snapshot!(["data", "get", "gsm8"], @r##"
    exit: 2
    --- stderr
    error: there is no dataset `gsm8`
      hint: did you mean `gsm8k`?; r1 data list shows all; another dataset of the Hub is data.train.hf=ORG/NAME
    "##);
    cli_snapshot!(["data", "get", "gsm8k", "--split", "tset"], @r##"
    exit: 2
    --- stderr
      gsm8k: openai/gsm8k, licence MIT, arXiv:2110.14168
    error: gsm8k has no split `tset`
      --> --split
      hint: did you mean `test`?
    "##);
    cli_snapshot!({ "here" => "" }, ["data", "get", "gsm8k", "--out", "here"], @r##"
    exit: 2
    --- stderr
    error: this is a file; the dataset is written to a folder
      --> here
      hint: as in --out data
    "##);
}

#[test]
fn the_list_has_every_dataset() {
    let dir = directory(&[], false);
    let text = succeed(dir.path(), &["data", "list"]);
    assert!(text.contains("gsm8k              grade-school word problems\n"), "{text}");
    assert!(text.contains("licence  MIT\n") && text.contains("from     openai/gsm8k@740312add88f (arXiv:"), "{text}");
    let all: Value = serde_json::from_str(&succeed(dir.path(), &["data", "list", "--json"])).unwrap();
    let names: Vec<&str> =
        all["datasets"].as_array().unwrap().iter().map(|dataset| dataset["name"].as_str().unwrap()).collect();
    for name in ["gsm8k", "math-500", "dapo-math-17k", "aime24", "hotpotqa", "2wikimultihopqa", "musique"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for name in ["wikitablequestions", "tabfact", "countdown", "metamathqa", "autoscholarquery"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn a_missing_dataset_of_a_recipe_names_the_command_that_fetches_it() {
    let recipe = recipe(&[("data", "{ train = 'data/gsm8k/train.jsonl' }")]);
    let dir = directory(&[("a.lua", &recipe)], true);
    let error = fail(dir.path(), &["run", "a.lua", "policy.model=model"]);
    insta::assert_snapshot!(error, @r##"
    error: can't read the dataset: no such file or directory
      --> data/gsm8k/train.jsonl
      hint: r1 data get gsm8k downloads it
    "##);
}
