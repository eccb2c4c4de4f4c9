//! Vectors of an index: exact search, fusion, resumed builds, damaged files, and other encoders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::super::{
    BuildOptions, Builder, DenseOptions, EncoderOptions, FUSION_CONSTANT, Index, Manifest, Mode, NoModels,
    PassageFields, SearchOptions, Similarity, TextEncoder, VectorType, reciprocal_rank_fusion, verify,
};
use super::{Encoders, build, options, rows};
use r1_base::error::{Error, Kind, Result};

const WORDS: [&str; 5] = ["river", "hill", "sea", "road", "query:"];

/// Counts words. Its identity is the content of the file `id`, its dimension the number in the file
/// `dimension`.
struct Counts {
    directory: PathBuf,
    sha256: String,
    dimension: usize,
    options: EncoderOptions,
}

impl TextEncoder for Counts {
    fn sha256(&self) -> &str {
        &self.sha256
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn options(&self) -> &EncoderOptions {
        &self.options
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        let vector = |text: &String| {
            let count = |word: &&str| text.split_whitespace().filter(|other| other == word).count() as f32;
            let mut vector: Vec<f32> = WORDS.iter().map(count).collect();
            // Makes texts with the same words differ, and some scores negative.
            vector[3] -= text.len() as f32 / 50.0;
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            for number in &mut vector {
                *number /= length;
            }
            vector.truncate(self.dimension);
            vector
        };
        Ok(texts.iter().flat_map(vector).collect())
    }
}

fn load(directory: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).map_err(|error| Error::io(Kind::Model, "read", &path, &error))
    };
    let (directory, options) = (directory.to_owned(), options.clone());
    Ok(Arc::new(Counts { sha256: read("id")?, dimension: read("dimension")?.parse().unwrap(), directory, options }))
}

fn open(index: &Path) -> Result<Index> {
    const MODELS: Encoders = Encoders(load);
    Index::open_with(index, &MODELS)
}

/// A directory with the encoder `encoder`.
fn with_encoder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("encoder")).unwrap();
    std::fs::write(dir.path().join("encoder/id"), "first").unwrap();
    std::fs::write(dir.path().join("encoder/dimension"), "5").unwrap();
    dir
}

fn dense(dir: &Path, vectors: VectorType) -> BuildOptions {
    let encoder = EncoderOptions {
        pooling: "mean".to_owned(),
        query_prefix: "query: ".to_owned(),
        passage_prefix: String::new(),
        max_tokens: 9,
        similarity: Similarity::Cosine,
    };
    let encoder = load(&dir.join("encoder"), &encoder).unwrap();
    BuildOptions { dense: Some(DenseOptions { encoder, vectors, hnsw: None }), commit_every: 70, ..options() }
}

fn corpus(passages: usize) -> Vec<Json> {
    let text = |number: usize| {
        let terms = (0..number % 7).map(|index| WORDS[(number * 5 + index * index) % 4]);
        format!("{number} {}", terms.collect::<Vec<_>>().join(" "))
    };
    rows(&(0..passages).map(text).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>())
}

fn hits_of(index: &Index, query: &str, k: usize, mode: Mode) -> Vec<(u64, f64)> {
    let hits = index.search(query, k, mode).unwrap();
    assert!(hits.iter().enumerate().all(|(position, hit)| hit.rank == position + 1));
    hits.into_iter().map(|hit| (hit.id.parse().unwrap(), hit.score)).collect()
}

/// Inner products of all passages with the query, best first.
fn expected(rows: &[Json], encoder: &dyn TextEncoder, query: &str) -> Vec<(u64, f64)> {
    let vector = |text: String| encoder.encode(&[text]).unwrap();
    let query = vector(format!("query: {query}"));
    let score = |row: &Json| {
        let embedding = vector(row["text"].as_str().unwrap().to_owned());
        embedding.iter().zip(&query).map(|(one, other)| f64::from(one * other)).sum::<f64>()
    };
    let mut all: Vec<(u64, f64)> = rows.iter().enumerate().map(|(at, row)| (at as u64, score(row))).collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all
}

