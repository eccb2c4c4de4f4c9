//! GGUF, the model files of llama.cpp and Ollama (github.com/ggml-org/ggml, docs/gguf.md), versions
//! 2 and 3: metadata, then tensors of numbers or of quantised blocks.
//!
//! - `header`: metadata and tensors of a file
//! - `blocks`: the types of tensors and their dequantisation
//! - `config`: the `config.json` that the metadata describes
//! - `names`: tensors by their names in Hugging Face layout
//!
//! Tokenizers are in `r1_text::gguf`. docs/lab/decisions/0023 explains why no crate reads them.

pub(super) mod blocks;
mod config;
pub(super) mod header;
pub(super) mod names;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

pub use header::{GGUF_FILE, Gguf};
