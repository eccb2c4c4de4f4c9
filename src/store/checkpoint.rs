//! Checkpoints: a model directory in Hugging Face layout, and what resuming the run needs in its folder `trainer_state/`.
//!
//! Nothing but the model's own files lies at the top level, because vLLM and SGLang load every `*.safetensors` file that
//! they find there. A checkpoint is written under a temporary name and renamed when every byte is on the disk, so one that can be
//! seen is complete. `checkpoints/latest` names the newest for people; finding one trusts the directories.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{self, failed};
use super::{RunDir, manifest};
use crate::error::{Error, Kind, Result};

/// The folder of a checkpoint that holds everything but the model: the optimiser's state, averages of weights, the
/// critic, and `state.json`.
pub(super) const TRAINER_STATE: &str = "trainer_state";

/// Where a checkpoint keeps what resuming needs. Checkpoints of the first versions of r1 kept it at the top level, and
/// are still read.
pub fn trainer_state(checkpoint: &Path) -> PathBuf {
    let folder = checkpoint.join(TRAINER_STATE);
    if folder.is_dir() { folder } else { checkpoint.to_owned() }
}

/// Where a run stands: `state.json` of a checkpoint. Every random stream is counter-based and rooted in the seed,
/// so the counters here are all the generator state there is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Training steps done.
    pub step: u64,
    /// Task rows handed out so far, over all epochs; the next row drawn is this one.
    pub data_position: u64,
    /// Root of every random stream.
    pub seed: u64,
    /// Optimiser steps done.
    pub optimizer_step: u64,
    /// Times the weights have changed since the run began.
    pub policy_version: u64,
    /// The KL coefficient, where it adapts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_coef: Option<f64>,
    /// The running deviation of returns, where rewards are divided by it: discount, count, mean and variance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<[f64; 4]>,
    /// The lowest held-out loss of supervised training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

/// The lowest held-out loss so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The step after which it was measured.
    pub step: u64,
    /// Nats a token.
    pub loss: f64,
    /// Evaluations since then.
    pub worse: u64,
}

/// The folder of a run directory with the model of the lowest held-out loss.
pub const BEST: &str = "best";

impl State {
    /// Writes `trainer_state/state.json` of a checkpoint.
    pub fn save(&self, checkpoint: &Path) -> Result<()> {
        let folder = checkpoint.join(TRAINER_STATE);
        files::make_dir(&folder)?;
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(Kind::Internal, format!("can't write the state as JSON: {e}")))?;
        files::write_bytes(&folder.join("state.json"), format!("{text}\n").as_bytes())
    }

    /// Reads what [`State::save`] wrote.
    pub fn load(checkpoint: &Path) -> Result<Self> {
        let path = trainer_state(checkpoint).join("state.json");
        let bytes = fs::read(&path).map_err(|e| failed("read the file", &path, &e))?;
        serde_json::from_slice(&bytes).map_err(|e| Error::new(Kind::Store, format!("damaged file: {e}")).at_path(path))
    }
}

impl RunDir {
    /// Makes `checkpoints/step-STEP`: `fill(model, own)` writes the model into the temporary directory `model`, and the
    /// rest into `own`, its folder `trainer_state`. The directory is synced and renamed; then all but the newest `keep`
    /// checkpoints are removed (0 keeps all). Returns where it is.
    ///
    /// # Errors
    /// Those of `fill`, and [`Kind::Store`]. Nothing is left behind then, and earlier checkpoints stay.
    pub fn checkpoint(&self, step: u64, keep: usize, fill: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
        let root = self.checkpoints();
        let name = format!("step-{step:06}");
        let path = publish(&root, &name, |dir| {
            let own = dir.join(TRAINER_STATE);
            files::make_dir(&own)?;
            fill(dir, &own)?;
            manifest::write(dir)
        })?;
        files::write_bytes(&root.join("latest"), format!("{name}\n").as_bytes())?;
        if keep > 0 {
            let all = complete(self.path())?;
            let surplus = all.len().saturating_sub(keep);
            for (_, old) in all.into_iter().take(surplus).filter(|(_, old)| *old != path) {
                files::remove(&old)?;
            }
        }
        Ok(path)
    }
}

impl RunDir {
    /// Replaces the folder [`BEST`] of the run by a model that `fill` writes. Returns where it is.
    pub fn best(&self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        publish(self.path(), BEST, fill)
    }
}

