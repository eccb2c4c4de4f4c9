//! Scores of cross-encoders compared with transformers (tests/golden/models/make.py).

use std::path::Path;

use serde_json::{Value, json};

use super::encoder::{tensors, write};
use crate::model::{CrossEncoderModel, Pair};
use r1_base::error::Result;
use r1_base::{DeviceChoice, Dtype};

fn load(dir: &Path) -> Result<CrossEncoderModel> {
    CrossEncoderModel::load(dir, DeviceChoice::Cpu, Dtype::F32)
}

fn goldens() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/golden_cross.json");
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    serde_json::from_value(file["cases"].take()).unwrap()
}

fn pairs(case: &Value) -> Vec<Pair> {
    let rows = |name: &str| serde_json::from_value::<Vec<Vec<u32>>>(case[name].clone()).unwrap();
    rows("rows").into_iter().zip(rows("types")).map(|(ids, types)| Pair { ids, types }).collect()
}

#[test]
fn cross_encoder_scores_match_transformers() {
    for case in goldens() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &case["config"], &tensors(&case));
        let model = load(dir.path()).unwrap();
        assert_eq!(model.max_tokens(), 40);
        let expected: Vec<f32> = serde_json::from_value(case["scores"].clone()).unwrap();
        // Every pair alone, pairs of similar length together, and all padded to the longest.
        for tokens in [1, 80, 1000] {
            let actual = model.scores_in_batches(&pairs(&case), [0; 2], tokens).unwrap();
            assert_eq!(actual.len(), expected.len());
            let apart = actual.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-5, "{} in batches of {tokens} tokens: {apart}", case["name"]);
        }
        assert!(model.scores(&[], [0; 2]).unwrap().is_empty());
        let refused =
            |ids: Vec<u32>, types: Vec<u32>| model.scores(&[Pair { ids, types }], [0; 2]).unwrap_err().message;
        assert_eq!(refused(vec![1; 41], vec![0; 41]), "a text has 41 tokens; the encoder has 40");
        assert_eq!(refused(vec![96], vec![0]), "token id 96 is outside the vocabulary of 96");
        let types = "a pair has types of tokens that the model does not have; it has 2";
        assert_eq!(refused(vec![1, 1], vec![0]), types);
        assert_eq!(refused(vec![1, 1], vec![0, 2]), types);
    }
}

#[test]
fn models_of_another_class_are_no_cross_encoders() {
    let mut case = goldens().remove(0);
    let dir = tempfile::tempdir().unwrap();
    case["checkpoint"]["classifier.weight"] = json!([2, 24]);
    case["checkpoint"]["classifier.bias"] = json!([2]);
    write(dir.path(), &case["config"], &tensors(&case));
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the model has 2 labels; a cross-encoder that ranks passages has one"), "{error}");
    let mut config = case["config"].clone();
    config["architectures"] = json!(["BertModel"]);
    write(dir.path(), &config, &tensors(&case));
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("a cross-encoder is a BertForSequenceClassification, Roberta"), "{error}");
    assert!(error.contains("r1 index build --encoder DIR"), "{error}");
}
