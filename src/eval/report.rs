//! The figures of an evaluation: of all tasks, by slices, and as differences between policies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::at_k;
use super::interval::{Estimate, estimate};
use super::paired::{Difference, difference};
use super::samples::{Sample, TaskSamples, is_missing, tasks};
use super::sequential::Sequential;
use super::usage::{calls, cost, tool_seconds, tools_of};
use crate::mdp::{Step, Trajectory};

/// Inputs of a report other than the trajectories.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// The reward part that is the score; if empty, a task is solved when its reward is above 0.
    pub accuracy: String,
    /// Columns of the tasks; figures are computed for each value of such a column.
    pub by: Vec<String>,
    /// Numbers of samples, in order; those above the number of samples of all tasks have no figure.
    pub ks: Vec<usize>,
}

/// Figures of some tasks. Every metric is a mean over tasks of a figure of each task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Tasks with at least one sample that counts.
    pub tasks: usize,
    /// Trajectories that count.
    pub samples: usize,
    /// Trajectories that failed for reasons other than the policy.
    pub missing: usize,
    /// In the order in which they are shown.
    #[serde(serialize_with = "as_map")]
    pub metrics: Vec<(String, Estimate)>,
}

impl Figures {
    /// A metric by name.
    pub fn metric(&self, name: &str) -> Option<Estimate> {
        self.metrics.iter().find(|(key, _)| key == name).map(|(_, estimate)| *estimate)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyReport {
    /// Name of the model.
    pub model: String,
    #[serde(flatten)]
    pub figures: Figures,
    /// Column -> value -> figures of its tasks.
    pub slices: BTreeMap<String, BTreeMap<String, Figures>>,
    /// Failed trajectories by status, those that count as wrong included.
    pub failures: BTreeMap<String, usize>,
    /// Truncated trajectories by limit.
    pub truncated: BTreeMap<String, usize>,
    /// Wall time of sampling.
    pub seconds: f64,
    /// Price of all tokens, also of failed trajectories; `None` without a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Requests to a server that were sent again.
    #[serde(skip_serializing_if = "is_zero")]
    pub repeated_requests: u64,
}

/// The trajectories of one policy.
#[derive(Clone, Debug, Default)]
pub struct PolicySamples {
    pub model: String,
    pub trajectories: Vec<Trajectory>,
    /// Wall time of sampling.
    pub seconds: f64,
    /// Price of prompt and response tokens, per million.
    pub price: Option<(f64, f64)>,
    /// The test against the first policy, if sampling could stop early.
    pub sequential: Option<Sequential>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde requires
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The difference of a policy from the first one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub model: String,
    pub baseline: String,
    #[serde(serialize_with = "as_map")]
    pub metrics: Vec<(String, Difference)>,
    /// The test of the mean score that may end sampling; `None` without `eval.early_stop`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential: Option<Sequential>,
}

/// The evaluation of one policy or more on the same tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub recipe: String,
    /// Samples per task.
    pub n: usize,
    pub temperature: f64,
    pub policies: Vec<PolicyReport>,
    /// Each policy but the first, compared with the first.
    pub comparisons: Vec<Comparison>,
}

type TaskFigures = Vec<(Metric, f64)>;

/// A metric and whether it is a share, from 0 to 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    /// Place in the report.
    order: usize,
    k: usize,
    name: String,
    share: bool,
}

/// Place of the reward parts among the metrics, and of the figures of each tool.
const PARTS: usize = 5;
const TOOLS: usize = 100;

