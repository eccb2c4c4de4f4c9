//! Encoders and cross-encoders with the code paths of a GPU, in bf16, and without numbers, with the
//! models and ids of tests/golden/models/sentences.py.

use std::path::Path;

use serde_json::Value;
use tch::Tensor;
use tempfile::TempDir;

use super::encoder::{tensors, write};
use crate::model::{CrossEncoderModel, Encoder, Pair, Pooling};
use crate::native::meta;
use r1_base::{DeviceChoice, Dtype};

/// The models in directories, by whether they have a field.
fn models(field: &str) -> Vec<(Value, TempDir)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/golden_sentences.json");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut cases: Vec<Value> = serde_json::from_value(file["cases"].take()).unwrap();
    cases.retain(|case| !case[field].is_null());
    let written = cases.into_iter().map(|case| {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &serde_json::from_str(case["files"]["config.json"].as_str().unwrap()).unwrap(),
            &tensors(&case),
        );
        (case, dir)
    });
    written.collect()
}

fn rows(case: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(case["passages"].clone()).unwrap()
}

fn pairs() -> Vec<Pair> {
    let ids = [vec![0, 5, 9, 2, 2, 30, 31, 2], vec![0, 7, 2, 2, 2], (3..23).collect()];
    ids.map(|ids: Vec<u32>| Pair { types: vec![0; ids.len()], ids }).into()
}

fn largest(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn encoders_compute_the_same_without_padding() {
    for (case, dir) in models("passages") {
        let rows = rows(&case);
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let [padded, mut packed] = [(); 2].map(|()| Encoder::load(dir.path(), DeviceChoice::Cpu, Dtype::F32).unwrap());
        packed.use_gpu_paths();
        for pooling in Pooling::ALL {
            let expected = padded.encode_in_batches(&rows, pooling, 1).unwrap();
            for tokens in [1, 60, 4000] {
                let actual = packed.encode_in_batches(&rows, pooling, tokens).unwrap();
                let worst = largest(&actual, &expected);
                assert!(worst < 1e-5, "{}, {}: {worst}", case["name"], pooling.name());
            }
        }
    }
    for (case, dir) in models("scores") {
        let [padded, mut packed] =
            [(); 2].map(|()| CrossEncoderModel::load(dir.path(), DeviceChoice::Cpu, Dtype::F32).unwrap());
        packed.use_gpu_paths();
        let worst = largest(&packed.scores(&pairs(), [3, 4]).unwrap(), &padded.scores(&pairs(), [3, 4]).unwrap());
        assert!(worst < 1e-5, "{}: {worst}", case["name"]);
    }
}

#[test]
fn encoders_in_bf16_differ_by_its_rounding() {
    for (case, dir) in models("passages") {
        let rows = rows(&case);
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let load = |dtype| Encoder::load(dir.path(), DeviceChoice::Cpu, dtype).unwrap();
        for gpu_paths in [false, true] {
            let (wide, mut narrow) = (load(Dtype::F32), load(Dtype::Bf16));
            if gpu_paths {
                narrow.use_gpu_paths();
            }
            for pooling in Pooling::ALL {
                let [expected, actual] = [&wide, &narrow].map(|encoder| encoder.encode(&rows, pooling).unwrap());
                for (expected, actual) in expected.chunks(24).zip(actual.chunks(24)) {
                    let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
                    let cosine = dot(expected, actual) / (dot(expected, expected) * dot(actual, actual)).sqrt();
                    assert!(cosine > 0.999 && expected != actual, "{}, {}: {cosine}", case["name"], pooling.name());
                }
            }
        }
    }
    for (case, dir) in models("scores") {
        let [expected, actual] = [Dtype::F32, Dtype::Bf16].map(|dtype| {
            CrossEncoderModel::load(dir.path(), DeviceChoice::Cpu, dtype).unwrap().scores(&pairs(), [3, 4]).unwrap()
        });
        let worst = largest(&expected, &actual);
        assert!(worst > 0.0 && worst < 0.1, "{}: {worst}", case["name"]);
    }
}

/// On the meta device, an operation fails with a tensor on another device, and if it waits for
/// numbers.
#[test]
fn encoders_run_on_their_device_without_waiting() {
    let check = |tensor: Tensor, rows: usize| {
        assert_eq!(tensor.size()[0], rows as i64);
        assert!(Vec::<f32>::try_from(&tensor.f_flatten(0, -1).unwrap()).is_err());
    };
    meta::with(|| {
        for (case, dir) in models("passages") {
            let rows = rows(&case);
            let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
            let encoder = Encoder::load(dir.path(), DeviceChoice::Cpu, Dtype::Bf16).unwrap();
            let _guard = tch::no_grad_guard();
            for pooling in Pooling::ALL {
                check(encoder.pooled(&rows, pooling).unwrap(), rows.len());
            }
        }
        for (_, dir) in models("scores") {
            let model = CrossEncoderModel::load(dir.path(), DeviceChoice::Cpu, Dtype::Bf16).unwrap();
            let (_guard, pairs) = (tch::no_grad_guard(), pairs());
            check(model.logits(&pairs.iter().collect::<Vec<_>>(), [3, 4]).unwrap(), pairs.len());
        }
    })
    .unwrap();
}
