//! Micro-batches queue operations and never wait for the device.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::tests::{batch, learner, model, row};
use super::*;
use crate::adamw;
use crate::config::{Binary, Input, LossGraph, Op, Operand, Unary};
use crate::mdp::Sampling;
use crate::model::{Critic, LoraConfig};
use crate::native::meta;
use crate::rl::objective::PolicyLoss as Formula;
use crate::train::learn::privileged::Prefixes;
use crate::train::learn::value::{queue_critic, share, update_critic};

/// Operations that wait for a number of the device.
const WAITS: [&str; 7] = ["_local_scalar_dense", "item", "nonzero", "is_nonzero", "unique2", "masked_select", "equal"];

fn assert_no_waits<T>(what: &str, body: impl FnOnce() -> Result<T>) -> T {
    let (value, counts) = native::count_operations(body).unwrap();
    for waits in WAITS {
        assert!(!counts.contains_key(&format!("aten::{waits}")), "{what}: {waits}: {counts:?}");
    }
    value
}

fn six_rows() -> Vec<Row> {
    (0..6).map(|n| row(n, &[(&[1, 2], false), (&[3 + n as u32, 7], true)], 0)).collect()
}

/// The loss -sum over the group of logp, times the advantage; it logs the sums.
fn graph() -> LossGraph {
    let mut graph = LossGraph::default();
    let mut push = |op: Op| Operand::Node(graph.push(op, "x.lua:1".to_owned()).unwrap());
    let logp = push(Op::Input(Input::Logp));
    let sums = push(Op::SumOver(logp, Over::Group));
    let advantages = push(Op::Input(Input::Advantages));
    let product = push(Op::Binary(Binary::Mul, sums, advantages));
    push(Op::Unary(Unary::Neg, product));
    (graph.result, graph.logged) = (4, vec![("sum".to_owned(), 1)]);
    graph
}

/// Rows that share a beginning, sampled from sets of tokens, with the columns that losses read.
fn full_batch() -> Vec<Row> {
    let mut rows = six_rows();
    for row in &mut rows {
        for index in 0..row.len() {
            row.support.push(if row.loss_mask[index] { &[7, 3, 4, 5, 6, 8][..] } else { &[] });
        }
        let tokens = row.len();
        let column = |value: f32| vec![value; tokens];
        (row.logp_old, row.logp_ref, row.weights) = (column(-2.0), column(-2.5), column(0.9));
        (row.rewards, row.sum_pi_squared, row.values) = (column(1.0), column(0.1), column(0.25));
        (row.targets, row.returns) = (row.loss_mask.clone(), vec![1.0; tokens]);
    }
    for row in &mut rows {
        row.group = row.trajectory / 2;
    }
    batch(rows, |trajectory| (trajectory as f64 * 0.7).sin() + 0.3)
}

