//! Estimators and losses over plain data, for scripts.
//!
//! Options are tables by name; [`StepRow`] has the fields of a row.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{Kind as Dtype, Tensor};

use super::advantages::{Advantages, Estimator};
use super::aggregate::Denominators;
use super::correction::{Importance, Mismatch, Rejection};
use super::custom;
use super::objective::{FUNCTION, Inputs, PolicyLoss, Unit};
use super::options::{names, refuse_rest, table, take};
use super::rewards::{Grouping, KlPenalty, Method, OverlongPenalty, RewardShaping, Shaping, shape};
use super::rows::{Batch, StepRow};
use crate::config::{Input, LossGraph};
use crate::error::{Error, Kind, Result};
use crate::native::{self, load_cuda_torch};

/// Options of every estimator, in addition to its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct SharedOptions {
    /// Failed trajectories count like others.
    include_failures: bool,
    /// See [`Shaping`].
    prime: bool,
    reward_grouping: Option<Grouping>,
    reward_method: Option<Method>,
    reward_scale: Option<f64>,
    kl_penalty: Option<KlPenalty>,
    overlong: Option<OverlongPenalty>,
}

/// Options of every loss, in addition to its own and [`super::objective::Terms`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Corrections {
    importance: Option<Importance>,
    rejection: Option<Rejection>,
    /// The sequence of both.
    correction_over: Option<Unit>,
}

/// Converts whole numbers to integers (scripts have only floats), and empty tables inside to empty
/// lists.
fn integral(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => Value::from(float as i64),
            _ => value.clone(),
        },
        Value::Array(list) => Value::Array(list.iter().map(integral).collect()),
        Value::Object(table) => {
            let inside = |(name, value): (&String, &Value)| {
                let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
                (name.clone(), if empty { Value::Array(Vec::new()) } else { integral(value) })
            };
            Value::Object(table.iter().map(inside).collect())
        }
        other => other.clone(),
    }
}

/// Advantages (and a critic's targets) of `rows` by the estimator `name`. `options` are the options
/// of the estimator, and `include_failures`, `prime`, `reward_grouping` with `reward_method`,
/// `reward_scale`, `kl_penalty = { coef, kind }`, `overlong = { longest, buffer, factor }`.
///
/// # Errors
/// Errors of [`Estimator::new`], [`Estimator::estimate`] and [`Advantages::finite`].
pub fn advantages(name: &str, rows: &[StepRow], options: &Value) -> Result<Advantages> {
    let mut rest = table(name, &integral(options))?;
    let shared: SharedOptions = take(name, &mut rest)?;
    let estimator = Estimator::new(name, &Value::Object(rest))?;
    let normalize = match (shared.reward_grouping, shared.reward_method) {
        (Some(grouping), Some(method)) => Some((grouping, method)),
        (None, None) => None,
        _ => {
            let message = format!("`{name}`: `reward_grouping` and `reward_method` go together");
            return Err(Error::new(Kind::Usage, message));
        }
    };
    let SharedOptions { prime, overlong, reward_scale: scale, kl_penalty: kl, .. } = shared;
    let settings = Shaping { overlong, prime, normalize, scale, running: None };
    settings.check()?;
    let shaped = shape(rows, &RewardShaping { settings, kl }, shared.include_failures)?;
    let advantages = estimator.estimate(&shaped, shared.include_failures)?;
    advantages.finite(&shaped)?;
    Ok(advantages)
}

/// A loss of rows, as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainLoss {
    pub loss: f64,
    /// Its gradient with respect to `logp`, shaped like the rows; exactly 0 where nothing was
    /// sampled.
    pub gradient: Vec<Vec<f64>>,
    pub metrics: BTreeMap<String, f64>,
}

/// The loss of a Lua function over `rows`, in the form of [`loss`]. `loss_agg` in `options` selects
/// the aggregation of a loss for each token; `importance`, `rejection` and `correction_over` are as
/// in [`loss`].
///
/// # Errors
/// As [`loss`], and errors of the evaluation of the graph.
pub fn custom_loss(graph: &LossGraph, rows: &[StepRow], options: &Value) -> Result<PlainLoss> {
    let mut rest = table(FUNCTION, &integral(options))?;
    let corrections: Corrections = take(FUNCTION, &mut rest)?;
    let loss_agg = rest.shift_remove("loss_agg").map(|value| ("loss_agg".to_owned(), value));
    refuse_rest(FUNCTION, &rest, &["loss_agg", "importance", "rejection", "correction_over"].map(str::to_owned))?;
    let objective = PolicyLoss::of_graph(Arc::new(graph.clone()), &loss_agg.into_iter().collect())?;
    report(&objective, rows, corrections)
}

