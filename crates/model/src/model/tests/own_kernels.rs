//! r1's CUDA kernels, executed on the CPU: compared with libtorch's operations, one by one and in
//! whole models.

use std::collections::HashMap;

use tch::{Device, Kind};

use super::families::{Case, cases};
use super::stacked::learn;
use super::{distance, ids};
use crate::model::cache::Layout;
use crate::model::kernel_checks::{Shapes, check_kernels};
use crate::model::own_kernels::Kernels;
use crate::model::{Config, KvCache, Model, Span};

#[test]
fn kernels_agree_with_libtorch() {
    crate::native::set_threads(1);
    let mut checks = check_kernels(Device::Cpu, false).unwrap();
    assert!(checks.len() > 60, "{}", checks.len());
    checks.retain(|case| !case.agrees());
    assert!(checks.is_empty(), "{checks:#?}");
}

/// A model with all kernels that support its sizes, and the same without. `agreeing` has the
/// kernels of the sizes that were compared before.
fn both(model: &Model, kind: Kind, agreeing: &mut HashMap<String, Kernels>) -> (Model, Model) {
    let (mut plain, mut fused) = (model.copy_in(true, kind).unwrap(), model.copy_in(true, kind).unwrap());
    let shapes = Shapes::of(&model.config);
    let kernels = *agreeing.entry(format!("{kind:?} {shapes:?}")).or_insert_with(|| {
        let names = ["norm", "rope", "gated", "logprobs", "attention"];
        let (kernels, failure) = Kernels::agreeing(&names, &shapes, Device::Cpu, kind);
        assert_eq!(failure, None);
        kernels
    });
    assert!(kernels.norm && kernels.rope && kernels.gated && kernels.logprobs);
    (plain.varlen, fused.varlen, fused.kernels) = (true, true, kernels);
    (plain, fused)
}

#[test]
fn every_family_learns_and_decodes_with_kernels_as_without() {
    crate::native::set_threads(1);
    let mut agreeing = HashMap::new();
    for case in cases("golden") {
        let (plain, fused) = both(&case.model(), Kind::Float, &mut agreeing);
        learns_the_same(&case, &plain, &fused);
        decodes_the_same(&case, &plain, &fused, 1e-4);
    }
}

/// Attention has a kernel in bf16 only.
#[test]
fn families_decode_with_the_attention_kernel_as_without() {
    crate::native::set_threads(1);
    let (mut agreeing, mut attended) = (HashMap::new(), 0);
    for case in cases("golden") {
        let (mut plain, mut fused) = both(&case.model(), Kind::BFloat16, &mut agreeing);
        if !fused.kernels.attention {
            continue;
        }
        attended += 1;
        fused.kernels = Kernels { attention: true, ..Kernels::default() };
        (plain.kernels, plain.varlen) = (Kernels::default(), true);
        decodes_the_same(&case, &plain, &fused, 0.05);
    }
    assert!(attended > 3, "attention has no kernel for most of the models");
}

fn learns_the_same(case: &Case, plain: &Model, fused: &Model) {
    let ((expected, slopes), (actual, gradients)) = (learn(plain, &case.rows()), learn(fused, &case.rows()));
    assert!(distance(&actual, &expected) < 1e-4, "{}: {}", case.name, distance(&actual, &expected));
    for ((name, actual), (_, expected)) in gradients.iter().zip(&slopes) {
        assert_eq!(actual.defined(), expected.defined(), "{}: {name}", case.name);
        if actual.defined() {
            let worst = distance(actual, expected);
            let scale = expected.abs().max().double_value(&[]).max(1.0);
            assert!(worst < 1e-4 * scale, "{}: {name}: {worst}", case.name);
        }
    }
}

fn decodes_the_same(case: &Case, plain: &Model, fused: &Model, limit: f64) {
    let vocab = plain.config.vocab_size as u64;
    let caches = || KvCache::new(&plain.config, 3, 192, Layout::Tokens { spare: 1 }, Device::Cpu, plain.kind);
    let (mut one, mut other) = (caches().unwrap(), caches().unwrap());
    for (round, count) in [5, 1, 1, 70, 1].into_iter().enumerate() {
        let start = [0, 5, 6, 7, 77][round];
        let texts: Vec<Vec<u32>> = (0..3).map(|slot| ids((slot + 10 * round) as u64 + 1, count, vocab)).collect();
        let items: Vec<Span<'_>> = texts.iter().enumerate().map(|(slot, ids)| Span { slot, start, ids }).collect();
        let step = |model: &Model, cache: &mut KvCache| {
            tch::no_grad(|| model.step_varlen(cache, &items, &|| false)).unwrap().unwrap()
        };
        let (expected, actual) = (step(plain, &mut one), step(fused, &mut other));
        let scale = expected.abs().max().double_value(&[]).max(1.0);
        assert!(distance(&actual, &expected) < limit * scale, "{}: {}", case.name, distance(&actual, &expected));
    }
}

#[test]
fn a_kernel_that_disagrees_or_does_not_compile_is_not_used() {
    let shapes = Shapes::of(&Config { hidden_size: 40_000, ..Config::default() });
    let (kernels, failure) = Kernels::agreeing(&["norm", "gated"], &shapes, Device::Cpu, Kind::Float);
    assert!(!kernels.norm && kernels.gated, "{kernels:?}");
    assert!(failure.unwrap().contains("too wide"));
    // The types that kernels are not compiled for.
    let (kernels, failure) = Kernels::agreeing(&["gated"], &shapes, Device::Cpu, Kind::Half);
    assert_eq!(kernels, Kernels::default());
    assert!(failure.unwrap().contains("f32 and bf16"));
    assert_eq!(Kernels::find(&Config::default(), Device::Cpu, Kind::BFloat16).unwrap(), (Kernels::default(), None));
}
