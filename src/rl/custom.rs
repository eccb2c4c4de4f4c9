//! A policy loss in Lua: the evaluation of a [`LossGraph`] over the sampled tokens of a
//! micro-batch.
//!
//! Every denominator is for the whole mini-batch, as in [`super::aggregate`], so the shares of
//! micro-batches add up to the loss of the mini-batch. The losses in [`super::losses`] have the
//! same operations: equal formulas give bitwise equal results.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::aggregate::{Denominators, aggregate};
use super::losses::{LOG_RATIO_LIMIT, LuaLoss, OPEN, RatioSums};
use super::objective::{Inputs, MicroBatchLoss, PolicyLoss};
use super::pack::Row;
use super::segments::Segments;
use crate::algorithms::Clipped;
use crate::config::{Binary, Input, LossGraph, Op, Operand, Over, Shape, Unary};
use crate::error::{Error, Kind, Result};
use crate::native::upload;

/// The denominators of a mini-batch, for each unit that a graph may name.
#[derive(Clone, Debug)]
pub struct Units {
    step: Denominators,
    trajectory: Denominators,
    group: Denominators,
}

impl Units {
    /// Counts a whole mini-batch.
    pub fn of(rows: &[Row]) -> Self {
        let of_group = |row: &Row| std::iter::repeat_n(row.group as i64, row.sampled());
        let tokens: Vec<i64> = rows.iter().flat_map(of_group).collect();
        Self {
            step: Denominators::of_steps(rows),
            trajectory: Denominators::of(rows),
            group: Denominators::from_tokens(&tokens),
        }
    }

    /// From the step, trajectory and group of every token of a whole mini-batch.
    pub fn from_tokens(step: &[i64], trajectory: &[i64], group: &[i64]) -> Self {
        Self {
            step: Denominators::from_tokens(step),
            trajectory: Denominators::from_tokens(trajectory),
            group: Denominators::from_tokens(group),
        }
    }

    fn get(&self, over: Over) -> &Denominators {
        match over {
            Over::Step => &self.step,
            Over::Trajectory => &self.trajectory,
            Over::Group => &self.group,
        }
    }
}

/// The number of each token's sequence, `[N]` i64.
fn sequence<'a>(inputs: &Inputs<'a>, over: Over) -> &'a Tensor {
    match over {
        Over::Step => inputs.step,
        Over::Trajectory => inputs.trajectory,
        Over::Group => inputs.group,
    }
}

fn denominators_of<'a>(inputs: &Inputs<'a>, over: Over) -> Result<&'a Denominators> {
    inputs.units.map(|units| units.get(over)).ok_or_else(|| lacks("denominators"))
}

fn lacks(what: &str) -> Error {
    Error::new(Kind::Internal, format!("the loss needs {what}, which its caller does not give"))
}

/// A logged value in a micro-batch: its sum, and the number of tokens of its mean (0: it is a sum).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoggedValue {
    pub sum: f64,
    pub tokens: usize,
}

impl LoggedValue {
    /// Adds another micro-batch.
    pub fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.tokens += other.tokens;
    }

    /// The mean over tokens, or the sum of shares.
    pub fn value(self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }
}

/// Numbers of a micro-batch that the host reads after the update, so that a micro-batch does not
/// wait for the device.
#[derive(Debug)]
pub struct Numbers {
    /// The sums of the logged values; of every value that is not a boolean, the number of entries
    /// that are NaN or infinite. Scalars, as many in every micro-batch.
    pub on_device: Vec<Tensor>,
    /// Number of sampled tokens.
    pub tokens: usize,
}

