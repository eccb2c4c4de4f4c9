//! A policy loss as data: the expression graph traced from the recipe's Lua function `loss`.
//!
//! A value is a number per response token (`Tokens`), a boolean per response token (`Booleans`), or
//! a scalar of the mini-batch (`Total`). Only totals combine tokens of different sequences. Totals
//! can only be added to each other and multiplied by constants, so that the losses of micro-batches
//! sum to the loss of the mini-batch for every split of its rows.

use serde::{Deserialize, Serialize};

use super::invalid_op::{InvalidOp, MAX_NODES};
use crate::schema::{choices, names};

choices! {
    /// Aggregation of token losses to a scalar. `seq` is a trajectory.
    pub enum LossAgg {
        TokenMean = "token-mean",
        SeqMeanTokenSum = "seq-mean-token-sum",
        SeqMeanTokenMean = "seq-mean-token-mean",
        SeqMeanTokenSumNorm = "seq-mean-token-sum-norm",
    }
}

names! {
    /// Inputs of a loss, one number per response token.
    pub enum Input {
        /// Log-probability under the current weights, with gradient.
        Logp = "logp",
        /// Log-probability under the behaviour policy.
        LogpOld = "logp_old",
        /// Log-probability under the reference policy.
        LogpRef = "logp_ref",
        Advantages = "advantages",
        /// Entropy of the token's distribution under the current weights, with gradient.
        Entropy = "entropy",
        /// Off-policy weights of `trainer.importance` and `trainer.rejection`; 1 without them.
        Weights = "weights",
        /// Total reward of the token's trajectory, before shaping.
        Rewards = "rewards",
    }
}

names! {
    /// Unit over which tokens are reduced.
    #[derive(PartialOrd, Ord)]
    pub enum Over {
        Step = "step",
        Trajectory = "trajectory",
        /// All trajectories of a task.
        Group = "group",
    }
}

names! {
    /// An elementwise function of one value.
    pub enum Unary {
        Neg = "neg",
        Exp = "exp",
        Log = "log",
        Sqrt = "sqrt",
        Abs = "abs",
        Sign = "sign",
        Sigmoid = "sigmoid",
        LogSigmoid = "log_sigmoid",
        Detach = "detach",
    }
}

/// An elementwise function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Or,
}

impl Binary {
    fn is_comparison(self) -> bool {
        matches!(self, Self::Lt | Self::Le | Self::Gt | Self::Ge | Self::Eq | Self::Ne)
    }
}

/// A node, by its index in [`LossGraph::nodes`], or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    Node(usize),
    Number(f64),
}

/// Operation of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Input(Input),
    Unary(Unary, Operand),
    Not(Operand),
    Binary(Binary, Operand, Operand),
    Power(Operand, f64),
    /// Clamp to a lower and an upper bound, each optional.
    Clamp(Operand, Option<f64>, Option<f64>),
    Where(Operand, Operand, Operand),
    /// Sum over the tokens of each sequence, broadcast to its tokens.
    SumOver(Operand, Over),
    /// Mean over the tokens of each sequence, broadcast to its tokens.
    MeanOver(Operand, Over),
    /// Number of response tokens of each sequence, broadcast to its tokens.
    Count(Over),
    /// Aggregation to a scalar of the mini-batch.
    Total(Operand, LossAgg, Over),
    /// Sum over all tokens of the mini-batch.
    Sum(Operand),
    /// `(a - mean a)(b - mean b)` with the means of the whole mini-batch; for selections only.
    Covariance(Operand, Operand),
    /// The share of the mini-batch's tokens with the largest value, at least one.
    Largest(Operand, f64),
    /// A share of the mini-batch's tokens, at least one, drawn by a seed among those where the
    /// condition holds.
    Draw(Operand, f64, u64),
}

