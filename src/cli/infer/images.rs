//! Questions of a chat with their images.

use std::path::Path;

use super::chat::Chat;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Content, Part};
use crate::rollout::Attempt;

/// A question of the conversation.
pub(super) struct AskedQuestion {
    pub text: String,
    /// Hashes of its images.
    pub images: Vec<String>,
    /// The conversation before it.
    pub before: Option<Attempt>,
}

impl Chat {
    /// Shows the image of a file with the next question.
    ///
    /// # Errors
    /// `Kind::Data` for a file that is no image; `Kind::Usage` for a policy that reads text only.
    pub(super) fn show_image(&mut self, path: &Path) -> Result<()> {
        let Some(images) = self.script.renderer.images().filter(|_| !self.script.is_recipe) else {
            let refused = |why: &str| Error::new(Kind::Usage, format!("the image can't be shown: {why}")).at_path(path);
            return Err(if self.script.is_recipe {
                refused("a recipe has images of its own").hint("--plain leaves out the recipe of a run")
            } else {
                refused("the model reads text only")
            });
        };
        let file = std::fs::read(path).map_err(|error| Error::io(Kind::Data, "read the image", path, &error))?;
        let number = images.add(&file).map_err(|error| error.at_path(path))?;
        self.images.push(images.image(number)?.hash.clone());
        Ok(())
    }

    /// A question with the images that it shows.
    pub(super) fn with_images(&self, question: &str) -> Content {
        if self.images.is_empty() {
            return Content::Text(question.to_owned());
        }
        let images = self.images.iter().map(|hash| Part::Image { hash: hash.clone() });
        Content::Parts(images.chain([Part::Text { text: question.to_owned() }]).collect())
    }
}
