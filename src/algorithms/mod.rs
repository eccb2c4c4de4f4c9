//! Algorithms as Lua files: `lua/algorithms/gspo.lua` declares an estimator, a loss with its
//! options, other defaults of the trainer, and a paper.
//!
//! A loss is traced once to a [`LossGraph`], which `rl::custom` evaluates with libtorch. The
//! functions of a recipe are traced by the same code. Nothing here uses libtorch.

mod files;
mod graph;
mod invalid_op;
mod lua;
mod options;
mod trace;

#[cfg(test)]
pub(crate) use files::FIELDS;
pub use files::{Algorithm, Loss, NamedChoice, all, find};
pub use graph::{Binary, Clipped, Input, LossAgg, LossGraph, Node, Op, Operand, Over, RatioUse, Shape, Unary};
pub(crate) use lua::{definition, raise};
pub use options::{Declared, Range};
pub use trace::{Trace, trace};
