//! A policy loss as data: the expression graph that a recipe's Lua function `loss` is traced to.
//!
//! A value is a number per sampled token (`Tokens`), a truth per sampled token (`Truths`), or a scalar of the mini-batch
//! (`Total`). Totals are the only values that cross tokens of different sequences, and they may only be added to each other
//! and multiplied by numbers, so that micro-batches add up to exactly the loss of the whole mini-batch, however rows are split.

use serde::{Deserialize, Serialize};

use super::LossAgg;

/// What is known of every sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Log-probability under the current weights; the gradient flows into it.
    Logp,
    /// Under the behaviour policy.
    LogpOld,
    /// Under the reference policy.
    LogpRef,
    Advantages,
    /// Entropy of the distribution that the token was drawn from, under the current weights; with gradient.
    Entropy,
    /// Off-policy weights of `trainer.importance` and `trainer.rejection`; 1 without them.
    Weights,
    /// Total reward of the token's trajectory, as the environment gave it.
    Rewards,
}

impl Input {
    pub const ALL: [Self; 7] =
        [Self::Logp, Self::LogpOld, Self::LogpRef, Self::Advantages, Self::Entropy, Self::Weights, Self::Rewards];

    /// Its name in Lua.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logp => "logp",
            Self::LogpOld => "logp_old",
            Self::LogpRef => "logp_ref",
            Self::Advantages => "advantages",
            Self::Entropy => "entropy",
            Self::Weights => "weights",
            Self::Rewards => "rewards",
        }
    }
}

/// Which tokens belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    Step,
    Trajectory,
    /// All trajectories of a task.
    Group,
}

impl Over {
    pub const ALL: [Self; 3] = [Self::Step, Self::Trajectory, Self::Group];

    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Trajectory => "trajectory",
            Self::Group => "group",
        }
    }
}

/// A function of one value, token by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Abs,
    Sign,
    Sigmoid,
    LogSigmoid,
    Detach,
}

/// A function of two values, token by token.
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
    fn compares(self) -> bool {
        matches!(self, Self::Lt | Self::Le | Self::Gt | Self::Ge | Self::Eq | Self::Ne)
    }
}

/// A value of the graph, by its place in [`LossGraph::nodes`], or a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    Node(usize),
    Number(f64),
}

/// How a node is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Input(Input),
    Unary(Unary, Operand),
    Not(Operand),
    Binary(Binary, Operand, Operand),
    Power(Operand, f64),
    /// Kept between the bounds that there are.
    Clamp(Operand, Option<f64>, Option<f64>),
    Where(Operand, Operand, Operand),
    /// For each token the sum over the tokens of its sequence.
    SumOver(Operand, Over),
    /// For each token the mean over the tokens of its sequence.
    MeanOver(Operand, Over),
    /// For each token the number of sampled tokens of its sequence.
    Count(Over),
    /// A scalar of the mini-batch.
    Total(Operand, LossAgg, Over),
    /// The plain sum over all tokens of the mini-batch.
    Sum(Operand),
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    Tokens,
    Truths,
    Total,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub shape: Shape,
    /// `recipe.lua:12`, where the value is computed; empty if unknown.
    pub place: String,
}

/// A loss, traced and checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossGraph {
    /// Each node reads earlier ones only.
    pub nodes: Vec<Node>,
    /// The value that is minimised: a loss for each token, or a scalar of the mini-batch.
    pub result: usize,
    /// Values for the metrics, by name.
    pub logged: Vec<(String, usize)>,
    /// Where the function is defined.
    pub place: String,
}

impl LossGraph {
    /// Adds a value; the same input is one node however often it is read.
    ///
    /// # Errors
    /// What does not fit together, in words for the author of the Lua function.
    pub fn push(&mut self, op: Op, place: String) -> Result<usize, String> {
        if matches!(op, Op::Input(_) | Op::Count(_))
            && let Some(known) = self.nodes.iter().position(|node| node.op == op)
        {
            return Ok(known);
        }
        let shape = self.shape_of(&op)?;
        if self.nodes.len() >= MOST_NODES {
            return Err(format!("is one value too many: a loss has at most {MOST_NODES}"));
        }
        self.nodes.push(Node { op, shape, place });
        Ok(self.nodes.len() - 1)
    }

    /// What a value is; a number has no shape of its own.
    pub fn shape(&self, operand: Operand) -> Option<Shape> {
        match operand {
            Operand::Node(node) => Some(self.nodes[node].shape),
            Operand::Number(_) => None,
        }
    }

