//! Models that see images, compared with transformers (tests/golden/vision/models.py).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use r1_base::mdp::image_id;
use r1_vision::{DecodeLimits, Images, Processor, VideoProcessor, VideoStyle};
use safetensors::SafeTensors;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::model::{LoraConfig, Model, Packed, Span};

const FAMILIES: [&str; 5] = ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe", "smolvlm"];

struct Golden {
    dir: PathBuf,
    /// Ids of text and images.
    rows: Vec<Vec<u32>>,
    greedy: Vec<Vec<u32>>,
    loss: f64,
    tensors: Vec<(String, Tensor)>,
    images: Arc<Images>,
}

impl Golden {
    fn read(family: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/vision").join(family);
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata.metadata().clone().unwrap();
        let parsed = |name: &str| -> Value { serde_json::from_str(&metadata[name]).unwrap() };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let processor = std::fs::read(dir.join("preprocessor_config.json")).unwrap();
        let mut processor: Value = serde_json::from_slice(&processor).unwrap();
        if processor["patch_size"].is_null() {
            processor["patch_size"] = 4.into();
        }
        let style = match family {
            "smolvlm" => None,
            "qwen2_5_vl" => Some(VideoStyle::Positions { per_second: 4.0 }),
            _ => Some(VideoStyle::Timestamps),
        };
        let videos = style.map(|style| VideoProcessor::from_json(&processor, style).unwrap());
        let processor = Processor::from_json(&processor).unwrap();
        let images = Images::new(processor, DecodeLimits::default()).with_videos(videos);
        for number in 0..3 {
            let added = images.add(file.tensor(&format!("image.{number}")).unwrap().data()).unwrap();
            assert_eq!(added, number);
        }
        let frames = (0..).map_while(|number| file.tensor(&format!("frame.{number}")).ok());
        let frames: Vec<u32> = frames.map(|frame| images.add(frame.data()).unwrap()).collect();
        let video = style.map(|_| images.add_video(&frames, parsed("fps").as_f64().unwrap()).unwrap());
        let rows: Vec<Vec<i64>> = serde_json::from_value(parsed("rows")).unwrap();
        let expanded = |row: &Vec<i64>| -> Vec<u32> {
            let token = |&id: &i64| {
                if let Ok(id) = u32::try_from(id) {
                    return vec![id];
                }
                let number = video.filter(|_| id == -4).unwrap_or((-1 - id) as u32);
                // An image, a tile of it, or frames of a video.
                vec![image_id(number); images.token_grid(number).unwrap().tokens()]
            };
            row.iter().flat_map(token).collect()
        };
        Self {
            rows: rows.iter().map(expanded).collect(),
            greedy: serde_json::from_value(parsed("greedy")).unwrap(),
            loss: parsed("loss").as_f64().unwrap(),
            tensors: Tensor::read_safetensors(dir.join("golden.safetensors")).unwrap(),
            images: Arc::new(images),
            dir,
        }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("{name}")).1
    }

    fn model(&self, kind: Kind) -> Model {
        let mut model = Model::load(&self.dir, Device::Cpu, kind).unwrap();
        model.set_images(Arc::clone(&self.images));
        model
    }

    /// Mean loss of the next tokens that are no images.
    fn loss(&self, hidden: &Tensor, model: &Model) -> Tensor {
        let (mut at, mut predicting, mut targets) = (0, Vec::new(), Vec::new());
        for row in &self.rows {
            for (index, &id) in row.iter().enumerate().skip(1) {
                if id < 1 << 31 {
                    predicting.push(at + index as i64 - 1);
                    targets.push(i64::from(id));
                }
            }
            at += row.len() as i64;
        }
        let hidden = hidden.index_select(0, &Tensor::from_slice(&predicting));
        let (logprobs, _) = model.logprobs(&hidden, &Tensor::from_slice(&targets), 1.0, 16).unwrap();
        -logprobs.mean(None)
    }
}

/// The largest difference, as a share of the largest value.
fn error(ours: &Tensor, theirs: &Tensor) -> f64 {
    let (ours, theirs) = (ours.to_kind(Kind::Double), theirs.to_kind(Kind::Double));
    (&ours - &theirs).abs().max().double_value(&[]) / theirs.abs().max().double_value(&[])
}

