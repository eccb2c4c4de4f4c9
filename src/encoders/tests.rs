//! BERT checkpoints as encoders of an index, and as cross-encoders, with a small tokenizer and
//! random weights: what is encoded, pooled and normalised, and how hits are ranked again.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tch::Tensor;

use super::{Checkpoints, CrossEncoder, EncoderSettings, load_encoder};
use crate::error::Kind;
use crate::model::{self, Pair, Pooling, write_tensors};
use crate::search::{
    BuildOptions, Builder, DenseOptions, Index, Mode, Passage, PassageFields, RerankOptions, Reranker, SearchOptions,
    Similarity, VectorType,
};
use crate::text::Tokenizer;
use r1_base::{DeviceChoice, Dtype};

pub(super) const CPU: Checkpoints = Checkpoints { device: DeviceChoice::Cpu, dtype: Dtype::F32 };

/// Builds an index of rows.
fn build(out: &Path, options: BuildOptions, rows: &[Json]) {
    let mut builder = Builder::begin(out, options, false, false).unwrap();
    for (number, row) in (0..).zip(rows) {
        builder.add(&PassageFields::default().passage(number, row.as_object().unwrap().clone()).unwrap()).unwrap();
    }
    builder.finish().unwrap();
}

/// The cases of tests/golden/models/make.py: shapes of a checkpoint, and pairs of texts.
fn golden() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/golden_cross.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A directory with a model of these keys, and a tokenizer of the words `w0` to `w39`.
fn model(dir: &Path, name: &str, keep: impl Fn(&str) -> Option<String>) -> PathBuf {
    let golden = golden();
    let case = &golden["cases"][0];
    let out = dir.join(name);
    std::fs::create_dir(&out).unwrap();
    let shapes: std::collections::BTreeMap<String, Vec<i64>> =
        serde_json::from_value(case["checkpoint"].clone()).unwrap();
    let tensor = |(name, shape): (String, Vec<i64>)| {
        let name = keep(&name)?;
        let mut state = name.bytes().fold(7_u64, |state, byte| state.wrapping_mul(31) + u64::from(byte));
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f32 / (1_u64 << 30) as f32 - 1.0
        };
        let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|_| draw()).collect();
        let values = Tensor::from_slice(&values).view(shape.as_slice()) * 0.5;
        Some((name.clone(), if name.ends_with("LayerNorm.weight") { values + 1.0 } else { values }))
    };
    let tensors: Vec<(String, Tensor)> = shapes.into_iter().filter_map(tensor).collect();
    write_tensors(&out.join("model.safetensors"), &tensors).unwrap();
    std::fs::write(out.join("config.json"), case["config"].to_string()).unwrap();
    std::fs::write(out.join("tokenizer.json"), golden["pairs"]["tokenizer"].to_string()).unwrap();
    out
}

fn encoder(dir: &Path) -> PathBuf {
    model(dir, "encoder", |name| name.strip_prefix("bert.").map(str::to_owned))
}

fn cross_encoder(dir: &Path) -> PathBuf {
    model(dir, "cross", |name| Some(name.to_owned()))
}

fn corpus() -> Vec<Json> {
    let text = |number: usize| {
        let terms: Vec<String> =
            (0..3 + number % 5).map(|index| format!("w{}", (number * 7 + index * 3) % 40)).collect();
        terms.join(" ")
    };
    (0..30).map(|number| json!({ "id": number, "title": format!("w{number}"), "text": text(number) })).collect()
}

#[test]
fn pairs_of_texts_are_cut_as_by_transformers() {
    let golden = golden();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), golden["pairs"]["tokenizer"].to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    for case in golden["pairs"]["cases"].as_array().unwrap() {
        let (first, second) = (case["texts"][0].as_str().unwrap(), case["texts"][1].as_str().unwrap());
        let limit = case["most"].as_u64().unwrap() as usize;
        let (ids, types) = tokenizer.encode_pair(first, second, limit).unwrap();
        assert_eq!((json!(ids), json!(types)), (case["ids"].clone(), case["types"].clone()), "{case}");
    }
    let error = tokenizer.encode_pair("w1", "w2", 3).unwrap_err().message;
    assert_eq!(error, "can't encode two texts of 4 bytes: there is no room for them");
}

