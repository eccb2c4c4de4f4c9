//! Undo and branches.

use serde_json::{Value, json};

use super::session::{Branch, ReplSession};
use crate::error::{Error, Kind, Result};
use crate::mdp::Status;
use crate::rollout::Attempt;

impl ReplSession {
    /// Undoes steps; returns how many.
    pub(super) fn undo(&mut self, count: usize) -> Result<usize> {
        let branch = self.branch()?;
        let mut done = 0;
        while done < count
            && let Some(before) = branch.past.pop()
        {
            branch.attempt = before;
            branch.failed = false;
            done += 1;
        }
        if done == 0 {
            return Err(Error::new(Kind::Usage, "there is nothing to undo"));
        }
        self.bind()?;
        Ok(done)
    }

    /// Continues in a copy.
    pub(super) fn fork(&mut self, name: &str) -> Result<String> {
        let count = self.branches.len();
        let name = if name.is_empty() { format!("fork-{count}") } else { name.to_owned() };
        if self.branches.iter().any(|branch| branch.name == name) {
            return Err(Error::new(Kind::Usage, format!("there is a branch `{name}` already")));
        }
        let branch = self.branch()?;
        let fork = |attempt: &Attempt| {
            let mut spec = attempt.spec().clone();
            // A different random stream of the model, the same of the environment.
            spec.seed.trajectory = spec.seed.trajectory.wrapping_add((count as u64) << 32);
            attempt.fork(spec)
        };
        let attempt = fork(&branch.attempt)?;
        let past = branch.past.iter().map(fork).collect::<Result<_>>()?;
        let failed = branch.failed;
        self.branches.push(Branch { name: name.clone(), attempt, past, failed });
        self.current = count;
        self.bind()?;
        Ok(name)
    }

    /// The branches with name, steps and status; the current one is marked.
    pub(super) fn list(&self) -> String {
        let line = |(index, branch): (usize, &Branch)| {
            let mark = if index == self.current { "*" } else { " " };
            let steps = branch.attempt.trajectory().steps.len();
            let end = match (branch.failed, branch.attempt.over()) {
                (true, _) => "failed",
                (false, Some(status)) => status.name(),
                (false, None) => "running",
            };
            format!("{mark} {:<16} {steps} step{}, {end}", branch.name, if steps == 1 { "" } else { "s" })
        };
        self.branches.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The same as JSON.
    pub(super) fn branches_json(&self) -> Value {
        let one = |(index, branch): (usize, &Branch)| {
            json!({
                "name": branch.name, "current": index == self.current,
                "steps": branch.attempt.trajectory().steps.len(), "failed": branch.failed,
                "status": branch.attempt.over().map(Status::name),
            })
        };
        self.branches.iter().enumerate().map(one).collect()
    }

    pub(super) fn switch(&mut self, name: &str) -> Result<()> {
        let names = self.branches.iter().map(|branch| branch.name.as_str());
        let index = self.branches.iter().position(|branch| branch.name == name);
        let missing =
            || Error::new(Kind::Usage, format!("there is no branch `{name}`")).hint(crate::error::suggest(name, names));
        self.current = index.ok_or_else(missing)?;
        self.bind()
    }
}
