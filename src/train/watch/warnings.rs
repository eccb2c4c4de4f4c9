//! Warnings about the metrics of a run: rows and functions of `lua/warnings.lua`; and about tools
//! all of whose calls fail.

use std::collections::BTreeSet;

use serde_json::json;

use crate::error::Result;
use crate::host_lua::HostFile;
use crate::mdp::{Trajectory, failing_tools};
use crate::script::{Script, Worker};
use crate::telemetry::{Metrics, Reporter};

/// Steps without a signal after which a run warns.
const FIRST_STEPS: usize = 3;

/// Calls of a step after which a tool that never works is reported.
const CALLS: usize = 8;

/// The warnings of one run.
pub(crate) struct RunWarnings {
    /// Remembers the metrics and warnings so far.
    file: HostFile,
    /// The metrics of the first steps with an update.
    first: Vec<Metrics>,
    /// Tools that were reported because all their calls failed.
    failing_tools: BTreeSet<String>,
}

impl RunWarnings {
    /// # Errors
    /// `Kind::Internal` for a mistake in the file.
    pub(crate) fn new() -> Result<Self> {
        let file = HostFile::load("warnings", include_str!("../../../lua/warnings.lua"), |_| Ok(()))?;
        Ok(Self { file, first: Vec::new(), failing_tools: BTreeSet::new() })
    }

    /// Warns of known failure modes in the metrics of a step.
    ///
    /// # Errors
    /// `Kind::Internal` for a mistake in the file.
    pub(crate) fn check(&self, reporter: &Reporter, step: u64, metrics: &Metrics) -> Result<()> {
        for warning in self.of_step(metrics)? {
            reporter.warn(&format!("step {step}: {warning}"));
        }
        Ok(())
    }

    fn of_step(&self, metrics: &Metrics) -> Result<Vec<String>> {
        self.file.call("of_step", metrics)
    }

    /// Warns of tools all of whose calls in this step failed, once for each.
    pub(crate) fn check_tools(&mut self, reporter: &Reporter, step: u64, trajectories: &[Trajectory]) {
        let calls = trajectories.iter().flat_map(|one| &one.steps).flat_map(|step| &step.tools);
        for tool in failing_tools(calls, CALLS) {
            if self.failing_tools.insert(tool.name.clone()) {
                reporter.warn(&format!("step {step}: {tool}"));
            }
        }
    }

    /// Checks the training signal of a finished step of `script`. `warming`: of the critic and the
    /// policy, only the critic was trained.
    ///
    /// # Errors
    /// Errors of starting a script worker.
    pub(crate) fn check_signal(
        &mut self,
        reporter: &Reporter,
        step: u64,
        metrics: &Metrics,
        script: &Script,
        (critic, warming): (bool, bool),
    ) -> Result<()> {
        if !warming && let Some(why) = self.untrained(metrics)? {
            reporter.warn(&format!(
                "step {step}: no token was trained: {why}; weights and optimiser are unchanged (reported once)"
            ));
        }
        if self.first.len() < FIRST_STEPS {
            self.first.push(metrics.clone());
            if self.first.len() == FIRST_STEPS {
                let tools = !Worker::new(script, None)?.tools().is_empty();
                let limit = script.settings.sampling.max_new_tokens;
                if let Some(warning) = self.of_first_steps(critic, tools, limit)? {
                    reporter.warn(&format!("step {step}: {warning}"));
                }
            }
        }
        Ok(())
    }

    fn untrained(&self, metrics: &Metrics) -> Result<Option<String>> {
        self.file.call("untrained", metrics)
    }

