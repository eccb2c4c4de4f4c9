//! The critic at work: values of states before an update, and its own optimiser steps.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::credit::Credit;
use super::lesson::{Lesson, Targets};
use super::privileged::{Prefixes, moved, shown};
use super::steps::Steps;
use super::update::trajectories_of;
use crate::config::{CriticSettings, Learner, OnNan};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Limit, Support, Trajectory};
use crate::model::{Critic, Model, Packed, Pass};
use crate::rl::adamw::AdamW;
use crate::rl::losses::{explained_variance, value_loss};
use crate::rl::pack::{MicroBatch, Row, micro_batches};

/// What the critic says of a batch before it learns from it.
pub(super) struct Values {
    /// Before each sampled token of each row; 0 elsewhere.
    pub(super) rows: Vec<Vec<f32>>,
    /// Of what would have come next, by trajectory, where a limit cut it.
    pub(super) next: Vec<Option<f64>>,
    /// What the critic alone reads before its rows.
    prefixes: Prefixes,
}

impl Values {
    /// Tells the estimator.
    pub(super) fn fill(&self, steps: &mut Steps, rows: &[Row]) {
        steps.fill(rows, &self.rows, |row| &mut row.values);
        for (trajectory, value) in self.next.iter().enumerate() {
            if let Some(last) = value.and_then(|_| steps.last(trajectory)) {
                last.next_value = *value;
            }
        }
    }

    /// What the critic is to learn of a batch.
    pub(super) fn targets(&self, credit: &Credit, rows: &[Row]) -> Targets {
        let (returns, asked) = credit.targets(rows);
        Targets { returns, asked, values: self.rows.clone(), prefixes: self.prefixes.clone() }
    }
}

/// Values under the current weights; `prefixes` has what the critic alone reads before its rows.
pub(super) fn values(
    critic: &Critic,
    policy: &Model,
    rows: &[Row],
    trajectories: &[Trajectory],
    prefixes: Prefixes,
    tokens_per_batch: usize,
) -> Result<Values> {
    let _guard = no_grad_guard();
    // A state after which nothing was sampled is asked for by a token that is not there: its value is the one before it.
    let cut: Vec<usize> = (0..trajectories.len()).filter(|&i| next_prompt(&trajectories[i]).is_some()).collect();
    let asked = cut.iter().filter_map(|&i| {
        let ids = next_prompt(&trajectories[i])?;
        Some(question(ids, i, trajectories[i].steps.len()))
    });
    let all: Vec<Row> = rows.iter().cloned().chain(asked).collect();
    let read = shown(&all, &prefixes, policy.config.max_position_embeddings)?;
    let mut found: Vec<Vec<f32>> = all.iter().map(|row| vec![0.0; row.len()]).collect();
    for members in micro_batches(&read.rows, tokens_per_batch) {
        let batch = MicroBatch::new(&read.rows, &members, |_, _| 0.0, policy.device())?;
        let hidden = critic.trunk().unwrap_or(policy).forward(&packed(&batch))?;
        let values = critic.values(&hidden, &batch.predict)?.f_to_kind(Dtype::Float)?;
        for (&(row, place), value) in batch.tokens.iter().zip(Vec::<f32>::try_from(values)?) {
            let (row, place) = read.place(row, place);
            found[row][place] = value;
        }
    }
    // A full context is an end for the policy: what comes after it is worth 0 (docs/environments.md).
    let overflowed = |trajectory: &Trajectory| trajectory.truncated_by == Some(Limit::ContextOverflow);
    let mut next: Vec<Option<f64>> = trajectories.iter().map(|t| overflowed(t).then_some(0.0)).collect();
    for (&trajectory, values) in cut.iter().zip(found.split_off(rows.len())) {
        next[trajectory] = values.last().map(|&value| f64::from(value));
    }
    Ok(Values { rows: found, next, prefixes })
}

fn next_prompt(trajectory: &Trajectory) -> Option<&[u32]> {
    let ids = trajectory.steps.last().map(|step| step.next_prompt_ids.as_slice());
    ids.filter(|ids| !ids.is_empty() && !trajectory.status.is_failure())
}