impl Op {
    fn operands(&self) -> Vec<Operand> {
        match self {
            Self::Input(_) | Self::Count(_) => Vec::new(),
            Self::Unary(_, of)
            | Self::Not(of)
            | Self::Power(of, _)
            | Self::Clamp(of, ..)
            | Self::SumOver(of, _)
            | Self::MeanOver(of, _)
            | Self::Total(of, ..)
            | Self::Sum(of)
            | Self::Largest(of, _)
            | Self::Draw(of, ..) => vec![*of],
            Self::Binary(_, a, b) | Self::Covariance(a, b) => vec![*a, *b],
            Self::Where(condition, a, b) => vec![*condition, *a, *b],
        }
    }

    /// Whether it selects tokens of the whole mini-batch.
    fn selects(&self) -> bool {
        matches!(self, Self::Largest(..) | Self::Draw(..))
    }
}

/// Shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    Tokens,
    Booleans,
    Total,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub shape: Shape,
    /// Source location, such as `recipe.lua:12`; empty if unknown.
    pub location: String,
}

/// A traced and validated loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossGraph {
    /// Topologically sorted: each node reads earlier nodes only.
    pub nodes: Vec<Node>,
    /// Node that is minimised: one loss per token, or a scalar of the mini-batch.
    pub result: usize,
    /// Nodes that are logged as metrics, by name.
    pub logged: Vec<(String, usize)>,
    /// The ratio of the metrics `policy/ratio_*` and `policy/clip_frac*`; the ratio of each token
    /// if the function names none.
    pub ratio: Option<RatioUse>,
    /// Source location of the function.
    pub location: String,
}

/// The ratio that a loss uses, and the tokens that it clips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioUse {
    /// The node of the ratio.
    pub node: usize,
    pub clipped: Clipped,
}

/// The tokens whose ratio a loss clips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Clipped {
    No,
    /// A ratio below `1 - low` of a token with a negative advantage, or above `1 + high` of one
    /// with a positive advantage.
    Range {
        low: f64,
        high: f64,
    },
    /// The nodes of booleans: the tokens clipped below, and those clipped above.
    Tokens {
        low: usize,
        high: usize,
    },
}

impl LossGraph {
    /// Adds a node and returns its index. Equal inputs share one node.
    ///
    /// # Errors
    /// Operands of the wrong shape, non-finite constants, too many nodes.
    pub fn push(&mut self, op: Op, location: String) -> Result<usize, InvalidOp> {
        if matches!(op, Op::Input(_) | Op::Count(_))
            && let Some(index) = self.nodes.iter().position(|node| node.op == op)
        {
            return Ok(index);
        }
        let shape = self.shape_of(&op)?;
        if op.selects() && self.selection().is_some() {
            return Err(InvalidOp::SecondSelection);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(InvalidOp::TooManyNodes);
        }
        self.nodes.push(Node { op, shape, location });
        Ok(self.nodes.len() - 1)
    }

    /// Shape of an operand; `None` for a constant.
    pub fn shape(&self, operand: Operand) -> Option<Shape> {
        match operand {
            Operand::Node(node) => Some(self.nodes[node].shape),
            Operand::Number(_) => None,
        }
    }

