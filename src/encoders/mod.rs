//! The models of searches: BERT checkpoints as encoders of an index ([`load_encoder`]) and as
//! cross-encoders that rank passages again ([`CrossEncoder`]).
//!
//! `search` does not load models. The caller that opens an index with vectors, or a script that
//! searches one, passes [`Checkpoints`].

mod bert;
mod cross_encoder;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use bert::{EncoderSettings, load_encoder};
pub use cross_encoder::CrossEncoder;

use crate::error::Result;
use crate::search::{EncoderOptions, Reranker, SearchModels, TextEncoder};

/// Loads the models of searches from directories in Hugging Face layout, cross-encoders once per
/// process.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints;

impl SearchModels for Checkpoints {
    fn encoder(&self, dir: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
        bert::load_index_encoder(dir, options)
    }

    fn reranker(&self, dir: &Path) -> Result<Arc<dyn Reranker>> {
        Ok(CrossEncoder::shared(dir)?)
    }

    fn identity(&self, dir: &Path) -> Result<String> {
        bert::identity(dir)
    }
}