/// A row that asks for the value of a prompt, as that of step `step`.
fn question(ids: &[u32], trajectory: usize, step: usize) -> Row {
    let tokens = ids.len() + 1;
    let mut loss_mask = vec![false; tokens];
    loss_mask[ids.len()] = true;
    Row {
        ids: [ids, &[ids[0]]].concat(),
        loss_mask,
        logprobs: vec![0.0; tokens],
        steps: vec![step as u32; tokens],
        support: Support::default(),
        routing: crate::mdp::Routing::default(),
        trajectory,
    }
}

/// Hidden states that nothing is learnt from.
fn scored(model: &Model, packed: &Packed) -> Result<Tensor> {
    let _guard = no_grad_guard();
    model.forward(packed)
}

fn packed(batch: &MicroBatch) -> Packed {
    let (ids, positions) = (batch.ids.shallow_clone(), batch.positions.shallow_clone());
    // A critic routes on its own.
    Packed { ids, positions, lengths: batch.lengths.clone(), routing: None }
}

/// What an optimiser step of the critic did.
#[derive(Clone, Debug, Default)]
pub(super) struct CriticStats {
    pub(super) loss: f64,
    /// Share of values that the clip held back.
    pub(super) clip_frac: f64,
    pub(super) grad_norm: f64,
    /// Whether the optimiser took a step: not without a target, and not where it was left out.
    pub(super) stepped: bool,
    /// Why it was left out: a number was NaN or infinite.
    pub(super) skipped: Option<Error>,
}

/// The value loss of a micro-batch, as its share of the mini-batch's mean over `targets` targets, and how many values the
/// clip held back. `values` `[N]` are those of the batch's sampled tokens.
pub(super) fn share(
    values: &Tensor,
    batch: &MicroBatch,
    lesson: &Targets,
    targets: usize,
    settings: &CriticSettings,
) -> Result<(Tensor, f64)> {
    let (mut at, mut returns, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for (n, &(row, place)) in batch.tokens.iter().enumerate() {
        if lesson.asked[row][place] {
            at.push(n as i64);
            returns.push(lesson.returns[row][place] as f32);
            before.push(lesson.values[row][place]);
        }
    }
    let device = values.device();
    let column = |list: &[f32]| -> Result<Tensor> { Ok(Tensor::f_from_slice(list)?.f_to_device(device)?) };
    let own = values.f_index_select(0, &Tensor::f_from_slice(&at)?.f_to_device(device)?)?;
    let clip = (settings.clip > 0.0).then_some(settings.clip);
    let (loss, clipped) = value_loss(&own, &column(&before)?, &column(&returns)?, clip)?;
    Ok((loss.f_sum(None)?.f_div_scalar(targets.max(1) as f64)?, clipped * at.len() as f64))
}

impl Targets {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.asked.iter().flatten().filter(|asked| **asked).count()
    }

    /// Share of the variance of the returns that the values before the update explain: 1 is perfect, 0 no better than a
    /// constant. NaN where the returns are all the same.
    pub(super) fn explained_variance(&self) -> f64 {
        let lists = self.returns.iter().zip(&self.values).zip(&self.asked);
        let pairs: Vec<(f64, f64)> = lists
            .flat_map(|((returns, values), asked)| returns.iter().zip(values).zip(asked))
            .filter(|(_, asked)| **asked)
            .map(|((target, value), _)| (*target, f64::from(*value)))
            .collect();
        let (returns, values): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        explained_variance(&values, &returns)
    }

    /// The mean value where the critic is asked.
    pub(super) fn mean_value(&self) -> f64 {
        let lists = self.values.iter().zip(&self.asked);
        let asked = lists.flat_map(|(values, asked)| values.iter().zip(asked)).filter(|(_, asked)| **asked);
        let (sum, count) = asked.fold((0.0, 0.0), |(sum, count), (value, _)| (sum + f64::from(*value), count + 1.0));
        sum / f64::max(count, 1.0)
    }
}

