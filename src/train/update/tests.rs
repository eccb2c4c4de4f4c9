#![allow(clippy::unwrap_used)]

use tch::Device;

use super::*;
use crate::config::{Binary, InitModel, Input, LossGraph, Op, Operand, Unary};
use crate::mdp::Sampling;
use crate::model::Config;
use crate::rl::adamw;

fn model(kind: Dtype) -> Model {
    let sizes = InitModel {
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        max_position_embeddings: 64,
        vocab_size: 40,
        ..InitModel::default()
    };
    let json = serde_json::json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size, "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_hidden_layers, "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": sizes.max_position_embeddings, "tie_word_embeddings": true,
    });
    Model::init(Config::from_json(&json).unwrap(), Device::Cpu, kind, 5).unwrap()
}

/// A row of `(tokens, sampled)` pieces, the steps counted by sampled pieces.
fn row(trajectory: usize, pieces: &[(&[u32], bool)], first_step: u32) -> Row {
    let mut row = Row { ids: vec![], loss_mask: vec![], logprobs: vec![], steps: vec![], trajectory, ..Row::default() };
    let mut step = first_step;
    for (ids, sampled) in pieces {
        for id in *ids {
            row.ids.push(*id);
            row.loss_mask.push(*sampled);
            row.logprobs.push(if *sampled { -3.0 - *id as f32 / 40.0 } else { 0.0 });
            row.steps.push(step);
        }
        step += u32::from(*sampled);
    }
    row
}

fn batch(mut rows: Vec<Row>, advantage: impl Fn(usize) -> f64) -> UpdateBatch {
    for row in &mut rows {
        row.advantages = vec![advantage(row.trajectory); row.len()];
    }
    UpdateBatch { rows, ..UpdateBatch::default() }
}

/// Loss and gradients of a batch, without an optimiser step.
fn gradients(model: &Model, batch: &UpdateBatch, learner: &Learner) -> (f64, Vec<Tensor>) {
    let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
    let objective = Objective::new(learner, &Sampling::default(), false).unwrap();
    let update = Update { model, objective: &objective, learner, temperature: 1.0, kl_coef: 0.0, lr: 0.0 };
    let mut stats = UpdateStats::default();
    optimizer.zero_grad();
    update.backward(&mut optimizer, batch, None, &mut stats).unwrap();
    (stats.loss, model.parameters().iter().map(|(_, tensor)| tensor.grad().copy()).collect())
}

fn learner(loss: &str, tokens_per_batch: usize) -> Learner {
    let loss = crate::config::Choice { name: loss.to_owned(), options: serde_json::Map::new() };
    Learner { loss, tokens_per_batch, ..Learner::default() }
}

#[test]
fn merged_rows_have_the_gradient_of_separate_steps() {
    let model = model(Dtype::Double);
    let (a, b, c, d): (&[u32], &[u32], &[u32], &[u32]) = (&[1, 2, 3], &[4, 5], &[6], &[7, 8, 9]);
    let other: &[(&[u32], bool)] = &[(&[1, 2], false), (&[30, 31], true)];
    let merged = vec![row(0, &[(a, false), (b, true), (c, false), (d, true)], 0), row(1, other, 0)];
    let separate = vec![
        row(0, &[(a, false), (b, true)], 0),
        row(0, &[(&[a, b, c].concat(), false), (d, true)], 1),
        row(1, other, 0),
    ];
    // The second step's prompt belongs to it.
    for loss in ["ppo", "gspo", "dr_grpo", "reinforce"] {
        for budget in [1, 1000] {
            let advantage = |trajectory| if trajectory == 0 { 1.5 } else { -0.5 };
            let one = gradients(&model, &batch(merged.clone(), advantage), &learner(loss, 1000));
            let many = gradients(&model, &batch(separate.clone(), advantage), &learner(loss, budget));
            assert!((one.0 - many.0).abs() < 1e-12, "{loss}: {} {}", one.0, many.0);
            for (a, b) in one.1.iter().zip(&many.1) {
                let off = (a - b).abs().max().double_value(&[]);
                assert!(off < 1e-12, "{loss}: {off}");
            }
        }
    }
}

