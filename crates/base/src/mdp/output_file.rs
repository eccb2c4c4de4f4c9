//! A file that a program wrote, as kept with its result: text as it is, other content as base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// A file of a program's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputFile {
    /// Path in the program's directory.
    pub name: String,
    /// Bytes.
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl OutputFile {
    /// A file; `None` for content that is not kept.
    pub fn new(name: String, size: u64, content: Option<Vec<u8>>) -> Self {
        let (text, base64) = match content.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(other)) => (None, Some(STANDARD.encode(other.as_bytes()))),
        };
        Self { name, size, text, base64 }
    }

    /// Whether its content is kept.
    pub fn has_content(&self) -> bool {
        self.text.is_some() || self.base64.is_some()
    }

    /// Its content, if it is kept.
    pub fn content(&self) -> Option<Vec<u8>> {
        let decoded = || self.base64.as_ref().and_then(|text| STANDARD.decode(text).ok());
        self.text.clone().map(String::into_bytes).or_else(decoded)
    }
}
