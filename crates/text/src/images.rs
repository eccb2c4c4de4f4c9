//! Images in messages: their tokens in a prompt.
//!
//! A template prints the messages with a mark in the place of each image, between separators
//! (`marks`). When the text is encoded, the mark becomes the tokens of the image and of the text
//! around them.

use std::sync::Arc;

use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{image_id, image_number};
use r1_vision::Images;

use super::mark_text::{HASH, MARK};

/// What a tokenizer knows of images.
#[derive(Debug)]
pub(super) struct ImageText {
    pub images: Arc<Images>,
    /// The tokens that stand for an image or a video in a text, which the tokenizer has.
    pub placeholders: Vec<(&'static str, u32)>,
}

impl ImageText {
    /// The ids of the image if `text` is a mark. `encode` gives the ids of text.
    pub(super) fn ids(&self, text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Option<Vec<u32>>> {
        let hash = text.strip_prefix(MARK).and_then(|mark| mark.get(..HASH));
        let Some(number) = hash.and_then(|hash| self.images.number(hash)) else { return Ok(None) };
        let mut ids = Vec::new();
        for (text, tokens) in self.images.text(number)? {
            ids.extend(encode(&text)?);
            ids.extend(std::iter::repeat_n(image_id(number), tokens));
        }
        Ok(Some(ids))
    }

    /// The token that stands for an image in a text.
    pub(super) fn token(&self) -> &'static str {
        self.images.processor().special_tokens()[1]
    }

    /// Refuses ids of text that stand for an image, without one.
    pub(super) fn check(&self, ids: &[u32]) -> Result<()> {
        let Some((token, _)) = self.placeholders.iter().find(|(_, id)| ids.contains(id)) else { return Ok(()) };
        Err(Error::new(Kind::Env, format!("a text has {token}, which stands for an image, and there is none"))
            .hint("give the image as a part of the message: r1.image { path = … }"))
    }
}

/// Divides ids into texts and images: `None` is an image.
pub(super) fn runs(ids: &[u32]) -> impl Iterator<Item = Option<&[u32]>> {
    ids.chunk_by(|one, other| match (image_number(*one), image_number(*other)) {
        (None, None) => true,
        (one, other) => one == other,
    })
    .map(|run| run.first().is_none_or(|id| image_number(*id).is_none()).then_some(run))
}