/// The error of a parameter's gradient.
fn gradient_error(golden: &Golden, name: &str, parameter: &Tensor) -> f64 {
    let expected = golden.tensor(&format!("gradient.{name}"));
    if name.ends_with("k_proj.bias") {
        // It has no effect (softmax), and its gradient is rounding.
        return (parameter.grad() - expected).abs().max().double_value(&[]);
    }
    error(&parameter.grad(), expected)
}

/// Errors of the logits, the loss, all gradients, and the gradients of the tower.
fn errors(golden: &Golden, kind: Kind, checkpointing: bool) -> [f64; 4] {
    let mut model = golden.model(kind);
    model.set_checkpointing(checkpointing);
    let pass = model.learn(&Packed::from_rows(&golden.rows, Device::Cpu).unwrap()).unwrap();
    let (mut at, mut worst) = (0, [0.0_f64; 4]);
    for (number, row) in golden.rows.iter().enumerate() {
        let hidden = pass.hidden().narrow(0, at, row.len() as i64);
        let logits = error(&model.logits(&hidden).unwrap(), golden.tensor(&format!("logits.{number}")));
        worst[0] = worst[0].max(logits);
        at += row.len() as i64;
    }
    let loss = golden.loss(pass.hidden(), &model);
    worst[1] = (loss.double_value(&[]) - golden.loss).abs();
    pass.backward(&loss).unwrap();
    for (name, parameter) in model.parameters() {
        let difference = gradient_error(golden, &name, &parameter);
        assert!(!difference.is_nan(), "{name}");
        worst[2] = worst[2].max(difference);
        if name.starts_with("visual.") {
            worst[3] = worst[3].max(difference);
        }
    }
    worst
}

#[test]
fn logits_loss_and_gradients_of_vision_models_are_those_of_transformers() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        // Rounding of the states of Gated DeltaNets: in f32 transformers has errors of 1.8e-5.
        let single = if family.starts_with("qwen3_5") { 4e-5 } else { 1e-5 };
        for (kind, bound) in [(Kind::Float, single), (Kind::Double, 2e-6)] {
            for checkpointing in [false, true] {
                let errors = errors(&golden, kind, checkpointing);
                assert!(errors.iter().all(|error| *error < bound), "{family} {kind:?}: {errors:?}");
            }
        }
    }
}

#[test]
#[ignore = "prints the table of docs/lab/parity.md: just parity-vision"]
fn vision_parity_table() {
    println!("| model | arithmetic | logits | loss | gradients | gradients of the tower |");
    println!("|---|---|---|---|---|---|");
    for family in FAMILIES {
        let golden = Golden::read(family);
        for (name, kind) in [("f32", Kind::Float), ("f64", Kind::Double)] {
            let errors = errors(&golden, kind, false).map(|error| format!("{error:.1e}")).join(" | ");
            println!("| {family} | {name} | {errors} |");
        }
    }
}