/// This micro-batch's share of a loss in Lua, with its numbers if it is the recipe's own. A graph
/// whose result is a loss per token is weighted and aggregated as `objective` says; the KL and
/// entropy terms of `objective` are added either way.
///
/// # Errors
/// [`Kind::Usage`] for a missing input.
pub(super) fn compute(
    loss: &LuaLoss,
    objective: &PolicyLoss,
    inputs: &Inputs<'_>,
    denominators: &Denominators,
) -> Result<MicroBatchLoss> {
    let graph = &loss.graph;
    let values = evaluate(graph, inputs, false)?;
    let share = of_values(graph, &values, objective, inputs, denominators)?;
    if loss.file.is_some() {
        return Ok(share);
    }
    let _guard = no_grad_guard();
    let sums = graph.logged.iter().map(|(_, node)| Ok(values[*node].f_sum(Dtype::Double)?));
    let counts = graph.nodes.iter().zip(&values).filter(|(node, _)| node.shape != Shape::Booleans);
    let counts = counts.map(|(_, value)| Ok(value.f_isfinite()?.f_logical_not()?.f_sum(Dtype::Double)?));
    let on_device = sums.chain(counts).collect::<Result<_>>()?;
    Ok(MicroBatchLoss { numbers: Some(Numbers { on_device, tokens: inputs.logp.numel() }), ..share })
}

/// The tokens that the selection of a graph chooses among all tokens of a mini-batch, `[N]` bool.
pub(super) fn select(graph: &LossGraph, inputs: &Inputs<'_>) -> Result<Option<Tensor>> {
    let _guard = no_grad_guard();
    let values = evaluate(graph, inputs, true)?;
    let count = inputs.logp.numel();
    let at_least_one = |share: f64| ((share * count as f64) as usize).max(1);
    let on_host = |operand: Operand, kind: Dtype| -> Result<Tensor> {
        let value = match operand {
            Operand::Node(node) => values[node].shallow_clone(),
            Operand::Number(number) => inputs.logp_old.f_full_like(number)?,
        };
        Ok(value.f_to_kind(kind)?.f_to_device(tch::Device::Cpu)?)
    };
    let chosen = match graph.selection().map(|node| &graph.nodes[node].op) {
        Some(Op::Largest(of, share)) => {
            let values: Vec<f64> = Vec::try_from(on_host(*of, Dtype::Double)?)?;
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
            order.truncate(at_least_one(*share));
            order
        }
        Some(Op::Draw(of, share, seed)) => {
            let holds: Vec<bool> = Vec::try_from(on_host(*of, Dtype::Bool)?)?;
            let mut candidates: Vec<usize> = (0..count).filter(|&i| holds[i]).collect();
            candidates.sort_by_key(|&i| scramble(seed ^ scramble(i as u64)));
            candidates.truncate(at_least_one(*share));
            candidates
        }
        _ => return Ok(None),
    };
    let mut mask = vec![false; count];
    for i in chosen {
        mask[i] = true;
    }
    upload(&Tensor::f_from_slice(&mask)?, inputs.logp.device()).map(Some)
}

/// The finaliser of SplitMix64: a pseudo-random order that is the same on every machine.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The loss from the values of the nodes.
fn of_values(
    graph: &LossGraph,
    values: &[Tensor],
    objective: &PolicyLoss,
    inputs: &Inputs<'_>,
    denominators: &Denominators,
) -> Result<MicroBatchLoss> {
    let ratios = ratios(graph, values, inputs)?;
    let result = graph.nodes.get(graph.result).map(|node| node.shape);
    let value = values.get(graph.result).ok_or_else(|| Error::new(Kind::Internal, "the loss has no result"))?;
    match result {
        Some(Shape::Tokens) => objective.of_tokens(value.shallow_clone(), ratios, inputs, denominators),
        _ => objective.of_total(value, ratios, inputs, denominators),
    }
}

