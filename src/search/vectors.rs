//! Options of the vectors of an index: their type, how texts are encoded, how similar two vectors
//! are, and the graph over them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result, suggest};

/// The folder of the vectors in an index.
pub(super) const FOLDER: &str = "dense";

/// Type of the numbers of stored vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VectorType {
    #[default]
    F32,
    F16,
}

impl VectorType {
    /// Their names.
    pub const NAMES: [&str; 2] = ["f32", "f16"];

    /// # Errors
    /// [`Kind::Usage`] for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            _ => Err(Error::new(Kind::Usage, format!("there is no vector type `{name}`"))
                .hint(suggest(name, Self::NAMES.iter().copied()))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

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

/// How similar a query and a passage are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// The cosine: the inner product of vectors of unit length.
    #[default]
    Cosine,
    /// The inner product of vectors as the encoder computes them.
    Dot,
}

impl Similarity {
    /// Their names.
    pub const NAMES: [&str; 2] = ["cosine", "dot"];

    /// # Errors
    /// [`Kind::Usage`] for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "cosine" => Ok(Self::Cosine),
            "dot" => Ok(Self::Dot),
            _ => Err(Error::new(Kind::Usage, format!("there is no similarity `{name}`"))
                .hint(suggest(name, Self::NAMES.iter().copied()))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
        }
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
    /// `mean` or `cls`.
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
