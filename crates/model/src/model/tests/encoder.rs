//! Vectors of encoders compared with transformers (tests/golden/models/make.py).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::families::fill_tensor;
use crate::model::{Encoder, Pooling, write_tensors};
use r1_base::error::Result;
use r1_base::{DeviceChoice, Dtype};

fn load(dir: &Path) -> Result<Encoder> {
    Encoder::load(dir, DeviceChoice::Cpu, Dtype::F32)
}

fn goldens() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/golden_encoder.json");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    serde_json::from_value(file["cases"].take()).unwrap()
}

pub(super) fn tensors(case: &Value) -> Vec<(String, Tensor)> {
    let shapes: BTreeMap<String, Vec<i64>> = serde_json::from_value(case["checkpoint"].clone()).unwrap();
    let filled = shapes.into_iter().map(|(name, shape)| {
        let mut tensor = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        fill_tensor(&name.to_lowercase(), &mut tensor, 1.0, None);
        (name, tensor)
    });
    filled.collect()
}

pub(super) fn write(dir: &Path, config: &Value, tensors: &[(String, Tensor)]) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    write_tensors(&dir.join("model.safetensors"), tensors).unwrap();
}

/// The largest difference to the vectors of transformers.
fn worst(case: &Value, encoder: &Encoder, tokens: usize) -> f32 {
    let rows: Vec<Vec<u32>> = serde_json::from_value(case["rows"].clone()).unwrap();
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let mut worst: f32 = 0.0;
    for pooling in [Pooling::Mean, Pooling::Cls] {
        let expected: Vec<Vec<f32>> = serde_json::from_value(case[pooling.name()].clone()).unwrap();
        let actual = encoder.encode_in_batches(&rows, pooling, tokens).unwrap();
        assert_eq!(actual.len(), rows.len() * encoder.dimension());
        let pairs = actual.iter().zip(expected.iter().flatten());
        worst = pairs.map(|(actual, expected)| (actual - expected).abs()).fold(worst, f32::max);
    }
    worst
}

#[test]
fn encoder_vectors_match_transformers() {
    for case in goldens() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &case["config"], &tensors(&case));
        let encoder = load(dir.path()).unwrap();
        assert_eq!(encoder.max_tokens(), 40);
        // Every row alone, rows of similar length together, and all rows padded to the longest.
        for tokens in [1, 40, 1000] {
            let worst = worst(&case, &encoder, tokens);
            assert!(worst < 1e-5, "{} in batches of {tokens} tokens: {worst}", case["name"]);
        }
        assert!(encoder.encode(&[], Pooling::Mean).unwrap().is_empty());
        let refused = |row: &[u32]| encoder.encode(&[row], Pooling::Mean).unwrap_err().message;
        assert_eq!(refused(&[]), "a text without tokens has no vector");
        assert_eq!(refused(&[96]), "token id 96 is outside the vocabulary of 96");
        assert_eq!(refused(&[1; 41]), "a text has 41 tokens; the encoder has 40");
    }
}

#[test]
fn encoders_with_old_norm_names_load_the_same() {
    let case = goldens().remove(0);
    let renamed = tensors(&case).into_iter().map(|(name, tensor)| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        (name, tensor)
    });
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &case["config"], &renamed.collect::<Vec<_>>());
    let worst = worst(&case, &load(dir.path()).unwrap(), 1000);
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn other_models_and_damaged_configs_are_no_encoders() {
    let case = goldens().remove(0);
    let all = tensors(&case);
    let dir = tempfile::tempdir().unwrap();
    let refusal = |field: &str, value: Value| {
        let mut config = case["config"].clone();
        config[field] = value;
        write(dir.path(), &config, &all);
        load(dir.path()).unwrap_err().to_string()
    };
    for (field, value, expected) in [
        ("model_type", json!("distilbert"), "`architectures` is [\"BertForCausalLM\"]"),
        ("quantization_config", json!({}), "quantised weights are not read"),
        ("position_embedding_type", json!("relative_key"), "only \"absolute\" is supported"),
        ("is_decoder", json!(true), "`is_decoder` is true"),
        ("hidden_act", json!("mish"), "`hidden_act` is \"mish\""),
        ("hidden_size", json!(0), "`hidden_size` is 0"),
        ("num_attention_heads", json!(5), "not a multiple of `num_attention_heads` 5"),
        ("vocab_size", json!(1 << 24), "weights and config.json disagree"),
        ("intermediate_size", json!(41), "misshapen: encoder.layer.0.intermediate.dense.bias"),
        ("num_hidden_layers", json!(2), "not part of the model: encoder.layer.2."),
    ] {
        let error = refusal(field, value);
        assert!(error.contains(expected), "{field}: {error}");
    }
}
