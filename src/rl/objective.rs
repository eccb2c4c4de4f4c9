//! The policy objective: a loss by name or a function of a recipe, its aggregation, and its KL and
//! entropy terms.

use std::sync::Arc;

use serde_json::{Map, Value};
use tch::Tensor;

use super::advantages::AlgorithmNeed;
use super::aggregate::{Denominators, aggregate};
use super::custom;
use super::kl::{kl, kl_straight_through};
use super::losses::{self, Formula, LOG_RATIO_LIMIT, Loss, RatioSums, TERMS, ppo_clip};
pub use super::losses::{Terms, Unit};
use super::options::{at_least, at_least_zero, fields, names, refuse_rest, table, take_from, unknown, within};
use super::pack::{MicroBatch, Row};
use super::reference::ReferenceRow;
use crate::config::{Input, LossGraph};
use crate::error::{Error, Kind, Result};

/// The loss of a recipe in messages: the name of its function.
pub(super) const FUNCTION: &str = "loss";

/// A loss, ready to be computed.
#[derive(Clone, Debug)]
pub struct PolicyLoss {
    pub name: &'static str,
    pub formula: Formula,
    pub terms: Terms,
}

/// N sampled tokens of a micro-batch, all `[N]`: what a loss reads.
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
    /// The numbers of trajectories and steps, and of groups for a loss that reads them, are below
    /// it.
    pub sequences: i64,
    /// Off-policy weights: [`super::correction::Importance`] times
    /// [`super::correction::Rejection`].
    pub weights: Option<&'a Tensor>,
    /// bool: the choice of `clip_cov` or `kl_cov` in the whole mini-batch; without it, the
    /// selection is made among these tokens.
    pub selected: Option<&'a Tensor>,
    /// i64: the group of each token.
    pub group: &'a Tensor,
    /// The total reward of each token's trajectory, if a loss in Lua reads it.
    pub rewards: Option<&'a Tensor>,
    /// The denominators of the mini-batch by unit, for losses in Lua that aggregate.
    pub units: Option<&'a custom::Units>,
}

impl<'a> Inputs<'a> {
    /// The inputs that every loss reads.
    pub fn of(batch: &'a MicroBatch, logp: &'a Tensor, logp_old: &'a Tensor) -> Self {
        Self {
            logp,
            logp_old,
            advantages: &batch.advantages,
            logp_ref: None,
            entropy: None,
            trajectory: &batch.sequence,
            step: &batch.step,
            sequences: batch.sequences,
            weights: None,
            selected: None,
            group: &batch.group,
            rewards: None,
            units: None,
        }
    }

    fn sequence(&self, unit: Unit) -> &'a Tensor {
        match unit {
            Unit::Trajectory => self.trajectory,
            Unit::Step => self.step,
        }
    }
}

/// A micro-batch's share of the objective: scalars that add up over micro-batches. The backward
/// pass and the metrics of an update read it.
#[derive(Debug)]
pub struct MicroBatchLoss {
    /// The minimised loss, with gradient: `policy + kl_coef * kl - entropy_coef * entropy`.
    pub loss: Tensor,
    /// Its parts, without gradient and without their coefficients.
    pub policy: Tensor,
    pub kl: Option<Tensor>,
    pub entropy: Option<Tensor>,
    pub ratios: RatioSums,
    /// The numbers that the recipe's own loss logs.
    pub numbers: Option<custom::Numbers>,
}