/// Statistics of the ratio that the graph names, or of the ratio of each token.
fn ratios(graph: &LossGraph, values: &[Tensor], inputs: &Inputs<'_>) -> Result<RatioSums> {
    let _guard = no_grad_guard();
    let log_ratio = inputs.logp.f_sub(inputs.logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
    let mut clip = OPEN;
    let ratio = match &graph.ratio {
        Some(of) => values[of.node].shallow_clone(),
        None => log_ratio.f_exp()?,
    };
    match graph.ratio.map(|of| of.clipped) {
        Some(Clipped::Tokens { low, high }) => {
            return RatioSums::with(&log_ratio, &ratio, &values[low], &values[high], None);
        }
        Some(Clipped::Range { low, high }) => (clip.low, clip.high) = (low, high),
        Some(Clipped::No) | None => {}
    }
    RatioSums::of(&log_ratio, &ratio, inputs.advantages, clip)
}

/// The values of all nodes. In a micro-batch, nodes for the selection alone are 0; in the whole
/// mini-batch (`selecting`), those after the selection.
fn evaluate(graph: &LossGraph, inputs: &Inputs<'_>, selecting: bool) -> Result<Vec<Tensor>> {
    let selection = graph.selection();
    let skipped = if selection.is_some() { graph.only_for_selection() } else { Vec::new() };
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        let skip = |selection| if selecting { index >= selection } else { skipped[index] };
        let skip = selection.is_some_and(skip);
        let value = if skip {
            Tensor::f_zeros([0_i64; 0], (inputs.logp.kind(), inputs.logp.device()))?
        } else if selection == Some(index) {
            inputs.selected.ok_or_else(|| lacks("a selection"))?.shallow_clone()
        } else {
            value_of(&node.op, &values, inputs)?
        };
        values.push(value);
    }
    Ok(values)
}

impl Numbers {
    /// The logged values of a micro-batch with `tokens` sampled tokens, from the numbers `read` on
    /// the host.
    ///
    /// # Errors
    /// [`Kind::Numeric`] if the loss is not finite; it names the line of the Lua function with the
    /// first result that is NaN or infinite.
    pub fn read(graph: &LossGraph, tokens: usize, loss_is_finite: bool, read: &[f64]) -> Result<Vec<LoggedValue>> {
        let (sums, counts) = read.split_at(graph.logged.len().min(read.len()));
        let nodes = graph.nodes.iter().filter(|node| node.shape != Shape::Booleans);
        if let (false, Some((node, _))) = (loss_is_finite, nodes.zip(counts).find(|(_, count)| **count > 0.0)) {
            let what = match &node.op {
                Op::Input(input) => format!("b.{} has a value that is NaN or infinite", input.name()),
                _ => format!("a value that is NaN or infinite is computed at {}", node.location),
            };
            let error = Error::new(Kind::Numeric, format!("the loss is not finite: {what}"));
            return Err(error.hint("this optimiser step was not taken; bound the operation with :clamp(low, high)"));
        }
        let one = |((_, node), &sum): (&(String, usize), &f64)| match graph.nodes[*node].shape {
            Shape::Total => LoggedValue { sum, tokens: 0 },
            _ => LoggedValue { sum, tokens },
        };
        Ok(graph.logged.iter().zip(sums).map(one).collect())
    }
}