/// The loss `name` of `rows`, which have `logp`, `logp_old` and `advantages`. All rows together are
/// one mini-batch; failed trajectories are excluded. `options` are the options of
/// [`PolicyLoss::new`], and `importance`, `rejection` (over rows with `logp_rollout`) with
/// `correction_over`.
///
/// # Errors
/// Errors of [`PolicyLoss::new`] and [`PolicyLoss::compute`]; [`Kind::Usage`] if a row lacks an
/// input of the loss; [`Kind::Numeric`] for a loss or a gradient that is NaN or infinite.
pub fn loss(name: &str, rows: &[StepRow], options: &Value) -> Result<PlainLoss> {
    let mut rest = table(name, &integral(options))?;
    let corrections: Corrections = take(name, &mut rest)?;
    let objective = PolicyLoss::read(name, &mut rest)?;
    refuse_rest(name, &rest, &objective.options())?;
    report(&objective, rows, corrections)
}

fn report(
    objective: &PolicyLoss,
    rows: &[StepRow],
    Corrections { importance, rejection, correction_over }: Corrections,
) -> Result<PlainLoss> {
    let graph = objective.formula.graph();
    let reads = |input: Input| graph.is_some_and(|graph| graph.reads(input));
    let batch = Batch::new(rows, false)?;
    let flat = Flat::new(&batch);
    let list = |what: &str, list: fn(&StepRow) -> &Vec<f64>| flat.gather(&batch, what, list);
    let logp = list("logp", |row| &row.logp)?.set_requires_grad(true);
    let logp_old = list("logp_old", |row| &row.logp_old)?;
    let advantages = list("advantages", |row| &row.advantages)?;
    let wants_reference = objective.terms.kl_coef > 0.0 || reads(Input::LogpRef);
    let logp_ref = if wants_reference { Some(list("logp_ref", |row| &row.logp_ref)?) } else { None };
    let wants_entropy = objective.terms.entropy_coef != 0.0 || reads(Input::Entropy);
    let entropy = if wants_entropy { Some(list("entropy", |row| &row.entropy)?) } else { None };
    let (trajectory, step) = (Tensor::f_from_slice(&flat.trajectory)?, Tensor::f_from_slice(&flat.step)?);
    let mut metrics = BTreeMap::new();
    let mut weights = None;
    if importance.is_some() || rejection.is_some() {
        let log_ratio = logp_old.f_sub(&list("logp_rollout", |row| &row.logp_rollout)?)?;
        let sequence = match correction_over.unwrap_or(Unit::Trajectory) {
            Unit::Trajectory => &trajectory,
            Unit::Step => &step,
        };
        let mut all = log_ratio.f_ones_like()?;
        if let Some(importance) = importance {
            all = all.f_mul(&importance.weights(&log_ratio, sequence)?)?;
        }
        if let Some(rejection) = rejection {
            let kept = rejection.mask(&log_ratio, sequence)?;
            metrics.insert("rejected".to_owned(), 1.0 - mean(&kept)?);
            all = all.f_mul(&kept)?;
        }
        let Mismatch { k1, k3, largest, chi2 } = Mismatch::of(&log_ratio)?;
        let measured = [("mismatch_k1", k1), ("mismatch_k3", k3), ("mismatch_max", largest), ("mismatch_chi2", chi2)];
        metrics.extend(measured.map(|(name, value)| (name.to_owned(), value)));
        metrics.insert("weight".to_owned(), mean(&all)?);
        weights = Some(all);
    }
    let (group, rewards) = (Tensor::f_from_slice(&flat.group)?, Tensor::f_from_slice(&flat.rewards)?);
    let units = custom::Units::from_tokens(&flat.step, &flat.trajectory, &flat.group);
    let inputs = Inputs {
        logp: &logp,
        logp_old: &logp_old,
        advantages: &advantages,
        logp_ref: logp_ref.as_ref(),
        entropy: entropy.as_ref(),
        trajectory: &trajectory,
        step: &step,
        sequences: flat.sequences(),
        weights: weights.as_ref(),
        selected: None,
        group: &group,
        rewards: Some(&rewards),
        units: Some(&units),
    };
    let sequences = match objective.terms.seq {
        Unit::Trajectory => &flat.trajectory,
        Unit::Step => &flat.step,
    };
    let denominators = Denominators::from_tokens(sequences).with_horizon(objective.terms.horizon);
    let computed = objective.compute(&inputs, &denominators)?;
    if let (Some(graph), Some(numbers)) = (graph, &computed.numbers) {
        let finite = f64::try_from(&computed.loss)?.is_finite();
        let read = native::read_numbers(&numbers.on_device)?;
        let logged = custom::Numbers::read(graph, numbers.tokens, finite, &read)?;
        let names = graph.logged.iter().map(|(name, _)| name.clone());
        metrics.extend(names.zip(logged.into_iter().map(custom::LoggedValue::value)));
    }
    let ratios = computed.ratios.read()?;
    let mut named = vec![
        ("policy_loss", f64::try_from(&computed.policy)?),
        ("approx_kl_k1", ratios.approx_kl_k1()),
        ("approx_kl_k3", ratios.approx_kl_k3()),
        ("ratio_min", ratios.ratio_min),
        ("ratio_max", ratios.ratio_max),
    ];
    if objective.reports_clip() {
        named.push(("clipfrac_low", ratios.clipfrac_low()));
        named.push(("clipfrac_high", ratios.clipfrac_high()));
        named.push(("clipfrac_dual", ratios.clipfrac_dual()));
    }
    metrics.extend(named.into_iter().map(|(name, value)| (name.to_owned(), value)));
    for (name, value) in [("kl", &computed.kl), ("entropy", &computed.entropy)] {
        if let Some(value) = value {
            metrics.insert(name.to_owned(), f64::try_from(value)?);
        }
    }
    if let Some(chosen) = objective.select(&inputs)? {
        metrics.insert("selected".to_owned(), mean(&chosen)?);
    }
    let value = f64::try_from(&computed.loss)?;
    let gradient = if flat.places.is_empty() {
        Vec::new()
    } else if !computed.loss.requires_grad() {
        vec![0.0; flat.places.len()]
    } else {
        load_cuda_torch();
        computed.loss.f_backward()?;
        // A loss of entropy alone has no gradient for the log-probabilities.
        let gradient = logp.grad();
        if gradient.defined() { Vec::<f64>::try_from(gradient)? } else { vec![0.0; flat.places.len()] }
    };
    if let Some(bad) = std::iter::once(&value).chain(&gradient).find(|number| !number.is_finite()) {
        return Err(Error::new(Kind::Numeric, format!("the loss or its gradient is {bad}"))
            .hint("check the size of the advantages and of logp - logp_old"));
    }
    Ok(PlainLoss { loss: value, gradient: flat.scatter(rows, &gradient), metrics })
}

