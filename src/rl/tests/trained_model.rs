//! Gradients and ten AdamW steps of a trained model of 260 thousand parameters (reference data),
//! compared with PyTorch in f32.

use std::collections::BTreeMap;

use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::padded::assert_close;
use crate::adamw::{AdamW, AdamWOptions};
use crate::model::{Model, Packed};
use crate::reference_data::reference_data;
use crate::rl::aggregate::{Denominators, aggregate};
use crate::rl::pack::{MicroBatch, Row};

#[derive(Deserialize)]
struct Golden {
    input_ids: Vec<Vec<u32>>,
    loss: f64,
    token_logprobs: Vec<Vec<f64>>,
    grad_norm: BTreeMap<String, f64>,
    grad_first: BTreeMap<String, Vec<f64>>,
    total_grad_norm: f64,
    adamw: Steps,
}

#[derive(Deserialize)]
struct Steps {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    clip: f64,
    losses: Vec<f64>,
    after: BTreeMap<String, After>,
}

#[derive(Deserialize)]
struct After {
    norm: f64,
    first: Vec<f64>,
}

fn first(tensor: &Tensor, count: usize) -> Vec<f64> {
    Vec::try_from(tensor.detach().flatten(0, -1).narrow(0, 0, count as i64).to_kind(Kind::Double)).unwrap()
}

fn norm(tensor: &Tensor) -> f64 {
    tensor.detach().norm_scalaropt_dtype(2.0, Kind::Double).double_value(&[])
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn gradients_and_ten_updates_equal_pytorch() {
    let dir = reference_data("stories260k");
    let text = std::fs::read_to_string(dir.join("train_goldens.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let model = Model::load(&dir.join("hf"), Device::Cpu, Kind::Float).unwrap();
    let row = |(trajectory, ids): (usize, &Vec<u32>)| Row {
        ids: ids.clone(),
        loss_mask: (0..ids.len()).map(|i| i > 0).collect(),
        logprobs: vec![0.0; ids.len()],
        steps: vec![0; ids.len()],
        advantages: vec![1.0; ids.len()],
        trajectory,
        ..Row::default()
    };
    let rows: Vec<Row> = golden.input_ids.iter().enumerate().map(row).collect();
    // REINFORCE with an advantage of 1 is the mean negative log-likelihood.
    let loss = || {
        let batch = MicroBatch::new(&rows, &[0, 1, 2], 1 << 20, Device::Cpu).unwrap();
        let (ids, positions, lengths) = (batch.ids, batch.positions, batch.lengths);
        let packed = Packed { ids, positions, lengths, routing: None, on_host: None };
        let hidden = model.forward(&packed).unwrap().index_select(0, &batch.predict);
        let (logp, _) = model.logprobs(&hidden, &batch.targets, 1.0, 64).unwrap();
        let token_loss = batch.advantages.neg() * &logp;
        let loss = aggregate(&token_loss, &batch.sequence, crate::config::LossAgg::TokenMean, &Denominators::of(&rows));
        (loss.unwrap(), logp)
    };
    let Steps { lr, betas, eps, weight_decay, clip, losses, after } = golden.adamw;
    let options = AdamWOptions { betas, eps, weight_decay, decay_matrices_only: false };
    let parameters = model.parameters();
    let mut optimizer = AdamW::new(model.parameters(), options).unwrap();
    for (step, want) in losses.iter().enumerate() {
        optimizer.zero_grad();
        let (loss, logp) = loss();
        loss.backward();
        assert_close(&format!("loss {step}"), &[loss.double_value(&[])], &[*want], 1e-4);
        if step == 0 {
            assert_close("loss", &[loss.double_value(&[])], &[golden.loss], 1e-5);
            let logp: Vec<f64> = Vec::try_from(logp.detach().to_kind(Kind::Double)).unwrap();
            assert_close("log-probabilities", &logp, &golden.token_logprobs.concat(), 1e-4);
            for (name, parameter) in &parameters {
                let (gradient, want) = (parameter.grad(), &golden.grad_first[name]);
                assert_close(name, &[norm(&gradient)], &[golden.grad_norm[name]], 1e-4);
                assert_close(name, &first(&gradient, want.len()), want, 1e-4);
            }
        }
        let total = optimizer.step(lr, clip).unwrap();
        if step == 0 {
            assert_close("norm", &[total], &[golden.total_grad_norm], 1e-4);
        }
    }
    assert_eq!(after.len(), parameters.len());
    for (name, parameter) in &parameters {
        // Ten steps of f32 in another order of additions.
        assert_close(name, &[norm(parameter)], &[after[name].norm], 1e-4);
        assert_close(name, &first(parameter, after[name].first.len()), &after[name].first, 2e-3);
    }
}
