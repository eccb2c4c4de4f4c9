//! The metrics of a step. docs/reference/metrics.md has their names and meanings.

use std::collections::{BTreeMap, BTreeSet};

use tch::Device;

use crate::config::Learner;
use crate::engine::Stats;
use crate::eval::by_source;
use crate::mdp::{AtK, Evaluation, FinishReason, Limit, Status, Step, ToolRecord, Trajectory};
use crate::model::{peak_memory, resident_memory};
use crate::native;
use crate::rl::advantages::Advantages;
use crate::rl::kl::KlController;
use crate::rl::losses::explained_variance;
use crate::rl::pack::{Row, separate_tokens};
use crate::telemetry::Metrics;
use crate::train::learn::advantages::of_tokens;
use crate::train::learn::policy::TrainedPolicy;
use crate::train::learn::stages::{TrainingData, UpdateOutcome};
use crate::train::learn::supervised::SupervisedStats;
use crate::train::learn::update::{UpdateSettings, UpdateStats};
use crate::train::learn::value::{CriticStats, targets};

/// Rewards, lengths, tool calls and failures of a step's trajectories.
pub(crate) fn rollout(metrics: &mut Metrics, trajectories: &[Trajectory], solved: impl Fn(&Trajectory) -> f64) {
    let counted: Vec<&Trajectory> = trajectories.iter().filter(|t| !t.status.is_failure()).collect();
    let per =
        |of: &dyn Fn(&Trajectory) -> f64| counted.iter().map(|t| of(t)).sum::<f64>() / counted.len().max(1) as f64;
    let largest = |of: &dyn Fn(&Trajectory) -> f64| counted.iter().map(|t| of(t)).fold(f64::NEG_INFINITY, f64::max);

    failures(metrics, trajectories);
    if counted.is_empty() {
        return;
    }
    let rewards: Vec<f64> = counted.iter().map(|t| t.total_reward()).collect();
    metrics.set("reward/mean", per(&Trajectory::total_reward));
    metrics.set("reward/std", deviation(&rewards));
    metrics.set("reward/min", -largest(&|t| -t.total_reward()));
    metrics.set("reward/max", largest(&Trajectory::total_reward));
    let mut groups: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (trajectory, reward) in counted.iter().zip(rewards) {
        groups.entry(trajectory.group).or_default().push(reward);
    }
    // Without a difference of rewards there is no gradient.
    let is_uniform = |rewards: &&Vec<f64>| rewards.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 1e-12);
    let count = groups.len() as f64;
    metrics.set("reward/uniform_groups", groups.values().filter(is_uniform).count() as f64 / count);
    metrics.set("reward/group_std", groups.values().map(|rewards| deviation(rewards)).sum::<f64>() / count);
    let mut parts: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in counted.iter().flat_map(|t| &t.reward_parts) {
        *parts.entry(name).or_default() += value;
    }
    for (name, sum) in parts {
        metrics.set(format!("reward/{name}"), sum / counted.len() as f64);
    }

    sources(metrics, &counted, &solved);
    metrics.set("rollout/accuracy", per(&solved));
    metrics.set("rollout/tool_call_share", per(&|t| f64::from(u8::from(t.tool_calls() > 0))));
    metrics.set("rollout/tool_calls", per(&|t| t.tool_calls() as f64));
    metrics.set("rollout/malformed_calls", per(&|t| t.malformed_calls() as f64));
    metrics.set("rollout/steps", per(&|t| t.steps.len() as f64));
    metrics.set("rollout/response_tokens", per(&|t| t.response_tokens() as f64));
    metrics.set("rollout/response_tokens_max", largest(&|t| t.response_tokens() as f64));
    let prompts = |t: &Trajectory| t.steps.last().map_or(0.0, |step| step.prompt_ids.len() as f64);
    metrics.set("rollout/prompt_tokens", per(&prompts));
    metrics.set("rollout/prompt_tokens_max", largest(&prompts));
    metrics.set("rollout/rewrites", per(&|t| t.steps.iter().skip(1).filter(|step| step.new_row).count() as f64));
    let hidden = per(&|t| t.hidden_calls() as f64);
    if hidden > 0.0 {
        metrics.set("rollout/hidden_calls", hidden);
    }
    let tools = counted.iter().flat_map(|t| t.own_steps()).flat_map(Step::policy_calls);
    let tools: Vec<&ToolRecord> = tools.collect();
    if !tools.is_empty() {
        let share =
            |of: fn(&ToolRecord) -> bool| tools.iter().filter(|tool| of(tool)).count() as f64 / tools.len() as f64;
        metrics.set("rollout/tool_ok_share", share(|tool| tool.ok));
        metrics.set("rollout/tool_cached_share", share(|tool| tool.cached));
        metrics.set("rollout/tool_retries", tools.iter().map(|tool| f64::from(tool.retries)).sum::<f64>());
        metrics.set("time/tools", tools.iter().map(|tool| tool.seconds).sum::<f64>());
    }
    let replies: Vec<FinishReason> =
        counted.iter().flat_map(|t| t.own_steps()).map(|step| step.finish_reason).collect();
    let cut = replies.iter().filter(|reason| reason.is_cut()).count();
    metrics.set("rollout/cut_share", cut as f64 / replies.len().max(1) as f64);
    metrics.set("rollout/truncated_share", per(&|t| f64::from(u8::from(t.status == Status::Truncated))));
    let mut limits: BTreeMap<&str, usize> = BTreeMap::new();
    for limit in counted.iter().filter_map(|trajectory| trajectory.truncated_by) {
        *limits.entry(limit.name()).or_default() += 1;
    }
    let overflow = |t: &Trajectory| f64::from(u8::from(t.truncated_by == Some(Limit::ContextOverflow)));
    metrics.set("rollout/overflow_share", per(&overflow));
    let retries: u32 = trajectories.iter().map(|trajectory| trajectory.retries).sum();
    metrics.set("rollout/retries", f64::from(retries));
    for (limit, count) in limits {
        metrics.set(format!("rollout/truncated/{limit}"), count as f64);
    }
}