/// The critic's loss of plain lists, see [`super::losses::value_loss`]: the mean over all entries.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueReport {
    pub loss: f64,
    /// With respect to `values`.
    pub gradient: Vec<f64>,
    /// Share of entries where the clipped term is the maximum.
    pub clip_frac: f64,
}

/// The critic's loss: `values` now, `values_old` before the update, `returns` its targets;
/// `options.clip` keeps a value within that distance of the old one, and is off without it.
///
/// # Errors
/// [`Kind::Usage`] for lists of different length and for options that do not exist;
/// [`Kind::Numeric`] for NaN and infinity.
pub fn value_loss(values: &[f64], values_old: &[f64], returns: &[f64], options: &Value) -> Result<ValueReport> {
    let mut rest = table("value_loss", &integral(options))?;
    let ValueOptions { clip } = take("value_loss", &mut rest)?;
    refuse_rest("value_loss", &rest, &names(&ValueOptions::default()))?;
    if values.len() != values_old.len() || values.len() != returns.len() {
        let message = format!("{} values, {} old ones and {} returns", values.len(), values_old.len(), returns.len());
        return Err(Error::new(Kind::Usage, message).hint("the three lists have one entry for each position"));
    }
    if clip.is_some_and(|clip| !(clip > 0.0 && clip.is_finite())) {
        return Err(Error::new(Kind::Usage, "option `clip` of `value_loss` is a number above 0"));
    }
    if values.is_empty() {
        return Ok(ValueReport { loss: 0.0, gradient: Vec::new(), clip_frac: 0.0 });
    }
    let prediction = Tensor::f_from_slice(values)?.set_requires_grad(true);
    let (loss, clipped) = super::losses::value_loss(
        &prediction,
        &Tensor::f_from_slice(values_old)?,
        &Tensor::f_from_slice(returns)?,
        clip,
    )?;
    let (loss, clip_frac) = (loss.f_mean(Dtype::Double)?, f64::try_from(clipped)? / values.len() as f64);
    load_cuda_torch();
    loss.f_backward()?;
    let report = ValueReport { loss: f64::try_from(&loss)?, gradient: Vec::try_from(prediction.grad())?, clip_frac };
    if !report.loss.is_finite() {
        return Err(Error::new(Kind::Numeric, format!("the critic's loss is {}", report.loss)));
    }
    Ok(report)
}

