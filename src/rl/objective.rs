//! The policy objective by name: a loss, how it is aggregated, and its KL and entropy terms.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Tensor;

use super::advantages::Need;
use super::aggregate::{Denominators, aggregate};
pub use super::formula::{
    BandOptions, ClipCovOptions, ClipOptions, DppoOptions, DroOptions, Formula, KlCovOptions, NoOptions, SapoOptions,
};
use super::kl::{KlKind, kl, kl_straight_through};
use super::loss::{Clip, LOG_RATIO_LIMIT, RatioStats, ppo_clip};
use super::losses::{
    Divergence, Tokens, VespoOptions, cispo, clip_cov, clip_cov_selection, dppo, dro, geo_mean, gspo, kl_cov,
    kl_cov_selection, reinforce, sapo, vespo,
};
use super::options::{names, refuse_rest, table, take_from, unknown, within};
use super::segments::Segments;
use crate::config::{CUSTOM, LossAgg};
use crate::error::{Error, Kind, Result};

/// What a sequence is, for ratios and means over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Trajectory,
    Step,
}

/// Options of every loss, in addition to its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    pub loss_agg: LossAgg,
    /// What 'seq' is in `loss_agg`.
    pub seq: Unit,
    /// What a sequence ratio (`gspo`, `pspo`, `luspo`, `geo_mean`, `vespo`) is over.
    pub ratio_over: Unit,
    /// What seq-mean-token-sum-norm divides by; without it the longest sequence of the mini-batch.
    pub horizon: Option<f64>,
    /// Weight of KL(policy || reference), 0 is off.
    pub kl_coef: f64,
    pub kl: KlKind,
    /// The value of `kl` with the gradient of k2.
    pub kl_straight_through: bool,
    /// KL times the token ratio, an unbiased gradient off policy (TRL's default).
    pub kl_times_ratio: bool,
    /// Weight of the entropy bonus, 0 is off.
    pub entropy_coef: f64,
}

/// A named loss, ready to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    pub name: &'static str,
    pub formula: Formula,
    pub terms: Terms,
}

/// N sampled tokens of a micro-batch, all `[N]`.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Log-probabilities under the current weights, with gradient.
    pub logp: &'a Tensor,
    /// Under the behaviour policy.
    pub logp_old: &'a Tensor,
    pub advantages: &'a Tensor,
    /// Under the reference policy, where there is a KL term.
    pub logp_ref: Option<&'a Tensor>,
    /// Of the current weights, with gradient, where there is an entropy bonus.
    pub entropy: Option<&'a Tensor>,
    /// i64: the trajectory of each token, as in [`Denominators::of`].
    pub trajectory: &'a Tensor,
    /// i64: the step of each token, as in [`Denominators::of_steps`].
    pub step: &'a Tensor,
    /// Off-policy weights: [`super::correction::Importance`] times
    /// [`super::correction::Rejection`].
    pub weights: Option<&'a Tensor>,
    /// bool: the choice of `clip_cov` or `kl_cov` in the whole mini-batch; without it these tokens
    /// are the whole.
    pub selected: Option<&'a Tensor>,
}

impl<'a> Inputs<'a> {
    fn sequence(&self, unit: Unit) -> &'a Tensor {
        match unit {
            Unit::Trajectory => self.trajectory,
            Unit::Step => self.step,
        }
    }
}

/// A micro-batch's share of the objective: scalars that add up over micro-batches.
#[derive(Debug)]
pub struct MicroBatchLoss {
    /// The minimised loss, with gradient: `policy + kl_coef * kl - entropy_coef * entropy`.
    pub loss: Tensor,
    /// Its parts, without gradient and without their coefficients.
    pub policy: Tensor,
    pub kl: Option<Tensor>,
    pub entropy: Option<Tensor>,
    pub ratios: RatioStats,
}

const fn clip(clip_low: f64, clip_high: f64, dual_clip: Option<f64>) -> Formula {
    Formula::Ppo(ClipOptions { clip_low, clip_high, dual_clip })
}

const fn band(clip_low: f64, clip_high: f64) -> BandOptions {
    BandOptions { clip_low, clip_high }
}

/// The terms of most losses.
const TERMS: Terms = Terms {
    loss_agg: LossAgg::TokenMean,
    seq: Unit::Trajectory,
    ratio_over: Unit::Step,
    horizon: None,
    kl_coef: 0.0,
    kl: KlKind::K3,
    kl_straight_through: false,
    kl_times_ratio: false,
    entropy_coef: 0.0,
};

