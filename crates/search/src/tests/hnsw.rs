//! The graph over the vectors of an index: recall, resumed builds, damaged files, and the other
//! similarity.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::super::{
    BuildOptions, Builder, DenseOptions, EncoderOptions, HnswOptions, Index, Manifest, Mode, Nearest, PassageFields,
    SearchOptions, Similarity, TextEncoder, VectorType, verify,
};
use super::{Encoders, build, change, options, rows};
use r1_base::error::{Kind, Result};

const DIMENSION: usize = 24;
const PASSAGES: usize = 900;

/// A random direction and length per text: the hardest case for a graph.
struct Random(EncoderOptions);

impl TextEncoder for Random {
    fn sha256(&self) -> &'static str {
        "random"
    }

    fn directory(&self) -> &Path {
        Path::new("/")
    }

    fn options(&self) -> &EncoderOptions {
        &self.0
    }

    fn dimension(&self) -> usize {
        DIMENSION
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        let vector = |text: &String| {
            let mut state =
                text.bytes().fold(7_u64, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
            let mut draw = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as f32 / (1_u64 << 30) as f32 - 1.0
            };
            let mut vector: Vec<f32> = (0..DIMENSION).map(|_| draw()).collect();
            if self.0.similarity == Similarity::Cosine {
                let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
                for number in &mut vector {
                    *number /= length;
                }
            }
            vector
        };
        Ok(texts.iter().flat_map(vector).collect())
    }
}

#[allow(clippy::unnecessary_wraps)] // the type of a loader
fn load(_: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
    Ok(Arc::new(Random(options.clone())))
}

fn open(index: &Path) -> Result<Index> {
    const MODELS: Encoders = Encoders(load);
    Index::open_with(index, &MODELS)
}

fn with(similarity: Similarity, vectors: VectorType, hnsw: Option<HnswOptions>) -> BuildOptions {
    let encoder = EncoderOptions {
        pooling: "mean".to_owned(),
        query_prefix: String::new(),
        passage_prefix: String::new(),
        max_tokens: 9,
        similarity,
    };
    let dense = DenseOptions { encoder: Arc::new(Random(encoder)), vectors, hnsw };
    BuildOptions { dense: Some(dense), commit_every: 70, ..options() }
}

const GRAPH: HnswOptions = HnswOptions { links: 5, ef_construction: 20 };

