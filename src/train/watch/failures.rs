//! Reports of failed trajectories: each cause once, with its line, its frames and the command that
//! repeats it; with its count; and the end of a run in which most fail.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{ErrorRecord, Status, Trajectory};
use crate::telemetry::{OutputMode, Reporter, counted};
use crate::train::options::quoted;

/// Causes reported one by one; more are counted together.
const CAUSES: usize = 20;

/// The key that failures of one cause have in common: the status, the kind of the error, and its
/// place or message.
type Key = (Status, Option<(Kind, String)>);

/// The causes of a run so far, with their counts.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    seen: BTreeMap<Key, Cause>,
    /// Failures for causes beyond those reported.
    others: usize,
}

#[derive(Debug)]
struct Cause {
    /// `env_error: attempt to index nil` and the place.
    text: String,
    count: usize,
}

impl Failures {
    /// Counts the failures among `trajectories`, and reports new causes. `again` gives the
    /// command that repeats one.
    pub(crate) fn report(
        &mut self,
        reporter: &Reporter,
        when: &str,
        trajectories: &[Trajectory],
        again: impl Fn(&Trajectory) -> Option<String>,
    ) {
        for (key, failed) in by_cause(trajectories) {
            if let Some(cause) = self.seen.get_mut(&key) {
                cause.count += failed.len();
                continue;
            }
            if self.seen.len() == CAUSES {
                self.others += failed.len();
                continue;
            }
            let Some(first) = failed.first() else { continue };
            let text = format!("{}: {}", first.status.name(), head(first));
            self.seen.insert(key, Cause { text, count: failed.len() });
            let command = again(first);
            if reporter.mode() == OutputMode::Json {
                reporter.event(
                    "failure",
                    &json!({
                        "when": when,
                        "status": first.status.name(),
                        "error": first.error_text(),
                        "error_fields": first.error,
                        "trajectory": first.id,
                        "task_index": first.task_index,
                        "seed": first.seed,
                        "count": failed.len(),
                        "again": command,
                    }),
                );
                continue;
            }
            let mut text = format!(
                "{}: {}\n  in {} of {} trajectories of {when}; {}",
                first.status.name(),
                shown(first),
                failed.len(),
                trajectories.len(),
                example(first),
            );
            if let Some(command) = command {
                text.extend(["\n  again: ", &command]);
            }
            reporter.warn(&text);
        }
    }

    /// Reports the failures of a step. Stops the run if a larger share than `limit` failed, because
    /// the remaining trajectories do not represent the policy. `store` keeps the trajectories of
    /// such a step, so that the user can find the cause.
    pub(crate) fn check(
        &mut self,
        reporter: &Reporter,
        step: u64,
        trajectories: &[Trajectory],
        limit: f64,
        again: impl Fn(&Trajectory) -> Option<String>,
        store: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let failed = trajectories.iter().filter(|trajectory| trajectory.status.is_failure()).count();
        if failed > 0 && failed as f64 / trajectories.len() as f64 > limit {
            store()?;
            if reporter.mode() == OutputMode::Json {
                self.report(reporter, &format!("step {step}"), trajectories, &again);
            }
            return Err(broken(trajectories, failed, again));
        }
        self.report(reporter, &format!("step {step}"), trajectories, again);
        Ok(())
    }

    /// Number of failures of each cause, at the end of a run.
    pub(crate) fn sum_up(&self, reporter: &Reporter) {
        let total: usize = self.seen.values().map(|cause| cause.count).sum::<usize>() + self.others;
        if total == 0 {
            return;
        }
        let mut causes: Vec<&Cause> = self.seen.values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
        let were = if total == 1 { "was" } else { "were" };
        let failed = counted(total, "trajectory", "trajectories");
        let mut text = format!("{failed} failed in this run and {were} left out");
        for Cause { text: cause, count } in causes {
            text.extend([format!("\n  {count} x {cause}").replace("\n    ", "\n      ")]);
        }
        if self.others > 0 {
            text.extend(["\n  ", &self.others.to_string(), " for other causes"]);
        }
        reporter.warn(&text);
    }
}