/// Makes the directory `root/name`: `fill` writes into a temporary one, which is synced and renamed, so the directory is
/// complete or not there.
fn publish(root: &Path, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = root.join(name);
    let unfinished = files::unfinished(name, 0o777, |builder| builder.tempdir_in(root))
        .map_err(|e| failed("make a directory in", root, &e))?;
    // An error drops `unfinished`, which removes it.
    fill(unfinished.path())?;
    files::sync_tree(unfinished.path())?;
    let rename = |from: &Path, to: &Path| fs::rename(from, to).map_err(|e| failed("rename to", to, &e));
    if path.exists() {
        // Written again after a resume: the old one steps aside first, since a rename can't replace it.
        let aside = root.join(format!(".{name}-old{}", files::UNFINISHED));
        if aside.exists() {
            files::remove(&aside)?;
        }
        rename(&path, &aside)?;
        rename(unfinished.path(), &path)?;
        files::remove(&aside)?;
    } else {
        rename(unfinished.path(), &path)?;
    }
    // It has moved, so there is nothing left to remove.
    let _ = unfinished.keep();
    files::sync_dir(root)?;
    Ok(path)
}

/// The newest checkpoint of a run and its step; `None` when there is none yet.
pub fn latest_checkpoint(run: &Path) -> Result<Option<(u64, PathBuf)>> {
    Ok(complete(run)?.pop())
}

/// The model directory that a person means by `path`: a run's newest checkpoint, what `checkpoints/latest` names,
/// or `path` itself.
pub fn find_model(path: &Path) -> Result<PathBuf> {
    let root = path.join("checkpoints");
    if root.is_dir() {
        return match latest_checkpoint(path)? {
            Some((_, checkpoint)) => Ok(checkpoint),
            None => Err(Error::new(Kind::Store, "the run has no checkpoint yet").at_path(root)),
        };
    }
    if path.is_file() && path.file_name().is_some_and(|name| name == "latest") {
        let name = fs::read_to_string(path).map_err(|e| failed("read the file", path, &e))?;
        return Ok(path.with_file_name(name.trim()));
    }
    Ok(path.to_owned())
}

/// Every complete checkpoint of a run with its step, oldest first.
fn complete(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found: Vec<(u64, PathBuf)> = files::list(&run.join("checkpoints"))?
        .into_iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| {
            let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
            Some((step, path))
        })
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write(run: &RunDir, step: u64, keep: usize) -> PathBuf {
        let state = State { step, ..State::default() };
        run.checkpoint(step, keep, |dir, _| state.save(dir)).unwrap()
    }

    #[test]
    fn the_newest_are_kept_and_found() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        assert_eq!(latest_checkpoint(run.path()).unwrap(), None);
        for step in [20, 40, 60] {
            write(&run, step, 2);
        }
        let (step, path) = latest_checkpoint(run.path()).unwrap().unwrap();
        assert_eq!((step, State::load(&path).unwrap().step), (60, 60));
        assert!(!run.checkpoints().join("step-000020").exists());
        assert!(run.checkpoints().join("step-000040").exists());
        assert_eq!(fs::read_to_string(run.checkpoints().join("latest")).unwrap(), "step-000060\n");
        assert_eq!(find_model(run.path()).unwrap(), path);
        assert_eq!(find_model(&run.checkpoints().join("latest")).unwrap(), path);
        assert_eq!(find_model(&path).unwrap(), path);
    }

    #[test]
    fn one_written_again_replaces_the_old() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        write(&run, 5, 0);
        let path = run.checkpoint(5, 0, |dir, _| State { step: 5, seed: 9, ..State::default() }.save(dir)).unwrap();
        assert_eq!(State::load(&path).unwrap().seed, 9);
        assert_eq!(files::list(&run.checkpoints()).unwrap().len(), 2);
    }

    #[test]
    fn a_half_written_one_is_never_seen() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        write(&run, 1, 0);
        let mut inside = PathBuf::new();
        let error = run.checkpoint(2, 1, |dir, _| {
            inside = dir.to_owned();
            fs::write(dir.join("model.safetensors"), "half").unwrap();
            assert_eq!(latest_checkpoint(run.path()).unwrap().unwrap().0, 1);
            Err(Error::new(Kind::Store, "disk full"))
        });
        assert_eq!(error.unwrap_err().message, "disk full");
        assert!(!inside.exists());
        assert_eq!(latest_checkpoint(run.path()).unwrap().unwrap().0, 1);
        assert_eq!(fs::read_to_string(run.checkpoints().join("latest")).unwrap(), "step-000001\n");
    }

    /// Checkpoints of the first versions had everything in one directory.
    #[test]
    fn the_first_layout_is_still_read() {
        let dir = tempfile::tempdir().unwrap();
        let state = State { step: 7, seed: 3, ..State::default() };
        state.save(dir.path()).unwrap();
        assert_eq!(trainer_state(dir.path()), dir.path().join("trainer_state"));
        fs::rename(dir.path().join("trainer_state/state.json"), dir.path().join("state.json")).unwrap();
        fs::remove_dir(dir.path().join("trainer_state")).unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), state);
        assert_eq!(trainer_state(dir.path()), dir.path());
    }

    #[test]
    fn a_damaged_state_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), "{\"step\": 1").unwrap();
        let error = State::load(dir.path()).unwrap_err();
        assert!(error.message.starts_with("damaged file"), "{error}");
        assert!(error.place.unwrap().ends_with("state.json"));
    }
}
