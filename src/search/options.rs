//! Options of a search.

use serde::{Deserialize, Serialize};

use super::rerank::RerankOptions;
use crate::error::{Error, Kind, Result, suggest};

/// Most hits of one query.
pub const MOST_HITS: usize = 1000;

/// Which parts of an index rank passages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// BM25.
    #[default]
    Sparse,
    /// Vectors of an encoder.
    Dense,
    /// Both, by reciprocal rank fusion.
    Hybrid,
}

impl Mode {
    /// Their names.
    pub const NAMES: [&str; 3] = ["sparse", "dense", "hybrid"];

    /// # Errors
    /// [`Kind::Usage`] for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "sparse" => Ok(Self::Sparse),
            "dense" => Ok(Self::Dense),
            "hybrid" => Ok(Self::Hybrid),
            _ => Err(Error::new(Kind::Usage, format!("there is no search mode `{name}`"))
                .hint(suggest(name, Self::NAMES.iter().copied()))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Sparse => "sparse",
            Self::Dense => "dense",
            Self::Hybrid => "hybrid",
        }
    }
}

/// How an index is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Number of hits, from 1 to [`MOST_HITS`].
    pub k: usize,
    pub mode: Mode,
    /// A cross-encoder that ranks the best passages again.
    pub rerank: Option<RerankOptions>,
}

impl SearchOptions {
    /// The best `k` passages in a mode.
    pub fn new(k: usize, mode: Mode) -> Self {
        Self { k, mode, rerank: None }
    }

    /// Checks what does not depend on an index.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a number out of range.
    pub fn check(&self) -> Result<()> {
        self.rerank.as_ref().map_or(Ok(()), |rerank| rerank.top(self.k).map(drop))
    }
}
