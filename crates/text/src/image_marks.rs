//! Marks in the place of images in messages, and checks of them.

use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Content, Message, Part};
use r1_vision::{Images, VIDEO_TOKENS};

use super::mark_text::{MARK, SEPARATOR};

/// The number of images in messages.
pub(super) fn count(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.content.images().count()).sum()
}

/// Refuses images in messages that `images` does not have.
pub(super) fn check(messages: &[Message], images: Option<&Images>) -> Result<()> {
    for hash in messages.iter().flat_map(|message| message.content.images()) {
        match images {
            None => {
                return Err(Error::new(Kind::Model, format!("this policy can't see image {hash}"))
                    .hint("leave images out of the messages, or use a vision model"));
            }
            Some(images) if images.number(hash).is_none() => {
                return Err(Error::new(Kind::Env, format!("there is no image {hash}"))
                    .hint("r1.image { path = … } returns the part of a message for an image"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Refuses a rendering that does not have the images of the messages.
pub(super) fn check_printed(text: &str, messages: &[Message]) -> Result<()> {
    let (printed, wanted) = (text.split(SEPARATOR).filter(|part| part.starts_with(MARK)).count(), count(messages));
    if printed == wanted {
        return Ok(());
    }
    let message = format!("the messages have {wanted} images, and the chat template prints {printed} of them");
    Err(Error::new(Kind::Model, message).hint("put images into messages whose content the template prints unchanged"))
}

/// The messages with marks in the place of images.
pub(super) fn marked(messages: &[Message], images: &Images) -> Vec<Message> {
    let text = |part: &Part| match part {
        Part::Text { text } => text.clone(),
        Part::Image { hash } | Part::Video { hash } => {
            let is_video = matches!(part, Part::Video { .. });
            let template_text = if is_video { VIDEO_TOKENS.concat() } else { images.processor().template_text() };
            format!("{SEPARATOR}{MARK}{hash}{template_text}{SEPARATOR}")
        }
    };
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Content::Parts(parts) = &message.content {
            message.content = Content::Text(parts.iter().map(text).collect());
        }
    }
    messages
}

#[cfg(test)]
mod tests;
