//! The embedded model: its files in this binary, and their directory on disk.

use std::path::PathBuf;

use super::MODEL_NANO;
use super::cached::CachedModel;
use crate::error::{Error, Kind, Result};

/// The embedded model's files, so that `r1` works from any directory. `just nano` makes the model
/// with a binary that does not have it yet (build.rs).
#[cfg(not(nano))]
const NANO_FILES: [(&str, &[u8]); 0] = [];
#[cfg(nano)]
const NANO_FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../models/r1-nano/config.json")),
    ("generation_config.json", include_bytes!("../../models/r1-nano/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/r1-nano/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/r1-nano/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/r1-nano/tokenizer_config.json")),
];

/// The directory of the embedded model, which is written once per content.
pub(super) fn unpack_nano() -> Result<PathBuf> {
    if NANO_FILES.is_empty() {
        return Err(Error::new(Kind::Model, "this binary was built without the embedded model")
            .hint("make it with `just nano`, then `just build`"));
    }
    CachedModel { name: MODEL_NANO, what: "the embedded model", files: NANO_FILES.to_vec(), link: None }
        .directory(|_| Ok(()))
}
