//! Options of a search.

use std::path::PathBuf;

use r1_base::error::{Error, Kind, Result};
use r1_base::schema::names;

/// Maximum number of hits of a query.
pub const MOST_HITS: usize = 1000;
/// Maximum number of candidates of a search in a graph.
pub const MOST_CANDIDATES: usize = 10_000;

/// Default number of re-ranked passages.
pub const RERANKED: usize = 50;

names! {
    /// The parts of an index that rank passages.
    #[derive(Default)]
    pub enum Mode {
        /// BM25.
        #[default]
        Sparse = "sparse",
        /// Vectors of an encoder.
        Dense = "dense",
        /// Both, by reciprocal rank fusion.
        Hybrid = "hybrid",
    }
}

/// A cross-encoder and the number of passages that it re-ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RerankOptions {
    /// Directory of the model, in safetensors, and `tokenizer.json` (docs/guide/search.md).
    pub model: PathBuf,
    /// Number of re-ranked passages; `None` for [`RERANKED`], or the number of hits if that is
    /// more.
    pub top: Option<usize>,
}

impl RerankOptions {
    /// Number of re-ranked passages for `k` hits.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a number out of range, or below `k`.
    pub(super) fn top(&self, k: usize) -> Result<usize> {
        match self.top {
            None => Ok(RERANKED.max(k)),
            Some(top) if top > MOST_HITS => {
                Err(Error::new(Kind::Usage, format!("`top` is {top}; at most {MOST_HITS} passages are ranked again")))
            }
            Some(top) if top < k => {
                Err(Error::new(Kind::Usage, format!("`top` is {top}, which is below the number of hits, {k}")))
            }
            Some(top) => Ok(top),
        }
    }
}

/// How the nearest vectors are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nearest {
    /// With the HNSW graph of the index, if it has one, and 64 candidates, or `k` if that is more.
    #[default]
    Default,
    /// The query is compared with every vector.
    Exact,
    /// With the graph and this number of candidates (`ef` in the paper), or `k` if that is more.
    Candidates(usize),
}

/// How an index is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Number of hits, from 1 to [`MOST_HITS`].
    pub k: usize,
    pub mode: Mode,
    pub nearest: Nearest,
    /// A cross-encoder that ranks the best passages again.
    pub rerank: Option<RerankOptions>,
}

impl SearchOptions {
    /// The best `k` passages in a mode.
    pub fn new(k: usize, mode: Mode) -> Self {
        Self { k, mode, nearest: Nearest::Default, rerank: None }
    }

    /// Checks the options that do not depend on an index.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a number out of range.
    pub fn check(&self) -> Result<()> {
        self.rerank.as_ref().map_or(Ok(()), |rerank| rerank.top(self.k).map(drop))
    }

    /// Options as users write them: `ef` is a number of candidates, `exact` compares every vector.
    ///
    /// # Errors
    /// [`Kind::Usage`] for both, for a number out of range, and in a mode without vectors.
    pub fn with_nearest(self, ef: Option<usize>, exact: bool) -> Result<Self> {
        let refuse = |why: String| Err(Error::new(Kind::Usage, why));
        let name = if exact { "exact" } else { "ef" };
        let nearest = match (ef, exact) {
            (None, false) => return Ok(self),
            (Some(_), true) => return refuse("`exact` compares every vector, so that `ef` has no effect".to_owned()),
            (None, true) => Nearest::Exact,
            (Some(ef), false) if (1..=MOST_CANDIDATES).contains(&ef) => Nearest::Candidates(ef),
            (Some(ef), false) => return refuse(format!("`ef` is {ef}; it must be from 1 to {MOST_CANDIDATES}")),
        };
        if self.mode == Mode::Sparse {
            let hint = "the modes `dense` and `hybrid` search vectors";
            return Err(Error::new(Kind::Usage, format!("`{name}` has no effect in the mode `sparse`")).hint(hint));
        }
        Ok(Self { nearest, ..self })
    }
}
