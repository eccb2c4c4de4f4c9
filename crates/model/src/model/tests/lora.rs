//! LoRA adapters: comparison with PEFT, training, files.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::families::{Case, Measure, cases, uniform};
use super::{distance, pack, predicting, rows, tiny};
use crate::model::{LoraConfig, Model, Span};

/// Writes the adapter of a case in PEFT's format, with the weights of make.py.
fn write(case: &Case, dir: &Path) {
    let shapes: std::collections::BTreeMap<String, Vec<i64>> = case.get("adapter");
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let scale = 2.0 / (shape[1] as f64).sqrt();
            let values: Vec<f32> = uniform(&name, shape.iter().product::<i64>() as usize)
                .into_iter()
                .map(|value| (value * scale) as f32)
                .collect();
            (name, Tensor::from_slice(&values).view(shape.as_slice()))
        })
        .collect();
    Tensor::write_safetensors(&tensors, dir.join("adapter_model.safetensors")).unwrap();
    fs::write(dir.join("adapter_config.json"), case.record["adapter_config"].to_string()).unwrap();
}

fn logits(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    model.logits(&model.forward(&pack(rows)).unwrap()).unwrap()
}

/// Measures the loaded, trained, saved and merged adapter.
pub(super) fn measure(case: &Case) -> Vec<Measure> {
    let dir = tempfile::tempdir().unwrap();
    write(case, dir.path());
    let mut model = case.model();
    model.load_adapter(dir.path()).unwrap();
    let rows = case.rows();
    let actual = logits(&model, &rows);
    let worst = distance(&actual, &case.logits);

    // Only the adapter is trained, under its own names.
    let (places, targets) = predicting(&rows);
    let hidden = model.forward(&pack(&rows)).unwrap().index_select(0, &places);
    let loss = -model.logprobs(&hidden, &targets, 1.0, 64).unwrap().0.mean(None);
    let norms: std::collections::BTreeMap<String, f64> = case.get("gradient_norms");
    let learning: Vec<(String, Tensor)> =
        model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).collect();
    assert_eq!(learning.len(), norms.len());
    let mut slopes = 0f64;
    let (names, leaves): (Vec<String>, Vec<Tensor>) = learning.into_iter().unzip();
    for (name, gradient) in names.iter().zip(Tensor::run_backward(&[loss], &leaves, false, false)) {
        let norm = gradient.to_kind(Kind::Double).norm().double_value(&[]);
        slopes = slopes.max((norm - norms[name]).abs() / norms[name].max(1e-2));
    }

    // PEFT's fields and keys survive saving and loading.
    let other = tempfile::tempdir().unwrap();
    model.save_adapter(other.path()).unwrap();
    let read = |dir: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(dir.join("adapter_config.json")).unwrap()).unwrap()
    };
    let (before, after) = (read(dir.path()), read(other.path()));
    assert!(before.as_object().unwrap().iter().all(|(name, value)| after[name] == *value), "{after}");
    let keys = |dir: &Path| -> Vec<String> {
        let path = dir.join("adapter_model.safetensors");
        let mut names: Vec<String> =
            Tensor::read_safetensors(path).unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    assert_eq!(keys(dir.path()), keys(other.path()));
    let mut again = case.model();
    again.load_adapter(other.path()).unwrap();
    assert!(logits(&again, &rows).equal(&actual));

    // The merged model is an ordinary model.
    model.merge_adapter().unwrap();
    let merged = distance(&logits(&model, &rows), &actual);
    // The correction of a router is not trained.
    let is_trained = |name: &str| !name.ends_with("e_score_correction_bias");
    let parameters = model.parameters();
    assert!(parameters.iter().all(|(name, tensor)| tensor.requires_grad() == is_trained(name)));
    assert!(parameters.iter().all(|(name, _)| !name.contains("lora")));
    model.save(other.path()).unwrap();
    vec![("logits", worst, 1e-4), ("gradients", slopes, 1e-4), ("merged", merged, 1e-4)]
}

#[test]
fn lora_adapters_match_peft() {
    for case in ["golden_lora", "golden_2026_lora"].into_iter().flat_map(cases) {
        for (what, worst, limit) in measure(&case) {
            assert!(worst < limit, "{}: {what} {worst:e}", case.name);
        }
    }
}

