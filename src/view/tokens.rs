//! The texts of token ids, from the tokenizer of a run's checkpoint or of the model that it began
//! with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::store::{StoredRun, latest_checkpoint};
use crate::text::Tokenizer;

/// The tokens of tokenizers by their directories.
#[derive(Debug, Default)]
pub(super) struct Vocabularies(Mutex<BTreeMap<PathBuf, Arc<Vec<Vec<u8>>>>>);

impl Vocabularies {
    /// The texts of tokens by id; `None` without a tokenizer.
    pub(super) fn of(&self, run: &StoredRun) -> Option<Arc<Vec<Vec<u8>>>> {
        let directory = tokenizer_of(run)?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokens) = all.get(&directory) {
            return Some(Arc::clone(tokens));
        }
        let tokens = Arc::new(Tokenizer::load(&directory).ok()?.token_bytes());
        all.insert(directory, Arc::clone(&tokens));
        Some(tokens)
    }
}

/// A directory with the tokenizer of a run.
fn tokenizer_of(run: &StoredRun) -> Option<PathBuf> {
    let checkpoint = latest_checkpoint(run.path()).ok().flatten().map(|(_, path)| path);
    let folders = ["best", "init"].map(|name| run.path().join(name));
    let model = run.configurations().next_back()?.origins.model.as_ref().map(|model| model.path.clone());
    let all = checkpoint.into_iter().chain(folders).chain(model);
    all.into_iter().find(|path: &PathBuf| is_tokenizer(path))
}

fn is_tokenizer(directory: &Path) -> bool {
    directory.join("tokenizer.json").is_file()
}

/// The text of a token; bytes that are no UTF-8 alone are written as `\xe2`.
pub(super) fn token_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_part_of_a_character_are_escaped() {
        assert_eq!(token_text("é!".as_bytes()), "é!");
        assert_eq!(token_text(b"a\xe2\x82"), "a\\xe2\\x82");
    }
}
