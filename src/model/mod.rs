//! Transformer architectures over libtorch: one a file, with weights (safetensors) and key-value cache.
//!
//! - [`Config`]: a Hugging Face `config.json`, checked: what would change the arithmetic and is not supported is refused
//! - [`Qwen2`]: load, make, save; [`Qwen2::forward`] for learning, [`Qwen2::step`] for generation
//! - [`Packed`]: rows laid end to end, no padding; [`Span`]: a piece of one sequence for the cache
//! - [`KvCache`]: keys and values of many sequences, one slot each

mod batch;
mod cache;
mod config;
mod layers;
mod plain;
mod qwen2;
mod weights;

pub use batch::{Packed, Span};
pub use cache::KvCache;
pub use config::Config;
pub use qwen2::Qwen2;

pub use crate::native::softmax;

#[cfg(test)]
mod tests;