fn corpus() -> Vec<serde_json::Value> {
    let texts: Vec<String> = (0..PASSAGES).map(|number| format!("passage {number}")).collect();
    rows(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn made(dir: &Path, similarity: Similarity, vectors: VectorType) -> PathBuf {
    let out = dir.join(format!("{}-{}", similarity.name(), vectors.name()));
    build(&out, with(similarity, vectors, Some(GRAPH)), &corpus()).unwrap();
    out
}

fn ids(index: &Index, queries: &[&str], nearest: Nearest) -> Vec<Vec<(String, f64)>> {
    let options = SearchOptions { nearest, ..SearchOptions::new(10, Mode::Dense) };
    let hits = index.search_all(queries, &options).unwrap();
    hits.into_iter().map(|hits| hits.into_iter().map(|hit| (hit.id, hit.score)).collect()).collect()
}

/// The share of the 10 nearest passages that are found.
fn recall(index: &Index, nearest: Nearest) -> f64 {
    let queries: Vec<String> = (0..60).map(|number| format!("query {number}")).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    let (exact, approximate) = (ids(index, &queries, Nearest::Exact), ids(index, &queries, nearest));
    let mut both = 0;
    for (exact, approximate) in exact.iter().zip(&approximate) {
        assert_eq!(approximate.len(), 10);
        assert!(approximate.windows(2).all(|pair| pair[0].1 >= pair[1].1), "best first");
        // Scores are the same as in the exact search.
        both += exact.iter().filter(|hit| approximate.contains(hit)).count();
    }
    both as f64 / (10 * queries.len()) as f64
}

#[test]
fn hnsw_finds_more_of_the_nearest_vectors_with_more_candidates() {
    let dir = tempfile::tempdir().unwrap();
    for (similarity, vectors) in [
        (Similarity::Cosine, VectorType::F32),
        (Similarity::Cosine, VectorType::F16),
        (Similarity::Dot, VectorType::F32),
        (Similarity::Dot, VectorType::F16),
    ] {
        let out = made(dir.path(), similarity, vectors);
        assert!(verify(&out, |_| true).unwrap().is_empty());
        let part = Manifest::read(&out).unwrap().parts.dense.unwrap();
        assert_eq!((part.hnsw, part.options.similarity, part.files.len()), (Some(GRAPH), similarity, 2));
        let index = open(&out).unwrap();
        let [few, some, all] = [10, 64, 900].map(|ef| recall(&index, Nearest::Candidates(ef)));
        let about = format!("{} {}: {few} {some} {all}", similarity.name(), vectors.name());
        assert!(few < some && few < 0.9 && some < all && all > 0.99, "{about}");
        // The default is 64; one ef after another does not change the results of the first.
        assert!((recall(&index, Nearest::Default) - some).abs() < 1e-9, "{about}");
        assert!((recall(&index, Nearest::Candidates(10)) - few).abs() < 1e-9, "{about}");
    }
}

#[test]
fn equal_vectors_are_found_in_the_order_of_the_passages() {
    let dir = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..40).map(|number| format!("passage {}", number % 8)).collect();
    let rows = rows(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let out = dir.path().join("i");
    build(&out, with(Similarity::Cosine, VectorType::F32, Some(GRAPH)), &rows).unwrap();
    let index = open(&out).unwrap();
    for query in ["one", "two"] {
        let exact = ids(&index, &[query], Nearest::Exact).remove(0);
        let number = |hit: &(String, f64)| hit.0.parse::<u64>().unwrap();
        let ordered = exact.windows(2).all(|pair| pair[0].1 > pair[1].1 || number(&pair[0]) < number(&pair[1]));
        assert!(ordered, "{exact:?}");
        assert_eq!(ids(&index, &[query], Nearest::Candidates(40)).remove(0), exact);
    }
}

#[test]
fn graphs_are_searched_by_many_threads_with_different_numbers_of_candidates() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(&made(dir.path(), Similarity::Cosine, VectorType::F32)).unwrap();
    let expected = [10, 40].map(|ef| ids(&index, &["query 1"], Nearest::Candidates(ef)));
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (index, expected) = (&index, &expected);
            scope.spawn(move || {
                for _ in 0..10 {
                    let at = number % 2;
                    let actual = ids(index, &["query 1"], Nearest::Candidates([10, 40][at]));
                    assert_eq!(actual, expected[at]);
                }
            });
        }
    });
}

#[test]
fn dot_products_are_those_of_vectors_that_are_not_normalised() {
    let dir = tempfile::tempdir().unwrap();
    let out = made(dir.path(), Similarity::Dot, VectorType::F32);
    let encoder = load(dir.path(), &Manifest::read(&out).unwrap().parts.dense.unwrap().options).unwrap();
    let vector = |text: &str| encoder.encode(&[text.to_owned()]).unwrap();
    let product = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    let query = vector("query 3");
    let hits = ids(&open(&out).unwrap(), &["query 3"], Nearest::Exact).remove(0);
    let lengths: Vec<f32> = hits
        .iter()
        .map(|(id, score)| {
            let embedding = vector(&format!("passage {id}"));
            assert!((f64::from(product(&query, &embedding)) - score).abs() < 1e-5, "{id} {score}");
            product(&embedding, &embedding).sqrt()
        })
        .collect();
    assert!(lengths.iter().any(|length| (length - 1.0).abs() > 0.5), "{lengths:?}");
    // The similarity is in the manifest, and is compared with the vectors and the graph.
    change(&out, "\"similarity\": \"dot\"", "\"similarity\": \"cosine\"");
    let error = open(&out).unwrap_err();
    assert!(error.message.starts_with("vector 0 has the length "), "{error}");
    assert!(error.message.ends_with("vectors for cosines have the length 1"), "{error}");
    let out = made(dir.path(), Similarity::Cosine, VectorType::F16);
    change(&out, "\"cosine\"", "\"dot\"");
    let error = open(&out).unwrap().search("query", 1, Mode::Dense).unwrap_err();
    assert_eq!(error.message, "the HNSW graph of the index is damaged: its similarity is not dot");
}

