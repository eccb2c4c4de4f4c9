//! REINFORCE: the policy gradient without a ratio.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{OPEN, RatioSums};
use crate::error::Result;

/// REINFORCE has no options.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reinforce {}

impl LossFormula for Reinforce {
    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        reinforce(tokens)
    }
}

/// REINFORCE: `-A logp`. GPG (arXiv:2504.02546) is this loss with its own advantages.
pub fn reinforce(tokens: &Tokens<'_>) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.log_ratio()?;
    let stats = RatioSums::of(&log_ratio, &log_ratio.f_exp()?, tokens.advantages, OPEN)?;
    Ok((tokens.advantages.f_neg()?.f_mul(tokens.logp)?, stats))
}
