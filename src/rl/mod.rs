//! Pure tensor maths of reinforcement learning: from trajectories to a loss, and from gradients to new weights.
//!
//! The order of use in a training step:
//!
//! 1. [`advantages`]: one number per trajectory, step or token, from rewards and values
//! 2. [`pack`]: steps merged into rows, rows into micro-batches, and the tensors a forward pass wants
//! 3. [`loss`] and [`kl`]: a loss per sampled token, from log-probabilities
//! 4. [`aggregate`]: token losses into one number, with the denominators of the whole mini-batch
//! 5. [`adamw`] with a [`schedule`]: the update
//!
//! Nothing here knows a model, text or files. A *sampled* token is one the policy wrote; everything else in a row is
//! context, and no loss or gradient ever touches its log-probability.

pub mod adamw;
pub mod advantages;
pub mod aggregate;
pub mod kl;
pub mod loss;
pub mod pack;
pub mod schedule;

#[cfg(test)]
mod tests;
