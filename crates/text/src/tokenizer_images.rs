//! The images that the messages of a tokenizer can have.

use std::sync::Arc;

use r1_base::error::{Error, Kind, Result};
use r1_vision::{Images, Processor};

use super::Tokenizer;
use super::images::{IMAGE_TOKENS, ImageText};

impl Tokenizer {
    /// The ids of a part of a prompt: text, or the mark of an image.
    pub(super) fn encode_part(&self, part: &str) -> Result<Vec<u32>> {
        let Some(images) = self.images.get() else { return self.encode(part) };
        if let Some(ids) = images.ids(part)? {
            return Ok(ids);
        }
        let ids = self.encode(part)?;
        images.check(&ids)?;
        Ok(ids)
    }

    /// Sets the images that messages can have.
    ///
    /// # Errors
    /// [`Kind::Model`] for a tokenizer without the tokens around an image.
    pub fn set_images(&self, images: Arc<Images>) -> Result<()> {
        if let Some(missing) = IMAGE_TOKENS.iter().find(|name| self.id_of(name).is_none()) {
            let message = format!("the tokenizer has no token {missing}, which a model that reads images needs");
            return Err(Error::new(Kind::Model, message).at(self.origin()));
        }
        self.set_images_of_another_model(images);
        Ok(())
    }

    /// The same for a tokenizer that replaces the one of a model that reads images, where only
    /// messages are checked.
    pub fn set_images_of_another_model(&self, images: Arc<Images>) {
        // A second call has the same images.
        let _ = self.images.set(ImageText { images, placeholder: self.id_of(IMAGE_TOKENS[1]) });
    }

    /// The images that messages can have; `None` for a policy that reads text only.
    pub fn images(&self) -> Option<&Arc<Images>> {
        self.images.get().map(|images| &images.images)
    }

    /// The settings of the processor of images, if the model has one.
    ///
    /// # Errors
    /// [`Kind::Model`] for a file that can't be read.
    pub fn image_processor(&self) -> Result<Option<Processor>> {
        for name in ["preprocessor_config.json", "processor_config.json"] {
            let mut json = self.json(name)?;
            if !json["image_processor"].is_null() {
                json = json["image_processor"].take();
            }
            if !json["patch_size"].is_null() {
                return Processor::from_json(&json).map(Some);
            }
        }
        Ok(None)
    }
}