/// Number of failed trajectories by status.
fn failures(metrics: &mut Metrics, trajectories: &[Trajectory]) {
    let failed = trajectories.iter().filter(|t| t.status.is_failure()).count();
    metrics.set("rollout/failed_share", failed as f64 / trajectories.len().max(1) as f64);
    for status in Status::ALL.into_iter().filter(|status| status.is_failure()) {
        let count = trajectories.iter().filter(|t| t.status == status).count();
        if count > 0 {
            metrics.set(format!("rollout/failed/{}", status.name()), count as f64);
        }
    }
}

/// Tokens that trajectories share, in runs with tree sampling.
pub(crate) fn branches(metrics: &mut Metrics, trajectories: &[Trajectory], learner: &Learner) {
    if learner.branch.roots == 0 || learner.branch.roots == learner.group_size {
        return;
    }
    let forks: Vec<&Trajectory> = trajectories.iter().filter(|t| t.fork.is_some()).collect();
    let tokens = |steps: &[Step]| steps.iter().map(|step| step.response_ids.len()).sum::<usize>() as f64;
    let shared: f64 = forks.iter().map(|t| tokens(&t.steps[..t.shared_steps()])).sum();
    let all: f64 = trajectories.iter().map(|t| tokens(&t.steps)).sum();
    metrics.set("rollout/branches", forks.len() as f64);
    metrics.set("rollout/shared_token_share", shared / all.max(1.0));
    if !forks.is_empty() {
        let depth: usize = forks.iter().map(|t| t.shared_steps()).sum();
        metrics.set("rollout/forked_at", depth as f64 / forks.len() as f64);
    }
}

