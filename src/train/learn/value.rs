//! The critic: values of states before an update, and its optimiser steps.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::privileged::{Prefixes, shown};
use super::training_rows::{set_column, trajectories_of};
use super::update::finite;
use crate::adamw::AdamW;
use crate::config::{CriticSettings, Learner, OnNan};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Limit, Trajectory};
use crate::model::{Critic, Model, OnHost, Packed, Pass, upload};
use crate::native;
use crate::rl::losses::value_loss;
use crate::rl::pack::{MicroBatch, Row, micro_batches};
use crate::train::gradient_sum::GradientSum;
use crate::train::learn::score::of_tokens;
use crate::train::shards::Shards;

/// Sets the values of `rows` under the current weights: before each sampled token, 0 elsewhere.
/// `prefixes` is the text that only the critic reads. Returns by trajectory the value of the next
/// observation, if the trajectory was truncated.
pub(crate) fn values(
    critic: &Critic,
    policy: &Model,
    rows: &mut [Row],
    trajectories: &[Trajectory],
    prefixes: &Prefixes,
    (tokens_per_batch, shards): (usize, &Shards),
) -> Result<Vec<Option<f64>>> {
    let _guard = no_grad_guard();
    // The value of a next observation is that before a placeholder token.
    let cut: Vec<usize> = (0..trajectories.len()).filter(|&i| next_prompt(&trajectories[i]).is_some()).collect();
    let next_rows = cut.iter().filter_map(|&i| {
        let ids = next_prompt(&trajectories[i])?;
        Some(next_row(ids, i, trajectories[i].steps.len()))
    });
    let all: Vec<Row> = rows.iter().cloned().chain(next_rows).collect();
    let read = shown(&all, prefixes, policy.config.default_context())?;
    let of_read = of_tokens(&read.rows, tokens_per_batch, shards, |members| {
        let batch = MicroBatch::new(&read.rows, members, policy.config.vocab_size, policy.device())?;
        let hidden = critic.trunk().unwrap_or(policy).forward(&packed(&batch))?;
        let values = critic.values(&hidden, &batch.predict)?.f_to_kind(Dtype::Float)?;
        Ok((batch.tokens, Vec::<f32>::try_from(values)?))
    })?;
    let mut predicted: Vec<Vec<f32>> = all.iter().map(|row| vec![0.0; row.len()]).collect();
    for (number, shown) in read.rows.iter().enumerate() {
        for position in (0..shown.len()).filter(|&position| shown.loss_mask[position]) {
            let (row, index) = read.place(number, position);
            predicted[row][index] = of_read[number][position];
        }
    }
    // A full context is terminal for the policy: the value after it is 0
    // (docs/guide/environments.md).
    let overflowed = |trajectory: &Trajectory| trajectory.truncated_by == Some(Limit::ContextOverflow);
    let mut next: Vec<Option<f64>> = trajectories.iter().map(|t| overflowed(t).then_some(0.0)).collect();
    for (&trajectory, values) in cut.iter().zip(predicted.split_off(rows.len())) {
        next[trajectory] = values.last().map(|&value| f64::from(value));
    }
    set_column(rows, predicted, |row| &mut row.values);
    Ok(next)
}

fn next_prompt(trajectory: &Trajectory) -> Option<&[u32]> {
    let ids = trajectory.steps.last().map(|step| step.next_prompt_ids.as_slice());
    ids.filter(|ids| !ids.is_empty() && !trajectory.status.is_failure())
}

/// A row with one sampled token as the response to a prompt, for step `step`.
fn next_row(ids: &[u32], trajectory: usize, step: usize) -> Row {
    let tokens = ids.len() + 1;
    let mut loss_mask = vec![false; tokens];
    loss_mask[ids.len()] = true;
    Row {
        ids: [ids, &[ids[0]]].concat(),
        loss_mask,
        logprobs: vec![0.0; tokens],
        steps: vec![step as u32; tokens],
        trajectory,
        ..Row::default()
    }
}

/// Hidden states without gradient.
fn scored(model: &Model, packed: &Packed) -> Result<Tensor> {
    let _guard = no_grad_guard();
    model.forward(packed)
}

fn packed(batch: &MicroBatch) -> Packed {
    // A critic computes its own routing.
    let plain = crate::train::learn::score::packed(batch);
    let on_host = plain.on_host.map(|host| OnHost { routing: Vec::new(), ..host });
    Packed { routing: None, on_host, ..plain }
}

/// The result of an optimiser step of the critic.
#[derive(Clone, Debug, Default)]
pub(crate) struct CriticStats {
    pub(crate) loss: f64,
    /// Share of clipped values.
    pub(crate) clip_frac: f64,
    pub(crate) grad_norm: f64,
    /// Whether the optimiser took a step: false without a target, or if the step was skipped.
    pub(crate) stepped: bool,
    /// The reason why it was skipped: a number was NaN or infinite.
    pub(crate) skipped: Option<Error>,
}

/// The value loss of a micro-batch, as its share of the mini-batch's mean over `targets` targets,
/// and the number of clipped values, both scalars on the device. `values` `[N]` belong to the
/// sampled tokens of the micro-batch, which was packed from `rows`.
pub(crate) fn share(
    values: &Tensor,
    batch: &MicroBatch,
    rows: &[Row],
    targets: usize,
    settings: &CriticSettings,
) -> Result<(Tensor, Tensor)> {
    let (mut at, mut returns, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for (n, &(row, index)) in batch.tokens.iter().enumerate() {
        let row = &rows[row];
        if row.targets.get(index).is_some_and(|target| *target) {
            at.push(n as i64);
            returns.push(row.returns[index] as f32);
            before.push(row.values[index]);
        }
    }
    let device = values.device();
    let column = |list: &[f32]| -> Result<Tensor> { upload(&Tensor::f_from_slice(list)?, device) };
    let predicted = values.f_index_select(0, &upload(&Tensor::f_from_slice(&at)?, device)?)?;
    let clip = (settings.clip > 0.0).then_some(settings.clip);
    let (loss, clipped) = value_loss(&predicted, &column(&before)?, &column(&returns)?, clip)?;
    Ok((loss.f_sum(None)?.f_div_scalar(targets.max(1) as f64)?, clipped))
}

/// Number of tokens of rows for which the critic has targets.
pub(crate) fn target_count(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| &row.targets).filter(|target| **target).count()
}