/// One optimiser step of a critic by itself; a trunk that it shares with the policy stays as it is.
pub(super) fn update_critic(
    critic: &Critic,
    policy: &Model,
    optimizer: &mut AdamW,
    lesson: &Lesson,
    learner: &Learner,
) -> Result<CriticStats> {
    let mut stats = CriticStats::default();
    match critic_step(critic, policy, optimizer, lesson, learner, &mut stats) {
        Err(error) if error.kind == Kind::Numeric && learner.on_nan == OnNan::Skip => {
            optimizer.zero_grad();
            Ok(CriticStats { skipped: Some(error), ..stats })
        }
        done => done.map(|()| stats),
    }
}

fn critic_step(
    critic: &Critic,
    policy: &Model,
    optimizer: &mut AdamW,
    lesson: &Lesson,
    learner: &Learner,
    stats: &mut CriticStats,
) -> Result<()> {
    let Some(targets) = &lesson.targets else { return Ok(()) };
    let (settings, count) = (&learner.critic, targets.count());
    if count == 0 {
        return Ok(());
    }
    optimizer.zero_grad();
    let read = shown(&lesson.rows, &targets.prefixes, policy.config.max_position_embeddings)?;
    let targets = &moved(targets, &read);
    let rows = read.rows;
    for members in micro_batches(&rows, learner.tokens_per_batch) {
        let batch = MicroBatch::new(&rows, &members, |_, _| 0.0, policy.device())?;
        let packed = packed(&batch);
        // A shared trunk learns with the policy, in the policy's own update.
        let pass = critic.trunk().map(|trunk| trunk.learn(&packed)).transpose()?;
        let shared = if pass.is_none() { Some(scored(policy, &packed)?) } else { None };
        let Some(hidden) = pass.as_ref().map(Pass::hidden).or(shared.as_ref()) else { continue };
        let (loss, clipped) = share(&critic.values(hidden, &batch.predict)?, &batch, targets, count, settings)?;
        let value = finite(f64::try_from(&loss)?)
            .map_err(|error| error.in_trajectories(trajectories_of(&rows, &members), None))?;
        match pass {
            Some(pass) => pass.backward(&loss)?,
            None => loss.f_backward()?,
        }
        stats.loss += value;
        stats.clip_frac += clipped / count.max(1) as f64;
    }
    stats.grad_norm = optimizer.step(settings.lr, learner.max_grad_norm)?;
    stats.stepped = true;
    Ok(())
}

/// The critic's loss, unless it is not a number.
pub(super) fn finite(loss: f64) -> Result<f64> {
    if loss.is_finite() {
        return Ok(loss);
    }
    Err(Error::new(Kind::Numeric, format!("the critic's loss is {loss}"))
        .hint("nothing has been changed; lower trainer.critic.lr or look at the rewards"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn values_are_clipped_around_those_before_the_update() {
        let row = Row {
            ids: vec![1, 2, 3],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0; 3],
            steps: vec![0; 3],
            support: Support::default(),
            routing: crate::mdp::Routing::default(),
            trajectory: 0,
        };
        let batch = MicroBatch::new(&[row], &[0], |_, _| 0.0, tch::Device::Cpu).unwrap();
        // The critic is asked before the first sampled token only, and has gone from 0 to 1 on its way to 2.
        let targets = Targets {
            returns: vec![vec![0.0, 2.0, 9.0]],
            asked: vec![vec![false, true, false]],
            values: vec![vec![0.0; 3]],
            prefixes: Prefixes::default(),
        };
        let loss = |clip: f64| {
            let settings = CriticSettings { clip, ..CriticSettings::default() };
            let (loss, clipped) = share(&Tensor::from_slice(&[1.0_f32, 5.0]), &batch, &targets, 2, &settings).unwrap();
            (loss.double_value(&[]), clipped)
        };
        // Half of a square, as one of two targets; the clip holds it back at 0.5.
        assert_eq!((loss(0.5), loss(0.0), loss(3.0)), ((1.5 * 1.5 / 4.0, 1.0), (0.25, 0.0), (0.25, 0.0)));
        assert_eq!((targets.count(), targets.mean_value()), (1, 0.0));
    }
}
