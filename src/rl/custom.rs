//! A recipe's own policy loss: the evaluation of a [`LossGraph`] over the sampled tokens of a
//! micro-batch.
//!
//! Every denominator is that of the whole mini-batch, as in [`super::aggregate`], so the shares of
//! micro-batches add up to the loss of the mini-batch. The operations are those of the losses in
//! [`super::losses`]: equal formulas give bitwise equal results.

use tch::{Kind as Dtype, Tensor, no_grad_guard};

use super::aggregate::{Denominators, aggregate};
use super::losses::{Clip, LOG_RATIO_LIMIT, RatioSums};
use super::objective::{Inputs, MicroBatchLoss, Objective};
use super::pack::Row;
use super::segments::Segments;
use crate::config::{Binary, Input, LossGraph, Op, Operand, Over, Shape, Unary};
use crate::error::{Error, Kind, Result};
use crate::native::{self, upload};

/// The denominators of a mini-batch, for each unit that a graph may name.
#[derive(Clone, Debug)]
pub struct Units {
    step: Denominators,
    trajectory: Denominators,
    group: Denominators,
}

impl Units {
    /// Counts a whole mini-batch; `groups` has the group of each row.
    pub fn of(rows: &[Row], groups: &[usize]) -> Self {
        let of_group = |(row, &group): (&Row, &usize)| std::iter::repeat_n(group as i64, row.sampled());
        let tokens: Vec<i64> = rows.iter().zip(groups).flat_map(of_group).collect();
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

/// The sampled tokens of a micro-batch, with the inputs that only custom losses read.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    pub inputs: Inputs<'a>,
    /// `[N]` i64: the group of each.
    pub group: &'a Tensor,
    /// `[N]`: the total reward of each token's trajectory, if the graph reads it.
    pub rewards: Option<&'a Tensor>,
}

/// A logged value in a micro-batch: its sum, and the number of tokens of its mean (0: it is a sum).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logged {
    pub sum: f64,
    pub tokens: usize,
}

