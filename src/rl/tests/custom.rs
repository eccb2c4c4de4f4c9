//! Custom losses are bitwise equal to the built-in ones, and their micro-batches add up.

use std::sync::Arc;

use serde_json::Map;
use tch::Tensor;

use super::super::aggregate::Denominators;
use super::super::custom::{Numbers, Units};
use super::super::objective::{Inputs, PolicyLoss};
use crate::config::{Binary, Input, LossAgg, LossGraph, Op, Operand, Over, Unary};
use crate::native;

struct Tape(LossGraph);

impl Tape {
    fn push(&mut self, op: Op) -> Operand {
        Operand::Node(self.0.push(op, "x.lua:1".to_owned()).unwrap())
    }

    fn finish(mut self, result: Operand) -> LossGraph {
        let Operand::Node(node) = result else { panic!() };
        self.0.result = node;
        self.0
    }
}

/// -log sigmoid(0.5 * the sum over a group of A (logp - ref)), a mean over groups.
fn pairs() -> LossGraph {
    let mut tape = Tape(LossGraph::default());
    let [logp, reference, advantages] =
        [Input::Logp, Input::LogpRef, Input::Advantages].map(|input| tape.push(Op::Input(input)));
    let gain = tape.push(Op::Binary(Binary::Sub, logp, reference));
    let signed = tape.push(Op::Binary(Binary::Mul, advantages, gain));
    let margin = tape.push(Op::SumOver(signed, Over::Group));
    let scaled = tape.push(Op::Binary(Binary::Mul, margin, Operand::Number(0.5)));
    let sigmoid = tape.push(Op::Unary(Unary::LogSigmoid, scaled));
    let loss = tape.push(Op::Unary(Unary::Neg, sigmoid));
    let total = tape.push(Op::Total(loss, LossAgg::SeqMeanTokenMean, Over::Group));
    tape.0.logged.push(("margin".to_owned(), 5));
    tape.finish(total)
}

/// Two groups of two trajectories with one or two tokens each.
const LOGP: [f64; 6] = [-1.0, -0.5, -2.0, -0.3, -0.7, -1.5];
const REFERENCE: [f64; 6] = [-1.2, -0.7, -1.5, -0.9, -0.6, -1.0];
const ADVANTAGES: [f64; 6] = [1.0, 1.0, -1.0, 1.0, -1.0, -1.0];
const TRAJECTORY: [i64; 6] = [0, 0, 1, 2, 3, 3];
const GROUP: [i64; 6] = [0, 0, 0, 1, 1, 1];

/// Loss, gradient and logged values of some of the tokens.
fn share(graph: &LossGraph, tokens: &[usize]) -> (f64, Vec<f64>, Vec<f64>) {
    let pick = |all: &[f64]| Tensor::from_slice(&tokens.iter().map(|&i| all[i]).collect::<Vec<_>>());
    let integers = |all: &[i64]| Tensor::from_slice(&tokens.iter().map(|&i| all[i]).collect::<Vec<_>>());
    let logp = pick(&LOGP).set_requires_grad(true);
    let (old, reference, advantages) = (pick(&LOGP), pick(&REFERENCE), pick(&ADVANTAGES));
    let (trajectory, group) = (integers(&TRAJECTORY), integers(&GROUP));
    let units = Units::from_tokens(&TRAJECTORY, &TRAJECTORY, &GROUP);
    let inputs = Inputs {
        logp: &logp,
        logp_old: &old,
        advantages: &advantages,
        logp_ref: Some(&reference),
        entropy: None,
        trajectory: &trajectory,
        step: &trajectory,
        sequences: 4,
        weights: None,
        selected: None,
        group: &group,
        rewards: None,
        units: Some(&units),
    };
    let objective = PolicyLoss::of_graph(Arc::new(graph.clone()), &Map::new()).unwrap();
    let all = Denominators::from_tokens(&TRAJECTORY);
    let computed = objective.compute(&inputs, &all).unwrap();
    let numbers = computed.numbers.unwrap();
    let read = native::read_numbers(&numbers.on_device).unwrap();
    let logged = Numbers::read(graph, numbers.tokens, true, &read).unwrap();
    computed.loss.backward();
    let gradient = Vec::<f64>::try_from(logp.grad()).unwrap();
    (f64::try_from(computed.loss.detach()).unwrap(), gradient, logged.into_iter().map(|one| one.sum).collect())
}