/// The entropy, nats, of the distribution that each list of logits gives at `temperature`.
///
/// # Errors
/// [`Kind::Usage`] for an empty list or a temperature that is not above 0; [`Kind::Numeric`] for
/// NaN and infinity.
pub fn entropy(logits: &[Vec<f64>], temperature: f64) -> Result<Vec<f64>> {
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(Error::new(Kind::Usage, format!("`temperature` is a number above 0, not {temperature}")));
    }
    let one = |(index, logits): (usize, &Vec<f64>)| {
        let at = |error: Error| error.at(format!("list {}", index + 1));
        if logits.is_empty() {
            return Err(at(Error::new(Kind::Usage, "there are no logits")));
        }
        if let Some(bad) = logits.iter().find(|logit| !logit.is_finite()) {
            return Err(at(Error::new(Kind::Numeric, format!("a logit is {bad}"))));
        }
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let scaled: Vec<f64> = logits.iter().map(|logit| (logit - largest) / temperature).collect();
        let sum: f64 = scaled.iter().map(|x| x.exp()).sum();
        Ok(sum.ln() - scaled.iter().map(|x| x * x.exp()).sum::<f64>() / sum)
    };
    logits.iter().enumerate().map(one).collect()
}

/// Options of [`value_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ValueOptions {
    clip: Option<f64>,
}

fn mean(values: &Tensor) -> Result<f64> {
    if values.numel() == 0 {
        return Ok(0.0);
    }
    Ok(f64::try_from(values.f_to_kind(Dtype::Double)?.f_mean(Dtype::Double)?)?)
}

/// The sampled tokens of the compared rows, one after the other.
struct Flat {
    /// Row and position in it.
    places: Vec<(usize, usize)>,
    trajectory: Vec<i64>,
    step: Vec<i64>,
    group: Vec<i64>,
    /// The total reward of each token's trajectory.
    rewards: Vec<f64>,
}

impl Flat {
    fn new(batch: &Batch<'_>) -> Self {
        let (mut places, mut trajectory, mut step) = (Vec::new(), Vec::new(), Vec::new());
        let (mut group, mut rewards) = (Vec::new(), Vec::new());
        let mut groups: BTreeMap<u64, i64> = BTreeMap::new();
        let mut steps = 0;
        for (number, path) in batch.counted().enumerate() {
            let next = groups.len() as i64;
            let next_group = *groups.entry(path.group).or_insert(next);
            for &i in &path.rows {
                for k in (0..batch.rows[i].mask.len()).filter(|&k| batch.rows[i].mask[k]) {
                    places.push((i, k));
                    trajectory.push(number as i64);
                    step.push(steps);
                    group.push(next_group);
                    rewards.push(path.total);
                }
                steps += 1;
            }
        }
        Self { places, trajectory, step, group, rewards }
    }

    /// The numbers of trajectories, steps and groups are below it.
    fn sequences(&self) -> i64 {
        let all = [&self.trajectory, &self.step, &self.group];
        all.into_iter().flatten().max().map_or(0, |limit| limit + 1)
    }

    /// The entries of a list at those tokens; one number applies to all tokens of a row.
    fn gather(&self, batch: &Batch<'_>, what: &str, list: impl Fn(&StepRow) -> &Vec<f64>) -> Result<Tensor> {
        let mut values = Vec::with_capacity(self.places.len());
        for &(i, k) in &self.places {
            let row = &batch.rows[i];
            let numbers = list(row);
            let value = if numbers.len() == 1 { numbers.first() } else { numbers.get(k) };
            values.push(*value.ok_or_else(|| {
                Error::new(Kind::Usage, format!("the loss needs `{what}` for every token"))
                    .in_step(row.trajectory, row.step)
            })?);
        }
        Ok(Tensor::f_from_slice(&values)?)
    }

    fn scatter(&self, rows: &[StepRow], values: &[f64]) -> Vec<Vec<f64>> {
        let mut all: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.mask.len()]).collect();
        for (&(i, k), value) in self.places.iter().zip(values) {
            all[i][k] = *value;
        }
        all
    }
}
