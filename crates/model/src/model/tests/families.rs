//! Every family and RoPE variant compared with transformers, and with itself: cache, packing,
//! padding, batching.

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::{distance, pack, padded, predicting};
use crate::model::stored::StoredTensor;
use crate::model::{Config, Model, Span};
use crate::native;

/// Tolerance of logits compared with transformers.
pub(super) const LOGITS: f64 = 1e-4;
/// Tolerance between two computations in r1: 1e-5 where docs/lab/parity.md was measured, with a
/// margin for processors that sum in another order.
pub(super) const WAYS: f64 = 2e-5;

pub(super) struct Case {
    pub name: String,
    pub record: Value,
    /// Logits at `positions` of the rows, concatenated.
    pub logits: Tensor,
}

impl Case {
    pub(super) fn get<T: serde::de::DeserializeOwned>(&self, name: &str) -> T {
        serde_json::from_value(self.record[name].clone()).unwrap()
    }

    pub(super) fn rows(&self) -> Vec<Vec<u32>> {
        self.get("rows")
    }

    /// Indices of `logits` in the packed rows.
    pub(super) fn places(&self) -> Tensor {
        let positions: Vec<Vec<i64>> = self.get("positions");
        let starts = self.rows().into_iter().scan(0, |next, row| {
            let start = *next;
            *next += row.len() as i64;
            Some(start)
        });
        let places: Vec<i64> = starts
            .zip(positions)
            .flat_map(|(start, row_positions)| row_positions.into_iter().map(move |at| start + at))
            .collect();
        Tensor::from_slice(&places)
    }

    pub(super) fn model(&self) -> Model {
        self.model_in(Kind::Float)
    }

    /// The norms of the gradients of each tensor of the checkpoint, of a row each.
    fn gradient_norms(&self) -> std::collections::BTreeMap<String, Vec<f64>> {
        if self.record["gradient_norms"].is_object() {
            return self.get("gradient_norms");
        }
        let norms: Vec<Vec<f64>> = self.get("gradient_norms");
        let names: serde_json::Map<String, Value> = self.get("checkpoint");
        names.into_iter().map(|(name, _)| name).zip(norms).collect()
    }

    /// The model in f32, or with the same weights in f64.
    pub(super) fn model_in(&self, kind: Kind) -> Model {
        let model = Model::init(Config::from_json(&self.record["config"]).unwrap(), Device::Cpu, kind, 0).unwrap();
        fill(&model, self.record["deviation"].as_f64());
        model
    }
}

pub(super) fn cases(stem: &str) -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join(format!("{stem}.json"))).unwrap()).unwrap();
    let tensors = Tensor::read_safetensors(dir.join(format!("{stem}.safetensors"))).unwrap();
    let logits = |name: &str| tensors.iter().find(|(key, _)| key == name).unwrap().1.shallow_clone();
    let all = golden["cases"].as_array().unwrap().iter().map(|record| {
        let name = record["name"].as_str().unwrap().to_owned();
        Case { logits: logits(&name), record: record.clone(), name }
    });
    all.collect()
}

/// The cases of all families.
pub(super) fn all_cases() -> Vec<Case> {
    ["golden", "golden_2026"].into_iter().flat_map(cases).collect()
}