/// Micro-batches of tensors without numbers: an operation that waits for a number of the device
/// fails there, also within another operation. Only reading the results needs them.
#[test]
fn micro_batches_run_without_numbers() {
    let all = full_batch();
    let named = Formula::names().into_iter().map(|name| (name, None));
    let losses: Vec<_> = named.chain([("ppo", Some(Arc::new(graph())))]).collect();
    meta::with(|| {
        let mut models = vec![model(Dtype::BFloat16), model(Dtype::Float), model(Dtype::BFloat16)];
        models[1].set_checkpointing(true);
        models[2].add_adapter(LoraConfig::new(4, 8.0, &["q_proj", "down_proj"]), 3).unwrap();
        for model in &models {
            let critic = Critic::new(model, None).unwrap();
            let value_loss = |hidden: &Tensor, batch: &MicroBatch| {
                let values = critic.values(hidden, &batch.predict)?;
                let (loss, clipped) = share(&values, batch, &all, 12, &learner("ppo", 8).critic)?;
                Ok((loss.shallow_clone(), [loss.detach(), clipped]))
            };
            for (loss, graph) in &losses {
                // The selection among all tokens of a mini-batch is read once. pspo is gspo for
                // another estimator.
                if *loss == "pspo" || Formula::named(loss).unwrap().needs().contains(&AlgorithmNeed::WholeBatch) {
                    continue;
                }
                let mut learner = Learner { entropy: 0.01, ..learner(loss, 8) };
                (learner.kl.coef, learner.critic.clip) = (0.1, 0.5);
                let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
                let objective = objective.with_loss(graph.clone()).unwrap();
                let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
                optimizer.zero_grad();
                let (update, mut stats) = (
                    Update {
                        model,
                        objective: &objective,
                        learner: &learner,
                        temperature: 0.7,
                        kl_coef: 0.1,
                        lr: 1.0,
                        shards: &Shards::default(),
                    },
                    UpdateStats::default(),
                );
                let mut head = AdamW::new(critic.parameters(), adamw::AdamWOptions::default()).unwrap();
                let mut shared = SharedTrunk { loss: &value_loss, head: &mut head };
                let queued = update.queue(&mut optimizer, &all, Some(&mut shared), &mut stats);
                let queued = queued.unwrap_or_else(|error| panic!("{loss}: {error}"));
                let has_kl = queued.local.iter().all(|(_, numbers)| numbers.has_kl);
                assert!(queued.micro_batches.len() > 1 && has_kl, "{loss}: {:?}", queued.micro_batches);
                // The optimiser has taken gradients in bf16.
                let trained = model.parameters().into_iter().filter(|(_, parameter)| parameter.requires_grad());
                let without =
                    trained.filter(|(_, parameter)| parameter.kind() == Dtype::Float && !parameter.grad().defined());
                let without: Vec<String> = without.map(|(name, _)| name).collect();
                assert!(without.is_empty(), "{loss}: {without:?}");
                assert!(update.read(queued, &all, true, &mut stats).is_err());
            }
        }
    })
    .unwrap();
}

#[test]
fn micro_batches_of_a_critic_run_without_numbers() {
    let all = full_batch();
    let micro_batches = [vec![0, 1, 2], vec![3, 4, 5]];
    meta::with(|| {
        let policy = model(Dtype::BFloat16);
        for separate in [true, false] {
            let critic = Critic::new(&policy, separate.then(|| model(Dtype::BFloat16))).unwrap();
            let mut optimizer = AdamW::new(critic.parameters(), adamw::AdamWOptions::default()).unwrap();
            let parts = (&all[..], &micro_batches[..], 12);
            let (order, numbers) =
                queue_critic(&critic, &policy, &mut optimizer, parts, (&learner("ppo", 8).critic, &Shards::default()))
                    .unwrap();
            assert_eq!((order.len(), numbers.len()), (2, 4));
            assert!(native::read_numbers(&numbers).is_err());
        }
    })
    .unwrap();
}