/// Value and return at each of the critic's targets.
pub(crate) fn targets(rows: &[Row]) -> impl Iterator<Item = (f64, f64)> + '_ {
    rows.iter().flat_map(|row| {
        let places = (0..row.targets.len()).filter(|&index| row.targets[index]);
        places.map(|index| (f64::from(row.values[index]), row.returns[index]))
    })
}

/// One optimiser step of a critic alone; a trunk that it shares with the policy is unchanged.
pub(crate) fn update_critic(
    critic: &Critic,
    policy: &Model,
    optimizer: &mut AdamW,
    data: (&[Row], &Prefixes),
    (learner, shards): (&Learner, &Shards),
) -> Result<CriticStats> {
    let mut stats = CriticStats::default();
    match critic_step(critic, policy, optimizer, data, (learner, shards), &mut stats) {
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
    (rows, prefixes): (&[Row], &Prefixes),
    (learner, shards): (&Learner, &Shards),
    stats: &mut CriticStats,
) -> Result<()> {
    let (settings, count) = (&learner.critic, target_count(rows));
    if count == 0 {
        return Ok(());
    }
    optimizer.zero_grad();
    let rows = shown(rows, prefixes, policy.config.default_context())?.rows;
    let all = micro_batches(&rows, learner.tokens_at_once(), shards.count());
    let (order, numbers) = queue_critic(critic, policy, optimizer, (&rows, &all, count), (settings, shards))?;
    // The only wait for the device before the wait for the gradient norm.
    let numbers = native::read_numbers(&numbers)?;
    let local = order.into_iter().zip(numbers.as_chunks().0.iter().copied());
    for ([loss, clipped], members) in shards.gather(local.collect())?.into_iter().zip(&all) {
        stats.loss += finite(loss).map_err(|error| error.in_trajectories(trajectories_of(&rows, members), None))?;
        stats.clip_frac += clipped / count.max(1) as f64;
    }
    stats.grad_norm = shards.step(optimizer, settings.lr, learner.max_grad_norm)?;
    stats.stepped = true;
    Ok(())
}

/// Forward, loss and backward of this process's share of the micro-batches `all` of rows with
/// `targets` targets, without a wait for the device. The results are the numbers of the
/// micro-batches, and the loss and the number of clipped values of each, on the device.
pub(crate) fn queue_critic(
    critic: &Critic,
    policy: &Model,
    optimizer: &mut AdamW,
    (rows, all, targets): (&[Row], &[Vec<usize>], usize),
    (settings, shards): (&CriticSettings, &Shards),
) -> Result<(Vec<usize>, Vec<Tensor>)> {
    let (mut order, mut numbers) = (Vec::new(), Vec::new());
    let mut sum = GradientSum::new(shards, optimizer, all.len(), critic.trunk())?;
    while let Some(number) = sum.next(optimizer)? {
        shards.turn();
        let batch = MicroBatch::new(rows, &all[number], policy.config.vocab_size, policy.device())?;
        let packed = packed(&batch);
        // A shared trunk is trained in the policy's update.
        let pass = critic.trunk().map(|trunk| sum.learn(trunk, &packed)).transpose()?;
        let shared = if pass.is_none() { Some(scored(policy, &packed)?) } else { None };
        let Some(hidden) = pass.as_ref().map(Pass::hidden).or(shared.as_ref()) else { continue };
        let (loss, clipped) = share(&critic.values(hidden, &batch.predict)?, &batch, rows, targets, settings)?;
        match pass {
            Some(pass) => sum.backward(pass, &loss, optimizer)?,
            None => sum.backward_head(&loss, optimizer)?,
        }
        order.push(number);
        numbers.extend([loss.f_detach()?, clipped]);
    }
    sum.finish(optimizer)?;
    Ok((order, numbers))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn values_are_clipped_around_those_before_the_update() {
        // The only target is before the first sampled token. The value has gone from 0 to 1, and
        // the return is 2.
        let row = Row {
            ids: vec![1, 2, 3],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0; 3],
            steps: vec![0; 3],
            returns: vec![0.0, 2.0, 9.0],
            targets: vec![false, true, false],
            values: vec![0.0; 3],
            ..Row::default()
        };
        let rows = [row];
        let batch = MicroBatch::new(&rows, &[0], 1 << 20, tch::Device::Cpu).unwrap();
        let loss = |clip: f64| {
            let settings = CriticSettings { clip, ..CriticSettings::default() };
            let (loss, clipped) = share(&Tensor::from_slice(&[1.0_f32, 5.0]), &batch, &rows, 2, &settings).unwrap();
            (loss.double_value(&[]), clipped.double_value(&[]))
        };
        // Half of a square, as one of two targets; the value is clipped at 0.5.
        assert_eq!((loss(0.5), loss(0.0), loss(3.0)), ((1.5 * 1.5 / 4.0, 1.0), (0.25, 0.0), (0.25, 0.0)));
        assert_eq!(targets(&rows).collect::<Vec<_>>(), [(0.0, 2.0)]);
    }
}
