//! The groups in flight of a run with `rollout.oversample`. Every process has the whole list, and
//! the trajectories of its share.

use crate::error::Result;
use crate::mdp::Trajectory;
use crate::rollout::PendingTrajectories;

/// The trajectories of complete groups, with the positions of these.
pub(crate) type PositionedGroups = Vec<(u64, Vec<Trajectory>)>;

/// A group that was begun.
struct OpenGroup {
    /// Its position in the order of the data.
    position: u64,
    /// The process that samples it.
    rank: usize,
    /// Its trajectories, in that process.
    pending: Option<PendingTrajectories>,
}

/// The groups that were begun and not taken, in the order of their positions.
#[derive(Default)]
pub(crate) struct OpenGroups {
    all: Vec<OpenGroup>,
}

impl OpenGroups {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn positions(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|group| group.position)
    }

    /// Adds groups: each goes to the process with the fewest ones. Returns the positions of the
    /// groups of process `rank`, of `size`.
    pub(crate) fn deal(&mut self, positions: &[u64], rank: usize, size: usize) -> Vec<u64> {
        let mut local = Vec::new();
        for &position in positions {
            let counts = self.counts(size);
            let to = (0..size).min_by_key(|rank| counts[*rank]).unwrap_or(0);
            self.all.push(OpenGroup { position, rank: to, pending: None });
            if to == rank {
                local.push(position);
            }
        }
        self.all.sort_by_key(|group| group.position);
        local
    }

    /// The number of groups of each process.
    fn counts(&self, size: usize) -> Vec<usize> {
        let mut counts = vec![0; size];
        for group in &self.all {
            counts[group.rank] += 1;
        }
        counts
    }

    /// How many of `wanted` complete groups process `rank` waits for: processes with more groups in
    /// flight wait for more.
    pub(crate) fn share(&self, wanted: usize, rank: usize, size: usize) -> usize {
        let mut left = self.counts(size);
        let mut share = 0;
        for _ in 0..wanted.min(self.all.len()) {
            let of = (0..size).rev().max_by_key(|rank| left[*rank]).unwrap_or(0);
            left[of] -= 1;
            share += usize::from(of == rank);
        }
        share
    }

    /// Sets the trajectories of a group of this process.
    pub(crate) fn start(&mut self, position: u64, pending: PendingTrajectories) {
        if let Some(group) = self.all.iter_mut().find(|group| group.position == position) {
            group.pending = Some(pending);
        }
    }

    /// The number of this process's groups with `samples` trajectories that have ended.
    pub(crate) fn complete(&mut self, samples: usize) -> usize {
        let local = self.all.iter_mut().filter_map(|group| group.pending.as_mut());
        local.map(|pending| usize::from(pending.has(samples))).sum()
    }

    /// Takes the first `count` complete groups of this process, each with its position: the
    /// `samples` trajectories that ended first.
    ///
    /// # Errors
    /// The first fatal error of a trajectory.
    pub(crate) fn take(&mut self, count: usize, samples: usize) -> Result<PositionedGroups> {
        let mut taken = Vec::new();
        for group in &mut self.all {
            if taken.len() < count
                && let Some(pending) = group.pending.take_if(|pending| pending.has(samples))
            {
                taken.push((group.position, pending.take_first(samples)?));
            }
        }
        Ok(taken)
    }

    /// Removes groups from the list of all processes, after they were taken.
    pub(crate) fn remove(&mut self, positions: &[u64]) {
        self.all.retain(|group| !positions.contains(&group.position));
    }

    /// Ends the trajectories of all groups, and returns the positions of these.
    pub(crate) fn stop(&mut self) -> Vec<u64> {
        for pending in self.all.iter_mut().filter_map(|group| group.pending.as_mut()) {
            pending.halt();
        }
        self.all.drain(..).map(|group| group.position).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(ranks: &[usize]) -> OpenGroups {
        let of = |(position, rank): (u64, &usize)| OpenGroup { position, rank: *rank, pending: None };
        OpenGroups { all: (0..).zip(ranks).map(of).collect() }
    }

    #[test]
    fn groups_go_to_the_process_with_the_fewest() {
        let mut open = groups(&[1, 1, 2]);
        assert_eq!(open.deal(&[9, 8, 7, 6], 0, 3), [9, 8, 6]);
        assert_eq!(open.counts(3), [3, 2, 2]);
        assert_eq!(open.positions().collect::<Vec<_>>(), [0, 1, 2, 6, 7, 8, 9]);
    }

    /// Every process waits for as many groups as it has, or fewer, and all of them for the wanted
    /// number.
    #[test]
    fn shares_add_up() {
        for wanted in 0..9 {
            let open = groups(&[0, 1, 1, 2, 1, 0]);
            let shares: Vec<usize> = (0..4).map(|rank| open.share(wanted, rank, 4)).collect();
            assert_eq!(shares.iter().sum::<usize>(), wanted.min(6));
            assert!(shares.iter().zip(open.counts(4)).all(|(share, count)| *share <= count), "{shares:?}");
        }
        let open = groups(&[0, 1, 1, 2, 1, 0]);
        assert_eq!((0..3).map(|rank| open.share(4, rank, 3)).collect::<Vec<_>>(), [2, 2, 0]);
    }

    #[test]
    fn taken_and_stopped_groups_leave_the_list() {
        let mut open = groups(&[0, 0, 1]);
        open.remove(&[1]);
        assert_eq!(open.positions().collect::<Vec<_>>(), [0, 2]);
        assert_eq!((open.stop(), open.is_empty()), (vec![0, 2], true));
    }
}
