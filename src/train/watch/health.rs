//! Training-health warnings: known failure modes of reinforcement learning, reported once each when
//! the metrics of a run show them.

use std::collections::BTreeSet;

use crate::telemetry::{Metrics, Reporter};

/// Number of first steps, whose mean is the baseline of later ones.
const BASELINE_STEPS: usize = 5;

/// Share of correct trajectories above which equal rewards and a low entropy are no failure.
const SOLVED: f64 = 0.8;

/// The metrics of the first steps, and the warnings given so far.
#[derive(Default)]
pub(crate) struct HealthMonitor {
    entropy: Baseline,
    deviation: Baseline,
    /// Consecutive steps with several updates per rollout in which nothing was clipped.
    unclipped: usize,
    reported: BTreeSet<&'static str>,
}

/// The mean of the first steps.
#[derive(Default)]
struct Baseline {
    sum: f64,
    count: usize,
}

impl Baseline {
    /// `value` as a share of the first steps' mean; `None` during the first steps.
    fn share(&mut self, value: f64) -> Option<f64> {
        if self.count < BASELINE_STEPS {
            self.sum += value;
            self.count += 1;
            return None;
        }
        let mean = self.sum / self.count as f64;
        (mean > 0.0).then(|| value / mean)
    }
}

impl HealthMonitor {
    /// Checks the metrics of a step and warns.
    pub(crate) fn check(&mut self, reporter: &Reporter, step: u64, metrics: &Metrics) {
        for (name, warning) in self.symptoms(metrics) {
            if self.reported.insert(name) {
                reporter.warn(&format!("step {step}: {warning}"));
            }
        }
    }

