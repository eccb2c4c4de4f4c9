//! The trajectories that an estimator reads.

use crate::algorithms::AlgorithmNeed;
use crate::error::{Error, Kind};
use crate::rl::rows::{Batch, Path};

/// The trajectories that an estimator compares with each other.
pub(super) struct ComparedTrajectories<'a> {
    pub(super) batch: &'a Batch<'a>,
    pub(super) paths: Vec<&'a Path>,
}

impl<'a> ComparedTrajectories<'a> {
    /// The trajectories of a batch, without failures. An estimator that needs groups leaves out a
    /// trajectory whose group has no other member that did not fail.
    pub(super) fn of(batch: &'a Batch<'a>, needs: &[AlgorithmNeed]) -> Self {
        let in_groups = needs.contains(&AlgorithmNeed::Groups);
        Self { batch, paths: batch.counted().filter(|path| !(in_groups && path.only_finished)).collect() }
    }

    /// The return of each trajectory: the sum of its rewards.
    pub(super) fn returns(&self) -> Vec<f64> {
        self.paths.iter().map(|path| path.total).collect()
    }

    /// The group of each trajectory.
    pub(super) fn groups(&self) -> Vec<u64> {
        self.paths.iter().map(|path| path.group).collect()
    }

    /// Some of the trajectories.
    pub(super) fn only(&self, paths: Vec<&'a Path>) -> Self {
        Self { batch: self.batch, paths }
    }

    /// The error for a trajectory that lacks an input.
    pub(super) fn missing(&self, path: &Path, what: &str) -> Error {
        let number = path.rows.first().map_or(0, |&i| self.batch.rows[i].trajectory);
        Error::new(Kind::Usage, what).in_trajectories(vec![number], None)
    }
}