/// The gradients of bf16 weights are those of the micro-batches, added up in f32.
#[test]
fn micro_batches_of_bf16_weights_are_added_up_in_f32() {
    let model = model(Dtype::BFloat16);
    let rows: Vec<Row> =
        (0..32).map(|n| row(n as usize, &[(&[1 + n % 30, 2], false), (&[3 + n % 20, 7], true)], 0)).collect();
    let all = batch(rows.clone(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    // With a budget of one token, every row is a micro-batch.
    let learner = learner("reinforce", 1);
    let mut exact: Vec<Tensor> = Vec::new();
    for (members, own) in rows.iter().zip(&all.rows) {
        let mut only = all.rows.clone();
        for row in only.iter_mut().filter(|row| row.trajectory != members.trajectory) {
            row.advantages.fill(0.0);
        }
        assert_eq!(own.trajectory, members.trajectory);
        let (_, found) = gradients(&model, &UpdateBatch { rows: only, ..UpdateBatch::default() }, &learner);
        if exact.is_empty() {
            exact = found.iter().map(|own| own.zeros_like().to_kind(Dtype::Double)).collect();
        }
        exact = exact.iter().zip(&found).map(|(sum, own)| sum + own).collect();
    }
    let norm = exact.iter().map(|own| own.square().sum(Dtype::Double).double_value(&[])).sum::<f64>().sqrt();
    let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
    let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
    let update =
        Update { model: &model, objective: &objective, learner: &learner, temperature: 1.0, kl_coef: 0.0, lr: 0.0 };
    let stats = update.step(&mut optimizer, &all).unwrap();
    assert!((stats.grad_norm / norm - 1.0).abs() < 1e-5, "{} and {norm}", stats.grad_norm);
}

#[test]
fn an_id_outside_the_vocabulary_is_refused_with_its_trajectory() {
    let model = model(Dtype::Float);
    let rows = vec![row(4, &[(&[1, 2], false), (&[40], true)], 0)];
    let batch = batch(rows, |_| 1.0);
    let learner = learner("ppo", 100);
    let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
    let update =
        Update { model: &model, objective: &objective, learner: &learner, temperature: 1.0, kl_coef: 0.0, lr: 0.0 };
    let error = update.step(&mut optimizer, &batch).unwrap_err();
    assert_eq!(error.message, "token id 40 is outside the model's vocabulary of 40");
    assert_eq!((error.kind, error.place.as_deref()), (Kind::Model, Some("trajectory 4")));
}

#[test]
fn rows_without_advantage_are_not_computed_and_change_nothing() {
    let model = model(Dtype::Double);
    let rows = vec![row(0, &[(&[1, 2], false), (&[3], true)], 0), row(1, &[(&[4], false), (&[5, 6], true)], 0)];
    let batch = batch(rows, |trajectory| if trajectory == 0 { 1.0 } else { 0.0 });
    let usual = learner("ppo", 1000);
    let objective = Objective::new(&usual, &Sampling::default(), false).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
    let update =
        Update { model: &model, objective: &objective, learner: &usual, temperature: 1.0, kl_coef: 0.0, lr: 0.0 };
    let stats = update.step(&mut optimizer, &batch).unwrap();
    assert_eq!((stats.tokens, stats.sampled), (3, 1));
    assert!(model.parameters().iter().all(|(_, tensor)| !tensor.grad().defined()), "gradients are kept");
    // With a tiny entropy bonus they are computed.
    let all = Learner { entropy: 1e-300, ..usual.clone() };
    let objective = Objective::new(&all, &Sampling::default(), false).unwrap();
    let stats = Update { objective: &objective, learner: &all, ..update }.step(&mut optimizer, &batch).unwrap();
    assert_eq!((stats.tokens, stats.sampled), (6, 3));
    let (_, some) = gradients(&model, &batch, &usual);
    let (_, every) = gradients(&model, &batch, &all);
    for (a, b) in some.iter().zip(&every) {
        assert!((a - b).abs().max().double_value(&[]) < 1e-15);
    }
}

#[test]
fn a_nan_loss_stops_the_run_or_skips_the_step_and_changes_no_weight() {
    let model = model(Dtype::Float);
    let rows = vec![row(0, &[(&[1, 2], false), (&[3], true)], 0), row(3, &[(&[4], false), (&[5, 6], true)], 0)];
    let batch = batch(rows, |trajectory| if trajectory == 0 { 1.0 } else { f64::NAN });
    let before: Vec<Tensor> = model.parameters().iter().map(|(_, tensor)| tensor.detach().copy()).collect();
    let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
    for on_nan in [OnNan::Stop, OnNan::Skip] {
        let learner = Learner { on_nan, ..learner("ppo", 1) };
        let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
        let update =
            Update { model: &model, objective: &objective, learner: &learner, temperature: 1.0, kl_coef: 0.0, lr: 1.0 };
        let stepped = update.step(&mut optimizer, &batch);
        match on_nan {
            OnNan::Skip => {
                let why = stepped.unwrap().skipped.unwrap();
                assert_eq!(why.place.as_deref(), Some("trajectory 3"));
            }
            OnNan::Stop => {
                let error = stepped.unwrap_err();
                assert_eq!((error.kind, error.place.as_deref()), (Kind::Numeric, Some("trajectory 3")));
            }
        }
        for ((name, tensor), before) in model.parameters().iter().zip(&before) {
            assert_eq!(&tensor.detach(), before, "{name}");
        }
    }
}

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

/// Everything of an update but attention is what a GPU computes; attention is padded here.
#[test]
fn micro_batches_never_wait_for_the_device() {
    let model = model(Dtype::BFloat16);
    let all = batch(six_rows(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    for loss in crate::rl::objective::Objective::NAMES {
        // A selection among all tokens of a mini-batch is read once; a KL needs a reference policy.
        if !crate::rl::objective::Objective::named(loss).unwrap().needs().is_empty() {
            continue;
        }
        for &budget in if loss == "ppo" { &[1000, 8, 4][..] } else { &[8] } {
            let mut learner = learner(loss, budget);
            learner.loss.options.insert("entropy_coef".to_owned(), 0.01.into());
            let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
            let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
            let update = Update {
                model: &model,
                objective: &objective,
                learner: &learner,
                temperature: 1.0,
                kl_coef: 0.0,
                lr: 1e-3,
            };
            let stats = assert_no_waits(loss, || update.step(&mut optimizer, &all));
            assert!(stats.stepped && stats.grad_norm > 0.0 && stats.ratios.tokens == 12, "{loss}: {stats:?}");
        }
    }
}

#[test]
fn micro_batches_of_custom_losses_never_wait_for_the_device() {
    let model = model(Dtype::BFloat16);
    let mut graph = LossGraph::default();
    let mut push = |op: Op| Operand::Node(graph.push(op, "x.lua:1".to_owned()).unwrap());
    let logp = push(Op::Input(Input::Logp));
    let sums = push(Op::SumOver(logp, Over::Group));
    let advantages = push(Op::Input(Input::Advantages));
    let product = push(Op::Binary(Binary::Mul, sums, advantages));
    push(Op::Unary(Unary::Neg, product));
    (graph.result, graph.logged) = (4, vec![("sum".to_owned(), 1)]);
    let mut all = batch(six_rows(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    all.group_of = vec![0, 0, 1, 1, 2, 9];
    let update_with = |graph: LossGraph| {
        let learner = learner("ppo", 8);
        let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
        let objective = Objective { custom: Some(graph.into()), ..objective };
        let mut optimizer = AdamW::new(model.parameters(), adamw::Options::default()).unwrap();
        let update = Update {
            model: &model,
            objective: &objective,
            learner: &learner,
            temperature: 1.0,
            kl_coef: 0.0,
            lr: 1e-3,
        };
        update.step(&mut optimizer, &all)
    };
    let stats = assert_no_waits("a custom loss", || update_with(graph.clone()));
    let logged = stats.logged["sum"];
    assert!(stats.stepped && logged.tokens == 12 && logged.sum < 0.0, "{stats:?}");
    // The line of a value that is not finite is named after the update.
    graph.nodes[4].op = Op::Unary(Unary::Log, product);
    let error = update_with(graph).unwrap_err();
    assert_eq!(error.message, "the loss is not finite: a value that is NaN or infinite is computed at x.lua:1");
    assert!(error.place.unwrap().starts_with("trajector"));
}

/// A critic with weights of its own, and one that shares the policy's.
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
    for own in [true, false] {
        let critic = crate::model::Critic::new(&policy, own.then(|| model(Dtype::BFloat16))).unwrap();
        let mut optimizer = AdamW::new(critic.parameters(), adamw::Options::default()).unwrap();
        let stats = assert_no_waits("a critic", || {
            super::super::value::update_critic(&critic, &policy, &mut optimizer, &all, &learner)
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
        (include_str!("../../rl/objective.rs"), 0),
        (include_str!("../../rl/aggregate.rs"), 0),
        (include_str!("../../rl/custom.rs"), 1),
        (include_str!("../../rl/kl.rs"), 0),
        (include_str!("../../rl/segments.rs"), 1),
        (include_str!("../../rl/losses/gspo.rs"), 0),
        (include_str!("../../rl/losses/geo_mean.rs"), 0),
        (include_str!("../../rl/losses/ppo.rs"), 0),
        (include_str!("../../rl/losses/value.rs"), 0),
        (include_str!("../../rl/losses/vespo.rs"), 0),
        (include_str!("../../rl/pack.rs"), 1),
        (include_str!("../../model/pass.rs"), 0),
        (include_str!("../../model/decoder.rs"), 0),
        (include_str!("../../model/shared_prefix.rs"), 0),
        (include_str!("../../model/batch.rs"), 1),
    ];
    for (source, allowed) in sources {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let reads = ["64::try_from(", "32::try_from(", ">::try_from(", "double_value(", "int64_value(", "copy_data("];
        let waits = |line: &&str| reads.iter().chain(&["f_to_device("]).any(|wait| line.contains(wait));
        let found: Vec<&str> = code.lines().filter(waits).collect();
        assert_eq!(found.len(), allowed, "{found:?}");
    }
}
