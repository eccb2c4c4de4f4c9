//! Pure tensor maths of reinforcement learning: from trajectories to a loss, and from gradients to
//! new weights.
//!
//! The order of use in a training step:
//!
//! 1. [`filter`]: which groups are kept
//! 2. [`rewards`] and [`advantages`]: one number per trajectory, step or token, from the [`rows`]
//!    of a batch
//! 3. [`pack`]: steps merged into rows, rows into micro-batches, and the tensors of a forward pass
//! 4. [`objective`]: a loss by name from [`losses`], with [`kl`] and [`correction`]; [`custom`]
//!    computes those in Lua
//! 5. [`aggregate`]: token losses into one number, with the denominators of the whole mini-batch
//! 6. [`adamw`](crate::adamw) with a [`schedule`], and [`ema`]: the update
//!
//! [`compare`] compares two rewards. [`plain`] computes the same over tables of numbers, for
//! scripts. `train::rules::combinations` has the rules of valid combinations.
//!
//! Nothing here depends on a model, text or files. A *sampled* token is one that the policy
//! generated; all other tokens of a row are context, and have no loss and no gradient.

pub mod advantages;
pub mod aggregate;
pub mod compare;
pub mod correction;
pub mod custom;
pub mod ema;
pub mod filter;
pub mod kl;
pub mod losses;
pub mod objective;
mod options;
pub mod pack;
pub mod plain;
pub mod reference;
pub mod rewards;
pub mod rows;
pub mod schedule;
mod segments;

#[cfg(test)]
mod tests;
