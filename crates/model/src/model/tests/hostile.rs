//! Hostile files: mutations of real headers and configs. None may panic, hang, or allocate more
//! memory than the files justify. `R1_FUZZ_SECONDS` is the time of each test (default 2).

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::families::all_cases;
use super::tiny;
use crate::model::{Config, LoraConfig, Model};
use r1_base::error;

/// CPU time of this thread.
fn computed() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let begin = *BEGIN;
    // Nanoseconds of Linux's schedstat, otherwise wall time.
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let count = text.split(' ').next().and_then(|count| count.parse().ok());
    count.map_or_else(|| begin.elapsed(), Duration::from_nanos)
}

/// Draws from the strategy until the time is up.
pub(in crate::model) fn draw<T: std::fmt::Debug>(strategy: &impl Strategy<Value = T>, mut check: impl FnMut(T)) {
    let seconds = std::env::var("R1_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::deterministic();
    while Instant::now() < end {
        check(strategy.new_tree(&mut runner).unwrap().current());
    }
}

/// Loads a model; failures must be `Kind::Model` errors within the time limit.
fn load(dir: &Path, what: &dyn std::fmt::Debug) {
    let started = computed();
    if let Err(error) = Model::load(dir, Device::Cpu, Kind::Float) {
        assert_eq!(error.kind, error::Kind::Model, "{error} of {what:?}");
        assert!(error.to_string().len() < 4000, "{} bytes of message for {what:?}", error.to_string().len());
    }
    let took = computed().saturating_sub(started);
    assert!(took < Duration::from_secs(5), "{what:?} took {took:?}");
}

fn hostile_value() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(1)),
        Just(json!(3)),
        Just(json!(0.5)),
        Just(json!(1e308)),
        Just(json!(-1e308)),
        Just(json!(1e-308)),
        Just(json!(u64::MAX)),
        Just(json!(i64::MAX)),
        Just(json!(1u64 << 30)),
        Just(json!((1u64 << 30) - 1)),
        Just(json!(1u64 << 40)),
        (0..100_000u64).prop_map(|number| json!(number)),
    ];
    prop_oneof![
        4 => numbers,
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(|value| json!(value)),
        1 => "[a-z_]{0,12}".prop_map(|text| json!(text)),
        1 => Just(json!([])),
        1 => Just(json!({})),
        1 => Just(json!([0, 1, "full_attention", null])),
        1 => Just(json!({"rope_type": "yarn", "factor": 1e300, "beta_fast": 1e-300})),
        1 => Just(json!({"rope_type": "dynamic", "factor": 1e18})),
        1 => Just(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})),
        1 => Just(json!({"full_attention": {"rope_theta": 1}, "sliding_attention": []})),
        1 => Just(json!("x".repeat(1 << 20))),
    ]
}

#[test]
fn hostile_configs_are_refused_or_read() {
    let all: Vec<Value> = all_cases().iter().map(|case| case.record["config"].clone()).collect();
    let picks = prop::collection::vec((any::<prop::sample::Index>(), hostile_value()), 1..4);
    let strategy = (any::<prop::sample::Index>(), picks);
    let dir = tempfile::tempdir().unwrap();
    tiny(true, Kind::Float).save(dir.path()).unwrap();
    let (mut read, mut refused) = (0, 0);
    draw(&strategy, |(which, picks)| {
        let mut config = which.get(&all).clone();
        let fields = config.as_object_mut().unwrap();
        for (choice, value) in picks {
            let name = choice.get(&fields.keys().cloned().collect::<Vec<_>>()).clone();
            fields.insert(name, value);
        }
        match Config::from_json(&config) {
            Err(error) => {
                assert_eq!(error.kind, error::Kind::Model, "{error} of {config}");
                refused += 1;
            }
            Ok(read_config) => {
                // Accepted configs round-trip.
                let again = Config::from_json(&read_config.to_json()).unwrap();
                let without_source = |config: Config| Config { source: serde_json::Map::new(), ..config };
                assert_eq!(without_source(again), without_source(read_config), "{config}");
                read += 1;
            }
        }
        // With the weights of another model, of any size.
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        load(dir.path(), &config);
    });
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn inconsistent_safetensors_headers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(true, Kind::Float);
    model.save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let patch = (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..24), any::<bool>());
    let digits = prop_oneof![
        Just(u64::MAX.to_string()),
        Just("18446744073709551616".to_owned()),
        Just("-1".to_owned()),
        Just("1e99".to_owned()),
        (0..1u64 << 40).prop_map(|number| number.to_string()),
    ];
    let strategy = (
        prop::collection::vec(patch, 0..3),
        prop::collection::vec((any::<prop::sample::Index>(), digits), 0..3),
        prop::option::of(any::<u64>()),
        prop::option::of(any::<prop::sample::Index>()),
    );
    draw(&strategy, |(patches, numbers, length, cut)| {
        let mut text = whole[8..header].to_vec();
        for (choice, digits) in numbers {
            let at = choice.index(text.len());
            if let Some(start) = text[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) {
                let end = start + text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                text.splice(start..end, digits.bytes());
            }
        }
        for (choice, bytes, instead) in patches {
            let at = choice.index(text.len() + 1);
            let end = if instead { (at + bytes.len()).min(text.len()) } else { at };
            text.splice(at..end, bytes);
        }
        let length = length.unwrap_or(text.len() as u64);
        let mut bytes = [&length.to_le_bytes()[..], &text, &whole[header..]].concat();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        load(dir.path(), &String::from_utf8_lossy(&text));
    });
}

