//! Checkpoints on disk: round trips, shards, inconsistent files.

use std::fs;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::{pack, rows, tiny};
use crate::model::Model;
use r1_base::error;

fn load(dir: &Path) -> r1_base::Result<Model> {
    Model::load(dir, Device::Cpu, Kind::Float)
}

fn message(dir: &Path) -> String {
    let error = load(dir).unwrap_err();
    assert_eq!(error.kind, error::Kind::Model);
    assert!(error.place.is_some(), "{error}");
    error.to_string()
}

#[test]
fn saved_model_is_loaded() {
    for tied in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let model = tiny(tied, Kind::Float);
        model.save(dir.path()).unwrap();
        let again = load(dir.path()).unwrap();
        assert_eq!(again.config.to_json()["head_dim"], 4);
        assert!(model.parameters().iter().zip(again.parameters()).all(|((a, x), (b, y))| *a == b && x.equal(&y)));
        assert_eq!(again.parameters().iter().any(|(name, _)| name == "lm_head.weight"), !tied);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}

#[test]
fn bf16_is_saved_as_bf16_and_computed_in_either() {
    let dir = tempfile::tempdir().unwrap();
    tiny(true, Kind::BFloat16).save(dir.path()).unwrap();
    let config = fs::read_to_string(dir.path().join("config.json")).unwrap();
    assert!(config.contains("\"torch_dtype\": \"bfloat16\""), "{config}");
    let narrow = Model::load(dir.path(), Device::Cpu, Kind::BFloat16).unwrap();
    let wide = load(dir.path()).unwrap();
    assert!(narrow.parameters().iter().zip(wide.parameters()).all(|((_, x), (_, y))| x.to_kind(Kind::Float).equal(&y)));
    let rows = rows(&[7, 3], 53);
    let (a, b) = (narrow.forward(&pack(&rows)).unwrap(), wide.forward(&pack(&rows)).unwrap());
    assert!(super::distance(&a, &b) < 0.2);
    let step = |model: &Model| {
        let mut cache = model.new_cache(1, 8).unwrap();
        model.step(&mut cache, &[crate::model::Span { slot: 0, start: 0, ids: &rows[0] }]).unwrap()
    };
    assert_eq!(step(&narrow).kind(), Kind::Float);
    assert!(super::distance(&step(&narrow), &step(&wide)) < 0.5);
}

#[test]
fn initial_weights_are_deterministic_for_a_seed() {
    let [a, b, c] = [1, 1, 2].map(|seed| {
        let model = Model::init(tiny(true, Kind::Float).config, Device::Cpu, Kind::Float, seed).unwrap();
        model.parameters().remove(2).1
    });
    assert!(a.equal(&b) && !a.equal(&c));
    assert!((a.std(true).double_value(&[]) - 0.3).abs() < 0.05);
}

#[test]
fn safetensors_shards_are_read_through_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(false, Kind::Float);
    model.save(dir.path()).unwrap();
    let whole = dir.path().join("model.safetensors");
    let tensors = Tensor::read_safetensors(&whole).unwrap();
    fs::remove_file(&whole).unwrap();
    let mut map = serde_json::Map::new();
    let (first, second) = tensors.split_at(9);
    for (file, part) in [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)] {
        Tensor::write_safetensors(part, dir.path().join(file)).unwrap();
        map.extend(part.iter().map(|(name, _)| (name.clone(), file.into())));
    }
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    let again = load(dir.path()).unwrap();
    assert!(model.parameters().iter().zip(again.parameters()).all(|((_, x), (_, y))| x.equal(&y)));

    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert!(message(dir.path()).contains("model-00002-of-00002.safetensors"));
    map.insert("x".to_owned(), "../elsewhere".into());
    fs::write(&index, serde_json::json!({"weight_map": map}).to_string()).unwrap();
    assert!(message(dir.path()).contains("elsewhere"));
    fs::write(&index, "{").unwrap();
    assert!(message(dir.path()).contains("not JSON"));
}

