//! Tests of whole models: comparison with transformers, cache, files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::float_cmp, clippy::print_stdout)]

mod checkpointing;
mod critic;
mod cross_encoder;
mod distinct;
mod encoder;
mod encoder_device;
mod exchange;
mod experts;
mod families;
mod families_2026;
mod files;
mod gated_delta;
mod golden;
#[cfg(feature = "cpu-kernels")]
mod half;
mod hostile;
#[cfg(feature = "cpu-kernels")]
mod invariance;
mod lora;
#[cfg(feature = "cpu-kernels")]
mod native;
mod operations;
mod own_kernels;
mod padded;
mod parity;
pub(crate) mod real;
mod reward_model;
mod routing;
mod stacked;
mod stored;
mod table;
mod varlen;
mod vision;
mod vision_models;

use tch::{Device, Kind, Tensor};

pub(super) use hostile::draw;

use super::{Config, Model, Packed};

/// A tiny model with grouped queries and odd sizes.
fn tiny(tied: bool, kind: Kind) -> Model {
    let config = Config {
        vocab_size: 53,
        hidden_size: 24,
        intermediate_size: 40,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 4,
        tie_word_embeddings: tied,
        initializer_range: 0.3,
        ..Config::default()
    };
    let model = Model::init(config, Device::Cpu, kind, 7).unwrap();
    // Initial biases and norms are constants, which would hide errors.
    tch::no_grad(|| {
        for (index, (name, mut tensor)) in model.parameters().into_iter().enumerate() {
            if tensor.dim() == 1 {
                let ramp = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu));
                let offset = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
                tensor.copy_(&(((ramp * 0.7 + index as f64).sin() * 0.3) + offset));
            }
        }
    });
    model
}

/// Pseudo-random ids.
fn ids(seed: u64, count: usize, vocab: u64) -> Vec<u32> {
    (0..count as u64).map(|at| ((seed * 7919 + at * 104_729 + at * at * 31) % vocab) as u32).collect()
}

fn rows(lengths: &[usize], vocab: u64) -> Vec<Vec<u32>> {
    lengths.iter().enumerate().map(|(row, &length)| ids(row as u64 + 1, length, vocab)).collect()
}

fn pack(rows: &[Vec<u32>]) -> Packed {
    Packed::from_rows(rows, Device::Cpu).unwrap()
}

/// Positions in the packed batch with a next token, and these tokens.
fn predicting(rows: &[Vec<u32>]) -> (Tensor, Tensor) {
    let (mut places, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        places.extend(start..start + row.len() as i64 - 1);
        targets.extend(row[1..].iter().map(|&id| i64::from(id)));
        start += row.len() as i64;
    }
    (Tensor::from_slice(&places), Tensor::from_slice(&targets))
}

/// Gradients of `loss` for every parameter, by name.
fn gradients(model: &Model, loss: &Tensor) -> Vec<(String, Tensor)> {
    let (names, leaves): (Vec<String>, Vec<Tensor>) = model.parameters().into_iter().unzip();
    names.into_iter().zip(Tensor::run_backward(&[loss], &leaves, true, false)).collect()
}

/// Largest absolute difference; infinite if either side has NaN.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    let worst = (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[]);
    if worst.is_nan() { f64::INFINITY } else { worst }
}
