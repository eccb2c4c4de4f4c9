//! One optimiser step of a policy objective over merged rows, in micro-batches.
//!
//! Every denominator is for the whole mini-batch, so the split into micro-batches changes only
//! rounding. If the gradient depends on the advantages alone, rows whose advantages are zero are
//! counted in the denominators but not computed: their gradient is exactly zero.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::given_advantages::GivenAdvantages;
use super::profile;
use super::score::{logprobs_at_once, packed, score};
use super::token_records::{QueuedTokens, TokenRecord};
use super::training_rows::trajectories_of;
use crate::adamw::AdamW;
use crate::config::{Learner, OnNan, Over};
use crate::error::{Error, Kind, Result};
use crate::model::{Model, upload};
use crate::native;
use crate::rl::advantages::AlgorithmNeed;
use crate::rl::custom;
use crate::rl::kl::kl;
use crate::rl::losses::{RatioStats, RatioSums};
use crate::rl::objective::{Inputs, MicroBatchLoss};
use crate::rl::pack::{MicroBatch, Row, micro_batches};
use crate::telemetry::Reporter;
use crate::timeline;
use crate::train::gradient_sum::GradientSum;
use crate::train::rules::objective::Objective;
use crate::train::shards::Shards;

/// Settings that `t:update` may override for one update.
#[derive(Clone, Copy)]
pub(crate) struct UpdateSettings<'a> {
    pub(crate) learner: &'a Learner,
    pub(crate) objective: &'a Objective,
    pub(crate) lr: f64,
    /// The temperature of sampling: the learner's distribution must be the one that was sampled
    /// from.
    pub(crate) temperature: f64,
    /// For each trajectory the advantages of each step's tokens, instead of the estimator's.
    pub(crate) advantages: Option<&'a [GivenAdvantages]>,
    /// For each trajectory the returns that the critic learns to predict.
    pub(crate) returns: Option<&'a [GivenAdvantages]>,
    /// Whether the policy is updated; otherwise only the critic is.
    pub(crate) policy: bool,
}

impl<'a> UpdateSettings<'a> {
    /// The settings of the recipe.
    pub(crate) fn new(learner: &'a Learner, objective: &'a Objective, lr: f64, temperature: f64) -> Self {
        Self { learner, objective, lr, temperature, advantages: None, returns: None, policy: true }
    }
}

/// The result of an update, for the metrics.
#[derive(Clone, Debug, Default)]
pub struct UpdateStats {
    pub loss: f64,
    pub grad_norm: f64,
    /// Mean entropy of the distributions of the sampled tokens, nats.
    pub entropy: f64,
    /// Mean KL to the reference policy of a sampled token, by the loss's own estimate; `None` if
    /// the loss has no KL.
    pub kl: Option<f64>,
    pub ratios: RatioStats,
    /// Largest |log-probability of the learner - of the sampler|.
    pub mismatch: f64,
    /// Largest share of one token in the sum of |ratio x advantage|.
    pub largest_token: f64,
    /// Number of computed tokens, including context.
    pub tokens: usize,
    /// Number of sampled tokens among them.
    pub sampled: usize,
    /// Whether the tokens that the loss clips are known.
    pub reports_clip: bool,
    /// The values that a loss in Lua logs, by name.
    pub logged: BTreeMap<String, custom::LoggedValue>,
    /// The sums of the numbers of a critic that shares the trunk.
    pub(crate) critic: [f64; 2],
    /// The computed tokens, for the records of the step.
    pub(crate) records: Vec<TokenRecord>,
    /// Whether the optimiser took a step: false if no token is trained, or if the step was skipped.
    pub stepped: bool,
    /// The reason why the optimiser step was skipped: a number was NaN or infinite.
    pub skipped: Option<Error>,
}

/// The value loss of a critic that shares the policy's trunk: a function of the hidden states `[T,
/// E]` and the batch. The results are the loss, and the loss without its weight and the number of
/// clipped values for [`UpdateStats::critic`].
pub(crate) type SharedTrunkLoss<'a> = &'a dyn Fn(&Tensor, &MicroBatch) -> Result<(Tensor, [Tensor; 2])>;

/// The critic's part of an update of a trunk that it shares with the policy: its loss, and the
/// optimiser of its head.
pub(crate) struct SharedTrunk<'a> {
    pub(crate) loss: SharedTrunkLoss<'a>,
    pub(crate) head: &'a mut AdamW,
}

