//! Number of operations of a layer: on a GPU each is at least one kernel, whose launch takes longer
//! than a small computation. Attention is one operation here, as it is on a GPU.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use super::distance;
use crate::model::cache::Layout;
use crate::model::decoder::{Residual, With};
use crate::model::expert_routing::Routes;
use crate::model::own_kernels::Kernels;
use crate::model::plain::Arithmetic;
use crate::model::{Config, KvCache, Model, Span};
use crate::native::count_operations;

/// Operations without a kernel: views, and memory that is not written.
const FREE: [&str; 18] = [
    "view",
    "select",
    "narrow",
    "slice",
    "unsqueeze",
    "squeeze",
    "expand",
    "transpose",
    "t",
    "flatten",
    "chunk",
    "split",
    "split_with_sizes",
    "detach",
    "empty",
    "as_strided",
    "unflatten",
    "alias",
];

/// A layer of Qwen2's kind in bf16 with the switches of a model on CUDA.
fn model() -> Model {
    model_of(1)
}

fn model_of(layers: usize) -> Model {
    let json = serde_json::json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "initializer_range": 0.1,
    });
    let model = Model::init(Config::from_json(&json).unwrap(), Device::Cpu, Kind::BFloat16, 1).unwrap();
    let mut model = model.copy_as(true).unwrap();
    (model.varlen, model.fused_norms) = (true, true);
    let layer = &model.parameters.layers[0];
    tch::no_grad(|| {
        for norm in [&layer.input_norm, &layer.before_block].into_iter().flatten() {
            norm.shallow_clone().copy_(&(Tensor::arange(32, (Kind::Float, Device::Cpu)).cos() * 0.3 + 1.0));
        }
    });
    model
}

/// Output of the layer for x `[T, E]`.
fn layer(model: &Model, x: &Tensor, cache: Option<&(Tensor, Tensor)>) -> r1_base::Result<Tensor> {
    let tokens = x.size()[0];
    let angles = model.angles(&Tensor::arange(tokens, (Kind::Int64, Device::Cpu)), &[(tokens, tokens)])?;
    let positions = Tensor::arange(tokens, (Kind::Int64, Device::Cpu));
    apply(model, x, &angles, &positions, cache)
}

fn apply(
    model: &Model,
    x: &Tensor,
    angles: &crate::model::decoder::Angles,
    positions: &Tensor,
    cache: Option<&(Tensor, Tensor)>,
) -> r1_base::Result<Tensor> {
    let layer = &model.parameters.layers[0];
    let with = With { arithmetic: Arithmetic::Libtorch, routes: &Routes::Free, cached: None, recurrence: None };
    let out = model.layer(0, layer, &Residual::new(x.shallow_clone()), angles, with, |q, new| {
        let [k, v] = new.unwrap();
        if let Some((keys, values)) = cache {
            let _ = keys.shallow_clone().f_index_put_(&[Some(positions)], k, false)?;
            let _ = values.shallow_clone().f_index_put_(&[Some(positions)], v, false)?;
        }
        // In place of flash attention: two operations, whose backward pass has views only.
        Ok(q.f_add(&Tensor::f_cat(&[k, v], 1)?)?)
    })?;
    out.sum()
}

/// Operations with kernels.
fn kernels(counts: &BTreeMap<String, u64>) -> (u64, String) {
    let name = |operation: &str| operation.trim_start_matches("aten::").to_owned();
    let calls: Vec<(String, u64)> = counts
        .iter()
        .map(|(operation, &count)| (name(operation), count))
        .filter(|(name, _)| !FREE.contains(&name.as_str()))
        .collect();
    (calls.iter().map(|(_, count)| count).sum(), format!("{calls:?}"))
}

#[test]
fn a_decode_step_has_at_most_16_operations_a_layer() {
    let model = model();
    let _guard = tch::no_grad_guard();
    let x = Tensor::randn([8, 32], (Kind::BFloat16, Device::Cpu));
    let position = Tensor::arange(8, (Kind::Int64, Device::Cpu));
    let angles = model.angles(&position, &[(8, 8)]).unwrap();
    let cache = || Tensor::zeros([8, 2, 8], (Kind::BFloat16, Device::Cpu));
    let cache = (cache(), cache());
    let (_, counts) = count_operations(|| apply(&model, &x, &angles, &position, Some(&cache))).unwrap();
    let (count, list) = kernels(&counts);
    // Attention as one.
    assert!((10..=16).contains(&(count - 1)), "{count}: {list}");
}

