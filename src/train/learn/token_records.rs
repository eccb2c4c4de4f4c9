//! What an update computes for each sampled token, kept for the records of the step.

use serde::{Deserialize, Serialize};
use tch::{Kind as Dtype, Tensor};

use crate::error::Result;
use crate::mdp::{TrainedTokens, Trajectory};
use crate::rl::pack::Row;

/// Numbers of a sampled token in an optimiser step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    /// Index of its row in the mini-batch, and its position in the row.
    pub(crate) row: usize,
    pub(crate) position: usize,
    /// Log-probability under the learner.
    pub(crate) logprob: f32,
    /// Entropy of the learner's distribution, nats.
    pub(crate) entropy: f32,
    pub(crate) clipped: bool,
}

/// The tokens of the micro-batches of an optimiser step, on the device: nothing waits for it until
/// they are read.
#[derive(Default)]
pub(crate) struct QueuedTokens {
    /// Row and position of each.
    tokens: Vec<(usize, usize)>,
    /// `[3, N]` f32 of each micro-batch: log-probability, entropy, and 1 if the token is clipped.
    columns: Vec<Tensor>,
}

impl QueuedTokens {
    /// Adds the sampled tokens of a micro-batch; the columns are `[N]`.
    pub(crate) fn add(
        &mut self,
        tokens: &[(usize, usize)],
        logp: &Tensor,
        entropy: &Tensor,
        clipped: Option<&Tensor>,
    ) -> Result<()> {
        let column = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Dtype::Float);
        let (logp, entropy) = (column(logp)?, column(entropy)?);
        let clipped = clipped.map_or_else(|| logp.f_zeros_like(), column)?;
        self.columns.push(Tensor::f_stack(&[logp, entropy, clipped], 0)?);
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Waits for the device.
    pub(crate) fn read(&self) -> Result<Vec<TokenRecord>> {
        if self.columns.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = Vec::<f32>::try_from(Tensor::f_cat(&self.columns, 1)?.f_flatten(0, 1)?)?;
        let count = self.tokens.len();
        let record = |(index, &(row, position)): (usize, &(usize, usize))| TokenRecord {
            row,
            position,
            logprob: numbers[index],
            entropy: numbers[count + index],
            clipped: numbers[2 * count + index] != 0.0,
        };
        Ok(self.tokens.iter().enumerate().map(record).collect())
    }
}

/// The records of the rows of an update, over all of its optimiser steps.
pub(crate) struct UpdateRecords {
    rows: Vec<RowRecords>,
    /// Whether the loss says which tokens it clips.
    pub(crate) reports_clip: bool,
}

/// An entry per token; NaN (false for `clipped`) for tokens that no optimiser step computed.
#[derive(Clone, Default)]
struct RowRecords {
    /// In the first and in the last optimiser step that has the token.
    logprobs: Vec<f32>,
    last_logprobs: Vec<f32>,
    entropies: Vec<f32>,
    clipped: Vec<bool>,
}

impl UpdateRecords {
    pub(crate) fn new(rows: &[Row]) -> Self {
        Self { rows: vec![RowRecords::default(); rows.len()], reports_clip: false }
    }

    /// Adds the records of an optimiser step on the mini-batch `part`. Log-probability and entropy
    /// are those of the first step that has the token.
    pub(crate) fn add(&mut self, part: &[Row], records: Vec<TokenRecord>) {
        for TokenRecord { row, position, logprob, entropy, clipped } in records {
            let Some(of_row) = self.rows.get_mut(part[row].number) else { continue };
            if of_row.logprobs.len() <= position {
                of_row.logprobs.resize(position + 1, f32::NAN);
                of_row.last_logprobs.resize(position + 1, f32::NAN);
                of_row.entropies.resize(position + 1, f32::NAN);
                of_row.clipped.resize(position + 1, false);
            }
            if of_row.logprobs[position].is_nan() {
                (of_row.logprobs[position], of_row.entropies[position]) = (logprob, entropy);
            }
            of_row.last_logprobs[position] = logprob;
            of_row.clipped[position] |= clipped;
        }
    }

    /// The ratios of the computed tokens in the last optimiser step that has them: learner to
    /// behaviour policy.
    pub(crate) fn ratios(&self, rows: &[Row]) -> Vec<f64> {
        let of = |(row, records): (&Row, &RowRecords)| {
            let old = if row.logp_old.is_empty() { &row.logprobs } else { &row.logp_old };
            let pairs = records.last_logprobs.iter().zip(old).filter(|(logprob, _)| !logprob.is_nan());
            pairs.map(|(logprob, old)| f64::from(logprob - old).exp()).collect::<Vec<f64>>()
        };
        rows.iter().zip(&self.rows).flat_map(of).collect()
    }

    /// The numbers of the sampled tokens of each step of each trajectory, with the `advantages` of
    /// [`by_token`](super::advantages::by_token). Steps of trajectories that were not trained on
    /// have none.
    pub(crate) fn by_step(
        &self,
        trajectories: &[Trajectory],
        rows: &[Row],
        advantages: Vec<Option<Vec<Vec<f64>>>>,
    ) -> Vec<Vec<TrainedTokens>> {
        let mut trained: Vec<Vec<TrainedTokens>> = Vec::with_capacity(trajectories.len());
        for (trajectory, advantages) in trajectories.iter().zip(advantages) {
            let mut steps = vec![TrainedTokens::default(); trajectory.steps.len()];
            for (step, list) in steps.iter_mut().zip(advantages.unwrap_or_default()) {
                step.advantages = list;
            }
            trained.push(steps);
        }
        for row in rows {
            for position in (0..row.len()).filter(|&position| row.loss_mask[position]) {
                let step =
                    trained.get_mut(row.trajectory).and_then(|steps| steps.get_mut(row.steps[position] as usize));
                if let Some(step) = step {
                    self.add_token(step, row, position);
                }
            }
        }
        // The steps that a fork shares with its parent are trained in the rows of the parent.
        for (trajectory, steps) in trajectories.iter().zip(&mut trained) {
            for (step, numbers) in trajectory.steps.iter().zip(steps) {
                if numbers.loss_mask.is_empty() && !numbers.advantages.is_empty() {
                    numbers.loss_mask = vec![false; step.response_ids.len()];
                }
            }
        }
        trained
    }

    fn add_token(&self, step: &mut TrainedTokens, row: &Row, position: usize) {
        step.loss_mask.push(true);
        step.values.extend(row.values.get(position));
        if let Some(value) = row.returns.get(position) {
            step.returns.push(if row.targets[position] { *value as f32 } else { f32::NAN });
        }
        step.reference_logprobs.extend(row.logp_ref.get(position));
        let records = self.rows.get(row.number);
        let number = |column: fn(&RowRecords) -> &Vec<f32>| {
            let number = records.and_then(|records| column(records).get(position)).copied();
            number.filter(|number| !number.is_nan())
        };
        let logprob = number(|records| &records.logprobs);
        step.learner_logprobs.extend(logprob.or(row.logp_old.get(position).copied()));
        step.entropies.extend(number(|records| &records.entropies));
        if self.reports_clip && logprob.is_some() {
            step.clipped.extend(records.and_then(|records| records.clipped.get(position)));
        }
    }
}
