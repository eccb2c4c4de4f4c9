//! Aggregation of token losses to one number.
//!
//! Every denominator is for the whole mini-batch, computed from its rows before the split into
//! micro-batches. Each micro-batch adds its share, so gradient accumulation does not change the
//! result (except for the order of additions).

use tch::Tensor;

use super::pack::Row;
use crate::config::LossAgg;
use crate::error::Result;
use crate::native::upload;

/// The denominators of a mini-batch. A sequence is a trajectory, with any number of rows and steps,
/// or a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Denominators {
    /// Sampled tokens in the mini-batch.
    pub tokens: usize,
    /// Sequences with at least one sampled token.
    pub sequences: usize,
    /// The divisor of seq-mean-token-sum-norm.
    pub horizon: f64,
    /// Sampled tokens of each sequence, by its number; 0 for numbers that the mini-batch does not
    /// have.
    pub(super) lengths: Vec<f64>,
}

impl Denominators {
    /// Counts a whole mini-batch by trajectories.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        Self::counted(rows.into_iter().map(|row| (row.trajectory, row.sampled())))
    }

    /// Counts a whole mini-batch by steps, numbered as in [`super::pack::MicroBatch::step`].
    pub fn of_steps<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let rows: Vec<&Row> = rows.into_iter().collect();
        let first = first_steps(rows.iter().copied());
        Self::counted(rows.iter().flat_map(|row| {
            let sampled = row.steps.iter().zip(&row.loss_mask).filter(|(_, sampled)| **sampled);
            sampled.map(|(step, _)| (first[row.trajectory] + *step as usize, 1))
        }))
    }

    /// Counts a whole mini-batch by the sequence of every token.
    pub fn from_tokens(sequence: &[i64]) -> Self {
        Self::counted(sequence.iter().map(|number| (*number as usize, 1)))
    }

    /// Adds up numbers of sampled tokens, each with the number of its sequence.
    fn counted(tokens: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut lengths: Vec<usize> = Vec::new();
        for (sequence, count) in tokens {
            if lengths.len() <= sequence {
                lengths.resize(sequence + 1, 0);
            }
            lengths[sequence] += count;
        }
        Self {
            tokens: lengths.iter().sum(),
            sequences: lengths.iter().filter(|length| **length > 0).count(),
            horizon: lengths.iter().copied().max().unwrap_or(0).max(1) as f64,
            lengths: lengths.iter().map(|&length| length as f64).collect(),
        }
    }

    /// Replaces the horizon, by default the longest sequence of the mini-batch. Dr. GRPO needs one
    /// that is constant over a run: the maximum number of tokens of a sequence.
    #[must_use]
    pub fn with_horizon(mut self, horizon: Option<f64>) -> Self {
        self.horizon = horizon.unwrap_or(self.horizon);
        self
    }
}

/// The number of each trajectory's first step when the steps of all are numbered one after the
/// other.
pub(super) fn first_steps<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<usize> {
    let mut counts: Vec<usize> = Vec::new();
    for row in rows {
        if counts.len() <= row.trajectory {
            counts.resize(row.trajectory + 1, 0);
        }
        let steps = row.steps.last().map_or(0, |last| *last as usize + 1);
        counts[row.trajectory] = counts[row.trajectory].max(steps);
    }
    let mut next = 0;
    for count in &mut counts {
        (*count, next) = (next, next + *count);
    }
    counts
}