/// Everything of an update but attention is what a GPU computes; attention is padded here.
#[test]
fn micro_batches_never_wait_for_the_device() {
    let model = model(Dtype::BFloat16);
    let all = batch(six_rows(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    for loss in Formula::names() {
        // A selection among all tokens of a mini-batch is read once; a KL needs a reference policy.
        if !Formula::named(loss).unwrap().needs().is_empty() {
            continue;
        }
        for &budget in if loss == "ppo" { &[1000, 8, 4][..] } else { &[8] } {
            let mut learner = learner(loss, budget);
            learner.loss.options.insert("entropy_coef".to_owned(), 0.01.into());
            let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
            let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
            let update = Update {
                model: &model,
                objective: &objective,
                learner: &learner,
                temperature: 1.0,
                kl_coef: 0.0,
                lr: 1e-3,
                shards: &Shards::default(),
            };
            let stats = assert_no_waits(loss, || update.step(&mut optimizer, &all));
            assert!(stats.stepped && stats.grad_norm > 0.0 && stats.ratios.tokens == 12, "{loss}: {stats:?}");
        }
    }
}

#[test]
fn micro_batches_of_custom_losses_never_wait_for_the_device() {
    let model = model(Dtype::BFloat16);
    let mut graph = graph();
    let mut all = batch(six_rows(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    all.iter_mut().zip([0, 0, 1, 1, 2, 9]).for_each(|(row, group)| row.group = group);
    let update_with = |graph: LossGraph| {
        let learner = learner("ppo", 8);
        let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
        let objective = objective.with_loss(Some(graph.into())).unwrap();
        let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
        let update = Update {
            model: &model,
            objective: &objective,
            learner: &learner,
            temperature: 1.0,
            kl_coef: 0.0,
            lr: 1e-3,
            shards: &Shards::default(),
        };
        update.step(&mut optimizer, &all)
    };
    let stats = assert_no_waits("a custom loss", || update_with(graph.clone()));
    let logged = stats.logged["sum"];
    assert!(stats.stepped && logged.tokens == 12 && logged.sum < 0.0, "{stats:?}");
    // The line of a value that is not finite is named after the update.
    graph.nodes[4].op = Op::Unary(Unary::Log, Operand::Node(3));
    let error = update_with(graph).unwrap_err();
    assert_eq!(error.message, "the loss is not finite: a value that is NaN or infinite is computed at x.lua:1");
    assert!(error.place.unwrap().starts_with("trajector"));
}

/// A critic with separate weights, and one that shares the policy's.
#[test]
fn micro_batches_of_a_critic_never_wait_for_the_device() {
    let policy = model(Dtype::BFloat16);
    let mut rows = six_rows();
    for row in &mut rows {
        row.targets = row.loss_mask.clone();
        (row.returns, row.values) = (vec![1.0; row.len()], vec![0.25; row.len()]);
    }
    let all = batch(rows, |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    let mut learner = learner("ppo", 8);
    learner.critic.clip = 0.5;
    for separate in [true, false] {
        let critic = Critic::new(&policy, separate.then(|| model(Dtype::BFloat16))).unwrap();
        let mut optimizer = AdamW::new(critic.parameters(), adamw::AdamWOptions::default()).unwrap();
        let stats = assert_no_waits("a critic", || {
            update_critic(
                &critic,
                &policy,
                &mut optimizer,
                (&all, &Prefixes::default()),
                (&learner, &Shards::default()),
            )
        });
        assert!(stats.stepped && stats.loss > 0.0 && stats.grad_norm > 0.0, "{stats:?}");
    }
}

/// Numbers are read as vectors, which libtorch does not record, and copies to the device wait if
/// their memory is not pinned: the code of a micro-batch does neither. `selected` reads for losses
/// over the whole batch, `host` what a caller did not give.
#[test]
fn the_code_of_a_micro_batch_reads_no_numbers() {
    let sources = [
        (include_str!("../update.rs"), 1),
        (include_str!("../value.rs"), 1),
        (include_str!("../../../rl/objective.rs"), 0),
        (include_str!("../../../rl/aggregate.rs"), 0),
        (include_str!("../../../rl/custom.rs"), 1),
        (include_str!("../../../rl/kl.rs"), 0),
        (include_str!("../../../rl/segments.rs"), 1),
        (include_str!("../../../rl/losses/ppo.rs"), 0),
        (include_str!("../../../rl/losses/value.rs"), 0),
        (include_str!("../../../rl/pack.rs"), 1),
        (include_str!("../../../../crates/model/src/model/pass.rs"), 0),
        (include_str!("../../../../crates/model/src/model/decoder.rs"), 0),
        (include_str!("../../../../crates/model/src/model/shared_prefix.rs"), 0),
        (include_str!("../../../../crates/model/src/model/batch.rs"), 1),
    ];
    for (source, allowed) in sources {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let reads = ["64::try_from(", "32::try_from(", ">::try_from(", "double_value(", "int64_value(", "copy_data("];
        let waits = |line: &&str| reads.iter().chain(&["f_to_device("]).any(|wait| line.contains(wait));
        let waiting_lines: Vec<&str> = code.lines().filter(waits).collect();
        assert_eq!(waiting_lines.len(), allowed, "{waiting_lines:?}");
    }
}
