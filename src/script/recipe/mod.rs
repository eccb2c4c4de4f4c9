//! A recipe: loading, settings, environments, rows, the worker that runs trajectories, and reload.

mod checks;
mod close;
pub(crate) mod cold_start;
pub(crate) mod columns;
pub(crate) mod curriculum;
pub(crate) mod datasets;
pub(crate) mod envs;
pub(crate) mod flow;
mod images;
pub(crate) mod literal_keys;
pub(crate) mod load;
mod outside;
pub(crate) mod own_format;
mod prepare;
pub(crate) mod reload;
pub(crate) mod rows;
mod serve;
pub(crate) mod worker;
pub(crate) mod written_settings;
