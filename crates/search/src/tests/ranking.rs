//! Ranking: equal to bm25s, and to a scorer that scores every passage.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::super::bm25::Bm25;
use super::super::{Analyzer, BuildOptions, Index, Mode};
use super::{build, ids, options, rows};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/search").join(name)
}

fn corpus() -> Vec<Json> {
    let text = std::fs::read_to_string(golden("corpus.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn bm25_ranking_and_scores_equal_those_of_bm25s() {
    let golden: Json = serde_json::from_slice(&std::fs::read(golden("golden.json")).unwrap()).unwrap();
    let number = |setting: &Json, name: &str| setting[name].as_f64().unwrap();
    let mut compared = 0;
    for setting in golden["settings"].as_array().unwrap() {
        let dir = tempfile::tempdir().unwrap();
        let bm25 =
            Bm25 { k1: number(setting, "k1"), b: number(setting, "b"), title_boost: number(setting, "title_boost") };
        let analyzer = Analyzer::named("analyzer", setting["analyzer"].as_str().unwrap()).unwrap();
        // Several segments, which become one.
        let options = BuildOptions { analyzer, bm25, commit_every: 50, ..options() };
        build(&dir.path().join("i"), options, &corpus()).unwrap();
        let index = Index::open(&dir.path().join("i")).unwrap();
        for (query, wanted) in golden["queries"].as_array().unwrap().iter().zip(setting["hits"].as_array().unwrap()) {
            let hits = index.search(query.as_str().unwrap(), 10, Mode::Sparse).unwrap();
            let wanted = wanted.as_array().unwrap();
            let about = format!("{} {bm25:?} {query}", analyzer.name());
            assert_eq!(hits.len(), wanted.len(), "{about}");
            let score = |position: usize| wanted[position][1].as_f64().unwrap();
            for (position, hit) in hits.iter().enumerate() {
                assert_eq!(hit.rank, position + 1);
                assert!((hit.score - score(position)).abs() < 1e-9, "{about}: {hit:?} {}", wanted[position]);
                let tied = |other: usize| other < wanted.len() && (score(other) - score(position)).abs() < 1e-9;
                let has_tie = tied(position + 1) || (position > 0 && tied(position - 1));
                if !has_tie && position + 1 < 10 {
                    assert_eq!(hit.id, wanted[position][0].as_str().unwrap(), "{about}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 300, "{compared}");
}

/// Scores of all passages by the formula, best first.
fn exhaustive(texts: &[String], query: &str, bm25: Bm25) -> Vec<(u64, f64)> {
    let analyzed: Vec<Vec<String>> = texts.iter().map(|text| Analyzer::Standard.terms(text)).collect();
    let average = analyzed.iter().map(Vec::len).sum::<usize>() as f64 / texts.len() as f64;
    let mut scored: Vec<(u64, f64)> = (0..).zip(vec![0.0; texts.len()]).collect();
    for term in Analyzer::Standard.terms(query) {
        let with = analyzed.iter().filter(|terms| terms.contains(&term)).count();
        for (terms, (_, score)) in analyzed.iter().zip(&mut scored) {
            let tf = terms.iter().filter(|other| **other == term).count() as f64;
            let norm = bm25.k1 * (1.0 - bm25.b + bm25.b * terms.len() as f64 / average);
            if tf > 0.0 {
                *score += Bm25::idf(texts.len() as u64, with as u64) * tf / (tf + norm);
            }
        }
    }
    scored.retain(|(_, score)| *score > 0.0);
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scored
}

#[test]
fn skipping_passages_does_not_change_the_best_ones() {
    // Words with a skewed distribution: common ones are skipped for most passages.
    let mut state = 7_u64;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let word = |draw: &mut dyn FnMut(u64) -> u64| {
        let bound = 1 + draw(60);
        format!("w{}", draw(bound))
    };
    let texts: Vec<String> =
        (0..3000).map(|_| (0..3 + draw(30)).map(|_| word(&mut draw)).collect::<Vec<_>>().join(" ")).collect();
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<Json> = texts.iter().enumerate().map(|(id, text)| json!({ "id": id, "text": text })).collect();
    build(&dir.path().join("i"), options(), &all).unwrap();
    let index = Index::open(&dir.path().join("i")).unwrap();
    for round in 0..60 {
        let query: Vec<String> = (0..=round % 9).map(|_| word(&mut draw)).collect();
        let query = query.join(" ");
        let wanted = exhaustive(&texts, &query, Bm25::default());
        for k in [1, 3, 10, 1000] {
            let ranked = index.rank(&query, k).unwrap();
            assert_eq!(ranked.len(), wanted.len().min(k), "{query} {k}");
            for (at, ((passage, score), (expected_passage, exact))) in ranked.iter().zip(&wanted).enumerate() {
                assert!((score - exact).abs() < 1e-9, "{query} {k} {at}: {score} {exact}");
                // Sums in another order may differ in the last digit, which orders equal scores.
                let tied = wanted.iter().filter(|(_, other)| (other - exact).abs() < 1e-9).count() > 1;
                assert!(tied || passage == expected_passage, "{query} {k} {at}");
            }
        }
    }
}

#[test]
fn passages_with_equal_scores_come_in_the_order_of_the_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..40).map(|number| format!("same words {}", ["x", "y"][number % 2])).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    build(&dir.path().join("i"), BuildOptions { commit_every: 7, ..options() }, &rows(&texts)).unwrap();
    let index = Index::open(&dir.path().join("i")).unwrap();
    assert_eq!(ids(&index, "same", 5), ["0", "1", "2", "3", "4"]);
    assert_eq!(ids(&index, "words y", 3), ["1", "3", "5"]);
}

#[test]
fn search_queries_without_terms_find_nothing_and_large_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    build(&dir.path().join("i"), options(), &rows(&["one", "two"])).unwrap();
    let index = Index::open(&dir.path().join("i")).unwrap();
    for query in ["", " \n", "?!", "three"] {
        assert!(ids(&index, query, 5).is_empty(), "{query:?}");
    }
    let refused = |query: &str, k: usize, mode: Mode| index.search(query, k, mode).unwrap_err().message;
    assert_eq!(refused(&"x ".repeat(1 << 19), 5, Mode::Sparse), "the query has 1024 KiB; at most 32 are searched");
    let many: Vec<String> = (0..1100).map(|number| format!("w{number}")).collect();
    let text = "the query has 1100 different terms; at most 1024 are searched";
    assert_eq!(refused(&many.join(" "), 5, Mode::Sparse), text);
    assert_eq!(refused("one", 0, Mode::Sparse), "k is 0; it must be from 1 to 1000");
    assert_eq!(refused("one", 1001, Mode::Sparse), "k is 1001; it must be from 1 to 1000");
    let why = "the index has no vectors, which the search mode `hybrid` needs";
    assert_eq!(refused("one", 1, Mode::Hybrid), why);
}