#[test]
fn dense_search_ranks_all_passages_by_inner_product() {
    let dir = with_encoder();
    let rows = corpus(150);
    for (vectors, tolerance) in [(VectorType::F32, 1e-6), (VectorType::F16, 2e-3)] {
        let options = dense(dir.path(), vectors);
        let encoder = Arc::clone(&options.dense.as_ref().unwrap().encoder);
        let out = dir.path().join(vectors.name());
        let manifest = build(&out, options, &rows).unwrap().manifest;
        let part = manifest.parts.dense.unwrap();
        let bytes = if vectors == VectorType::F32 { 4 } else { 2 };
        assert_eq!((part.dimension, part.files[0].bytes), (5, 150 * 5 * bytes));
        assert!(verify(&out, |_| true).unwrap().is_empty());
        let index = open(&out).unwrap();
        let actual = hits_of(&index, "sea and river", 150, Mode::Dense);
        let expected = expected(&rows, &*encoder, "sea and river");
        assert_eq!(actual.len(), 150, "passages with negative scores are ranked too");
        assert!(actual[149].1 < 0.0);
        for ((_, actual), (_, expected)) in actual.iter().zip(&expected) {
            assert!((actual - expected).abs() < tolerance, "{actual} {expected}");
        }
    }
}

/// A search of vectors needs a loader of models, and the error names the call that gives one.
#[test]
fn an_index_that_is_opened_without_models_is_searched_by_words_alone() {
    const MODELS: Encoders = Encoders(load);
    let dir = with_encoder();
    let out = dir.path().join("i");
    build(&out, dense(dir.path(), VectorType::F32), &corpus(9)).unwrap();
    let index = Index::open(&out).unwrap();
    assert!(!index.search("river", 3, Mode::Sparse).unwrap().is_empty());
    for mode in [Mode::Dense, Mode::Hybrid] {
        let error = index.search("river", 3, mode).unwrap_err();
        assert!(error.hint.unwrap().contains("Index::open_with(…, &r1::encoders::Checkpoints)"));
        assert!(error.message.contains("gives it no way to load one"), "{}", error.message);
    }
    // Searches that share an index have the same models.
    let (with, without) = (Index::shared(&out, &MODELS).unwrap(), Index::shared(&out, &NoModels).unwrap());
    assert!(!Arc::ptr_eq(&with, &without));
    assert_eq!(with.search("river", 3, Mode::Dense).unwrap().len(), 3);
}

#[test]
fn dense_searches_of_many_queries_equal_those_of_each() {
    let dir = with_encoder();
    build(&dir.path().join("i"), dense(dir.path(), VectorType::F32), &corpus(3001)).unwrap();
    let index = open(&dir.path().join("i")).unwrap();
    // Enough work for several threads.
    let queries: Vec<String> = (0..300).map(|number| format!("{} {number} hill", WORDS[number % 4])).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    let all = index.search_all(&queries, &SearchOptions::new(7, Mode::Dense)).unwrap();
    for (query, hits) in queries.iter().zip(&all).step_by(11) {
        assert_eq!(*hits, index.search(query, 7, Mode::Dense).unwrap(), "{query}");
    }
    // An empty query has no hits, and does not shift the hits of the others.
    let some = index.search_all(&["", queries[1], " \n"], &SearchOptions::new(7, Mode::Dense)).unwrap();
    assert_eq!(some, [Vec::new(), all[1].clone(), Vec::new()]);
    assert!(index.search("", 7, Mode::Hybrid).unwrap().is_empty());
    let refused = |query: &str, k: usize| index.search(query, k, Mode::Dense).unwrap_err().message;
    assert_eq!(refused("hill", 0), "k is 0; it must be from 1 to 1000");
    assert_eq!(refused(&"x".repeat(33 << 10), 1), "the query has 33 KiB; at most 32 are searched");
}

#[test]
fn hybrid_search_fuses_the_ranks_of_both() {
    let dir = with_encoder();
    build(&dir.path().join("i"), dense(dir.path(), VectorType::F32), &corpus(150)).unwrap();
    let index = open(&dir.path().join("i")).unwrap();
    let numbers = |mode| hits_of(&index, "hill road", 100, mode).into_iter().map(|hit| hit.0).collect::<Vec<u64>>();
    let (sparse, dense) = (numbers(Mode::Sparse), numbers(Mode::Dense));
    let fused = reciprocal_rank_fusion(&[&sparse, &dense], FUSION_CONSTANT);
    assert_eq!(hits_of(&index, "hill road", 12, Mode::Hybrid), fused[..12]);
    assert_ne!(numbers(Mode::Hybrid)[..12], sparse[..12]);
    assert_ne!(numbers(Mode::Hybrid)[..12], dense[..12]);
}