impl Logged {
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

/// [`share`], with its numbers read from the device: the logged values in the order of
/// [`LossGraph::logged`].
///
/// # Errors
/// As [`share`] and [`Numbers::read`].
pub fn compute(
    graph: &LossGraph,
    objective: &Objective,
    tokens: &Tokens<'_>,
    denominators: &Denominators,
    units: &Units,
) -> Result<(MicroBatchLoss, Vec<Logged>)> {
    let (computed, numbers) = share(graph, objective, tokens, denominators, units)?;
    let finite = f64::try_from(&computed.loss)?.is_finite();
    let logged = numbers.read(graph, finite, &native::read_numbers(&numbers.on_device)?)?;
    Ok((computed, logged))
}

/// Numbers of a micro-batch that the host reads after the update, so that a micro-batch does not
/// wait for the device.
#[derive(Debug)]
pub struct Numbers {
    /// The sums of the logged values; of every value that is not a boolean, the number of entries
    /// that are NaN or infinite. Scalars, as many in every micro-batch.
    pub on_device: Vec<Tensor>,
    tokens: usize,
}

/// This micro-batch's share of the loss that `graph` describes, and its numbers. A graph whose
/// result is a loss per token is weighted and aggregated as `objective` says; the KL and entropy
/// terms of `objective` are added either way.
///
/// # Errors
/// [`Kind::Usage`] for a missing input.
pub fn share(
    graph: &LossGraph,
    objective: &Objective,
    tokens: &Tokens<'_>,
    denominators: &Denominators,
    units: &Units,
) -> Result<(MicroBatchLoss, Numbers)> {
    let inputs = &tokens.inputs;
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let value = evaluate(&node.op, &values, tokens, units)?;
        values.push(value);
    }
    let log_ratio = inputs.logp.f_detach()?.f_sub(inputs.logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
    let open = Clip { low: f64::INFINITY, high: f64::INFINITY, dual: None };
    let ratios = RatioSums::of(&log_ratio, &log_ratio.f_exp()?, inputs.advantages, open)?;
    let result = graph.nodes.get(graph.result).map(|node| node.shape);
    let value = values.get(graph.result).ok_or_else(|| Error::new(Kind::Internal, "the loss has no result"))?;
    let value = match result {
        Some(Shape::Tokens) => objective.of_tokens(value.shallow_clone(), ratios, inputs, denominators)?,
        _ => objective.of_total(value, ratios, inputs, denominators)?,
    };
    let _guard = no_grad_guard();
    let sums = graph.logged.iter().map(|(_, node)| Ok(values[*node].f_sum(Dtype::Double)?));
    let counts = graph.nodes.iter().zip(&values).filter(|(node, _)| node.shape != Shape::Booleans);
    let counts = counts.map(|(_, value)| Ok(value.f_isfinite()?.f_logical_not()?.f_sum(Dtype::Double)?));
    let on_device = sums.chain(counts).collect::<Result<_>>()?;
    Ok((value, Numbers { on_device, tokens: inputs.logp.numel() }))
}

impl Numbers {
    /// The logged values, from the numbers `read` on the host.
    ///
    /// # Errors
    /// [`Kind::Numeric`] if the loss is not finite; it names the line of the Lua function with the
    /// first result that is NaN or infinite.
    pub fn read(&self, graph: &LossGraph, loss_is_finite: bool, read: &[f64]) -> Result<Vec<Logged>> {
        let (sums, counts) = read.split_at(graph.logged.len().min(read.len()));
        let nodes = graph.nodes.iter().filter(|node| node.shape != Shape::Booleans);
        if let (false, Some((node, _))) = (loss_is_finite, nodes.zip(counts).find(|(_, count)| **count > 0.0)) {
            let what = match &node.op {
                Op::Input(input) => format!("b.{} has a value that is NaN or infinite", input.name()),
                _ => format!("a value that is NaN or infinite is computed at {}", node.place),
            };
            let error = Error::new(Kind::Numeric, format!("the loss is not finite: {what}"));
            return Err(error.hint("this optimiser step was not taken; bound the operation with :clamp(low, high)"));
        }
        let one = |((_, node), &sum): (&(String, usize), &f64)| match graph.nodes[*node].shape {
            Shape::Total => Logged { sum, tokens: 0 },
            _ => Logged { sum, tokens: self.tokens },
        };
        Ok(graph.logged.iter().zip(sums).map(one).collect())
    }
}

fn evaluate(op: &Op, values: &[Tensor], tokens: &Tokens<'_>, units: &Units) -> Result<Tensor> {
    let inputs = &tokens.inputs;
    let like = (inputs.logp.kind(), inputs.logp.device());
    let get = |operand: &Operand| -> Result<Tensor> {
        match operand {
            Operand::Node(node) => Ok(values[*node].shallow_clone()),
            Operand::Number(number) => Ok(Tensor::f_full([0_i64; 0], *number, like)?),
        }
    };
    let wide = |operand: &Operand| -> Result<Tensor> { Ok(get(operand)?.f_expand_as(inputs.logp)?) };
    let segments = |over: Over| Segments::new(sequence(tokens, over), inputs.sequences);
    Ok(match op {
        Op::Input(input) => read(*input, tokens)?,
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
            let lengths = upload(&Tensor::f_from_slice(&units.get(*over).lengths)?.f_to_kind(like.0)?, like.1)?;
            lengths.f_index_select(0, sequence(tokens, *over))?
        }
        Op::Total(of, agg, over) => aggregate(&wide(of)?, sequence(tokens, *over), *agg, units.get(*over))?,
        Op::Sum(of) => wide(of)?.f_sum(None)?,
    })
}

/// The number of each token's sequence, `[N]` i64.
fn sequence<'a>(tokens: &Tokens<'a>, over: Over) -> &'a Tensor {
    match over {
        Over::Step => tokens.inputs.step,
        Over::Trajectory => tokens.inputs.trajectory,
        Over::Group => tokens.group,
    }
}

fn read(input: Input, tokens: &Tokens<'_>) -> Result<Tensor> {
    let inputs = &tokens.inputs;
    let there = match input {
        Input::Logp => Some(inputs.logp),
        Input::LogpOld => Some(inputs.logp_old),
        Input::LogpRef => inputs.logp_ref,
        Input::Advantages => Some(inputs.advantages),
        Input::Entropy => inputs.entropy,
        Input::Weights if inputs.weights.is_none() => return Ok(inputs.logp_old.f_ones_like()?),
        Input::Weights => inputs.weights,
        Input::Rewards => tokens.rewards,
    };
    let missing = || Error::new(Kind::Usage, format!("the loss reads b.{}, which is not known here", input.name()));
    there.map(Tensor::shallow_clone).ok_or_else(missing)
}