/// Gradients of a pass that is cut between the layers, of one that computes layers again, and of
/// an adapter beside a frozen tower.
#[test]
fn gradients_by_layer_are_those_of_one_graph() {
    struct Hooks;
    impl crate::model::LayerHooks for Hooks {}
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model(Kind::Double);
        let batch = Packed::from_rows(&golden.rows, Device::Cpu).unwrap();
        for recomputed in [false, true] {
            for (_, mut parameter) in model.parameters() {
                parameter.zero_grad();
            }
            let pass = if recomputed {
                model.learn_recomputed(&batch, &mut Hooks).unwrap()
            } else {
                model.learn_by_layer(&batch).unwrap()
            };
            let loss = golden.loss(pass.hidden(), &model);
            pass.backward_by_layer(&loss, &mut Hooks).unwrap();
            for (name, parameter) in model.parameters() {
                let difference = gradient_error(&golden, &name, &parameter);
                assert!(difference < 2e-6, "{family} {recomputed} {name}: {difference}");
            }
        }
        let mut model = golden.model(Kind::Float);
        model.add_adapter(LoraConfig::new(4, 8.0, &["q_proj", "down_proj"]), 0).unwrap();
        for checkpointing in [false, true] {
            model.set_checkpointing(checkpointing);
            let pass = model.learn(&batch).unwrap();
            let loss = golden.loss(pass.hidden(), &model);
            pass.backward(&loss).unwrap();
            for (name, parameter) in model.parameters() {
                assert_eq!(parameter.grad().defined(), name.contains("lora_"), "{family} {name}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        model.save_adapter(dir.path()).unwrap();
        let bytes = std::fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let language = if family == "smolvlm" { "text_model" } else { "language_model" };
        let start = format!("base_model.model.model.{language}.layers.");
        assert!(file.names().iter().all(|name| name.starts_with(&start)));
        let mut again = golden.model(Kind::Float);
        again.load_adapter(dir.path()).unwrap();
    }
}

/// An adapter on projections of the tower: its gradients are those of the whole weights, it is read
/// again from a file that PEFT can read, and merging it keeps the outputs.
#[test]
fn the_tower_has_adapters() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let batch = Packed::from_rows(&golden.rows, Device::Cpu).unwrap();
        let plain = golden.model(Kind::Double);
        let before = plain.forward(&batch).unwrap();
        let mut model = golden.model(Kind::Double);
        model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "visual.*"]), 0).unwrap();
        let of_tower = |name: &str| name.contains("lora_") && name.contains("visual.");
        tch::no_grad(|| {
            for (index, (name, mut tensor)) in model.parameters().into_iter().enumerate() {
                if name.contains("lora_B") {
                    let numbers = Tensor::arange(tensor.numel() as i64, (Kind::Double, Device::Cpu));
                    tensor.copy_(&((numbers * 0.7 + index as f64).sin() * 0.02).view_as(&tensor));
                }
            }
        });
        let pass = model.learn(&batch).unwrap();
        let hidden = pass.hidden().detach();
        assert!(error(&hidden, &before) > 1e-3, "{family}");
        let loss = golden.loss(pass.hidden(), &model);
        pass.backward(&loss).unwrap();
        let mut tower = 0;
        let dir = tempfile::tempdir().unwrap();
        model.save_adapter(dir.path()).unwrap();
        let mut again = golden.model(Kind::Double);
        again.load_adapter(dir.path()).unwrap();
        let copy = again.duplicate().unwrap();
        for ((name, one), (other_name, other)) in model.parameters().into_iter().zip(copy.parameters()) {
            assert!(name == other_name && one.equal(&other), "{family} {name}");
            assert_eq!(one.grad().defined(), name.contains("lora_"), "{family} {name}");
            tower += usize::from(of_tower(&name));
        }
        let expected: usize = plain.config.vision.iter().flat_map(|v| v.tower.projections()).map(|(_, n)| n).sum();
        assert_eq!(tower, 2 * expected, "{family}");
        // B's gradient follows from that of the whole weight: scale · dW Aᵀ.
        again.merge_adapter().unwrap();
        assert!(error(&again.forward(&batch).unwrap(), &hidden) < 1e-12, "{family}");
        let pass = again.learn(&batch).unwrap();
        let loss = golden.loss(pass.hidden(), &again);
        pass.backward(&loss).unwrap();
        let whole = again.parameters();
        let adapter = model.parameters();
        let find =
            |all: &[(String, Tensor)], name: &str| all.iter().find(|(n, _)| n == name).unwrap().1.shallow_clone();
        for (name, b) in adapter.iter().filter(|(name, _)| name.ends_with("lora_B.weight")) {
            let module = name.strip_prefix("base_model.model.").unwrap().strip_suffix(".lora_B.weight").unwrap();
            let a = find(&adapter, &name.replace("lora_B", "lora_A"));
            let expected = find(&whole, &format!("{module}.weight")).grad().matmul(&a.tr()) * 2.0;
            assert!(error(&b.grad(), &expected) < 1e-9, "{family} {name}");
        }
        // Without the adapter it is the base model.
        let disabled = model.without_adapter(|| model.forward(&batch)).unwrap();
        assert!(disabled.equal(&before), "{family}");
    }
}

