//! Trees of trajectories: a root that begins at the beginning, and branches that go on from its middle states.
//!
//! Which states those are is decided while the root runs, so that no more of them are kept than are branched from. It
//! depends on the root's own steps and the seed, never on what else runs.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::attempt::{Attempt, Stop};
use super::spec::Spec;
use crate::config::BranchAt;
use crate::mdp::{Completion, Status};
use crate::script::Failure;

/// A trajectory, and those that are to branch off it.
#[derive(Clone, Debug)]
pub struct Tree {
    pub root: Spec,
    /// Each goes on from a state of the root; where the root has none that fits, or failed, it begins at the beginning.
    pub branches: Vec<Spec>,
    pub at: BranchAt,
    /// Branches from one state.
    pub width: usize,
}

impl From<Spec> for Tree {
    fn from(root: Spec) -> Self {
        Self { root, branches: Vec::new(), at: BranchAt::Random, width: 1 }
    }
}

impl Tree {
    /// Trajectories in it.
    pub fn size(&self) -> usize {
        1 + self.branches.len()
    }
}

/// The states of a root that are branched from.
pub(super) struct Points<'a> {
    tree: &'a Tree,
    /// How many at most.
    most: usize,
    /// States that came by.
    seen: u64,
    kept: Vec<Point>,
}

/// A state that is branched from: the root as it was when the policy had been asked and its reply was not yet taken.
pub(super) struct Point {
    pub(super) attempt: Attempt,
    /// How unlikely the root's own reply was.
    surprise: f64,
}

impl Point {
    fn step(&self) -> usize {
        self.attempt.trajectory().steps.len()
    }
}

impl<'a> Points<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self { tree, most: tree.branches.len().div_ceil(tree.width.max(1)), seen: 0, kept: Vec::new() }
    }

    /// Looks at a state to which the policy gave `reply`, and keeps it if it is to be branched from as far as is known now.
    pub(super) fn consider(&mut self, attempt: &Attempt, reply: &Completion) -> Result<(), Stop> {
        let steps = &attempt.trajectory().steps;
        let Some(last) = steps.last().filter(|_| self.most > 0) else { return Ok(()) };
        self.seen += 1;
        let surprise = surprise(reply);
        let free = self.kept.len() < self.most;
        let place = match &self.tree.at {
            // Every state that came by is among the kept ones with the same probability (reservoir sampling).
            BranchAt::Random if !free => Some(self.draw() as usize).filter(|&place| place < self.most),
            BranchAt::Entropy if !free => {
                let sure = self.kept.iter().enumerate().min_by(|(_, a), (_, b)| {
                    // Of equals the latest goes.
                    a.surprise.total_cmp(&b.surprise).then(b.step().cmp(&a.step()))
                });
                sure.filter(|(_, point)| point.surprise < surprise).map(|(place, _)| place)
            }
            BranchAt::Random | BranchAt::Entropy => Some(self.kept.len()),
            BranchAt::FirstTool => (self.kept.is_empty() && !last.tools.is_empty()).then_some(0),
            BranchAt::Steps(list) => (free && list.contains(&(steps.len() as u32))).then_some(self.kept.len()),
        };
        let Some(place) = place else { return Ok(()) };
        // What stops a copy of plain data is the memory that the script may have.
        let copy = attempt.fork(attempt.spec().clone());
        let attempt = copy.map_err(|error| Failure::new(Status::ScriptLimit, error))?;
        let point = Point { attempt, surprise };
        match self.kept.get_mut(place) {
            Some(kept) => *kept = point,
            None => self.kept.push(point),
        }
        Ok(())
    }

    /// A number below [`Points::seen`] from the root's own stream.
    fn draw(&self) -> u64 {
        let mut key = [0; 32];
        let seed = self.tree.root.seed;
        for (part, word) in key.chunks_exact_mut(8).zip([seed.seed, seed.trajectory, self.seen, BRANCHES]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key).next_u64() % self.seen
    }

    /// The state that each branch goes on from, in the order of [`Tree::branches`]: the earliest states have the first
    /// branches.
    pub(super) fn of_branches(&mut self) -> Vec<Option<&Point>> {
        self.kept.sort_by_key(Point::step);
        let of = |branch: usize| match self.kept.len() {
            0 => None,
            count => self.kept.get(branch / self.tree.width.max(1) % count),
        };
        (0..self.tree.branches.len()).map(of).collect()
    }

    /// Forgets everything, for another try at the root.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.seen = 0;
    }
}

/// Tells this stream of random numbers from others with the same seed.
const BRANCHES: u64 = u64::from_le_bytes(*b"branches");

/// How unlikely a reply was, a token: the mean of `-logp`, which is the policy's entropy on average.
fn surprise(reply: &Completion) -> f64 {
    let sum: f64 = reply.logprobs.iter().map(|logp| -f64::from(*logp)).sum();
    sum / reply.logprobs.len().max(1) as f64
}
