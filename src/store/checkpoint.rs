//! Checkpoints: a model directory in Hugging Face layout, with the state for resuming in its folder
//! `trainer_state/`.
//!
//! The top level has only the model's files, because vLLM and SGLang load every `*.safetensors`
//! file there. A checkpoint is written under a temporary name, synced and renamed, so a visible
//! checkpoint is complete. `checkpoints/latest` has the name of the newest one for people; the code
//! lists the directories instead.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{self, failed};
use super::{RunDir, manifest};
use crate::error::{Error, Kind, Result};

/// Folder of a checkpoint with everything but the model: optimiser state, weight averages, critic
/// and `state.json`.
pub(super) const TRAINER_STATE: &str = "trainer_state";

/// Folder with the state for resuming. The first versions of r1 stored it at the top level; such
/// checkpoints are still read.
pub fn trainer_state(checkpoint: &Path) -> PathBuf {
    let folder = checkpoint.join(TRAINER_STATE);
    if folder.is_dir() { folder } else { checkpoint.to_owned() }
}

/// Progress of a run: `state.json` of a checkpoint. Random streams are counter-based and derived
/// from the seed, so these counters are the whole generator state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProgress {
    /// Completed training steps.
    pub step: u64,
    /// Number of task rows drawn so far, over all epochs; the index of the next row.
    pub data_position: u64,
    /// Positions of the groups before `data_position` that were begun and are not complete
    /// (`rollout.oversample`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<u64>,
    /// Seed of every random stream.
    pub seed: u64,
    /// Completed optimiser steps.
    pub optimizer_step: u64,
    /// Number of weight updates since the start of the run.
    pub policy_version: u64,
    /// The adaptive KL coefficient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_coef: Option<f64>,
    /// Running statistics of returns for `trainer.shaping.running`: discount, count, mean and
    /// variance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<[f64; 4]>,
    /// The lowest evaluation loss of supervised fine-tuning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
}

/// The lowest evaluation loss so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestCheckpoint {
    /// Step of the evaluation.
    pub step: u64,
    /// Nats per token.
    pub loss: f64,
    /// Evaluations since then.
    pub worse: u64,
}

/// The checkpoints that stay when a newer one is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepRule {
    /// Number of the newest ones; 0 keeps all.
    pub newest: usize,
    /// Also those whose step is a multiple of this; 0 keeps none of them.
    pub every: usize,
}

impl KeepRule {
    /// The newest `newest` checkpoints, or all.
    pub const fn newest(newest: usize) -> Self {
        Self { newest, every: 0 }
    }

    fn always(self, step: u64) -> bool {
        self.every > 0 && step.is_multiple_of(self.every as u64)
    }
}

/// Folder of a run directory with the images of its messages.
pub const IMAGES: &str = "images";

/// Folder of a run directory with the model of the lowest evaluation loss.
pub const BEST: &str = "best";

impl RunProgress {
    /// Writes `trainer_state/state.json` of a checkpoint.
    pub fn save(&self, checkpoint: &Path) -> Result<()> {
        let folder = checkpoint.join(TRAINER_STATE);
        files::make_dir(&folder)?;
        files::write_json(&folder.join("state.json"), "the state", self)
    }

    /// Reads what [`RunProgress::save`] wrote.
    pub fn load(checkpoint: &Path) -> Result<Self> {
        files::read_json(&trainer_state(checkpoint).join("state.json"))
    }
}

impl RunDir {
    /// Creates `checkpoints/step-STEP`: `fill(model, state)` writes the model into the temporary
    /// directory `model`, and the rest into `state`, its folder `trainer_state`. The directory is
    /// synced and renamed; then the checkpoints that `keep` does not name are removed. Returns its
    /// path.
    ///
    /// # Errors
    /// Errors of `fill`, and [`Kind::Store`]. Incomplete files are then removed, and earlier
    /// checkpoints stay.
    pub fn checkpoint(
        &self,
        step: u64,
        keep: KeepRule,
        fill: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let root = self.checkpoints();
        let name = format!("step-{step:06}");
        if self.trajectories().is_dir() {
            files::sync_dir(&self.trajectories())?;
        }
        let path = publish(&root, &name, |dir| {
            let state_dir = dir.join(TRAINER_STATE);
            files::make_dir(&state_dir)?;
            fill(dir, &state_dir)?;
            manifest::write(dir)
        })?;
        self.settle(keep, &path)?;
        Ok(path)
    }

