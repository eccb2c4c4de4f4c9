//! GGUF files: numbers equal to transformers' and gguf's (tests/golden/gguf), hostile files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::blocks::BlockType;
use super::{GGUF_FILE, Gguf};
use crate::model::{Config, Model, Packed, stored_dtype};
use r1_base::error;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(file)
}

fn read(file: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(file)).unwrap()).unwrap()
}

fn digest(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    format!("{:x}", Sha256::digest(bytes))
}

/// A model directory of a GGUF file.
fn directory(file: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(GGUF_FILE);
    fs::write(&path, file).unwrap();
    if let Ok(config) = Gguf::config(&path) {
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    }
    dir
}

#[test]
fn every_type_is_dequantised_as_by_gguf() {
    let cases = read("blocks.json");
    for case in cases.as_array().unwrap() {
        let hex = case["bytes"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let kind = BlockType::of(case["type"].as_u64().unwrap() as u32).unwrap();
        assert_eq!(kind.name.to_uppercase(), case["name"].as_str().unwrap());
        let numbers = kind.dequantise(&bytes);
        let first: Vec<f32> = serde_json::from_value(case["first"].clone()).unwrap();
        assert_eq!(numbers[..4], first, "{}", kind.name);
        assert_eq!(digest(&numbers), case["sha256"].as_str().unwrap(), "{}", kind.name);
    }
    assert_eq!(cases.as_array().unwrap().len(), 13);
}

#[test]
fn weights_and_logits_equal_those_of_transformers() {
    for case in read("golden.json")["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let dir = directory(&fs::read(golden(&format!("{name}.gguf"))).unwrap());
        let model = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        let mut digests = serde_json::Map::new();
        for (name, tensor) in model.parameters() {
            let numbers = Vec::<f32>::try_from(tensor.contiguous().view([-1])).unwrap();
            digests.insert(name, digest(&numbers).into());
        }
        let wanted = case["sha256"].as_object().unwrap();
        assert_eq!(digests.len(), wanted.len(), "{name}");
        for (tensor, wanted) in wanted {
            assert_eq!(digests.get(tensor), Some(wanted), "{name}: {tensor}");
        }
        let prompt: Vec<u32> = serde_json::from_value(case["prompt"].clone()).unwrap();
        let logits: Vec<f32> = serde_json::from_value(case["logits"].clone()).unwrap();
        let packed = Packed::from_rows(&[prompt], Device::Cpu).unwrap();
        let ours = tch::no_grad(|| model.logits(&model.forward(&packed).unwrap()).unwrap()).get(-1);
        let difference = f64::try_from((ours - Tensor::from_slice(&logits)).abs().max()).unwrap();
        assert!(difference < 2e-5, "{name}: logits differ by {difference}");
    }
    let dir = directory(&fs::read(golden("qwen3.gguf")).unwrap());
    assert_eq!(stored_dtype(dir.path()), Some("q5_1"));
}

/// The bytes of a file with metadata of the types that serde_json gives, and tensors of f32.
fn file(metadata: &[(&str, Value)], tensors: &[(&str, &[u64], &[f32])]) -> Vec<u8> {
    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    fn value(bytes: &mut Vec<u8>, field: &Value) {
        match field {
            Value::String(string) => text(bytes, string),
            Value::Bool(flag) => bytes.push(u8::from(*flag)),
            Value::Number(number) if number.is_u64() => bytes.extend((number.as_u64().unwrap() as u32).to_le_bytes()),
            Value::Number(number) => bytes.extend((number.as_f64().unwrap() as f32).to_le_bytes()),
            Value::Array(elements) => {
                bytes.extend(kind(&elements[0]).to_le_bytes());
                bytes.extend((elements.len() as u64).to_le_bytes());
                for element in elements {
                    value(bytes, element);
                }
            }
            _ => panic!("{field}"),
        }
    }
    fn kind(value: &Value) -> u32 {
        match value {
            Value::Number(number) if number.is_u64() => 4,
            Value::Number(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            _ => 9,
        }
    }
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (name, field) in metadata {
        text(&mut bytes, name);
        bytes.extend(kind(field).to_le_bytes());
        value(&mut bytes, field);
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, sizes, numbers) in tensors {
        text(&mut bytes, name);
        bytes.extend((sizes.len() as u32).to_le_bytes());
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// Metadata of a small Llama.
fn llama() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", json!("llama")),
        ("llama.block_count", json!(1)),
        ("llama.embedding_length", json!(8)),
        ("llama.feed_forward_length", json!(8)),
        ("llama.attention.head_count", json!(1)),
        ("llama.context_length", json!(64)),
        ("llama.rope.freq_base", json!(500_000.5)),
        ("llama.attention.layer_norm_rms_epsilon", json!(0.5)),
    ]
}

fn config_of(metadata: &[(&str, Value)], tensors: &[(&str, &[u64], &[f32])]) -> error::Result<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    fs::write(&path, file(metadata, tensors)).unwrap();
    Gguf::config(&path)
}

#[test]
fn metadata_is_used_or_refused_by_name() {
    const EMBEDDING: (&str, &[u64], &[f32]) = ("token_embd.weight", &[8, 3], &[0.5; 24]);
    let with = |name: &'static str, value: Value| {
        let mut metadata = llama();
        metadata.retain(|(other, _)| *other != name);
        metadata.push((name, value));
        config_of(&metadata, &[EMBEDDING])
    };
    let config = with("llama.rope.scaling.type", json!("none")).unwrap();
    assert_eq!(Config::from_json(&config).unwrap().head_dim, 8);
    assert_eq!((&config["vocab_size"], &config["tie_word_embeddings"]), (&json!(3), &json!(true)));
    for (name, value, why) in [
        ("llama.expert_count", json!(8), "`llama.expert_count` is 8; only 0 is supported"),
        ("llama.rope.dimension_count", json!(4), "`llama.rope.dimension_count` is 4; only 8 is supported"),
        (
            "llama.attention.sliding_window",
            json!(4),
            "`llama.attention.sliding_window` is 4; this field is not supported",
        ),
        ("llama.rope.scaling.type", json!("longrope"), "none, linear and yarn with a factor are supported"),
        ("llama.feed_forward_length", json!([8, 16]), "layers that differ in it are not supported"),
        ("llama.block_count", json!("one"), "it must be a number"),
        ("general.architecture", json!("mamba"), "GGUF files of the architecture `mamba` are not supported"),
    ] {
        let error = with(name, value).unwrap_err();
        assert!(error.kind == error::Kind::Model && error.message.contains(why), "{error}");
    }
    let error = config_of(&llama()[1..], &[EMBEDDING]).unwrap_err();
    assert!(error.message.contains("has no `general.architecture`"), "{error}");
    let scaled = with("llama.rope.scaling.factor", json!(2.5)).unwrap();
    assert_eq!(scaled["rope_scaling"], json!({"rope_type": "linear", "factor": 2.5}));

    // Divisors of Llama 3.2: 32 for the longest wavelength, 1 for the shortest.
    let divisors = |factor: f32| {
        let mut numbers = [1.0; 4];
        for (at, number) in numbers.iter_mut().enumerate() {
            let wavelength = std::f64::consts::TAU * 500_000.5_f64.powf(at as f64 / 4.0);
            let ramp = ((8192.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
            *number = (1.0 / ((1.0 - ramp) / f64::from(factor) + ramp)) as f32;
        }
        numbers
    };
    let freqs = |numbers: &[f32]| config_of(&llama(), &[EMBEDDING, ("rope_freqs.weight", &[4], numbers)]);
    let config = freqs(&divisors(32.0)).unwrap();
    assert_eq!(
        (&config["rope_scaling"]["rope_type"], &config["rope_scaling"]["factor"]),
        (&json!("llama3"), &json!(32.0))
    );
    Config::from_json(&config).unwrap();
    let error = freqs(&[1.0, 3.0, 5.0, 8.0]).unwrap_err();
    assert!(error.message.contains("rope_freqs.weight has other factors"), "{error}");
    let mut both = llama();
    both.push(("llama.rope.scaling.factor", json!(4.0)));
    let error = config_of(&both, &[EMBEDDING, ("rope_freqs.weight", &[4], &divisors(32.0))]).unwrap_err();
    assert!(error.message.contains("there is a tensor rope_freqs.weight, too"), "{error}");
}

#[test]
fn heads_of_the_metadata_are_numbers_or_lists_and_keys_have_those_of_queries() {
    let bytes = fs::read(golden("llama.gguf")).unwrap();
    let weights = |name: &str, count: Option<Value>| {
        let mut gguf = Gguf::parse(&bytes).unwrap();
        gguf.metadata.remove(name);
        gguf.metadata.extend(count.map(|count| (name.to_owned(), count)));
        let tensors = super::names::renamed(&gguf, &bytes).unwrap();
        let projections = tensors.iter().filter(|tensor| tensor.name.contains("_proj"));
        projections.flat_map(|tensor| Vec::<f32>::try_from(tensor.read().unwrap().flatten(0, -1)).unwrap()).collect()
    };
    let metadata = Gguf::parse(&bytes).unwrap().metadata;
    for name in ["llama.attention.head_count", "llama.attention.head_count_kv"] {
        let count = &metadata[name];
        let expected: Vec<f32> = weights(name, Some(count.clone()));
        assert_eq!(weights(name, Some(json!([count, count]))), expected, "{name}");
        assert_ne!(weights(name, Some(json!([0]))), expected, "{name}");
    }
    let keys = "llama.attention.head_count_kv";
    assert_eq!(weights(keys, None), weights(keys, Some(metadata["llama.attention.head_count"].clone())));
}

#[test]
fn damaged_and_contradictory_files_are_refused() {
    let whole = file(&llama(), &[("token_embd.weight", &[8, 3], &[0.5; 24])]);
    let refused = |bytes: &[u8]| Gguf::parse(bytes).unwrap_err().message;
    for end in 0..whole.len() - 1 {
        let message = refused(&whole[..end]);
        assert!(message.contains("cut short"), "{end}: {message}");
    }
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        refused(&file)
    };
    let info = whole.windows(17).position(|window| window == b"token_embd.weight").unwrap() + 17;
    let largest = u64::MAX.to_le_bytes();
    for (at, bytes, why) in [
        (0, &b"PK\x03\x04"[..], "does not begin with GGUF"),
        (4, &1_u32.to_le_bytes(), "has version 1"),
        (4, &3_u32.to_be_bytes(), "big-endian"),
        (8, &largest, "has a header with 18446744073709551615 tensors"),
        (16, &largest, "a text of 844424930131968 bytes"),
        (24, &largest, "a text of 18446744073709551615 bytes"),
        (info, &9_u32.to_le_bytes(), "9 dimensions"),
        (info + 4, &largest, "which does not fit"),
        (info + 4, &(1_u64 << 40).to_le_bytes(), "is beyond its end"),
        (info + 4, &0_u64.to_le_bytes(), "which does not fit"),
        (info + 20, &20_u32.to_le_bytes(), "has type 20 (IQ4_NL), which is not supported"),
        (info + 20, &2_u32.to_le_bytes(), "which does not fit q4_0"),
        (info + 20, &99_u32.to_le_bytes(), "has type 99 (of an unknown kind)"),
        (info + 24, &largest, "is beyond its end"),
        (info + 24, &4_u64.to_le_bytes(), "is beyond its end"),
    ] {
        let message = changed(at, bytes);
        assert!(message.contains(why), "{at}: {message}");
    }
    let one: (&str, &[u64], &[f32]) = ("a", &[8], &[0.0; 8]);
    let with = |name: &'static str, value: Value| [llama(), vec![(name, value)]].concat();
    for (bytes, why) in [
        (file(&llama(), &[one, one]), "has the tensor a twice"),
        (file(&with("llama.block_count", json!(1)), &[one]), "has the metadata `llama.block_count` twice"),
        (file(&with("general.alignment", json!(0)), &[one]), "gives the alignment 0"),
        (file(&with("general.alignment", json!(24)), &[one]), "gives the alignment 24"),
        (file(&with("a", json!([[1]])), &[one]), "a list of lists"),
        (file(&with("x".repeat(600).leak(), json!(1)), &[one]), "a text of 600 bytes"),
    ] {
        let message = refused(&bytes);
        assert!(message.contains(why), "{message}");
    }
    // Two tensors of the same bytes would make a small file describe a large model.
    let mut bytes = file(&llama(), &[("a", &[8], &[0.0; 8]), ("b", &[8], &[0.0; 8])]);
    let second = bytes.windows(9).position(|window| window == b"\x01\0\0\0\0\0\0\0b").unwrap() + 9 + 4 + 8 + 4;
    bytes[second..second + 8].copy_from_slice(&0_u64.to_le_bytes());
    assert!(refused(&bytes).contains("overlap"));
}

/// Random changes of real files: they are refused with a message, or load.
#[test]
fn hostile_files_are_refused_or_read() {
    let files: Vec<Vec<u8>> =
        ["llama", "gemma3", "qwen3moe"].iter().map(|name| fs::read(golden(&format!("{name}.gguf"))).unwrap()).collect();
    let header = files.iter().map(Vec::len).min().unwrap();
    let number = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 31), Just(1 << 40), 0..1000_u64]
            .prop_map(|number| number.to_le_bytes().to_vec()),
        any::<u32>().prop_map(|number| number.to_le_bytes().to_vec()),
    ];
    // Most changes are in the header, a few make the file shorter.
    let at = prop_oneof![0..200_usize, 0..header];
    let strategy = (0..files.len(), prop::collection::vec((at, number), 1..4), prop::option::weighted(0.1, 0..header));
    let (mut accepted, mut refused) = (0, 0);
    crate::model::tests::draw(&strategy, |(which, changes, cut)| {
        let mut bytes = files[which].clone();
        for (at, change) in &changes {
            let end = (at + change.len()).min(bytes.len());
            bytes[*at..end].copy_from_slice(&change[..end - at]);
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        let dir = directory(&bytes);
        let loaded =
            Gguf::config(&dir.path().join(GGUF_FILE)).and_then(|_| Model::load(dir.path(), Device::Cpu, Kind::Float));
        match loaded {
            Ok(_) => accepted += 1,
            Err(error) => {
                let mut text = String::new();
                write!(text, "{error}").unwrap();
                assert!(error.kind == error::Kind::Model && text.len() < 4000, "{text} of {changes:?}");
                refused += 1;
            }
        }
    });
    assert!(accepted > 0 && refused > 0, "{accepted} read, {refused} refused");
}