const DPPO: DppoOptions = DppoOptions { clip_low: 0.2, clip_high: 0.2, truncate: 20.0 };
const CLIP_COV: ClipCovOptions =
    ClipCovOptions { clip_low: 0.2, clip_high: 0.2, share: 2e-4, cov_low: 1.0, cov_high: 5.0, seed: 0 };
const VESPO: VespoOptions = VespoOptions { k_pos: 2.0, lambda_pos: 3.0, k_neg: 3.0, lambda_neg: 2.0 };
const SEQUENCE_MEAN: Terms = Terms { loss_agg: LossAgg::SeqMeanTokenMean, ..TERMS };

/// Every loss: its name, its formula with the published options, and its terms. A loss is a line
/// here; one with a new formula is also a variant of [`Formula`].
const LOSSES: [(&str, Formula, Terms); 18] = [
    ("ppo", clip(0.2, 0.2, Some(3.0)), TERMS),
    ("gspo", Formula::Gspo(band(3e-4, 4e-4)), SEQUENCE_MEAN),
    ("pspo", Formula::Gspo(band(3e-4, 4e-4)), Terms { seq: Unit::Step, kl_coef: 1e-3, ..SEQUENCE_MEAN }),
    ("cispo", Formula::Cispo(band(0.2, 0.2)), TERMS),
    ("sapo", Formula::Sapo(SapoOptions { tau_pos: 1.0, tau_neg: 1.05 }), SEQUENCE_MEAN),
    // A step is one term of the mean: its ratio and its advantage belong together.
    ("geo_mean", Formula::GeoMean(band(0.4, 0.4)), Terms { seq: Unit::Step, ..SEQUENCE_MEAN }),
    ("dr_grpo", clip(0.2, 0.2, None), Terms { loss_agg: LossAgg::SeqMeanTokenSumNorm, ..TERMS }),
    ("dapo", clip(0.2, 0.28, None), TERMS),
    ("bnpo", clip(0.2, 0.2, None), TERMS),
    ("clip_cov", Formula::ClipCov(CLIP_COV), TERMS),
    ("kl_cov", Formula::KlCov(KlCovOptions { share: 2e-4, cov_coef: 1.0 }), TERMS),
    ("dppo_tv", Formula::Dppo(Divergence::Tv, DPPO), TERMS),
    ("dppo_kl", Formula::Dppo(Divergence::Kl, DPPO), TERMS),
    ("gpg", Formula::Reinforce(NoOptions {}), TERMS),
    ("reinforce", Formula::Reinforce(NoOptions {}), TERMS),
    // GSPO with every sequence weighted by its length (arXiv:2602.05261).
    ("luspo", Formula::Gspo(band(3e-4, 4e-4)), Terms { loss_agg: LossAgg::SeqMeanTokenSum, ..TERMS }),
    ("vespo", Formula::Vespo(VESPO), TERMS),
    ("dro", Formula::Dro(DroOptions { beta: 0.1 }), TERMS),
];

impl Objective {
    /// Every name.
    pub const NAMES: [&'static str; LOSSES.len()] = {
        let mut names = [""; LOSSES.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = LOSSES[i].0;
            i += 1;
        }
        names
    };

    /// A loss by name with its published options.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the nearest names of an unknown one.
    pub fn named(name: &str) -> Result<Self> {
        let found = LOSSES.into_iter().find(|(known, ..)| *known == name);
        let (name, formula, terms) = found.ok_or_else(|| unknown("loss", name, &Self::NAMES))?;
        Ok(Self { name, formula, terms })
    }

    /// A loss by name with the options of a table, its own and those of [`Terms`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for a name or an option that does not exist (with those that resemble it), a
    /// value of the wrong type or out of its range.
    pub fn new(name: &str, options: &Value) -> Result<Self> {
        let mut rest = table(name, options)?;
        let objective = Self::read(name, &mut rest)?;
        refuse_rest(name, &rest, &objective.options())?;
        Ok(objective)
    }

    /// [`Objective::new`], leaving in `rest` what is none of its options.
    pub(super) fn read(name: &str, rest: &mut serde_json::Map<String, Value>) -> Result<Self> {
        let mut objective = Self::named(name)?;
        objective.terms = take_from(name, rest, &objective.terms)?;
        objective.formula = objective.formula.read(name, rest)?;
        objective.check()?;
        Ok(objective)
    }

