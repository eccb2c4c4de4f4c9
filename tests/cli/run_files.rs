//! The files of a run, read by tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use r1::mdp::Trajectory;
use r1::store::read_trajectories;
use serde_json::Value;

/// One JSON object per line.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The value in a JSON file.
pub(crate) fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// All lines of a run's `metrics.jsonl`.
pub(crate) fn metrics(run: &Path) -> Vec<Value> {
    json_lines(&fs::read_to_string(run.join("metrics.jsonl")).unwrap())
}

/// The metrics of each training step; evaluations alone have no policy version.
pub(crate) fn training_steps(run: &Path) -> Vec<Value> {
    metrics(run).into_iter().filter(|line| line.get("policy/version").is_some()).collect()
}

/// The last training step's metrics.
pub(crate) fn last_step(run: &Path) -> Value {
    training_steps(run).pop().unwrap()
}

/// The directory of `runs/RUN`.
pub(crate) fn run_dir(dir: &Path, run: &str) -> PathBuf {
    dir.join("runs").join(run)
}

/// The stored trajectories of a training step of `runs/RUN`.
pub(crate) fn stored(dir: &Path, run: &str, step: u64) -> Vec<Trajectory> {
    read_trajectories(&run_dir(dir, run).join(format!("trajectories/step-{step:06}.parquet"))).unwrap()
}

/// The directory of a checkpoint.
pub(crate) fn checkpoint(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:06}"))
}

/// The bytes of a checkpoint's weights.
pub(crate) fn weights(run: &Path, step: u64) -> Vec<u8> {
    fs::read(checkpoint(run, step).join("model.safetensors")).unwrap()
}

/// Every file of a checkpoint of `runs/RUN`, by its relative path.
pub(crate) fn checkpoint_files(dir: &Path, run: &str, step: u64) -> BTreeMap<String, Vec<u8>> {
    files(&checkpoint(&run_dir(dir, run), step))
}

/// Every file below a directory, by its relative path.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    collect(dir, dir, &mut files);
    files
}
