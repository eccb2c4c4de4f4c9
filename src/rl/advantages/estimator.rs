//! The trait of advantage estimators.

use std::fmt::Debug;

use super::result::Advantages;
use super::trajectories::ComparedTrajectories;
use crate::algorithms::{AlgorithmNeed, Level};
use crate::error::Result;

/// An advantage estimator: a type whose fields are its options. A script sets them by the names of
/// the fields.
pub(super) trait AdvantageEstimator: Debug + Send + Sync {
    /// Inputs that the host must provide.
    fn needs(&self) -> &[AlgorithmNeed];

    /// The unit of one of its advantages.
    fn level(&self) -> Level {
        Level::Trajectory
    }

    /// Refuses options outside of their range. `name` is the name of the estimator, for the
    /// message.
    fn check(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Writes the advantages of the compared trajectories, and a critic's targets, into `found`,
    /// which is 0 everywhere.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) names the trajectory that lacks a number that the
    /// estimator needs.
    fn estimate(&self, compared: &ComparedTrajectories<'_>, result: &mut Advantages) -> Result<()>;
}