#[test]
fn interrupted_graphs_continue_and_have_the_bytes_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let whole = made(dir.path(), Similarity::Cosine, VectorType::F32);
    let out = dir.path().join("parts");
    let begin = || {
        let options = with(Similarity::Cosine, VectorType::F32, Some(GRAPH));
        let mut builder = Builder::begin(&out, options, false, false).unwrap();
        for (row, passage) in corpus().into_iter().enumerate().skip(builder.next_row() as usize) {
            builder
                .add(&PassageFields::default().passage(row as u64, passage.as_object().unwrap().clone()).unwrap())
                .unwrap();
        }
        builder
    };
    let part = dir.path().join("parts.part");
    let mut seen = Vec::new();
    let error = begin()
        .finish_with(&mut |linked| {
            seen.push(linked);
            linked < 700
        })
        .unwrap_err();
    assert_eq!(error.kind, Kind::Interrupted);
    assert_eq!(error.message, "the build was interrupted at vector 768 of 900 of its HNSW graph");
    assert_eq!(error.hint.unwrap(), "the same command continues at vector 700");
    assert_eq!(seen, [0, 256, 512, 768]);
    assert!(part.join("dense/hnsw.usearch").exists() && !out.exists());
    assert_eq!(Index::open(&out).unwrap_err().message, "the index is not complete: its build was interrupted");
    // One process at a time.
    let lock = std::fs::File::open(part.join("build.json")).unwrap();
    lock.lock().unwrap();
    let error = begin().finish().unwrap_err();
    assert_eq!(error.message, "another process is building this index");
    drop(lock);
    // Another graph is another build.
    let other = with(Similarity::Cosine, VectorType::F32, Some(HnswOptions { links: 6, ..GRAPH }));
    let error = Builder::begin(&out, other, false, false).map(drop).unwrap_err();
    assert_eq!(error.message, "an interrupted build has another hnsw");
    let mut seen = Vec::new();
    begin()
        .finish_with(&mut |linked| {
            seen.push(linked);
            true
        })
        .unwrap();
    assert_eq!(seen, [768, 900]);
    let read = |out: &Path| std::fs::read(out.join("dense/hnsw.usearch")).unwrap();
    assert!(read(&whole) == read(&out));
}

#[test]
fn a_saved_graph_of_more_vectors_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let whole = made(dir.path(), Similarity::Cosine, VectorType::F32);
    let [alone, out] = ["alone", "few"].map(|name| dir.path().join(name));
    let options = || with(Similarity::Cosine, VectorType::F32, Some(GRAPH));
    let few = &corpus()[..300];
    build(&alone, options(), few).unwrap();
    let begin = || {
        let mut builder = Builder::begin(&out, options(), false, false).unwrap();
        for (row, passage) in few.iter().enumerate().skip(builder.next_row() as usize) {
            builder
                .add(&PassageFields::default().passage(row as u64, passage.as_object().unwrap().clone()).unwrap())
                .unwrap();
        }
        builder
    };
    begin().finish_with(&mut |linked| linked == 0).map(drop).unwrap_err();
    let graph = |index: &Path| index.join("dense/hnsw.usearch");
    std::fs::copy(graph(&whole), graph(&dir.path().join("few.part"))).unwrap();
    let mut seen = Vec::new();
    begin()
        .finish_with(&mut |linked| {
            seen.push(linked);
            true
        })
        .unwrap();
    assert_eq!(seen, [0, 256, 300]);
    assert!(std::fs::read(graph(&alone)).unwrap() == std::fs::read(graph(&out)).unwrap());
}

