//! Reference network with padding: rows padded to a rectangle, eager attention, a padding mask.
//!
//! The model itself never pads; a padded row must give the same result.

use tch::{Kind, Tensor};

use crate::model::Model;
use crate::model::decoder::{Residual, With};
use crate::model::expert_routing::Routes;
use crate::model::mixers::Mixer;
use crate::model::plain::Arithmetic;

/// Hidden states `[T, E]` of one row of ids `[T]`, with padding where `mask` is 0.
///
/// A fully masked query (padding on the left) has uniform attention, as in the eager attention of
/// transformers.
pub(super) fn forward(model: &Model, ids: &[i64], mask: &[i64], positions: &[i64]) -> Tensor {
    let tokens = ids.len() as i64;
    let longest = positions.iter().max().unwrap() + 1;
    let angles = model.angles(&Tensor::from_slice(positions), &[(tokens, longest)]).unwrap();
    let row = Tensor::arange(tokens, (Kind::Int64, model.device()));
    let back = row.unsqueeze(1) - row.unsqueeze(0);
    let with = With { arithmetic: Arithmetic::Libtorch, routes: &Routes::Free, cached: None, recurrence: None };
    let mut x = Residual::new(model.embed(&Tensor::from_slice(ids)).unwrap());
    for (index, layer) in model.parameters.layers.iter().enumerate() {
        let mut seen = back.ge(0).logical_and(&Tensor::from_slice(mask).ne(0));
        if let Some(window) = model.config.layer(index).window {
            seen = seen.logical_and(&back.lt(window as i64));
        }
        let bias = Tensor::zeros_like(&seen.to_kind(Kind::Float)).masked_fill(&seen.logical_not(), f64::from(f32::MIN));
        let scale = model.config.attention_scale.unwrap_or((model.config.head_dim as f64).powf(-0.5));
        let attend = |q: &Tensor, new: Option<[&Tensor; 2]>| -> r1_base::Result<Tensor> {
            let [k, v] = new.unwrap();
            let shared = q.size()[1] / k.size()[1];
            let heads = |x: &Tensor| x.repeat_interleave_self_int(shared, 1, None).transpose(0, 1);
            let mut scores = q.transpose(0, 1).matmul(&heads(k).transpose(1, 2)) * scale + &bias;
            let Mixer::Attention(attention) = &layer.mixer else { panic!("a layer without attention") };
            if let Some(sinks) = &attention.sinks {
                let sinks = sinks.view([-1, 1, 1]).expand([-1, scores.size()[1], 1], false);
                scores = Tensor::cat(&[scores, sinks], -1);
            }
            let weights = scores.softmax(-1, None).narrow(-1, 0, tokens);
            Ok(weights.matmul(&heads(v)).transpose(0, 1).contiguous())
        };
        x = model.layer(index, layer, &x, &angles, with, attend).unwrap();
    }
    model.add_norm(&x, &model.parameters.norm).unwrap().0 * model.config.logits_scale
}

/// Logits `[row, V]` of a row with `left` padding before it and `right` after it.
pub(super) fn logits(model: &Model, row: &[u32], left: usize, right: usize) -> Tensor {
    let real = row.len();
    let padded = |inside: &mut dyn Iterator<Item = i64>| -> Vec<i64> {
        let mut all = vec![0; left];
        all.extend(inside);
        all.resize(left + real + right, 0);
        all
    };
    let ids = padded(&mut row.iter().map(|&id| i64::from(id)));
    let mask = padded(&mut (0..real).map(|_| 1));
    let positions = padded(&mut (0..real as i64));
    let hidden = forward(model, &ids, &mask, &positions);
    model.logits(&hidden.narrow(0, left as i64, real as i64)).unwrap()
}
