//! Images in messages: their tokens in a prompt.
//!
//! A template prints the messages with a mark in the place of each image, between separators
//! (`marks`). When the text is encoded, the mark becomes the tokens of the image.

use std::sync::Arc;

use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{image_id, image_number};
use r1_vision::Images;

/// Begins the mark of an image; its hash follows. The character does not occur in text.
pub(super) const MARK: &str = "\u{FFFF}image:";

/// Tokens of Qwen's models: before the tokens of an image, in their place, and after them.
pub const IMAGE_TOKENS: [&str; 3] = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];

/// What a tokenizer knows of images.
#[derive(Debug)]
pub(super) struct ImageText {
    pub images: Arc<Images>,
    /// The id of the token that stands for an image in a text, if the tokenizer has it.
    pub placeholder: Option<u32>,
}

impl ImageText {
    /// The ids of the image if `text` is a mark.
    pub(super) fn ids(&self, text: &str) -> Result<Option<Vec<u32>>> {
        let Some(number) = text.strip_prefix(MARK).and_then(|hash| self.images.number(hash)) else { return Ok(None) };
        Ok(Some(vec![image_id(number); self.images.tokens(number)?]))
    }

    /// Refuses ids of text that stand for an image, without one.
    pub(super) fn check(&self, ids: &[u32]) -> Result<()> {
        if !self.placeholder.is_some_and(|placeholder| ids.contains(&placeholder)) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Env,
            format!("a text has {}, which stands for an image, and there is none", IMAGE_TOKENS[1]),
        )
        .hint("give the image as a part of the message: r1.image { path = … }"))
    }
}

/// A rendering with the token that stands for an image in place of its mark.
pub(super) fn shown(part: &str) -> &str {
    if part.starts_with(MARK) { IMAGE_TOKENS[1] } else { part }
}

/// Divides ids into texts and images: `None` is an image.
pub(super) fn runs(ids: &[u32]) -> impl Iterator<Item = Option<&[u32]>> {
    ids.chunk_by(|one, other| match (image_number(*one), image_number(*other)) {
        (None, None) => true,
        (one, other) => one == other,
    })
    .map(|run| run.first().is_none_or(|id| image_number(*id).is_none()).then_some(run))
}

/// The text of the tokens of an image.
pub(super) fn placeholder() -> &'static str {
    IMAGE_TOKENS[1]
}
