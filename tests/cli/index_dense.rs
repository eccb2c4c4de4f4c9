//! `r1 index` with vectors: build, dense and hybrid search, damaged files, and other encoders.

use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::index::{posted, serving};
use super::{directory, fail, r1, succeed};

const HIDDEN: usize = 8;
const TOKENS: usize = 16;
/// Words and the unit vector of each: `river` and `stream` are synonyms.
const WORDS: [(&str, usize); 10] = [
    ("[PAD]", 7),
    ("[UNK]", 6),
    ("[CLS]", 7),
    ("[SEP]", 7),
    ("river", 0),
    ("stream", 0),
    ("hill", 1),
    ("mountain", 1),
    ("the", 2),
    ("query", 3),
];

const CORPUS: &str = r#"{"id": "a", "title": "Stream", "text": "the stream"}
{"id": "b", "text": "the mountain"}
{"id": "c", "text": "stream mountain mountain"}
"#;

/// Writes a BERT model with one layer that adds nothing to its word vectors.
fn encoder(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let config = json!({
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": WORDS.len(), "hidden_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4, "hidden_act": "gelu",
        "max_position_embeddings": TOKENS, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize], value: f32| {
        tensors.push((name.to_owned(), shape.to_vec(), vec![value; shape.iter().product()]));
    };
    add("embeddings.word_embeddings.weight", &[WORDS.len(), HIDDEN], 0.0);
    add("embeddings.position_embeddings.weight", &[TOKENS, HIDDEN], 0.0);
    add("embeddings.token_type_embeddings.weight", &[2, HIDDEN], 0.0);
    let layer = "encoder.layer.0";
    for norm in ["embeddings", &format!("{layer}.attention.output"), &format!("{layer}.output")] {
        add(&format!("{norm}.LayerNorm.weight"), &[HIDDEN], 1.0);
        add(&format!("{norm}.LayerNorm.bias"), &[HIDDEN], 0.0);
    }
    for (name, outputs, inputs) in [
        ("attention.self.query", HIDDEN, HIDDEN),
        ("attention.self.key", HIDDEN, HIDDEN),
        ("attention.self.value", HIDDEN, HIDDEN),
        ("attention.output.dense", HIDDEN, HIDDEN),
        ("intermediate.dense", 4, HIDDEN),
        ("output.dense", HIDDEN, 4),
    ] {
        add(&format!("{layer}.{name}.weight"), &[outputs, inputs], 0.0);
        add(&format!("{layer}.{name}.bias"), &[outputs], 0.0);
    }
    for (id, (_, at)) in WORDS.iter().enumerate() {
        tensors[0].2[id * HIDDEN + at] = 1.0;
    }
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let special = |id: usize| {
        json!({ "id": id, "content": WORDS[id].0, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let vocabulary: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, (word, _))| ((*word).to_owned(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": null,
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary },
    });
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// A directory with the index `i` and its encoder `encoder`.
fn built(options: &[&str]) -> tempfile::TempDir {
    let dir = directory(&[("c.jsonl", CORPUS)], false);
    encoder(&dir.path().join("encoder"));
    let build = ["index", "build", "c.jsonl", "--out", "i", "--encoder", "encoder"];
    succeed(dir.path(), &[&build, options].concat());
    dir
}

/// Three processes encode the passages of an index that one process could build: the same files.
#[test]
fn processes_divide_the_encoder() {
    let text =
        |number: usize| (0..number % 9).map(|at| WORDS[4 + (number * 3 + at) % 6].0).collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = (0..500).map(|number| json!({ "id": number, "text": text(number) }).to_string()).collect();
    let dir = directory(&[("c.jsonl", &rows.join("\n"))], false);
    encoder(&dir.path().join("encoder"));
    let build = ["index", "build", "c.jsonl", "--encoder", "encoder", "--hnsw", "--commit-every", "150", "--out"];
    succeed(dir.path(), &[&build[..], &["one"]].concat());
    succeed(dir.path(), &[&build[..], &["three", "--nproc", "3"]].concat());
    // The names of the inverted index's files are random.
    for file in ["dense/vectors.f32", "dense/hnsw.usearch", "documents.zst"] {
        let [one, three] = ["one", "three"].map(|index| fs::read(dir.path().join(index).join(file)).unwrap());
        assert!(!one.is_empty() && one == three, "{file}");
    }
    let text = fail(dir.path(), &["index", "build", "c.jsonl", "--out", "x", "--nproc", "2"]);
    shows(&text, "--nproc has no effect without --encoder");
}

/// Ids and scores of the hits.
fn hits(dir: &Path, query: &str, mode: &str) -> Vec<(String, f64)> {
    let output = r1(dir, &["index", "search", "i", query, "--mode", mode, "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let hits = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    hits.map(|hit| (hit["id"].as_str().unwrap().to_owned(), hit["score"].as_f64().unwrap())).collect()
}

fn ids(hits: &[(String, f64)]) -> Vec<&str> {
    hits.iter().map(|hit| hit.0.as_str()).collect()
}

fn shows(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

#[test]
fn r1_index_finds_synonyms_with_an_encoder() {
    for (vectors, size) in [("f32", 4), ("f16", 2)] {
        let dir = built(&["--vectors", vectors]);
        let dir = dir.path();
        assert!(hits(dir, "river", "sparse").is_empty());
        let dense_hits = hits(dir, "River", "dense");
        assert_eq!(ids(&dense_hits), ["a", "c", "b"]);
        assert!(
            dense_hits[0].1 <= 1.001 && dense_hits[0].1 > dense_hits[1].1 && dense_hits[1].1 > dense_hits[2].1,
            "{dense_hits:?}"
        );
        // The first one of both rankings.
        let fused = hits(dir, "stream river", "hybrid");
        assert!((fused[0].1 - 2.0 / 61.0).abs() < 1e-12 && fused[0].0 == "a", "{fused:?}");
        let info = succeed(dir, &["index", "info", "i"]);
        shows(&info, &format!("vectors of 8 numbers, {vectors}, cosine, pooling mean"));
        shows(&succeed(dir, &["index", "verify", "i"]), "files as they were written");
        assert_eq!(fs::metadata(dir.join(format!("i/dense/vectors.{vectors}"))).unwrap().len(), 3 * 8 * size);
    }
}

#[test]
fn pooling_prefixes_and_long_passages_of_an_encoder() {
    let dir = directory(&[("c.jsonl", CORPUS)], false);
    let dir = dir.path();
    encoder(&dir.join("encoder"));
    let long = format!("{{\"id\": \"d\", \"text\": \"{} river\"}}\n", "hill ".repeat(100));
    fs::write(dir.join("c.jsonl"), format!("{CORPUS}{long}")).unwrap();
    fs::create_dir(dir.join("encoder/1_Pooling")).unwrap();
    fs::write(dir.join("encoder/1_Pooling/config.json"), r#"{"pooling_mode_cls_token": true}"#).unwrap();
    let build = |options: &[&str]| {
        let build = ["index", "build", "c.jsonl", "--out", "i", "--overwrite", "--encoder", "encoder"];
        succeed(dir, &[&build, options].concat());
        succeed(dir, &["index", "info", "i"])
    };
    shows(&build(&[]), "pooling cls");
    // The first token is the same in all texts.
    assert!(hits(dir, "hill", "dense").iter().all(|hit| (hit.1 - 1.0).abs() < 1e-6));
    shows(&build(&["--pooling", "mean"]), "pooling mean");
    // The end of the long passage is cut.
    assert_eq!(ids(&hits(dir, "river", "dense"))[3], "d");
    let score = |id: &str| hits(dir, "hill", "dense").iter().find(|hit| hit.0 == id).unwrap().1;
    let plain = (score("a"), score("d"));
    build(&["--pooling", "mean", "--passage-prefix", "mountain mountain mountain "]);
    assert!(score("a") > plain.0, "mountains before the stream");
    shows(&build(&["--pooling", "mean", "--query-prefix", "query "]), "prefix \"query \"");
    assert!(score("d") < plain.1, "another word in the query");
}

#[test]
fn r1_index_refuses_bad_vectors_and_encoders() {
    let dir = built(&[]);
    let dir = dir.path();
    let build = |options: &[&str]| fail(dir, &[&["index", "build", "c.jsonl", "--out", "j"], options].concat());
    shows(&build(&["--encoder", "nowhere"]), "nowhere/config.json");
    shows(&build(&["--pooling", "mean"]), "--encoder <DIR>");
    shows(&build(&["--encoder", "encoder", "--pooling", "max"]), "[possible values: mean, cls, last]");
    let search = |query: &str| fail(dir, &["index", "search", "i", query, "--mode", "dense"]);
    shows(&search(" "), "the query is empty");
    let model = dir.join("encoder/model.safetensors");
    let weights = fs::read(&model).unwrap();
    let mut changed = weights.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&model, changed).unwrap();
    shows(&search("hill"), "the encoder is not the one with which the index was built");
    fs::write(&model, &weights[..weights.len() - 8]).unwrap();
    shows(&search("hill"), "model.safetensors");
    fs::write(&model, &weights).unwrap();
    let tokenizer = fs::read_to_string(dir.join("encoder/tokenizer.json")).unwrap();
    let mut bare: Value = serde_json::from_str(&tokenizer).unwrap();
    bare["post_processor"] = Value::Null;
    fs::write(dir.join("encoder/tokenizer.json"), bare.to_string()).unwrap();
    shows(&build(&["--encoder", "encoder"]), "does not put [CLS] and [SEP] around a text");
    fs::write(dir.join("encoder/tokenizer.json"), tokenizer).unwrap();
    let vectors = dir.join("i/dense/vectors.f32");
    let whole = fs::read(&vectors).unwrap();
    fs::write(&vectors, &whole[1..]).unwrap();
    shows(&search("hill"), "a file of the index has 95 bytes instead of 96");
    fs::remove_file(&vectors).unwrap();
    shows(&search("hill"), "a file of the index is missing");
    fs::write(&vectors, whole).unwrap();
    fs::rename(dir.join("encoder"), dir.join("moved")).unwrap();
    shows(&search("hill"), "the encoder of the index is missing");
    shows(
        &fail(dir, &["index", "serve", "i", "--port", "0", "--mode", "hybrid"]),
        "the encoder of the index is missing",
    );
    std::os::unix::fs::symlink(dir.join("moved"), dir.join("i/encoder")).unwrap();
    assert_eq!(ids(&hits(dir, "hill", "dense"))[0], "b");
}

#[test]
fn scripts_and_servers_search_with_vectors() {
    let dir = built(&[]);
    let dir = dir.path();
    let program = r#"
      local index = r1.index.open "i"
      local one = index:search("river", { mode = "dense", k = 1 })
      local many = index:search({ "hill", "" }, { mode = "hybrid", k = 2 })
      print(one[1].id, #many[1], many[1][1].id, #many[2])
    "#;
    let output = r1(dir, &["lua", "-e", program]).output().unwrap();
    assert_eq!(std::str::from_utf8(&output.stdout).unwrap(), "a\t2\tb\t0\n", "{output:?}");
    let (_server, address) = serving(dir, &["--mode", "dense"]);
    let text = posted(&address, "/retrieve", r#"{"queries": ["river", "hill"], "topk": 1}"#);
    let body: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&body["result"][0][0]["id"], &body["result"][1][0]["id"]), (&json!("a"), &json!("b")));
}

const RECIPE: &str = r#"
return r1.recipe {
  env = r1.env {
    format = "retool",
    tools = { r1.tools.search { index = "i", mode = "dense", k = 1 } },
    step = function(state, action)
      local result = r1.call_tools({ { name = "search", arguments = { query = "hill" } } })[1]
      return { reward = result.content:find("the mountain") and 1 or 0, done = true }
    end,
  },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 2, row = function(index) return { prompt = "x" } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 1, lr = 1e-3 },
}
"#;

#[test]
fn a_run_with_dense_search_needs_the_encoder_and_its_replay_does_not() {
    let dir = directory(&[("c.jsonl", CORPUS), ("a.lua", RECIPE)], true);
    let dir = dir.path();
    succeed(dir, &["index", "build", "c.jsonl", "--out", "i"]);
    shows(&fail(dir, &["run", "a.lua"]), "the index has no vectors, which the search mode `dense` needs");
    encoder(&dir.join("encoder"));
    succeed(dir, &["index", "build", "c.jsonl", "--out", "i", "--overwrite", "--encoder", "encoder"]);
    succeed(dir, &["run", "a.lua", "--name", "found", "-q"]);
    fs::remove_dir_all(dir.join("encoder")).unwrap();
    succeed(dir, &["replay", "found"]);
    shows(&fail(dir, &["run", "a.lua", "--name", "again"]), "the encoder of the index is missing");
}
