#![allow(clippy::unwrap_used)]

use tch::Device;

use super::*;
use crate::adamw;
use crate::config::InitModel;
use crate::mdp::Sampling;
use crate::model::Config;

pub(crate) fn model(kind: Dtype) -> Model {
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
pub(crate) fn row(trajectory: usize, pieces: &[(&[u32], bool)], first_step: u32) -> Row {
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

pub(crate) fn batch(mut rows: Vec<Row>, advantage: impl Fn(usize) -> f64) -> Vec<Row> {
    for row in &mut rows {
        row.advantages = vec![advantage(row.trajectory); row.len()];
    }
    rows
}

/// Loss and gradients of a batch, without an optimiser step.
fn gradients(model: &Model, batch: &[Row], learner: &Learner) -> (f64, Vec<Tensor>) {
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
    let objective = Objective::new(learner, &Sampling::default(), false).unwrap();
    let update = Update {
        model,
        objective: &objective,
        learner,
        temperature: 1.0,
        kl_coef: 0.0,
        lr: 0.0,
        shards: &Shards::default(),
    };
    let mut stats = UpdateStats::default();
    optimizer.zero_grad();
    update.backward(&mut optimizer, batch, None, &mut stats).unwrap();
    (stats.loss, model.parameters().iter().map(|(_, tensor)| tensor.grad().copy()).collect())
}

pub(crate) fn learner(loss: &str, tokens_per_batch: usize) -> Learner {
    let loss = crate::config::Choice::new(loss);
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

/// The gradients of bf16 weights are the sums of the micro-batches' gradients in f32.
#[test]
fn micro_batches_of_bf16_weights_are_added_up_in_f32() {
    let model = model(Dtype::BFloat16);
    let rows: Vec<Row> =
        (0..32).map(|n| row(n as usize, &[(&[1 + n % 30, 2], false), (&[3 + n % 20, 7], true)], 0)).collect();
    let all = batch(rows.clone(), |trajectory| (trajectory as f64 * 0.7).sin() + 0.3);
    // With a budget of one token, every row is a micro-batch.
    let learner = learner("reinforce", 1);
    let mut exact: Vec<Tensor> = Vec::new();
    for (members, gradient) in rows.iter().zip(&all) {
        let mut only = all.clone();
        for row in only.iter_mut().filter(|row| row.trajectory != members.trajectory) {
            row.advantages.fill(0.0);
        }
        assert_eq!(gradient.trajectory, members.trajectory);
        let (_, summed) = gradients(&model, &only, &learner);
        if exact.is_empty() {
            exact = summed.iter().map(|gradient| gradient.zeros_like().to_kind(Dtype::Double)).collect();
        }
        exact = exact.iter().zip(&summed).map(|(sum, gradient)| sum + gradient).collect();
    }
    let norm = exact.iter().map(|gradient| gradient.square().sum(Dtype::Double).double_value(&[])).sum::<f64>().sqrt();
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
    let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
    let update = Update {
        model: &model,
        objective: &objective,
        learner: &learner,
        temperature: 1.0,
        kl_coef: 0.0,
        lr: 0.0,
        shards: &Shards::default(),
    };
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
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
    let update = Update {
        model: &model,
        objective: &objective,
        learner: &learner,
        temperature: 1.0,
        kl_coef: 0.0,
        lr: 0.0,
        shards: &Shards::default(),
    };
    let error = update.step(&mut optimizer, &batch).unwrap_err();
    assert_eq!(error.message, "token id 40 is outside the model's vocabulary of 40");
    assert_eq!((error.kind, error.place.as_deref()), (Kind::Model, Some("trajectory 4")));
}

#[test]
fn rows_without_advantage_are_not_computed_and_change_nothing() {
    let model = model(Dtype::Double);
    let rows = vec![row(0, &[(&[1, 2], false), (&[3], true)], 0), row(1, &[(&[4], false), (&[5, 6], true)], 0)];
    let batch = batch(rows, |trajectory| if trajectory == 0 { 1.0 } else { 0.0 });
    let plain = learner("ppo", 1000);
    let objective = Objective::new(&plain, &Sampling::default(), false).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
    let update = Update {
        model: &model,
        objective: &objective,
        learner: &plain,
        temperature: 1.0,
        kl_coef: 0.0,
        lr: 0.0,
        shards: &Shards::default(),
    };
    let stats = update.step(&mut optimizer, &batch).unwrap();
    assert_eq!((stats.tokens, stats.sampled), (3, 1));
    assert!(model.parameters().iter().all(|(_, tensor)| !tensor.grad().defined()), "gradients are kept");
    // With a tiny entropy bonus they are computed.
    let all = Learner { entropy: 1e-300, ..plain.clone() };
    let objective = Objective::new(&all, &Sampling::default(), false).unwrap();
    let stats = Update { objective: &objective, learner: &all, ..update }.step(&mut optimizer, &batch).unwrap();
    assert_eq!((stats.tokens, stats.sampled), (6, 3));
    let (_, some) = gradients(&model, &batch, &plain);
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
    let mut optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default()).unwrap();
    for on_nan in [OnNan::Stop, OnNan::Skip] {
        let learner = Learner { on_nan, ..learner("ppo", 1) };
        let objective = Objective::new(&learner, &Sampling::default(), false).unwrap();
        let update = Update {
            model: &model,
            objective: &objective,
            learner: &learner,
            temperature: 1.0,
            kl_coef: 0.0,
            lr: 1.0,
            shards: &Shards::default(),
        };
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