/// The micro-batches of this process whose operations are queued.
struct Queued {
    /// The rows of each micro-batch of all processes.
    micro_batches: Vec<Vec<usize>>,
    /// The micro-batches of this process by their numbers, without their [`values`].
    ///
    /// [`values`]: MicroBatchNumbers::values
    local: Vec<(usize, MicroBatchNumbers)>,
    /// The values of each, on the device.
    values: Vec<Tensor>,
    records: QueuedTokens,
}

/// The numbers of a micro-batch.
#[derive(Serialize, Deserialize)]
struct MicroBatchNumbers {
    /// Number of computed tokens.
    tokens: usize,
    /// Number of tokens of the ratios.
    ratio_tokens: usize,
    /// Number of tokens of the numbers of a loss in Lua.
    graph_tokens: Option<usize>,
    has_kl: bool,
    /// Loss, entropy and others, as `queue` lists them.
    values: Vec<f64>,
}

/// The inputs of an optimiser step.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    pub model: &'a Model,
    pub objective: &'a Objective,
    pub learner: &'a Learner,
    /// The temperature of sampling: the learner's distribution must be the one that was sampled
    /// from.
    pub temperature: f64,
    /// The current coefficient of the KL in the loss.
    pub kl_coef: f64,
    pub lr: f64,
    /// Which process computes which micro-batches.
    pub shards: &'a Shards,
}

