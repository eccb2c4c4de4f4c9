//! The settings of a recipe for training, checked before anything runs: those that contradict each
//! other, those without effect, and the estimator and loss that they name.

pub(crate) mod objective;
pub(crate) mod refusals;
pub(crate) mod unused;
pub(crate) mod validate;

#[cfg(test)]
mod tests;