/// Metrics of a trajectory other than reward parts.
type Measure = (&'static str, fn(&Trajectory) -> f64);
const MEASURES: [Measure; 7] = [
    ("reward", Trajectory::total_reward),
    ("steps", |one| one.steps.len() as f64),
    ("tool_calls", |one| one.tool_calls() as f64),
    ("tokens", |one| one.response_tokens() as f64),
    ("prompt_tokens", |one| one.steps.iter().map(Step::prompt_tokens).sum::<usize>() as f64),
    ("seconds", |one| one.seconds),
    ("tool_seconds", |one| tool_seconds(one, None)),
];

impl Report {
    /// Computes the figures from the trajectories of each policy.
    pub fn new(recipe: &str, n: usize, temperature: f64, policies: &[PolicySamples], options: &ReportOptions) -> Self {
        let policy_tasks: Vec<BTreeMap<u64, TaskSamples<'_>>> =
            policies.iter().map(|policy| tasks(&policy.trajectories, &options.accuracy)).collect();
        let votes =
            policy_tasks.iter().flat_map(BTreeMap::values).any(|task| task.samples.iter().any(|s| s.answer.is_some()));
        let values: Vec<BTreeMap<u64, TaskFigures>> = policy_tasks
            .iter()
            .zip(policies)
            .map(|(tasks, policy)| {
                let scored = tasks.iter().filter(|(_, task)| !task.samples.is_empty());
                let figures = |task: &TaskSamples<'_>| task_figures(&task.samples, options, votes, policy.price);
                scored.map(|(index, task)| (*index, figures(task))).collect()
            })
            .collect();
        let reports = policies.iter().zip(&policy_tasks).zip(&values);
        let comparisons = (1..policies.len()).map(|at| compare(policies, &values, at)).collect();
        Self {
            recipe: recipe.to_owned(),
            n,
            temperature,
            policies: reports.map(|((policy, tasks), values)| policy_report(policy, tasks, values, options)).collect(),
            comparisons,
        }
    }

    /// One object: the figures of the first policy; with several, also the figures of all and their
    /// differences.
    ///
    /// # Errors
    /// None in practice: all fields are plain data.
    pub fn to_json(&self) -> serde_json::Result<Value> {
        let mut object = match self.policies.first() {
            Some(first) => serde_json::to_value(first)?,
            None => Value::Object(serde_json::Map::new()),
        };
        object["recipe"] = self.recipe.as_str().into();
        object["n"] = self.n.into();
        object["temperature"] = self.temperature.into();
        if self.policies.len() > 1 {
            object["models"] = serde_json::to_value(&self.policies)?;
            object["comparisons"] = serde_json::to_value(&self.comparisons)?;
        }
        Ok(object)
    }
}

fn policy_report(
    policy: &PolicySamples,
    tasks: &BTreeMap<u64, TaskSamples<'_>>,
    values: &BTreeMap<u64, TaskFigures>,
    options: &ReportOptions,
) -> PolicyReport {
    let all = &policy.trajectories;
    let replies = all.iter().flat_map(|one| &one.steps).filter_map(|step| step.server.as_ref());
    PolicyReport {
        model: policy.model.clone(),
        figures: figures(tasks.iter(), values, all.iter()),
        slices: slices(tasks, values, all, &options.by),
        failures: counts(all, |one| one.status.is_failure().then(|| one.status.name())),
        truncated: counts(all, |one| one.truncated_by.map(crate::mdp::Limit::name)),
        seconds: policy.seconds,
        cost: policy.price.map(|price| all.iter().map(|one| cost(one, price)).sum()),
        repeated_requests: replies.map(|reply| u64::from(reply.retries)).sum(),
    }
}

/// 1, 2, 4, … below `n`, and `n`.
pub fn powers_of_two(n: usize) -> Vec<usize> {
    let mut ks: Vec<usize> = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k < n).collect();
    ks.push(n.max(1));
    ks
}

/// The figures of a task with at least one sample.
fn task_figures(
    samples: &[Sample<'_>],
    options: &ReportOptions,
    votes: bool,
    price: Option<(f64, f64)>,
) -> TaskFigures {
    let scores: Vec<f64> = samples.iter().map(|sample| sample.score).collect();
    let answers: Vec<(f64, Option<&str>)> =
        samples.iter().map(|sample| (sample.score, sample.answer.as_deref())).collect();
    let mut figures = Vec::new();
    let mut add = |order: usize, k: usize, name: String, share: bool, value: f64| {
        figures.push((Metric { order, k, name, share }, value));
    };
    // The expectation of a mean does not depend on k: tasks with fewer samples have it too.
    for k in options.ks.iter().copied().filter(|k| *k == 1 || Some(k) == options.ks.last()) {
        add(0, k, format!("mean@{k}"), true, at_k::mean(&scores));
    }
    for k in options.ks.iter().copied().filter(|k| *k <= scores.len()) {
        add(1, k, format!("best@{k}"), true, at_k::best(&scores, k));
        add(2, k, format!("worst@{k}"), true, at_k::worst(&scores, k));
        if votes {
            add(3, k, format!("maj@{k}"), true, at_k::majority(&answers, k));
        }
        add(4, k, format!("pass@{k}"), true, at_k::pass(&scores, k));
    }
    let count = samples.len() as f64;
    let mut parts: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.trajectory.reward_parts) {
        *parts.entry(name).or_default() += value / count;
    }
    for (name, value) in parts {
        let is_taken = MEASURES.iter().any(|(taken, _)| *taken == name) || name.contains('@');
        let shown = if is_taken { format!("parts.{name}") } else { name.to_owned() };
        add(PARTS, 0, shown, name == options.accuracy || ["em", "f1"].contains(&name), value);
    }
    let mean =
        |of: &dyn Fn(&Trajectory) -> f64| samples.iter().map(|sample| of(sample.trajectory)).sum::<f64>() / count;
    for (at, (name, measure)) in MEASURES.iter().enumerate() {
        add(PARTS + 1 + at, 0, (*name).to_owned(), false, mean(measure));
    }
    if let Some(price) = price {
        add(PARTS + 1 + MEASURES.len(), 0, "cost".to_owned(), false, mean(&|one| cost(one, price)));
    }
    let names: BTreeSet<&str> = samples.iter().flat_map(|sample| tools_of(sample.trajectory)).collect();
    for name in names {
        add(TOOLS, 0, format!("tool_calls.{name}"), false, mean(&|one| calls(one, Some(name)).count() as f64));
        add(TOOLS, 0, format!("tool_seconds.{name}"), false, mean(&|one| tool_seconds(one, Some(name))));
    }
    figures
}

