//! SmolLM2-135M-Instruct, a trained model, compared with what transformers and PEFT compute
//! (tests/golden/real): weights, logits, greedy tokens, one step of a low-rank adapter.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::families::uniform;
use super::golden::greedy;
use super::{distance, pack, predicting};
use crate::adamw::{AdamW, AdamWOptions};
use crate::model::{GGUF_FILE, Gguf, Model};

/// The numbers of transformers.
pub(crate) fn real_golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/real/golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The model that `R1_REAL_MODEL` names, a GGUF file.
pub(crate) fn real_model() -> Model {
    let path = PathBuf::from(std::env::var("R1_REAL_MODEL").expect("R1_REAL_MODEL is set by `just test-real`"));
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(path.canonicalize().unwrap(), dir.path().join(GGUF_FILE)).unwrap();
    std::fs::write(dir.path().join("config.json"), Gguf::config(&path).unwrap().to_string()).unwrap();
    Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap()
}

fn get<T: serde::de::DeserializeOwned>(value: &Value, name: &str) -> T {
    serde_json::from_value(value[name].clone()).unwrap()
}

#[test]
#[ignore = "needs SmolLM2-135M-Instruct: just test-real"]
fn real_model_weights_logits_and_greedy_tokens_equal_transformers() {
    let (golden, model) = (real_golden(), real_model());
    let digests = golden["tensors"].as_object().unwrap();
    let parameters = model.parameters();
    assert_eq!(parameters.len(), digests.len());
    for (name, tensor) in parameters {
        let mut bytes = vec![0; tensor.numel() * 4];
        tensor.contiguous().copy_data_u8(&mut bytes, tensor.numel());
        let digest = format!("{:x}", Sha256::digest(bytes));
        assert!(digest.starts_with(digests[&name].as_str().unwrap()), "{name} differs");
    }
    for prompt in golden["prompts"].as_array().unwrap() {
        let ids: Vec<u32> = get(prompt, "ids");
        let logits = tch::no_grad(|| model.logits(&model.forward(&pack(std::slice::from_ref(&ids))).unwrap()).unwrap());
        let positions = [ids.len() / 2, ids.len() - 1];
        let top: Vec<Vec<(i64, f64)>> = get(prompt, "top");
        let sums: Vec<f64> = get(prompt, "logsumexp");
        for ((position, top), sum) in positions.into_iter().zip(top).zip(sums) {
            let row = logits.get(position as i64).to_kind(Kind::Double);
            let (ids, values): (Vec<i64>, Vec<f64>) = top.into_iter().unzip();
            let worst = distance(&row.index_select(0, &Tensor::from_slice(&ids)), &Tensor::from_slice(&values));
            let sum_differs = (row.logsumexp(-1, false).double_value(&[]) - sum).abs();
            assert!(worst < 1e-3 && sum_differs < 1e-3, "logits differ by {worst}, their sum by {sum_differs}");
        }
        let reply: Vec<u32> = get(prompt, "greedy");
        assert_eq!(greedy(&model, &ids, reply.len()), reply);
    }
}

#[test]
#[ignore = "needs SmolLM2-135M-Instruct: just test-real"]
fn real_model_adapter_step_equals_peft() {
    let golden = &real_golden()["lora"];
    let dir = tempfile::tempdir().unwrap();
    let shapes: std::collections::BTreeMap<String, Vec<i64>> = get(golden, "shapes");
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let scale = if name.contains("lora_A") { 0.05 } else { 0.02 };
            let drawn = uniform(&name, shape.iter().product::<i64>() as usize);
            // In f32, as in make.py.
            let numbers: Vec<f32> = drawn.into_iter().map(|value| value as f32 * scale).collect();
            (name, Tensor::from_slice(&numbers).view(shape.as_slice()))
        })
        .collect();
    Tensor::write_safetensors(&tensors, dir.path().join("adapter_model.safetensors")).unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), golden["adapter_config"].to_string()).unwrap();
    let mut model = real_model();
    model.load_adapter(dir.path()).unwrap();
    let ids: Vec<u32> = get(golden, "ids");
    let rows = [ids];
    let loss = || {
        let (places, targets) = predicting(&rows);
        let hidden = model.forward(&pack(&rows)).unwrap().index_select(0, &places);
        -model.logprobs(&hidden, &targets, 1.0, 64).unwrap().0.mean(None)
    };
    let before = loss();
    let mut optimizer = AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
    before.backward();
    let norms: std::collections::BTreeMap<String, f64> = get(golden, "norms");
    for (name, tensor) in model.parameters().into_iter().filter(|(name, _)| norms.contains_key(name)) {
        let norm = tensor.grad().to_kind(Kind::Double).norm().double_value(&[]);
        assert!((norm / norms[&name] - 1.0).abs() < 1e-3, "{name}: {norm}, not {}", norms[&name]);
    }
    let norm = optimizer.step(golden["lr"].as_f64().unwrap(), 0.0).unwrap();
    assert!((norm / golden["norm"].as_f64().unwrap() - 1.0).abs() < 1e-3, "{norm}");
    let losses: Vec<f64> = get(golden, "losses");
    let after = tch::no_grad(loss).double_value(&[]);
    let (first, second) = ((before.double_value(&[]) - losses[0]).abs(), (after - losses[1]).abs());
    assert!(first < 1e-4 && second < 1e-4, "losses differ by {first} and {second}");
    assert!(losses[1] < losses[0]);
}