/// The command that opens a stored trajectory before its last step.
pub(crate) fn replay_command(script: &Path, run: &Path, trajectory: &Trajectory) -> String {
    let step = Some(trajectory.steps.len()).filter(|last| *last > 0);
    let step = step.map_or_else(String::new, |last| format!(":{last}"));
    let address = quoted(&format!("{}:{}{step}", run.display(), trajectory.id));
    format!("r1 repl {} --replay {address}", quoted(&script.display().to_string()))
}

/// The error that ends a run in which most trajectories fail: the most common causes, each with an
/// example.
fn broken(trajectories: &[Trajectory], failed: usize, again: impl Fn(&Trajectory) -> Option<String>) -> Error {
    let mut text = format!("{failed} of {} trajectories failed", trajectories.len());
    let causes = by_cause(trajectories);
    for (_, members) in causes.iter().take(3) {
        let Some(first) = members.first() else { continue };
        let error = shown(first).replace('\n', "\n  ");
        text.extend([format!("\n  {} x {}: {error}\n    {}", members.len(), first.status.name(), example(first))]);
        text.extend(again(first).map(|command| format!("\n    again: {command}")));
    }
    if causes.len() > 3 {
        text.extend([format!("\n  and {} other causes", causes.len() - 3)]);
    }
    let numbers =
        (0_u64..).zip(trajectories).filter(|(_, trajectory)| trajectory.status.is_failure()).map(|(number, _)| number);
    let subject = Subject::Trajectories { numbers: numbers.collect(), step: None };
    Error::new(Kind::Env, text)
        .about(subject)
        .hint("fix the script and start again with --resume; rollout.max_failure_rate sets the limit")
}

/// Failed trajectories by cause, the most common first.
fn by_cause(trajectories: &[Trajectory]) -> Vec<(Key, Vec<&Trajectory>)> {
    let mut causes: Vec<(Key, Vec<&Trajectory>)> = Vec::new();
    for trajectory in trajectories.iter().filter(|trajectory| trajectory.status.is_failure()) {
        let key = key(trajectory.status, trajectory.error.as_ref());
        match causes.iter_mut().find(|(known_key, _)| *known_key == key) {
            Some((_, members)) => members.push(trajectory),
            None => causes.push((key, vec![trajectory])),
        }
    }
    causes.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    causes
}

fn key(status: Status, error: Option<&ErrorRecord>) -> Key {
    let cause = error.map(|error| {
        let (kind, what) = error.cause();
        // Messages have the numbers of a trajectory: seconds, tokens.
        (kind, if error.place.is_some() { what.to_owned() } else { without_numbers(what) })
    });
    (status, cause)
}

/// A message with `#` for each number, to compare messages. Codes of HTTP stay, because they name
/// the cause.
fn without_numbers(message: &str) -> String {
    let (mut cleaned, mut rest) = (String::new(), message);
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = &rest[start..];
        let end = digits.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(digits.len());
        let before = &rest[..start];
        cleaned.push_str(before);
        let is_code = before.trim_end().ends_with("HTTP") || before.trim_end().ends_with("status");
        cleaned.push_str(if is_code { &digits[..end] } else { "#" });
        rest = &digits[end..];
    }
    cleaned + rest
}

/// The complete reason of a trajectory's failure.
fn shown(trajectory: &Trajectory) -> String {
    trajectory.error_text().unwrap_or_else(|| "no reason given".to_owned())
}

/// The message and the place, without hint, line and frames.
fn head(trajectory: &Trajectory) -> String {
    let Some(error) = &trajectory.error else { return shown(trajectory) };
    let location = error.place.iter().map(|location| format!("\n    --> {location}"));
    [error.message.clone()].into_iter().chain(location).collect()
}

fn example(trajectory: &Trajectory) -> String {
    let Trajectory { id, task_index, seed, .. } = trajectory;
    format!("the first is {id} (row {task_index}, seed {seed})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_status_are_told_apart_by_their_messages() {
        let of = |message: &str| key(Status::PolicyError, Some(&ErrorRecord::from(&Error::new(Kind::Env, message))));
        assert_eq!(of("no reply after 3.1 s"), of("no reply after 12 s"));
        assert_ne!(of("HTTP 401: no key"), of("HTTP 503: overloaded"));
        assert_ne!(of("HTTP 401: no key"), of("no reply after 3.1 s"));
        assert_eq!(without_numbers("status 503, 2 of 3"), "status 503, # of #");
    }
}
