//! Trees of trajectories: a root that starts from the beginning, and branches that continue from
//! its intermediate states, or from the states of other branches.
//!
//! The states are selected while a trajectory runs, so that only those are kept that can be
//! branched from. The selection depends on the tree's own steps and the seed only.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::attempt::Attempt;
use super::spec::Spec;
use super::stage::Stop;
use crate::config::BranchAt;
use crate::mdp::{Completion, Status, StreamSeed};
use crate::script::Failure;

/// A trajectory, and its branches.
#[derive(Clone, Debug)]
pub struct Tree {
    pub root: Spec,
    /// Each continues from a state of the tree; if there is none, or its parent failed, it starts
    /// from the beginning.
    pub branches: Vec<Spec>,
    pub at: BranchAt,
    /// Number of branches per state.
    pub width: usize,
    /// Number of rounds; the branches of a round start from the root and the branches of earlier
    /// rounds.
    pub rounds: usize,
}

impl From<Spec> for Tree {
    fn from(root: Spec) -> Self {
        Self { root, branches: Vec::new(), at: BranchAt::Random, width: 1, rounds: 1 }
    }
}

impl Tree {
    /// Number of trajectories.
    pub fn size(&self) -> usize {
        1 + self.branches.len()
    }

    /// The branches by round; the first rounds have one more if the number is not divisible.
    pub(super) fn rounds(&self) -> Vec<&[Spec]> {
        let rounds = self.rounds.max(1);
        let (each, more) = (self.branches.len() / rounds, self.branches.len() % rounds);
        let first = |round: usize| round * each + round.min(more);
        (0..rounds).map(|round| &self.branches[first(round)..first(round + 1)]).collect()
    }

    /// Number of states for `branches` branches.
    pub(super) fn states(&self, branches: usize) -> usize {
        branches.div_ceil(self.width.max(1))
    }
}

/// The states of a trajectory that may be branched from.
pub(super) struct Points<'a> {
    at: &'a BranchAt,
    seed: StreamSeed,
    /// Maximum number of states.
    limit: usize,
    kept: Vec<BranchPoint>,
}

/// A state to branch from: the trajectory after the prompt was made and before the response was
/// applied.
pub(super) struct BranchPoint {
    pub(super) attempt: Attempt,
    /// Points with the highest rank are used first.
    rank: f64,
    /// A branch has started from it.
    used: bool,
}

impl BranchPoint {
    fn step(&self) -> usize {
        self.attempt.trajectory().steps.len()
    }
}

impl<'a> Points<'a> {
    pub(super) fn new(at: &'a BranchAt, seed: StreamSeed, limit: usize) -> Self {
        Self { at, seed, limit, kept: Vec::new() }
    }

    /// Considers a state with the response `reply`, and keeps it if its rank is among the highest
    /// so far.
    pub(super) fn consider(&mut self, attempt: &Attempt, reply: &Completion) -> Result<(), Stop> {
        // Shared steps, including the state of the fork, belong to the parent.
        let steps = attempt.trajectory().own_steps();
        let Some(last) = steps.last().filter(|_| self.limit > 0) else { return Ok(()) };
        let step = attempt.trajectory().steps.len();
        let rank = match self.at {
            // The highest of uniform numbers are a sample without replacement, also over several
            // trajectories.
            BranchAt::Random => self.draw(step),
            BranchAt::Entropy => surprise(reply),
            BranchAt::FirstTool if self.kept.is_empty() && last.policy_calls().next().is_some() => 0.0,
            BranchAt::Steps(list) if list.contains(&(step as u32)) => 0.0,
            BranchAt::FirstTool | BranchAt::Steps(_) => return Ok(()),
        };
        let mut index = self.kept.len();
        if index == self.limit {
            let lowest = self.kept.iter().enumerate().min_by(|(_, a), (_, b)| {
                // The latest one is dropped on ties.
                a.rank.total_cmp(&b.rank).then(b.step().cmp(&a.step()))
            });
            match lowest {
                Some((lowest, point)) if point.rank < rank => index = lowest,
                _ => return Ok(()),
            }
        }
        // A copy of plain data can only fail by the script's memory limit.
        let copy = attempt.fork(attempt.spec().clone());
        let attempt = copy.map_err(|error| Failure::new(Status::ScriptLimit, error))?;
        let point = BranchPoint { attempt, rank, used: false };
        match self.kept.get_mut(index) {
            Some(kept) => *kept = point,
            None => self.kept.push(point),
        }
        Ok(())
    }

    /// A random number for a state, from the trajectory's own stream.
    fn draw(&self, step: usize) -> f64 {
        let mut key = [0; 32];
        for (part, word) in key.chunks_exact_mut(8).zip([self.seed.seed, self.seed.trajectory, step as u64, BRANCHES]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key).next_u64() as f64
    }

    /// The states in order of steps.
    pub(super) fn into_kept(mut self) -> Vec<BranchPoint> {
        self.kept.sort_by_key(BranchPoint::step);
        self.kept
    }

    /// Removes all states, for a retry.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}

/// Selects `limit` of the states that the trajectories of a tree offer, as (trajectory, index), in
/// this order. Unused states are preferred.
pub(super) fn choose(offered: &mut [Vec<BranchPoint>], limit: usize) -> Vec<(usize, usize)> {
    let places = offered.iter().enumerate();
    let places = places.flat_map(|(trajectory, points)| (0..points.len()).map(move |point| (trajectory, point)));
    let (mut fresh, mut used) = (Vec::new(), Vec::new());
    for (trajectory, point) in places {
        if offered[trajectory][point].used { &mut used } else { &mut fresh }.push((trajectory, point));
    }
    let mut chosen = if fresh.is_empty() { used } else { fresh };
    let rank = |&(trajectory, point): &(usize, usize)| offered[trajectory][point].rank;
    // The sort is stable: the earliest comes first on ties.
    chosen.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    chosen.truncate(limit);
    chosen.sort_unstable();
    for &(trajectory, point) in &chosen {
        offered[trajectory][point].used = true;
    }
    chosen
}

/// Separates this random stream from others with the same seed.
const BRANCHES: u64 = u64::from_le_bytes(*b"branches");

/// Mean of `-logp` per token of a response; its expectation is the policy's entropy.
fn surprise(reply: &Completion) -> f64 {
    let sum: f64 = reply.logprobs.iter().map(|logp| -f64::from(*logp)).sum();
    sum / reply.logprobs.len().max(1) as f64
}