#[test]
fn preference_pairs_are_their_closed_form_and_micro_batches_add_up() {
    let graph = pairs();
    let (loss, gradient, logged) = share(&graph, &[0, 1, 2, 3, 4, 5]);
    let margin = |tokens: [usize; 3]| tokens.map(|i| ADVANTAGES[i] * (LOGP[i] - REFERENCE[i])).iter().sum::<f64>();
    let margins = [margin([0, 1, 2]), margin([3, 4, 5])];
    let softplus = |x: f64| (1.0 + (-0.5 * x).exp()).ln();
    assert!((loss - f64::midpoint(softplus(margins[0]), softplus(margins[1]))).abs() < 1e-14, "{loss}");
    for (i, got) in gradient.iter().enumerate() {
        let sigmoid = 1.0 / (1.0 + (0.5 * margins[i / 3]).exp());
        assert!((got + 0.5 * ADVANTAGES[i] * sigmoid / 2.0).abs() < 1e-14, "{i}: {got}");
    }
    assert!((logged[0] - 3.0 * (margins[0] + margins[1])).abs() < 1e-14);
    let (first, second) = (share(&graph, &[0, 1, 2]), share(&graph, &[3, 4, 5]));
    assert!((first.0 + second.0 - loss).abs() < 1e-15);
    assert_eq!([first.1, second.1].concat(), gradient);
}

#[test]
fn a_value_that_is_not_finite_is_named_by_its_line() {
    let mut tape = Tape(LossGraph::default());
    let logp = tape.push(Op::Input(Input::Logp));
    let Operand::Node(log) = tape.push(Op::Unary(Unary::Log, logp)) else { panic!() };
    let (old, advantages) = (Tensor::from_slice(&[-1.0]), Tensor::from_slice(&[1.0]));
    let index = Tensor::from_slice(&[0_i64]);
    let inputs = Inputs {
        logp: &old,
        logp_old: &old,
        advantages: &advantages,
        logp_ref: None,
        entropy: None,
        trajectory: &index,
        step: &index,
        sequences: 1,
        weights: None,
        selected: None,
        group: &index,
        rewards: None,
        units: None,
    };
    let graph = tape.finish(Operand::Node(log));
    let objective = PolicyLoss::of_graph(Arc::new(graph.clone()), &Map::new()).unwrap();
    let numbers = objective.compute(&inputs, &Denominators::from_tokens(&[0])).unwrap().numbers.unwrap();
    let read = native::read_numbers(&numbers.on_device).unwrap();
    let error = Numbers::read(&graph, numbers.tokens, false, &read).unwrap_err();
    assert_eq!(error.message, "the loss is not finite: a value that is NaN or infinite is computed at x.lua:1");
}

#[test]
fn a_loss_that_reads_the_off_policy_weights_is_not_weighted_again() {
    let loss = |reads: bool| {
        let mut tape = Tape(LossGraph::default());
        let mut result = tape.push(Op::Input(Input::Logp));
        if reads {
            let weights = tape.push(Op::Input(Input::Weights));
            result = tape.push(Op::Binary(Binary::Mul, result, weights));
        }
        let objective = PolicyLoss::of_graph(Arc::new(tape.finish(result)), &Map::new()).unwrap();
        let (logp, index) = (Tensor::from_slice(&[-1.0]), Tensor::from_slice(&[0_i64]));
        let weights = Tensor::from_slice(&[3.0]);
        let inputs = Inputs {
            logp: &logp,
            logp_old: &logp,
            advantages: &logp,
            logp_ref: None,
            entropy: None,
            trajectory: &index,
            step: &index,
            sequences: 1,
            weights: Some(&weights),
            selected: None,
            group: &index,
            rewards: None,
            units: None,
        };
        let computed = objective.compute(&inputs, &Denominators::from_tokens(&[0])).unwrap();
        f64::try_from(computed.loss).unwrap()
    };
    assert_eq!((loss(true), loss(false)), (-3.0, -3.0));
}