impl PolicyLoss {
    pub fn names() -> Vec<&'static str> {
        losses::names()
    }

    /// Every loss, as docs/reference/algorithms.md lists it: its own options, and the terms in
    /// which it differs from most losses.
    pub fn reference() -> impl Iterator<Item = ReferenceRow> {
        let defaults = fields(&TERMS);
        losses::all().map(move |loss| {
            let terms = fields(&loss.terms).into_iter().filter(|(name, value)| defaults[name] != *value);
            let options = loss.formula.options().into_iter().chain(terms).collect();
            let reference = AlgorithmNeed::Reference.words().filter(|_| loss.terms.kl_coef > 0.0);
            ReferenceRow {
                name: loss.name,
                paper: loss.paper,
                about: loss.about,
                options,
                needs: reference.into_iter().collect(),
            }
        })
    }

    /// A loss by name with its published options.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the nearest names of an unknown one.
    pub fn named(name: &str) -> Result<Self> {
        Self::of(&named(name)?, &mut Map::new())
    }

    /// A loss by name with the options of a table: the loss's options and the options of [`Terms`].
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

    /// [`PolicyLoss::new`]; `rest` keeps the entries that are not its options.
    pub(super) fn read(name: &str, rest: &mut Map<String, Value>) -> Result<Self> {
        let objective = Self::of(&named(name)?, rest)?;
        objective.check()?;
        Ok(objective)
    }

    fn of(loss: &Loss, rest: &mut Map<String, Value>) -> Result<Self> {
        let Loss { name, formula, terms, .. } = loss;
        let terms = take_from(name, rest, terms)?;
        Ok(Self { name, formula: formula.read(name, rest, &terms)?, terms })
    }

    /// The loss of the recipe's own function; `options` may have some of [`Terms`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for a value of the wrong type.
    pub fn of_graph(graph: Arc<LossGraph>, options: &Map<String, Value>) -> Result<Self> {
        let terms = take_from(FUNCTION, &mut options.clone(), &TERMS)?;
        let objective = Self { name: FUNCTION, formula: Formula::of_graph(graph), terms };
        objective.check()?;
        Ok(objective)
    }

    /// Whether it has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options().iter().any(|option| option == name)
    }

    /// Whether the tokens that it clips are known.
    pub fn reports_clip(&self) -> bool {
        self.formula.graph().is_none_or(|graph| self.formula.file().is_some() || graph.ratio.is_some())
    }

    pub(super) fn options(&self) -> Vec<String> {
        let formula_options = self.formula.options();
        formula_options.into_iter().map(|(name, _)| name).chain(names(&self.terms)).collect()
    }

    fn check(&self) -> Result<()> {
        at_least(self.name, "horizon", self.terms.horizon.unwrap_or(1.0), f64::MIN_POSITIVE)?;
        at_least_zero(self.name, "kl_coef", self.terms.kl_coef)?;
        within(self.name, "entropy_coef", self.terms.entropy_coef, f64::MIN, f64::MAX)
    }

    /// Inputs that the host must provide.
    pub fn needs(&self) -> Vec<AlgorithmNeed> {
        let mut needs = Vec::new();
        if self.terms.kl_coef > 0.0 {
            needs.push(AlgorithmNeed::Reference);
        }
        if self.formula.graph().is_some_and(|graph| graph.selection().is_some()) {
            needs.push(AlgorithmNeed::WholeBatch);
        }
        needs
    }

    /// The denominators of the whole mini-batch, for [`PolicyLoss::compute`].
    pub fn denominators<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Denominators {
        let counted = match self.terms.seq {
            Unit::Trajectory => Denominators::of(rows),
            Unit::Step => Denominators::of_steps(rows),
        };
        counted.with_horizon(self.terms.horizon)
    }

    /// This micro-batch's share of the objective. `denominators` are for the whole mini-batch,
    /// counted in the unit of [`Terms::seq`].
    ///
    /// # Errors
    /// [`Kind::Usage`] for a KL term without `logp_ref`, or an entropy bonus without `entropy`.
    pub fn compute(&self, inputs: &Inputs<'_>, denominators: &Denominators) -> Result<MicroBatchLoss> {
        match &self.formula {
            Formula::Ppo(clip) => {
                let (loss, ratios) = ppo_clip(inputs.logp, inputs.logp_old, inputs.advantages, *clip)?;
                self.of_tokens(loss, ratios, inputs, denominators)
            }
            Formula::Lua(lua) => {
                let chosen = if inputs.selected.is_none() { self.select(inputs)? } else { None };
                let inputs = Inputs { selected: inputs.selected.or(chosen.as_ref()), ..*inputs };
                custom::compute(lua, self, &inputs, denominators)
            }
        }
    }

    /// The choice of `clip_cov` and `kl_cov` among all tokens of a mini-batch, `[N]` bool; `None`
    /// for losses that select none.
    ///
    /// # Errors
    /// Errors of the tensor operations.
    pub fn select(&self, inputs: &Inputs<'_>) -> Result<Option<Tensor>> {
        match self.formula.graph() {
            Some(graph) if graph.selection().is_some() => custom::select(graph, inputs),
            _ => Ok(None),
        }
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
        let Terms { loss_agg, seq, .. } = self.terms;
        let applies_weights = self.formula.graph().is_some_and(|graph| graph.reads(Input::Weights));
        if let Some(weights) = inputs.weights.filter(|_| !applies_weights) {
            token_loss = token_loss.f_mul(weights)?;
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
        Ok(MicroBatchLoss {
            loss,
            policy: policy.f_detach()?,
            kl: kl_share,
            entropy: entropy_share,
            ratios,
            numbers: None,
        })
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

fn named(name: &str) -> Result<Loss> {
    losses::find(name)?.ok_or_else(|| unknown("loss", name, &PolicyLoss::names()))
}
