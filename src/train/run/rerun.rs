//! `r1 rerun`: repeats steps of a stored run from one of its checkpoints, and reports what differs.
//!
//! The repetition is a run of its own in another directory, forked from the checkpoint. By default
//! it updates the weights with the stored trajectories; it can also sample them again. Without
//! changed settings every number is equal to the bit on the CPU in f32.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tch::{Kind as Dtype, Tensor};

use super::calls::{RolloutOptions, UpdateOptions};
use super::collect::Collected;
use super::training::Training;
use crate::engine::Stats;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Split, Step, Trajectory};
use crate::rl::advantages::AlgorithmNeed;
use crate::store::{StoredRun, checkpoints, read_trajectories};
use crate::telemetry::Reporter;
use crate::train::learn::tensors::read_tensors;
use crate::train::options::RunOptions;
use crate::train::start::resume::StartState;

/// Options of [`rerun`].
#[derive(Clone, Debug, Default)]
pub struct RerunOptions {
    /// The script, the settings, and the directory and name of the repetition. `fork` and
    /// `from_step` are the run and its checkpoint.
    pub run: RunOptions,
    /// Maximum number of steps; 0: all that are stored.
    pub steps: usize,
    /// Whether trajectories are sampled again.
    pub sample: bool,
}

/// The comparison of a repeated step with the stored one.
#[derive(Clone, Debug, Serialize)]
pub struct RepeatedStep {
    pub step: u64,
    pub trajectories: usize,
    /// By the name of the number (`ids`, `rewards`, `advantages`, …, `weights`) what was compared.
    pub compared: BTreeMap<&'static str, RerunComparison>,
}

/// The comparison of all numbers with one name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RerunComparison {
    /// How many numbers were compared, and how many differ.
    pub count: usize,
    pub differ: usize,
    /// The largest difference.
    pub largest: f64,
    /// The first that differs.
    pub first: Option<RerunDifference>,
}

/// A number that differs: in a token of a step of a trajectory, or in a tensor.
#[derive(Clone, Debug, Serialize)]
pub struct RerunDifference {
    /// Id of the trajectory, or name of the tensor.
    pub of: String,
    /// Number of the trajectory's step, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Index in the list, from 0.
    pub index: usize,
    pub stored: f64,
    pub repeated: f64,
}

impl RerunComparison {
    /// Compares lists. A list without numbers on one side is not compared: an update does not
    /// compute every number.
    fn add(&mut self, of: &str, step: Option<usize>, stored: &[f64], repeated: &[f64]) {
        if stored.is_empty() || repeated.is_empty() {
            return;
        }
        self.count += stored.len().max(repeated.len());
        for index in 0..stored.len().max(repeated.len()) {
            let at = |list: &[f64]| list.get(index).copied().unwrap_or(f64::NAN);
            let (stored, repeated) = (at(stored), at(repeated));
            // Zeros of both signs are equal, as are two NaN.
            if stored.total_cmp(&repeated).is_eq() || (stored - repeated).abs() <= 0.0 {
                continue;
            }
            self.differ += 1;
            self.largest = self.largest.max((stored - repeated).abs());
            self.first.get_or_insert_with(|| RerunDifference { of: of.to_owned(), step, index, stored, repeated });
        }
    }
}

/// Repeats the steps after the checkpoint, until the stored trajectories end. `each` receives the
/// comparison of every step.
///
/// # Errors
/// Errors of a run, `Kind::Usage` for an algorithm whose baselines are not stored apart, and
/// `Kind::Store` if there are no later steps.
pub fn rerun(options: &RerunOptions, reporter: &Reporter, mut each: impl FnMut(&RepeatedStep)) -> Result<()> {
    let path = options.run.fork.clone().unwrap_or_default();
    let stored = StoredRun::open(&path, Path::new(""))?;
    let mut training = Training::open(StartState::new(&options.run, reporter)?, reporter)?;
    if training.objective.needs(AlgorithmNeed::Greedy) && !options.sample {
        let message = "the algorithm has greedy baselines, and the store does not say which trajectories they are";
        return Err(Error::new(Kind::Usage, message).hint("add --sample, which samples them again"));
    }
    let from = training.run.state.step;
    let later: Vec<u64> = stored.steps(Split::Train)?.into_iter().filter(|step| *step > from).collect();
    if later.is_empty() {
        return Err(Error::new(Kind::Store, format!("the run has no trajectories after step {from}"))
            .at_path(&path)
            .hint("choose an earlier checkpoint with --from"));
    }
    let kept: BTreeMap<u64, PathBuf> = checkpoints(&path)?.into_iter().collect();
    let count = if options.steps == 0 { later.len() } else { options.steps };
    for step in later.into_iter().take(count) {
        training.run.check_stop()?;
        let before = stored.trajectories(Split::Train, step)?;
        let ids =
            if options.sample { training.rollout(&RolloutOptions::default())? } else { training.put(before.clone()) };
        training.update(&ids, &UpdateOptions::default())?;
        training.next_step()?;
        let after = read_trajectories(&training.run.dir.trajectories_path(Split::Train, step))?;
        let mut compared = compare(&before, &after);
        if let Some(checkpoint) = kept.get(&step) {
            compared.insert("weights", compare_weights(checkpoint, &training.save()?)?);
        }
        each(&RepeatedStep { step, trajectories: before.len(), compared });
    }
    Ok(())
}

