//! What a run tells its user: metrics, warnings, failures, the lines at its start and end.

pub(crate) mod failures;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod shared_state;
pub(crate) mod tensorboard;
pub(crate) mod warnings;