    fn shape_of(&self, op: &Op) -> Result<Shape, String> {
        use Shape::{Tokens, Total, Truths};
        let numbers = |operand: Operand| match (operand, self.shape(operand)) {
            (Operand::Number(number), _) if !number.is_finite() => {
                Err(format!("is given the number {number}, which is not finite"))
            }
            (_, None | Some(Tokens)) => Ok(()),
            (_, Some(Truths)) => Err("takes numbers, got truths: b:where(x, 1, 0) makes numbers of them".to_owned()),
            (_, Some(Total)) => Err(SCALAR.to_owned()),
        };
        let truths = |operand: Operand| match self.shape(operand) {
            Some(Truths) => Ok(()),
            _ => Err("takes truths, such as x:lt(0)".to_owned()),
        };
        let finite = |bound: &Option<f64>| match bound {
            Some(bound) if !bound.is_finite() => Err(format!("is given the bound {bound}, which is not finite")),
            _ => Ok(()),
        };
        match op {
            Op::Input(_) | Op::Count(_) => Ok(Tokens),
            Op::Unary(Unary::Neg, of) if self.shape(*of) == Some(Total) => Ok(Total),
            Op::Unary(_, of) | Op::SumOver(of, _) | Op::MeanOver(of, _) => numbers(*of).map(|()| Tokens),
            Op::Not(of) => truths(*of).map(|()| Truths),
            Op::Power(of, exponent) => finite(&Some(*exponent)).and_then(|()| numbers(*of)).map(|()| Tokens),
            Op::Clamp(of, low, high) => {
                finite(low)?;
                finite(high)?;
                if let (Some(low), Some(high)) = (low, high)
                    && low > high
                {
                    return Err(format!("is given a lower bound of {low} above an upper bound of {high}"));
                }
                numbers(*of).map(|()| Tokens)
            }
            Op::Where(condition, a, b) => {
                truths(*condition)?;
                numbers(*a)?;
                numbers(*b).map(|()| Tokens)
            }
            Op::Total(of, ..) | Op::Sum(of) => numbers(*of).map(|()| Total),
            Op::Binary(Binary::And | Binary::Or, a, b) => truths(*a).and_then(|()| truths(*b)).map(|()| Truths),
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
                        Ok(if function.compares() { Truths } else { Tokens })
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
            let own = match &node.op {
                Op::Input(input) => matches!(input, Input::Logp | Input::Entropy),
                Op::Unary(Unary::Detach | Unary::Sign, _) | Op::Not(_) | Op::Count(_) => false,
                Op::Unary(_, of)
                | Op::Power(of, _)
                | Op::Clamp(of, ..)
                | Op::SumOver(of, _)
                | Op::MeanOver(of, _)
                | Op::Total(of, ..)
                | Op::Sum(of) => from(of),
                Op::Binary(function, a, b) => {
                    !function.compares() && !matches!(function, Binary::And | Binary::Or) && (from(a) || from(b))
                }
                Op::Where(_, a, b) => from(a) || from(b),
            };
            flows.push(own);
        }
        flows.get(self.result).copied().unwrap_or(false)
    }

    /// Whether it reads this.
    pub fn reads(&self, input: Input) -> bool {
        self.nodes.iter().any(|node| node.op == Op::Input(input))
    }

    /// The largest unit whose tokens must be computed together; a step's always are.
    pub fn together(&self) -> Over {
        let over = |node: &Node| match &node.op {
            Op::SumOver(_, over) | Op::MeanOver(_, over) => Some(*over),
            _ => None,
        };
        self.nodes.iter().filter_map(over).max().unwrap_or(Over::Step)
    }

    /// Whether rows whose advantages are all zero add nothing, to the loss or to its gradient, so that they need not be
    /// computed.
    pub fn vanishes_without_advantages(&self) -> bool {
        // What a longer unit sums up may come from other rows.
        if self.together() > Over::Step {
            return false;
        }
        let mut zero: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let is = |operand: &Operand| match operand {
                Operand::Node(node) => zero[*node],
                Operand::Number(number) => *number == 0.0,
            };
            let own = match &node.op {
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
            zero.push(own);
        }
        zero.get(self.result).copied().unwrap_or(false)
    }
}

/// Most values of a graph: a loop that never ends is an error of the function.
const MOST_NODES: usize = 10_000;

const SCALAR: &str = "takes no scalar of the mini-batch, which may only be added to another one and multiplied by a number: \
                      anything else would depend on how rows are split into micro-batches";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(graph: &mut LossGraph, op: Op) -> Operand {
        Operand::Node(graph.push(op, String::new()).unwrap())
    }

    #[test]
    fn scalars_of_the_mini_batch_only_add_up() {
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
            assert!(graph.push(op.clone(), String::new()).unwrap_err().contains("micro-batches"), "{op:?}");
        }
    }

    #[test]
    fn truths_are_no_numbers_and_numbers_are_finite() {
        let mut graph = LossGraph::default();
        let logp = node(&mut graph, Op::Input(Input::Logp));
        let low = node(&mut graph, Op::Binary(Binary::Lt, logp, Operand::Number(-1.0)));
        let no = |graph: &mut LossGraph, op: Op| graph.push(op, String::new()).unwrap_err();
        assert!(no(&mut graph, Op::Binary(Binary::Add, low, logp)).contains("b:where(x, 1, 0)"));
        assert!(no(&mut graph, Op::Binary(Binary::And, low, logp)).contains("x:lt(0)"));
        assert!(no(&mut graph, Op::Where(logp, logp, logp)).contains("x:lt(0)"));
        assert!(no(&mut graph, Op::Binary(Binary::Add, logp, Operand::Number(f64::NAN))).contains("finite"));
        assert!(no(&mut graph, Op::Clamp(logp, Some(1.0), Some(0.0))).contains("above"));
        assert!(no(&mut graph, Op::Clamp(logp, Some(f64::INFINITY), None)).contains("finite"));
    }

    #[test]
    fn a_graph_knows_when_rows_without_advantages_add_nothing() {
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
