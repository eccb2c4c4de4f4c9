//! Warnings about steps without trained tokens, and about runs whose first steps have no learning
//! signal: once each, with the likely cause and a remedy.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::mdp::{Trajectory, failing_tools};
use crate::script::{Script, Worker};
use crate::telemetry::{Metrics, Reporter};

/// Steps without a signal after which a run warns.
const FIRST_STEPS: usize = 3;

/// Statistics of the first steps of a run.
#[derive(Debug, Default)]
pub(crate) struct LearningSignal {
    steps: usize,
    /// Number of steps in which some trajectory had a larger reward than one that it is compared
    /// with.
    differed: usize,
    /// Number of steps in which a response called a tool, and in which a response ended with a stop
    /// token.
    called: usize,
    ended: usize,
    /// Smallest and largest total reward.
    rewards: Option<(f64, f64)>,
    /// Largest share of correct answers in a step.
    accuracy: f64,
    /// Whether a step without trained tokens was reported.
    reported: bool,
    /// Tools that were reported because all their calls failed.
    failing_tools: BTreeSet<String>,
}

/// The settings of a recipe that the advice depends on.
#[derive(Clone, Copy, Debug)]
struct AdviceSettings {
    tools: bool,
    max_new_tokens: usize,
}

impl LearningSignal {
    /// Adds the metrics of a step. With a critic trajectories are compared across the batch,
    /// otherwise as the estimator does.
    fn take(&mut self, metrics: &Metrics, critic: bool) {
        let get = |name: &str| metrics.get(name).unwrap_or(0.0);
        self.steps += 1;
        let advantage = get("advantage/max").max(-get("advantage/min"));
        self.differed += usize::from(if critic { get("reward/std") > 0.0 } else { advantage > 0.0 });
        self.called += usize::from(get("rollout/tool_call_share") > 0.0);
        self.ended += usize::from(metrics.get("rollout/cut_share").is_some_and(|share| share < 1.0));
        self.accuracy = self.accuracy.max(get("rollout/accuracy"));
        if let (Some(low), Some(high)) = (metrics.get("reward/min"), metrics.get("reward/max")) {
            let (least, highest) = self.rewards.unwrap_or((low, high));
            self.rewards = Some((least.min(low), highest.max(high)));
        }
    }

    /// Whether the first steps are over.
    fn is_due(&self) -> bool {
        self.steps == FIRST_STEPS
    }

    /// The problem of the first steps, if there is one.
    fn diagnosis(&self, recipe: AdviceSettings) -> Option<String> {
        let mut causes = Vec::new();
        let replied = self.rewards.is_some();
        if replied && self.ended == 0 {
            causes.push(format!(
                "every reply was cut at sampling.max_new_tokens = {} or at the end of the context: raise the limit, or ask \
                 for shorter replies",
                recipe.max_new_tokens
            ));
        }
        if replied && recipe.tools && self.called == 0 {
            causes.push(
                "no reply called a tool: say in the prompt how calls are written, or fine-tune the model on examples of \
                 calls first (r1.sft)"
                    .to_owned(),
            );
        }
        if self.differed > 0 {
            let causes = causes.join("\n  ");
            return (!causes.is_empty()).then(|| format!("in the first {FIRST_STEPS} steps {causes}"));
        }
        causes.push(match self.rewards {
            None => "every trajectory failed".to_owned(),
            Some((low, high)) if high > low => {
                "the trajectories of each group earned the same reward: raise trainer.group_size or \
                 sampling.temperature, or use tasks that the policy solves sometimes"
                    .to_owned()
            }
            Some((reward, _)) if self.accuracy > 0.9 => {
                format!("every trajectory earned {reward}, and the tasks count as solved: use harder tasks")
            }
            Some((reward, _)) => format!(
                "every trajectory earned {reward}: use easier tasks, a reward with partial credit, or a model that \
                 solves some of the tasks"
            ),
        });
        Some(format!("nothing could be learned in the first {FIRST_STEPS} steps:\n  {}", causes.join("\n  ")))
    }

