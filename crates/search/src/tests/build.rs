//! Builds: interrupted ones are resumed, and bad rows of corpora.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::super::{
    Analyzer, BuildOptions, Builder, DuplicateIds, Index, Manifest, Mode, NoModels, PassageFields, verify,
};
use super::{build, ids, options, rows};

fn corpus() -> Vec<Json> {
    (0..230)
        .map(|number| json!({ "id": format!("p{number}"), "text": format!("number {number} of {}", number % 17) }))
        .collect()
}

/// Adds rows up to `until` and drops the builder, as a killed process does.
fn build_until(out: &Path, options: &BuildOptions, until: u64) -> u64 {
    let mut builder = Builder::begin(out, options.clone(), false, false).unwrap();
    let from = builder.next_row();
    for row in from..until {
        let passage =
            PassageFields::default().passage(row, corpus()[row as usize].as_object().unwrap().clone()).unwrap();
        builder.add(&passage).unwrap();
    }
    from
}

/// Contents of the passages files, and the hits of some queries.
fn result(out: &Path) -> (Json, Vec<Vec<String>>) {
    let index = Index::open(out).unwrap();
    let manifest = serde_json::to_value(index.manifest()).unwrap();
    let hits = ["number 7", "3", "of 16"].iter().map(|query| ids(&index, query, 20)).collect();
    (json!({ "counts": manifest["counts"], "terms": manifest["parts"]["sparse"]["terms"] }), hits)
}

#[test]
fn an_interrupted_index_build_is_resumed_after_its_last_commit() {
    let dir = tempfile::tempdir().unwrap();
    let options = BuildOptions { commit_every: 50, ..options() };
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    assert_eq!(build(&whole, options.clone(), &corpus()).unwrap().resumed_at, 0);
    assert_eq!(build_until(&parts, &options, 30), 0, "nothing was committed before");
    assert_eq!(build_until(&parts, &options, 130), 0);
    assert_eq!(build_until(&parts, &options, 101), 100);
    assert!(Index::open(&parts).unwrap_err().message.contains("its build was interrupted"));
    // The end of a file was not written.
    let blocks = dir.path().join("parts.part/documents.zst");
    std::fs::write(&blocks, [&std::fs::read(&blocks).unwrap()[..], b"half a block"].concat()).unwrap();
    assert_eq!(build(&parts, options, &corpus()).unwrap().resumed_at, 100);
    assert!(!dir.path().join("parts.part").exists());
    assert_eq!(result(&whole), result(&parts));
    assert!(verify(&parts, |_| true).unwrap().is_empty());
    let passages = |out: &Path| std::fs::metadata(out.join("documents.zst")).unwrap().len();
    assert!(passages(&whole) > 0 && passages(&parts) > 0);
}

#[test]
fn an_interrupted_index_build_needs_the_same_options_and_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    let build_options = BuildOptions { commit_every: 50, ..options() };
    build_until(&out, &build_options, 60);
    let other =
        BuildOptions { analyzer: Analyzer::English, corpus: json!({ "files": ["b"] }), ..build_options.clone() };
    let error = build(&out, other.clone(), &corpus()).unwrap_err();
    assert_eq!(error.message, "an interrupted build has another analyzer, corpus");
    assert!(error.hint.unwrap().contains("--restart"));
    let builder = Builder::begin(&out, other, true, false).unwrap();
    assert_eq!(builder.next_row(), 0);
    // A build in progress with other options is not changed; one that added nothing is not kept.
    let busy = Builder::begin(&out, build_options.clone(), false, false).err().unwrap();
    assert_eq!(busy.message, "another process is building this index");
    drop(builder);
    assert_eq!(Builder::begin(&out, build_options, false, false).unwrap().next_row(), 0);
}

#[test]
fn two_builds_of_one_index_at_once_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    let first = Builder::begin(&out, options(), false, false).unwrap();
    let error = Builder::begin(&out, options(), false, false).err().unwrap();
    assert_eq!(error.message, "another process is building this index");
    drop(first);
}

#[test]
fn an_index_is_replaced_only_with_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    build(&out, options(), &rows(&["old"])).unwrap();
    let error = build(&out, options(), &rows(&["new"])).unwrap_err();
    assert_eq!(
        (error.message.as_str(), error.hint.as_deref()),
        ("there is an index already", Some("--overwrite replaces it at the end"))
    );
    let opened = Index::shared(&out, &NoModels).unwrap();
    let mut builder = Builder::begin(&out, options(), false, true).unwrap();
    builder.add(&PassageFields::default().passage(0, rows(&["new"])[0].as_object().unwrap().clone()).unwrap()).unwrap();
    builder.finish().unwrap();
    assert_eq!(ids(&opened, "old", 1), ["0"], "an open index does not change");
    let again = Index::shared(&out, &NoModels).unwrap();
    assert!(ids(&again, "old", 1).is_empty() && ids(&again, "new", 1) == ["0"]);
    assert!(std::sync::Arc::ptr_eq(&again, &Index::shared(&out, &NoModels).unwrap()));
    std::fs::create_dir(dir.path().join("other")).unwrap();
    let error = build(&dir.path().join("other"), options(), &rows(&["x"])).unwrap_err();
    assert_eq!(error.message, "the path of the index exists and is not an index");
}

