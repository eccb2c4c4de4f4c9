//! The content of a tool's result as text for the policy.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The text of a result: its blocks, one after the other. Images, audio and binary resources are
/// marks with type and size.
pub(super) fn text(result: &CallToolResult) -> String {
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    match &result.structured_content {
        // Servers repeat structured content as text; this one did not.
        Some(structured) if blocks.is_empty() => structured.to_string(),
        _ => blocks.join("\n"),
    }
}

/// The files of the images of a result, for policies that read images. Data that is no base64 is an
/// empty file.
pub(super) fn images(result: &CallToolResult) -> Vec<Vec<u8>> {
    let file = |block: &ContentBlock| match block {
        ContentBlock::Image(image) => Some(BASE64_STANDARD.decode(&image.data).unwrap_or_default()),
        _ => None,
    };
    result.content.iter().filter_map(file).collect()
}

fn block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => mark("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => mark("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[resource {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = mime_type.as_deref().unwrap_or("application/octet-stream");
                mark(&format!("resource {uri}:"), kind, blob)
            }
            _ => "[resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("[resource {}{about}]", link.uri)
        }
        _ => "[content of an unknown kind]".to_owned(),
    }
}

/// `[image image/png, 1234 bytes]`; the size is the number of bytes of the data, not of its base64
/// form.
fn mark(what: &str, kind: &str, data: &str) -> String {
    let padding = data.bytes().rev().take_while(|byte| *byte == b'=').count();
    let bytes = (data.len() * 3 / 4).saturating_sub(padding);
    format!("[{what} {kind}, {bytes} bytes]")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn read(result: serde_json::Value) -> String {
        text(&serde_json::from_value(result).unwrap())
    }

    #[test]
    fn mcp_results_with_images_and_resources_are_text() {
        let result = json!({ "content": [
            { "type": "text", "text": "two\nlines" },
            { "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" },
            { "type": "audio", "data": "aGVsbG8h", "mimeType": "audio/wav" },
            { "type": "resource", "resource": { "uri": "file:///a.txt", "text": "inside" } },
            { "type": "resource", "resource": { "uri": "file:///a.bin", "blob": "AAA=" } },
            { "type": "resource_link", "uri": "file:///b", "name": "b", "description": "more" },
        ] });
        insta::assert_snapshot!(read(result), @r"
        two
        lines
        [image image/png, 5 bytes]
        [audio audio/wav, 6 bytes]
        [resource file:///a.txt]
        inside
        [resource file:///a.bin: application/octet-stream, 2 bytes]
        [resource file:///b: more]
        ");
        assert_eq!(read(json!({ "content": [], "structuredContent": { "sum": 3 } })), r#"{"sum":3}"#);
        let both = json!({ "content": [{ "type": "text", "text": "3" }], "structuredContent": { "sum": 3 } });
        assert_eq!(read(both), "3");
    }
}
