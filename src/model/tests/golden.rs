//! Against numbers that transformers computed.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::{distance, gradients, pack, predicting};
use crate::model::{Config, Qwen2, Span};

/// The folder of shared reference data, if this machine has it.
fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("R1_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    let path = root.join(name);
    if !path.exists() {
        println!("skipped: {} is not here", path.display());
        return None;
    }
    Some(path)
}

fn read(path: &Path) -> impl Fn(&str) -> Tensor + use<> {
    let tensors: std::collections::HashMap<String, Tensor> =
        Tensor::read_safetensors(path).unwrap().into_iter().collect();
    move |name| tensors[name].shallow_clone()
}

fn rows_of(golden: &Value) -> Vec<Vec<u32>> {
    let list = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let (ids, mask) = (golden["input_ids"].as_array().unwrap(), golden["attention_mask"].as_array().unwrap());
    ids.iter()
        .zip(mask)
        .map(|(ids, mask)| list(ids).into_iter().zip(list(mask)).filter(|(_, m)| *m == 1).map(|(id, _)| id).collect())
        .collect()
}

#[test]
fn logits_are_those_of_transformers() {
    let Some(dir) = shared("architecture-goldens/qwen2-tied") else { return };
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("golden.json")).unwrap()).unwrap();
    let expected = read(&dir.join("golden.safetensors"));
    let model = Qwen2::load(&dir, Device::Cpu, Kind::Float).unwrap();
    let rows = rows_of(&golden);
    let hidden = model.forward(&pack(&rows)).unwrap();
    let logits = model.logits(&hidden).unwrap();
    let (first, second) = (rows[0].len() as i64, rows[1].len() as i64);
    let whole = expected("logits");
    assert!(distance(&logits.narrow(0, 0, first), &whole.get(0)) < 2e-5);
    assert!(distance(&logits.narrow(0, first, second), &whole.get(1).narrow(0, 7, second)) < 2e-5);
}

#[test]
fn log_probabilities_and_gradients_are_those_of_transformers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen2_tiny");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("golden.json")).unwrap()).unwrap();
    let rows: Vec<Vec<u32>> = serde_json::from_value(golden["rows"].clone()).unwrap();
    let expected = read(&dir.join("golden.safetensors"));
    let model = Qwen2::load(&dir, Device::Cpu, Kind::Float).unwrap();
    for hidden in [model.forward(&pack(&rows)).unwrap(), model.forward_plain(&pack(&rows)).unwrap()] {
        assert!(distance(&model.logits(&hidden).unwrap(), &expected("logits")) < 2e-5);
        let (places, targets) = predicting(&rows);
        let temperature = golden["temperature"].as_f64().unwrap();
        let (logp, entropy) = model.logprobs(&hidden.index_select(0, &places), &targets, temperature, 33).unwrap();
        assert!(distance(&logp, &expected("logp")) < 2e-5);
        assert!(distance(&entropy, &expected("entropy")) < 2e-5);
        let loss = -logp.mean(None) - entropy.mean(None) * 0.1;
        assert!((loss.double_value(&[]) - golden["loss"].as_f64().unwrap()).abs() < 1e-5);
        for (name, gradient) in gradients(&model, &loss) {
            assert!(distance(&gradient, &expected(&format!("grad.{name}"))) < 1e-5, "{name}");
        }
    }
}

#[test]
fn both_config_forms_and_greedy_generation() {
    let Some(dir) = shared("architecture-goldens/qwen2-tied") else { return };
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("golden.json")).unwrap()).unwrap();
    let read = |name: &str| -> Config {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        Config::from_json(&serde_json::from_str(&text).unwrap()).unwrap()
    };
    let (classic, new) = (read("config.json"), read("config.v5.json"));
    assert_eq!(Config { other: serde_json::Map::new(), ..classic }, Config { other: serde_json::Map::new(), ..new });

    let model = Qwen2::load(&dir, Device::Cpu, Kind::Float).unwrap();
    let prompt = rows_of(&golden).swap_remove(0);
    let reference: Vec<i64> = serde_json::from_value(golden["greedy_continuation_row0"].clone()).unwrap();
    let mut cache = model.new_cache(1, prompt.len());
    let mut next = model.step(&mut cache, &[Span { slot: 0, start: 0, ids: &prompt }]).unwrap();
    for (at, expected) in reference.iter().enumerate() {
        let id = next.argmax(-1, false).int64_value(&[0]);
        assert_eq!(id, *expected);
        next = model.step(&mut cache, &[Span { slot: 0, start: prompt.len() + at, ids: &[id as u32] }]).unwrap();
    }
}