    fn shape_of(&self, op: &Op) -> Result<Shape, InvalidOp> {
        use Shape::{Booleans, Tokens, Total};
        let numbers = |operand: Operand| match (operand, self.shape(operand)) {
            (Operand::Number(number), _) if !number.is_finite() => Err(InvalidOp::NotFinite { what: "number", number }),
            (_, None | Some(Tokens)) => Ok(()),
            (_, Some(Booleans)) => Err(InvalidOp::Booleans),
            (_, Some(Total)) => Err(InvalidOp::Scalar),
        };
        let booleans = |operand: Operand| match self.shape(operand) {
            Some(Booleans) => Ok(()),
            _ => Err(InvalidOp::NotBooleans),
        };
        let finite = |bound: &Option<f64>| match bound {
            Some(bound) if !bound.is_finite() => Err(InvalidOp::NotFinite { what: "bound", number: *bound }),
            _ => Ok(()),
        };
        match op {
            Op::Input(_) | Op::Count(_) => Ok(Tokens),
            Op::Unary(Unary::Neg, of) if self.shape(*of) == Some(Total) => Ok(Total),
            Op::Unary(_, of) | Op::SumOver(of, _) | Op::MeanOver(of, _) => numbers(*of).map(|()| Tokens),
            Op::Not(of) => booleans(*of).map(|()| Booleans),
            Op::Power(of, exponent) => finite(&Some(*exponent)).and_then(|()| numbers(*of)).map(|()| Tokens),
            Op::Clamp(of, low, high) => {
                finite(low)?;
                finite(high)?;
                if let (Some(low), Some(high)) = (low, high)
                    && low > high
                {
                    return Err(InvalidOp::Bounds { low: *low, high: *high });
                }
                numbers(*of).map(|()| Tokens)
            }
            Op::Where(condition, a, b) => {
                booleans(*condition)?;
                numbers(*a)?;
                numbers(*b).map(|()| Tokens)
            }
            Op::Total(of, ..) | Op::Sum(of) => numbers(*of).map(|()| Total),
            Op::Covariance(a, b) => numbers(*a).and_then(|()| numbers(*b)).map(|()| Tokens),
            Op::Largest(_, share) | Op::Draw(_, share, _) if !(0.0..=1.0).contains(share) => {
                Err(InvalidOp::Share { share: *share })
            }
            Op::Largest(of, _) => numbers(*of).map(|()| Booleans),
            Op::Draw(of, ..) => booleans(*of).map(|()| Booleans),
            Op::Binary(Binary::And | Binary::Or, a, b) => booleans(*a).and_then(|()| booleans(*b)).map(|()| Booleans),
            Op::Binary(function, a, b) => {
                let totals = [*a, *b].map(|operand| self.shape(operand) == Some(Total));
                let plain = [*a, *b].map(|operand| matches!(operand, Operand::Number(number) if number.is_finite()));
                match (function, totals, plain) {
                    (Binary::Add | Binary::Sub, [true, true], _)
                    | (Binary::Mul, [true, false], [_, true])
                    | (Binary::Mul, [false, true], [true, _]) => Ok(Total),
                    (Binary::Div, [true, false], [_, true]) if *b != Operand::Number(0.0) => Ok(Total),
                    _ => {
                        numbers(*a)?;
                        numbers(*b)?;
                        Ok(if function.is_comparison() { Booleans } else { Tokens })
                    }
                }
            }
        }
    }