#[test]
fn new_lora_adapter_has_no_effect_before_training() {
    let mut model = tiny(true, Kind::Float);
    let rows = rows(&[9, 5], 53);
    let before = logits(&model, &rows);
    let cache = model.new_cache(1, 8).unwrap();
    model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "down_proj"]), 3).unwrap();
    assert!(distance(&logits(&model, &rows), &before) < 1e-5);
    let adapter: Vec<(String, Tensor)> =
        model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).collect();
    assert_eq!(adapter.len(), 8);
    assert_eq!(adapter[0].0, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    tch::no_grad(|| adapter.iter().for_each(|(_, tensor)| drop(tensor.shallow_clone().g_add_scalar_(0.1))));
    assert!(distance(&logits(&model, &rows), &before) > 0.1);

    // libtorch's operations can't use a cache of the CPU kernels.
    let mut cache = cache;
    let spans = [Span { slot: 0, start: 0, ids: &[1] }];
    if crate::native::has_cpu_kernels() {
        assert!(model.step(&mut cache, &spans).unwrap_err().message.contains("before the model's adapter"));
    } else {
        assert!(model.step(&mut cache, &spans).is_ok());
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(model.save(dir.path()).unwrap_err().message.contains("has an adapter"));
    assert!(model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj"]), 3).is_err());
    model.merge_adapter().unwrap();
    assert!(model.merge_adapter().is_err() && model.save_adapter(dir.path()).is_err());

    let same = |seed| {
        let mut model = tiny(true, Kind::BFloat16);
        model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj"]), seed).unwrap();
        assert!(model.forward(&pack(&rows)).is_ok());
        model.parameters().pop().map(|_| model.parameters().swap_remove(model.parameters().len() - 2).1).unwrap()
    };
    assert!(same(1).equal(&same(1)) && !same(1).equal(&same(2)));
    assert_eq!(same(1).kind(), Kind::Float);
    let error = tiny(true, Kind::Float).add_adapter(LoraConfig::new(2, 4.0, &["query"]), 1).unwrap_err();
    assert!(error.message.contains("`query`") && error.hint.is_some_and(|hint| hint.contains("q_proj")));
}

#[test]
fn lora_adapters_of_other_models_are_refused() {
    let case = cases("golden_lora").swap_remove(0);
    let dir = tempfile::tempdir().unwrap();
    let refusal = || {
        let mut model = case.model();
        let message = model.load_adapter(dir.path()).unwrap_err().to_string();
        // The correction of a router is not trained.
        let is_trained = |name: &str| !name.ends_with("e_score_correction_bias");
        let parameters = model.parameters();
        assert!(parameters.iter().all(|(name, tensor)| tensor.requires_grad() == is_trained(name)));
        assert!(parameters.iter().all(|(name, _)| !name.contains("lora")));
        message
    };
    assert!(refusal().contains("adapter_config.json"));
    for (name, value) in [
        ("peft_type", json!("LOHA")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({"q_proj": 3})),
        ("fan_in_fan_out", json!(true)),
        ("r", json!(0)),
        ("lora_alpha", json!("much")),
        ("use_rslora", json!(1)),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("use_bdlora", json!({"target_modules_bd_a": ["q_proj"]})),
        ("kasa_config", json!({"beta": 0.1})),
        ("a_field_of_tomorrow", json!(2)),
    ] {
        write(&case, dir.path());
        let mut config = case.record["adapter_config"].clone();
        config[name] = value;
        fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        let message = refusal();
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    write(&case, dir.path());
    let path = dir.path().join("adapter_model.safetensors");
    let mut tensors = Tensor::read_safetensors(&path).unwrap();
    tensors.retain(|(name, _)| !name.ends_with("layers.1.self_attn.v_proj.lora_B.weight"));
    tensors.push((
        "base_model.model.lm_head.lora_A.weight".to_owned(),
        Tensor::zeros([4, 32], (Kind::Float, Device::Cpu)),
    ));
    Tensor::write_safetensors(&tensors, &path).unwrap();
    let message = refusal();
    assert!(message.contains("missing: base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"), "{message}");
    assert!(message.contains("not part of the model: base_model.model.lm_head.lora_A.weight"), "{message}");
    fs::write(&path, "no").unwrap();
    assert!(refusal().contains("adapter_model.safetensors"));
}

#[test]
fn policy_with_disabled_lora_equals_the_base_model() {
    let rows = rows(&[4, 7], 53);
    for kind in [Kind::Float, Kind::Double] {
        let mut model = tiny(true, kind);
        let base = model.forward_plain(&pack(&rows)).unwrap();
        model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "up_proj", "down_proj", "o_proj"]), 3).unwrap();
        tch::no_grad(|| {
            for (_, mut tensor) in model.parameters().into_iter().filter(|(name, _)| name.contains("lora_B")) {
                let _ = tensor.fill_(0.1);
            }
        });
        let adapted = model.forward(&pack(&rows)).unwrap();
        assert_eq!(model.without_adapter(|| model.forward(&pack(&rows)).unwrap()), base);
        assert!(distance(&adapted, &base) > 1e-3);
        assert_eq!(model.forward(&pack(&rows)).unwrap(), adapted);
    }
}

