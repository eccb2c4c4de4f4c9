//! Figures at k for the metrics of a training run.

use std::collections::BTreeMap;

use super::at_k::{best, majority, pass, worst};
use super::samples::final_answer;
use crate::mdp::{AtK, Trajectory};

/// Figures of the k samples that every task has; `None` if that is one sample or none.
pub fn at_k(trajectories: &[&Trajectory], score: impl Fn(&Trajectory) -> f64) -> Option<AtK> {
    let mut tasks: BTreeMap<u64, Vec<(f64, Option<String>)>> = BTreeMap::new();
    for trajectory in trajectories {
        let answer = trajectory.steps.last().and_then(|step| final_answer(&step.text));
        tasks.entry(trajectory.task_index).or_default().push((score(trajectory), answer));
    }
    let k = tasks.values().map(Vec::len).min().filter(|k| *k > 1)?;
    let votes = tasks.values().flatten().any(|(_, answer)| answer.is_some());
    let count = tasks.len() as f64;
    let mut figures = AtK { k, majority: votes.then_some(0.0), ..AtK::default() };
    for samples in tasks.values() {
        let scores: Vec<f64> = samples.iter().map(|(score, _)| *score).collect();
        figures.best += best(&scores, k) / count;
        figures.worst += worst(&scores, k) / count;
        figures.pass += pass(&scores, k) / count;
        if let Some(sum) = &mut figures.majority {
            let answers: Vec<(f64, Option<&str>)> =
                samples.iter().map(|(score, answer)| (*score, answer.as_deref())).collect();
            *sum += majority(&answers, k) / count;
        }
    }
    Some(figures)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::mdp::testing;

    #[test]
    fn several_samples_of_a_task_have_figures_at_k() {
        let sample = |task: u64, text: &str| {
            let mut step = testing::step(&[1], &[2]);
            text.clone_into(&mut step.text);
            Trajectory { task_index: task, ..testing::trajectory(vec![step]) }
        };
        let all = [
            sample(0, "#### 7"),
            sample(0, "#### 7"),
            sample(0, "#### 8"),
            sample(1, "no"),
            sample(1, "no"),
            sample(1, "#### 8"),
        ];
        let right = |one: &Trajectory| f64::from(u8::from(one.steps[0].text.contains('7')));
        let figures = at_k(&all.iter().collect::<Vec<_>>(), right);
        assert_eq!(figures, Some(AtK { k: 3, best: 0.5, worst: 0.0, pass: 0.5, majority: Some(0.5) }));
        let fewer = at_k(&all[1..].iter().collect::<Vec<_>>(), right).unwrap();
        assert_eq!((fewer.k, fewer.best), (2, 0.5), "the smallest number of samples of a task");
        assert!(at_k(&all.iter().skip(5).collect::<Vec<_>>(), right).is_none(), "one sample");
    }
}