#[test]
fn weights_that_do_not_match_the_config_are_named() {
    let dir = tempfile::tempdir().unwrap();
    tiny(true, Kind::Float).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = Tensor::read_safetensors(&path).unwrap();
    tensors.retain(|(name, _)| name != "model.layers.1.mlp.up_proj.weight");
    for (name, tensor) in &mut tensors {
        if name == "model.norm.weight" {
            *tensor = Tensor::zeros([7], (Kind::Float, Device::Cpu));
        }
    }
    let extra = |name: &str| (name.to_owned(), Tensor::zeros([1], (Kind::Float, Device::Cpu)));
    // The first two are tensors of older checkpoints that are ignored.
    tensors.extend(["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.surprise"].map(extra));
    Tensor::write_safetensors(&tensors, &path).unwrap();
    let message = message(dir.path());
    assert!(message.contains("missing: model.layers.1.mlp.up_proj.weight;"), "{message}");
    assert!(message.contains("not part of the model: model.surprise;"), "{message}");
    assert!(message.contains("misshapen: model.norm.weight is [7], not [24]"), "{message}");
}

#[test]
fn tied_output_head_must_equal_the_embedding() {
    let dir = tempfile::tempdir().unwrap();
    tiny(true, Kind::Float).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = Tensor::read_safetensors(&path).unwrap();
    let embedding = tensors.iter().find(|(name, _)| name == "model.embed_tokens.weight").unwrap().1.copy();
    let with_head = |head: Tensor| {
        let mut all: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        all.push(("lm_head.weight".to_owned(), head));
        Tensor::write_safetensors(&all, &path).unwrap();
    };
    with_head(embedding.copy());
    Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
    with_head(&embedding * 2.0);
    let message = message(dir.path());
    assert!(
        message.contains("config.json ties the output head to the embedding, and lm_head.weight is another"),
        "{message}"
    );
}

#[test]
fn damaged_weight_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(message(dir.path()).contains("config.json"));
    tiny(true, Kind::Float).save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let lying = |from: &str, to: &str| {
        let text = String::from_utf8(whole[8..header].to_vec()).unwrap();
        let text = text.replacen(from, to, 1);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &whole[header..]].concat()
    };
    for (what, bytes) in [
        ("cut in the data", whole[..whole.len() - 100].to_vec()),
        ("cut in the header", whole[..40].to_vec()),
        ("empty", Vec::new()),
        ("four bytes", whole[..4].to_vec()),
        ("more than it says", [&whole[..], &[0; 16]].concat()),
        ("no JSON", [&whole[..8], &vec![b'x'; whole.len() - 8]].concat()),
        ("a header of 2^60 bytes", [&(1u64 << 60).to_le_bytes()[..], &whole[8..]].concat()),
        ("a shape too large for its bytes", lying("[53,24]", "[53,2400]")),
        ("a shape that overflows", lying("[53,24]", "[9223372036854775807,24]")),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = message(dir.path());
        assert!(message.contains("model.safetensors"), "{what}: {message}");
    }
    fs::write(&path, lying("\"F32\"", "\"I32\"")).unwrap();
    assert!(message(dir.path()).contains("stored as I32"));
    fs::remove_file(&path).unwrap();
    assert!(message(dir.path()).contains("no model.safetensors"));
}

#[test]
fn large_models_are_saved_in_shards() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(false, Kind::Float);
    let names = || -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "config.json")
            .collect();
        names.sort();
        names
    };
    let same = || {
        let again = load(dir.path()).unwrap();
        model.parameters().iter().zip(again.parameters()).all(|((_, x), (_, y))| x.equal(&y))
    };
    model.save(dir.path()).unwrap();
    assert_eq!(names(), ["model.safetensors"]);

    // The embedding alone is 53 x 24 x 4 = 5088 bytes.
    model.save_sharded(dir.path(), 8000).unwrap();
    let index: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    let shards = names().len() - 1;
    assert!(shards > 3 && names()[0] == format!("model-00001-of-{shards:05}.safetensors"), "{:?}", names());
    let numbers: usize = model.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    assert_eq!(index["metadata"]["total_size"], 4 * numbers);
    let map = index["weight_map"].as_object().unwrap();
    assert!(model.parameters().iter().all(|(name, _)| map.contains_key(name)) && map.len() == model.parameters().len());
    for shard in &names()[..shards] {
        let held = Tensor::read_safetensors(dir.path().join(shard)).unwrap();
        assert!(held.iter().map(|(_, tensor)| tensor.numel() * 4).sum::<usize>() <= 8000);
        assert!(held.iter().all(|(name, _)| map[name] == *shard));
    }
    assert!(same());
    // A tensor larger than the limit has a separate shard.
    model.save_sharded(dir.path(), 1).unwrap();
    assert_eq!(names().len(), model.parameters().len() + 1);
    assert!(same());
    model.save(dir.path()).unwrap();
    assert_eq!(names(), ["model.safetensors"]);
}
