//! Trees of trajectories: a root that begins at the beginning, and branches that go on from its middle states, or from
//! those of other branches.
//!
//! Which states those may be is decided while a trajectory runs, so that no more of them are kept than can be branched
//! from. It depends on the tree's own steps and the seed, never on what else runs.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::attempt::{Attempt, Stop};
use super::spec::Spec;
use crate::config::BranchAt;
use crate::mdp::{Completion, Status, StreamSeed};
use crate::script::Failure;

/// A trajectory, and those that are to branch off it.
#[derive(Clone, Debug)]
pub struct Tree {
    pub root: Spec,
    /// Each goes on from a state of the tree; where there is none that fits, or what has them failed, it begins at the
    /// beginning.
    pub branches: Vec<Spec>,
    pub at: BranchAt,
    /// Branches from one state.
    pub width: usize,
    /// Those of a round branch off the root and the branches of the rounds before.
    pub rounds: usize,
}

impl From<Spec> for Tree {
    fn from(root: Spec) -> Self {
        Self { root, branches: Vec::new(), at: BranchAt::Random, width: 1, rounds: 1 }
    }
}

impl Tree {
    /// Trajectories in it.
    pub fn size(&self) -> usize {
        1 + self.branches.len()
    }

    /// The branches, round by round; the first rounds have one more where it does not come out even.
    pub(super) fn rounds(&self) -> Vec<&[Spec]> {
        let rounds = self.rounds.max(1);
        let (each, more) = (self.branches.len() / rounds, self.branches.len() % rounds);
        let first = |round: usize| round * each + round.min(more);
        (0..rounds).map(|round| &self.branches[first(round)..first(round + 1)]).collect()
    }

    /// States that so many branches begin in.
    pub(super) fn states(&self, branches: usize) -> usize {
        branches.div_ceil(self.width.max(1))
    }
}

/// The states of a trajectory that may be branched from.
pub(super) struct Points<'a> {
    at: &'a BranchAt,
    seed: StreamSeed,
    /// How many at most.
    most: usize,
    kept: Vec<Point>,
}

/// A state to branch from: the trajectory as it was when the policy had been asked and its reply was not yet taken.
pub(super) struct Point {
    pub(super) attempt: Attempt,
    /// The highest are taken first.
    rank: f64,
    /// Something has branched off it.
    used: bool,
}

impl Point {
    fn step(&self) -> usize {
        self.attempt.trajectory().steps.len()
    }
}

impl<'a> Points<'a> {
    pub(super) fn new(at: &'a BranchAt, seed: StreamSeed, most: usize) -> Self {
        Self { at, seed, most, kept: Vec::new() }
    }

    /// Looks at a state to which the policy gave `reply`, and keeps it if it may be branched from as far as is known now.
    pub(super) fn consider(&mut self, attempt: &Attempt, reply: &Completion) -> Result<(), Stop> {
        // What it shares is its parent's to offer, the state that it was forked from included.
        let own = attempt.trajectory().own_steps();
        let Some(last) = own.last().filter(|_| self.most > 0) else { return Ok(()) };
        let step = attempt.trajectory().steps.len();
        let rank = match self.at {
            // The highest of equally distributed numbers are a sample without replacement, of several trajectories too.
            BranchAt::Random => self.draw(step),
            BranchAt::Entropy => surprise(reply),
            BranchAt::FirstTool if self.kept.is_empty() && !last.tools.is_empty() => 0.0,
            BranchAt::Steps(list) if list.contains(&(step as u32)) => 0.0,
            BranchAt::FirstTool | BranchAt::Steps(_) => return Ok(()),
        };
        let mut place = self.kept.len();
        if place == self.most {
            let lowest = self.kept.iter().enumerate().min_by(|(_, a), (_, b)| {
                // Of equals the latest goes.
                a.rank.total_cmp(&b.rank).then(b.step().cmp(&a.step()))
            });
            match lowest {
                Some((lowest, point)) if point.rank < rank => place = lowest,
                _ => return Ok(()),
            }
        }
        // What stops a copy of plain data is the memory that the script may have.
        let copy = attempt.fork(attempt.spec().clone());
        let attempt = copy.map_err(|error| Failure::new(Status::ScriptLimit, error))?;
        let point = Point { attempt, rank, used: false };
        match self.kept.get_mut(place) {
            Some(kept) => *kept = point,
            None => self.kept.push(point),
        }
        Ok(())
    }

    /// A number of the trajectory's own stream for a state.
    fn draw(&self, step: usize) -> f64 {
        let mut key = [0; 32];
        for (part, word) in key.chunks_exact_mut(8).zip([self.seed.seed, self.seed.trajectory, step as u64, BRANCHES]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key).next_u64() as f64
    }

    /// The states, the earliest first.
    pub(super) fn into_kept(mut self) -> Vec<Point> {
        self.kept.sort_by_key(Point::step);
        self.kept
    }

    /// Forgets everything, for another try.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}

/// Chooses `most` of the states that the trajectories of a tree offer: trajectory and place, in this order. Those that
/// nothing has branched off yet, as long as there are any.
pub(super) fn choose(offered: &mut [Vec<Point>], most: usize) -> Vec<(usize, usize)> {
    let places = offered.iter().enumerate();
    let places = places.flat_map(|(limb, points)| (0..points.len()).map(move |place| (limb, place)));
    let (mut fresh, mut used) = (Vec::new(), Vec::new());
    for (limb, place) in places {
        if offered[limb][place].used { &mut used } else { &mut fresh }.push((limb, place));
    }
    let mut chosen = if fresh.is_empty() { used } else { fresh };
    let rank = |&(limb, place): &(usize, usize)| offered[limb][place].rank;
    // Of equals the earliest stays first.
    chosen.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    chosen.truncate(most);
    chosen.sort_unstable();
    for &(limb, place) in &chosen {
        offered[limb][place].used = true;
    }
    chosen
}

/// Tells this stream of random numbers from others with the same seed.
const BRANCHES: u64 = u64::from_le_bytes(*b"branches");

/// How unlikely a reply was, a token: the mean of `-logp`, which is the policy's entropy on average.
fn surprise(reply: &Completion) -> f64 {
    let sum: f64 = reply.logprobs.iter().map(|logp| -f64::from(*logp)).sum();
    sum / reply.logprobs.len().max(1) as f64
}