/// The figures of tasks and of their trajectories.
fn figures<'a>(
    tasks: impl Iterator<Item = (&'a u64, &'a TaskSamples<'a>)>,
    values: &BTreeMap<u64, TaskFigures>,
    trajectories: impl Iterator<Item = &'a Trajectory>,
) -> Figures {
    let mut columns: BTreeMap<&Metric, Vec<f64>> = BTreeMap::new();
    let mut figures = Figures::default();
    for (index, task) in tasks {
        figures.samples += task.samples.len();
        let Some(task_values) = values.get(index) else { continue };
        figures.tasks += 1;
        for (metric, value) in task_values {
            columns.entry(metric).or_default().push(*value);
        }
    }
    // A part or a tool that a task lacks is 0 for it, as in training; a figure at k needs k
    // samples.
    for (metric, values) in &mut columns {
        if metric.order == PARTS || metric.order == TOOLS {
            values.resize(figures.tasks, 0.0);
        }
    }
    figures.missing = trajectories.filter(|one| is_missing(one.status)).count();
    figures.metrics = columns
        .iter()
        .filter_map(|(metric, values)| Some((metric.name.clone(), estimate(values, metric.share)?)))
        .collect();
    figures
}

/// Figures of the tasks with each value of each column; tasks without the column are left out.
fn slices(
    tasks: &BTreeMap<u64, TaskSamples<'_>>,
    values: &BTreeMap<u64, TaskFigures>,
    trajectories: &[Trajectory],
    by: &[String],
) -> BTreeMap<String, BTreeMap<String, Figures>> {
    let slice = |column: &String| {
        let mut members: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (index, task) in tasks {
            if let Some(value) = task.columns.get(column).filter(|value| !value.is_null()) {
                members.entry(plain(value)).or_default().push(*index);
            }
        }
        let figures = |(value, indices): (String, Vec<u64>)| {
            let slice_tasks = indices.iter().filter_map(|index| tasks.get_key_value(index));
            let trajectories = trajectories.iter().filter(|one| indices.binary_search(&one.task_index).is_ok());
            (value, figures(slice_tasks, values, trajectories))
        };
        (column.clone(), members.into_iter().map(figures).collect())
    };
    by.iter().map(slice).collect()
}

/// A value of a column as text.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn counts<'a>(
    trajectories: &'a [Trajectory],
    name: impl Fn(&'a Trajectory) -> Option<&'static str>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in trajectories.iter().filter_map(name) {
        *counts.entry(name.to_owned()).or_insert(0) += 1;
    }
    counts
}

/// Policy `at` against the first, on the tasks that both have.
fn compare(policies: &[PolicySamples], values: &[BTreeMap<u64, TaskFigures>], at: usize) -> Comparison {
    let mut columns: BTreeMap<&Metric, Vec<f64>> = BTreeMap::new();
    for (index, figures) in &values[at] {
        let Some(other) = values[0].get(index) else { continue };
        for (metric, value) in figures {
            if let Some((_, before)) = other.iter().find(|(other, _)| other == metric) {
                columns.entry(metric).or_default().push(value - before);
            }
        }
    }
    let metrics = columns.iter().filter_map(|(metric, values)| Some((metric.name.clone(), difference(values)?)));
    Comparison {
        model: policies[at].model.clone(),
        baseline: policies[0].model.clone(),
        metrics: metrics.collect(),
        sequential: policies[at].sequential,
    }
}

