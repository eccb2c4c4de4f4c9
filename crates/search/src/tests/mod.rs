//! Tests of search indexes: ranking, damaged files, interrupted builds.
#![allow(clippy::unwrap_used)]

mod build;
mod damage;
mod dense;
mod hnsw;
mod protocol;
mod ranking;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{BuildOptions, BuildReport, Builder, EncoderOptions, Index, PassageFields, SearchModels, TextEncoder};
use r1_base::error::Result;

pub(crate) fn options() -> BuildOptions {
    BuildOptions { corpus: json!({ "files": [] }), ..BuildOptions::default() }
}

/// Models whose encoders a function makes.
#[derive(Debug)]
pub(super) struct Encoders(pub(super) fn(&Path, &EncoderOptions) -> Result<Arc<dyn TextEncoder>>);

impl SearchModels for Encoders {
    fn encoder(&self, dir: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
        (self.0)(dir, options)
    }
}

/// Builds an index of rows.
pub(crate) fn build(out: &Path, options: BuildOptions, rows: &[Json]) -> Result<BuildReport> {
    let mut builder = Builder::begin(out, options, false, false)?;
    while let Some(row) = rows.get(builder.next_row() as usize) {
        let passage = PassageFields::default().passage(builder.next_row(), row.as_object().unwrap().clone())?;
        builder.add(&passage)?;
    }
    builder.finish()
}

/// Rows with ids `0`, `1` … and these texts.
pub(super) fn rows(texts: &[&str]) -> Vec<Json> {
    texts.iter().enumerate().map(|(id, text)| json!({ "id": id, "text": text })).collect()
}

/// The ids of the best passages.
pub(super) fn ids(index: &Index, query: &str, k: usize) -> Vec<String> {
    index.search(query, k, super::Mode::Sparse).unwrap().into_iter().map(|hit| hit.id).collect()
}

/// Replaces a part of the manifest's text, without its checksum.
pub(super) fn change(out: &Path, from: &str, to: &str) {
    let path = out.join("manifest.json");
    let mut manifest: Json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest.as_object_mut().unwrap().remove("sha256");
    let text = serde_json::to_string_pretty(&manifest).unwrap();
    assert!(text.contains(from), "{text}");
    let text = if from.is_empty() { text } else { text.replace(from, to) };
    std::fs::write(path, text).unwrap();
}
