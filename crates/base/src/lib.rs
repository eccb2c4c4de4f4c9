//! The plain data of r1, without I/O, tensors and scripts.
//!
//! - [`error`]: the error type, exit codes, hints
//! - [`mdp`]: the step-level MDP: message, observation, action, step, trajectory; the
//!   [`mdp::Policy`] trait
//! - [`schema`]: declarations of settings, one for struct, defaults, reader, reference and reload
//! - [`units`]: times and sizes as text
//! - [`json`]: JSON of other programs
//! - [`clock`]: CPU time of a thread
//! - [`glob`]: names that match a pattern
//! - [`timeline`]: spans of time for profiles

pub mod clock;
mod device;
pub mod error;
pub mod glob;
pub mod json;
mod libtorch;
pub mod mdp;
pub mod schema;
pub mod timeline;
pub mod units;

pub use device::{DeviceChoice, Dtype};
pub use error::{Error, Kind, Result};
pub use libtorch::out_of_memory;

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
