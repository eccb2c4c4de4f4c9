//! r1's part in tests/golden/models/exchange.py: reads checkpoints of transformers and PEFT and
//! writes them again.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::pack;
use crate::model::{LoraConfig, Model, write_tensors};

/// For every directory of `from`: writes the files requested in its `exchange.json` to `to`, under
/// the same name.
#[test]
#[ignore = "a part of tests/golden/models/exchange.py, which `just parity` runs"]
fn exchange() {
    let dir = PathBuf::from(
        std::env::var_os("R1_EXCHANGE").expect("exchange.py sets R1_EXCHANGE to the directory of the checkpoints"),
    );
    let mut count = 0;
    for entry in fs::read_dir(dir.join("from")).unwrap() {
        let from = entry.unwrap().path();
        pass_on(&from, &dir.join("to").join(from.file_name().unwrap()));
        count += 1;
    }
    assert!(count > 0, "{} is empty", dir.display());
}

fn pass_on(from: &Path, to: &Path) {
    let spec: Value = serde_json::from_str(&fs::read_to_string(from.join("exchange.json")).unwrap()).unwrap();
    let row: Vec<u32> = serde_json::from_value(spec["row"].clone()).unwrap();
    let kind = match spec["kind"].as_str().unwrap() {
        "bfloat16" => Kind::BFloat16,
        "float16" => Kind::Half,
        "float32" => Kind::Float,
        other => panic!("{other}"),
    };
    let shard = spec["shard"].as_u64().unwrap_or(u64::MAX);
    // In the type of the file.
    Model::load(from, Device::Cpu, kind).unwrap().save_sharded(to, shard).unwrap();
    // In f32 for every type of the file.
    let mut wide = Model::load(from, Device::Cpu, Kind::Float).unwrap();
    let logits = |model: &Model| -> Tensor {
        let _guard = tch::no_grad_guard();
        model.logits(&model.forward(&pack(std::slice::from_ref(&row))).unwrap()).unwrap()
    };
    let mut outputs = vec![("whole".to_owned(), logits(&wide))];
    let adapter = from.join("adapter");
    if adapter.exists() {
        let targets: Vec<String> = serde_json::from_value(spec["new"].clone()).unwrap();
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let mut fresh = Model::load(from, Device::Cpu, Kind::Float).unwrap();
        fresh.add_adapter(LoraConfig::new(2, 6.0, &targets), 3).unwrap();
        fresh.save_adapter(&to.join("new")).unwrap();
        wide.load_adapter(&adapter).unwrap();
        outputs.push(("adapted".to_owned(), logits(&wide)));
        wide.save_adapter(&to.join("adapter")).unwrap();
        wide.merge_adapter().unwrap();
        wide.save_sharded(&to.join("merged"), shard).unwrap();
    }
    write_tensors(&to.join("found"), &outputs).unwrap();
}