    /// Copies a checkpoint of another run, as links where the file system allows, with the progress
    /// `state`. Returns its path.
    ///
    /// # Errors
    /// [`Kind::Store`] with the path of a file that can't be read or written.
    pub fn adopt(&self, checkpoint: &Path, state: &RunProgress) -> Result<PathBuf> {
        publish(&self.checkpoints(), &format!("step-{:06}", state.step), |dir| {
            link_tree(checkpoint, dir)?;
            // The first versions of r1 had no such folder and no manifest.
            if dir.join(TRAINER_STATE).is_dir() {
                state.save(dir)?;
                manifest::write(dir)?;
            }
            Ok(())
        })
    }

    /// Removes the checkpoints after a step, the newest first. Those that are `damaged` are renamed
    /// to `damaged-step-STEP`.
    pub(super) fn drop_checkpoints_after(&self, step: u64, damaged: &[PathBuf]) -> Result<()> {
        for (_, path) in checkpoints(self.path())?.into_iter().rev().filter(|(later, _)| *later > step) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !damaged.iter().any(|damaged| damaged.file_name() == path.file_name()) {
                files::remove(&path)?;
                continue;
            }
            let aside = path.with_file_name(format!("{DAMAGED}{name}"));
            if aside.exists() {
                files::remove(&aside)?;
            }
            fs::rename(&path, &aside).map_err(|e| failed("rename to", &aside, &e))?;
        }
        Ok(())
    }

    /// Writes `checkpoints/latest`, and removes the checkpoints that `keep` does not name, except
    /// `path`.
    pub(super) fn settle(&self, keep: KeepRule, path: &Path) -> Result<()> {
        let latest = self.checkpoints().join("latest");
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("{name}\n");
        if !fs::read(&latest).is_ok_and(|bytes| bytes == text.as_bytes()) {
            files::write_bytes(&latest, text.as_bytes())?;
        }
        if keep.newest > 0 {
            let all = checkpoints(self.path())?;
            let surplus = all.len().saturating_sub(keep.newest);
            for (_, old) in all.into_iter().take(surplus).filter(|(step, old)| *old != path && !keep.always(*step)) {
                files::remove(&old)?;
            }
        }
        Ok(())
    }

    /// Replaces the folder [`BEST`] of the run with a model that `fill` writes. Returns its path.
    pub fn best(&self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        publish(self.path(), BEST, fill)
    }

    /// Removes the folder [`BEST`].
    pub fn remove_best(&self) -> Result<()> {
        files::remove(&self.path().join(BEST))
    }
}

/// Fills `dir` with the model of a checkpoint, as links to its files where the file system allows.
pub fn link_model(checkpoint: &Path, dir: &Path) -> Result<()> {
    for path in files::list(checkpoint)?.into_iter().filter(|path| path.is_file()) {
        let to = dir.join(path.file_name().unwrap_or_default());
        let linked = fs::hard_link(&path, &to).or_else(|_| fs::copy(&path, &to).map(drop));
        linked.map_err(|e| failed("write the file", &to, &e))?;
    }
    Ok(())
}

/// Fills `dir` with the files below `from`, as [`link_model`].
fn link_tree(from: &Path, dir: &Path) -> Result<()> {
    link_model(from, dir)?;
    for folder in files::list(from)?.into_iter().filter(|path| path.is_dir()) {
        let to = dir.join(folder.file_name().unwrap_or_default());
        files::make_dir(&to)?;
        link_tree(&folder, &to)?;
    }
    Ok(())
}

/// Start of the name of a damaged checkpoint that was put aside.
const DAMAGED: &str = "damaged-";

