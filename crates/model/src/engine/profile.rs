//! A profile of some decode steps.

use std::path::PathBuf;

use super::Engine;
use crate::model::{OperationTime, start_profile, stop_profile};
use r1_base::error::Result;

/// Steps before the profile, which record graphs and compute prompts.
const WARM_UP: usize = 8;

/// A profile of `steps` steps, which begins after [`WARM_UP`] steps.
#[derive(Debug)]
pub(super) struct StepProfile {
    path: PathBuf,
    before: usize,
    steps: usize,
    left: usize,
    is_running: bool,
    result: Option<Vec<OperationTime>>,
}

impl Engine {
    /// Profiles `steps` of the next steps and writes them to `path` in Chrome's trace format.
    /// [`take_profile`](Self::take_profile) gives the totals.
    pub fn profile_steps(&mut self, steps: usize, path: PathBuf) {
        let steps = steps.max(1);
        let profile = StepProfile { path, before: WARM_UP, steps, left: steps, is_running: false, result: None };
        self.profile = Some(profile);
    }

    /// The number of profiled steps and their totals by operation; `None` if there were too few
    /// steps. Ends a profile that is still running.
    pub fn take_profile(&mut self) -> Result<Option<(usize, Vec<OperationTime>)>> {
        let Some(mut profile) = self.profile.take() else { return Ok(None) };
        if profile.is_running {
            // The requests ended first.
            profile.result = Some(stop_profile(&profile.path)?);
        }
        Ok(profile.result.map(|all| (profile.steps - profile.left, all)))
    }

    pub(super) fn profile_begins(&mut self) -> Result<()> {
        let Some(profile) = self.profile.as_mut().filter(|it| !it.is_running && it.result.is_none()) else {
            return Ok(());
        };
        if profile.before > 0 {
            profile.before -= 1;
            return Ok(());
        }
        start_profile(self.model.device())?;
        profile.is_running = true;
        Ok(())
    }

    pub(super) fn profile_ends(&mut self) -> Result<()> {
        let Some(profile) = self.profile.as_mut().filter(|it| it.is_running) else { return Ok(()) };
        profile.left -= 1;
        if profile.left == 0 {
            profile.result = Some(stop_profile(&profile.path)?);
            profile.is_running = false;
        }
        Ok(())
    }
}