impl Training {
    /// Begins a step with stored trajectories instead of a rollout; returns the ids of those that
    /// were not dropped.
    fn put(&mut self, stored: Vec<Trajectory>) -> Vec<String> {
        let groups = stored.iter().map(|trajectory| trajectory.group).collect::<BTreeSet<_>>().len();
        let (dropped, trajectories): (Vec<_>, Vec<_>) = stored.into_iter().partition(|trajectory| trajectory.dropped);
        let (baselines_from, stats) = (trajectories.len(), Stats::default());
        self.step.add(Collected { trajectories, baselines_from, dropped, groups, stats, ..Collected::default() })
    }
}

/// A list of numbers of a step.
type NumbersOfStep = fn(&Step) -> Vec<f64>;

/// What is compared, in the order in which a step computes it.
pub const COMPARED: [&str; 11] = [
    "prompt ids",
    "ids",
    "log-probabilities",
    "rewards",
    "reference's log-probabilities",
    "values",
    "advantages",
    "returns",
    "learner's log-probabilities",
    "entropies",
    "weights",
];

/// The numbers of tokens that are compared, by name.
const OF_TOKENS: [(&str, NumbersOfStep); 9] = [
    ("prompt ids", |step| step.prompt_ids.iter().map(|id| f64::from(*id)).collect()),
    ("ids", |step| step.response_ids.iter().map(|id| f64::from(*id)).collect()),
    ("log-probabilities", |step| as_doubles(&step.logprobs)),
    ("advantages", |step| step.trained.advantages.clone()),
    ("values", |step| as_doubles(&step.trained.values)),
    ("returns", |step| as_doubles(&step.trained.returns)),
    ("learner's log-probabilities", |step| as_doubles(&step.trained.learner_logprobs)),
    ("reference's log-probabilities", |step| as_doubles(&step.trained.reference_logprobs)),
    ("entropies", |step| as_doubles(&step.trained.entropies)),
];

fn as_doubles(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

fn compare(stored: &[Trajectory], repeated: &[Trajectory]) -> BTreeMap<&'static str, RerunComparison> {
    let by_id: BTreeMap<&str, &Trajectory> = repeated.iter().map(|one| (one.id.as_str(), one)).collect();
    let mut compared: BTreeMap<&'static str, RerunComparison> = BTreeMap::new();
    for before in stored {
        let Some(after) = by_id.get(before.id.as_str()) else {
            compared.entry("ids").or_default().add(&before.id, None, &[0.0], &[f64::NAN]);
            continue;
        };
        let rewards =
            |one: &Trajectory| [vec![one.outcome_reward], one.steps.iter().map(|s| s.reward).collect()].concat();
        compared.entry("rewards").or_default().add(&before.id, None, &rewards(before), &rewards(after));
        let none = Step::default();
        for number in 0..before.steps.len().max(after.steps.len()) {
            let at = |one: &Trajectory| one.steps.get(number).unwrap_or(&none).clone();
            let (before_step, after_step) = (at(before), at(after));
            for (name, numbers) in OF_TOKENS {
                let (stored, repeated) = (numbers(&before_step), numbers(&after_step));
                compared.entry(name).or_default().add(&before.id, Some(number), &stored, &repeated);
            }
        }
    }
    compared.retain(|_, comparison| comparison.count > 0);
    compared
}

/// Compares the tensors of the models of two checkpoints.
fn compare_weights(stored: &Path, repeated: &Path) -> Result<RerunComparison> {
    let mut comparison = RerunComparison::default();
    let files = |folder: &Path| -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder).map_err(|e| Error::io(Kind::Store, "read", folder, &e))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        paths.sort();
        Ok(paths)
    };
    for path in files(stored)? {
        let (before, after) =
            (read_tensors(&path)?, read_tensors(&repeated.join(path.file_name().unwrap_or_default()))?);
        let before: BTreeMap<String, Tensor> = before.into_iter().collect();
        for (name, tensor) in &before {
            let numbers = |tensor: &Tensor| -> Result<Vec<f64>> {
                Ok(Vec::try_from(tensor.f_to_kind(Dtype::Double)?.f_flatten(0, -1)?)?)
            };
            let other = after.get(name).map(numbers).transpose()?.unwrap_or_else(|| vec![f64::NAN]);
            comparison.add(name, None, &numbers(tensor)?, &other);
        }
    }
    Ok(comparison)
}