/// The backward pass of a fused norm is one operation on CUDA, and many on the CPU.
#[test]
fn learning_has_at_most_14_operations_a_layer_forward_and_24_backward() {
    let model = model();
    let x = || Tensor::randn([24, 32], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
    let position = Tensor::arange(24, (Kind::Int64, Device::Cpu));
    let angles = model.angles(&position, &[(24, 24)]).unwrap();
    let input = x();
    let (out, counts) = count_operations(|| apply(&model, &input, &angles, &position, None)).unwrap();
    let (count, list) = kernels(&counts);
    assert!((10..=14).contains(&(count - 1)), "forward {count}: {list}");
    let backward = |out: &Tensor| {
        let loss = out.sum(Kind::Float);
        kernels(&count_operations(|| Ok(loss.f_backward()?)).unwrap().1)
    };
    let (layer, list) = backward(&out);
    let norm = backward(&model.norm(&x(), model.parameters.layers[0].input_norm.as_ref().unwrap()).unwrap()).0;
    // Two norms and attention as one operation each.
    let count = layer + 3 - 2 * norm;
    assert!((18..=24).contains(&count), "backward {count}, a norm {norm}: {list}");
}

/// The real step of two layers and of one: the difference is a layer with its attention, whose keys
/// are split over blocks, so that it has two kernels.
#[test]
fn a_decode_step_with_own_kernels_has_10_operations_a_layer() {
    let steps = [1, 2].map(|layers| {
        let mut model = model_of(layers);
        model.kernels = Kernels::all();
        let layout = Layout::Tokens { spare: 1 };
        let mut cache = KvCache::new(&model.config, 3, 256, layout, Device::Cpu, Kind::BFloat16).unwrap();
        let items: Vec<Span<'_>> = (0..3).map(|slot| Span { slot, start: 9 * slot, ids: &[5] }).collect();
        let _guard = tch::no_grad_guard();
        kernels(&count_operations(|| model.step_varlen(&mut cache, &items, &|| false)).unwrap().1)
    });
    let [(one, _), (two, list)] = &steps;
    assert_eq!(two - one, 10, "{one}, {two}: {list}");
}

#[test]
fn learning_with_own_kernels_has_9_operations_a_layer_forward_and_17_backward() {
    let mut model = model();
    model.kernels = Kernels::all();
    let input = Tensor::randn([24, 32], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
    let position = Tensor::arange(24, (Kind::Int64, Device::Cpu));
    let angles = model.angles(&position, &[(24, 24)]).unwrap();
    let (out, counts) = count_operations(|| apply(&model, &input, &angles, &position, None)).unwrap();
    let (count, list) = kernels(&counts);
    // Attention as one; the sum after the layer is part of the next norm.
    assert_eq!(count - 2, 9, "{list}");
    let loss = out.sum(Kind::Float);
    let counts = count_operations(|| Ok(loss.f_backward()?)).unwrap().1;
    let (count, list) = kernels(&counts);
    // Reshapes are views here. The loss has two operations, and the gradients of the stand-in for
    // attention are copied; gradients of attention need no copy.
    let apart = ["reshape", "contiguous", "ones_like", "to"].map(|name| counts.get(&format!("aten::{name}")));
    let apart: u64 = apart.into_iter().flatten().sum();
    // Attention as one more.
    assert_eq!(count - apart + 1, 17, "{list}");
}

#[test]
fn fused_norms_and_joint_products_match_the_plain_operations() {
    let mut model = model();
    let x = || Tensor::arange(24 * 32, (Kind::Float, Device::Cpu)).sin().view([24, 32]).to_kind(Kind::BFloat16);
    let run = |model: &Model| {
        let x = x().set_requires_grad(true);
        let out = layer(model, &x, None).unwrap();
        (&out * &out.detach().cos()).sum(Kind::Float).backward();
        (out.detach().to_kind(Kind::Float), x.grad().to_kind(Kind::Float))
    };
    let fused = run(&model);
    model = model.copy_as(false).unwrap();
    let plain = run(&model);
    // A few roundings of bf16, whose last bit is 2^-8.
    let scale = |x: &Tensor| x.abs().max().double_value(&[]);
    assert!(distance(&fused.0, &plain.0) < 0.03 * scale(&plain.0), "{}", distance(&fused.0, &plain.0));
    assert!(distance(&fused.1, &plain.1) < 0.05 * scale(&plain.1), "{}", distance(&fused.1, &plain.1));
    assert!(distance(&fused.0, &plain.0) > 0.0, "both are the same operations");
}

#[test]
fn counts_are_of_the_operations_that_are_called() {
    let a = Tensor::ones([3, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let (product, counts) = count_operations(|| Ok(a.f_linear(&a, None::<&Tensor>)?.f_add_scalar(1.0)?)).unwrap();
    assert_eq!(counts, BTreeMap::from([("aten::linear".to_owned(), 1), ("aten::add".to_owned(), 1)]));
    let loss = product.sum(Kind::Float);
    let ((), counts) = count_operations(|| Ok(loss.f_backward()?)).unwrap();
    assert!(counts.contains_key("aten::mm") && !counts.contains_key("aten::_backward"), "{counts:?}");
    let nested = count_operations(|| count_operations(|| Ok(())).map(|_| ()));
    assert!(nested.unwrap_err().message.contains("counted already"));
    assert!(count_operations(|| Ok(())).is_ok());
}