#[test]
fn encoders_pool_tokens_and_normalise_as_their_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let directory = encoder(dir.path());
    let layers = model::Encoder::load(&directory, DeviceChoice::Cpu, Dtype::F32).unwrap();
    let rows: [&[u32]; 2] = [&[2, 5, 6, 7, 3], &[2, 30, 3]];
    let texts = ["w1 w2 w3".to_owned(), "w26".to_owned()];
    for pooling in [Pooling::Mean, Pooling::Cls] {
        let expected = layers.encode(&rows, pooling).unwrap();
        for similarity in [Similarity::Cosine, Similarity::Dot] {
            let settings =
                EncoderSettings { pooling: Some(pooling), similarity: Some(similarity), ..EncoderSettings::default() };
            let encoder = load_encoder(&directory, settings, CPU).unwrap();
            assert_eq!(encoder.options().pooling, pooling.name());
            let actual = encoder.encode(&texts).unwrap();
            for (actual, expected) in actual.chunks(24).zip(expected.chunks(24)) {
                let length = expected.iter().map(|number| number * number).sum::<f32>().sqrt();
                assert!((length - 1.0).abs() > 0.1, "{length}");
                let scale = if similarity == Similarity::Cosine { length } else { 1.0 };
                let apart = actual.iter().zip(expected).map(|(a, b)| (a - b / scale).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-6, "{} {}: {apart}", pooling.name(), similarity.name());
            }
        }
    }
    let (mean, cls) = (layers.encode(&rows, Pooling::Mean).unwrap(), layers.encode(&rows, Pooling::Cls).unwrap());
    assert!(mean.iter().zip(&cls).any(|(one, other)| (one - other).abs() > 0.01));
    // The pooling of the model's files is the default.
    std::fs::create_dir(directory.join("1_Pooling")).unwrap();
    std::fs::write(directory.join("1_Pooling/config.json"), "{\"pooling_mode\": \"cls\"}").unwrap();
    assert_eq!(load_encoder(&directory, EncoderSettings::default(), CPU).unwrap().options().pooling, "cls");
}

#[test]
fn queries_and_passages_are_encoded_with_their_own_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let directory = encoder(dir.path());
    let settings = EncoderSettings {
        query_prefix: Some("w30 ".to_owned()),
        passage_prefix: Some("w31 w32 ".to_owned()),
        ..EncoderSettings::default()
    };
    let encoder = load_encoder(&directory, settings, CPU).unwrap();
    let dense = DenseOptions { encoder: encoder.clone(), vectors: VectorType::F32, hnsw: None };
    let out = dir.path().join("i");
    build(&out, BuildOptions { dense: Some(dense), ..BuildOptions::default() }, &corpus());
    // The index names its encoder.
    let hits = Index::open_with(&out, &CPU).unwrap().search("w4 w9", 30, Mode::Dense).unwrap();
    assert_eq!(hits.len(), 30);
    let vector = |text: String| encoder.encode(&[text]).unwrap();
    let query = vector("w30 w4 w9".to_owned());
    for hit in hits {
        let passage = vector(format!("w31 w32 {} {}", hit.title, hit.text));
        let cosine: f64 = query.iter().zip(&passage).map(|(one, other)| f64::from(one * other)).sum();
        assert!((cosine - hit.score).abs() < 1e-5, "{cosine} {hit:?}");
    }
}

#[test]
fn a_score_that_is_not_finite_is_an_error_of_the_cross_encoder() {
    let dir = tempfile::tempdir().unwrap();
    let directory = cross_encoder(dir.path());
    let passages = [Passage { text: "w1".to_owned(), ..Passage::default() }];
    assert_eq!(CrossEncoder::load(&directory, CPU).unwrap().scores("w2", &passages).unwrap().len(), 1);
    for value in [f32::INFINITY, f32::NAN] {
        let weights = directory.join("model.safetensors");
        let mut tensors = Tensor::read_safetensors(&weights).unwrap();
        for (name, tensor) in &mut tensors {
            if name == "classifier.bias" {
                *tensor = tensor.full_like(f64::from(value));
            }
        }
        write_tensors(&weights, &tensors).unwrap();
        let error = CrossEncoder::load(&directory, CPU).unwrap().scores("w2", &passages).unwrap_err();
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Kind::Numeric, "the cross-encoder returned a score that is not finite")
        );
    }
}

