//! A checkpoint that samples and scores, on CPU and GPU, over libtorch.
//!
//! - [`native`]: C++ over libtorch: operations that `tch` does not bind, and CPU kernels
//! - [`model`]: transformer architectures, their weights and key-value caches
//! - [`engine`]: continuous-batching generation, sampling, prefix reuse
//! - [`adamw`]: the optimiser, in place
//! - [`process_group`]: collectives between processes

pub mod adamw;
pub mod engine;
pub mod model;
pub mod native;
pub mod process_group;
#[cfg(test)]
#[path = "../../../src/reference_data.rs"]
mod reference_data;

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
