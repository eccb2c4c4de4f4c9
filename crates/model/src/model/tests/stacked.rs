//! Projections stored as one matrix compared with single matrices: names, files, adapters,
//! gradients, updates in place, decoding.

use tch::{Device, Kind, Tensor};

use super::families::cases;
use super::{distance, ids, pack, predicting, rows, tiny};
use crate::model::cache::Layout;
use crate::model::{KvCache, LoraConfig, Model, Span, weights};
use crate::native;

/// Tolerance in f64.
const WAYS: f64 = 1e-11;

/// Log-probabilities of the next tokens.
pub(super) fn logp(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    let (places, targets) = predicting(rows);
    let hidden = model.forward_plain(&pack(rows)).unwrap().index_select(0, &places);
    model.logprobs(&hidden, &targets, 1.0, 64).unwrap().0
}

/// These and the gradients of all trained parameters.
pub(super) fn learn(model: &Model, rows: &[Vec<u32>]) -> (Tensor, Vec<(String, Tensor)>) {
    let logp = logp(model, rows);
    let (names, leaves): (Vec<String>, Vec<Tensor>) =
        model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).unzip();
    let all = Tensor::run_backward(&[logp.mean(None)], &leaves, false, false);
    (logp.detach(), names.into_iter().zip(all).collect())
}

/// Compares two models. Experts without tokens have no gradients, in both.
fn compare(name: &str, single: &Model, stacked: &Model, rows: &[Vec<u32>]) {
    let ((expected, slopes), (actual, stacked_gradients)) = (learn(single, rows), learn(stacked, rows));
    assert!(distance(&actual, &expected) < WAYS, "{name}: {}", distance(&actual, &expected));
    assert_eq!(stacked_gradients.len(), slopes.len());
    for ((tensor, actual), (other, expected)) in stacked_gradients.iter().zip(&slopes) {
        assert_eq!((tensor, actual.defined()), (other, expected.defined()), "{name}");
        if actual.defined() {
            let worst = distance(actual, expected);
            assert!(worst < WAYS * expected.abs().max().double_value(&[]).max(1.0), "{name}: {tensor}: {worst}");
        }
    }
}

#[test]
fn stacked_projections_give_the_outputs_and_gradients_of_single_ones() {
    native::set_threads(1);
    for case in cases("golden") {
        let (mut single, rows) = (case.model_in(Kind::Double), case.rows());
        let mut stacked = single.copy_as(true).unwrap();
        for varlen in [false, true] {
            (single.varlen, stacked.varlen) = (varlen, varlen);
            compare(&format!("{}, varlen {varlen}", case.name), &single, &stacked, &rows);
        }
    }
}

#[test]
fn one_product_computes_stacked_projections() {
    let model = tiny(false, Kind::Double).copy_as(true).unwrap();
    let rows = rows(&[5, 3], 53);
    let packed = pack(&rows);
    let (_, counts) = native::count_operations(|| tch::no_grad(|| model.forward_plain(&packed))).unwrap();
    // Query, key and value; output; gate and up; down: in each of two layers.
    assert_eq!(counts.get("aten::linear"), Some(&8), "{counts:?}");
}

#[test]
fn adapters_and_frozen_parts_work_on_stacked_projections() {
    native::set_threads(1);
    let rows = rows(&[9, 4], 53);
    let adapter = LoraConfig::new(2, 4.0, &["q_proj", "up_proj", "down_proj"]);
    let mut single = tiny(false, Kind::Double);
    single.add_adapter(adapter, 3).unwrap();
    for (name, mut tensor) in single.parameters().into_iter().filter(|(name, _)| name.contains("lora_B")) {
        let ramp = Tensor::arange(tensor.numel() as i64, (Kind::Double, Device::Cpu)) + name.len() as f64;
        tch::no_grad(|| tensor.copy_(&(ramp.sin() * 0.2).view_as(&tensor)));
    }
    let mut stacked = single.copy_as(true).unwrap();
    for varlen in [false, true] {
        (single.varlen, stacked.varlen) = (varlen, varlen);
        compare("adapter", &single, &stacked, &rows);
    }
    let disabled = single.without_adapter(|| logp(&single, &rows));
    assert!(distance(&disabled, &stacked.without_adapter(|| logp(&stacked, &rows))) < WAYS);
    assert!(distance(&disabled, &logp(&stacked, &rows).detach()) > 1e-3);
    single.merge_adapter().unwrap();
    stacked.merge_adapter().unwrap();
    compare("merged", &single, &stacked, &rows);
    // Some parts of a matrix are frozen.
    for model in [&single, &stacked] {
        for (name, tensor) in model.parameters() {
            let _ = tensor.set_requires_grad(!name.contains("k_proj") && !name.contains("gate_proj"));
        }
    }
    let trained = |model: &Model| {
        logp(model, &rows).mean(None).backward();
        model.parameters().into_iter().map(|(_, tensor)| tensor.grad()).collect::<Vec<_>>()
    };
    for (actual, expected) in trained(&stacked).iter().zip(&trained(&single)) {
        assert_eq!(actual.defined(), expected.defined());
        assert!(!actual.defined() || distance(actual, expected) < WAYS);
    }
}