/// PEFT has a separate field for the revision of a Hub model; the first versions of r1 wrote it
/// into the name.
#[test]
fn lora_base_model_has_its_revision() {
    let dir = tempfile::tempdir().unwrap();
    let load = |fields: &str| {
        let text = format!("{{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, {fields}}}");
        fs::write(dir.path().join("adapter_config.json"), text).unwrap();
        LoraConfig::load(dir.path()).unwrap().unwrap()
    };
    let field = |config: &LoraConfig, name: &str| config.source[name].as_str().map(str::to_owned);
    let config = load("\"base_model_name_or_path\": \"org/name\", \"revision\": \"v2\"");
    assert_eq!(config.base().as_deref(), Some("org/name@v2"));
    let config = load("\"base_model_name_or_path\": \"org/name\", \"revision\": null");
    assert_eq!(config.base().as_deref(), Some("org/name"));
    let config = load("\"base_model_name_or_path\": \"org/name@v3\"");
    assert_eq!(config.base().as_deref(), Some("org/name@v3"));
    assert_eq!(field(&config, "base_model_name_or_path").as_deref(), Some("org/name"));
    assert_eq!(field(&config, "revision").as_deref(), Some("v3"));
    // A directory has no revision.
    let path = dir.path().display();
    let config = load(&format!("\"base_model_name_or_path\": \"{path}\", \"revision\": \"main\""));
    assert_eq!(config.base(), Some(path.to_string()));
}

/// Products of bf16 models on CUDA are in bf16, from adapters in f32.
#[test]
fn products_in_bf16_match_adapters_in_f32() {
    let rows = rows(&[8, 5], 53);
    let new = || {
        let mut model = tiny(false, Kind::BFloat16);
        model.add_adapter(LoraConfig::new(2, 8.0, &["q_proj", "o_proj", "up_proj"]), 3).unwrap();
        for (_, mut tensor) in model.parameters().into_iter().filter(|(name, _)| name.contains("lora_B")) {
            let ramp = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)).view_as(&tensor);
            tch::no_grad(|| tensor.copy_(&(ramp.sin() * 0.2)));
        }
        model
    };
    let (wide, mut narrow) = (new(), new());
    for lora in narrow.parameters.linears_mut().into_iter().filter_map(|(_, linear)| linear.lora.as_mut()) {
        lora.narrow = true;
    }
    let learn = |model: &Model| {
        let ((places, targets), packed) = (predicting(&rows), pack(&rows));
        let (hidden, counts) = crate::native::count_operations(|| model.forward_plain(&packed)).unwrap();
        let logp = model.logprobs(&hidden.index_select(0, &places), &targets, 1.0, 64).unwrap().0;
        let (names, leaves): (Vec<String>, Vec<Tensor>) =
            model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).unzip();
        let slopes = Tensor::run_backward(&[logp.mean(None)], &leaves, false, false);
        (logp.detach(), names, slopes, counts.get("aten::addmm").copied())
    };
    let ((expected, names, slopes, many), (actual, _, narrow_gradients, few)) = (learn(&wide), learn(&narrow));
    // A few roundings of bf16.
    let worst = distance(&actual, &expected);
    assert!(worst > 0.0 && worst < 0.1, "{worst}");
    let disabled = narrow.without_adapter(|| learn_free(&narrow, &rows));
    assert!(distance(&disabled, &actual) > 0.3, "the adapter has no effect");
    for ((name, actual), expected) in names.iter().zip(&narrow_gradients).zip(&slopes) {
        assert_eq!(actual.kind(), Kind::Float);
        let norm = |x: &Tensor| x.to_kind(Kind::Double).norm().double_value(&[]);
        let error = norm(&(actual - expected)) / norm(expected);
        assert!(error < 0.05, "{name}: {error}");
    }
    // One operation adds the second product, for each of three projections in two layers.
    assert_eq!((few, many), (Some(6), None));
}

fn learn_free(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    let (places, targets) = predicting(rows);
    let hidden = tch::no_grad(|| model.forward_plain(&pack(rows)).unwrap());
    tch::no_grad(|| model.logprobs(&hidden.index_select(0, &places), &targets, 1.0, 64).unwrap().0)
}
