//! From the padded matrices of other packages to gathered sampled tokens.

use serde::Deserialize;
use tch::Tensor;

use crate::rl::aggregate::Denominators;
use crate::rl::pack::Row;

/// Trajectories by tokens.
pub(super) type Padded = Vec<Vec<f64>>;

/// 1 where the policy sampled the token; each line is a trajectory.
#[derive(Deserialize)]
pub(super) struct Mask(Padded);

impl Mask {
    /// The entries at sampled tokens, trajectory by trajectory.
    pub(super) fn sampled(&self, values: &Padded) -> Padded {
        let kept = |(values, mask): (&Vec<f64>, &Vec<f64>)| {
            values.iter().zip(mask).filter(|(_, m)| **m > 0.0).map(|(v, _)| *v).collect()
        };
        values.iter().zip(&self.0).map(kept).collect()
    }

    /// Number of sampled tokens per trajectory.
    pub(super) fn tokens(&self) -> Vec<usize> {
        self.sampled(&self.0).iter().map(Vec::len).collect()
    }

    /// An advantage per trajectory, copied to its sampled tokens.
    pub(super) fn per_token(&self, advantages: &[f64]) -> Vec<f64> {
        advantages.iter().zip(self.tokens()).flat_map(|(advantage, n)| vec![*advantage; n]).collect()
    }

    pub(super) fn gathered(&self, values: &Padded) -> Tensor {
        Tensor::from_slice(&self.sampled(values).concat())
    }

    /// The trajectory of each sampled token.
    pub(super) fn sequence(&self) -> Tensor {
        let all: Vec<i64> = self.tokens().into_iter().enumerate().flat_map(|(i, n)| vec![i as i64; n]).collect();
        Tensor::from_slice(&all)
    }

    /// Denominators of verl, whose horizon is the width of the matrix.
    pub(super) fn denominators(&self) -> Denominators {
        let width = self.0.first().map(|line| line.len() as f64);
        Denominators::of(&self.rows()).with_horizon(width)
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let row = |(trajectory, mask): (usize, &Vec<f64>)| Row {
            ids: vec![0; mask.len()],
            loss_mask: mask.iter().map(|m| *m > 0.0).collect(),
            logprobs: vec![0.0; mask.len()],
            steps: vec![0; mask.len()],
            trajectory,
            ..Row::default()
        };
        self.0.iter().enumerate().map(row).collect()
    }
}

#[track_caller]
pub(super) fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{what}: {got} for {want}");
    }
}

pub(super) fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().flatten(0, -1)).unwrap()
}
