//! The images that the messages of a tokenizer can have.

use std::sync::Arc;

use r1_base::error::{Error, Kind, Result};
use r1_vision::{Images, Processor, VIDEO_TOKENS, VideoProcessor, VideoStyle};
use serde_json::Value;

use super::Tokenizer;
use super::images::ImageText;

impl Tokenizer {
    /// The ids of a part of a prompt: text, or the mark of an image.
    pub(super) fn encode_part(&self, part: &str) -> Result<Vec<u32>> {
        let Some(images) = self.images.get() else { return self.encode(part) };
        if let Some(ids) = images.ids(part, |text| self.encode(text))? {
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
        let tokens = images.processor().special_tokens();
        if let Some(missing) = tokens.iter().find(|name| self.id_of(name).is_none()) {
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
        let [_, token, _] = images.processor().special_tokens();
        let placeholders = [token, VIDEO_TOKENS[1]].into_iter();
        let placeholders = placeholders.filter_map(|token| Some((token, self.id_of(token)?))).collect();
        let _ = self.images.set(ImageText { images, placeholders });
    }

    /// The images that messages can have; `None` for a policy that reads text only.
    pub fn images(&self) -> Option<&Arc<Images>> {
        self.images.get().map(|images| &images.images)
    }

    /// The settings of the processor of images, if the model has one. `patch` and `merge` are sizes
    /// of the vision tower, which files of Idefics3 and SmolVLM don't have.
    ///
    /// # Errors
    /// [`Kind::Model`] for a file that can't be read.
    pub fn image_processor(&self, patch: usize, merge: usize) -> Result<Option<Processor>> {
        let Some(mut json) = self.processor_file("preprocessor_config.json", "image_processor")? else {
            return Ok(None);
        };
        if let Some(fields) = json.as_object_mut().filter(|fields| !fields.contains_key("patch_size")) {
            fields.insert("patch_size".to_owned(), patch.into());
            fields.insert("merge_size".to_owned(), merge.into());
        }
        Processor::from_json(&json).map(Some)
    }

    /// The settings of the processor of videos; of images, if the model has no others.
    ///
    /// # Errors
    /// [`Kind::Model`] for a file that can't be read.
    pub fn video_processor(&self, style: VideoStyle) -> Result<Option<VideoProcessor>> {
        let videos = self.processor_file("video_preprocessor_config.json", "video_processor")?;
        let json = match videos {
            Some(json) => Some(json),
            None => self.processor_file("preprocessor_config.json", "image_processor")?,
        };
        json.map(|json| VideoProcessor::from_json(&json, style)).transpose()
    }

    /// The settings in a file, or in `field` of the file of all processors.
    fn processor_file(&self, name: &str, field: &str) -> Result<Option<Value>> {
        for name in [name, "processor_config.json"] {
            let mut json = self.json(name)?;
            if !json[field].is_null() {
                json = json[field].take();
            }
            if json.get("image_mean").is_some() {
                return Ok(Some(json));
            }
        }
        Ok(None)
    }
}