    fn symptoms(&mut self, metrics: &Metrics) -> Vec<(&'static str, String)> {
        let get = |name: &str| metrics.get(name).filter(|value| value.is_finite());
        let mut symptoms = Vec::new();
        let accuracy = get("rollout/accuracy");
        let solved = accuracy.is_some_and(|accuracy| accuracy > SOLVED);
        if let Some(entropy) = get("policy/entropy")
            && let Some(share) = self.entropy.share(entropy)
            && share < 0.1
            && !solved
        {
            symptoms.push((
                "entropy",
                format!(
                    "entropy is {entropy:.4}, {:.0}% of the first steps': the policy no longer explores; lower \
                     trainer.lr, raise trainer.clip's second number, or give trainer.entropy",
                    share * 100.0
                ),
            ));
        }
        if let Some(deviation) = get("reward/group_std")
            && let Some(share) = self.deviation.share(deviation)
            && share < 0.1
            && !solved
        {
            symptoms.push((
                "echo",
                format!(
                    "rewards within a group differ by {deviation:.4}, {:.0}% of the first steps', at an accuracy of \
                     {:.0}% (the echo trap, arXiv:2504.20073); try trainer.filter.keep or trainer.filter.uniform",
                    share * 100.0,
                    accuracy.unwrap_or(0.0) * 100.0
                ),
            ));
        }
        if let Some(clipped) = get("policy/clip_frac") {
            if clipped > 0.5 {
                let warning = format!(
                    "{:.0}% of the tokens are clipped: the updates of one rollout are too large; lower trainer.lr, \
                     trainer.epochs or trainer.mini_batches",
                    clipped * 100.0
                );
                symptoms.push(("clipped", warning));
            }
            let several = get("policy/updates").is_some_and(|updates| updates > 1.0);
            self.unclipped = if several && clipped == 0.0 { self.unclipped + 1 } else { 0 };
            if self.unclipped == 20 {
                let warning = "nothing has been clipped for 20 steps of several updates: trainer.lr may be too small";
                symptoms.push(("unclipped", warning.to_owned()));
            }
        }
        if get("rollout/branches") == Some(0.0) {
            let warning = "no trajectory had a state to branch from: all start at the task; check \
                         trainer.branch.at";
            symptoms.push(("branches", warning.to_owned()));
        }
        if let Some(kl) = get("policy/approx_kl").filter(|kl| *kl > 0.5) {
            let warning = format!(
                "the updates of one rollout changed the policy by a KL of {kl:.2} per token; lower trainer.lr or \
                 trainer.epochs"
            );
            symptoms.push(("kl", warning));
        }
        if let Some(kl) = get("kl/mean").filter(|kl| *kl > 10.0) {
            symptoms
                .push(("kl", format!("the KL to the reference policy is {kl:.1} per token; raise trainer.kl.coef")));
        }
        if let Some(share) = get("policy/largest_token").filter(|share| *share > 0.5)
            && get("policy/tokens").is_some_and(|tokens| tokens > 50.0)
        {
            let warning = format!(
                "one token has {:.0}% of the policy gradient; check its trajectory, or use a loss that bounds \
                 ratios (trainer.loss.dual_clip)",
                share * 100.0
            );
            symptoms.push(("one token", warning));
        }
        symptoms
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn names(watch: &mut HealthMonitor, pairs: &[(&str, f64)]) -> Vec<&'static str> {
        watch.symptoms(&Metrics::of(pairs)).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn collapse_is_detected_relative_to_the_first_steps() {
        let mut watch = HealthMonitor::default();
        for _ in 0..BASELINE_STEPS {
            assert!(names(&mut watch, &[("policy/entropy", 1.0), ("reward/group_std", 0.5)]).is_empty());
        }
        assert!(names(&mut watch, &[("policy/entropy", 0.2), ("reward/group_std", 0.4)]).is_empty());
        let low = [("policy/entropy", 0.05), ("reward/group_std", 0.01)];
        assert_eq!(names(&mut watch, &low), ["entropy", "echo"]);
        // No warning if most tasks are solved.
        for accuracy in [0.99, 0.89] {
            let solved = [low[0], low[1], ("rollout/accuracy", accuracy)];
            assert!(names(&mut watch, &solved).is_empty(), "{accuracy}");
        }
        let unsolved = [low[0], low[1], ("rollout/accuracy", 0.45)];
        let (_, warning) = watch.symptoms(&Metrics::of(&unsolved)).remove(1);
        assert!(warning.contains("at an accuracy of 45%"), "{warning}");
    }

    #[test]
    fn the_settings_that_warnings_name_exist() {
        let mut watch = HealthMonitor::default();
        for _ in 0..BASELINE_STEPS {
            names(&mut watch, &[("policy/entropy", 1.0), ("reward/group_std", 0.5)]);
        }
        let ill = [
            ("policy/entropy", 0.01),
            ("reward/group_std", 0.01),
            ("policy/clip_frac", 0.7),
            ("policy/approx_kl", 2.0),
            ("kl/mean", 20.0),
            ("rollout/branches", 0.0),
            ("policy/largest_token", 0.8),
            ("policy/tokens", 100.0),
        ];
        let mut warnings: Vec<String> =
            watch.symptoms(&Metrics::of(&ill)).into_iter().map(|(_, warning)| warning).collect();
        for _ in 0..20 {
            let idle = Metrics::of(&[("policy/clip_frac", 0.0), ("policy/updates", 4.0)]);
            warnings.extend(watch.symptoms(&idle).into_iter().map(|(_, warning)| warning));
        }
        assert_eq!(warnings.len(), 8, "{warnings:?}");
        let learner = serde_json::to_value(crate::config::Learner::default()).unwrap();
        let loss = crate::rl::objective::PolicyLoss::named("ppo").unwrap();
        for warning in &warnings {
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
        let mut watch = HealthMonitor::default();
        assert_eq!(names(&mut watch, &[("policy/clip_frac", 0.7), ("policy/approx_kl", 2.0)]), ["clipped", "kl"]);
        assert_eq!(names(&mut watch, &[("kl/mean", 20.0)]), ["kl"]);
        assert_eq!(names(&mut watch, &[("rollout/branches", 0.0)]), ["branches"]);
        assert!(names(&mut watch, &[("rollout/branches", 3.0)]).is_empty());
        assert_eq!(names(&mut watch, &[("policy/largest_token", 0.8), ("policy/tokens", 1000.0)]), ["one token"]);
        for step in 1..=20 {
            let symptoms = names(&mut watch, &[("policy/clip_frac", 0.0), ("policy/updates", 4.0)]);
            assert_eq!(symptoms.is_empty(), step != 20);
        }
    }
}