/// The standard deviation, with n - 1.
fn deviation(rewards: &[f64]) -> f64 {
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
    (squares / rewards.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// The metrics of an update of `policy`; `version` counts the updates of the run.
pub(crate) fn outcome(
    metrics: &mut Metrics,
    outcome: &UpdateOutcome,
    policy: &TrainedPolicy,
    data: &TrainingData<'_>,
    advantages: &Advantages,
    settings: UpdateSettings<'_>,
    version: u64,
) {
    let UpdateSettings { learner, objective, lr, .. } = settings;
    advantage_statistics(metrics, of_tokens(advantages, &data.steps));
    update(metrics, &outcome.updates, lr, version);
    packing(metrics, &data.trajectories, &data.rows);
    if advantages.skipped.is_some() {
        metrics.set("policy/skipped", (learner.epochs * learner.mini_batches) as f64);
    }
    kl_penalty(metrics, &policy.kl, outcome.kl, objective.kl_coef.coef() > 0.0);
    if policy.critic.is_some() {
        critic(metrics, &outcome.critic_updates, &data.rows);
    }
    data.mismatch.log(metrics, &data.rows, &outcome.updates);
}

/// Loss, clipping, KL, entropy and mismatch of a step's updates. Metrics of optimiser steps are
/// absent if none was taken.
fn update(metrics: &mut Metrics, updates: &[UpdateStats], lr: f64, version: u64) {
    metrics.set("policy/lr", lr);
    metrics.set("policy/version", version as f64);
    metrics.set("policy/skipped", updates.iter().filter(|u| u.skipped.is_some()).count() as f64);
    let updates: Vec<&UpdateStats> = updates.iter().filter(|u| u.stepped).collect();
    metrics.set("policy/updates", updates.len() as f64);
    metrics.set("policy/tokens", updates.iter().map(|u| u.sampled as f64).sum::<f64>());
    if updates.is_empty() {
        return;
    }
    let count = updates.len() as f64;
    let mean = |of: &dyn Fn(&UpdateStats) -> f64| updates.iter().map(|u| of(u)).sum::<f64>() / count;
    metrics.set("policy/loss", mean(&|u| u.loss));
    metrics.set("policy/entropy", mean(&|u| u.entropy));
    metrics.set("policy/grad_norm", mean(&|u| u.grad_norm));
    metrics.set("policy/approx_kl", mean(&|u| u.ratios.approx_kl_k3()));
    metrics.set("policy/approx_kl_k1", mean(&|u| u.ratios.approx_kl_k1()));
    if updates.first().is_none_or(|first| first.reports_clip) {
        metrics.set("policy/clip_frac", mean(&|u| u.ratios.clipfrac_low() + u.ratios.clipfrac_high()));
        metrics.set("policy/clip_frac_low", mean(&|u| u.ratios.clipfrac_low()));
        metrics.set("policy/clip_frac_high", mean(&|u| u.ratios.clipfrac_high()));
        metrics.set("policy/clip_frac_dual", mean(&|u| u.ratios.clipfrac_dual()));
    }
    let logged: BTreeSet<&str> = updates.iter().flat_map(|u| u.logged.keys().map(String::as_str)).collect();
    for name in logged {
        let values: Vec<f64> = updates.iter().filter_map(|u| u.logged.get(name)).map(|one| one.value()).collect();
        metrics.set(format!("loss/{name}"), values.iter().sum::<f64>() / values.len() as f64);
    }
    metrics.set("policy/ratio_max", updates.iter().map(|u| u.ratios.ratio_max).fold(1.0, f64::max));
    metrics.set("policy/ratio_min", updates.iter().map(|u| u.ratios.ratio_min).fold(1.0, f64::min));
    metrics.set("policy/largest_token", updates.iter().map(|u| u.largest_token).fold(0.0, f64::max));
    // Only the first update has the weights of the rollout.
    if let Some(first) = updates.first() {
        metrics.set("mismatch/kl", first.ratios.approx_kl_k1());
    }
}

/// The saving by merging steps into rows.
fn packing(metrics: &mut Metrics, trajectories: &[Trajectory], rows: &[Row]) {
    let learned: BTreeSet<usize> = rows.iter().map(|row| row.trajectory).collect();
    let separate: usize = learned.iter().map(|&index| separate_tokens(&trajectories[index])).sum();
    let merged: usize = rows.iter().map(Row::len).sum();
    if separate > 0 {
        metrics.set("policy/merged_share", 1.0 - merged as f64 / separate as f64);
    }
}

/// Number of sampled groups, and what became of them. `trajectories` are all of the step.
pub(crate) fn groups(metrics: &mut Metrics, trajectories: &[Trajectory]) {
    let count = |selects: &dyn Fn(&Trajectory) -> bool| {
        let groups = trajectories.iter().filter(|t| selects(t)).map(|t| t.group);
        groups.collect::<BTreeSet<u64>>().len() as f64
    };
    let (all, dropped) = (count(&|_| true), count(&|t| t.dropped));
    metrics.set("rollout/groups", all);
    metrics.set("rollout/dropped_groups", dropped);
    metrics.set("rollout/trained_groups", count(&Trajectory::is_trained));
    metrics.set("rollout/failed_groups", all - dropped - count(&|t| !t.dropped && !t.status.is_failure()));
}

/// Epochs of the training data after the step.
pub(crate) fn epoch(metrics: &mut Metrics, position: u64, rows: u64) {
    metrics.set("data/epoch", position as f64 / rows.max(1) as f64);
}

/// Advantages of sampled tokens, if there are any.
fn advantage_statistics(metrics: &mut Metrics, advantages: impl Iterator<Item = f64>) {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let (mut least, mut highest) = (f64::INFINITY, f64::NEG_INFINITY);
    for advantage in advantages {
        count += 1.0;
        sum += advantage;
        squares += advantage * advantage;
        least = least.min(advantage);
        highest = highest.max(advantage);
    }
    if count == 0.0 {
        return;
    }
    let mean = sum / count;
    metrics.set("advantage/mean", mean);
    metrics.set("advantage/std", (squares / count - mean * mean).max(0.0).sqrt());
    metrics.set("advantage/min", least);
    metrics.set("advantage/max", highest);
}

/// The KL to the reference policy and its coefficient, if there is a KL penalty.
fn kl_penalty(metrics: &mut Metrics, controller: &KlController, kl: Option<f64>, has_reference: bool) {
    if has_reference {
        metrics.set("kl/coef", controller.coef());
        if let Some(kl) = kl {
            metrics.set("kl/mean", kl);
        }
    }
}

/// The critic's updates, and its explained variance before them.
fn critic(metrics: &mut Metrics, updates: &[CriticStats], rows: &[Row]) {
    metrics.set("critic/skipped", updates.iter().filter(|u| u.skipped.is_some()).count() as f64);
    let updates: Vec<&CriticStats> = updates.iter().filter(|u| u.stepped).collect();
    if !updates.is_empty() {
        let mean = |of: &dyn Fn(&CriticStats) -> f64| updates.iter().map(|u| of(u)).sum::<f64>() / updates.len() as f64;
        metrics.set("critic/loss", mean(&|u| u.loss));
        metrics.set("critic/clip_frac", mean(&|u| u.clip_frac));
        metrics.set("critic/grad_norm", mean(&|u| u.grad_norm));
    }
    let (values, returns): (Vec<f64>, Vec<f64>) = targets(rows).unzip();
    if !values.is_empty() {
        metrics.set("critic/value", values.iter().sum::<f64>() / values.len() as f64);
        metrics.set("critic/explained_variance", explained_variance(&values, &returns));
    }
}

/// Seconds per phase, and tokens per second.
pub(crate) fn time(metrics: &mut Metrics, stats: &Stats, updates: &[UpdateStats], sampling: f64, training: f64) {
    metrics.set("time/sampling", sampling);
    metrics.set("time/training", training);
    metrics.set("rollout/cached_share", stats.cache_hit_rate());
    if let Some(share) = stats.graph_share() {
        metrics.set("rollout/graph_share", share);
    }
    metrics.set("throughput/tokens_per_s", stats.sampled_tokens as f64 / sampling.max(1e-9));
    let trained: f64 = updates.iter().map(|u| u.tokens as f64).sum();
    metrics.set("throughput/train_tokens_per_s", trained / training.max(1e-9));
}

/// Mean and maximum number of updates between the version of a sampled token and `version`.
pub(crate) fn staleness(metrics: &mut Metrics, sampled: &[Trajectory], version: u64) {
    let steps = sampled.iter().flat_map(|trajectory| &trajectory.steps);
    let ages: Vec<u64> = steps.flat_map(|step| &step.policy_versions).map(|at| version.saturating_sub(*at)).collect();
    if let Some(max) = ages.iter().max() {
        metrics.set("rollout/staleness", ages.iter().sum::<u64>() as f64 / ages.len() as f64);
        metrics.set("rollout/staleness_max", *max as f64);
    }
}

/// Memory of the process, and of the GPU if the model is on one.
pub(crate) fn memory(metrics: &mut Metrics, device: Device) {
    let all = [
        ("memory/resident", resident_memory()),
        ("memory/peak", peak_memory()),
        ("memory/device_peak", native::device_peak(device)),
    ];
    for (name, bytes) in all {
        if let Some(bytes) = bytes {
            metrics.set(name, bytes as f64 / f64::from(1 << 20));
        }
    }
}

pub(crate) fn supervised(metrics: &mut Metrics, step: &SupervisedStats, lr: f64, seconds: f64) {
    metrics.set("sft/loss", step.loss);
    metrics.set("sft/tokens", step.trained as f64);
    metrics.set("sft/packed_tokens", step.tokens as f64);
    metrics.set("sft/supervised_share", step.trained as f64 / step.tokens as f64);
    metrics.set("sft/fill", step.fill);
    metrics.set("sft/padding_avoided", 1.0 - step.tokens as f64 / (step.rows * step.longest) as f64);
    metrics.set("policy/grad_norm", step.grad_norm);
    metrics.set("policy/lr", lr);
    metrics.set("time/step", seconds);
    metrics.set("throughput/train_tokens_per_s", step.tokens as f64 / seconds.max(1e-9));
}

pub(crate) fn evaluation(metrics: &mut Metrics, evaluation: &Evaluation) {
    metrics.set("eval/accuracy", evaluation.accuracy);
    metrics.set("eval/reward", evaluation.reward);
    metrics.set("eval/tool_call_share", evaluation.tool_call_share);
    metrics.set("eval/response_tokens", evaluation.response_tokens);
    metrics.set("eval/failed_share", evaluation.failures as f64 / evaluation.trajectories.max(1) as f64);
    metrics.set("time/evaluation", evaluation.seconds);
    if let Some(AtK { k, best, worst, pass, majority }) = evaluation.at_k {
        metrics.set(format!("eval/best@{k}"), best);
        metrics.set(format!("eval/worst@{k}"), worst);
        metrics.set(format!("eval/pass@{k}"), pass);
        if let Some(majority) = majority {
            metrics.set(format!("eval/maj@{k}"), majority);
        }
    }
    for (name, value) in &evaluation.parts {
        metrics.set(format!("eval/{name}"), *value);
    }
    for (name, of) in &evaluation.sources {
        let name = source_name(name);
        metrics.set(format!("eval/{name}/accuracy"), of.accuracy);
        metrics.set(format!("eval/{name}/reward"), of.reward);
        metrics.set(format!("eval/{name}/tasks"), of.tasks as f64);
    }
}

/// A source in the name of a metric, in which `/` separates words: `openai/gsm8k` is
/// `openai_gsm8k`.
fn source_name(source: &str) -> String {
    source.replace('/', "_")
}

/// Rewards and accuracy of a step's trajectories by the source of their tasks.
fn sources(metrics: &mut Metrics, counted: &[&Trajectory], solved: &impl Fn(&Trajectory) -> f64) {
    for (name, trajectories) in by_source(counted) {
        let mean = |of: &dyn Fn(&Trajectory) -> f64| {
            trajectories.iter().map(|t| of(t)).sum::<f64>() / trajectories.len() as f64
        };
        let name = source_name(name);
        metrics.set(format!("source/{name}/reward"), mean(&Trajectory::total_reward));
        metrics.set(format!("source/{name}/accuracy"), mean(solved));
        metrics.set(format!("source/{name}/response_tokens"), mean(&|t| t.response_tokens() as f64));
        metrics.set(format!("source/{name}/share"), trajectories.len() as f64 / counted.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;
    use crate::mdp::{CallKind, Step, testing};

    #[test]
    fn calls_that_name_no_tool_are_counted_apart() {
        let call = |kind| ToolRecord {
            name: "search".to_owned(),
            arguments: serde_json::Value::Null,
            kind,
            output: String::new(),
            ok: kind == CallKind::Ran,
            reward: 0.0,
            seconds: 0.0,
            ..ToolRecord::default()
        };
        let of = |kinds: &[CallKind]| {
            let tools = kinds.iter().map(|kind| call(*kind)).collect();
            testing::trajectory(vec![Step { tools, ..testing::step(&[1], &[2]) }])
        };
        let (ran, bad) = (CallKind::Ran, CallKind::BadArguments);
        let all = [of(&[ran, bad]), of(&[CallKind::Malformed]), of(&[CallKind::Unknown, CallKind::Malformed]), of(&[])];
        let mut metrics = Metrics::new();
        rollout(&mut metrics, &all, |_| 0.0);
        let get = |name: &str| metrics.get(name);
        assert_eq!((get("rollout/tool_call_share"), get("rollout/tool_calls")), (Some(0.25), Some(0.5)));
        assert_eq!((get("rollout/malformed_calls"), get("rollout/tool_ok_share")), (Some(0.75), Some(0.2)));
    }
}
