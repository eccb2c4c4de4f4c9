//! The account of a run's tasks: what became of each group that was drawn from the data, how often
//! each row was drawn, and what does not fit together. It reads a few columns of the files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::columns::TrajectoryColumn;
use super::read::read_step_tasks;
use super::scan::{TrajectoryFile, scan_trajectories};
use super::trajectories::{StepTasks, TaskOrder};
use crate::error::Result;
use crate::mdp::Status;

/// Problems that are listed one by one.
const LISTED: usize = 20;

/// Numbers of groups, or of trajectories, by the first of these that is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskCounts {
    /// In an update of its step; a group, if one of its trajectories was.
    pub trained: u64,
    /// Dropped by the filter, or because they were not complete when their step ended.
    pub dropped: u64,
    /// Failed; a group, if all of its trajectories did.
    pub failed: u64,
    /// In no update of its step: a program did not use it, its step ended with an error, or it is
    /// not trained on (greedy baselines, truncated trajectories that the recipe masks).
    pub unused: u64,
}

/// How often the rows of an epoch were drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpochRows {
    /// From 1.
    pub epoch: u64,
    /// Usable rows of the data.
    pub rows: u64,
    pub order: TaskOrder,
    /// Number of rows by how often they were drawn; the others were not drawn in it.
    pub drawn: BTreeMap<u64, u64>,
}

/// Something that does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum TaskProblem {
    /// A file that can't be read.
    Damaged {
        step: u64,
        message: String,
    },
    /// Steps without a file, and the number of tasks that they drew, if it can be computed.
    MissingSteps {
        first: u64,
        last: u64,
        tasks: Option<u64>,
    },
    /// A step that does not begin where the one before it ended.
    Position {
        step: u64,
        position: u64,
        expected: u64,
    },
    MissingGroups {
        step: u64,
        first: u64,
        last: u64,
    },
    /// A step that continues other groups than those that the step before left; the positions.
    Carried {
        step: u64,
        carried: Vec<u64>,
        expected: Vec<u64>,
    },
    /// A row that its epoch had already.
    RepeatedRow {
        step: u64,
        group: u64,
        row: u64,
        epoch: u64,
    },
    /// The newest checkpoint has another position than the files.
    Checkpoint {
        step: u64,
        position: u64,
        expected: u64,
    },
}

/// Files of earlier versions of r1, which do not say where their tasks are in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EarlierFiles {
    pub count: u64,
    pub last: u64,
    /// Groups that are not stored, because these versions did not store dropped ones.
    pub missing_groups: u64,
}

/// The account; files are added in the order of their steps.
#[derive(Debug, Default, Serialize)]
pub struct TaskAccount {
    pub files: u64,
    pub tasks: TaskCounts,
    pub trajectories: TaskCounts,
    /// Position after the last step, and the usable rows then, if the last file says them.
    pub position: Option<u64>,
    pub rows: Option<u64>,
    /// Positions of the groups that the last step left for the next one, if they are known.
    pub unfinished: Option<Vec<u64>>,
    pub earlier: EarlierFiles,
    pub problems: Vec<TaskProblem>,
    /// Number of problems that are not listed.
    pub more_problems: u64,
    /// The step before the next one.
    #[serde(skip)]
    step: u64,
    /// The position at which each step began.
    #[serde(skip)]
    starts: BTreeMap<u64, u64>,
    /// By epoch, how often each row was drawn.
    #[serde(skip)]
    drawn: BTreeMap<(u64, u64, TaskOrder), BTreeMap<u64, u64>>,
}

/// What the account needs of a trajectory, or of a group.
#[derive(Clone, Copy, Debug, Default)]
struct TaskState {
    group: u64,
    row: u64,
    trained: bool,
    dropped: bool,
    failed: bool,
}

impl TaskCounts {
    fn add(&mut self, state: TaskState) {
        let count = match state {
            TaskState { trained: true, .. } => &mut self.trained,
            TaskState { dropped: true, .. } => &mut self.dropped,
            TaskState { failed: true, .. } => &mut self.failed,
            _ => &mut self.unused,
        };
        *count += 1;
    }
}

impl TaskAccount {
    /// An account of the steps after `fork`, the step of another run that a run was forked from.
    pub fn new(fork: Option<u64>) -> Self {
        let is_new = fork.is_none();
        let (position, unfinished) = (is_new.then_some(0), is_new.then(Vec::new));
        Self { step: fork.unwrap_or(0), position, unfinished, ..Self::default() }
    }