#[test]
fn updates_in_place_reach_the_product() {
    native::set_threads(1);
    let (rows, single) = (rows(&[7, 6], 53), tiny(true, Kind::Double));
    let stacked = single.copy_as(true).unwrap();
    for round in 0..3 {
        for model in [&single, &stacked] {
            for ((_, mut tensor), (_, gradient)) in model.parameters().into_iter().zip(learn(model, &rows).1) {
                tch::no_grad(|| {
                    let _ = tensor.f_add_(&(gradient * 0.5)).unwrap();
                });
            }
        }
        compare(&format!("update {round}"), &single, &stacked, &rows);
    }
    assert!(distance(&learn(&stacked, &rows).0, &learn(&tiny(true, Kind::Double), &rows).0) > 1e-2);
}

#[test]
fn files_do_not_depend_on_the_storage() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let single = tiny(false, Kind::BFloat16);
    let stacked = single.copy_as(true).unwrap();
    single.save(one.path()).unwrap();
    stacked.save(other.path()).unwrap();
    let file = |dir: &std::path::Path| dir.join("model.safetensors");
    assert!(std::fs::read(file(one.path())).unwrap() == std::fs::read(file(other.path())).unwrap());
    // Reads a checkpoint into stacked projections.
    let read = tiny(false, Kind::BFloat16).copy_as(true).unwrap();
    for (_, mut tensor) in read.parameters() {
        let _ = tch::no_grad(|| tensor.fill_(0.0));
    }
    weights::read(&[file(one.path())], &read.parameters(), |_| false).unwrap();
    let rows = rows(&[6], 53);
    let hidden = |model: &Model| tch::no_grad(|| model.forward_plain(&pack(&rows)).unwrap());
    assert_eq!(distance(&hidden(&read), &hidden(&stacked)), 0.0);
    assert!(hidden(&read).abs().max().double_value(&[]) > 0.1);
}

#[test]
fn decoding_with_stacked_projections_matches_single_ones() {
    native::set_threads(1);
    for case in cases("golden") {
        let single = case.model_in(Kind::Double);
        let stacked = single.copy_as(true).unwrap();
        let vocab = single.config.vocab_size as u64;
        let caches = || KvCache::new(&single.config, 3, 64, Layout::Tokens { spare: 1 }, Device::Cpu, Kind::Double);
        let (mut one, mut other) = (caches().unwrap(), caches().unwrap());
        for (round, count) in [5, 1, 1].into_iter().enumerate() {
            let start = [0, 5, 6][round];
            let texts: Vec<Vec<u32>> = (0..3).map(|slot| ids((slot + 10 * round) as u64 + 1, count, vocab)).collect();
            let items: Vec<Span<'_>> = texts.iter().enumerate().map(|(slot, ids)| Span { slot, start, ids }).collect();
            let step = |model: &Model, cache: &mut KvCache| {
                tch::no_grad(|| model.step_varlen(cache, &items, &|| false)).unwrap().unwrap()
            };
            let (expected, actual) = (step(&single, &mut one), step(&stacked, &mut other));
            // Logits are f32, whose last bit can differ.
            assert!(distance(&actual, &expected) < 1e-5, "{}: {}", case.name, distance(&actual, &expected));
        }
    }
}