impl Update<'_> {
    /// Forward, loss, backward over the batch, then one AdamW step. If no token is trained (every
    /// advantage is 0 and no other term has a gradient) there is no step, and weights and moments
    /// are unchanged.
    ///
    /// # Errors
    /// `Kind::Numeric` names the trajectories (by number) or the tensor with a NaN or infinite loss
    /// or gradient; nothing has changed then. With `on_nan = "skip"` the step is skipped instead.
    pub fn step(&self, optimizer: &mut AdamW, rows: &[Row]) -> Result<UpdateStats> {
        self.step_shared(optimizer, rows, None)
    }

    /// [`step`](Self::step) with the additional loss `shared` of a critic that shares the trunk.
    /// The gradients of its head are left for another step.
    pub(crate) fn step_shared(
        &self,
        optimizer: &mut AdamW,
        rows: &[Row],
        shared: Option<SharedTrunk<'_>>,
    ) -> Result<UpdateStats> {
        optimizer.zero_grad();
        let mut stats = UpdateStats::default();
        let backward = self.backward(optimizer, rows, shared, &mut stats);
        let stepped = match backward {
            Ok(()) if stats.sampled == 0 => return Ok(stats),
            Ok(()) => {
                self.shards.before_step()?;
                self.shards.step(optimizer, self.lr, self.learner.max_grad_norm)
            }
            Err(error) => Err(error),
        };
        match stepped {
            Ok(norm) => {
                stats.grad_norm = norm;
                stats.stepped = true;
                // The next rollout needs the memory.
                optimizer.zero_grad();
            }
            Err(error) if error.kind == Kind::Numeric && self.learner.on_nan == OnNan::Skip => {
                optimizer.zero_grad();
                stats.skipped = Some(error);
            }
            Err(error) => return Err(error),
        }
        Ok(stats)
    }

    fn backward(
        &self,
        optimizer: &mut AdamW,
        rows: &[Row],
        mut shared: Option<SharedTrunk<'_>>,
        stats: &mut UpdateStats,
    ) -> Result<()> {
        let queued = self.queue(optimizer, rows, shared.as_mut(), stats)?;
        self.read(queued, rows, shared.is_some(), stats)
    }

    /// Forward, loss and backward of every micro-batch of this process. The device works while the
    /// host prepares the next one: no operation here waits for it.
    fn queue(
        &self,
        optimizer: &mut AdamW,
        rows: &[Row],
        mut shared: Option<&mut SharedTrunk<'_>>,
        stats: &mut UpdateStats,
    ) -> Result<Queued> {
        let mut objective = self.objective.policy.clone();
        if objective.terms.kl_coef > 0.0 {
            objective.terms.kl_coef = self.kl_coef;
        }
        // Step numbers and denominators are for the whole mini-batch.
        let denominators = objective.denominators(rows);
        let graph = self.objective.graph().filter(|graph| graph.reads_units());
        let units = graph.map(|_| custom::Units::of(rows));
        stats.reports_clip = objective.reports_clip();
        let selected = self.selected(rows)?;
        let all = !self.objective.only_advantages() || shared.is_some();
        let active: Vec<usize> = (0..rows.len()).filter(|&row| all || rows[row].has_gradient()).collect();
        stats.sampled = active.iter().map(|&row| rows[row].sampled()).sum();
        let micro_batches = self.micro_batches(rows, &active);
        let (mut local, mut values, mut records) = (Vec::new(), Vec::new(), QueuedTokens::default());
        let mut sum = GradientSum::new(self.shards, optimizer, micro_batches.len(), Some(self.model))?;
        let of_head =
            |shared: &mut SharedTrunk<'_>| GradientSum::of_head(self.shards, shared.head, micro_batches.len());
        let mut head_sum = shared.as_deref_mut().map(of_head).transpose()?;
        loop {
            let number = sum.next(optimizer)?;
            if let (Some(shared), Some(head_sum)) = (&mut shared, &mut head_sum) {
                head_sum.next(shared.head)?;
            }
            let Some(number) = number else { break };
            let members = &micro_batches[number];
            self.shards.turn();
            let device = self.model.device();
            let _profiled = profile::micro_batch(device)?;
            let _span = timeline::span("micro-batch", || "training".to_owned());
            let batch = MicroBatch::new(rows, members, self.model.config.vocab_size, device)?;
            let packed = packed(&batch);
            let tokens = packed.ids.numel();
            let pass = sum.learn(self.model, &packed)?;
            let hidden = pass.hidden();
            let predicting = hidden.f_index_select(0, &batch.predict)?;
            let (logp, token_entropy) = self.model.logprobs_among(
                &predicting,
                &batch.targets,
                batch.support.as_ref(),
                self.temperature,
                logprobs_at_once(self.model.config.vocab_size, self.model.device()),
            )?;
            let old = batch.column(rows, |row| &row.logp_old)?.unwrap_or_else(|| batch.logp_old.shallow_clone());
            let reference = batch.column(rows, |row| &row.logp_ref)?;
            let weights = batch.column(rows, |row| &row.weights)?;
            let selected = selected.as_ref().map(|all| chosen_among(all, &batch)).transpose()?;
            let rewards = batch.column(rows, |row| &row.rewards)?;
            let inputs = Inputs {
                logp_ref: reference.as_ref(),
                entropy: Some(&token_entropy),
                weights: weights.as_ref(),
                selected: selected.as_ref(),
                rewards: rewards.as_ref(),
                units: units.as_ref(),
                ..Inputs::of(&batch, &logp, &old)
            };
            let MicroBatchLoss { mut loss, ratios, numbers: logged, .. } = objective.compute(&inputs, &denominators)?;
            let mut of_critic = None;
            if let Some(shared) = &shared {
                let (share, numbers) = (shared.loss)(hidden, &batch)?;
                loss = loss.f_add(&share)?;
                of_critic = Some(numbers);
            }
            sum.backward(pass, &loss, optimizer)?;
            let _guard = no_grad_guard();
            let reference = reference.as_ref().filter(|_| objective.terms.kl_coef > 0.0);
            let kl = reference.map(|reference| kl(&logp, reference, objective.terms.kl)).transpose()?;
            let (pull_largest, pull_sum) = pull(&logp, &old, &batch.advantages)?;
            let difference = largest_difference(&logp, &batch.logp_old)?;
            values.extend([loss.f_detach()?, token_entropy.f_sum(Dtype::Double)?, difference]);
            values.extend([pull_largest, pull_sum]);
            let has_kl = kl.is_some();
            let no_kl = || Tensor::f_zeros([], (Dtype::Double, device));
            values.push(kl.map_or_else(no_kl, |kl| kl.f_sum(Dtype::Double))?);
            // The ratios of a loss may be those of sequences.
            let clipped = ratios.clipped().filter(|clipped| clipped.numel() == logp.numel());
            records.add(&batch.tokens, &logp, &token_entropy, clipped)?;
            let (ratio_tokens, sums) = ratios.on_device();
            let none = || Tensor::f_zeros([RatioSums::NUMBERS as i64], (Dtype::Double, device));
            values.extend(sums.map_or_else(none, |sums| Ok(sums.shallow_clone()))?.f_unbind(0)?);
            values.extend(of_critic.into_iter().flatten());
            let graph_tokens = logged.as_ref().map(|logged| logged.tokens);
            values.extend(logged.into_iter().flat_map(|logged| logged.on_device));
            let numbers = MicroBatchNumbers { tokens, ratio_tokens, graph_tokens, has_kl, values: Vec::new() };
            local.push((number, numbers));
        }
        sum.finish(optimizer)?;
        if let (Some(shared), Some(head_sum)) = (&mut shared, head_sum) {
            head_sum.finish(shared.head)?;
        }
        Ok(Queued { micro_batches, local, values, records })
    }

    /// Reads the numbers of the micro-batches, the only wait for the device before the wait for the
    /// gradient norm, and exchanges them with the other processes.
    fn read(&self, queued: Queued, rows: &[Row], shared: bool, stats: &mut UpdateStats) -> Result<()> {
        let Queued { micro_batches, mut local, values, records } = queued;
        let graph = self.objective.graph();
        let (mut entropy, mut pulls, mut kl_sum) = (0.0, (0.0, 0.0), None);
        let values = native::read_numbers(&values)?;
        let each = (values.len() / local.len().max(1)).max(1);
        local.iter_mut().zip(values.chunks(each)).for_each(|((_, numbers), values)| numbers.values = values.to_vec());
        for (numbers, members) in self.shards.gather(local)?.iter().zip(&micro_batches) {
            let &[loss, entropy_sum, mismatch, largest, sum, kl, ref measures @ ..] = &numbers.values[..] else {
                continue;
            };
            let (ratios, measures) = measures.split_at(RatioSums::NUMBERS);
            let (of_critic, measures) = measures.split_at(if shared { 2 } else { 0 });
            let here = |error: Error| error.in_trajectories(trajectories_of(rows, members), None);
            if let &[value, clipped] = of_critic {
                stats.critic = [stats.critic[0] + finite(value).map_err(here)?, stats.critic[1] + clipped];
            }
            if let (Some(graph), Some(tokens)) = (graph, numbers.graph_tokens) {
                let logged = custom::Numbers::read(graph, tokens, loss.is_finite(), measures).map_err(here)?;
                for ((name, _), value) in graph.logged.iter().zip(logged) {
                    stats.logged.entry(name.clone()).or_default().add(value);
                }
            }
            if !loss.is_finite() {
                let error = Error::new(Kind::Numeric, format!("the loss is {loss}"));
                return Err(
                    here(error).hint("this optimiser step was not taken; lower trainer.lr or check the rewards")
                );
            }
            stats.tokens += numbers.tokens;
            stats.loss += loss;
            entropy += entropy_sum;
            stats.mismatch = stats.mismatch.max(mismatch);
            pulls = (f64::max(pulls.0, largest), pulls.1 + sum);
            if numbers.has_kl {
                kl_sum = Some(kl_sum.unwrap_or(0.0) + kl);
            }
            stats.ratios.add(&RatioStats::from_sums(numbers.ratio_tokens, ratios));
        }
        stats.entropy = entropy / stats.sampled.max(1) as f64;
        stats.kl = kl_sum.map(|sum| sum / stats.sampled.max(1) as f64);
        stats.largest_token = if pulls.1 > 0.0 { pulls.0 / pulls.1 } else { 0.0 };
        stats.records = self.shards.gather_all(records.read()?)?;
        Ok(())
    }

    /// Micro-batches of the rows `active`. If the loss compares whole trajectories or groups, their
    /// rows stay together, and a micro-batch may be larger than `trainer.tokens_per_batch`.
    fn micro_batches(&self, rows: &[Row], active: &[usize]) -> Vec<Vec<usize>> {
        let budget = self.learner.tokens_at_once();
        let together = self.objective.together();
        if together == Over::Step {
            let back = |members: Vec<usize>| members.into_iter().map(|member| active[member]).collect();
            let active_rows: Vec<&Row> = active.iter().map(|&row| &rows[row]).collect();
            return micro_batches(&active_rows, budget, self.shards.count()).into_iter().map(back).collect();
        }
        let total: usize = active.iter().map(|&row| rows[row].len()).sum();
        let budget = budget.min(total.div_ceil(self.shards.count()));
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let unit = |row: usize| if together == Over::Group { rows[row].group } else { rows[row].trajectory };
        let mut active: Vec<usize> = active.to_vec();
        active.sort_by_key(|&row| unit(row));
        let (mut load, mut last) = (0, None);
        for row in active {
            let candidate = &rows[row];
            let same = last == Some(unit(row));
            if !same && (batches.is_empty() || load + candidate.len() > budget) {
                batches.push(Vec::new());
                load = 0;
            }
            if let Some(batch) = batches.last_mut() {
                batch.push(row);
            }
            load += candidate.len();
            last = Some(unit(row));
        }
        batches
    }

    /// For losses that select among all tokens of a mini-batch: row and position of the selected
    /// ones.
    fn selected(&self, rows: &[Row]) -> Result<Option<BTreeSet<(usize, usize)>>> {
        let policy = &self.objective.policy;
        if !policy.needs().contains(&AlgorithmNeed::WholeBatch) {
            return Ok(None);
        }
        let _guard = no_grad_guard();
        let logp = score(self.model, rows, self.temperature, self.learner.tokens_at_once(), self.shards)?;
        let members: Vec<usize> = (0..rows.len()).collect();
        let batch = MicroBatch::new(rows, &members, self.model.config.vocab_size, self.model.device())?;
        let old = batch.column(rows, |row| &row.logp_old)?.unwrap_or_else(|| batch.logp_old.shallow_clone());
        let logp: Vec<f32> = batch.tokens.iter().map(|&(row, index)| logp[row][index]).collect();
        let logp = upload(&Tensor::f_from_slice(&logp)?, self.model.device())?;
        let Some(chosen) = policy.select(&Inputs::of(&batch, &logp, &old))? else { return Ok(None) };
        let chosen = batch.tokens.iter().zip(Vec::<bool>::try_from(chosen)?).filter(|(_, chosen)| *chosen);
        Ok(Some(chosen.map(|(token, _)| *token).collect()))
    }
}