    /// The reason why a step trained no token, at the first such step.
    fn untrained(&mut self, metrics: &Metrics) -> Option<&'static str> {
        let is =
            |name: &str, value: f64| metrics.get(name).is_some_and(|measured| (measured - value).abs() < f64::EPSILON);
        if self.reported || !is("policy/updates", 0.0) || !is("policy/skipped", 0.0) {
            return None;
        }
        self.reported = true;
        Some(if is("rollout/failed_share", 1.0) {
            "all trajectories failed"
        } else if metrics.get("advantage/mean").is_none() {
            "no trajectory without failure has a sampled token"
        } else if is("reward/uniform_groups", 1.0) {
            "the trajectories of each group earned the same reward"
        } else {
            "every advantage is 0"
        })
    }
}

/// Calls of a step after which a tool that never works is reported.
const CALLS: usize = 8;

impl LearningSignal {
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
    pub(crate) fn check(
        &mut self,
        reporter: &Reporter,
        step: u64,
        metrics: &Metrics,
        script: &Script,
        (critic, warming): (bool, bool),
    ) -> Result<()> {
        if !warming && let Some(why) = self.untrained(metrics) {
            reporter.warn(&format!(
                "step {step}: no token was trained: {why}; weights and optimiser are unchanged (reported once)"
            ));
        }
        self.take(metrics, critic);
        if self.is_due() {
            let tools = !Worker::new(script, None)?.tools().is_empty();
            let recipe = AdviceSettings { tools, max_new_tokens: script.settings.sampling.max_new_tokens };
            if let Some(warning) = self.diagnosis(recipe) {
                reporter.warn(&format!("step {step}: {warning}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const RECIPE: AdviceSettings = AdviceSettings { tools: true, max_new_tokens: 64 };

    /// The warning after three equal steps.
    fn message_for(pairs: &[(&str, f64)], critic: bool, recipe: AdviceSettings) -> Option<String> {
        let mut signal = LearningSignal::default();
        for step in 1..=FIRST_STEPS {
            signal.take(&Metrics::of(pairs), critic);
            assert_eq!(signal.is_due(), step == FIRST_STEPS);
        }
        signal.diagnosis(recipe)
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
        assert_eq!(message_for(&healthy, false, RECIPE), None);
        assert_eq!(message_for(&healthy, true, RECIPE), None);
        let says = |changes: &[(&'static str, f64)], expected: &str| {
            let message = message_for(&with(changes), false, RECIPE).unwrap();
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
            message_for(&with(&[("reward/std", 0.0), ("reward/max", 0.0)]), true, RECIPE)
                .unwrap()
                .contains("nothing could")
        );
        let without_tools = AdviceSettings { tools: false, ..RECIPE };
        assert_eq!(message_for(&with(&[("rollout/tool_call_share", 0.0)]), false, without_tools), None);
        assert!(
            message_for(&[("rollout/failed_share", 1.0)], false, RECIPE)
                .unwrap()
                .ends_with("\n  every trajectory failed")
        );
    }

    #[test]
    fn a_step_without_trained_tokens_is_reported_once_with_its_cause() {
        let idle = [("policy/updates", 0.0), ("policy/skipped", 0.0)];
        let why = |more: &[(&str, f64)]| LearningSignal::default().untrained(&Metrics::of(&[&idle[..], more].concat()));
        assert_eq!(why(&[("rollout/failed_share", 1.0)]), Some("all trajectories failed"));
        assert_eq!(why(&[]), Some("no trajectory without failure has a sampled token"));
        let uniform = [("advantage/mean", 0.0), ("reward/uniform_groups", 1.0)];
        assert_eq!(why(&uniform), Some("the trajectories of each group earned the same reward"));
        assert_eq!(why(&uniform[..1]), Some("every advantage is 0"));
        assert_eq!(
            LearningSignal::default().untrained(&Metrics::of(&[("policy/updates", 1.0), ("policy/skipped", 0.0)])),
            None
        );
        assert_eq!(
            LearningSignal::default().untrained(&Metrics::of(&[("policy/updates", 0.0), ("policy/skipped", 1.0)])),
            None
        );
        let mut signal = LearningSignal::default();
        assert!(signal.untrained(&Metrics::of(&idle)).is_some() && signal.untrained(&Metrics::of(&idle)).is_none());
    }
}
