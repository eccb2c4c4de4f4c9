//! Settings of rollouts: how many trajectories are in flight, and which of them a step waits for.

use crate::schema::{choices, section};

section! {
    /// Settings of rollouts.
    pub struct RolloutSettings: "rollout." {
        /// Trajectories in flight at once.
        concurrency: usize = 128, unit("trajectories"), range("≥ 1"), restart();
        /// Threads that run the script; 0 is one per four cores.
        workers: usize = 0, unit("threads"), range("≥ 0"), restart();
        /// Maximum number of retries of a failed trajectory, each in a fresh environment.
        retries: usize = 1, range("≥ 0");
        /// Fraction of failed trajectories in a step above which the run ends.
        max_failure_rate: f64 = 0.5, range("0 to 1");
        /// Trajectories of later steps are sampled while the weights are updated
        /// (docs/guide/async.md).
        r#async: AsyncRollouts = AsyncRollouts::default();
        /// More rollouts than a step needs: it ends with the first that are complete
        /// (docs/guide/slow-trajectories.md).
        oversample: Oversample = Oversample::default();
    }
}

section! {
    /// Rollouts that run beside the updates.
    pub struct AsyncRollouts: "rollout.async.", restart() {
        /// Maximum number of training steps by which the weights are older at the first token of a
        /// trajectory than those that it is trained with; 0 is off.
        staleness: usize = 0, unit("steps"), range("≥ 0");
        /// What happens to unfinished trajectories before the weights change.
        on_update: OnUpdate = OnUpdate::Continue, needs("rollout.async.staleness", Is::Positive);
        /// Processes that sample only, the last ones; the others learn only. With 0 all processes
        /// do both.
        ranks: usize = 0, unit("processes"), range("≥ 0"), needs("rollout.async.staleness", Is::Positive);
    }
}

section! {
    /// More rollouts than a step needs.
    pub struct Oversample: "rollout.oversample.", restart() {
        /// Groups in flight beyond `trainer.groups_per_step`; a step ends when `groups_per_step` of
        /// them are complete.
        groups: usize = 0, unit("groups"), range("≥ 0");
        /// Samples of a group beyond `trainer.group_size`; a group is complete when `group_size` of
        /// them have ended, and the others are dropped.
        samples: usize = 0, unit("trajectories"), range("≥ 0");
        /// What happens to the groups that are not complete when a step ends.
        unfinished: Unfinished = Unfinished::Drop, needs("rollout.oversample.groups", Is::Positive);
    }
}

choices! {
    /// What happens to the groups that are not complete when a step ends.
    pub enum Unfinished {
        /// They are dropped.
        Drop = "drop",
        /// They go on in the next step, with its weights.
        Carry = "carry",
    }
}

impl RolloutSettings {
    /// Whether trajectories are in flight when the weights change.
    pub fn crosses_updates(&self) -> bool {
        self.r#async.staleness > 0 || self.oversample.carries()
    }
}

impl Oversample {
    /// Whether steps begin more rollouts than they need.
    pub fn is_on(&self) -> bool {
        self.groups > 0 || self.samples > 0
    }

    /// Whether unfinished groups go on in the next step.
    pub fn carries(&self) -> bool {
        self.groups > 0 && self.unfinished == Unfinished::Carry
    }
}

choices! {
    /// What happens to unfinished trajectories before the weights change.
    pub enum OnUpdate {
        /// They go on with the new weights.
        Continue = "continue",
        /// The update waits for their end.
        Finish = "finish",
        /// Their groups are dropped and begin again with the new weights.
        Restart = "restart",
    }
}
