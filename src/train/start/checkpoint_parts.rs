//! Checkpoints of several processes that divide the state of the optimiser: each writes its part of
//! the state and of the model, and rank 0 collects the files.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::error::{Error, Kind, Result};
use crate::store::{RunDir, take_part, temporary_file, write_part};
use crate::train::ranks::Ranks;

/// How long rank 0 sleeps until it looks for a part again.
const INTERVAL: Duration = Duration::from_millis(20);

/// The folder of checkpoints, which all processes see, and the processes that write there.
#[derive(Clone)]
pub(crate) struct CheckpointParts {
    checkpoints: PathBuf,
    /// A text that each start of the processes has for itself.
    launch: String,
    ranks: Ranks,
}

impl CheckpointParts {
    /// `None` if a process does not see the directory of the run, because the machines have no file
    /// system in common. `run` is the directory of this process; rank 0's is the one of the run.
    pub(crate) fn open(run: &RunDir, ranks: &Ranks) -> Result<Option<Self>> {
        let checkpoints = run.checkpoints();
        let checkpoints = std::path::absolute(&checkpoints).unwrap_or(checkpoints);
        let checkpoints: PathBuf = ranks.of_first(checkpoints)?;
        // A folder of that name could be another one.
        let marker = if ranks.is_first() { Some(temporary_file(&checkpoints)) } else { None };
        let marker = marker.transpose();
        let name = |file: &NamedTempFile| file.path().file_name().map(|name| name.to_string_lossy().into_owned());
        let name = ranks.of_first(marker.as_ref().ok().and_then(Option::as_ref).and_then(name))?;
        let sees = name.as_ref().is_some_and(|name| checkpoints.join(name).is_file());
        let all_see = ranks.gather(sees)?.into_iter().all(|sees| sees);
        marker?;
        let launch = name.unwrap_or_default().trim_matches('.').replace('.', "-");
        Ok(all_see.then(|| Self { checkpoints, launch, ranks: ranks.clone() }))
    }

    /// The number of this process, and of all processes.
    pub(crate) fn rank(&self) -> (usize, usize) {
        (self.ranks.rank(), self.ranks.size())
    }

    /// Writes the files of this process, which is not rank 0: `fill` gets the directory, and its
    /// folder `trainer_state`.
    pub(crate) fn write(&self, step: u64, fill: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
        write_part(&self.checkpoints, &self.launch, (step, self.ranks.rank()), fill)
    }

    /// Moves the files of the other processes into the directory of the checkpoint, when they are
    /// there.
    ///
    /// # Errors
    /// `Kind::Store` if a process has ended, or does not write its files within the time limit of
    /// all exchanges.
    pub(crate) fn collect(&self, step: u64, dir: &Path) -> Result<()> {
        let began = Instant::now();
        for rank in 1..self.ranks.size() {
            while !take_part(&self.checkpoints, &self.launch, (step, rank), dir)? {
                let limit = self.ranks.timeout();
                if self.ranks.has_ended() || began.elapsed() > limit {
                    let message = format!("rank {rank} did not write its part of the checkpoint of step {step}");
                    return Err(Error::new(Kind::Store, message).at_path(&self.checkpoints));
                }
                thread::sleep(INTERVAL);
            }
        }
        Ok(())
    }
}