#[test]
fn damaged_and_foreign_graphs_are_refused_and_never_end_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let out = made(dir.path(), Similarity::Cosine, VectorType::F32);
    let path = out.join("dense/hnsw.usearch");
    let whole = std::fs::read(&path).unwrap();
    let search = || {
        let index = open(&out)?;
        index.search("query", 5, Mode::Dense).map(drop)
    };
    search().unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let bytes = whole.len();
    let error = search().unwrap_err();
    assert_eq!(error.message, format!("a file of the index has {} bytes instead of {bytes}", bytes - 1));
    let (mut refused, mut changes) = (0, 0);
    for at in (0..bytes).step_by(bytes / 997).chain([0, 4, 8, 8 + 8 * PASSAGES, bytes - 1]) {
        for flip in [0xff, 0x01] {
            let mut changed = whole.clone();
            changed[at] ^= flip;
            std::fs::write(&path, &changed).unwrap();
            changes += 1;
            // A link to another passage is found by `verify` alone; the process continues.
            if let Err(error) = search() {
                assert!(error.message.starts_with("the HNSW graph of the index is damaged: "), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > changes / 3, "{refused} of {changes}");
    // A file of the right size that is another program's, and a graph of other vectors.
    std::fs::write(&path, vec![0; bytes]).unwrap();
    assert_eq!(search().unwrap_err().message, "the HNSW graph of the index is damaged: it has no rows of 8 bytes");
    let other = dir.path().join("fewer");
    build(&other, with(Similarity::Cosine, VectorType::F32, Some(GRAPH)), &corpus()[..100]).unwrap();
    let mut manifest = serde_json::to_value(Manifest::read(&out).unwrap()).unwrap();
    let fewer = std::fs::read(other.join("dense/hnsw.usearch")).unwrap();
    manifest["parts"]["dense"]["files"][1]["bytes"] = json!(fewer.len());
    manifest["sha256"] = json!("");
    std::fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::write(&path, fewer).unwrap();
    let message = "the HNSW graph of the index is damaged: the HNSW graph has 100 vectors, the index 900";
    assert_eq!(search().unwrap_err().message, message);
}

#[test]
fn options_that_an_index_has_no_part_for_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    build(&out, with(Similarity::Cosine, VectorType::F32, None), &corpus()[..50]).unwrap();
    let index = open(&out).unwrap();
    let dense = SearchOptions::new(3, Mode::Dense);
    let ef = dense.clone().with_nearest(Some(9), false).unwrap();
    let error = index.search_all(&["query"], &ef).unwrap_err();
    assert_eq!(error.message, "the index has no HNSW graph, so `ef` has no effect");
    let exact = dense.clone().with_nearest(None, true).unwrap();
    let all = index.search_all(&["query"], &exact).unwrap();
    assert_eq!(all, index.search_all(&["query"], &dense).unwrap());
    let refused = |options: SearchOptions, ef, exact| options.with_nearest(ef, exact).unwrap_err().message;
    assert_eq!(refused(dense.clone(), Some(0), false), "`ef` is 0; it must be from 1 to 10000");
    let both = "`exact` compares every vector, so that `ef` has no effect";
    assert_eq!(refused(dense, Some(5), true), both);
    let sparse = SearchOptions::new(3, Mode::Sparse);
    assert_eq!(refused(sparse.clone(), Some(5), false), "`ef` has no effect in the mode `sparse`");
    assert_eq!(refused(sparse, None, true), "`exact` has no effect in the mode `sparse`");
}
