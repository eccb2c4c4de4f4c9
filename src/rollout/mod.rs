//! Drives trajectories: environment on one side, policy on the other.
