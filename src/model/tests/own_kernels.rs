//! r1's CUDA kernels, executed on the CPU: compared with libtorch's operations, one by one and in
//! whole models.

use tch::{Device, Kind};

use super::families::cases;
use super::stacked::learn;
use super::{distance, ids};
use crate::model::cache::Layout;
use crate::model::kernel_checks::{Shapes, check_kernels};
use crate::model::own_kernels::Kernels;
use crate::model::{Config, KvCache, Model, Span};

#[test]
fn kernels_agree_with_libtorch() {
    crate::native::set_threads(1);
    let mut found = check_kernels(Device::Cpu, false).unwrap();
    assert!(found.len() > 60, "{}", found.len());
    found.retain(|case| !case.agrees());
    assert!(found.is_empty(), "{found:#?}");
}

/// A model in f32 with all kernels that support its sizes, and the same without.
fn both(model: &Model) -> (Model, Model) {
    let (mut plain, mut own) = (model.copy_as(true).unwrap(), model.copy_as(true).unwrap());
    let shapes = Shapes::of(&model.config);
    let names = ["norm", "rope", "gated", "logprobs", "attention"];
    let (kernels, failure) = Kernels::agreeing(&names, &shapes, Device::Cpu, Kind::Float);
    assert_eq!(failure, None);
    assert!(kernels.norm && kernels.rope && kernels.gated && kernels.logprobs);
    (plain.varlen, own.varlen, own.kernels) = (true, true, kernels);
    (plain, own)
}

#[test]
fn every_family_learns_with_kernels_as_without() {
    crate::native::set_threads(1);
    for case in cases("golden") {
        let (plain, own) = both(&case.model());
        let ((expected, slopes), (found, gradients)) = (learn(&plain, &case.rows()), learn(&own, &case.rows()));
        assert!(distance(&found, &expected) < 1e-4, "{}: {}", case.name, distance(&found, &expected));
        for ((name, found), (_, expected)) in gradients.iter().zip(&slopes) {
            assert_eq!(found.defined(), expected.defined(), "{}: {name}", case.name);
            if found.defined() {
                let worst = distance(found, expected);
                assert!(
                    worst < 1e-4 * expected.abs().max().double_value(&[]).max(1.0),
                    "{}: {name}: {worst}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn every_family_decodes_with_kernels_as_without() {
    crate::native::set_threads(1);
    let mut attended = 0;
    for case in cases("golden") {
        let (plain, own) = both(&case.model());
        attended += usize::from(own.kernels.attention);
        let vocab = plain.config.vocab_size as u64;
        let caches = || KvCache::new(&plain.config, 3, 192, Layout::Tokens { spare: 1 }, Device::Cpu, Kind::Float);
        let (mut one, mut other) = (caches().unwrap(), caches().unwrap());
        for (round, count) in [5, 1, 1, 70, 1].into_iter().enumerate() {
            let start = [0, 5, 6, 7, 77][round];
            let texts: Vec<Vec<u32>> = (0..3).map(|slot| ids((slot + 10 * round) as u64 + 1, count, vocab)).collect();
            let items: Vec<Span<'_>> = texts.iter().enumerate().map(|(slot, ids)| Span { slot, start, ids }).collect();
            let step = |model: &Model, cache: &mut KvCache| {
                tch::no_grad(|| model.step_varlen(cache, &items, &|| false)).unwrap().unwrap()
            };
            let (expected, found) = (step(&plain, &mut one), step(&own, &mut other));
            let scale = expected.abs().max().double_value(&[]).max(1.0);
            assert!(distance(&found, &expected) < 1e-4 * scale, "{}: {}", case.name, distance(&found, &expected));
        }
    }
    assert!(attended > 3, "attention has no kernel for most of the models");
}

#[test]
fn a_kernel_that_disagrees_or_does_not_compile_is_not_used() {
    let shapes = Shapes::of(&Config { hidden_size: 40_000, ..Config::default() });
    let (own, failure) = Kernels::agreeing(&["norm", "gated"], &shapes, Device::Cpu, Kind::Float);
    assert!(!own.norm && own.gated, "{own:?}");
    assert!(failure.unwrap().contains("too wide"));
    // The types that kernels are not compiled for.
    let (own, failure) = Kernels::agreeing(&["gated"], &shapes, Device::Cpu, Kind::Half);
    assert_eq!(own, Kernels::default());
    assert!(failure.unwrap().contains("f32 and bf16"));
    assert_eq!(Kernels::find(&Config::default(), Device::Cpu, Kind::BFloat16).unwrap(), (Kernels::default(), None));
}
