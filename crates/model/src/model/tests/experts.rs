//! Experts in one product compared with expert by expert: outputs, gradients, and no copy to the
//! host.

use tch::{Device, Kind};

use super::families::all_cases;
use super::stacked::learn;
use super::{distance, ids, pack, rows};
use crate::model::cache::Layout;
use crate::model::{Decoding, KvCache, LoraConfig, Model, Span};
use crate::native;

/// The golden mixtures of experts in f32: one by one, and in one product.
fn mixtures() -> Vec<(String, Model, Model)> {
    let all: Vec<_> = all_cases()
        .into_iter()
        .filter(|case| case.model().config.experts.is_some())
        .map(|case| {
            let (mut single, mut grouped) = (case.model().copy_as(true).unwrap(), case.model().copy_as(true).unwrap());
            (single.varlen, grouped.varlen, grouped.grouped_experts) = (true, true, true);
            (case.name, single, grouped)
        })
        .collect();
    assert!(!all.is_empty());
    all
}

#[test]
fn grouped_experts_give_the_outputs_and_gradients_of_single_ones() {
    native::set_threads(1);
    for (name, single, grouped) in mixtures() {
        let rows = rows(&[7, 5, 9], single.config.vocab_size as u64);
        let ((expected, slopes), (actual, gradients)) = (learn(&single, &rows), learn(&grouped, &rows));
        assert!(distance(&actual, &expected) < 1e-5, "{name}: {}", distance(&actual, &expected));
        let mut without = 0;
        for ((tensor, actual), (_, expected)) in gradients.iter().zip(&slopes) {
            if expected.defined() {
                let worst = distance(actual, expected);
                assert!(worst < 1e-5 * expected.abs().max().double_value(&[]).max(1.0), "{name}: {tensor}: {worst}");
            } else {
                // An expert without tokens.
                without += 1;
                assert!(tensor.contains("experts"), "{tensor}");
                assert_eq!(actual.abs().max().double_value(&[]), 0.0, "{tensor}");
            }
        }
        assert!(without > 0 || gradients.len() == slopes.len());
    }
}

#[test]
fn grouped_experts_do_not_copy_to_the_host() {
    for (name, single, grouped) in mixtures() {
        let rows = rows(&[7, 5], single.config.vocab_size as u64);
        let products = |model: &Model| {
            let run = || tch::no_grad(|| model.forward_plain(&pack(&rows)));
            let (_, counts) = native::count_operations(run).unwrap();
            for waits in
                ["_local_scalar_dense", "item", "nonzero", "is_nonzero", "bincount", "unique2", "masked_select"]
            {
                assert!(!counts.contains_key(&format!("aten::{waits}")), "{name}: {counts:?}");
            }
            counts.get("aten::_grouped_mm").copied()
        };
        let layers = (0..single.config.num_hidden_layers).filter(|&index| single.config.layer(index).sparse).count();
        assert_eq!((products(&single), products(&grouped)), (None, Some(2 * layers as u64)), "{name}");
    }
    // Numbers are read as vectors, which RecordFunction does not show.
    let source = include_str!("../experts.rs");
    let (before, grouped) = source.split_once("fn mixture_grouped").unwrap();
    assert!(before.contains("try_from") && !grouped.contains("try_from"));
}

#[test]
fn grouped_experts_decode_in_recorded_steps() {
    native::set_threads(1);
    for (name, single, grouped) in mixtures() {
        let caches = || KvCache::new(&single.config, 2, 64, Layout::Tokens { spare: 1 }, Device::Cpu, Kind::Float);
        let (mut one, mut other) = (caches().unwrap(), caches().unwrap());
        for (round, count) in [4, 1, 1].into_iter().enumerate() {
            let (start, vocab) = ([0, 4, 5][round], single.config.vocab_size as u64);
            let texts: Vec<Vec<u32>> = (0..2).map(|slot| ids((slot + 10 * round) as u64 + 1, count, vocab)).collect();
            let items: Vec<Span<'_>> = texts.iter().enumerate().map(|(slot, ids)| Span { slot, start, ids }).collect();
            let step = |model: &Model, cache: &mut KvCache| {
                tch::no_grad(|| model.step_varlen(cache, &items, &|| false)).unwrap().unwrap()
            };
            let (expected, actual) = (step(&single, &mut one), step(&grouped, &mut other));
            assert!(distance(&actual, &expected) < 1e-4, "{name}: {}", distance(&actual, &expected));
        }
        let dynamic = grouped.has_dynamic_rope();
        assert_eq!(other.decoding(), if dynamic { Decoding::Eager } else { Decoding::Recordable }, "{name}");
        assert_eq!(one.decoding(), Decoding::Eager);
    }
}

#[test]
fn adapted_experts_are_computed_one_by_one() {
    let (_, single, mut grouped) = mixtures().remove(0);
    assert!(grouped.groups_experts() && !single.groups_experts());
    grouped.add_adapter(LoraConfig::new(2, 4.0, &["up_proj"]), 1).unwrap();
    assert!(!grouped.groups_experts());
    let rows = rows(&[6], single.config.vocab_size as u64);
    let hidden = |model: &Model| tch::no_grad(|| model.forward_plain(&pack(&rows)).unwrap());
    // A new adapter has no effect.
    assert!(distance(&hidden(&single), &hidden(&grouped)) < 1e-5);
}

#[test]
fn merged_adapters_of_routers_choose_the_experts_of_adapters_beside_them() {
    native::set_threads(1);
    for case in all_cases().into_iter().filter(|case| case.name.starts_with("glm4_moe")) {
        let mut model = case.model();
        model.add_adapter(LoraConfig::new(2, 4.0, &["gate"]), 1).unwrap();
        tch::no_grad(|| {
            for (name, mut tensor) in model.parameters() {
                if name.contains("lora_B") {
                    let _ = tensor.normal_(0.0, 1.0);
                }
            }
        });
        let row = ids(1, 9, model.config.vocab_size as u64);
        let step = |model: &Model| {
            let mut cache = model.new_cache(1, 16).unwrap();
            model.step(&mut cache, &[Span { slot: 0, start: 0, ids: &row }]).unwrap()
        };
        let beside = step(&model);
        model.set_merged_sampling(true).unwrap();
        model.refresh_merged().unwrap();
        assert!(distance(&step(&model), &beside) < 1e-4, "{}", case.name);
    }
}
