//! Tensors of checkpoints that hold several parameters, and MXFP4.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::families::{cases, uniform};
use crate::model::{LoraConfig, Model, mxfp4};

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/golden_mxfp4.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn mxfp4_blocks_are_dequantised_as_in_transformers() {
    let golden = golden();
    let bytes = |name: &str| -> Vec<u8> { serde_json::from_value(golden[name].clone()).unwrap() };
    let expected: Vec<f32> = serde_json::from_value(golden["weights"].clone()).unwrap();
    let shape: Vec<i64> = serde_json::from_value(golden["weights_shape"].clone()).unwrap();
    let actual = Tensor::from_slice(&mxfp4::dequantised(&bytes("blocks"), &bytes("scales")));
    let expected = Tensor::from_slice(&expected).view(&shape[..]).transpose(1, 2);
    assert!(actual.view_as(&expected).equal(&expected));
    assert_eq!(mxfp4::dequantised(&[0x70; 16], &[254])[1], f32::INFINITY);
    assert_eq!(mxfp4::dequantised(&[0; 16], &[255])[0], 0.0);
}

/// A tensor of bytes of a file.
struct Bytes {
    name: String,
    shape: Vec<usize>,
    data: Vec<u8>,
    dtype: Dtype,
}

/// Writes shards with these tensors and the index.
fn write(dir: &Path, shards: &[Vec<Bytes>]) {
    let mut map = serde_json::Map::new();
    for (index, tensors) in shards.iter().enumerate() {
        let file = format!("model-{index}.safetensors");
        let views: HashMap<&str, TensorView<'_>> = tensors
            .iter()
            .map(|it| (it.name.as_str(), TensorView::new(it.dtype, it.shape.clone(), &it.data).unwrap()))
            .collect();
        safetensors::serialize_to_file(views, None, &dir.join(&file)).unwrap();
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(file))));
    }
    std::fs::write(dir.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
}

fn bytes_of(name: &str, count: usize, modulus: f64) -> Vec<u8> {
    uniform(name, count).into_iter().map(|value| ((value * 0.5 + 0.5) * modulus) as u8).collect()
}

#[test]
fn gpt_oss_experts_are_read_from_mxfp4() {
    let mut config = cases("golden_2026").swap_remove(0).record["config"].clone();
    (config["hidden_size"], config["intermediate_size"]) = (json!(32), json!(64));
    config["quantization_config"] = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]});
    let model = Model::init(crate::model::Config::from_json(&config).unwrap(), Device::Cpu, Kind::Float, 3).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let (mut single, mut scales, mut expected) = (Vec::new(), Vec::new(), HashMap::new());
    for stored in model.parameters.stored() {
        let size = |at: usize| stored.shape[at] as usize;
        if stored.shape.len() == 3 {
            let (experts, inputs, outputs) = (size(0), size(1), size(2));
            let rows = experts * outputs * inputs / 32;
            let (blocks, exponents) = (bytes_of(&stored.name, rows * 16, 256.0), bytes_of("scale", rows, 4.0));
            let exponents: Vec<u8> = exponents.into_iter().map(|exponent| 122 + exponent).collect();
            let weights = Tensor::from_slice(&mxfp4::dequantised(&blocks, &exponents));
            let weights = weights.view([experts as i64, outputs as i64, inputs as i64]).transpose(1, 2).contiguous();
            expected.insert(stored.name.clone(), weights);
            let shape = vec![experts, outputs, inputs / 32];
            let name = |end: &str| format!("{}_{end}", stored.name);
            scales.push(Bytes { name: name("scales"), shape: shape.clone(), data: exponents, dtype: Dtype::U8 });
            let shape = [shape, vec![16]].concat();
            single.push(Bytes { name: name("blocks"), shape, data: blocks, dtype: Dtype::U8 });
        } else {
            let tensor = stored.get().unwrap();
            let mut data = vec![0; tensor.numel() * 4];
            tensor.copy_data_u8(&mut data, tensor.numel());
            let shape = stored.shape.iter().map(|&size| size as usize).collect();
            single.push(Bytes { name: stored.name.clone(), shape, data, dtype: Dtype::F32 });
            expected.insert(stored.name.clone(), tensor);
        }
    }
    let mut shards = [single, scales];
    write(dir.path(), &shards);
    let read = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
    for stored in read.parameters.stored() {
        assert!(stored.get().unwrap().equal(&expected[&stored.name]), "{}", stored.name);
    }
    // Written without quantisation.
    let other = tempfile::tempdir().unwrap();
    read.save(other.path()).unwrap();
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(other.path().join("config.json")).unwrap()).unwrap();
    assert!(written.get("quantization_config").is_none());
    let again = Model::load(other.path(), Device::Cpu, Kind::Float).unwrap();
    assert!(again.parameters().iter().zip(read.parameters()).all(|((_, a), (_, b))| a.equal(&b)));

    // Blocks of another size, scales that are missing.
    let refused = |shards: &[Vec<Bytes>]| {
        write(dir.path(), shards);
        Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err().message
    };
    let blocks = shards[0].iter().position(|it| it.name.ends_with("0.mlp.experts.down_proj_blocks")).unwrap();
    let shape = shards[0][blocks].shape.clone();
    shards[0][blocks].shape = vec![shape[0], shape[1], shape[2] * 2, 8];
    let message = refused(&shards);
    assert!(message.contains("layers.0.mlp.experts.down_proj_blocks is U8") && message.contains("16]"), "{message}");
    shards[0][blocks].shape = shape;
    let lost = shards[1].pop().unwrap();
    let message = refused(&shards);
    assert!(message.contains(&format!("without {}", lost.name)), "{message}");
    shards[1].push(Bytes { shape: vec![lost.data.len()], ..lost });
    assert!(refused(&shards).contains("_scales is U8"));
}

#[test]
fn adapters_leave_out_experts_in_one_tensor() {
    let mut model = cases("golden_2026").swap_remove(0).model();
    let error = model.add_adapter(LoraConfig::new(2, 4.0, &["up_proj"]), 1).unwrap_err();
    assert!(error.message.contains("`policy.lora.targets`"), "{error}");
    model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "up_proj"]), 1).unwrap();
    assert_eq!(model.lora().unwrap().target_modules, ["q_proj"]);
}