/// The prompt in one span, and in spans that divide images; with a slot that continues another.
#[test]
fn decoding_after_images_gives_the_tokens_of_transformers() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model(Kind::Float);
        for (row, expected) in [1, 3, 4].into_iter().zip(&golden.greedy) {
            let prompt = &golden.rows[row];
            let whole = model.forward(&Packed::from_rows(&[prompt], Device::Cpu).unwrap()).unwrap();
            let whole = model.logits(&whole.narrow(0, prompt.len() as i64 - 1, 1)).unwrap();
            for piece in [prompt.len(), 5, 1] {
                let mut cache = model.new_cache(2, 64).unwrap();
                let mut logits = Tensor::new();
                for (index, ids) in prompt.chunks(piece).enumerate() {
                    let start = index * piece;
                    // The other slot goes on with the tokens of the first.
                    let (from, slot) = (index % 2, (index + 1) % 2);
                    cache.copy_prefix(from, slot, start).unwrap();
                    logits = model.step(&mut cache, &[Span { slot, start, ids }]).unwrap();
                }
                let difference = error(&logits, &whole);
                assert!(difference < 1e-5, "{family} row {row}, spans of {piece}: {difference}");
                let slot = prompt.chunks(piece).count() % 2;
                let mut ids = Vec::new();
                for start in prompt.len()..prompt.len() + expected.len() {
                    ids.push(logits.argmax(-1, false).int64_value(&[0]) as u32);
                    logits = model.step(&mut cache, &[Span { slot, start, ids: &ids[ids.len() - 1..] }]).unwrap();
                }
                assert_eq!(&ids, expected, "{family} row {row}, spans of {piece}");
            }
        }
    }
}

/// The config has its fields again, and both names of tensors are read.
#[test]
fn a_vision_model_that_was_saved_is_read_again() {
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = golden.model(Kind::Float);
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path()).unwrap();
        let mut again = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        again.set_images(Arc::clone(&golden.images));
        for ((name, one), (other_name, other)) in model.parameters().into_iter().zip(again.parameters()) {
            assert!(name == other_name && one.equal(&other), "{family} {name}");
        }
        let batch = Packed::from_rows(&golden.rows[..1], Device::Cpu).unwrap();
        assert!(model.forward(&batch).unwrap().equal(&again.forward(&batch).unwrap()));
        let names = |dir: &Path| {
            let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
            let mut names: Vec<String> =
                SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(dir.path()), names(&golden.dir));
        let config =
            |dir: &Path| -> Value { serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap() };
        // The rotary embedding is in the older form, and the type of the weights has its older
        // name.
        let (mut written, mut read) = (config(dir.path()), config(&golden.dir));
        let text = written["text_config"].as_object_mut().unwrap();
        let mut rope = text.remove("rope_scaling").unwrap();
        if rope.is_null() {
            rope["rope_type"] = "default".into();
        }
        rope["rope_theta"] = text.remove("rope_theta").unwrap();
        text.insert("rope_parameters".to_owned(), rope);
        for name in ["head_dim", "partial_rotary_factor"] {
            text.remove(name);
        }
        if family == "qwen3_5_moe" {
            text.remove("intermediate_size");
        }
        written["dtype"] = written.as_object_mut().unwrap().remove("torch_dtype").unwrap();
        read["text_config"].as_object_mut().unwrap().remove("head_dim");
        assert_eq!(written, read, "{family}");
    }
}

/// A file of an older version of transformers has all fields in one table.
#[test]
fn flat_configs_of_vision_models_are_read() {
    let golden = Golden::read("qwen2_5_vl");
    let path = golden.dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let object = config.as_object_mut().unwrap();
    let Some(Value::Object(mut text)) = object.remove("text_config") else { panic!("no text_config") };
    text.remove("model_type");
    let mut rope = text.remove("rope_parameters").unwrap();
    object.extend(text);
    object.insert("rope_theta".to_owned(), rope.as_object_mut().unwrap().remove("rope_theta").unwrap());
    rope["type"] = "mrope".into();
    rope.as_object_mut().unwrap().remove("rope_type");
    object.insert("rope_scaling".to_owned(), rope);
    let (flat, nested) = (crate::model::Config::from_json(&config).unwrap(), &golden.model(Kind::Float).config);
    assert_eq!((&flat.ropes, flat.hidden_size), (&nested.ropes, nested.hidden_size));
    let written = flat.to_json();
    assert_eq!(written["rope_scaling"], config["rope_scaling"]);
    assert_eq!(written["model_type"], "qwen2_5_vl");
    assert_eq!(crate::model::Config::from_json(&written).unwrap().ropes, nested.ropes);
}

