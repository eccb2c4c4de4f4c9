//! Continuous-batching generation: scheduler, sampler, prefix reuse.
//!
//! [`channel`] returns an [`EngineClient`] (a [`Policy`], for the threads that run trajectories) and the [`Queue`] that
//! [`Engine::serve`] processes on the thread that owns the tensors. At most [`MOST_REQUESTS`] requests are queued or
//! running; further submitters wait. [`Scripted`] is a policy without a model.
//!
//! A reply depends on its request and the weights, not on what else is in the batch, on the slot, or on how much of its
//! prompt came from the cache: random numbers are counter-based and every sequence sees its own slot only. Where
//! the native step computes (f32 and bf16 on the CPU) this holds to the bit, because it sums in the same order whatever
//! the batch; elsewhere libtorch's products may round differently for another number of rows, which flips a choice once
//! in many tokens.

mod client;
#[allow(clippy::module_inception)]
mod engine;
mod options;
mod policy;
mod running;
mod sampler;
mod score;
mod scripted;
mod slots;
mod stats;
mod stop;
#[cfg(test)]
mod tests;

pub use client::{EngineClient, MOST_REQUESTS, Queue, Sampled, bounded, channel};
pub use engine::Engine;
pub use options::EngineOptions;
pub use policy::{PendingReply, Policy, Scoring};
pub use score::{ReferenceScorer, logprobs_of};
pub use scripted::Scripted;
pub use stats::{Progress, Stats};
pub use stop::TokenBytes;
