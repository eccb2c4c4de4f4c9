//! Questions of a chat with their images and videos.

use std::path::Path;

use super::chat::Chat;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Content, Part};
use crate::rollout::Attempt;

/// A question of the conversation.
pub(super) struct AskedQuestion {
    pub text: String,
    /// Its images and videos.
    pub images: Vec<Part>,
    /// The conversation before it.
    pub before: Option<Attempt>,
}

impl Chat {
    /// Whether the policy reads images that the user shows.
    pub(super) fn sees_images(&self) -> bool {
        !self.script.is_recipe && self.script.renderer.images().is_some()
    }

    /// Shows the image of a file, or its frames as a video, with the next question.
    ///
    /// # Errors
    /// `Kind::Data` for a file that is no image; `Kind::Usage` for a policy that reads text only.
    pub(super) fn show_image(&mut self, path: &Path, is_video: bool) -> Result<()> {
        let name = if is_video { "video" } else { "image" };
        let Some(images) = self.script.renderer.images().filter(|_| !self.script.is_recipe) else {
            let refused =
                |why: &str| Error::new(Kind::Usage, format!("the {name} can't be shown: {why}")).at_path(path);
            return Err(if self.script.is_recipe {
                refused("a recipe has images of its own").hint("--plain leaves out the recipe of a run")
            } else {
                refused("the model reads text only")
            });
        };
        let file =
            std::fs::read(path).map_err(|error| Error::io(Kind::Data, &format!("read the {name}"), path, &error))?;
        let added = if is_video { images.add_video_file(&file, None) } else { images.add(&file) };
        let hash = images.image(added.map_err(|error| error.at_path(path))?)?.hash.clone();
        self.images.push(if is_video { Part::Video { hash } } else { Part::Image { hash } });
        Ok(())
    }

    /// A question with the images and videos that it shows.
    pub(super) fn with_images(&self, question: &str) -> Content {
        if self.images.is_empty() {
            return Content::Text(question.to_owned());
        }
        let text = Part::Text { text: question.to_owned() };
        Content::Parts(self.images.iter().cloned().chain([text]).collect())
    }
}
