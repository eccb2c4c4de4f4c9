//! Vectors and scores of texts compared with sentence-transformers and transformers
//! (tests/golden/models/sentences.py), and files of models that are refused.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};
use tch::Tensor;

use super::sentence_modules::SentenceModules;
use super::tests::CPU;
use super::{CrossEncoder, EncoderSettings, load_encoder, tokenized};
use crate::error::Kind;
use crate::model::{Pooling, write_tensors};
use crate::search::{Passage, Reranker, Similarity};

fn golden() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/golden_sentences.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Numbers in [-1, 1) from a name, as make.py draws them.
fn uniform(name: &str, count: usize) -> Vec<f64> {
    let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let draw = |at: u64| {
        let x = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (1..=count as u64).map(draw).collect()
}

/// Writes a model: its files, and the weights of make.py.
fn write(dir: &Path, case: &Json) {
    let files: BTreeMap<String, String> = serde_json::from_value(case["files"].clone()).unwrap();
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let shapes: BTreeMap<String, Vec<i64>> = serde_json::from_value(case["checkpoint"].clone()).unwrap();
    let tensors = shapes.into_iter().map(|(name, shape)| {
        let key = name.to_lowercase();
        let (scale, offset) = match shape[..] {
            [_] => (0.25, if key.ends_with("norm.weight") { 1.0 } else { 0.0 }),
            _ if key.contains("embed") => (0.4, 0.0),
            _ => (2.0 / (shape[1] as f64).sqrt(), 0.0),
        };
        let count = shape.iter().product::<i64>() as usize;
        let values: Vec<f32> = uniform(&key, count).into_iter().map(|value| (value * scale + offset) as f32).collect();
        (name, Tensor::from_slice(&values).view(shape.as_slice()))
    });
    write_tensors(&dir.join("model.safetensors"), &tensors.collect::<Vec<_>>()).unwrap();
}

fn case(golden: &Json, name: &str) -> Json {
    golden["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap().clone()
}

fn largest(actual: &[f32], expected: &Json) -> f32 {
    let expected: Vec<f32> = match serde_json::from_value::<Vec<Vec<f32>>>(expected.clone()) {
        Ok(rows) => rows.concat(),
        Err(_) => serde_json::from_value(expected.clone()).unwrap(),
    };
    assert_eq!(actual.len(), expected.len());
    actual.iter().zip(expected).map(|(actual, expected)| (actual - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn vectors_of_texts_match_sentence_transformers() {
    let golden = golden();
    let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| !case["passages"].is_null()) {
        let (dir, name) = (tempfile::tempdir().unwrap(), case["name"].as_str().unwrap());
        write(dir.path(), case);
        let encoder = load_encoder(dir.path(), EncoderSettings::default(), CPU).unwrap();
        let options = encoder.options().clone();
        let (pooling, similarity) = match name {
            "bge-m3" => ("cls", Similarity::Cosine),
            "roberta" => ("mean", Similarity::Dot),
            "qwen3-embedding" => ("last", Similarity::Cosine),
            _ => ("mean", Similarity::Cosine),
        };
        assert_eq!((options.pooling.as_str(), options.similarity), (pooling, similarity), "{name}");
        for (prefix, vectors) in [(options.query_prefix, "query_vectors"), (options.passage_prefix, "passage_vectors")]
        {
            let prefixed: Vec<String> = texts.iter().map(|text| format!("{prefix}{text}")).collect();
            let worst = largest(&encoder.encode(&prefixed).unwrap(), &case[vectors]);
            assert!(worst < 1e-5, "{name}, {vectors}: {worst}");
        }
    }
}

#[test]
fn token_ids_of_unigram_and_byte_level_tokenizers_match_transformers() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| !case["passages"].is_null()) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), case);
        let modules = SentenceModules::read(dir.path(), 24).unwrap();
        let tokenizer = crate::text::Tokenizer::load(dir.path()).unwrap();
        for (prefix, rows) in [(modules.query_prompt, "queries"), (modules.passage_prompt, "passages")] {
            let ids = golden["texts"].as_array().unwrap().iter().map(|text| {
                let text = format!("{prefix}{}", text.as_str().unwrap());
                tokenizer.encode_truncated(&text, modules.max_tokens.unwrap()).unwrap()
            });
            assert_eq!(json!(ids.collect::<Vec<_>>()), case[rows], "{}, {rows}", case["name"]);
        }
    }
}