/// Named values as an object, in their order.
fn as_map<T: Serialize, S: Serializer>(values: &[(String, T)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mdp::{Status, testing};

    fn policy(model: &str, trajectories: Vec<Trajectory>) -> PolicySamples {
        PolicySamples { model: model.to_owned(), trajectories, ..PolicySamples::default() }
    }

    /// A sample with a response, a reward, a reward part and the columns of its task.
    fn sample(task_index: u64, text: &str, reward: f64, part: Option<(&str, f64)>, task: Value) -> Trajectory {
        let mut step = testing::step(&[1], &[2]);
        step.reward = reward;
        text.clone_into(&mut step.text);
        let reward_parts = part.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Trajectory { task_index, task, reward_parts, ..testing::trajectory(vec![step]) }
    }

    #[test]
    fn slices_parts_and_votes_of_a_report() {
        let level = |level: Value| serde_json::json!({ "level": level });
        let failed = |mut one: Trajectory, status: Status| {
            one.status = status;
            one
        };
        let all = vec![
            sample(0, "#### 7", 1.0, Some(("steps", 5.0)), level("hard".into())),
            failed(sample(0, "#### 7", 1.0, None, level("hard".into())), Status::EnvError),
            sample(1, "#### 7", 1.0, Some(("format", 0.5)), level(2.into())),
            sample(2, "#### 7", 1.0, None, level(Value::Null)),
            // Its answer does not vote, although the text has one.
            failed(sample(2, "#### 8", 1.0, None, level(Value::Null)), Status::ContextOverflow),
        ];
        let options = ReportOptions { ks: vec![1, 2], by: vec!["level".to_owned()], ..ReportOptions::default() };
        let report = Report::new("a", 2, 1.0, &[policy("m", all)], &options);
        let PolicyReport { figures, slices, failures, .. } = &report.policies[0];
        let value = |name: &str| figures.metric(name).map(|metric| metric.value);
        // A part with the name of a measure; a part that two of three tasks lack.
        assert_eq!(
            (value("steps"), value("parts.steps"), value("format")),
            (Some(1.0), Some(5.0 / 3.0), Some(0.5 / 3.0))
        );
        assert_eq!((value("mean@1"), value("maj@2")), (Some(2.5 / 3.0), Some(1.0)));
        let slices: Vec<_> =
            slices["level"].iter().map(|(name, slice)| (name.as_str(), slice.tasks, slice.missing)).collect();
        assert_eq!(slices, [("2", 1, 0), ("hard", 1, 1)]);
        assert_eq!(failures.len(), 2);
    }

    #[test]
    fn a_difference_is_that_of_a_policy_from_the_first() {
        let rewarded = |name: &str, rewards: [f64; 3]| {
            let samples = rewards.iter().zip(0..).map(|(reward, task)| sample(task, "", *reward, None, Value::Null));
            policy(name, samples.collect())
        };
        let (first, mut second) = (rewarded("first", [0.0, 0.0, 1.0]), rewarded("second", [1.0, 1.0, 1.0]));
        // A task that only one policy has does not count.
        second.trajectories.push(sample(7, "", 1.0, None, Value::Null));
        let options = ReportOptions { ks: vec![1], ..ReportOptions::default() };
        let report = Report::new("a", 1, 0.0, &[first, second], &options);
        let (_, difference) = report.comparisons[0].metrics.iter().find(|(name, _)| name == "mean@1").unwrap();
        assert!((difference.estimate.value - 2.0 / 3.0).abs() < 1e-12, "{difference:?}");
        assert_eq!(difference.tasks, 3);
    }

    #[test]
    fn a_task_with_a_missing_sample_has_a_mean_and_no_figure_of_all_samples() {
        let sample = |task_index: u64, reward: f64, status: Status| {
            let mut step = testing::step(&[1], &[2]);
            step.reward = reward;
            Trajectory { task_index, status, ..testing::trajectory(vec![step]) }
        };
        let all = vec![
            sample(0, 1.0, Status::Terminated),
            sample(0, 1.0, Status::EnvError),
            sample(1, 1.0, Status::Terminated),
            sample(1, 0.0, Status::ContextOverflow),
        ];
        let options = ReportOptions { ks: powers_of_two(2), ..ReportOptions::default() };
        let report = Report::new("a", 2, 1.0, &[policy("m", all)], &options);
        let Figures { tasks, samples, missing, .. } = report.policies[0].figures;
        assert_eq!((tasks, samples, missing), (2, 3, 1));
        let value = |name: &str| report.policies[0].figures.metric(name).map(|metric| metric.value);
        assert_eq!((value("mean@1"), value("mean@2")), (Some(0.75), Some(0.75)));
        // Only the second task has two samples.
        assert_eq!((value("best@2"), value("worst@2"), value("pass@2")), (Some(1.0), Some(0.0), Some(1.0)));
    }
}
