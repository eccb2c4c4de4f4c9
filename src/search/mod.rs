//! Search indexes on disk: BM25 and vectors of passages, for corpora that do not fit into memory.
//!
//! - [`Builder`]: streams passages into `DIR.part`, which becomes `DIR` when it is complete; an
//!   interrupted build is resumed
//! - [`Index`]: an open index, memory-mapped and shared by all threads
//! - [`Manifest`]: contents of an index directory: format, options, counts, checksums
//! - [`Analyzer`]: text to terms
//! - [`TextEncoder`]: text to vectors; [`load_encoder`]: that of a BERT checkpoint
//! - [`Reranker`]: a cross-encoder, which ranks the best passages again
//! - [`reciprocal_rank_fusion`]: several rankings to one
//!
//! A directory has `manifest.json`, the passages (`documents.zst`, `documents.index`) and one
//! folder per search method: `sparse` is an inverted index of `tantivy`, `dense` has one vector per
//! passage, and perhaps a graph over them. Passages have numbers from 0, in the order of the
//! corpus; the parts refer to them by number, so that a part can be added without the others.
//!
//! This module does not use Lua or the command line, and does not read corpora. See docs/search.md.

mod analyzer;
mod bert;
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
mod rerank;
mod rows;
mod sparse;
#[cfg(test)]
mod tests;
mod vectors;

pub use analyzer::Analyzer;
pub use bert::identity as model_identity;
pub use bert::{EncoderSettings, load_encoder};
pub use bm25::Bm25;
pub use build::{Builder, Report};
pub use build_options::{BuildOptions, DenseOptions, DuplicateIds, GRAPH_COMMITS};
pub use chunk::Chunks;
pub use encoder::{LoadEncoder, TextEncoder};
pub use fusion::{CONSTANT as FUSION_CONSTANT, reciprocal_rank_fusion};
pub use manifest::{Counts, DensePart, FileEntry, Manifest, Parts, SparsePart, hex, identity, verify};
pub use options::{MOST_CANDIDATES, MOST_HITS, Mode, Nearest, RerankOptions, SearchOptions};
pub use passage::{Fields, Passage};
pub use protocol::{NotResults, SearchRequest, as_text, read_documents, respond};
pub use query::{Hit, Index, expects_panic};
pub use rerank::Reranker;
pub use vectors::{EncoderOptions, HnswOptions, Similarity, VectorType};
