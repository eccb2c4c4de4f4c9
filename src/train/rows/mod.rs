//! The rows of the data: which one is next, and their form as conversations.

pub(crate) mod curriculum;
pub(crate) mod demonstrations;
pub(crate) mod order;
pub(crate) mod row_check;
pub(crate) mod selection;