/// Creates the directory `root/name`: `fill` writes into a temporary directory, which is synced and
/// renamed, so that the directory is complete or absent.
pub(super) fn publish(root: &Path, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = root.join(name);
    let unfinished = files::unfinished(name, 0o777, |builder| builder.tempdir_in(root))
        .map_err(|e| failed("make a directory in", root, &e))?;
    // An error drops `unfinished`, which removes it.
    fill(unfinished.path())?;
    files::sync_tree(unfinished.path())?;
    let rename = |from: &Path, to: &Path| fs::rename(from, to).map_err(|e| failed("rename to", to, &e));
    if path.exists() {
        // After a resume the directory may exist: it is moved away first, because a rename can't
        // replace it.
        let aside = root.join(files::replaced(name));
        if aside.exists() {
            files::remove(&aside)?;
        }
        rename(&path, &aside)?;
        rename(unfinished.path(), &path)?;
        files::remove(&aside)?;
    } else {
        rename(unfinished.path(), &path)?;
    }
    // The directory was renamed, so the guard must not remove it.
    let _ = unfinished.keep();
    files::sync_dir(root)?;
    Ok(path)
}

/// Newest checkpoint of a run and its step; `None` if there is none.
pub fn latest_checkpoint(run: &Path) -> Result<Option<(u64, PathBuf)>> {
    Ok(checkpoints(run)?.pop())
}

/// Resolves `path` to a model directory: the newest checkpoint of a run, the checkpoint named in
/// `checkpoints/latest`, or `path` itself.
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
    // An id of the Hub is not a path.
    let is_run = |folder: &&Path| {
        !folder.as_os_str().is_empty() && folder.join("config.json").is_file() && folder.join("checkpoints").is_dir()
    };
    if !path.exists()
        && let Some(run) = path.ancestors().skip(1).take(2).find(is_run)
    {
        return Err(no_such_model(path, run));
    }
    Ok(path.to_owned())
}

/// The error for a model that a run does not have.
fn no_such_model(path: &Path, run: &Path) -> Error {
    let models = checkpoints(run).unwrap_or_default().into_iter().map(|(_, path)| path).chain([run.join("best")]);
    let models: Vec<String> = models.filter(|path| path.is_dir()).map(|path| format!("`{}`", path.display())).collect();
    let error = Error::new(Kind::Store, format!("the run {} has no model `{}`", run.display(), path.display()));
    let best = path.file_name().is_some_and(|name| name == "best");
    let why = if best { "`best` is the model of an evaluation that is better than the first one; " } else { "" };
    error.hint(format!("{why}it has {}", if models.is_empty() { "none yet".to_owned() } else { models.join(", ") }))
}

