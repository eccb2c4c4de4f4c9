//! Search indexes on disk: BM25 and vectors of passages, for corpora that do not fit into memory.
//!
//! - [`Builder`]: streams passages into `DIR.part`, which becomes `DIR` when it is complete; an
//!   interrupted build is resumed
//! - [`Index`]: an open index, memory-mapped and shared by all threads
//! - [`Manifest`]: contents of an index directory: format, options, counts, checksums
//! - [`Analyzer`]: text to terms
//! - [`TextEncoder`]: text to vectors; [`Reranker`]: ranks the best passages again;
//!   [`SearchModels`]: loads both
//! - [`query_search_server`]: a query to a retrieval server
//! - [`reciprocal_rank_fusion`]: several rankings to one
//!
//! A directory has `manifest.json`, the passages (`documents.zst`, `documents.index`) and one
//! folder per search method: `sparse` is an inverted index of `tantivy`, `dense` has one vector per
//! passage, and perhaps a graph over them. Passages have numbers from 0, in the order of the
//! corpus; the parts refer to them by number, so that a part can be added without the others.
//!
//! This crate does not use models, Lua or the command line, and does not read corpora. See
//! docs/guide/search.md.

mod analyzer;
mod bm25;
mod build;
mod build_options;
mod chunk;
mod dense;
mod documents;
mod encoder;
mod fusion;
mod graph;
mod graph_file;
mod manifest;
mod options;
mod passage;
mod place;
mod protocol;
mod query;
mod rows;
mod server_client;
mod sparse;
#[cfg(test)]
mod tests;
mod vectors;

pub use analyzer::Analyzer;
pub use bm25::Bm25;
pub use build::{BuildReport, Builder};
pub use build_options::{BuildOptions, DenseOptions, DuplicateIds, GRAPH_COMMITS};
pub use chunk::Chunks;
pub use encoder::passage_text;
pub use encoder::{NoModels, Reranker, SearchModels, TextEncoder};
pub use fusion::{CONSTANT as FUSION_CONSTANT, reciprocal_rank_fusion};
pub use graph::CANDIDATES;
pub use manifest::{BuildCounts, DensePart, FileEntry, IndexParts, Manifest, SparsePart, identity, verify};
pub use options::{MOST_CANDIDATES, MOST_HITS, Mode, Nearest, RERANKED, RerankOptions, SearchOptions};
pub use passage::{Passage, PassageFields};
pub use protocol::{NotResults, RETRIEVE_HITS, SEARCH_HITS, SearchRequest, as_text, read_documents, respond};
pub use query::{Hit, Index, expects_panic};
pub use server_client::{SearchFailure, query_search_server, search_url};
pub use vectors::{EncoderOptions, HnswOptions, Similarity, VectorType};

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
