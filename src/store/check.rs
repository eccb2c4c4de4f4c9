//! Checks files of trajectories: what they have, and what is wrong with them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::files;
use super::run_dir::folder;
use super::scan::TrajectoryFile;
use super::stored::StoredRun;
use super::{read_step_tasks, read_trajectories};
use crate::error::Result;
use crate::mdp::{Split, Step, Trajectory};

/// Problems of a file that are listed one by one.
const LISTED: usize = 5;

/// What a file has, and what is wrong with it.
#[derive(Debug, Default)]
pub struct FileCheck {
    pub trajectories: usize,
    pub steps: usize,
    pub tokens: usize,
    /// Whether its trajectories can be read.
    pub is_readable: bool,
    pub problems: Vec<String>,
}

/// Checks files one after another; ids must be unique across them.
#[derive(Debug, Default)]
pub struct TrajectoryChecks {
    /// The step of the file that has an id.
    ids: HashMap<String, u64>,
}

impl TrajectoryChecks {
    /// Checks a file: checksum and columns, ids, numbers per token, groups.
    pub fn file(&mut self, file: &TrajectoryFile) -> FileCheck {
        let trajectories = match read_trajectories(&file.path) {
            Ok(trajectories) => trajectories,
            Err(error) => return FileCheck { problems: vec![error.message], ..FileCheck::default() },
        };
        let mut problems = Vec::new();
        for trajectory in &trajectories {
            let id = &trajectory.id;
            if let Some(step) = self.ids.insert(id.clone(), file.step) {
                problems.push(format!("{id} is there twice: also in step {step}"));
            }
            if Split::of_id(id).is_some_and(|named| named != (file.split, file.step)) {
                problems.push(format!("{id} is not of this step"));
            }
            problems.extend(lengths(trajectory));
        }
        // An evaluation stores some of its trajectories.
        if file.split == Split::Train {
            let extra = read_step_tasks(&file.path).ok().flatten().map_or(0, |tasks| tasks.extra_samples);
            problems.extend(groups(&trajectories, extra));
        }
        if problems.len() > LISTED {
            let more = problems.len() - LISTED;
            problems.truncate(LISTED);
            problems.push(format!("{more} more problems"));
        }
        FileCheck {
            trajectories: trajectories.len(),
            steps: trajectories.iter().map(|one| one.steps.len()).sum(),
            tokens: trajectories.iter().map(Trajectory::response_tokens).sum(),
            is_readable: true,
            problems,
        }
    }
}

/// The training steps between the first and the last one that have no file.
pub fn missing_steps(files: &[TrajectoryFile]) -> Vec<u64> {
    let pairs = files.windows(2).map(|pair| pair[0].step + 1..pair[1].step);
    pairs.flatten().collect()
}

/// Names of incomplete files in the folders of trajectories: writes that are in progress, or that
/// were stopped.
pub fn unfinished_files(run: &StoredRun) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for split in Split::ALL {
        let all = files::list(&folder(run.path(), split))?;
        let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
        names.extend(all.iter().filter_map(|path| name(path)).filter(|name| files::is_unfinished(name)));
    }
    Ok(names)
}

/// Lists with a number per sampled token that have another length.
fn lengths(trajectory: &Trajectory) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, step) in trajectory.steps.iter().enumerate() {
        let tokens = step.response_ids.len();
        for (name, length) in lists(step) {
            if length != tokens {
                problems.push(format!("{} step {number}: {tokens} sampled tokens, {length} in {name}", trajectory.id));
            }
        }
    }
    problems
}

/// The lists with a number per sampled token that are stored, with their lengths.
fn lists(step: &Step) -> Vec<(String, usize)> {
    let trained = serde_json::to_value(&step.trained).unwrap_or_default();
    let lists = trained.as_object().into_iter().flatten();
    let lengths = lists.filter_map(|(name, list)| Some((name.clone(), list.as_array()?.len())));
    [("logprobs".to_owned(), step.logprobs.len())].into_iter().chain(lengths).collect()
}

/// Groups with fewer samples than the largest one, and samples that are missing or there twice. A
/// group does not have all of its samples if `extra` more were begun.
fn groups(trajectories: &[Trajectory], extra: usize) -> Vec<String> {
    let mut groups: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for trajectory in trajectories {
        groups.entry(trajectory.group).or_default().push(trajectory.sample);
    }
    let largest = groups.values().map(Vec::len).max().unwrap_or(0);
    let mut problems = Vec::new();
    for (group, mut samples) in groups {
        samples.sort_unstable();
        let in_order = match extra {
            0 => samples.iter().zip(0..).all(|(sample, number)| *sample == number),
            extra => {
                samples.windows(2).all(|pair| pair[0] < pair[1])
                    && samples.iter().all(|sample| (*sample as usize) < largest + extra)
            }
        };
        if samples.len() < largest {
            problems.push(format!("group {group} has {} trajectories, others have {largest}", samples.len()));
        } else if !in_order {
            problems.push(format!("group {group} has the samples {samples:?}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mdp::testing;
    use crate::store::RunDir;

    fn trajectory(step: u64, group: u64, sample: u32) -> Trajectory {
        let id = format!("{step}-{group}-{sample}");
        Trajectory { id, group, sample, ..testing::trajectory(vec![testing::step(&[1], &[2, 3])]) }
    }

    /// The problems of each file of a run with these files.
    fn problems(files: &[(u64, Vec<Trajectory>)]) -> Vec<Vec<String>> {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let mut checks = TrajectoryChecks::default();
        let check = |(step, trajectories): &(u64, Vec<Trajectory>)| {
            let path = run.write_trajectories(*step, 0, None, trajectories).unwrap();
            checks.file(&TrajectoryFile { split: Split::Train, step: *step, path }).problems
        };
        files.iter().map(check).collect()
    }

    #[test]
    fn ids_lengths_and_groups_are_checked() {
        let group = |step, number| (0..2).map(move |sample| trajectory(step, number, sample));
        let right = |step| group(step, 0).chain(group(step, 1)).collect::<Vec<_>>();
        assert_eq!(problems(&[(1, right(1)), (2, right(2))]), [[""; 0]; 2]);

        let mut shorter = right(1);
        shorter[1].steps[0].logprobs.pop();
        shorter[2].steps[0].trained.entropies = vec![0.5; 3];
        let lengths =
            ["1-0-1 step 0: 2 sampled tokens, 1 in logprobs", "1-1-0 step 0: 2 sampled tokens, 3 in entropies"];
        assert_eq!(problems(&[(1, shorter)]), [lengths]);
        let mut incomplete = right(1);
        incomplete.pop();
        assert_eq!(problems(&[(1, incomplete)]), [["group 1 has 1 trajectories, others have 2"]]);
        let mut holes = right(1);
        (holes[3].sample, holes[3].id) = (5, "1-1-5".to_owned());
        assert_eq!(problems(&[(1, holes)]), [["group 1 has the samples [0, 5]"]]);
        let of_both = problems(&[(1, right(1)), (2, right(1))]);
        assert!(of_both[1][0].starts_with("1-0-0 is there twice: also in step 1"), "{of_both:?}");
        assert_eq!(of_both[1][1], "1-0-0 is not of this step");
        assert_eq!(of_both[1].last().unwrap(), "3 more problems");
    }

    #[test]
    fn steps_between_files_are_missing() {
        let file = |step| TrajectoryFile { split: Split::Train, step, path: "x".into() };
        assert_eq!(missing_steps(&[3, 4, 7, 9].map(file)), [5, 6, 8]);
        assert!(missing_steps(&[]).is_empty() && missing_steps(&[file(4)]).is_empty());
    }
}