    /// Whether the gradient flows from the result into the weights.
    pub fn has_gradient(&self) -> bool {
        let mut flows: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let from = |operand: &Operand| matches!(operand, Operand::Node(node) if flows[*node]);
            let flow = match &node.op {
                Op::Input(input) => matches!(input, Input::Logp | Input::Entropy),
                Op::Unary(Unary::Detach | Unary::Sign, _)
                | Op::Not(_)
                | Op::Count(_)
                | Op::Covariance(..)
                | Op::Largest(..)
                | Op::Draw(..) => false,
                Op::Unary(_, of)
                | Op::Power(of, _)
                | Op::Clamp(of, ..)
                | Op::SumOver(of, _)
                | Op::MeanOver(of, _)
                | Op::Total(of, ..)
                | Op::Sum(of) => from(of),
                Op::Binary(function, a, b) => {
                    !function.is_comparison() && !matches!(function, Binary::And | Binary::Or) && (from(a) || from(b))
                }
                Op::Where(_, a, b) => from(a) || from(b),
            };
            flows.push(flow);
        }
        flows.get(self.result).copied().unwrap_or(false)
    }

    /// The node that selects tokens of the whole mini-batch; there is at most one.
    pub fn selection(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.op.selects())
    }

    /// For each node whether only the selection reads it, so that a micro-batch does not need it.
    pub fn only_for_selection(&self) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        let ratio = self.ratio.iter().flat_map(|ratio| match ratio.clipped {
            Clipped::Tokens { low, high } => vec![ratio.node, low, high],
            _ => vec![ratio.node],
        });
        for node in self.logged.iter().map(|(_, node)| *node).chain(ratio).chain([self.result]) {
            needed[node] = true;
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if needed[index] && !node.op.selects() {
                for operand in node.op.operands() {
                    if let Operand::Node(node) = operand {
                        needed[node] = true;
                    }
                }
            }
        }
        needed.into_iter().map(|needed| !needed).collect()
    }

    /// The place of a covariance that is used outside of a selection: its value in a micro-batch
    /// would depend on the split.
    pub fn stray_covariance(&self) -> Option<&str> {
        let skipped = self.only_for_selection();
        let stray = |(node, skipped): &(&Node, bool)| matches!(node.op, Op::Covariance(..)) && !skipped;
        self.nodes.iter().zip(skipped).find(stray).map(|(node, _)| node.location.as_str())
    }

    /// Whether the graph reads this input.
    pub fn reads(&self, input: Input) -> bool {
        self.nodes.iter().any(|node| node.op == Op::Input(input))
    }

    /// Whether it reads groups, or counts of the whole mini-batch.
    pub fn reads_units(&self) -> bool {
        self.nodes.iter().any(|node| match node.op {
            Op::Count(_) | Op::Total(..) => true,
            Op::SumOver(_, over) | Op::MeanOver(_, over) => over == Over::Group,
            _ => false,
        })
    }

    /// Largest unit whose tokens must be in the same micro-batch; at least `Step`.
    pub fn together(&self) -> Over {
        let over = |node: &Node| match &node.op {
            Op::SumOver(_, over) | Op::MeanOver(_, over) => Some(*over),
            _ => None,
        };
        self.nodes.iter().filter_map(over).max().unwrap_or(Over::Step)
    }

    /// Whether rows with zero advantages contribute nothing to the loss and its gradient and can be
    /// skipped.
    pub fn vanishes_without_advantages(&self) -> bool {
        // Sums over longer units may include other rows.
        self.together() == Over::Step && self.is_zero_without_advantages()
    }

    /// Whether the result is zero, without a gradient, at tokens of sequences with zero advantages.
    pub fn is_zero_without_advantages(&self) -> bool {
        let mut zero: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let is = |operand: &Operand| match operand {
                Operand::Node(node) => zero[*node],
                Operand::Number(number) => *number == 0.0,
            };
            let is_zero = match &node.op {
                Op::Input(input) => *input == Input::Advantages,
                Op::Unary(Unary::Neg | Unary::Abs | Unary::Sign | Unary::Detach, of)
                | Op::SumOver(of, _)
                | Op::MeanOver(of, _)
                | Op::Total(of, ..)
                | Op::Sum(of) => is(of),
                Op::Binary(Binary::Mul, a, b) => is(a) || is(b),
                Op::Binary(Binary::Div, a, _) => is(a),
                Op::Binary(Binary::Add | Binary::Sub | Binary::Min | Binary::Max, a, b) | Op::Where(_, a, b) => {
                    is(a) && is(b)
                }
                Op::Clamp(of, low, high) => is(of) && low.unwrap_or(0.0) <= 0.0 && high.unwrap_or(0.0) >= 0.0,
                _ => false,
            };
            zero.push(is_zero);
        }
        zero.get(self.result).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(graph: &mut LossGraph, op: Op) -> Operand {
        Operand::Node(graph.push(op, String::new()).unwrap())
    }

    #[test]
    fn loss_graph_mini_batch_scalars_can_only_be_summed() {
        let mut graph = LossGraph::default();
        let logp = node(&mut graph, Op::Input(Input::Logp));
        assert_eq!(logp, node(&mut graph, Op::Input(Input::Logp)), "an input is one node");
        let total = node(&mut graph, Op::Total(logp, LossAgg::TokenMean, Over::Trajectory));
        let twice = node(&mut graph, Op::Binary(Binary::Mul, Operand::Number(2.0), total));
        let half = node(&mut graph, Op::Binary(Binary::Div, twice, Operand::Number(2.0)));
        node(&mut graph, Op::Binary(Binary::Sub, half, total));
        node(&mut graph, Op::Unary(Unary::Neg, total));
        for op in [
            Op::Unary(Unary::Exp, total),
            Op::Binary(Binary::Mul, total, total),
            Op::Binary(Binary::Mul, total, logp),
            Op::Binary(Binary::Add, total, logp),
            Op::Binary(Binary::Add, total, Operand::Number(1.0)),
            Op::Binary(Binary::Div, Operand::Number(1.0), total),
            Op::Binary(Binary::Lt, total, Operand::Number(1.0)),
            Op::SumOver(total, Over::Group),
            Op::Total(total, LossAgg::TokenMean, Over::Step),
        ] {
            assert_eq!(graph.push(op.clone(), String::new()), Err(InvalidOp::Scalar), "{op:?}");
        }
    }

    #[test]
    fn loss_graph_refuses_booleans_as_numbers_and_non_finite_constants() {
        let mut graph = LossGraph::default();
        let logp = node(&mut graph, Op::Input(Input::Logp));
        let low = node(&mut graph, Op::Binary(Binary::Lt, logp, Operand::Number(-1.0)));
        let no = |graph: &mut LossGraph, op: Op| graph.push(op, String::new()).unwrap_err();
        let numbers = no(&mut graph, Op::Binary(Binary::Add, low, logp));
        assert!(numbers.to_string().contains("b:where(x, 1, 0)"), "{numbers}");
        assert_eq!(no(&mut graph, Op::Binary(Binary::And, low, logp)), InvalidOp::NotBooleans);
        assert_eq!(no(&mut graph, Op::Where(logp, logp, logp)), InvalidOp::NotBooleans);
        let nan = no(&mut graph, Op::Binary(Binary::Add, logp, Operand::Number(f64::NAN)));
        assert!(matches!(nan, InvalidOp::NotFinite { what: "number", .. }), "{nan}");
        assert_eq!(no(&mut graph, Op::Clamp(logp, Some(1.0), Some(0.0))), InvalidOp::Bounds { low: 1.0, high: 0.0 });
        let bound = InvalidOp::NotFinite { what: "bound", number: f64::INFINITY };
        assert_eq!(no(&mut graph, Op::Clamp(logp, Some(f64::INFINITY), None)), bound);
    }

    #[test]
    fn loss_graph_detects_rows_with_zero_advantages_and_gradients() {
        let mut graph = LossGraph::default();
        let logp = node(&mut graph, Op::Input(Input::Logp));
        let advantages = node(&mut graph, Op::Input(Input::Advantages));
        let product = node(&mut graph, Op::Binary(Binary::Mul, advantages, logp));
        let below = node(&mut graph, Op::Binary(Binary::Lt, advantages, Operand::Number(0.0)));
        let chosen = node(&mut graph, Op::Where(below, product, product));
        let vanishes = |graph: &mut LossGraph, result: Operand| {
            let Operand::Node(node) = result else { panic!() };
            graph.result = node;
            graph.vanishes_without_advantages()
        };
        assert!(vanishes(&mut graph, chosen));
        let shifted = node(&mut graph, Op::Binary(Binary::Add, chosen, Operand::Number(1.0)));
        let entropy = node(&mut graph, Op::Input(Input::Entropy));
        let sum = node(&mut graph, Op::Binary(Binary::Add, chosen, entropy));
        let bounded = node(&mut graph, Op::Clamp(chosen, Some(0.5), None));
        for result in [shifted, sum, bounded, logp] {
            assert!(!vanishes(&mut graph, result));
        }
        let detached = node(&mut graph, Op::Unary(Unary::Detach, chosen));
        for (result, flows) in [(chosen, true), (entropy, true), (detached, false), (advantages, false)] {
            let Operand::Node(node) = result else { panic!() };
            graph.result = node;
            assert_eq!(graph.has_gradient(), flows);
        }
        assert_eq!(graph.together(), Over::Step);
        let over = node(&mut graph, Op::SumOver(chosen, Over::Trajectory));
        assert!(graph.together() == Over::Trajectory && !vanishes(&mut graph, over));
    }
}
