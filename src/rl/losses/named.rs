//! Every loss by its name.

use super::cispo::Cispo;
use super::clip_cov::ClipCov;
use super::dppo::{Dppo, DppoKl, DppoTv};
use super::dro::Dro;
use super::formula::LossFormula;
use super::geo_mean::GeoMean;
use super::gspo::Gspo;
use super::kl_cov::KlCov;
use super::ppo::Ppo;
use super::reinforce::Reinforce;
use super::sapo::Sapo;
use super::terms::{TERMS, Terms, Unit};
use super::vespo::Vespo;
use crate::config::LossAgg;

/// A loss: the row of docs/training.md, its formula with the published options, and its terms.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub name: &'static str,
    /// Its paper, or the system that defines it.
    pub paper: &'static str,
    pub about: &'static str,
    pub formula: &'static dyn LossFormula,
    pub terms: Terms,
}

const SEQUENCE_MEAN: Terms = Terms { loss_agg: LossAgg::SeqMeanTokenMean, ..TERMS };
const SEQUENCE_CLIP: Gspo = Gspo { clip_low: 3e-4, clip_high: 4e-4 };
const DPPO: Dppo = Dppo { clip_low: 0.2, clip_high: 0.2, truncate: 20.0 };

const fn ppo(clip_high: f64, dual_clip: Option<f64>) -> Ppo {
    Ppo { clip_low: 0.2, clip_high, dual_clip }
}

/// Every loss. Adding one is a line here; its formula is a type in a file of this folder.
pub const LOSSES: &[Loss] = &[
    Loss {
        name: "ppo",
        paper: "arXiv:1707.06347",
        about: "the clipped ratio, with a dual clip (arXiv:1912.09729)",
        formula: &ppo(0.2, Some(3.0)),
        terms: TERMS,
    },
    Loss {
        name: "gspo",
        paper: "arXiv:2507.18071",
        about: "the clipped ratio of a whole sequence",
        formula: &SEQUENCE_CLIP,
        terms: SEQUENCE_MEAN,
    },
    Loss {
        name: "pspo",
        paper: "arXiv:2601.10029",
        about: "`gspo` over steps with a KL penalty, for `gae`",
        formula: &SEQUENCE_CLIP,
        terms: Terms { seq: Unit::Step, kl_coef: 1e-3, ..SEQUENCE_MEAN },
    },
    Loss {
        name: "cispo",
        paper: "arXiv:2506.13585",
        about: "the policy gradient with a bounded ratio as weight",
        formula: &Cispo { clip_low: 0.2, clip_high: 0.2 },
        terms: TERMS,
    },
    Loss {
        name: "sapo",
        paper: "arXiv:2511.20347",
        about: "a soft gate instead of the clip",
        formula: &Sapo { tau_pos: 1.0, tau_neg: 1.05 },
        terms: SEQUENCE_MEAN,
    },
    // A step is one term of the mean: its ratio and its advantage belong together.
    Loss {
        name: "geo_mean",
        paper: "arXiv:2507.20673",
        about: "the geometric mean of the clipped ratios of a sequence (GMPO)",
        formula: &GeoMean { clip_low: 0.4, clip_high: 0.4 },
        terms: Terms { seq: Unit::Step, ..SEQUENCE_MEAN },
    },
    Loss {
        name: "dr_grpo",
        paper: "arXiv:2503.20783",
        about: "PPO's clip, divided by the longest sequence",
        formula: &ppo(0.2, None),
        terms: Terms { loss_agg: LossAgg::SeqMeanTokenSumNorm, ..TERMS },
    },
    Loss {
        name: "dapo",
        paper: "arXiv:2503.14476",
        about: "PPO's clip with a higher upper bound",
        formula: &ppo(0.28, None),
        terms: TERMS,
    },
    Loss {
        name: "bnpo",
        paper: "TRL",
        about: "PPO's clip without the dual clip, per token",
        formula: &ppo(0.2, None),
        terms: TERMS,
    },
    Loss {
        name: "clip_cov",
        paper: "arXiv:2505.22617",
        about: "PPO's clip, without the gradient of some tokens of high covariance",
        formula: &ClipCov { clip_low: 0.2, clip_high: 0.2, share: 2e-4, cov_low: 1.0, cov_high: 5.0, seed: 0 },
        terms: TERMS,
    },
    Loss {
        name: "kl_cov",
        paper: "arXiv:2505.22617",
        about: "the ratio, with a penalty on the tokens of the highest covariance",
        formula: &KlCov { share: 2e-4, cov_coef: 1.0 },
        terms: TERMS,
    },
    Loss {
        name: "dppo_tv",
        paper: "arXiv:2602.04879",
        about: "a trust region in total variation",
        formula: &DppoTv(DPPO),
        terms: TERMS,
    },
    Loss {
        name: "dppo_kl",
        paper: "arXiv:2602.04879",
        about: "a trust region in KL divergence",
        formula: &DppoKl(DPPO),
        terms: TERMS,
    },
    Loss {
        name: "gpg",
        paper: "arXiv:2504.02546",
        about: "`reinforce`, for the estimator `gpg`",
        formula: &Reinforce {},
        terms: TERMS,
    },
    Loss {
        name: "reinforce",
        paper: "Williams 1992",
        about: "the policy gradient without a ratio",
        formula: &Reinforce {},
        terms: TERMS,
    },
    Loss {
        name: "luspo",
        paper: "arXiv:2602.05261",
        about: "`gspo` with every sequence weighted by its length",
        formula: &SEQUENCE_CLIP,
        terms: Terms { loss_agg: LossAgg::SeqMeanTokenSum, ..TERMS },
    },
    Loss {
        name: "vespo",
        paper: "arXiv:2602.10693",
        about: "the policy gradient, weighted by a gamma form of the sequence's ratio",
        formula: &Vespo { k_pos: 2.0, lambda_pos: 3.0, k_neg: 3.0, lambda_neg: 2.0 },
        terms: TERMS,
    },
    Loss {
        name: "dro",
        paper: "arXiv:2405.19107",
        about: "the policy gradient with a squared penalty on the log ratio",
        formula: &Dro { beta: 0.1 },
        terms: TERMS,
    },
];
