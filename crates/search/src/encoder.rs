//! The interfaces of the models that searches use, and the encoder of an index. This module loads
//! none: the caller that opens an index passes [`SearchModels`].

use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::DensePart;
use super::passage::Passage;
use super::vectors::EncoderOptions;
use r1_base::error::{Error, Kind, Result};

/// A function from texts to vectors, whose inner product is the similarity of the texts.
pub trait TextEncoder: Send + Sync {
    /// SHA-256 of the model's configuration, weights and tokenizer, in hex.
    fn sha256(&self) -> &str;
    fn directory(&self) -> &Path;
    fn options(&self) -> &EncoderOptions;
    /// Dimension of a vector.
    fn dimension(&self) -> usize;
    /// Whether it runs on a GPU, which computes many texts at once.
    fn is_on_gpu(&self) -> bool {
        false
    }
    /// Vectors of texts, `[texts, dimension]`, one after the other: of unit length for
    /// [`Similarity::Cosine`](super::Similarity::Cosine). The prefixes are not added here.
    ///
    /// # Errors
    /// [`Kind::Model`] for a text that can't be encoded.
    fn encode(&self, texts: &[String]) -> Result<Vec<f32>>;

    /// Number of batches of texts that are encoded at the same time, by several processes.
    fn batches_at_once(&self) -> usize {
        1
    }

    /// [`encode`](Self::encode) of at most [`batches_at_once`](Self::batches_at_once) batches of
    /// texts.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn encode_batches(&self, batches: &[Vec<String>]) -> Result<Vec<Vec<f32>>> {
        batches.iter().map(|texts| self.encode(texts)).collect()
    }
}

/// A model that ranks the best passages again: it reads the query with each of them.
pub trait Reranker: Send + Sync {
    /// The score of a query with each passage.
    ///
    /// # Errors
    /// [`Kind::Model`] for a text that can't be encoded; [`Kind::Numeric`] for a score that is not
    /// finite.
    fn scores(&self, query: &str, passages: &[Passage]) -> Result<Vec<f32>>;
}

/// Loads the models of searches, which are not part of an index; a model without a loader is an
/// error. `encoders::Checkpoints` loads checkpoints, [`NoModels`] none.
pub trait SearchModels: Any + Debug + Send + Sync {
    /// The encoder of a directory with the options of an index.
    ///
    /// # Errors
    /// [`Kind::Model`] for a directory without such a model.
    fn encoder(&self, dir: &Path, _options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
        Err(no_models(dir))
    }

    /// The re-ranking model of a directory.
    ///
    /// # Errors
    /// [`Kind::Model`] for a directory without such a model.
    fn reranker(&self, dir: &Path) -> Result<Arc<dyn Reranker>> {
        Err(no_models(dir))
    }

    /// SHA-256 over the files of a model that vectors and scores depend on, in hex.
    ///
    /// # Errors
    /// [`Kind::Model`] if the files can't be read.
    fn identity(&self, dir: &Path) -> Result<String> {
        Err(no_models(dir))
    }
}

/// For searches by words alone: an error that names the call that is missing.
#[derive(Clone, Copy, Debug)]
pub struct NoModels;

impl SearchModels for NoModels {}

fn no_models(dir: &Path) -> Error {
    Error::new(Kind::Internal, "the search needs a model, and this program gives it no way to load one")
        .at_path(dir)
        .hint(
            "a program that uses the crate opens the index with Index::open_with(…, &r1::encoders::Checkpoints), or \
             loads the script with Script::with_search_models",
        )
}

/// A folder, or a link to one, in the directory of an index: its encoder, if the model was moved
/// after the build.
const OWN: &str = "encoder";

/// The encoder that computed the vectors of an index.
///
/// # Errors
/// [`Kind::Model`] if the model is missing or is a different one.
pub(super) fn of_index(index: &Path, part: &DensePart, models: &dyn SearchModels) -> Result<Arc<dyn TextEncoder>> {
    let own_folder = index.join(OWN);
    let folder: PathBuf = if own_folder.exists() { own_folder.clone() } else { part.encoder.clone() };
    let hint = format!("put the model, or a symbolic link to it, at {}", own_folder.display());
    if !folder.is_dir() {
        return Err(Error::new(Kind::Model, "the encoder of the index is missing").at_path(folder).hint(hint));
    }
    let encoder = models.encoder(&folder, &part.options)?;
    if encoder.sha256() != part.encoder_sha256 {
        let why = "the encoder is not the one with which the index was built: its SHA-256 is";
        return Err(Error::new(Kind::Model, format!("{why} {}, not {}", encoder.sha256(), part.encoder_sha256))
            .at_path(folder)
            .hint(hint));
    }
    if encoder.dimension() != part.dimension {
        let (dimension, wanted) = (encoder.dimension(), part.dimension);
        return Err(Error::new(
            Kind::Data,
            format!("the index has vectors of {wanted} numbers, its encoder of {dimension}"),
        )
        .at_path(index)
        .hint("build the index again with `r1 index build`"));
    }
    Ok(encoder)
}

/// The text of a passage that is encoded: the prefix, the title and the text, as in BEIR.
pub fn passage_text(prefix: &str, passage: &Passage) -> String {
    let space = if passage.title.is_empty() { "" } else { " " };
    format!("{prefix}{}{space}{}", passage.title, passage.text)
}