#[test]
fn hostile_adapters_and_indexes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = tiny(true, Kind::Float);
    model.save_sharded(dir.path(), 8000).unwrap();
    model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj"]), 1).unwrap();
    model.save_adapter(dir.path()).unwrap();
    model.merge_adapter().unwrap();
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap() };
    let (adapter, index) = (read("adapter_config.json"), read("model.safetensors.index.json"));
    let strategy = (any::<prop::sample::Index>(), hostile_value(), any::<prop::sample::Index>());
    draw(&strategy, |(field, value, shard)| {
        let mut config = adapter.clone();
        let name = field.get(&config.as_object().unwrap().keys().cloned().collect::<Vec<_>>()).clone();
        config[name] = value.clone();
        fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        let mut model = tiny(true, Kind::Float);
        if let Err(error) = model.load_adapter(dir.path()) {
            assert_eq!(error.kind, error::Kind::Model, "{error} of {config}");
        }
        let mut index = index.clone();
        let map = index["weight_map"].as_object_mut().unwrap();
        let name = shard.get(&map.keys().cloned().collect::<Vec<_>>()).clone();
        map.insert(name, value);
        fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        load(dir.path(), &index);
    });
}

#[test]
fn model_json_files_have_a_size_limit() {
    let dir = tempfile::tempdir().unwrap();
    tiny(true, Kind::Float).save(dir.path()).unwrap();
    let path = dir.path().join("config.json");
    fs::write(&path, "[".repeat(1 << 20)).unwrap();
    load(dir.path(), &"deep");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err();
    assert!(error.message.contains("1099511627776 bytes"), "{error}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err();
    assert!(error.message.contains("not a file"), "{error}");
}

#[test]
fn model_larger_than_memory_is_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = tiny(true, Kind::Float).config.to_json();
    config["vocab_size"] = json!(1u64 << 30);
    config["hidden_size"] = json!(1008);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    // A sparse file of two terabytes.
    let bytes = (1u64 << 30) * 1008 * 2;
    let tensor = json!({"dtype": "BF16", "shape": [1u64 << 30, 1008], "data_offsets": [0, bytes]});
    let header = json!({"model.embed_tokens.weight": tensor}).to_string();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.set_len(8 + header.len() as u64 + bytes).is_err() {
        println!("skipped: no room for a file of {bytes} bytes, empty as it is");
        return;
    }
    // The CPU kernels keep a second copy of weights in f32.
    let copied = if crate::native::has_cpu_kernels() { "packed copy" } else { "in f32 take 4128" };
    for (kind, expected_text) in [(Kind::Float, copied), (Kind::BFloat16, "in bf16 take 2064")] {
        let error = Model::load(dir.path(), Device::Cpu, kind).unwrap_err();
        assert_eq!(error.kind, error::Kind::Device);
        assert!(
            error.message.contains(expected_text) && error.message.contains("MiB of memory that are free"),
            "{error}"
        );
    }
}