/// Files of Idefics3 have fields of other versions, and leave out sizes that are defaults.
#[test]
fn the_config_of_a_small_smolvlm_is_read() {
    let config = serde_json::json!({
        "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 49190, "model_type": "idefics3",
        "scale_factor": 4, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.46.0",
        "transformers.js_config": { "dtype": { "embed_tokens": "auto" } }, "use_cache": true,
        "use_reentrant_checkpointing": false, "vocab_size": 49280,
        "text_config": {
            "_flash_attn_2_enabled": true, "_name_or_path": "None", "architectures": ["VLlama3ForCausalLM"], "head_dim": 64,
            "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192,
            "model_type": "llama", "neftune_noise_alpha": 0.0, "num_attention_heads": 9, "num_hidden_layers": 30,
            "num_key_value_heads": 3, "pad_token_id": 2, "perceiver_config": { "model_type": "vllama3" },
            "pixel_shuffle_factor": 4, "qk_layer_norms": false, "rms_norm_eps": 1e-5, "rope_interleaved": false,
            "rope_scaling": null, "rope_theta": 100_000, "torch_dtype": "bfloat16", "use_resampler": false, "vocab_size": 49280
        },
        "vision_config": {
            "hidden_size": 768, "image_size": 512, "max_image_size": { "longest_edge": 512 }, "model_type": "idefics3",
            "num_attention_heads": 12, "patch_size": 16, "size": { "longest_edge": 2048 }, "tie_word_embeddings": false,
            "torch_dtype": "bfloat16", "use_base_siglip": false
        }
    });
    let read = crate::model::Config::from_json(&config).unwrap();
    let tower = &read.vision.as_ref().unwrap().tower;
    assert_eq!([tower.layers, tower.inner, tower.heads, tower.merge, tower.out], [12, 3072, 12, 4, 576]);
    assert_eq!(tower.kind, crate::model::TowerKind::Tiles { side: 32, eps: 1e-6 });
    let written = read.to_json();
    assert_eq!(written["scale_factor"], 4);
    assert_eq!(written["text_config"]["model_type"], "llama");
    let again = crate::model::Config::from_json(&written).unwrap();
    assert_eq!((again.vision.unwrap().tower, again.hidden_size), (tower.clone(), 576));
}

#[test]
fn configs_of_vision_models_that_contradict_themselves_are_refused() {
    let golden = Golden::read("qwen2_5_vl");
    let file = std::fs::read(golden.dir.join("config.json")).unwrap();
    let refused = |path: &[&str], value: Value| {
        let mut config: Value = serde_json::from_slice(&file).unwrap();
        let mut target = &mut config;
        for name in path {
            target = &mut target[*name];
        }
        *target = value;
        crate::model::Config::from_json(&config).unwrap_err().message
    };
    let cases = [
        refused(&["vision_config", "out_hidden_size"], 8.into()),
        refused(&["vision_config"], Value::Null),
        refused(&["vision_config", "depth"], "two".into()),
        refused(&["vision_config", "tokens_per_second"], 1e300.into()),
        refused(&["image_token_id"], 64.into()),
        refused(&["image_token_id"], (-1).into()),
        refused(&["text_config", "rope_parameters", "mrope_section"], serde_json::json!([1, 1, 1])),
        refused(&["text_config", "rope_parameters", "mrope_section"], serde_json::json!([1, 1])),
        refused(&["text_config", "rope_parameters", "mrope_section"], Value::Null),
    ];
    let expected = [
        "`vision_config.out_hidden_size` is 8; `hidden_size` is 32",
        "`vision_config` is missing in config.json",
        "config.json: vision_config: `depth` is \"two\"; it must be a whole number from 1 to 16777216",
        "config.json: vision_config: `tokens_per_second` is 1e+300; it must be a number from 0 to 1000",
        "`image_token_id` is 64; `vocab_size` is 64",
        "`image_token_id` is -1 in config.json; it must be a token id",
        "`mrope_section` is [1, 1, 1]; a head has 4 pairs",
        "`mrope_section` must be a list of three numbers",
        "`mrope_section` must be a list of three numbers",
    ];
    assert_eq!(cases.join("\n"), expected.join("\n"));
}

#[test]
fn an_image_with_too_few_tokens_is_refused() {
    let golden = Golden::read("qwen2_5_vl");
    let model = golden.model(Kind::Float);
    let mut row = golden.rows[0].clone();
    row.remove(5);
    let error = model.forward(&Packed::from_rows(&[&row], Device::Cpu).unwrap()).unwrap_err();
    assert!(error.message.starts_with("image 0 has 15 tokens, and the sequence 14"), "{error}");
    let mut cache = model.new_cache(1, 64).unwrap();
    let ids = [image_id(99)];
    let error = model.step(&mut cache, &[Span { slot: 0, start: 0, ids: &ids }]).unwrap_err();
    assert!(error.message.contains("outside the vocabulary"), "{error}");
}
