//! Conversations for servers, which apply their chat templates themselves.

use super::Format;
use r1_base::error::Result;
use r1_base::mdp::{ChatMessage, ChatPart, Content, Message, Part, Role, ToolCall};
use r1_vision::Images;

/// Finds an earlier call by its id, with the text of its reply.
pub type EarlierCall<'a> = dyn Fn(&str) -> Option<(&'a str, &'a ToolCall)> + 'a;

/// The messages for a server. An env keeps the text of a reply and the results of its calls; the
/// calls themselves come from `earlier` and are inserted between the two. A result of a call that
/// the server did not return as data (the call is in the text, or could not be parsed) is a user
/// message: in the recipe's tool-call format if that writes results, and the plain result if the
/// chat template writes them (Hermes).
///
/// # Errors
/// `Kind::Script` if the recipe's own format fails; `Kind::Env` for an unknown image.
pub fn chat_messages(
    messages: &[Message],
    earlier: &EarlierCall<'_>,
    format: Option<&Format>,
    images: Option<&Images>,
) -> Result<Vec<ChatMessage>> {
    let mut converted = Vec::with_capacity(messages.len());
    // Ids of calls without a result so far.
    let mut open: Vec<String> = Vec::new();
    // Images of results. APIs have text in results, so that a message of the user follows them.
    let mut shown: Vec<Part> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message.role != Role::Tool && !shown.is_empty() {
            converted.push(user(&Content::Parts(std::mem::take(&mut shown)), images)?);
        }
        let text = message.content.text();
        converted.push(match message.role {
            Role::System => ChatMessage::System(text),
            Role::User => user(&message.content, images)?,
            Role::Assistant => {
                let results = messages[index + 1..].iter().take_while(|next| next.role == Role::Tool);
                let calls: Vec<ToolCall> = results
                    .filter_map(|result| result.tool_call_id.as_deref())
                    .filter_map(|id| call_of(message, &text, id, earlier))
                    .collect();
                open = calls.iter().filter_map(|call| call.id.clone()).collect();
                ChatMessage::Assistant { text, calls }
            }
            Role::Tool => {
                let id = message.tool_call_id.as_ref().filter(|id| open.contains(id));
                match (id, format) {
                    (Some(id), _) => {
                        shown.extend(message.content.images().map(|hash| Part::Image { hash: hash.to_owned() }));
                        ChatMessage::Result { id: id.clone(), text }
                    }
                    (None, Some(format)) if message.content.images().next().is_none() => {
                        ChatMessage::User(format.result(std::slice::from_ref(message))?)
                    }
                    (None, _) => user(&message.content, images)?,
                }
            }
        });
    }
    if !shown.is_empty() {
        converted.push(user(&Content::Parts(shown), images)?);
    }
    Ok(converted)
}

/// A message of the user, with the images that it has.
fn user(content: &Content, images: Option<&Images>) -> Result<ChatMessage> {
    let (Content::Parts(parts), Some(images)) = (content, images.filter(|_| content.images().next().is_some())) else {
        return Ok(ChatMessage::User(content.text()));
    };
    let mut shown = Vec::new();
    for part in parts {
        match part {
            Part::Text { text } => shown.push(ChatPart::Text(text.clone())),
            // A video is shown as its frames.
            Part::Image { hash } | Part::Video { hash } => {
                let files = images.encoded(hash)?;
                shown.extend(files.into_iter().map(|(media_type, base64)| ChatPart::Image { media_type, base64 }));
            }
        }
    }
    Ok(ChatMessage::UserParts(shown))
}

/// The call of a reply with this id: one of the message itself, or an earlier one of a reply with
/// the same text.
fn call_of(message: &Message, text: &str, id: &str, earlier: &EarlierCall<'_>) -> Option<ToolCall> {
    if let Some(call) = message.tool_calls.iter().find(|call| call.id.as_deref() == Some(id)) {
        return Some(call.clone());
    }
    let (reply, call) = earlier(id)?;
    (reply == text).then(|| call.clone())
}
