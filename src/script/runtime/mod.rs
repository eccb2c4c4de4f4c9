//! One virtual machine: calls in and out under limits, what a script can see, values in both directions.

pub(crate) mod ask;
pub mod budget;
pub(crate) mod convert;
pub(crate) mod failure;
pub(crate) mod grants;
pub(crate) mod habits;
pub(crate) mod host;
pub(crate) mod interpreters;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod rank;
pub(crate) mod record;
pub(crate) mod require;
pub(crate) mod resource;
pub(crate) mod results;
pub(crate) mod sandbox;
pub(crate) mod services;
pub(crate) mod shared_calls;
pub(crate) mod source_map;
pub(crate) mod state;
pub(crate) mod suspended;
pub(crate) mod vm;