/// This micro-batch's share of the mini-batch's loss, a scalar; shares add up to the loss.
///
/// - `token_loss` `[N]`, `sequence` `[N]` i64: a loss and a sequence per sampled token: the
///   trajectory or the step of [`super::pack::MicroBatch`], as counted by `denominators`
/// - `token-mean`: sum over tokens / tokens (DAPO, arXiv:2503.14476)
/// - `seq-mean-token-sum`: sum over tokens / sequences
/// - `seq-mean-token-sum-norm`: that divided by the horizon (Dr. GRPO, arXiv:2503.20783)
/// - `seq-mean-token-mean`: mean over a sequence's tokens, then over sequences (GRPO,
///   arXiv:2402.03300)
pub fn aggregate(
    token_loss: &Tensor,
    sequence: &Tensor,
    loss_agg: LossAgg,
    denominators: &Denominators,
) -> Result<Tensor> {
    // Without sampled tokens the sum is an empty one, and 0 / 1 is the right loss.
    let (tokens, sequences) = (denominators.tokens.max(1) as f64, denominators.sequences.max(1) as f64);
    let share = match loss_agg {
        LossAgg::TokenMean => token_loss.f_sum(None)?.f_div_scalar(tokens)?,
        LossAgg::SeqMeanTokenSum => token_loss.f_sum(None)?.f_div_scalar(sequences)?,
        LossAgg::SeqMeanTokenSumNorm => {
            token_loss.f_sum(None)?.f_div_scalar(sequences)?.f_div_scalar(denominators.horizon)?
        }
        LossAgg::SeqMeanTokenMean => {
            let lengths = Tensor::f_from_slice(&denominators.lengths)?.f_to_kind(token_loss.kind())?;
            let lengths = upload(&lengths, token_loss.device())?;
            token_loss.f_div(&lengths.f_index_select(0, sequence)?)?.f_sum(None)?.f_div_scalar(sequences)?
        }
    };
    Ok(share)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::super::tests::{step, trajectory};
    use super::*;
    use crate::rl::pack::merge;

    #[test]
    fn each_aggregation_equals_its_closed_form() {
        // Trajectory 0 has two rows and three tokens, trajectory 2 one token; number 1 is not in
        // the mini-batch.
        let mut rows = merge(&trajectory(vec![step(&[1], &[2, 3]), step(&[7], &[8])]), 0).unwrap();
        rows.extend(merge(&trajectory(vec![step(&[1], &[2])]), 2).unwrap());
        let denominators = Denominators::of(&rows);
        assert_eq!((denominators.tokens, denominators.sequences), (4, 2));
        let loss = Tensor::from_slice(&[1.0_f64, 2.0, 6.0, 11.0]);
        let sequence = Tensor::from_slice(&[0_i64, 0, 0, 2]);
        for (loss_agg, expected) in [
            (LossAgg::TokenMean, 5.0),
            (LossAgg::SeqMeanTokenSum, 10.0),
            (LossAgg::SeqMeanTokenMean, 7.0),
            (LossAgg::SeqMeanTokenSumNorm, 10.0 / 3.0),
        ] {
            let got = aggregate(&loss, &sequence, loss_agg, &denominators).unwrap();
            assert_eq!(f64::try_from(got).unwrap(), expected, "{loss_agg:?}");
        }
        let longer = denominators.with_horizon(Some(8.0));
        let got = aggregate(&loss, &sequence, LossAgg::SeqMeanTokenSumNorm, &longer).unwrap();
        assert_eq!(f64::try_from(got).unwrap(), 1.25);
        // By steps: 0 and 1 of trajectory 0, then 2 of trajectory 2.
        let steps = Denominators::of_steps(&rows);
        assert_eq!((steps.tokens, steps.sequences, steps.lengths.as_slice()), (4, 3, [2.0, 1.0, 1.0].as_slice()));
        assert_eq!(steps, Denominators::from_tokens(&[0, 0, 1, 2]));
    }

    #[test]
    fn aggregation_without_sampled_tokens_is_zero() {
        let empty = Tensor::from_slice::<f64>(&[]);
        let sequence = Tensor::from_slice::<i64>(&[]);
        for loss_agg in [LossAgg::TokenMean, LossAgg::SeqMeanTokenSum, LossAgg::SeqMeanTokenMean] {
            let got = aggregate(&empty, &sequence, loss_agg, &Denominators::of(&[])).unwrap();
            assert_eq!(f64::try_from(got).unwrap(), 0.0);
        }
    }
}
