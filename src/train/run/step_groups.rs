//! The groups of a step with `rollout.oversample`: more are begun than the step needs, and it takes
//! the first that are complete. The others are stopped, or carried over to the next step.

use super::collect::{Draw, DrawnTask, trees};
use super::open_step::BegunGroups;
use crate::config::Learner;
use crate::engine::Stats;
use crate::error::Result;
use crate::mdp::Trajectory;
use crate::store::{RunProgress, StepTasks};
use crate::telemetry::Reporter;
use crate::train::rows::order::Order;
use crate::train::start::session::Session;

/// The groups of a step. Groups that were carried over have the first numbers.
pub(crate) struct StepGroups<'a> {
    pub(crate) learner: &'a Learner,
    /// The progress before the step.
    pub(crate) state: &'a RunProgress,
    pub(crate) draw: Draw<'a>,
}

impl StepGroups<'_> {
    /// Begins groups so that `wanted` and the additional ones are in flight. `begun` is the number
    /// of the groups that the step has begun before. Returns the number of new groups.
    pub(crate) fn begin(&self, session: &mut Session, begun: usize, wanted: usize) -> Result<usize> {
        let mut positions = Vec::new();
        if begun == 0 {
            // A run that is resumed begins these again.
            let open: Vec<u64> = session.rollouts.open_groups().positions().collect();
            positions.extend(self.state.carried.iter().filter(|position| !open.contains(position)));
        }
        let target = wanted + session.settings.rollout.oversample.groups;
        let new = target.saturating_sub(session.rollouts.open_groups().len() + positions.len());
        let first = self.state.data_position + begun as u64;
        positions.extend(first..first + new as u64);
        let local = session.rollouts.open_groups().deal(&positions, session.ranks.rank(), session.ranks.size());
        for position in local {
            let task = DrawnTask { group: self.number(position), position, row: self.row(session, position) };
            let trees = trees(session, self.learner, self.state, &[task], self.draw);
            session.begin_group(position, trees)?;
        }
        Ok(new)
    }

    /// Waits until `wanted` groups are complete, and takes their trajectories.
    pub(crate) fn wait(
        &self,
        session: &mut Session,
        wanted: usize,
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let samples = self.learner.group_size + usize::from(self.draw.greedy);
        let name = |position| (self.state.step + 1, self.number(position));
        session.wait_for_groups(wanted, samples, &name, reporter, label)
    }

    /// Ends the step: the positions of the groups that the next step continues, and positions and
    /// rows of those that are stopped.
    pub(crate) fn end(&self, session: &Session) -> BegunGroups {
        let mut open = session.rollouts.open_groups();
        let carries = session.settings.rollout.oversample.carries();
        let is_last = self.state.step + 1 >= self.learner.steps as u64;
        let is_over = !carries || is_last;
        let positions = if is_over { open.stop() } else { open.positions().collect() };
        drop(open);
        if is_over {
            session.rollouts.drop_cancelled();
        }
        if carries {
            // A longer run begins the groups of the last step again.
            return BegunGroups { unfinished: positions, ..BegunGroups::default() };
        }
        let stopped = positions.into_iter().map(|position| (position, self.row(session, position)));
        BegunGroups { stopped: stopped.collect(), ..BegunGroups::default() }
    }

    /// The number of the group at a position of the data.
    fn number(&self, position: u64) -> u64 {
        let RunProgress { data_position, carried, .. } = self.state;
        StepTasks { position: *data_position, carried: carried.clone(), ..StepTasks::default() }.number_of(position)
    }

    fn row(&self, session: &Session, position: u64) -> u64 {
        let order: Option<&Order> = session.rows.train.as_ref();
        order.map_or(0, |order| order.at(position, self.state.seed))
    }
}