#[test]
fn scores_of_rerankers_match_transformers() {
    let golden = golden();
    let pairs: Vec<(String, String)> = serde_json::from_value(golden["pairs"].clone()).unwrap();
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| !case["scores"].is_null()) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), case);
        let reranker = CrossEncoder::load(dir.path(), CPU).unwrap();
        let score = |(query, text): &(String, String)| {
            let passage = Passage { text: text.clone(), ..Passage::default() };
            reranker.scores(query, &[passage]).unwrap()[0]
        };
        let worst = largest(&pairs.iter().map(score).collect::<Vec<_>>(), &case["scores"]);
        assert!(worst < 1e-5, "{}: {worst}", case["name"]);
    }
}

#[test]
fn a_question_is_cut_to_the_limit_and_its_answers_are_those_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &case(&golden(), "qwen3-reranker"));
    let passage = |text: String| [Passage { text, ..Passage::default() }];
    // The model has 700 positions. Of a longer text the end is left out, and the question stays.
    let reranker = CrossEncoder::load(dir.path(), CPU).unwrap();
    let long = "river ".repeat(1000);
    let scores = reranker.scores("x", &passage(long.clone())).unwrap();
    assert_eq!(scores, reranker.scores("x", &passage(format!("{long} the end"))).unwrap());
    let refusal = |module: Json, config: Json| {
        std::fs::write(dir.path().join("modules.json"), json!([module]).to_string()).unwrap();
        std::fs::create_dir_all(dir.path().join("1_LogitScore")).unwrap();
        std::fs::write(dir.path().join("1_LogitScore/config.json"), config.to_string()).unwrap();
        CrossEncoder::load(dir.path(), CPU).err().map(|error| error.message)
    };
    let tokenizer = crate::text::Tokenizer::load(dir.path()).unwrap();
    let [yes, no] = ["yes", "no"].map(|answer| tokenizer.id_of(answer).unwrap());
    let module = json!({ "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore" });
    assert_eq!(refusal(module.clone(), json!({ "true_token_id": yes, "false_token_id": no })), None);
    for config in [json!({ "true_token_id": no, "false_token_id": yes }), json!({ "true_token_id": yes })] {
        let error = refusal(module.clone(), config).unwrap();
        assert!(error.starts_with("the answers are not those of Qwen3-Reranker"), "{error}");
    }
}

