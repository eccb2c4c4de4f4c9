//! Marks in the place of images, in messages and in renderings.

use r1_vision::TILE_TOKEN;
use serde_json::{Value, json};

/// Separates the characters of a special token's text, and marks from text. No token contains it,
/// and its characters do not occur in text.
pub(super) const SEPARATOR: &str = "\u{F8FF}\u{FFFE}";

/// Begins the mark of an image; its hash and the text of a template for it follow. The character
/// does not occur in text.
pub(super) const MARK: &str = "\u{FFFF}image:";

/// Characters of a hash.
pub(super) const HASH: usize = 64;

/// A part of a rendering with the text of a template in place of the mark.
pub(super) fn shown(part: &str) -> &str {
    part.strip_prefix(MARK).and_then(|mark| mark.get(HASH..)).unwrap_or(part)
}

/// Messages for a template that takes content as parts, with parts for the marks of images; and
/// the marks.
pub(super) fn to_parts(messages: &mut Value) -> Vec<String> {
    let mut marks = Vec::new();
    for message in messages.as_array_mut().into_iter().flatten() {
        let Some(text) = message["content"].as_str() else { continue };
        let (mut parts, mut before) = (Vec::new(), Vec::new());
        for piece in text.split(SEPARATOR) {
            if piece.starts_with(MARK) {
                parts.extend(text_part(&mut before));
                parts.push(json!({ "type": "image" }));
                marks.push(piece.to_owned());
            } else {
                before.push(piece);
            }
        }
        // A text that is empty is a part, too, unless there is an image.
        parts
            .extend(text_part(&mut before).or_else(|| parts.is_empty().then(|| json!({ "type": "text", "text": "" }))));
        message["content"] = parts.into();
    }
    marks
}

/// The part of text before an image or the end; the separators beside images are left out.
fn text_part(pieces: &mut Vec<&str>) -> Option<Value> {
    let text = std::mem::take(pieces).join(SEPARATOR);
    (!text.is_empty()).then(|| json!({ "type": "text", "text": text }))
}

/// A rendering with the marks in the place of what the template printed for images.
pub(super) fn restored(text: &str, marks: &[String]) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, piece) in text.split(TILE_TOKEN).enumerate() {
        match index.checked_sub(1).map(|index| marks.get(index)) {
            None => {}
            Some(None) => out.push_str(TILE_TOKEN),
            Some(Some(mark)) => out.extend([SEPARATOR, mark, SEPARATOR]),
        }
        out.push_str(piece);
    }
    out
}
