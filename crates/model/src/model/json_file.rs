//! JSON files of a model, and their values in messages.

use std::path::Path;

use r1_base::error::{Error, Kind, Result};

/// Maximum size of a JSON file of a model, bytes. The index of the largest public models has 15 MB.
const MAX_JSON: u64 = 64 << 20;

/// Reads a JSON file; `what` describes it in errors. Refuses special files and files above
/// `MAX_JSON` before reading.
///
/// # Errors
/// `Kind::Model` with the path.
pub fn read_json(path: &Path, what: &str) -> Result<serde_json::Value> {
    let failed = |error: &std::io::Error| Error::io(Kind::Model, &format!("read {what}"), path, error);
    let bad = |why: String| Error::new(Kind::Model, format!("{what} {why}")).at_path(path);
    let metadata = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(bad("is not a file".to_owned()));
    }
    if metadata.len() > MAX_JSON {
        return Err(bad(format!("has {} bytes; no model's has more than {MAX_JSON}", metadata.len())));
    }
    let bytes = std::fs::read(path).map_err(|error| failed(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(format!("is not JSON: {error}")))
}

/// Truncates a value of a file for a message.
pub(super) fn clipped(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
