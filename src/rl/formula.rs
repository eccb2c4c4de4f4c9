//! The formula of each loss, with its options.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::losses::{Divergence, VespoOptions};
use super::options::{names, take_from, within};
use crate::error::Result;

/// The clip of PPO, as options.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipOptions {
    pub clip_low: f64,
    pub clip_high: f64,
    /// Off without it.
    pub dual_clip: Option<f64>,
}

/// Two bounds, as options.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandOptions {
    pub clip_low: f64,
    pub clip_high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SapoOptions {
    pub tau_pos: f64,
    pub tau_neg: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipCovOptions {
    pub clip_low: f64,
    pub clip_high: f64,
    /// Share of tokens taken out.
    pub share: f64,
    pub cov_low: f64,
    pub cov_high: f64,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlCovOptions {
    /// Share of tokens held back.
    pub share: f64,
    pub cov_coef: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DppoOptions {
    pub clip_low: f64,
    pub clip_high: f64,
    /// Largest ratio that weighs a token.
    pub truncate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DroOptions {
    /// Weight of half the squared log ratio.
    pub beta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoOptions {}

/// The formula of a loss with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    Ppo(ClipOptions),
    Gspo(BandOptions),
    Cispo(BandOptions),
    Sapo(SapoOptions),
    GeoMean(BandOptions),
    ClipCov(ClipCovOptions),
    KlCov(KlCovOptions),
    Dppo(Divergence, DppoOptions),
    Vespo(VespoOptions),
    Dro(DroOptions),
    Reinforce(NoOptions),
    /// The recipe's own: [`super::custom`].
    Custom,
}

impl Formula {
    /// With the options that a table gives, which are taken out of it.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) for a value of the wrong type.
    pub(super) fn read(self, name: &str, rest: &mut Map<String, Value>) -> Result<Self> {
        Ok(match self {
            Self::Ppo(own) => Self::Ppo(take_from(name, rest, &own)?),
            Self::Gspo(own) => Self::Gspo(take_from(name, rest, &own)?),
            Self::Cispo(own) => Self::Cispo(take_from(name, rest, &own)?),
            Self::Sapo(own) => Self::Sapo(take_from(name, rest, &own)?),
            Self::GeoMean(own) => Self::GeoMean(take_from(name, rest, &own)?),
            Self::ClipCov(own) => Self::ClipCov(take_from(name, rest, &own)?),
            Self::KlCov(own) => Self::KlCov(take_from(name, rest, &own)?),
            Self::Dppo(divergence, own) => Self::Dppo(divergence, take_from(name, rest, &own)?),
            Self::Vespo(own) => Self::Vespo(take_from(name, rest, &own)?),
            Self::Dro(own) => Self::Dro(take_from(name, rest, &own)?),
            own @ (Self::Reinforce(_) | Self::Custom) => own,
        })
    }

    /// The names of its options.
    pub(super) fn options(&self) -> Vec<String> {
        match self {
            Self::Ppo(own) => names(own),
            Self::Gspo(own) | Self::Cispo(own) | Self::GeoMean(own) => names(own),
            Self::Sapo(own) => names(own),
            Self::ClipCov(own) => names(own),
            Self::KlCov(own) => names(own),
            Self::Dppo(_, own) => names(own),
            Self::Vespo(own) => names(own),
            Self::Dro(own) => names(own),
            Self::Reinforce(own) => names(own),
            Self::Custom => Vec::new(),
        }
    }

    /// Refuses options outside of their range.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::error::Kind::Usage) names the option.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let least = |option, value, low| within(name, option, value, low, f64::INFINITY);
        let below_one = |low| within(name, "clip_low", low, 0.0, 1.0);
        match *self {
            Self::Ppo(ClipOptions { clip_low, clip_high, dual_clip }) => {
                below_one(clip_low)?;
                least("clip_high", clip_high, 0.0)?;
                least("dual_clip", dual_clip.unwrap_or(f64::MAX), 1.0)?;
            }
            Self::Gspo(own) | Self::Cispo(own) => {
                below_one(own.clip_low)?;
                least("clip_high", own.clip_high, 0.0)?;
            }
            Self::GeoMean(own) => {
                least("clip_low", own.clip_low, 0.0)?;
                least("clip_high", own.clip_high, 0.0)?;
            }
            Self::Sapo(own) => {
                least("tau_pos", own.tau_pos, f64::MIN_POSITIVE)?;
                least("tau_neg", own.tau_neg, f64::MIN_POSITIVE)?;
            }
            Self::ClipCov(own) => {
                below_one(own.clip_low)?;
                least("clip_high", own.clip_high, 0.0)?;
                within(name, "share", own.share, 0.0, 1.0)?;
            }
            Self::KlCov(own) => {
                within(name, "share", own.share, 0.0, 1.0)?;
                least("cov_coef", own.cov_coef, 0.0)?;
            }
            Self::Dppo(_, own) => {
                least("clip_low", own.clip_low, 0.0)?;
                least("clip_high", own.clip_high, 0.0)?;
                least("truncate", own.truncate, f64::MIN_POSITIVE)?;
            }
            Self::Vespo(own) => {
                least("k_pos", own.k_pos, 0.0)?;
                least("lambda_pos", own.lambda_pos, 0.0)?;
                least("k_neg", own.k_neg, 0.0)?;
                least("lambda_neg", own.lambda_neg, 0.0)?;
            }
            Self::Dro(own) => least("beta", own.beta, f64::MIN_POSITIVE)?,
            Self::Reinforce(_) | Self::Custom => {}
        }
        Ok(())
    }

    /// Whether it also moves tokens whose advantage is 0, once the policy has left the one that
    /// sampled.
    pub fn pulls_without_advantage(&self) -> bool {
        matches!(self, Self::KlCov(_) | Self::Dro(_))
    }
}