fn value_of(op: &Op, values: &[Tensor], inputs: &Inputs<'_>) -> Result<Tensor> {
    let like = (inputs.logp.kind(), inputs.logp.device());
    let get = |operand: &Operand| -> Result<Tensor> {
        match operand {
            Operand::Node(node) => Ok(values[*node].shallow_clone()),
            Operand::Number(number) => Ok(Tensor::f_full([0_i64; 0], *number, like)?),
        }
    };
    let wide = |operand: &Operand| -> Result<Tensor> { Ok(get(operand)?.f_expand_as(inputs.logp)?) };
    let segments = |over: Over| Segments::new(sequence(inputs, over), inputs.sequences);
    Ok(match op {
        Op::Input(input) => read(*input, inputs)?,
        Op::Unary(function, of) => {
            let of = get(of)?;
            match function {
                Unary::Neg => of.f_neg()?,
                Unary::Exp => of.f_exp()?,
                Unary::Log => of.f_log()?,
                Unary::Sqrt => of.f_sqrt()?,
                Unary::Abs => of.f_abs()?,
                Unary::Sign => of.f_sign()?,
                Unary::Sigmoid => of.f_sigmoid()?,
                Unary::LogSigmoid => of.f_log_sigmoid()?,
                Unary::Detach => of.f_detach()?,
            }
        }
        Op::Not(of) => get(of)?.f_logical_not()?,
        Op::Binary(function, a, b) => {
            let (a, b) = (get(a)?, get(b)?);
            match function {
                Binary::Add => a.f_add(&b)?,
                Binary::Sub => a.f_sub(&b)?,
                Binary::Mul => a.f_mul(&b)?,
                Binary::Div => a.f_div(&b)?,
                Binary::Min => a.f_minimum(&b)?,
                Binary::Max => a.f_maximum(&b)?,
                Binary::Lt => a.f_lt_tensor(&b)?,
                Binary::Le => a.f_le_tensor(&b)?,
                Binary::Gt => a.f_gt_tensor(&b)?,
                Binary::Ge => a.f_ge_tensor(&b)?,
                Binary::Eq => a.f_eq_tensor(&b)?,
                Binary::Ne => a.f_ne_tensor(&b)?,
                Binary::And => a.f_logical_and(&b)?,
                Binary::Or => a.f_logical_or(&b)?,
            }
        }
        Op::Power(of, exponent) => get(of)?.f_pow_tensor_scalar(*exponent)?,
        Op::Clamp(of, low, high) => match (low, high) {
            (Some(low), Some(high)) => get(of)?.f_clamp(*low, *high)?,
            (Some(low), None) => get(of)?.f_clamp_min(*low)?,
            (None, Some(high)) => get(of)?.f_clamp_max(*high)?,
            (None, None) => get(of)?,
        },
        Op::Where(condition, a, b) => get(a)?.f_where_self(&get(condition)?, &get(b)?)?,
        Op::SumOver(of, over) => {
            let segments = segments(*over);
            segments.spread(&segments.sum(&wide(of)?)?)?
        }
        Op::MeanOver(of, over) => {
            let segments = segments(*over);
            segments.spread(&segments.mean(&wide(of)?)?)?
        }
        Op::Count(over) => {
            let lengths =
                upload(&Tensor::f_from_slice(&denominators_of(inputs, *over)?.lengths)?.f_to_kind(like.0)?, like.1)?;
            lengths.f_index_select(0, sequence(inputs, *over))?
        }
        Op::Total(of, agg, over) => {
            aggregate(&wide(of)?, sequence(inputs, *over), *agg, denominators_of(inputs, *over)?)?
        }
        Op::Sum(of) => wide(of)?.f_sum(None)?,
        Op::Covariance(a, b) => centred(&wide(a)?)?.f_mul(&centred(&wide(b)?)?)?,
        Op::Largest(..) | Op::Draw(..) => return Err(lacks("a selection")),
    })
}

/// The difference from the mean of all tokens, in f64, without gradient.
fn centred(values: &Tensor) -> Result<Tensor> {
    let values = values.f_detach()?.f_to_kind(Dtype::Double)?;
    Ok(values.f_sub(&values.f_mean(Dtype::Double)?)?)
}

fn read(input: Input, inputs: &Inputs<'_>) -> Result<Tensor> {
    let there = match input {
        Input::Logp => Some(inputs.logp),
        Input::LogpOld => Some(inputs.logp_old),
        Input::LogpRef => inputs.logp_ref,
        Input::Advantages => Some(inputs.advantages),
        Input::Entropy => inputs.entropy,
        Input::Weights if inputs.weights.is_none() => return Ok(inputs.logp_old.f_ones_like()?),
        Input::Weights => inputs.weights,
        Input::Rewards => inputs.rewards,
    };
    let missing = || Error::new(Kind::Usage, format!("the loss reads b.{}, which is not known here", input.name()));
    there.map(Tensor::shallow_clone).ok_or_else(missing)
}