#[test]
fn index_rows_without_text_are_counted_and_duplicate_ids_refused_or_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let row = |id: &str, text: &str| json!({ "id": id, "text": text });
    let all = [row("a", "one"), row("b", " \n"), row("c", "two\0three"), row("a", "four"), row("d", "?!")];
    let error = build(&dir.path().join("i"), options(), &all).unwrap_err();
    assert_eq!(error.message, "the id \"a\" is that of an earlier passage, number 0");
    let skip = BuildOptions { duplicate_ids: DuplicateIds::Skip, ..options() };
    let counts = build(&dir.path().join("j"), skip, &all).unwrap().manifest.counts;
    assert_eq!((counts.rows, counts.passages, counts.empty, counts.duplicates, counts.with_nul), (5, 3, 1, 1, 1));
    let index = Index::open(&dir.path().join("j")).unwrap();
    let hit = index.search("three", 1, Mode::Sparse).unwrap().remove(0);
    assert_eq!((hit.id.as_str(), hit.text.as_str()), ("c", "two\0three"));
    let error = build(&dir.path().join("k"), options(), &[row("a", "")]).unwrap_err();
    assert!(error.message.ends_with("no row with a title or a text: there is nothing to index"), "{error}");
}

#[test]
fn passages_above_the_size_limit_are_refused_and_large_ones_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let large = format!("needle {}", "hay ".repeat(2_500_000));
    let error = build(&dir.path().join("i"), options(), &rows(&[&large])).unwrap_err();
    assert_eq!(error.message, "the passage has 9765 KiB; at most 1024 KiB are indexed");
    let wide = BuildOptions { max_passage: 16 << 20, ..options() };
    build(&dir.path().join("j"), wide, &rows(&["small", &large, "needle"])).unwrap();
    let index = Index::open(&dir.path().join("j")).unwrap();
    assert_eq!(ids(&index, "needle", 5), ["2", "1"]);
    assert_eq!(index.search("hay", 1, Mode::Sparse).unwrap()[0].text.len(), large.len());
}

#[test]
fn corpus_columns_become_passages_and_missing_ones_are_named() {
    let passage = |fields: &PassageFields, row: Json| fields.passage(4, row.as_object().unwrap().clone());
    let plain = PassageFields::default();
    let row = json!({ "_id": 7, "title": "T", "text": ["one", "two"], "year": 1999 });
    let read = passage(&plain, row).unwrap();
    assert_eq!((read.id.as_str(), read.title.as_str(), read.text.as_str()), ("7", "T", "one two"));
    assert_eq!(read.columns, json!({ "year": 1999 }).as_object().unwrap().clone());
    // The corpora of Search-R1.
    let row = json!({ "id": "0", "contents": "\"Title\"\nThe text\nhas lines" });
    let read = passage(&plain, row.clone()).unwrap();
    assert_eq!((read.title.as_str(), read.text.as_str()), ("Title", "The text\nhas lines"));
    assert_eq!(read.contents(), row["contents"].as_str().unwrap());
    let named = PassageFields {
        id: Some("docid".into()),
        text: Some("abstract".into()),
        title: Some("name".into()),
        ..PassageFields::default()
    };
    let row = json!({ "docid": "d", "name": null, "abstract": "x", "text": "kept" });
    let read = passage(&named, row).unwrap();
    assert_eq!((read.id.as_str(), read.title.as_str(), read.columns["text"].as_str()), ("d", "", Some("kept")));
    let numbered = PassageFields { number_rows: true, ..PassageFields::default() };
    assert_eq!(passage(&numbered, json!({ "text": "x" })).unwrap().id, "4");
    let refused: BTreeMap<&str, String> = [
        ("no id", passage(&plain, json!({ "ids": 1, "text": "x" }))),
        ("no text", passage(&plain, json!({ "id": 1, "body": "x" }))),
        ("misspelt", passage(&named, json!({ "docid": 1, "name": "", "abstrct": "x" }))),
        ("a number", passage(&plain, json!({ "id": 1, "text": 3 }))),
        ("an id", passage(&plain, json!({ "id": 1.5, "text": "x" }))),
    ]
    .into_iter()
    .map(|(name, result)| (name, result.unwrap_err().to_string()))
    .collect();
    insta::assert_snapshot!(refused.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>().join("\n"), @r#"
    a number: the column `text` is the number 3; it must be text, or a list of texts
    an id: the id is the number 1.5; it must be text or a whole number
    misspelt: the row has no column `abstract`
      hint: did you mean `abstrct`?
    no id: the row has no column `id`
      hint: did you mean `ids`?; --number-rows uses row numbers as ids
    no text: the row has no column `text`
      hint: known: `body`; --text-field NAME names the column
    "#);
}

#[test]
fn a_manifest_has_counts_options_and_checksums_of_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    let report = build(&out, options(), &rows(&["one two", "three"])).unwrap();
    assert_eq!(report.manifest, Manifest::read(&out).unwrap());
    let sparse = report.manifest.parts.sparse.as_ref().unwrap();
    assert_eq!((sparse.terms, sparse.title_terms, sparse.bm25.k1), (3, 0, 1.2));
    let mut files = Vec::new();
    for folder in ["", "sparse"] {
        for entry in std::fs::read_dir(out.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                files.push(path.strip_prefix(&out).unwrap().display().to_string());
            }
        }
    }
    files.sort();
    let mut listed: Vec<String> = report.manifest.parts.files().map(|file| file.path.clone()).collect();
    listed.push("manifest.json".to_owned());
    listed.sort();
    assert_eq!(files, listed);
}