    /// Adds the file of the next step.
    pub fn add(&mut self, file: &TrajectoryFile) {
        let tasks = read_step_tasks(&file.path);
        match tasks.and_then(|tasks| Ok((tasks, states(file)?))) {
            Ok((tasks, states)) => self.add_step(file.step, tasks, &states),
            Err(error) => {
                self.continues(file.step, None);
                (self.step, self.position, self.rows) = (file.step, None, None);
                self.files += 1;
                self.note(TaskProblem::Damaged { step: file.step, message: error.to_string() });
            }
        }
    }

    fn add_step(&mut self, step: u64, tasks: Option<StepTasks>, states: &[TaskState]) {
        self.continues(step, tasks.as_ref());
        self.files += 1;
        let mut groups: BTreeMap<u64, TaskState> = BTreeMap::new();
        for one in states {
            self.trajectories.add(*one);
            let group = groups.entry(one.group).or_insert(*one);
            group.trained |= one.trained;
            group.dropped &= one.dropped;
            group.failed &= one.failed;
        }
        for (position, row) in tasks.iter().flat_map(|tasks| &tasks.stopped) {
            let number = tasks.as_ref().map_or(0, |tasks| tasks.number_of(*position));
            groups.entry(number).or_insert(TaskState {
                group: number,
                row: *row,
                dropped: true,
                ..TaskState::default()
            });
        }
        let mut numbers: BTreeSet<u64> = groups.keys().copied().collect();
        if let Some(tasks) = &tasks {
            numbers.extend(tasks.unfinished.iter().map(|position| tasks.number_of(*position)));
        }
        for group in groups.values() {
            self.tasks.add(*group);
        }
        let mut end = 0;
        for number in numbers {
            if tasks.is_none() {
                self.earlier.missing_groups += number - end;
            } else if number > end {
                self.note(TaskProblem::MissingGroups { step, first: end, last: number - 1 });
            }
            end = number.saturating_add(1);
        }
        self.step = step;
        (self.position, self.rows) = (None, None);
        let Some(tasks) = tasks else {
            (self.earlier.count, self.earlier.last) = (self.earlier.count + 1, step);
            return;
        };
        let StepTasks { position, rows, order, .. } = tasks;
        for (&number, group) in &groups {
            let epoch = tasks.position_of(number) / rows.max(1);
            let times = self.drawn.entry((epoch, rows, order)).or_default().entry(group.row).or_default();
            *times += 1;
            if *times > 1 && order == TaskOrder::Epochs {
                self.note(TaskProblem::RepeatedRow { step, group: number, row: group.row, epoch: epoch + 1 });
            }
        }
        self.starts.insert(step, position);
        let new = end.saturating_sub(tasks.carried.len() as u64);
        (self.position, self.rows) = (Some(position.saturating_add(new)), Some(rows));
        self.unfinished = Some(tasks.unfinished);
    }

    /// Compares a step with the one before. A step without a file may have sampled nothing.
    fn continues(&mut self, step: u64, tasks: Option<&StepTasks>) {
        if let Some((expected, StepTasks { carried, .. })) = self.unfinished.take().zip(tasks)
            && step == self.step + 1
            && *carried != expected
        {
            self.note(TaskProblem::Carried { step, carried: carried.clone(), expected });
        }
        let pair = tasks.map(|tasks| tasks.position).zip(self.position);
        let fits = pair.is_some_and(|(position, expected)| position == expected);
        if step > self.step + 1 && !fits {
            let tasks = pair.and_then(|(position, expected)| position.checked_sub(expected));
            self.note(TaskProblem::MissingSteps { first: self.step + 1, last: step - 1, tasks });
        } else if let Some((position, expected)) = pair.filter(|_| !fits) {
            self.note(TaskProblem::Position { step, position, expected });
        }
    }

    /// Compares the data position of a checkpoint with the end of its step in the files.
    pub fn compare_checkpoint(&mut self, step: u64, position: u64) {
        let next = self.starts.get(&(step + 1)).copied();
        if let Some(expected) = if step >= self.step { self.position } else { next }
            && position != expected
        {
            self.note(TaskProblem::Checkpoint { step, position, expected });
        }
    }

    /// The rows of each epoch.
    pub fn epochs(&self) -> Vec<EpochRows> {
        let of = |(&(epoch, rows, order), times): (&(u64, u64, TaskOrder), &BTreeMap<u64, u64>)| {
            let mut drawn = BTreeMap::new();
            for times in times.values() {
                *drawn.entry(*times).or_default() += 1;
            }
            EpochRows { epoch: epoch + 1, rows, order, drawn }
        };
        self.drawn.iter().map(of).collect()
    }