#[test]
fn modules_that_change_vectors_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &case(&golden(), "bge-m3"));
    let read = |file: &str, text: &str| {
        let path = dir.path().join(file);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        let error = SentenceModules::read(dir.path(), 24).unwrap_err();
        std::fs::write(&path, before).unwrap();
        assert_eq!(error.kind, Kind::Model);
        error.message
    };
    let modules = |all: &[(&str, &str)]| {
        let module = |(class, path): &(&str, &str)| json!({ "path": path, "type": format!("sentence_transformers.models.{class}") });
        json!(all.iter().map(module).collect::<Vec<_>>()).to_string()
    };
    let (first, pooling) = (("Transformer", ""), ("Pooling", "1_Pooling"));
    for (all, expected) in [
        (&[first, pooling, ("Dense", "2_Dense")][..], "module 2 is Dense, which is not supported there"),
        (&[first, ("Normalize", ""), pooling], "module 1 is Normalize"),
        (&[first, pooling, pooling], "module 2 is Pooling"),
        (&[pooling], "module 0 is Pooling"),
        (&[("Transformer", "0_Transformer"), pooling], "the transformer is in the folder \"0_Transformer\""),
        (&[first, ("Pooling", "../1_Pooling")], "the path of Pooling is \"../1_Pooling\""),
        (&[first], "it has no Pooling"),
    ] {
        let error = read("modules.json", &modules(all));
        assert!(error.contains(expected), "{error}");
    }
    for (file, text, expected) in [
        ("1_Pooling/config.json", r#"{ "pooling_mode": "max" }"#, "the pooling of this model is not supported: max"),
        ("1_Pooling/config.json", r#"{ "pooling_mode": ["cls", "mean"] }"#, "not supported: cls, mean"),
        (
            "1_Pooling/config.json",
            r#"{ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true }"#,
            "cls_token",
        ),
        ("1_Pooling/config.json", "[]", "not supported: none"),
        ("1_Pooling/config.json", r#"{ "pooling_mode": "cls", "include_prompt": false }"#, "`include_prompt` is false"),
        (
            "1_Pooling/config.json",
            r#"{ "pooling_mode": "cls", "word_embedding_dimension": 25 }"#,
            "is 25, but the model has hidden states of 24 numbers",
        ),
        ("config_sentence_transformers.json", r#"{ "similarity_fn_name": "euclidean" }"#, "is \"euclidean\""),
        ("config_sentence_transformers.json", r#"{ "prompts": { "query": 1 } }"#, "the prompt `query` is 1"),
        (
            "config_sentence_transformers.json",
            r#"{ "prompts": {}, "default_prompt_name": "web" }"#,
            "`default_prompt_name` is \"web\", which is not in `prompts`",
        ),
        ("sentence_bert_config.json", r#"{ "max_seq_length": 0 }"#, "`max_seq_length` is 0"),
        ("sentence_bert_config.json", r#"{ "query_length": 8 }"#, "`query_length` is 8"),
        ("sentence_bert_config.json", "{", "is not JSON"),
    ] {
        let error = read(file, text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    std::fs::write(dir.path().join("sentence_bert_config.json"), r#"{ "do_lower_case": true }"#).unwrap();
    let error = load_encoder(dir.path(), EncoderSettings::default(), CPU).err().unwrap();
    assert!(error.message.contains("`do_lower_case` is true"), "{error}");
}

#[test]
fn the_files_of_sentence_transformers_are_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let read = || SentenceModules::read(dir.path(), 24).unwrap();
    assert_eq!(read(), SentenceModules::default());
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    let write = |file: &str, json: Json| std::fs::write(dir.path().join(file), json.to_string()).unwrap();
    for (config, expected) in [
        (json!({ "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false }), Pooling::Mean),
        (json!({ "pooling_mode_cls_token": true, "word_embedding_dimension": 24 }), Pooling::Cls),
        (json!({ "pooling_mode_lasttoken": true }), Pooling::Last),
        (json!({ "pooling_mode": "lasttoken", "include_prompt": true }), Pooling::Last),
    ] {
        write("1_Pooling/config.json", config);
        assert_eq!(read().pooling, Some(expected));
    }
    write("tokenizer_config.json", json!({ "model_max_length": 1e30 }));
    assert_eq!(read().max_tokens, None);
    write("tokenizer_config.json", json!({ "model_max_length": 30 }));
    assert_eq!(read().max_tokens, Some(30));
    write("sentence_bert_config.json", json!({ "max_seq_length": 20, "do_lower_case": false }));
    assert_eq!(read().max_tokens, Some(20));
    write("config_sentence_transformers.json", json!({ "prompts": { "passage": "p: ", "corpus": "c: " } }));
    assert_eq!((read().query_prompt, read().passage_prompt), (String::new(), "p: ".to_owned()));
}

#[test]
fn many_texts_are_tokenized_by_several_threads_in_their_order() {
    let numbers: Vec<usize> = (0..1000).collect();
    let expected: Vec<usize> = numbers.iter().map(|number| number * 2).collect();
    assert_eq!(tokenized(&numbers, |number| Ok(number * 2)).unwrap(), expected);
    let failing = |number: &usize| if *number == 700 { Err(crate::Error::new(Kind::Model, "no")) } else { Ok(()) };
    assert_eq!(tokenized(&numbers, failing).unwrap_err().message, "no");
}
