//! Losses and gradients at a few tokens, for closed-form tests.

#![allow(clippy::unwrap_used)]

use tch::{Kind, Tensor};

use super::formula::Tokens;
use super::ratios::RatioSums;
use crate::error::Result;

/// Losses and gradients of a loss at two sequences of two tokens and one.
pub(super) fn at(
    log_ratios: [f64; 3],
    advantages: [f64; 3],
    loss: impl Fn(&Tokens<'_>) -> Result<(Tensor, RatioSums)>,
) -> (Vec<f64>, Vec<f64>) {
    let old = Tensor::from_slice(&[-1.0, -2.0, -0.5]);
    let logp = (&old + Tensor::from_slice(&log_ratios)).detach().set_requires_grad(true);
    let (advantages, sequence) = (Tensor::from_slice(&advantages), Tensor::from_slice(&[0_i64, 0, 1]));
    let tokens = Tokens { logp: &logp, logp_old: &old, advantages: &advantages, sequence: &sequence, sequences: 2 };
    let (loss, _) = loss(&tokens).unwrap();
    loss.sum(Kind::Double).backward();
    (Vec::try_from(loss.detach()).unwrap(), Vec::try_from(logp.grad()).unwrap())
}

pub(super) fn close(found: &[f64], want: [f64; 3]) {
    assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14), "{found:?} {want:?}");
}
