//! The policy objective by name: a loss, its aggregation, and its KL and entropy terms.

use std::sync::Arc;

use serde_json::{Map, Value};
use tch::Tensor;

use super::advantages::Need;
use super::aggregate::{Denominators, aggregate};
use super::kl::{kl, kl_straight_through};
use super::losses::{Custom, Extra, LOG_RATIO_LIMIT, LOSSES, Loss, LossFormula, RatioSums, TERMS, Tokens};
pub use super::losses::{Terms, Unit};
use super::options::{at_least, at_least_zero, fields, names, refuse_rest, table, take_from, unknown, within};
use super::reference::Reference;
use super::segments::Segments;
use crate::config::{CUSTOM, LossAgg};
use crate::error::{Error, Kind, Result};

/// A named loss, ready to be computed.
#[derive(Clone, Debug)]
pub struct Objective {
    pub name: &'static str,
    pub formula: Arc<dyn LossFormula>,
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
    /// Under the reference policy, if there is a KL term.
    pub logp_ref: Option<&'a Tensor>,
    /// Entropies under the current weights, with gradient, if there is an entropy bonus.
    pub entropy: Option<&'a Tensor>,
    /// i64: the trajectory of each token, as in [`Denominators::of`].
    pub trajectory: &'a Tensor,
    /// i64: the step of each token, as in [`Denominators::of_steps`].
    pub step: &'a Tensor,
    /// The numbers of trajectories and steps, and of groups for a custom loss, are below it.
    pub sequences: i64,
    /// Off-policy weights: [`super::correction::Importance`] times
    /// [`super::correction::Rejection`].
    pub weights: Option<&'a Tensor>,
    /// bool: the choice of `clip_cov` or `kl_cov` in the whole mini-batch; without it, the
    /// selection is made among these tokens.
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
    pub ratios: RatioSums,
}

impl Objective {
    /// Every name.
    pub const NAMES: [&'static str; LOSSES.len()] = {
        let mut names = [""; LOSSES.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = LOSSES[i].name;
            i += 1;
        }
        names
    };

    /// Every loss, as docs/training.md lists it: its own options, and the terms in which it differs
    /// from most losses.
    pub fn reference() -> impl Iterator<Item = Reference> {
        let usual = fields(&TERMS);
        LOSSES.iter().map(move |loss| {
            let terms = fields(&loss.terms).into_iter().filter(|(name, value)| usual[name] != *value);
            let options = loss.formula.options().into_iter().chain(terms).collect();
            let reference = Need::Reference.words().filter(|_| loss.terms.kl_coef > 0.0);
            Reference {
                name: loss.name,
                paper: loss.paper,
                about: loss.about,
                options,
                needs: reference.into_iter().collect(),
            }
        })
    }

    /// The names of the options that every loss has.
    pub fn terms() -> Vec<String> {
        names(&TERMS)
    }

    /// A loss by name with its published options.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the nearest names of an unknown one.
    pub fn named(name: &str) -> Result<Self> {
        Self::of(named(name)?, &mut Map::new())
    }

    /// A loss by name with the options of a table, its own and those of [`Terms`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for a name or an option that does not exist (with similar names), a value of
    /// the wrong type or out of its range.
    pub fn new(name: &str, options: &Value) -> Result<Self> {
        let mut rest = table(name, options)?;
        let objective = Self::read(name, &mut rest)?;
        refuse_rest(name, &rest, &objective.options())?;
        Ok(objective)
    }

    /// [`Objective::new`]; `rest` keeps the entries that are not its options.
    pub(super) fn read(name: &str, rest: &mut Map<String, Value>) -> Result<Self> {
        let objective = Self::of(named(name)?, rest)?;
        objective.check()?;
        Ok(objective)
    }

    fn of(loss: &Loss, rest: &mut Map<String, Value>) -> Result<Self> {
        let Loss { name, formula, terms, .. } = *loss;
        Ok(Self { name, terms: take_from(name, rest, &terms)?, formula: formula.read(name, rest)? })
    }

    /// The terms of a custom loss, which [`super::custom::compute`] computes.
    pub fn custom(loss_agg: LossAgg, entropy_coef: f64) -> Self {
        let terms = Terms { loss_agg, entropy_coef, ..TERMS };
        Self { name: CUSTOM, formula: Arc::new(Custom {}), terms }
    }

    /// Whether it has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options().iter().any(|own| own == name)
    }

    /// The names of all its options.
    pub(super) fn options(&self) -> Vec<String> {
        let own = self.formula.options();
        own.into_iter().map(|(name, _)| name).chain(names(&self.terms)).collect()
    }

    fn check(&self) -> Result<()> {
        self.formula.check(self.name)?;
        at_least(self.name, "horizon", self.terms.horizon.unwrap_or(1.0), f64::MIN_POSITIVE)?;
        at_least_zero(self.name, "kl_coef", self.terms.kl_coef)?;
        within(self.name, "entropy_coef", self.terms.entropy_coef, f64::MIN, f64::MAX)
    }

    /// Inputs that the host must provide.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::new();
        if self.terms.kl_coef > 0.0 {
            needs.push(Need::Reference);
        }
        if self.formula.needs_whole_batch() {
            needs.push(Need::WholeBatch);
        }
        needs
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
            sequences: inputs.sequences,
        };
        let own = if inputs.selected.is_some() { None } else { self.formula.select(&tokens)? };
        let extra = Extra { weights: inputs.weights, selected: inputs.selected.or(own.as_ref()) };
        let (token_loss, ratios) = self.formula.token_loss(&tokens, &extra)?;
        let weights = inputs.weights.filter(|_| !self.formula.applies_weights());
        self.of_tokens(token_loss, ratios, &Inputs { weights, ..*inputs }, denominators)
    }

    /// The objective of a loss per token `[N]`: weighted and aggregated, with the KL and entropy
    /// terms.
    pub(super) fn of_tokens(
        &self,
        mut token_loss: Tensor,
        ratios: RatioSums,
        inputs: &Inputs<'_>,
        denominators: &Denominators,
    ) -> Result<MicroBatchLoss> {
        let Terms { loss_agg, seq, ratio_over, .. } = self.terms;
        if let Some(weights) = inputs.weights {
            let sequences = Segments::new(inputs.sequence(ratio_over), inputs.sequences);
            token_loss = token_loss.f_mul(&self.formula.weights(weights, &sequences)?)?;
        }
        let policy = aggregate(&token_loss, inputs.sequence(seq), loss_agg, denominators)?;
        self.of_total(&policy, ratios, inputs, denominators)
    }

    /// The objective of a policy loss that is already a scalar, with the KL and entropy terms.
    pub(super) fn of_total(
        &self,
        policy: &Tensor,
        ratios: RatioSums,
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

fn named(name: &str) -> Result<&'static Loss> {
    LOSSES.iter().find(|loss| loss.name == name).ok_or_else(|| unknown("loss", name, &Objective::NAMES))
}
