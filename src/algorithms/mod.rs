//! Algorithms as Lua files: `lua/algorithms/gspo.lua` declares an estimator, a loss with its
//! options, other defaults of the trainer, and a paper.
//!
//! A loss is traced once to a [`LossGraph`], which `rl::custom` evaluates with libtorch. An
//! estimator (`advantage`) is called for each group of a batch ([`GroupInput`]); `rl::advantages`
//! makes the groups from rows. The functions of a recipe are run by the same code. Nothing here
//! uses libtorch.

mod estimated;
mod files;
mod graph;
mod group;
mod invalid_op;
mod lua;
mod needs;
mod options;
mod similarity;
mod trace;

pub use estimated::{Caller, Estimated, MemberAdvantages, advantages};
#[cfg(test)]
pub(crate) use files::FIELDS;
pub use files::{AlgorithmFile, FileLoss, NamedChoice, all, find};
pub use graph::{Binary, Clipped, Input, LossAgg, LossGraph, Node, Op, Operand, Over, RatioUse, Shape, Unary};
pub use group::{Anchor, GroupInput, GroupMember, TokenLists};
pub(crate) use lua::{at_function, definition, raise};
pub use needs::{AlgorithmNeed, Level};
pub use options::{Declared, OF_EVERY_LOSS, Range};
pub use trace::{Trace, trace};
