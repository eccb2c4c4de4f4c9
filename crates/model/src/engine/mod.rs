//! Continuous-batching generation: scheduler, sampler, prefix reuse.
//!
//! [`channel`] returns an [`EngineClient`] (a [`Policy`](r1_base::mdp::Policy), for the threads
//! that run trajectories) and the [`Queue`] that [`Engine::serve`] processes on the thread that
//! owns the tensors. At most [`MAX_REQUESTS`] requests are queued or running; further submitters
//! wait.
//!
//! A response depends on its request and the weights only, not on the batch, the slot or the cached
//! part of its prompt: random numbers are counter-based, and attention reads the sequence's own
//! slot only. With r1's CPU kernels (f32 and bf16) this holds bitwise, because sums have a fixed
//! order. Elsewhere libtorch's matrix products can round differently for another batch size, which
//! rarely changes a sampled token.
//!
//! On CUDA, tokens are sampled with tensor operations (`device_sampler`), so that logits stay on
//! the device, and steps are queued before the tokens of the step before are read (`step`). On the
//! CPU the host samples row by row (`sampler`). Both give the same tokens from the same
//! probabilities.

mod client;
mod device_sampler;
#[allow(clippy::module_inception)]
mod engine;
mod options;
mod outcome;
mod profile;
mod running;
mod sampler;
mod score;
mod sleep;
mod slots;
mod stats;
mod step;
mod stop;
mod tensor_sampler;
#[cfg(test)]
mod tests;

pub use client::{EngineClient, MAX_REQUESTS, Queue, Sampled, bounded, channel};
pub use engine::Engine;
pub use options::EngineOptions;
pub use score::{ReferenceScorer, logprobs_of};
pub use stats::{EngineProgress, Stats};
pub use step::SamplingMode;
pub use stop::TokenBytes;
