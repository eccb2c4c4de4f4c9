//! From token losses to one number.
//!
//! Every denominator is that of the whole mini-batch, computed from its rows before anything is split: a micro-batch adds
//! its share, so gradient accumulation never changes the result (beyond the order of additions).

use tch::Tensor;

use super::pack::Row;
use crate::config::LossAgg;
use crate::error::Result;

/// What a mini-batch divides by. A sequence is a trajectory, however many rows and steps it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Denominators {
    /// Sampled tokens in the mini-batch.
    pub tokens: usize,
    /// Trajectories with at least one sampled token.
    pub sequences: usize,
    /// Sampled tokens of each trajectory, by its number; 0 for numbers that the mini-batch does not have.
    lengths: Vec<f32>,
}

impl Denominators {
    /// Counts a whole mini-batch.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let mut lengths: Vec<usize> = Vec::new();
        for row in rows {
            if lengths.len() <= row.trajectory {
                lengths.resize(row.trajectory + 1, 0);
            }
            lengths[row.trajectory] += row.sampled();
        }
        Self {
            tokens: lengths.iter().sum(),
            sequences: lengths.iter().filter(|length| **length > 0).count(),
            lengths: lengths.into_iter().map(|length| length as f32).collect(),
        }
    }
}

/// This micro-batch's share of the mini-batch's loss, a scalar; shares add up to the loss.
///
/// - `token_loss` `[N]`, `sequence` `[N]` i64: a loss and a trajectory per sampled token ([`super::pack::MicroBatch`])
/// - `token-mean`: sum over tokens / tokens (DAPO, arXiv:2503.14476)
/// - `seq-mean-token-sum`: sum over tokens / trajectories
/// - `seq-mean-token-mean`: mean over a trajectory's tokens, then over trajectories (GRPO, arXiv:2402.03300)
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
        LossAgg::SeqMeanTokenMean => {
            let lengths = Tensor::f_from_slice(&denominators.lengths)?.f_to_device(token_loss.device())?;
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
    fn each_kind_is_its_closed_form() {
        // Trajectory 0 has two rows and three tokens, trajectory 2 one token; number 1 is not in the mini-batch.
        let mut rows = merge(&trajectory(vec![step(&[1], &[2, 3]), step(&[7], &[8])]), 0).unwrap();
        rows.extend(merge(&trajectory(vec![step(&[1], &[2])]), 2).unwrap());
        let denominators = Denominators::of(&rows);
        assert_eq!((denominators.tokens, denominators.sequences), (4, 2));
        let loss = Tensor::from_slice(&[1.0_f64, 2.0, 6.0, 11.0]);
        let sequence = Tensor::from_slice(&[0_i64, 0, 0, 2]);
        for (loss_agg, expected) in
            [(LossAgg::TokenMean, 5.0), (LossAgg::SeqMeanTokenSum, 10.0), (LossAgg::SeqMeanTokenMean, 7.0)]
        {
            let got = aggregate(&loss, &sequence, loss_agg, &denominators).unwrap();
            assert_eq!(f64::try_from(got).unwrap(), expected, "{loss_agg:?}");
        }
    }

    #[test]
    fn nothing_sampled_is_zero() {
        let empty = Tensor::from_slice::<f64>(&[]);
        let sequence = Tensor::from_slice::<i64>(&[]);
        for loss_agg in [LossAgg::TokenMean, LossAgg::SeqMeanTokenSum, LossAgg::SeqMeanTokenMean] {
            let got = aggregate(&empty, &sequence, loss_agg, &Denominators::of(&[])).unwrap();
            assert_eq!(f64::try_from(got).unwrap(), 0.0);
        }
    }
}
