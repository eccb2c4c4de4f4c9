//! The vision tower, compared with transformers (tests/golden/vision/tower.py).

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::model::layers::AdapterUse;
use crate::model::{VisionConfig, VisionTower};

struct Golden {
    config: Value,
    grids: Vec<[usize; 3]>,
    tensors: Vec<(String, Tensor)>,
}

impl Golden {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/vision/tower.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata.metadata().clone().unwrap();
        let parsed = |name: &str| -> Value { serde_json::from_str(&metadata[name]).unwrap() };
        let grids = serde_json::from_value(parsed("grids")).unwrap();
        Self { config: parsed("config"), grids, tensors: Tensor::read_safetensors(&path).unwrap() }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors.iter().find(|(other, _)| other == name).unwrap().1
    }

    fn tower(&self, kind: Kind) -> VisionTower {
        let config = VisionConfig::from_json(&self.config).unwrap();
        let tower = VisionTower::empty(config, Device::Cpu, kind).unwrap();
        tch::no_grad(|| {
            for (name, mut parameter) in tower.parameters() {
                parameter.copy_(self.tensor(&format!("weight.{name}")));
            }
        });
        tower
    }
}

/// The largest difference, as a share of the largest value.
fn error(ours: &Tensor, theirs: &Tensor) -> f64 {
    let (ours, theirs) = (ours.to_kind(Kind::Double), theirs.to_kind(Kind::Double));
    (&ours - &theirs).abs().max().double_value(&[]) / theirs.abs().max().double_value(&[])
}

#[test]
fn embeddings_and_gradients_are_those_of_transformers() {
    let golden = Golden::read();
    // The reference rotates queries and keys in f32, and gradients are stored in f32.
    for (kind, bound) in [(Kind::Float, 1e-5), (Kind::Double, 2e-6)] {
        let tower = golden.tower(kind);
        let embeddings = tower.forward(golden.tensor("patches"), &golden.grids, AdapterUse::Beside).unwrap().embeddings;
        assert!(error(&embeddings, golden.tensor("embeddings")) < bound, "{kind:?}");
        let numbers = Tensor::arange(embeddings.numel() as i64, (Kind::Double, Device::Cpu));
        let factors = (numbers * 0.7).sin().to_kind(kind).view_as(&embeddings);
        (&embeddings * factors).sum(kind).backward();
        let all = tower.parameters();
        assert_eq!(golden.tensors.len(), 2 * all.len() + 2);
        for (name, parameter) in all {
            let error = error(&parameter.grad(), golden.tensor(&format!("gradient.{name}")));
            assert!(error < bound, "{kind:?} {name}: {error}");
        }
    }
}

/// The embeddings of an image do not depend on the others.
#[test]
fn images_are_computed_alone() {
    let golden = Golden::read();
    let tower = golden.tower(Kind::Double);
    let (patches, all) = (golden.tensor("patches"), &golden.grids);
    let together = tower.forward(patches, all, AdapterUse::Beside).unwrap().embeddings;
    let (mut patch, mut square) = (0, 0);
    for grid in all {
        let count = grid.iter().product::<usize>() as i64;
        let alone = tower.forward(&patches.narrow(0, patch, count), &[*grid], AdapterUse::Beside).unwrap().embeddings;
        assert!(error(&alone, &together.narrow(0, square, count / 4)) < 1e-12);
        (patch, square) = (patch + count, square + count / 4);
    }
}

#[test]
fn wrong_configurations_and_patches_are_refused() {
    let golden = Golden::read();
    for (change, message) in [
        (json!({ "depth": 0 }), "`depth` is 0"),
        (json!({ "num_heads": 5 }), "`hidden_size` 32 in 5 heads"),
        (json!({ "hidden_act": "gelu" }), "`hidden_act` is \"gelu\""),
        (json!({ "model_type": "qwen2_vl" }), "`model_type` \"qwen2_vl\""),
        (json!({ "window_size": 7 }), "`window_size` 7"),
        (json!({ "fullatt_block_indexes": "all" }), "`fullatt_block_indexes`"),
    ] {
        let mut config = golden.config.clone();
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let error = VisionConfig::from_json(&config).unwrap_err();
        assert!(error.message.contains(message), "{error}");
    }
    let tower = golden.tower(Kind::Float);
    for grids in [vec![[1, 6, 10]], vec![[1, 3, 36]]] {
        let error = tower.forward(golden.tensor("patches"), &grids, AdapterUse::Beside).unwrap_err();
        assert!(error.message.contains("do not fit to the grids"), "{error}");
    }
}