/// Numbers in [-1, 1) from a name, as make.py draws them.
pub(super) fn uniform(name: &str, count: usize) -> Vec<f64> {
    let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let draw = |at: u64| {
        let x = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (1..=count as u64).map(draw).collect()
}

/// Sets the weights of make.py, with this standard deviation of matrices, if given.
fn fill(model: &Model, deviation: Option<f64>) {
    let _guard = tch::no_grad_guard();
    let norm = if model.config.zero_centred_norms { 0.0 } else { 1.0 };
    for stored in model.parameters.stored() {
        let mut tensor = Tensor::zeros(&stored.shape, (stored.kind(), Device::Cpu));
        fill_tensor(&stored.name, &mut tensor, norm, deviation);
        stored.set(&tensor).unwrap();
    }
}

/// Sets the weights of make.py of one tensor; weights of norms are around `norm`.
pub(super) fn fill_tensor(name: &str, tensor: &mut Tensor, norm: f64, deviation: Option<f64>) {
    let (scale, offset) = match tensor.size().as_slice() {
        [_] => (0.25, if name.ends_with("norm.weight") { norm } else { 0.0 }),
        [_, inputs] | [_, inputs, _] => {
            let default_value = if name.contains("embed") { 0.4 } else { 2.0 / (*inputs as f64).sqrt() };
            (deviation.map_or(default_value, |deviation| deviation * 3f64.sqrt()), 0.0)
        }
        _ => unreachable!("{name} is neither a matrix nor a vector"),
    };
    let values: Vec<f32> =
        uniform(name, tensor.numel()).into_iter().map(|value| (value * scale + offset) as f32).collect();
    tensor.copy_(&Tensor::from_slice(&values).view_as(tensor));
}

/// Name of a measurement, its largest difference, the tolerance.
pub(super) type Measure = (&'static str, f64, f64);

/// Runs the check for every case and fails with all differences.
fn check(measure: impl Fn(&Case) -> Vec<Measure>) {
    check_cases(&all_cases(), measure);
}

/// As [`check`] for other cases.
pub(super) fn check_cases(all: &[Case], measure: impl Fn(&Case) -> Vec<Measure>) {
    // One thread is faster for models of this size, especially next to other tests.
    native::set_threads(1);
    let mut wrong = Vec::new();
    for case in all {
        let over = measure(case).into_iter().filter(|(_, worst, limit)| worst.is_nan() || worst > limit);
        wrong.extend(
            over.map(|(what, worst, limit)| {
                format!("{}: {what} differ by {worst:.2e}, more than {limit:.0e}", case.name)
            }),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn weight_names_and_shapes_match_the_checkpoint() {
    same_names(&all_cases());
}

/// Names and shapes of the parameters are those of the checkpoint.
pub(super) fn same_names(all: &[Case]) {
    for case in all {
        let actual: serde_json::Map<String, Value> =
            case.model().parameters.stored().into_iter().map(|stored| (stored.name, stored.shape.into())).collect();
        let expected: serde_json::Map<String, Value> = case.get("checkpoint");
        let missing: Vec<_> = expected.iter().filter(|(name, shape)| actual.get(*name) != Some(shape)).collect();
        assert!(missing.is_empty() && actual.len() == expected.len(), "{}: {missing:?}", case.name);
    }
}

/// Comparison with transformers: packed rows forward, each row forward and backward; with the CPU
/// kernels and plain operations.
pub(super) fn forward_and_backward(case: &Case) -> Vec<Measure> {
    let model = case.model();
    let rows = case.rows();
    let places = case.places();
    let losses: Vec<f64> = case.get("losses");
    let norms = case.gradient_norms();
    let (mut logits, mut loss, mut gradient) = (0f64, 0f64, 0f64);
    for whole in [Model::forward, Model::forward_plain] {
        let hidden = whole(&model, &pack(&rows)).unwrap();
        let actual = model.logits(&hidden.index_select(0, &places)).unwrap();
        logits = logits.max(distance(&actual, &case.logits));
        for (index, row) in rows.iter().enumerate() {
            let row = std::slice::from_ref(row);
            let (places, targets) = predicting(row);
            let hidden = whole(&model, &pack(row)).unwrap().index_select(0, &places);
            let mean = -model.logprobs(&hidden, &targets, 1.0, 64).unwrap().0.mean(None);
            loss = loss.max((mean.double_value(&[]) - losses[index]).abs());
            for (name, norm) in stored_gradients(&model, &mean) {
                gradient = gradient.max((norm - norms[&name][index]).abs() / norms[&name][index].max(1e-2));
            }
        }
    }
    vec![("logits", logits, LOGITS), ("loss", loss, 2e-5), ("gradients", gradient, 1e-4)]
}

/// Norms of the gradients of `loss` for every tensor of a checkpoint, by name.
fn stored_gradients(model: &Model, loss: &Tensor) -> Vec<(String, f64)> {
    // The correction of a router has no gradient.
    let learned = |stored: &StoredTensor| stored.parts().iter().all(|part| part.requires_grad());
    let stored: Vec<StoredTensor> = model.parameters.stored().into_iter().filter(learned).collect();
    let leaves: Vec<&Tensor> = stored.iter().flat_map(|stored| stored.parts()).collect();
    let mut gradients = Tensor::run_backward(&[loss], &leaves, true, false).into_iter();
    let square = |slope: &Tensor| {
        if slope.defined() { slope.to_kind(Kind::Double).square().sum(None).double_value(&[]) } else { 0.0 }
    };
    let mut norm = |count: usize| gradients.by_ref().take(count).map(|slope| square(&slope)).sum::<f64>().sqrt();
    stored.iter().map(|stored| (stored.name.clone(), norm(stored.parts().len()))).collect()
}

#[test]
fn logits_and_gradients_match_transformers() {
    check(forward_and_backward);
}

/// Number of differing tokens in 64 greedy tokens, compared with transformers.
pub(super) fn greedy(case: &Case) -> Vec<Measure> {
    let (prompt, expected): (Vec<u32>, Vec<u32>) = (case.get("prompt"), case.get("greedy"));
    let model = case.model();
    let mut cache = model.new_cache(2, 16).unwrap();
    let mut next = model.step(&mut cache, &[Span { slot: 1, start: 0, ids: &prompt }]).unwrap();
    let mut actual = Vec::new();
    for at in 0..expected.len() {
        actual.push(next.argmax(-1, false).int64_value(&[0]) as u32);
        let span = Span { slot: 1, start: prompt.len() + at, ids: &actual[at..] };
        next = model.step(&mut cache, &[span]).unwrap();
    }
    vec![("greedy", actual.iter().zip(&expected).filter(|(a, b)| a != b).count() as f64, 0.0)]
}

#[test]
fn greedy_responses_match_transformers() {
    check(greedy);
}

/// Comparison with itself: cache, packing, padding, batching.
pub(super) fn ways(case: &Case) -> Vec<Measure> {
    let model = case.model();
    let mut rows = case.rows();
    if model.config.ropes.iter().any(crate::model::Rope::is_dynamic) {
        // Past the limit, angles depend on the length; see `Model::step`.
        for row in &mut rows {
            row.truncate(model.config.max_position_embeddings);
        }
    }
    let all = model.logits(&model.forward(&pack(&rows)).unwrap()).unwrap();
    let alone: Vec<Tensor> = rows
        .iter()
        .map(|row| model.logits(&model.forward(&pack(std::slice::from_ref(row))).unwrap()).unwrap())
        .collect();
    let packing = distance(&all, &Tensor::cat(&alone, 0));
    let padding = tch::no_grad(|| {
        let mut worst = 0f64;
        // The reference network has no recurrent states.
        for row in rows.iter().filter(|_| !model.config.is_recurrent()) {
            let plain = model.forward_plain(&pack(std::slice::from_ref(row))).unwrap();
            let plain = model.logits(&plain).unwrap();
            for (left, right) in [(9, 0), (0, 5)] {
                worst = worst.max(distance(&padded::logits(&model, row, left, right), &plain));
            }
        }
        worst
    });

    // Row by row: a prefill in two chunks, then token by token.
    let mut cache = model.new_cache(3, 8).unwrap();
    let mut steps = Vec::new();
    let mut decode = 0f64;
    for (row, expected) in rows.iter().zip(&alone) {
        let mut ends: Vec<usize> = vec![7, row.len() - 12];
        ends.extend(row.len() - 11..=row.len());
        let mut start = 0;
        for end in ends {
            let step_logits = model.step(&mut cache, &[Span { slot: 0, start, ids: &row[start..end] }]).unwrap();
            decode = decode.max(distance(&step_logits.get(0), &expected.get(end as i64 - 1)));
            steps.push(step_logits);
            start = end;
        }
    }
    // Both rows in one call.
    let mut batching = 0f64;
    let [short, long] = rows.as_slice() else { panic!("two rows") };
    let mut starts = [0, 0];
    for index in 0..steps.len() / 2 {
        let ends = [short, long].map(|row| match index {
            0 => 7,
            _ => row.len() - 13 + index,
        });
        let spans = [
            Span { slot: 2, start: starts[0], ids: &short[starts[0]..ends[0]] },
            Span { slot: 1, start: starts[1], ids: &long[starts[1]..ends[1]] },
        ];
        let both = model.step(&mut cache, &spans).unwrap();
        let single = [&steps[index], &steps[index + steps.len() / 2]].map(|step_logits| step_logits.get(0));
        batching = batching.max(distance(&both, &Tensor::stack(&single, 0)));
        starts = ends;
    }
    vec![("cache", decode, WAYS), ("packing", packing, WAYS), ("padding", padding, WAYS), ("batching", batching, WAYS)]
}

#[test]
fn cached_logits_equal_a_full_forward() {
    check(ways);
}

#[test]
fn every_family_is_saved_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    for case in all_cases() {
        let model = case.model();
        model.save(dir.path()).unwrap();
        let again = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        let strip = |config: &Config| Config { source: serde_json::Map::new(), ..config.clone() };
        assert_eq!(strip(&again.config), strip(&model.config), "{}", case.name);
        assert!(model.parameters().iter().zip(again.parameters()).all(|((a, x), (b, y))| *a == b && x.equal(&y)));
        let narrow = Model::load(dir.path(), Device::Cpu, Kind::BFloat16).unwrap();
        let hidden = narrow.forward(&pack(&case.rows())).unwrap();
        assert!(hidden.isfinite().all().int64_value(&[]) == 1, "{}", case.name);
    }
}