    fn of_first_steps(&self, critic: bool, tools: bool, max_new_tokens: usize) -> Result<Option<String>> {
        let run = json!({ "steps": self.first, "critic": critic, "tools": tools, "max_new_tokens": max_new_tokens });
        self.file.call("of_first_steps", &run)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn warnings(run: &RunWarnings, pairs: &[(&str, f64)]) -> Vec<String> {
        run.of_step(&Metrics::of(pairs)).unwrap()
    }

    /// A run after five healthy steps.
    fn with_baseline() -> RunWarnings {
        let run = RunWarnings::new().unwrap();
        for _ in 0..5 {
            assert!(warnings(&run, &[("policy/entropy", 1.0), ("reward/group_std", 0.5)]).is_empty());
        }
        run
    }

    /// Each warning of a new run begins as given.
    fn assert_warnings(run: &RunWarnings, pairs: &[(&str, f64)], begin: &[&str]) {
        let all = warnings(run, pairs);
        assert_eq!(all.len(), begin.len(), "{all:?}");
        assert!(all.iter().zip(begin).all(|(warning, begin)| warning.starts_with(begin)), "{all:?}");
    }

    #[test]
    fn collapse_is_detected_relative_to_the_first_steps() {
        let run = with_baseline();
        assert_warnings(&run, &[("policy/entropy", 0.2), ("reward/group_std", 0.4)], &[]);
        let low = [("policy/entropy", 0.05), ("reward/group_std", 0.01)];
        assert_warnings(&run, &low, &["entropy is 0.0500, 5%", "rewards within a group differ by 0.0100, 2%"]);
        assert_warnings(&run, &low, &[]);
        // No warning if most tasks are solved.
        for accuracy in [0.99, 0.89] {
            assert_warnings(&with_baseline(), &[low[0], low[1], ("rollout/accuracy", accuracy)], &[]);
        }
        let unsolved = warnings(&with_baseline(), &[low[0], low[1], ("rollout/accuracy", 0.45)]);
        assert!(unsolved[1].contains("at an accuracy of 45%"), "{unsolved:?}");
    }

    /// The settings that warnings name exist.
    #[test]
    fn the_settings_that_warnings_name_exist() {
        let run = with_baseline();
        let ill = [
            ("policy/entropy", 0.01),
            ("reward/group_std", 0.01),
            ("policy/clip_frac", 0.7),
            ("policy/approx_kl", 2.0),
            ("rollout/branches", 0.0),
            ("policy/largest_token", 0.8),
            ("policy/tokens", 100.0),
        ];
        let mut all = warnings(&run, &ill);
        all.extend(warnings(&RunWarnings::new().unwrap(), &[("kl/mean", 20.0)]));
        for _ in 0..20 {
            all.extend(warnings(&run, &[("policy/clip_frac", 0.0), ("policy/updates", 4.0)]));
        }
        assert_eq!(all.len(), 8, "{all:?}");
        let learner = serde_json::to_value(crate::config::Learner::default()).unwrap();
        let loss = crate::rl::objective::PolicyLoss::named("ppo").unwrap();
        for warning in &all {
            let settings =
                warning.split([' ', ',', ';', ':', ')', '(', '\'']).filter_map(|w| w.strip_prefix("trainer."));
            for setting in settings {
                let there = match setting.strip_prefix("loss.") {
                    Some(option) => loss.has_option(option),
                    None => learner.pointer(&format!("/{}", setting.replace('.', "/"))).is_some(),
                };
                assert!(there, "{setting}: {warning}");
            }
        }
    }

    #[test]
    fn clipping_kl_and_single_tokens_are_detected() {
        let new = || RunWarnings::new().unwrap();
        let updates = [("policy/clip_frac", 0.7), ("policy/approx_kl", 2.0)];
        assert_warnings(&new(), &updates, &["70% of the tokens are clipped", "the updates of one rollout"]);
        assert_warnings(&new(), &[("kl/mean", 20.0)], &["the KL to the reference policy is 20.0"]);
        assert_warnings(&new(), &[("rollout/branches", 0.0)], &["no trajectory had a state to branch from"]);
        assert_warnings(&new(), &[("rollout/branches", 3.0)], &[]);
        let token = [("policy/largest_token", 0.8), ("policy/tokens", 1000.0)];
        assert_warnings(&new(), &token, &["one token has 80% of the policy gradient"]);
        assert_warnings(&new(), &[("policy/approx_kl", f64::NAN), ("kl/mean", f64::INFINITY)], &[]);
        let run = new();
        for step in 1..=20 {
            let idle = warnings(&run, &[("policy/clip_frac", 0.0), ("policy/updates", 4.0)]);
            assert_eq!(idle.is_empty(), step != 20);
        }
    }

    /// The warning after three equal steps.
    fn message_for(pairs: &[(&str, f64)], critic: bool, tools: bool) -> Option<String> {
        let first = vec![Metrics::of(pairs); FIRST_STEPS];
        RunWarnings { first, ..RunWarnings::new().unwrap() }.of_first_steps(critic, tools, 64).unwrap()
    }

    #[test]
    fn each_cause_is_named_with_its_remedy() {
        let healthy = [
            ("reward/min", 0.0),
            ("reward/max", 1.0),
            ("reward/std", 0.5),
            ("advantage/min", -1.0),
            ("advantage/max", 1.0),
            ("rollout/tool_call_share", 0.5),
            ("rollout/cut_share", 0.25),
        ];
        let with = |changes: &[(&'static str, f64)]| -> Vec<(&'static str, f64)> {
            healthy
                .iter()
                .map(|(name, value)| {
                    (*name, changes.iter().find(|(changed, _)| changed == name).map_or(*value, |(_, value)| *value))
                })
                .chain(changes.iter().filter(|(name, _)| healthy.iter().all(|(changed, _)| changed != name)).copied())
                .collect()
        };
        assert_eq!(message_for(&healthy, false, true), None);
        assert_eq!(message_for(&healthy, true, true), None);
        let says = |changes: &[(&'static str, f64)], expected: &str| {
            let message = message_for(&with(changes), false, true).unwrap();
            assert!(message.contains(expected), "{message}");
            message
        };
        says(&[("rollout/cut_share", 1.0)], "in the first 3 steps every reply was cut at sampling.max_new_tokens = 64");
        says(&[("rollout/tool_call_share", 0.0)], "no reply called a tool");
        let flat = [("advantage/min", 0.0), ("advantage/max", 0.0)];
        says(&flat, "the trajectories of each group earned the same reward: raise trainer.group_size");
        let same = [flat[0], flat[1], ("reward/max", 0.0), ("reward/std", 0.0)];
        let message =
            says(&same, "nothing could be learned in the first 3 steps:\n  every trajectory earned 0: use easier");
        assert!(!message.contains("tool"), "{message}");
        says(&[same[0], same[1], same[2], ("rollout/accuracy", 1.0)], "use harder tasks");
        says(&[same[0], same[1], same[2], ("rollout/tool_call_share", 0.0)], "(r1.sft)\n  every trajectory earned 0");
        // Advantages of a critic differ although rewards do not.
        assert!(
            message_for(&with(&[("reward/std", 0.0), ("reward/max", 0.0)]), true, true)
                .unwrap()
                .contains("nothing could")
        );
        assert_eq!(message_for(&with(&[("rollout/tool_call_share", 0.0)]), false, false), None);
        assert!(
            message_for(&[("rollout/failed_share", 1.0)], false, true)
                .unwrap()
                .ends_with("\n  every trajectory failed")
        );
    }

    #[test]
    fn a_step_without_trained_tokens_is_reported_once_with_its_cause() {
        let idle = [("policy/updates", 0.0), ("policy/skipped", 0.0)];
        let reason = |pairs: &[(&str, f64)]| RunWarnings::new().unwrap().untrained(&Metrics::of(pairs)).unwrap();
        let why = |more: &[(&str, f64)]| reason(&[&idle[..], more].concat()).unwrap();
        assert_eq!(why(&[("rollout/failed_share", 1.0)]), "all trajectories failed");
        assert_eq!(why(&[]), "no trajectory without failure has a sampled token");
        let uniform = [("advantage/mean", 0.0), ("reward/uniform_groups", 1.0)];
        assert_eq!(why(&uniform), "the trajectories of each group earned the same reward");
        assert_eq!(why(&uniform[..1]), "every advantage is 0");
        assert_eq!(reason(&[("policy/updates", 1.0), ("policy/skipped", 0.0)]), None);
        assert_eq!(reason(&[("policy/updates", 0.0), ("policy/skipped", 1.0)]), None);
        let run = RunWarnings::new().unwrap();
        let untrained = || run.untrained(&Metrics::of(&idle)).unwrap();
        assert!(untrained().is_some() && untrained().is_none());
    }
}
