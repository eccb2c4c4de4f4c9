//! Activation checkpointing: gradients are bitwise equal to those without it.

use tch::{Kind, Tensor};

use super::families::all_cases;
use super::{pack, predicting, rows, tiny};
use crate::model::{LayerHooks, LoraConfig, Model, layer_of};
use crate::native::forget_gradients;
use r1_base::error::Result;

/// How [`learn`] computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Plain,
    ByLayer,
    Recomputed,
}

/// The layers of the calls of hooks.
#[derive(Default)]
struct Calls {
    before: Vec<usize>,
    forward: Vec<usize>,
    backward: Vec<usize>,
    /// The layers that had gradients at each call after a backward pass.
    with_gradients: Vec<Vec<usize>>,
    model: Vec<(String, Tensor)>,
}

impl LayerHooks for Calls {
    fn before(&mut self, layer: usize) -> Result<()> {
        self.before.push(layer);
        Ok(())
    }

    fn after_forward(&mut self, layer: usize) -> Result<()> {
        self.forward.push(layer);
        Ok(())
    }

    fn after_backward(&mut self, layer: usize) -> Result<()> {
        self.backward.push(layer);
        let with_gradient = self.model.iter().filter(|(_, tensor)| tensor.grad().defined());
        let mut layers: Vec<usize> = with_gradient.filter_map(|(name, _)| layer_of(name)).collect();
        layers.dedup();
        self.with_gradients.push(layers);
        Ok(())
    }
}

/// Loss and gradients through [`Model::learn`].
fn learn(model: &Model, rows: &[Vec<u32>], how: How) -> (f64, Vec<(String, Tensor)>) {
    let (places, targets) = predicting(rows);
    forget_gradients(model.parameters().iter().map(|(_, parameter)| parameter)).unwrap();
    let mut calls = Calls { model: model.parameters(), ..Calls::default() };
    let pass = match how {
        How::Plain => model.learn(&pack(rows)),
        How::ByLayer => model.learn_by_layer(&pack(rows)),
        How::Recomputed => model.learn_recomputed(&pack(rows), &mut calls),
    };
    let pass = pass.unwrap();
    let (logp, entropy) = model.logprobs(&pass.hidden().index_select(0, &places), &targets, 0.9, 7).unwrap();
    let loss = (logp * (targets.to_kind(model.kind()) * 0.3).sin() - entropy * 0.1).mean(None);
    if how == How::Plain {
        pass.backward(&loss).unwrap();
    } else {
        pass.backward_by_layer(&loss, &mut calls).unwrap();
        let layers: Vec<usize> = (0..model.config.num_hidden_layers).collect();
        let down: Vec<usize> = layers.iter().rev().copied().collect();
        assert_eq!(calls.backward, down);
        let recomputes = how == How::Recomputed || !calls.before.is_empty();
        let (forward, both) = (layers.clone(), [&layers[..], &down].concat());
        assert!(!recomputes || calls.forward.is_empty() || (calls.forward == forward && calls.before == both));
        // No layer below has a gradient yet.
        for (layer, seen) in down.iter().zip(&calls.with_gradients) {
            assert!(seen.iter().all(|seen| seen >= layer), "{layer}: {seen:?}");
        }
    }
    let wanted = model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad());
    // An expert without tokens has no gradient.
    let with_gradient = wanted.filter(|(_, tensor)| tensor.grad().defined());
    (loss.double_value(&[]), with_gradient.map(|(name, tensor)| (name, tensor.grad().copy())).collect())
}

fn same_either_way(mut model: Model, rows: &[Vec<u32>], what: &str) {
    let (loss, gradients) = learn(&model, rows, How::Plain);
    assert!(gradients.iter().any(|(_, gradient)| gradient.abs().max().double_value(&[]) > 0.0), "{what}");
    let same = |(again, other): (f64, Vec<(String, Tensor)>), how: &str| {
        assert_eq!(loss, again, "{what} {how}");
        assert_eq!(gradients.len(), other.len(), "{what} {how}");
        for ((name, gradient), (other_name, other)) in gradients.iter().zip(&other) {
            assert_eq!((name, gradient), (other_name, other), "{what} {how}");
        }
    };
    same(learn(&model, rows, How::ByLayer), "by layer");
    if model.native_f32().is_none() {
        same(learn(&model, rows, How::Recomputed), "recomputed");
    }
    model.set_checkpointing(true);
    same(learn(&model, rows, How::Plain), "checkpointing");
    same(learn(&model, rows, How::ByLayer), "checkpointing by layer");
}

#[test]
fn gradient_checkpointing_gives_bitwise_equal_gradients() {
    for kind in [Kind::Float, Kind::Double] {
        for tied in [true, false] {
            same_either_way(tiny(tied, kind), &rows(&[5, 1, 17, 9], 53), &format!("{kind:?} {tied}"));
        }
    }
    // Rows with a common prefix are one tree; further rows make several chunks.
    let prompt = rows(&[700], 53).remove(0);
    let mut many: Vec<Vec<u32>> = rows(&[900, 40, 800, 850, 3], 53);
    many.extend((0..4).map(|tail| [prompt.as_slice(), &[tail, 7, 2 * tail]].concat()));
    same_either_way(tiny(true, Kind::Float), &many, "chunks");
}

#[test]
fn gradient_checkpointing_works_for_every_family() {
    for case in all_cases() {
        same_either_way(case.model(), &case.rows(), &case.name);
    }
}

#[test]
fn gradient_checkpointing_works_with_lora_and_frozen_weights() {
    let mut model = tiny(true, Kind::Float);
    model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "down_proj"]), 3).unwrap();
    tch::no_grad(|| {
        for (name, mut tensor) in model.parameters() {
            if name.contains("lora_B") {
                let _ = tensor.fill_(0.1);
            }
        }
    });
    same_either_way(model, &rows(&[5, 9], 53), "adapter");
    let model = tiny(true, Kind::Double);
    for (name, tensor) in model.parameters() {
        let _ = tensor.set_requires_grad(name.contains("layers.1"));
    }
    same_either_way(model, &rows(&[5, 9], 53), "frozen");
}

#[test]
fn gradient_checkpointing_keeps_fewer_activations() {
    // The activations of the CPU kernels can't be measured here; the plain operations keep the
    // inputs of the layers.
    let mut model = tiny(true, Kind::Double);
    model.set_checkpointing(true);
    let pass = model.learn(&pack(&rows(&[5, 9], 53))).unwrap();
    assert!(pass.hidden().requires_grad());
    // Without backward through the pass the layers have no gradient.
    pass.hidden().sum(Kind::Double).backward();
    let of = |name: &str| {
        model.parameters().into_iter().find(|(parameter, _)| parameter == name).unwrap().1.grad().defined()
    };
    assert!(of("model.norm.weight") && !of("model.layers.0.mlp.up_proj.weight"));
}