    /// The terms of a custom loss, which [`super::custom::compute`] computes.
    pub fn custom(loss_agg: LossAgg, entropy_coef: f64) -> Self {
        let terms = Terms { loss_agg, entropy_coef, ..TERMS };
        Self { name: CUSTOM, formula: Formula::Custom, terms }
    }

    /// Whether it has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options().iter().any(|own| own == name)
    }

    /// The names of all its options.
    pub(super) fn options(&self) -> Vec<String> {
        let own = self.formula.options();
        own.into_iter().chain(names(&self.terms)).collect()
    }

    fn check(&self) -> Result<()> {
        let least = |option, value, low| within(self.name, option, value, low, f64::INFINITY);
        self.formula.check(self.name)?;
        least("horizon", self.terms.horizon.unwrap_or(1.0), f64::MIN_POSITIVE)?;
        least("kl_coef", self.terms.kl_coef, 0.0)?;
        within(self.name, "entropy_coef", self.terms.entropy_coef, f64::MIN, f64::MAX)
    }

    /// What the host must provide.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::new();
        if self.terms.kl_coef > 0.0 {
            needs.push(Need::Reference);
        }
        if matches!(self.formula, Formula::ClipCov(_) | Formula::KlCov(_)) {
            needs.push(Need::WholeBatch);
        }
        needs
    }

    /// The choice of `clip_cov` or `kl_cov` among the tokens of a whole mini-batch, `[N]` bool;
    /// `None` for other losses.
    pub fn select(&self, tokens: &Tokens<'_>) -> Result<Option<Tensor>> {
        Ok(match self.formula {
            Formula::ClipCov(own) => {
                let clip = Clip { low: own.clip_low, high: own.clip_high, dual: None };
                Some(clip_cov_selection(tokens, clip, own.share, (own.cov_low, own.cov_high), own.seed)?)
            }
            Formula::KlCov(own) => Some(kl_cov_selection(tokens, own.share)?),
            _ => None,
        })
    }

    /// The loss of each token `[N]`, without weights, KL and entropy.
    pub fn token_loss(&self, tokens: &Tokens<'_>, selected: Option<&Tensor>) -> Result<(Tensor, RatioStats)> {
        let own = if selected.is_some() { None } else { self.select(tokens)? };
        let selected = selected.or(own.as_ref());
        match (self.formula, selected) {
            (Formula::Ppo(ClipOptions { clip_low, clip_high, dual_clip }), _) => {
                let clip = Clip { low: clip_low, high: clip_high, dual: dual_clip };
                ppo_clip(tokens.logp, tokens.logp_old, tokens.advantages, clip)
            }
            (Formula::Gspo(own), _) => gspo(tokens, own.clip_low, own.clip_high),
            (Formula::Cispo(own), _) => cispo(tokens, own.clip_low, own.clip_high),
            (Formula::Sapo(own), _) => sapo(tokens, own.tau_pos, own.tau_neg),
            (Formula::GeoMean(own), _) => geo_mean(tokens, own.clip_low, own.clip_high),
            (Formula::Dppo(divergence, own), _) => dppo(tokens, divergence, own.clip_low, own.clip_high, own.truncate),
            (Formula::Vespo(own), _) => vespo(tokens, None, own),
            (Formula::Dro(own), _) => dro(tokens, own.beta),
            (Formula::Reinforce(_), _) => reinforce(tokens),
            (Formula::ClipCov(own), Some(selected)) => {
                let clip = Clip { low: own.clip_low, high: own.clip_high, dual: None };
                clip_cov(tokens, clip, selected)
            }
            (Formula::KlCov(own), Some(selected)) => kl_cov(tokens, own.cov_coef, selected),
            (Formula::Custom, _) => Err(Error::new(Kind::Internal, "a custom loss is computed by its graph")),
            (Formula::ClipCov(_) | Formula::KlCov(_), None) => {
                Err(Error::new(Kind::Internal, format!("`{}` has no selection", self.name)))
            }
        }
    }

    /// The denominators of the whole mini-batch, for [`Objective::compute`].
    pub fn denominators<'r>(&self, rows: impl IntoIterator<Item = &'r super::pack::Row>) -> Denominators {
        let counted = match self.terms.seq {
            Unit::Trajectory => Denominators::of(rows),
            Unit::Step => Denominators::of_steps(rows),
        };
        counted.with_horizon(self.terms.horizon)
    }

    /// This micro-batch's share of the objective. `denominators` are those of the whole mini-batch,
    /// counted in the unit of [`Terms::seq`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for a KL term without `logp_ref`, or an entropy bonus without `entropy`.
    pub fn compute(&self, inputs: &Inputs<'_>, denominators: &Denominators) -> Result<MicroBatchLoss> {
        let tokens = Tokens {
            logp: inputs.logp,
            logp_old: inputs.logp_old,
            advantages: inputs.advantages,
            sequence: inputs.sequence(self.terms.ratio_over),
        };
        if let Formula::Vespo(own) = self.formula {
            // Its off-policy weights are part of the sequence's ratio.
            let (token_loss, ratios) = vespo(&tokens, inputs.weights, own)?;
            return self.of_tokens(token_loss, ratios, &Inputs { weights: None, ..*inputs }, denominators);
        }
        let (token_loss, ratios) = self.token_loss(&tokens, inputs.selected)?;
        self.of_tokens(token_loss, ratios, inputs, denominators)
    }

    /// The objective of a loss per token `[N]`: weighted and aggregated, with the KL and entropy
    /// terms.
    pub(super) fn of_tokens(
        &self,
        mut token_loss: Tensor,
        ratios: RatioStats,
        inputs: &Inputs<'_>,
        denominators: &Denominators,
    ) -> Result<MicroBatchLoss> {
        let Terms { loss_agg, seq, ratio_over, .. } = self.terms;
        if let Some(weights) = inputs.weights {
            token_loss = token_loss.f_mul(&self.weights(weights, inputs.sequence(ratio_over))?)?;
        }
        let policy = aggregate(&token_loss, inputs.sequence(seq), loss_agg, denominators)?;
        self.of_total(&policy, ratios, inputs, denominators)
    }

    /// The objective of a policy loss that is one number already, with the KL and entropy terms.
    pub(super) fn of_total(
        &self,
        policy: &Tensor,
        ratios: RatioStats,
        inputs: &Inputs<'_>,
        denominators: &Denominators,
    ) -> Result<MicroBatchLoss> {
        let Terms { loss_agg, seq, kl_coef, entropy_coef, .. } = self.terms;
        let share = |values: &Tensor| aggregate(values, inputs.sequence(seq), loss_agg, denominators);
        let (mut kl_share, mut entropy_share) = (None, None);
        let mut loss = policy.shallow_clone();
        if kl_coef > 0.0 {
            let value = share(&self.token_kl(inputs)?)?;
            loss = loss.f_add(&value.f_mul_scalar(kl_coef)?)?;
            kl_share = Some(value.f_detach()?);
        }
        if entropy_coef != 0.0 {
            let entropy = inputs.entropy.ok_or_else(|| self.misses("entropy", "entropy_coef"))?;
            let value = share(entropy)?;
            loss = loss.f_sub(&value.f_mul_scalar(entropy_coef)?)?;
            entropy_share = Some(value.f_detach()?);
        }
        Ok(MicroBatchLoss { loss, policy: policy.f_detach()?, kl: kl_share, entropy: entropy_share, ratios })
    }

    /// Weights of tokens; for a loss that a whole sequence shares, their geometric mean over it.
    fn weights(&self, weights: &Tensor, sequence: &Tensor) -> Result<Tensor> {
        if !matches!(self.formula, Formula::GeoMean(_)) {
            return Ok(weights.shallow_clone());
        }
        let segments = Segments::new(sequence)?;
        segments.spread(&segments.mean(&weights.f_add_scalar(1e-10)?.f_log()?)?.f_exp()?)
    }

    fn token_kl(&self, inputs: &Inputs<'_>) -> Result<Tensor> {
        let logp_ref = inputs.logp_ref.ok_or_else(|| self.misses("logp_ref", "kl_coef"))?;
        let estimate = if self.terms.kl_straight_through { kl_straight_through } else { kl };
        let value = estimate(inputs.logp, logp_ref, self.terms.kl)?;
        if !self.terms.kl_times_ratio {
            return Ok(value);
        }
        let log_ratio = inputs.logp.f_sub(inputs.logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
        Ok(value.f_mul(&log_ratio.f_exp()?)?)
    }

    fn misses(&self, what: &str, because: &str) -> Error {
        Error::new(Kind::Usage, format!("`{}` with `{because}` needs `{what}` for every sampled token", self.name))
    }
}
