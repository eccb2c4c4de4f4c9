//! Comparison with numbers of transformers.

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::{distance, gradients, pack, padded, predicting};
use crate::model::layers::Parameters;
use crate::model::{Config, Model, Span};
use crate::reference_data::reference_data;

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

/// Logits, loss, gradients, greedy tokens of one random model, from both forms of its config.
fn random_model(name: &str) {
    let dir = reference_data(&format!("architecture-goldens/{name}"));
    let json =
        |file: &str| -> Value { serde_json::from_str(&std::fs::read_to_string(dir.join(file)).unwrap()).unwrap() };
    let without_source = |file: &str| {
        let config = Config::from_json(&json(file)).unwrap();
        Config { source: serde_json::Map::new(), ..config }
    };
    assert_eq!(without_source("config.json"), without_source("config.v5.json"));

    let golden = json("golden.json");
    let expected = read(&dir.join("golden.safetensors"));
    let model = Model::load(&dir, Device::Cpu, Kind::Float).unwrap();
    let rows = rows_of(&golden);
    let (first, second) = (rows[0].len() as i64, rows[1].len() as i64);
    let mut worst = 0f64;
    for hidden in [model.forward(&pack(&rows)).unwrap(), model.forward_plain(&pack(&rows)).unwrap()] {
        let logits = model.logits(&hidden).unwrap();
        let whole = expected("logits");
        // In the reference the second row is padded on the left.
        worst = worst
            .max(distance(&logits.narrow(0, 0, first), &whole.get(0)))
            .max(distance(&logits.narrow(0, first, second), &whole.get(1).narrow(0, 7, second)));
    }
    // The reference loss is of the padded rows; the last padding token before the second row
    // predicts its first token.
    let numbers = |name: &str| -> Vec<Vec<i64>> { serde_json::from_value(golden[name].clone()).unwrap() };
    let (ids, mask, positions) = (numbers("input_ids"), numbers("attention_mask"), numbers("position_ids"));
    let (mut hidden, mut targets) = (Vec::new(), Vec::new());
    for row in 0..ids.len() {
        let visible: Vec<i64> = (1..ids[row].len() as i64).filter(|&at| mask[row][at as usize] == 1).collect();
        targets.extend(visible.iter().map(|&at| ids[row][at as usize]));
        let places = Tensor::from_slice(&visible) - 1;
        hidden.push(padded::forward(&model, &ids[row], &mask[row], &positions[row]).index_select(0, &places));
    }
    let targets = Tensor::from_slice(&targets);
    let loss = -model.logprobs(&Tensor::cat(&hidden, 0), &targets, 1.0, 16).unwrap().0.mean(None);
    assert!((loss.double_value(&[]) - golden["loss"].as_f64().unwrap()).abs() < 1e-5);
    let mut slopes = 0f64;
    for (name, gradient) in gradients(&model, &loss) {
        slopes = slopes.max(distance(&gradient, &expected(&format!("grad.{name}"))));
    }
    println!("| {name} (left-padded row) | logits {worst:.1e} | gradients {slopes:.1e} |");
    assert!(worst < 2e-5 && slopes < 1e-5);
    let reference: Vec<u32> = serde_json::from_value(golden["greedy_continuation_row0"].clone()).unwrap();
    assert_eq!(greedy(&model, &rows[0], reference.len()), reference);
}

pub(super) fn greedy(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut cache = model.new_cache(1, prompt.len()).unwrap();
    let mut next = model.step(&mut cache, &[Span { slot: 0, start: 0, ids: prompt }]).unwrap();
    let mut ids = Vec::new();
    for at in 0..count {
        ids.push(next.argmax(-1, false).int64_value(&[0]) as u32);
        next = model.step(&mut cache, &[Span { slot: 0, start: prompt.len() + at, ids: &ids[at..] }]).unwrap();
    }
    ids
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn qwen2_matches_transformers() {
    random_model("qwen2-tied");
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn qwen3_matches_transformers() {
    random_model("qwen3-tied");
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn llama3_matches_transformers() {
    random_model("llama3-ropescaled");
}

/// A trained Llama of 260 thousand parameters.
#[test]
#[ignore = "needs the reference data: just test-data"]
fn trained_llama_matches_transformers() {
    let dir = reference_data("stories260k");
    let model = Model::load(&dir.join("hf"), Device::Cpu, Kind::Float).unwrap();
    for line in std::fs::read_to_string(dir.join("forward_goldens.jsonl")).unwrap().lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        let ids = |name: &str| -> Vec<u32> { serde_json::from_value(golden[name].clone()).unwrap() };
        let (prompt, reference) = (ids("input_ids"), ids("greedy_ids"));
        let logits: Vec<f64> = serde_json::from_value(golden["last_logits"].clone()).unwrap();
        let hidden = model.forward(&pack(std::slice::from_ref(&prompt))).unwrap();
        let last = model.logits(&hidden.narrow(0, prompt.len() as i64 - 1, 1)).unwrap();
        assert!(distance(&last.get(0), &Tensor::from_slice(&logits)) < 1e-4);
        let reply = reference.strip_prefix(prompt.as_slice()).unwrap_or(&reference);
        assert_eq!(greedy(&model, &prompt, reply.len()), reply);
    }
}

#[test]
fn logprobs_and_gradients_match_transformers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/qwen2_tiny");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("golden.json")).unwrap()).unwrap();
    let rows: Vec<Vec<u32>> = serde_json::from_value(golden["rows"].clone()).unwrap();
    let expected = read(&dir.join("golden.safetensors"));
    let model = Model::load(&dir, Device::Cpu, Kind::Float).unwrap();
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

/// The number of billions in a model's name.
fn billions(name: &str) -> f64 {
    name.split('-').find_map(|part| part.strip_suffix('B')?.parse().ok()).unwrap()
}

#[test]
#[ignore = "needs the reference data: just test-data"]
fn hub_model_configs_are_read() {
    let dir = reference_data("tokenizers-configs/configs");
    let mut read = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let config = Config::load(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(config.vision.is_some(), name.contains("VL"), "{name} is read as {:?}", config.architecture);
        // Names exclude the embeddings or are rounded.
        let computed = Parameters::numbers(&config) as f64 / 1e9;
        assert!((computed / billions(name) - 1.0).abs() < 0.3, "{name} has {computed}B parameters");
        read += 1;
    }
    assert!(read > 10, "{read} read");
}
