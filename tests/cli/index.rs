//! `r1 index`: build, info, verify and search.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::hub::server::{Repo, Server};
use super::hub::with_hub;
use super::{directory, fail, r1, ran, shown};

const CORPUS: &str = r#"{"id": "a", "title": "Rivers", "text": "The Danube flows through ten countries.", "year": 2001}
{"id": "b", "title": "Mountains", "text": "The Alps lie south of the Danube.", "year": 2002}
{"id": "c", "text": "Nothing here is about water."}
{"id": "d", "text": ""}
"#;

fn shows(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

fn built(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = directory(files, false);
    ran(dir.path(), &["index", "build", "c.jsonl", "--out", "i"]);
    dir
}

#[test]
fn r1_index_builds_shows_verifies_and_searches() {
    let dir = directory(&[("c.jsonl", CORPUS)], false);
    let without_size =
        |text: String| regex::Regex::new(r"[\d.]+ (KiB|bytes)").unwrap().replace_all(&text, "SIZE").into_owned();
    shows(&without_size(ran(dir.path(), &["index", "build", "c.jsonl", "--out", "i"])), "i: 3 passages, SIZE");
    shows(
        &without_size(ran(dir.path(), &["index", "info", "i"])),
        "sparse       BM25, k1 1.2, b 0.75, title boost 1, analyzer standard",
    );
    shows(&without_size(ran(dir.path(), &["index", "verify", "i"])), "files as they were written");
    shows(&ran(dir.path(), &["index", "search", "i", "danube countries"]), "  1  ");
    shows(&ran(dir.path(), &["index", "search", "i", "the DANUBE", "-k", "1", "--json"]), "\"rank\":1");
    shows(
        &ran(dir.path(), &["index", "search", "i", "alps", "-k", "1", "--json", "--text"]),
        "\"columns\":{\"year\":2002}",
    );
    shows(&ran(dir.path(), &["index", "search", "i", "zebra"]), "no passage has a word of the query");
    let info: Value = {
        let output = r1(dir.path(), &["index", "info", "i", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(info["counts"]["passages"], 3);
}

#[test]
fn r1_index_refuses_what_it_cannot_index_or_search() {
    let dir = built(&[
        ("c.jsonl", CORPUS),
        ("body.jsonl", "{\"id\": 1, \"body\": \"x\"}\n"),
        ("twice.jsonl", "{\"id\": 1, \"text\": \"x\"}\n\n{\"id\": \"1\", \"text\": \"y\"}\n"),
        ("broken.jsonl", "{\"id\": 1, \"text\": \"x\"}\n{\"id\": 2, \n"),
        ("none.jsonl", "{\"id\": 1, \"text\": \"\"}\n"),
    ]);
    std::fs::create_dir(dir.path().join("texts")).unwrap();
    std::fs::write(dir.path().join("texts/a.txt"), "x").unwrap();
    let failed = |args: &[&str]| fail(dir.path(), &[&["index"], args].concat());
    shows(&failed(&["build", "body.jsonl", "--out", "j"]), "the row has no column `text`");
    shows(&failed(&["build", "body.jsonl", "--text-field", "bdy", "--out", "j"]), "did you mean `body`?");
    shows(
        &failed(&["build", "twice.jsonl", "--out", "k"]),
        "that of an earlier passage, number 0\n  --> twice.jsonl:3",
    );
    shows(&failed(&["build", "broken.jsonl", "--out", "l"]), "broken.jsonl:2");
    shows(&failed(&["build", "none.jsonl", "--out", "m"]), "no row with a title or a text");
    shows(&failed(&["build", "missing.jsonl", "--out", "n"]), "missing.jsonl");
    shows(
        &failed(&["build", "texts", "--text-field", "x", "--out", "o"]),
        "a folder of text files, which have no columns",
    );
    shows(&failed(&["build", "c.jsonl", "--out", "i"]), "there is an index already");
    shows(&failed(&["build", "c.jsonl", "--out", "q", "--k1", "-1"]), "must be a number from 0 to 1000");
    shows(&failed(&["build", "c.jsonl", "--out", "q", "--analyzer", "englsh"]), "englsh");
    let device = failed(&["build", "c.jsonl", "--out", "q", "--device", "cpu"]);
    shows(&device, "--device has no effect without --encoder");
    shows(&failed(&["search", "i", " "]), "the query is empty");
    shows(&failed(&["search", "i", "x", "--mode", "dense"]), "the index has no vectors");
    shows(&failed(&["search", "nowhere", "x"]), "there is no such index");
    shows(&failed(&["info", "texts"]), "the directory is not a search index");
    std::fs::remove_file(dir.path().join("i/documents.zst")).unwrap();
    shows(&failed(&["verify", "i"]), "a file of the index is missing");
}

#[test]
fn r1_index_reads_folders_of_text_csv_and_compressed_lines() {
    let dir = directory(&[("c.csv", "id,title,text\n1,Rivers,about rivers\n2,Hills,\"about, hills\"\n")], false);
    std::fs::create_dir_all(dir.path().join("notes/deep")).unwrap();
    for (name, text) in [
        ("notes/deep/b.md", "intro\n# A heading\nabout rivers\n"),
        ("notes/a.txt", "about mountains"),
        ("notes/.hidden.md", "about nothing"),
        ("notes/c.bin", "\u{1}"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let search = |index: &str, query: &str| {
        let text = ran(dir.path(), &["index", "search", index, query, "--json"]);
        let lines = text.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| {
                let hit: Value = serde_json::from_str(line).unwrap();
                format!("{}: {}", hit["id"].as_str().unwrap(), hit["title"].as_str().unwrap())
            })
            .collect::<Vec<_>>()
    };
    ran(dir.path(), &["index", "build", "notes", "--out", "n"]);
    assert_eq!(search("n", "about rivers"), ["deep/b.md: A heading", "a.txt: a"]);
    ran(dir.path(), &["index", "build", "c.csv", "--out", "c"]);
    assert_eq!(search("c", "hills"), ["2: Hills"]);
    let packed = std::fs::File::create(dir.path().join("z.jsonl.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    packed.write_all(CORPUS.as_bytes()).unwrap();
    packed.finish().unwrap();
    ran(dir.path(), &["index", "build", "z.jsonl.gz", "--out", "z"]);
    assert_eq!(search("z", "alps"), ["b: Mountains"]);
}

#[test]
fn a_killed_index_build_is_resumed_and_gives_the_same_hits() {
    let dir = directory(&[], false);
    let rows: Vec<String> = (0..60_000)
        .map(|row| format!("{{\"id\": {row}, \"text\": \"row {row} of {} and {}\"}}", row % 97, row % 1009))
        .collect();
    std::fs::write(dir.path().join("c.jsonl"), rows.join("\n")).unwrap();
    let build = ["index", "build", "c.jsonl", "--commit-every", "500", "--out"];
    let mut child = r1(dir.path(), &[&build[..], &["i"]].concat()).spawn().unwrap();
    let meta = dir.path().join("i.part/sparse/meta.json");
    // Killed after a commit: its payload is in the file.
    while !std::fs::read_to_string(&meta).is_ok_and(|text| text.contains("passages")) {
        assert!(child.try_wait().unwrap().is_none(), "the build ended before it could be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fail(dir.path(), &["index", "search", "i", "row"]);
    assert!(text.contains("its build was interrupted"), "{text}");
    let output = r1(dir.path(), &[&build[..], &["i", "--json"]].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["resumed_at"].as_u64().unwrap() >= 500, "{report}");
    assert_eq!(report["counts"]["passages"], 60_000);
    ran(dir.path(), &[&build[..], &["whole"]].concat());
    for query in ["row 96 of 1008", "12345"] {
        let hits = |index: &str| ran(dir.path(), &["index", "search", index, query, "--json", "-k", "20"]);
        assert_eq!(hits("i"), hits("whole"), "{query}");
    }
    ran(dir.path(), &["index", "verify", "i"]);
}

/// A server that ends with the test.
pub(super) struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of the index `i`, and its address.
pub(super) fn serving(dir: &Path, more: &[&str]) -> (Serving, String) {
    let mut command = r1(dir, &[&["index", "serve", "i", "--port", "0", "--json"], more].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let reported: Value = serde_json::from_str(&line).unwrap();
    (Serving(child), reported["url"].as_str().unwrap().trim_start_matches("http://").to_owned())
}

fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub(super) fn posted(address: &str, path: &str, body: &str) -> String {
    let length = body.len();
    exchange(address, &format!("POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"))
}

#[test]
fn r1_index_serve_responds_over_http_until_it_is_interrupted() {
    let dir = built(&[("c.jsonl", CORPUS)]);
    let (mut child, address) = serving(dir.path(), &[]);
    let text = posted(&address, "/retrieve", r#"{"queries": ["alps"], "topk": 1, "return_scores": true}"#);
    let body: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["result"][0][0]["document"]["id"], "b");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("content-type: application/json"), "{text}");
    assert!(exchange(&address, "GET /health HTTP/1.0\r\n\r\n").contains("healthy"));
    assert!(posted(&address, "/retrieve", "{").starts_with("HTTP/1.1 422 "));
    assert!(posted(&address, "/elsewhere", "{}").starts_with("HTTP/1.1 404 "));
    // Many clients at once.
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope
                .spawn(|| assert!(posted(&address, "/search", r#"{"queries": ["danube"]}"#).contains("query_results")));
        }
    });
    let pid = child.0.id();
    assert!(std::process::Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
    assert!(child.0.wait().unwrap().success());
    // Its port is taken by another process.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let text = fail(dir.path(), &["index", "serve", "i", "--port", &port]);
    assert!(text.contains("can't listen on") && text.contains("--port 0"), "{text}");
}

const RECIPE: &str = r#"
local wiki = r1.index.open "i"
return r1.recipe {
  NEEDS
  env = r1.env {
    format = "retool",
    tools = { r1.tools.search { SOURCE, k = 1, cache = "run" } },
    reset = function(task) return { messages = { r1.user(wiki:search(task.prompt, { k = 1 })[1].id) }, task = task } end,
    step = function(state, action)
      local result = r1.call_tools({ { name = "search", arguments = { query = state.task.prompt } } })[1]
      return { reward = result.content:find("Alps") and 1 or 0, done = true }
    end,
  },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 4, row = function(index)
    return { prompt = index % 2 == 0 and "alps" or "countries" }
  end } },
  sampling = { max_new_tokens = 6 },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

#[test]
fn a_run_with_a_search_tool_is_replayed_and_rescored_without_the_index() {
    for remote in [false, true] {
        let dir = directory(&[("c.jsonl", CORPUS)], true);
        ran(dir.path(), &["index", "build", "c.jsonl", "--out", "i"]);
        let (child, address) = serving(dir.path(), &[]);
        let (source, needs) = if remote {
            (format!("url = 'http://{address}'"), format!("needs = {{ 'http:{address}' }},"))
        } else {
            ("index = 'i'".to_owned(), String::new())
        };
        let recipe = RECIPE.replace("SOURCE", &source).replace("NEEDS", &needs);
        std::fs::write(dir.path().join("a.lua"), &recipe).unwrap();
        ran(dir.path(), &["run", "a.lua"]);
        drop(child);
        std::fs::remove_dir_all(dir.path().join("i")).unwrap();
        let text = ran(dir.path(), &["replay", "a"]);
        assert!(text.contains("4 trajectories: every observation, reward and status as recorded"), "{text}");
        std::fs::write(dir.path().join("b.lua"), recipe.replace("and 1 or 0, done", "and 5 or 0, done")).unwrap();
        ran(dir.path(), &["rescore", "a", "--script", "b.lua"]);
        // A new run needs it.
        let text = fail(dir.path(), &["run", "a.lua", "--name", "again"]);
        assert!(text.contains("there is no such index"), "{text}");
    }
}

#[test]
fn r1_index_reads_a_dataset_of_the_hub() {
    let dir = directory(&[], false);
    let mut repo =
        Repo::new(&[("wiki/train.jsonl", CORPUS.as_bytes()), ("wiki/dev.jsonl", b"{\"id\": 1, \"text\": \"dev\"}\n")]);
    repo.kind = "datasets";
    let server = Server::start(repo);
    let run = |args: &[&str]| {
        let output = with_hub(dir.path(), &server, args).output().unwrap();
        (output.status.code(), shown(dir.path(), &output).replace(&server.url, "HUB"))
    };
    let (code, text) = run(&["index", "build", "--hf", "org/tiny", "--subset", "wiki", "--out", "i"]);
    assert!(code == Some(0) && text.contains("i: 3 passages"), "{text}");
    let (_, text) = run(&["index", "search", "i", "Danube countries", "-k", "1", "--json"]);
    assert!(text.contains("\"id\":\"a\""), "{text}");
    let (code, text) = run(&["index", "build", "--hf", "org/tiny", "--subset", "wiki", "--split", "dev", "--out", "j"]);
    assert!(code == Some(0) && text.contains("j: 1 passage"), "{text}");
    let (code, text) = run(&["index", "build", "--hf", "org/tiny", "--split", "test", "--out", "k"]);
    assert!(code != Some(0) && text.contains("no split `test`"), "{text}");
    let (code, text) = run(&["index", "build", "c.jsonl", "--hf", "org/tiny", "--out", "k"]);
    assert!(code == Some(2), "{text}");
}

#[test]
fn text_files_are_indexed_and_long_ones_split() {
    let long: String = (0..50).flat_map(|n| ["word".to_owned(), n.to_string(), " ".to_owned()]).collect();
    let dir = directory(
        &[("a.md", "# Apples\nred fruit"), ("b.txt", &long), ("c.jsonl", r#"{"id": 1, "text": "x"}"#)],
        false,
    );
    let text = ran(dir.path(), &["index", "build", "a.md", "b.txt", "--out", "texts", "--chunk-words", "20"]);
    assert!(text.contains("4 passages"), "{text}");
    let hits = ran(dir.path(), &["index", "search", "texts", "word45", "--json"]);
    assert!(hits.contains(r#""id":"b.txt#3""#), "{hits}");
    let hits = ran(dir.path(), &["index", "search", "texts", "fruit", "--json"]);
    assert!(hits.contains(r#""id":"a.md""#) && hits.contains("Apples"), "{hits}");
    let rows = ["index", "build", "c.jsonl", "--out", "rows"];
    let refused = |more: &[&str], message: &str| {
        let error = fail(dir.path(), &[&rows[..], more].concat());
        assert!(error.contains(message) && !dir.path().join("rows.part").exists(), "{error}");
    };
    refused(&["a.md"], "the corpus mixes text files with other files");
    refused(&["--chunk-words", "5", "--chunk-overlap", "5"], "--chunk-overlap is 5, and a chunk has 5 words");
    // An error in the first rows leaves nothing behind.
    std::fs::write(dir.path().join("c.jsonl"), "not JSON\n").unwrap();
    refused(&[], "the row is not JSON");
    std::fs::write(dir.path().join("c.jsonl"), r#"{"id": 1, "text": ""}"#).unwrap();
    refused(&[], "there is nothing to index");
}
