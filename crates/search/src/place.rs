//! The path of an index: checks before a build, the plan with which an interrupted build is
//! compared, and the rename at the end.

use std::path::Path;

use serde_json::{Value as Json, json};
use tantivy::{Index as Postings, IndexWriter, TantivyError};

use super::build_options::BuildOptions;
use super::{manifest, sparse};
use r1_base::error::{Error, Kind, Result};

/// Memory of the inverted index before a segment is written, in bytes.
pub(super) const HEAP: usize = 256 << 20;
/// Options and corpus of an unfinished build.
pub(super) const BUILD: &str = "build.json";

/// Refuses a path that exists already.
pub(super) fn check(out: &Path, overwrite: bool) -> Result<()> {
    if out.file_name().is_none() {
        return Err(Error::new(Kind::Usage, "the index needs a directory of its own").at_path(out));
    }
    if !out.exists() {
        return Ok(());
    }
    if !out.join(manifest::FILE).exists() {
        return Err(Error::new(Kind::Usage, "the path of the index exists and is not an index")
            .at_path(out)
            .hint("give another --out"));
    }
    if overwrite {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "there is an index already").at_path(out).hint("--overwrite replaces it at the end"))
}

/// Renames a complete index to its path; an existing index there is removed.
pub(super) fn install(part: &Path, out: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(Kind::Store, "rename the index", out, &error);
    let old = out.with_added_extension("old");
    // A killed process may have left one.
    if old.join(manifest::FILE).exists() {
        std::fs::remove_dir_all(&old).map_err(failed)?;
    }
    if !out.exists() {
        return std::fs::rename(part, out).map_err(failed);
    }
    std::fs::rename(out, &old).and_then(|()| std::fs::rename(part, out)).map_err(failed)?;
    std::fs::remove_dir_all(&old).map_err(failed)
}

/// Whether an unfinished build has passages, and no process is adding to it.
pub(super) fn is_committed(part: &Path) -> Result<bool> {
    let folder = part.join(sparse::FOLDER);
    let read = || -> tantivy::Result<bool> {
        let index = Postings::open_in_dir(&folder)?;
        // Takes the lock of the build.
        let _writer: IndexWriter = index.writer_with_num_threads(1, HEAP)?;
        Ok(index.load_metas()?.payload.is_some())
    };
    read().map_err(|error| unwritable(&folder, &error))
}

/// Options that must be equal for a build to be resumed.
pub(super) fn plan(options: &BuildOptions) -> Json {
    let BuildOptions { analyzer, bm25, duplicate_ids, max_passage, corpus, dense, .. } = options;
    let encoder = dense.as_ref().map(|dense| (dense.encoder.sha256(), dense.encoder.options()));
    json!({
        "format": manifest::FORMAT,
        "analyzer": analyzer,
        "k1": bm25.k1,
        "b": bm25.b,
        "title_boost": bm25.title_boost,
        "duplicate_ids": duplicate_ids,
        "max_passage": max_passage,
        "corpus": corpus,
        "encoder": encoder,
        "vectors": dense.as_ref().map(|dense| dense.vectors),
        "hnsw": dense.as_ref().map(|dense| dense.hnsw),
    })
}

/// The names of the values that differ.
pub(super) fn difference(stored: &Json, wanted: &Json) -> String {
    let names = wanted.as_object().into_iter().flat_map(|wanted| wanted.keys());
    let differ: Vec<&str> = names.map(String::as_str).filter(|name| stored.get(name) != wanted.get(name)).collect();
    differ.join(", ")
}

pub(super) fn unwritable(path: &Path, error: &TantivyError) -> Error {
    if let TantivyError::LockFailure(..) = error {
        return Error::new(Kind::Store, "another process is building this index").at_path(path);
    }
    Error::new(Kind::Store, format!("the inverted index can't be written: {}", sparse::shortened(error))).at_path(path)
}
