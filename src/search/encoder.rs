//! The interface of text encoders, and loading of the encoder of an index.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::DensePart;
use super::passage::Passage;
use super::vectors::EncoderOptions;
use crate::error::{Error, Kind, Result};

/// A function from texts to vectors, whose inner product is the similarity of the texts.
/// [`load_encoder`] loads a BERT checkpoint; [`Index::open_with`] accepts other encoders.
///
/// [`load_encoder`]: super::load_encoder
/// [`Index::open_with`]: super::Index::open_with
pub trait TextEncoder: Send + Sync {
    /// SHA-256 of the model's configuration, weights and tokenizer, in hex.
    fn sha256(&self) -> &str;
    /// The directory of the model.
    fn directory(&self) -> &Path;
    fn options(&self) -> &EncoderOptions;
    /// Dimension of a vector.
    fn dimension(&self) -> usize;
    /// Vectors of texts, `[texts, dimension]`, one after the other: of unit length for
    /// [`Similarity::Cosine`](super::Similarity::Cosine). The prefixes are not added here.
    ///
    /// # Errors
    /// [`Kind::Model`] for a text that can't be encoded.
    fn encode(&self, texts: &[String]) -> Result<Vec<f32>>;
}

/// Loads the encoder of a directory with the options of an index.
pub type LoadEncoder = fn(&Path, &EncoderOptions) -> Result<Arc<dyn TextEncoder>>;

/// A folder, or a link to one, in the directory of an index: its encoder, if the model was moved
/// after the build.
const OWN: &str = "encoder";

/// The encoder that computed the vectors of an index.
///
/// # Errors
/// [`Kind::Model`] if the model is missing or is a different one.
pub(super) fn of_index(index: &Path, part: &DensePart, load: LoadEncoder) -> Result<Arc<dyn TextEncoder>> {
    let own = index.join(OWN);
    let place: PathBuf = if own.exists() { own.clone() } else { part.encoder.clone() };
    let hint = format!("put the model, or a symbolic link to it, at {}", own.display());
    if !place.is_dir() {
        return Err(Error::new(Kind::Model, "the encoder of the index is missing").at_path(place).hint(hint));
    }
    let encoder = load(&place, &part.options)?;
    if encoder.sha256() != part.encoder_sha256 {
        let why = "the encoder is not the one with which the index was built: its SHA-256 is";
        return Err(Error::new(Kind::Model, format!("{why} {}, not {}", encoder.sha256(), part.encoder_sha256))
            .at_path(place)
            .hint(hint));
    }
    if encoder.dimension() != part.dimension {
        let (found, wanted) = (encoder.dimension(), part.dimension);
        return Err(Error::new(
            Kind::Data,
            format!("the index has vectors of {wanted} numbers, its encoder of {found}"),
        )
        .at_path(index)
        .hint("build the index again with `r1 index build`"));
    }
    Ok(encoder)
}

/// The text of a passage that is encoded: the prefix, the title and the text, as in BEIR.
pub(super) fn passage_text(prefix: &str, passage: &Passage) -> String {
    let space = if passage.title.is_empty() { "" } else { " " };
    format!("{prefix}{}{space}{}", passage.title, passage.text)
}