/// Complete checkpoints of a run with their steps, oldest first.
///
/// # Errors
/// [`Kind::Store`] if the folder can't be read.
pub fn checkpoints(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let folders = files::list(&run.join("checkpoints"))?.into_iter().filter(|path| path.is_dir());
    let mut all: Vec<(u64, PathBuf)> = folders.filter_map(|path| Some((files::step_of(&path, "")?, path))).collect();
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write(run: &RunDir, step: u64, keep: usize) -> PathBuf {
        let state = RunProgress { step, ..RunProgress::default() };
        run.checkpoint(step, KeepRule::newest(keep), |dir, _| state.save(dir)).unwrap()
    }

    #[test]
    fn newest_checkpoints_are_kept_and_found() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        assert_eq!(latest_checkpoint(run.path()).unwrap(), None);
        for step in [20, 40, 60] {
            write(&run, step, 2);
        }
        let (step, path) = latest_checkpoint(run.path()).unwrap().unwrap();
        assert_eq!((step, RunProgress::load(&path).unwrap().step), (60, 60));
        assert!(!run.checkpoints().join("step-000020").exists());
        assert!(run.checkpoints().join("step-000040").exists());
        assert_eq!(fs::read_to_string(run.checkpoints().join("latest")).unwrap(), "step-000060\n");
        assert_eq!(find_model(run.path()).unwrap(), path);
        assert_eq!(find_model(&run.checkpoints().join("latest")).unwrap(), path);
        assert_eq!(find_model(&path).unwrap(), path);
    }

    /// A process was killed between the rename of a checkpoint and the removal of an older one.
    #[test]
    fn a_reopened_run_has_its_newest_checkpoints() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        for step in [1, 2, 3] {
            write(&run, step, 0);
        }
        fs::write(run.checkpoints().join("latest"), "step-000002\n").unwrap();
        let (_, newest) = latest_checkpoint(run.path()).unwrap().unwrap();
        run.settle(KeepRule::newest(2), &newest).unwrap();
        assert_eq!(fs::read_to_string(run.checkpoints().join("latest")).unwrap(), "step-000003\n");
        let steps: Vec<u64> = checkpoints(run.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [2, 3]);
    }

    #[test]
    fn checkpoints_of_every_kth_step_stay() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        for step in 1..=8 {
            let state = RunProgress { step, ..RunProgress::default() };
            run.checkpoint(step, KeepRule { newest: 2, every: 3 }, |dir, _| state.save(dir)).unwrap();
        }
        let steps: Vec<u64> = checkpoints(run.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [3, 6, 7, 8]);
    }

    #[test]
    fn later_checkpoints_are_removed_and_damaged_ones_put_aside() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let paths = [1, 2, 3, 4].map(|step| write(&run, step, 0));
        run.repeats_after(Some((2, &paths[1])), KeepRule::newest(0), &paths[3..]).unwrap();
        let names: Vec<_> = files::list(&run.checkpoints()).unwrap();
        let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["damaged-step-000004", "latest", "step-000001", "step-000002"]);
        assert_eq!(latest_checkpoint(run.path()).unwrap(), Some((2, paths[1].clone())));
        // Once more.
        let again = write(&run, 4, 0);
        run.repeats_after(Some((2, &paths[1])), KeepRule::newest(0), &[again]).unwrap();
        assert_eq!(latest_checkpoint(run.path()).unwrap().unwrap().0, 2);
    }

    #[test]
    fn an_adopted_checkpoint_is_complete_and_has_its_own_state() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = ("a", "b");
        let [first, second] = [first, second].map(|name| RunDir::create(root.path(), name).unwrap());
        let old = RunProgress { step: 3, seed: 1, ..RunProgress::default() };
        let fill = |dir: &Path, state: &Path| {
            fs::write(dir.join("model.safetensors"), "weights").unwrap();
            fs::create_dir(state.join("critic")).unwrap();
            fs::write(state.join("critic/head"), "value").unwrap();
            old.save(dir)
        };
        let from = first.checkpoint(3, KeepRule::newest(0), fill).unwrap();
        let path = second.adopt(&from, &RunProgress { seed: 2, ..old.clone() }).unwrap();
        assert_eq!(latest_checkpoint(second.path()).unwrap(), Some((3, path.clone())));
        manifest::verify(&path, false).unwrap();
        assert_eq!(fs::read_to_string(path.join("trainer_state/critic/head")).unwrap(), "value");
        assert_eq!((RunProgress::load(&path).unwrap().seed, RunProgress::load(&from).unwrap()), (2, old));
        manifest::verify(&from, false).unwrap();
    }

    #[test]
    fn checkpoint_of_the_same_step_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        write(&run, 5, 0);
        let path = run
            .checkpoint(5, KeepRule::newest(0), |dir, _| {
                RunProgress { step: 5, seed: 9, ..RunProgress::default() }.save(dir)
            })
            .unwrap();
        assert_eq!(RunProgress::load(&path).unwrap().seed, 9);
        assert_eq!(files::list(&run.checkpoints()).unwrap().len(), 2);
    }

    #[test]
    fn incomplete_checkpoint_is_never_visible() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        write(&run, 1, 0);
        let mut inside = PathBuf::new();
        let error = run.checkpoint(2, KeepRule::newest(1), |dir, _| {
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

    /// Checkpoints of the first versions have all files in one directory.
    #[test]
    fn first_checkpoint_layout_is_still_read() {
        let dir = tempfile::tempdir().unwrap();
        let state = RunProgress { step: 7, seed: 3, ..RunProgress::default() };
        state.save(dir.path()).unwrap();
        assert_eq!(trainer_state(dir.path()), dir.path().join("trainer_state"));
        fs::rename(dir.path().join("trainer_state/state.json"), dir.path().join("state.json")).unwrap();
        fs::remove_dir(dir.path().join("trainer_state")).unwrap();
        assert_eq!(RunProgress::load(dir.path()).unwrap(), state);
        assert_eq!(trainer_state(dir.path()), dir.path());
    }

    #[test]
    fn damaged_checkpoint_state_is_reported_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), "{\"step\": 1").unwrap();
        let error = RunProgress::load(dir.path()).unwrap_err();
        assert!(error.message.starts_with("damaged file"), "{error}");
        assert!(error.place.unwrap().ends_with("state.json"));
    }
}