    fn note(&mut self, problem: TaskProblem) {
        if self.problems.len() < LISTED {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }
}

/// The trajectories of a file.
fn states(file: &TrajectoryFile) -> Result<Vec<TaskState>> {
    const COLUMNS: [&str; 5] = ["group", "task_index", "status", "dropped", "trained"];
    let columns: Vec<_> = COLUMNS.into_iter().filter_map(TrajectoryColumn::named).collect();
    let values = scan_trajectories(file, &columns)?;
    let [groups, rows, statuses, dropped, trained] = &values[..] else { return Ok(Vec::new()) };
    let failures: BTreeSet<&str> =
        Status::ALL.iter().filter(|status| status.is_failure()).map(|status| status.name()).collect();
    let state = |index: usize| TaskState {
        group: groups.numbers()[index] as u64,
        row: rows.numbers()[index] as u64,
        trained: trained.texts()[index].is_some(),
        dropped: dropped.texts()[index].is_some(),
        failed: statuses.texts()[index].as_deref().is_some_and(|status| failures.contains(status)),
    };
    Ok((0..groups.count()).map(state).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Groups<'a> = &'a [(u64, u64)];

    #[allow(clippy::unnecessary_wraps)] // the type of the argument
    fn tasks(position: u64) -> Option<StepTasks> {
        Some(StepTasks { position, rows: 6, ..StepTasks::default() })
    }

    /// Two trajectories of each group, which are trained.
    fn groups(numbers: Groups<'_>) -> Vec<TaskState> {
        let of = |&(group, row)| [TaskState { group, row, trained: true, ..TaskState::default() }; 2];
        numbers.iter().flat_map(of).collect()
    }

    /// The account of steps, each with its position and its groups.
    fn account(steps: &[(u64, Option<StepTasks>, Groups<'_>)]) -> TaskAccount {
        let mut account = TaskAccount::new(None);
        for (step, tasks, numbers) in steps {
            account.add_step(*step, tasks.clone(), &groups(numbers));
        }
        account
    }

    #[test]
    fn groups_and_trajectories_are_counted_by_what_became_of_them() {
        let mut states = groups(&[(0, 0), (1, 1), (2, 2), (3, 3)]);
        (states[0].trained, states[0].failed) = (false, true);
        for one in &mut states[2..] {
            one.trained = false;
        }
        for one in &mut states[2..4] {
            one.dropped = true;
        }
        for one in &mut states[3..6] {
            one.failed = true;
        }
        let mut account = TaskAccount::new(None);
        account.add_step(1, tasks(0), &states);
        assert_eq!(account.tasks, TaskCounts { trained: 1, dropped: 1, failed: 1, unused: 1 });
        assert_eq!(account.trajectories, TaskCounts { trained: 1, dropped: 2, failed: 3, unused: 2 });
        assert_eq!((account.problems.len(), account.position, account.rows), (0, Some(4), Some(6)));
    }

    /// Step 1 begins the groups at the positions 0 to 3, and leaves 1 and 3; step 2 continues both,
    /// and stops 5.
    #[test]
    fn carried_groups_are_counted_once() {
        let first = StepTasks { rows: 6, unfinished: vec![1, 3], ..StepTasks::default() };
        let second =
            StepTasks { position: 4, rows: 6, carried: vec![1, 3], stopped: vec![(5, 5)], ..StepTasks::default() };
        let numbers: Vec<u64> = [1, 3, 4, 5].into_iter().map(|position| second.number_of(position)).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert_eq!((0..4).map(|number| second.position_of(number)).collect::<Vec<_>>(), [1, 3, 4, 5]);
        let steps =
            [(1, Some(first.clone()), &[(0, 0), (2, 2)][..]), (2, Some(second.clone()), &[(0, 1), (1, 3), (2, 4)])];
        let right = account(&steps);
        assert_eq!((&right.problems[..], right.position), (&[][..], Some(6)));
        assert_eq!(right.tasks, TaskCounts { trained: 5, dropped: 1, ..TaskCounts::default() });
        assert_eq!(right.epochs()[0].drawn, [(1, 6)].into());
        // A group that step 2 has lost, and one that it has not stored.
        let lost = StepTasks { carried: vec![1], ..second.clone() };
        let problems = account(&[steps[0].clone(), (2, Some(lost), &[(0, 1), (1, 4)])]).problems;
        assert_eq!(problems, [TaskProblem::Carried { step: 2, carried: vec![1], expected: vec![1, 3] }]);
        let problems = account(&[steps[0].clone(), (2, Some(second), &[(0, 1), (2, 4)])]).problems;
        assert_eq!(problems, [TaskProblem::MissingGroups { step: 2, first: 1, last: 1 }]);
        // A row twice: its position counts, not its number in the step.
        let again = StepTasks { position: 4, rows: 6, carried: vec![1, 3], ..StepTasks::default() };
        let problems = account(&[steps[0].clone(), (2, Some(again), &[(0, 1), (1, 2)])]).problems;
        assert_eq!(problems, [TaskProblem::RepeatedRow { step: 2, group: 1, row: 2, epoch: 1 }]);
    }

    #[test]
    fn an_epoch_has_each_row_once() {
        let two = [(1, tasks(0), &[(0, 3), (1, 1), (2, 0), (3, 2)][..]), (2, tasks(4), &[(0, 4), (1, 5), (2, 1)])];
        let whole = account(&two);
        let epoch = |epoch, once| EpochRows { epoch, rows: 6, order: TaskOrder::Epochs, drawn: [(1, once)].into() };
        assert_eq!((whole.problems.clone(), whole.epochs()), (vec![], vec![epoch(1, 6), epoch(2, 1)]));
        let twice = account(&[two[0].clone(), (2, tasks(4), &[(0, 4), (1, 3)])]);
        assert_eq!(twice.problems, [TaskProblem::RepeatedRow { step: 2, group: 1, row: 3, epoch: 1 }]);
        assert_eq!(twice.epochs()[0].drawn, [(1, 4), (2, 1)].into());
        // Rows that a program names may be there again.
        let chosen = Some(StepTasks { order: TaskOrder::Chosen, ..tasks(4).unwrap_or_else(|| unreachable!()) });
        assert_eq!(account(&[two[0].clone(), (2, chosen, &[(0, 4), (1, 3), (2, 3)])]).problems, []);
    }

    #[test]
    fn steps_groups_and_checkpoints_that_do_not_fit_are_named() {
        let first = || (1, tasks(0), &[(0, 0), (1, 1)][..]);
        let third = || (3, tasks(4), &[(0, 4)][..]);
        let missing = TaskProblem::MissingSteps { first: 2, last: 2, tasks: Some(2) };
        assert_eq!(account(&[first(), third()]).problems, std::slice::from_ref(&missing));
        // A program may end a step without a rollout.
        assert_eq!(account(&[first(), (3, tasks(2), &[(0, 4)])]).problems, []);
        let from_two = TaskProblem::MissingSteps { first: 1, last: 2, tasks: Some(4) };
        assert_eq!(account(&[third()]).problems, [from_two]);
        let again = TaskProblem::Position { step: 2, position: 0, expected: 2 };
        assert!(account(&[first(), (2, tasks(0), first().2)]).problems.contains(&again));
        let without = account(&[(1, tasks(0), &[(0, 0), (3, 1)])]);
        assert_eq!(without.problems, [TaskProblem::MissingGroups { step: 1, first: 1, last: 2 }]);

        let mut lost = account(&[first()]);
        lost.compare_checkpoint(1, 2);
        assert_eq!(lost.problems, []);
        lost.compare_checkpoint(2, 4);
        assert_eq!(lost.problems, [TaskProblem::Checkpoint { step: 2, position: 4, expected: 2 }]);
        // The last step was not trained.
        let mut open = account(&[first(), (2, tasks(2), &[(0, 2)])]);
        open.compare_checkpoint(1, 2);
        assert_eq!(open.problems, []);
    }

    #[test]
    fn a_fork_begins_after_its_step_and_files_of_earlier_versions_say_less() {
        let mut fork = TaskAccount::new(Some(4));
        fork.add_step(5, tasks(9), &groups(&[(0, 0)]));
        fork.compare_checkpoint(4, 9);
        assert_eq!(fork.problems, []);
        let earlier = account(&[(1, None, &[(1, 0), (4, 1)]), (2, None, &[(0, 0)]), (3, tasks(6), &[(0, 0)])]);
        assert_eq!(earlier.problems, []);
        assert_eq!(earlier.earlier, EarlierFiles { count: 2, last: 2, missing_groups: 3 });
        let missing = TaskProblem::MissingSteps { first: 2, last: 2, tasks: None };
        assert_eq!(account(&[(1, None, &[(0, 0)]), (3, None, &[(0, 1)])]).problems, [missing]);
    }
}
