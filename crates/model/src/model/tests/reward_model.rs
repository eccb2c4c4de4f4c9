//! Scores of reward models compared with transformers (tests/golden/models/make.py).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::families::fill_tensor;
use crate::model::{RewardModel, write_tensors};

struct Golden {
    name: String,
    config: Value,
    tensors: Vec<(String, Tensor)>,
    rows: Vec<Vec<u32>>,
    scores: Vec<Vec<f32>>,
}

fn goldens() -> Vec<Golden> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/golden_reward.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let read = |case: &Value| {
        let shapes: BTreeMap<String, Vec<i64>> = serde_json::from_value(case["checkpoint"].clone()).unwrap();
        let norm = if case["config"]["model_type"] == "gemma3_text" { 0.0 } else { 1.0 };
        let tensors = shapes.into_iter().map(|(name, shape)| {
            let mut tensor = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
            fill_tensor(&name, &mut tensor, norm, None);
            (name, tensor)
        });
        Golden {
            name: case["name"].as_str().unwrap().to_owned(),
            config: case["config"].clone(),
            tensors: tensors.collect(),
            rows: serde_json::from_value(case["rows"].clone()).unwrap(),
            scores: serde_json::from_value(case["scores"].clone()).unwrap(),
        }
    };
    file["cases"].as_array().unwrap().iter().map(read).collect()
}

fn write(dir: &Path, config: &Value, tensors: &[(String, Tensor)]) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    write_tensors(&dir.join("model.safetensors"), tensors).unwrap();
}

#[test]
fn reward_model_scores_match_transformers() {
    for golden in goldens() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &golden.config, &golden.tensors);
        let model = RewardModel::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        let rows: Vec<&[u32]> = golden.rows.iter().map(Vec::as_slice).collect();
        let together = model.scores(&rows).unwrap();
        for ((row, together), expected) in rows.iter().zip(&together).zip(&golden.scores) {
            let alone = model.scores(&[row]).unwrap().remove(0);
            assert_eq!(expected.len(), alone.len(), "{}", golden.name);
            for ((alone, together), expected) in alone.iter().zip(together).zip(expected) {
                let (off, apart) = ((alone - expected).abs(), (alone - together).abs());
                assert!(off < 1e-5 && apart < 1e-5, "{}: {alone}, {together}, not {expected}", golden.name);
            }
        }
        assert!(model.scores(&[]).unwrap().is_empty());
        assert!(model.scores(&[&[]]).is_err() && model.scores(&[&[u32::MAX]]).is_err());
    }
}

#[test]
fn models_of_other_classes_are_no_reward_models() {
    let golden = goldens().remove(0);
    let dir = tempfile::tempdir().unwrap();
    let refusal = |config: &Value, tensors: &[(String, Tensor)]| {
        write(dir.path(), config, tensors);
        RewardModel::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err().to_string()
    };
    for class in [json!(["Qwen2ForCausalLM"]), json!(["Qwen2ForTokenClassification"]), json!(null)] {
        let mut config = golden.config.clone();
        config["architectures"] = class;
        let error = refusal(&config, &golden.tensors);
        assert!(error.contains("a reward model is a …ForSequenceClassification"), "{error}");
    }
    let mut config = golden.config.clone();
    config["architectures"] = json!(["BertForSequenceClassification"]);
    config["model_type"] = json!("bert");
    let error = refusal(&config, &golden.tensors);
    assert!(error.contains("this architecture is not supported"), "{error}");
    let trunk: Vec<(String, Tensor)> = golden
        .tensors
        .iter()
        .filter(|(name, _)| name != "score.weight")
        .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
        .collect();
    let error = refusal(&golden.config, &trunk);
    assert!(error.contains("`score.weight` is missing"), "{error}");
}
