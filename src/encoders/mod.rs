//! The models of searches: encoders of an index ([`load_encoder`]) and cross-encoders that rank
//! passages again ([`CrossEncoder`]).
//!
//! `search` does not load models. The caller that opens an index with vectors, or a script that
//! searches one, passes [`Checkpoints`].

mod cross_encoder;
mod sentence_modules;
#[cfg(test)]
mod sentence_tests;
#[cfg(test)]
mod tests;
mod text_encoder;

use std::path::Path;
use std::sync::Arc;

pub use cross_encoder::CrossEncoder;
pub use text_encoder::{EncoderSettings, load_encoder};

use r1_base::{DeviceChoice, Dtype};

use crate::error::{Error, Kind, Result};
use crate::search::{EncoderOptions, Reranker, SearchModels, TextEncoder};

/// Loads the models of searches from directories in Hugging Face layout, onto a device and in a
/// type; cross-encoders once per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    pub device: DeviceChoice,
    pub dtype: Dtype,
}

impl Checkpoints {
    /// The GPU in bf16 if there is one, or else the CPU in f32.
    pub const AUTO: Self = Self { device: DeviceChoice::Auto, dtype: Dtype::Auto };

    /// For the rest of the process: an open index keeps its loader.
    pub fn kept(self) -> &'static Self {
        Box::leak(Box::new(self))
    }
}

impl SearchModels for Checkpoints {
    fn encoder(&self, dir: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
        text_encoder::load_index_encoder(dir, options, *self)
    }

    fn reranker(&self, dir: &Path) -> Result<Arc<dyn Reranker>> {
        Ok(CrossEncoder::shared(dir, *self)?)
    }

    fn identity(&self, dir: &Path) -> Result<String> {
        text_encoder::identity(dir)
    }
}

/// The error of a tokenizer with which the model can't be used.
fn wrong_tokenizer(dir: &Path, why: impl Into<String>) -> Error {
    Error::new(Kind::Model, why)
        .at_path(dir.join("tokenizer.json"))
        .hint("save the tokenizer again with transformers' AutoTokenizer and save_pretrained")
}

/// The error of a model that returns numbers which are not finite.
fn not_finite(message: &str, dir: &Path) -> Error {
    Error::new(Kind::Numeric, message).at_path(dir).hint("the weights of the model may be damaged")
}

/// Texts of a thread that tokenizes.
const TEXTS_OF_A_THREAD: usize = 256;

/// The results of `tokenize` for each text; many texts are shared among threads.
fn tokenized<T: Sync, R: Send>(texts: &[T], tokenize: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = texts.len().div_ceil(threads).max(TEXTS_OF_A_THREAD);
    let all = |texts: &[T]| texts.iter().map(&tokenize).collect::<Result<Vec<R>>>();
    if texts.len() <= each {
        return all(texts);
    }
    let failed = || Error::new(Kind::Internal, "a thread of the tokenizer has failed");
    std::thread::scope(|scope| {
        let parts: Vec<_> = texts.chunks(each).map(|part| scope.spawn(|| all(part))).collect();
        let mut rows = Vec::with_capacity(texts.len());
        for part in parts {
            rows.extend(part.join().map_err(|_| failed())??);
        }
        Ok(rows)
    })
}
