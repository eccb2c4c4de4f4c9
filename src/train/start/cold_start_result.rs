//! The result of a run's cold start, from which reinforcement learning begins.

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::store::{BEST, latest_checkpoint};

/// The folder of a run directory with its cold start.
pub(crate) const FOLDER: &str = "sft";

/// The model that the cold start of a run produced; `None` before that.
///
/// # Errors
/// `Kind::Store` if the folder can't be read.
pub(crate) fn result(run: &Path) -> Result<Option<PathBuf>> {
    let folder = run.join(FOLDER);
    let best = folder.join(BEST);
    if best.is_dir() {
        return Ok(Some(best));
    }
    Ok(latest_checkpoint(&folder)?.map(|(_, path)| path))
}

/// Reinforcement learning never begins from another model than the cold start's.
pub(crate) fn no_result(run: &Path) -> Error {
    Error::new(Kind::Store, "the cold start has no model: there is neither `best` nor a checkpoint")
        .at_path(run.join(FOLDER))
        .hint("put the folder back, or start a new run; cold_start=false begins with policy.model")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_best_model_of_a_cold_start_comes_before_its_newest_checkpoint() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(result(run.path()).unwrap(), None);
        let sft = run.path().join(FOLDER);
        for step in ["step-000002", "step-000004"] {
            let checkpoint = sft.join("checkpoints").join(step);
            std::fs::create_dir_all(checkpoint.join("trainer_state")).unwrap();
            std::fs::write(checkpoint.join("trainer_state/state.json"), "{}").unwrap();
        }
        assert_eq!(result(run.path()).unwrap(), Some(sft.join("checkpoints/step-000004")));
        std::fs::create_dir_all(sft.join(BEST)).unwrap();
        assert_eq!(result(run.path()).unwrap(), Some(sft.join(BEST)));
    }
}