#[test]
fn a_resumed_build_has_the_vectors_of_an_uninterrupted_one() {
    let dir = with_encoder();
    let rows = corpus(200);
    let whole = dir.path().join("whole");
    build(&whole, dense(dir.path(), VectorType::F32), &rows).unwrap();
    let parts = dir.path().join("parts");
    let mut builder = Builder::begin(&parts, dense(dir.path(), VectorType::F32), false, false).unwrap();
    for row in 0..150 {
        let passage = PassageFields::default().passage(row, rows[row as usize].as_object().unwrap().clone()).unwrap();
        builder.add(&passage).unwrap();
    }
    drop(builder);
    let vectors = dir.path().join("parts.part/dense/vectors.f32");
    assert!(std::fs::metadata(&vectors).unwrap().len() >= 140 * 5 * 4);
    std::fs::write(&vectors, [&std::fs::read(&vectors).unwrap()[..], b"cut"].concat()).unwrap();
    let error = build(&parts, options(), &rows).unwrap_err();
    assert_eq!(error.message, "an interrupted build has another encoder, vectors");
    assert_eq!(build(&parts, dense(dir.path(), VectorType::F32), &rows).unwrap().resumed_at, 140);
    let read = |out: &Path| std::fs::read(out.join("dense/vectors.f32")).unwrap();
    assert!(read(&whole) == read(&parts) && read(&whole).len() == 200 * 5 * 4);
}

#[test]
fn damaged_vectors_and_other_encoders_are_refused() {
    let dir = with_encoder();
    let out = dir.path().join("i");
    build(&out, dense(dir.path(), VectorType::F32), &corpus(20)).unwrap();
    let vectors = out.join("dense/vectors.f32");
    let whole = std::fs::read(&vectors).unwrap();
    std::fs::write(&vectors, &whole[..whole.len() - 4]).unwrap();
    assert_eq!(open(&out).unwrap_err().message, "a file of the index has 396 bytes instead of 400");
    std::fs::remove_file(&vectors).unwrap();
    assert_eq!(open(&out).unwrap_err().message, "a file of the index is missing");
    std::fs::write(&vectors, whole).unwrap();
    let opened = || open(&out).unwrap().search("hill", 1, Mode::Dense);
    opened().unwrap();

    let encoder = dir.path().join("encoder");
    std::fs::write(encoder.join("id"), "second").unwrap();
    let error = opened().unwrap_err();
    assert!(error.message.ends_with("its SHA-256 is second, not first"), "{error}");
    std::fs::write(encoder.join("id"), "first").unwrap();
    std::fs::write(encoder.join("dimension"), "4").unwrap();
    assert_eq!(opened().unwrap_err().message, "the index has vectors of 5 numbers, its encoder of 4");
    std::fs::write(encoder.join("dimension"), "5").unwrap();

    std::fs::rename(&encoder, dir.path().join("moved")).unwrap();
    let error = opened().unwrap_err();
    assert_eq!(error.message, "the encoder of the index is missing");
    assert_eq!(error.hint.unwrap(), format!("put the model, or a symbolic link to it, at {}/encoder", out.display()));
    assert!(open(&out).unwrap().check(&SearchOptions::new(1, Mode::Hybrid)).is_err());
    assert_eq!(open(&out).unwrap().search("river", 3, Mode::Sparse).unwrap().len(), 3);
    std::os::unix::fs::symlink(dir.path().join("moved"), out.join("encoder")).unwrap();
    opened().unwrap();

    // A manifest that gives vectors another dimension than the file has.
    let mut manifest = serde_json::to_value(Manifest::read(&out).unwrap()).unwrap();
    manifest["sha256"] = json!("");
    for dimension in [json!(4), json!(0), json!(u32::MAX)] {
        manifest["parts"]["dense"]["dimension"] = dimension;
        std::fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();
        let message = open(&out).unwrap_err().message;
        assert!(message.starts_with("the vectors of the index have 400 bytes; 20 vectors of"), "{message}");
    }
}