/// `[N]` bool: the sampled tokens of a micro-batch that are in `chosen`.
fn chosen_among(chosen: &BTreeSet<(usize, usize)>, batch: &MicroBatch) -> Result<Tensor> {
    let flags: Vec<bool> = batch.tokens.iter().map(|token| chosen.contains(token)).collect();
    upload(&Tensor::f_from_slice(&flags)?, batch.targets.device())
}

/// Warns that an optimiser step was skipped, with the reason.
pub(crate) fn report_skipped(reporter: &Reporter, step: u64, why: Option<&Error>) {
    if let Some(why) = why {
        let location = why.place.as_deref().unwrap_or("an unknown place");
        reporter.warn(&format!("step {step}: an optimiser step is skipped: {} ({location})", why.message));
    }
}

/// Mean KL of a sampled token to the reference policy, over the optimiser steps taken.
pub(crate) fn mean_kl(updates: &[UpdateStats]) -> Option<f64> {
    let all: Vec<f64> = updates.iter().filter(|u| u.stepped).filter_map(|u| u.kl).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

/// Returns the critic's loss, or an error if it is NaN or infinite.
pub(crate) fn finite(loss: f64) -> Result<f64> {
    if loss.is_finite() {
        return Ok(loss);
    }
    Err(Error::new(Kind::Numeric, format!("the critic's loss is {loss}"))
        .hint("nothing has been changed; lower trainer.critic.lr or check the rewards"))
}

/// The contribution of tokens to the gradient, |ratio x advantage|: the largest, and the sum.
fn pull(logp: &Tensor, old: &Tensor, advantages: &Tensor) -> Result<(Tensor, Tensor)> {
    let pull = logp.f_detach()?.f_sub(old)?.f_clamp(-20.0, 20.0)?.f_exp()?.f_mul(advantages)?.f_abs()?;
    Ok((largest(&pull)?, pull.f_sum(None)?))
}

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    largest(&a.f_detach()?.f_sub(b)?.f_abs()?)
}

/// The largest of some numbers, 0 without any.
fn largest(x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 { Ok(Tensor::f_zeros([], (x.kind(), x.device()))?) } else { Ok(x.f_max()?) }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod waits;