#[test]
fn cross_encoders_are_shared_and_their_limits_and_tokenizers_checked() {
    let dir = tempfile::tempdir().unwrap();
    let directory = cross_encoder(dir.path());
    let shared = CrossEncoder::shared(&directory, CPU).unwrap();
    assert!(Arc::ptr_eq(&shared, &CrossEncoder::shared(&directory.join("."), CPU).unwrap()));
    // The model has 40 positions; the file of sentence-transformers may name more.
    let passages = [Passage { text: "w1 ".repeat(60), ..Passage::default() }];
    let scores = shared.scores("w2", &passages).unwrap();
    std::fs::write(directory.join("sentence_bert_config.json"), r#"{ "max_seq_length": 512 }"#).unwrap();
    assert_eq!(CrossEncoder::load(&directory, CPU).unwrap().scores("w2", &passages).unwrap(), scores);
    let path = directory.join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path).unwrap();
    let same = tokenizer.replace("\"type_id\":1", "\"type_id\":0");
    assert_ne!(tokenizer, same);
    std::fs::write(&path, same).unwrap();
    let error = CrossEncoder::load(&directory, CPU).err().unwrap();
    assert!(error.message.contains("the second with type 1"), "{error}");
}

#[test]
fn reranked_hits_have_the_order_and_scores_of_the_cross_encoder() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, out) = (cross_encoder(dir.path()), dir.path().join("i"));
    build(&out, BuildOptions::default(), &corpus());
    let index = Index::open_with(&out, &CPU).unwrap();
    let query = "w4 w7 w10 w13";
    let first = index.search(query, 1000, Mode::Sparse).unwrap();
    assert!(first.len() > 6, "{}", first.len());
    let (scorer, tokenizer) = (
        model::CrossEncoderModel::load(&directory, DeviceChoice::Cpu, Dtype::F32).unwrap(),
        Tokenizer::load(&directory).unwrap(),
    );
    let mut expected: Vec<(String, f64)> = first
        .iter()
        .map(|hit| {
            let (ids, types) = tokenizer.encode_pair(query, &format!("{} {}", hit.title, hit.text), 40).unwrap();
            (hit.id.clone(), f64::from(scorer.scores(&[Pair { ids, types }], [0; 2]).unwrap()[0]))
        })
        .collect();
    expected.sort_by(|one, other| other.1.total_cmp(&one.1));
    let with = |k: usize, top: Option<usize>| SearchOptions {
        rerank: Some(RerankOptions { model: directory.clone(), top }),
        ..SearchOptions::new(k, Mode::Sparse)
    };
    // Two queries, the second without hits.
    let mut actual = index.search_all(&[query, "absent"], &with(5, Some(first.len()))).unwrap();
    assert!(actual.pop().unwrap().is_empty());
    let actual = actual.pop().unwrap();
    assert_eq!(actual.iter().map(|hit| hit.rank).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for (hit, (id, score)) in actual.iter().zip(&expected) {
        assert_eq!(hit.id, *id);
        assert!((hit.score - score).abs() < 1e-5, "{score} {hit:?}");
    }
    assert_ne!(
        actual.iter().map(|hit| &hit.id).collect::<Vec<_>>(),
        first[..5].iter().map(|hit| &hit.id).collect::<Vec<_>>()
    );
    // Only the best `top` are read again.
    let mut few: Vec<String> =
        index.search_all(&[query], &with(3, Some(3))).unwrap().remove(0).into_iter().map(|hit| hit.id).collect();
    few.sort();
    let mut best: Vec<String> = first[..3].iter().map(|hit| hit.id.clone()).collect();
    best.sort();
    assert_eq!(few, best);
    // By default 50, or `k` if that is more.
    assert_eq!(index.search_all(&[query], &with(1000, None)).unwrap()[0].len(), first.len());

    let refused = |k: usize, top: usize| index.search_all(&[query], &with(k, Some(top))).unwrap_err().message;
    assert_eq!(refused(5, 4), "`top` is 4, which is below the number of hits, 5");
    assert_eq!(refused(5, 1001), "`top` is 1001; at most 1000 passages are ranked again");
    let other = encoder(dir.path());
    let wrong = SearchOptions {
        rerank: Some(RerankOptions { model: other, top: None }),
        ..SearchOptions::new(1, Mode::Sparse)
    };
    assert_eq!(index.check(&wrong).unwrap_err().message, "`classifier.weight` is missing in the weights");
    assert_eq!(CrossEncoder::load(&directory, CPU).unwrap().sha256().len(), 64);
}
