//! Options of a build.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::analyzer::Analyzer;
use super::bm25::Bm25;
use super::encoder::TextEncoder;
use super::vectors::{HnswOptions, VectorType};

/// Commits of passages per save of a graph, which writes all of it.
pub const GRAPH_COMMITS: u64 = 5;

/// Handling of a passage with the id of an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DuplicateIds {
    /// The build stops.
    #[default]
    Refuse,
    /// The first passage is kept.
    Skip,
}

/// Options of the vectors of a build.
#[derive(Clone)]
pub struct DenseOptions {
    pub encoder: Arc<dyn TextEncoder>,
    pub vectors: VectorType,
    /// `None`: every search compares all vectors.
    pub hnsw: Option<HnswOptions>,
}

impl std::fmt::Debug for DenseOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenseOptions").field("encoder", &self.encoder.directory()).finish_non_exhaustive()
    }
}

/// Options of a build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    pub analyzer: Analyzer,
    pub bm25: Bm25,
    pub duplicate_ids: DuplicateIds,
    /// Largest title and text of a passage together, in bytes.
    pub max_passage: u64,
    /// Number of passages between two commits: an interrupted build is resumed after the last one.
    /// A graph is saved every [`GRAPH_COMMITS`] times as many vectors.
    pub commit_every: u64,
    /// The origin of the passages: a build is resumed only for an equal one.
    pub corpus: Json,
    /// `None`: an index without vectors.
    pub dense: Option<DenseOptions>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            analyzer: Analyzer::default(),
            bm25: Bm25::default(),
            duplicate_ids: DuplicateIds::default(),
            max_passage: 1 << 20,
            commit_every: 1000,
            corpus: Json::Null,
            dense: None,
        }
    }
}
