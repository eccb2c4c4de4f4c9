//! Options of the vectors of an index: their type, how texts are encoded, how similar two vectors
//! are, and the graph over them.

use serde::{Deserialize, Serialize};

use r1_base::schema::names;

/// The folder of the vectors in an index.
pub(super) const FOLDER: &str = "dense";

names! {
    /// Type of the numbers of stored vectors.
    #[derive(Default)]
    pub enum VectorType {
        #[default]
        F32 = "f32",
        F16 = "f16",
    }
}

impl VectorType {
    /// Bytes of a number.
    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// Path of the file with the vectors, relative to the index.
    pub(super) fn file(self) -> String {
        format!("{FOLDER}/vectors.{}", self.name())
    }
}

names! {
    /// How similar a query and a passage are.
    #[derive(Default)]
    pub enum Similarity {
        /// The cosine: the inner product of vectors of unit length.
        #[default]
        Cosine = "cosine",
        /// The inner product of vectors as the encoder computes them.
        Dot = "dot",
    }
}

/// Options of a graph over the vectors: hierarchical navigable small worlds (HNSW; Malkov and
/// Yashunin, arXiv:1603.09320). Names in the paper: M and efConstruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HnswOptions {
    /// Most links of a vector in the upper layers; twice as many in the lowest one.
    pub links: usize,
    /// Candidates that are compared when a vector is added.
    pub ef_construction: usize,
}

impl Default for HnswOptions {
    fn default() -> Self {
        Self { links: 16, ef_construction: 128 }
    }
}

/// Inputs of a vector other than its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderOptions {
    /// `mean`, `cls` or `last`.
    pub pooling: String,
    /// Written before every query, and before every passage.
    #[serde(default)]
    pub query_prefix: String,
    #[serde(default)]
    pub passage_prefix: String,
    /// Maximum number of tokens of a text; longer texts are truncated.
    pub max_tokens: usize,
    /// With [`Similarity::Cosine`] vectors have unit length.
    #[serde(default)]
    pub similarity: Similarity,
}
