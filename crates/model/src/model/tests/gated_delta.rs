//! Models with Gated DeltaNet layers or short convolutions: comparison with transformers and with
//! themselves, files, adapters, states of sequences.

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::families::{Measure, cases, check_cases, forward_and_backward, greedy, same_names, ways};
use super::{distance, ids, pack, predicting, rows};
use crate::model::footprint::Footprint;
use crate::model::{Config, LoraConfig, Model, Span, tensors_beside_text};
use crate::native;

fn logits(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    model.logits(&model.forward(&pack(rows)).unwrap()).unwrap()
}

#[test]
fn logits_gradients_and_greedy_tokens_match_transformers() {
    let all = cases("golden_delta");
    for family in ["qwen3_5 ", "qwen3_5_moe ", "qwen3_next ", "lfm2 "] {
        assert!(all.iter().filter(|case| case.name.starts_with(family)).count() >= 6);
    }
    same_names(&all);
    // In one case, the gradients of transformers in f32 are 9e-5 away from those of r1 in f64.
    check_cases(&all, |case| twice(forward_and_backward(case)));
    check_cases(&all, greedy);
}

/// With a margin for processors that sum in another order.
fn twice(measures: Vec<Measure>) -> Vec<Measure> {
    measures.into_iter().map(|(what, worst, limit)| (what, worst, 2.0 * limit)).collect()
}

#[test]
fn cached_packed_and_batched_logits_equal_a_full_forward() {
    let all = cases("golden_delta");
    check_cases(&all, |case| twice(ways(case)));
    // Blocks and single tokens differ by rounding alone.
    for case in &all {
        let (model, rows) = (case.model_in(Kind::Double), case.rows());
        let whole = logits(&model, &rows[1..]);
        let mut cache = model.new_cache(1, 128).unwrap();
        for (start, end) in [(0, 7), (7, 78), (78, 79), (79, 80), (80, 90)] {
            let step = model.step(&mut cache, &[Span { slot: 0, start, ids: &rows[1][start..end] }]).unwrap();
            // Logits are given in f32.
            assert!(distance(&step.get(0), &whole.get(end as i64 - 1)) < 1e-6, "{}", case.name);
        }
    }
}

#[test]
fn prefixes_are_shared_and_layers_computed_again() {
    native::set_threads(1);
    // Longer than a block.
    let prompt = ids(3, 70, 96);
    let batch: Vec<Vec<u32>> = (0..3).map(|n| [prompt.clone(), ids(20 + n, 9, 96)].concat()).collect();
    for case in cases("golden_delta").iter().step_by(3) {
        let mut model = case.model_in(Kind::Double);
        let loss = |model: &Model, rows: &[Vec<u32>]| {
            let pass = model.learn(&pack(rows)).unwrap();
            let (places, targets) = predicting(rows);
            let hidden = pass.hidden().index_select(0, &places);
            let loss = -model.logprobs(&hidden, &targets, 1.0, 64).unwrap().0.sum(Kind::Double);
            pass.backward(&loss).unwrap();
        };
        let gradients = |model: &Model| -> Vec<Tensor> {
            let all = model.parameters().into_iter().map(|(_, mut tensor)| {
                let gradient = tensor.grad().copy();
                tensor.zero_grad();
                gradient
            });
            all.collect()
        };
        for row in batch.chunks(1) {
            loss(&model, row);
        }
        let apart = gradients(&model);
        for checkpointing in [false, true] {
            model.set_checkpointing(checkpointing);
            loss(&model, &batch);
            for (a, b) in apart.iter().zip(gradients(&model)) {
                let size = a.abs().max().double_value(&[]).max(1.0);
                assert!(distance(a, &b) < 1e-10 * size, "{}: {}", case.name, distance(a, &b));
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_batch() {
    native::set_threads(1);
    for case in cases("golden_delta").iter().step_by(4) {
        let model = case.model();
        if !native::has_cpu_kernels() {
            return;
        }
        let row = &case.rows()[1];
        let bits = |logits: Tensor| -> Vec<u32> {
            Vec::<f32>::try_from(logits.view(-1)).unwrap().into_iter().map(f32::to_bits).collect()
        };
        let mut cache = model.new_cache(9, 128).unwrap();
        let alone = bits(model.step(&mut cache, &[Span { slot: 0, start: 0, ids: row }]).unwrap());
        // In pieces, beside others of other lengths.
        let others: Vec<Vec<u32>> = (0..8).map(|n| ids(n, 1 + 11 * n as usize, 96)).collect();
        let mut last = None;
        for (start, end) in [(0, 7), (7, 8), (8, 61), (61, row.len())] {
            let mut spans = vec![Span { slot: 0, start, ids: &row[start..end] }];
            spans.extend((1..9).map(|slot| Span { slot, start: 0, ids: &others[slot - 1] }));
            last = Some(model.step(&mut cache, &spans).unwrap().get(0));
        }
        assert_eq!(bits(last.unwrap()), alone, "{}", case.name);
    }
}

#[test]
fn gpu_paths_give_equal_results() {
    for case in cases("golden_delta").iter().step_by(4) {
        let expected = case.model();
        let mut model = expected.copy_as(true).unwrap();
        model.use_gpu_paths();
        let rows = case.rows();
        assert!(distance(&logits(&model, &rows), &logits(&expected, &rows)) < 2e-5, "{}", case.name);
        assert!(!model.decodes_ahead());
        // Prompts beside sequences that decode, with recorded steps where a device has them.
        let (mut cache, mut other) = (model.new_cache(3, 128).unwrap(), expected.new_cache(3, 128).unwrap());
        let (a, b) = (&rows[0], &rows[1]);
        for spans in [
            vec![Span { slot: 0, start: 0, ids: &a[..20] }],
            vec![Span { slot: 2, start: 0, ids: &b[..70] }, Span { slot: 0, start: 20, ids: &a[20..21] }],
            vec![Span { slot: 0, start: 21, ids: &a[21..22] }, Span { slot: 2, start: 70, ids: &b[70..71] }],
            vec![Span { slot: 2, start: 71, ids: &b[71..90] }, Span { slot: 0, start: 22, ids: &a[22..23] }],
        ] {
            let (actual, expected) =
                (model.step(&mut cache, &spans).unwrap(), expected.step(&mut other, &spans).unwrap());
            assert!(distance(&actual, &expected) < 2e-5, "{}", case.name);
        }
    }
}

#[test]
fn states_return_to_a_snapshot_and_are_copied() {
    let case = &cases("golden_delta")[0];
    let model = case.model();
    let row = &case.rows()[1];
    let expected = logits(&model, std::slice::from_ref(row));
    let mut cache = model.new_cache(3, 128).unwrap();
    let step = |cache: &mut _, slot: usize, start: usize, end: usize| {
        model.step(cache, &[Span { slot, start, ids: &row[start..end] }]).map(|logits| logits.get(0))
    };
    let _ = step(&mut cache, 1, 0, 50).unwrap();
    cache.snapshot(1).unwrap();
    let _ = step(&mut cache, 1, 50, 60).unwrap();
    assert_eq!([40, 50, 55, 60, 90].map(|limit| cache.reachable(1, limit)), [0, 50, 50, 60, 60]);
    // Another number of tokens has no state.
    let error = step(&mut cache, 1, 40, 70).unwrap_err();
    assert!(error.message.contains("no state after 40 tokens of slot 1"), "{error}");
    assert!(cache.copy_prefix(1, 0, 55).is_err());
    for (from, start) in [(1, 60), (1, 50), (1, 0)] {
        let actual = step(&mut cache, from, start, 90).unwrap();
        assert!(distance(&actual, &expected.get(89)) < 2e-5, "from {start}");
    }
    let _ = step(&mut cache, 1, 0, 50).unwrap();
    cache.copy_prefix(1, 2, 50).unwrap();
    let _ = step(&mut cache, 2, 50, 80).unwrap();
    // The copy has the snapshot, too.
    assert_eq!([cache.reachable(2, 79), cache.reachable(2, 80)], [50, 80]);
    for start in [80, 50] {
        assert!(distance(&step(&mut cache, 2, start, 90).unwrap(), &expected.get(89)) < 2e-5);
    }
    // A step that is stopped between layers changes no state.
    let _ = step(&mut cache, 0, 0, 30).unwrap();
    let polls = std::cell::Cell::new(0);
    let stop = || polls.replace(polls.get() + 1) > 0;
    let stopped = model.step_until(&mut cache, &[Span { slot: 0, start: 30, ids: &row[30..60] }], &stop).unwrap();
    assert!(stopped.is_none());
    assert!(distance(&step(&mut cache, 0, 30, 90).unwrap(), &expected.get(89)) < 2e-5);
    // Memory that is released comes back empty.
    let bytes = cache.bytes();
    cache.release();
    assert!(cache.bytes() < bytes / 4);
    cache.restore().unwrap();
    assert_eq!((cache.bytes(), cache.reachable(0, 90)), (bytes, 0));
}

#[test]
fn adapters_train_and_merge() {
    for case in cases("golden_delta").iter().step_by(7) {
        let (mut model, rows) = (case.model_in(Kind::Double), case.rows());
        let before = logits(&model, &rows);
        let projection = match model.config.delta {
            Some(delta) if delta.joint => "in_proj_qkvz",
            Some(_) => "in_proj_qkv",
            None => "in_proj",
        };
        model.add_adapter(LoraConfig::new(2, 4.0, &[projection, "out_proj", "q_proj"]), 3).unwrap();
        let footprint = Footprint {
            config: &model.config,
            device: Device::Cpu,
            kind: Kind::Double,
            adapter: model.lora(),
            checkpointing: false,
            threads: 1,
            processes: 1,
            zero_stage: 0,
        };
        let trained = |model: &Model| -> u64 {
            let learning = model.parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad());
            learning.map(|(_, tensor)| tensor.numel() as u64).sum()
        };
        assert_eq!(footprint.adapted(), trained(&model), "{}", case.name);
        tch::no_grad(|| {
            for (name, mut tensor) in model.parameters() {
                if name.contains("lora_B") {
                    let _ = tensor.fill_(0.1);
                }
            }
        });
        let adapted = logits(&model, &rows);
        assert!(distance(&adapted, &before) > 1e-3);
        let dir = tempfile::tempdir().unwrap();
        model.save_adapter(dir.path()).unwrap();
        // As PEFT names them for a model that sees images.
        let path = dir.path().join("adapter_model.safetensors");
        let renamed: Vec<(String, Tensor)> = Tensor::read_safetensors(&path)
            .unwrap()
            .into_iter()
            .map(|(name, tensor)| (name.replace(".model.layers.", ".model.language_model.layers."), tensor))
            .collect();
        assert!(renamed.iter().any(|(name, _)| name.contains(projection)));
        Tensor::write_safetensors(&renamed, &path).unwrap();
        let mut again = case.model_in(Kind::Double);
        again.load_adapter(dir.path()).unwrap();
        assert!(logits(&again, &rows).equal(&adapted));
        model.set_merged_sampling(true).unwrap();
        model.refresh_merged().unwrap();
        let mut cache = model.new_cache(1, 90).unwrap();
        let sampled = model.step(&mut cache, &[Span { slot: 0, start: 0, ids: &rows[1] }]).unwrap();
        assert!(distance(&sampled.get(0), &adapted.get(33 + 89)) < 1e-5);
        model.merge_adapter().unwrap();
        assert!(distance(&logits(&model, &rows), &adapted) < 1e-9);
    }
}

#[test]
fn checkpoints_are_saved_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    for case in cases("golden_delta") {
        let model = case.model();
        model.save(dir.path()).unwrap();
        let again = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        let strip = |config: &Config| Config { source: serde_json::Map::new(), ..config.clone() };
        assert_eq!(strip(&again.config), strip(&model.config), "{}", case.name);
        assert!(model.parameters().iter().zip(again.parameters()).all(|((a, x), (b, y))| *a == b && x.equal(&y)));
        let matrices: usize = model.parameters().iter().filter(|(_, x)| x.dim() > 1).map(|(_, x)| x.numel()).sum();
        assert_eq!(crate::model::layers::Parameters::numbers(&model.config), matrices as u128, "{}", case.name);
        let narrow = Model::load(dir.path(), Device::Cpu, Kind::BFloat16).unwrap();
        let hidden = narrow.forward(&pack(&case.rows())).unwrap();
        assert!(hidden.isfinite().all().int64_value(&[]) == 1, "{}", case.name);
        let new = Model::init(model.config.clone(), Device::Cpu, Kind::Float, 3).unwrap();
        assert!(logits(&new, &rows(&[5, 70], 96)).isfinite().all().int64_value(&[]) == 1);
    }
}

/// The config of a model that sees images, around that of a text model, without its tower.
fn with_images(text: &Value) -> Value {
    let kind = text["model_type"].as_str().unwrap().trim_end_matches("_text");
    let class = text["architectures"][0].as_str().unwrap().replace("ForCausalLM", "ForConditionalGeneration");
    let mut text = text.clone();
    text["mtp_num_hidden_layers"] = json!(1);
    text["rope_parameters"]["mrope_section"] = json!([2, 1, 1]);
    text["rope_parameters"]["mrope_interleaved"] = json!(true);
    text["full_attention_interval"] = Value::Null;
    text["attn_output_gate"] = json!(true);
    text["mamba_ssm_dtype"] = json!("float32");
    json!({
        "architectures": [class], "model_type": kind, "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text, "vision_config": null, "image_token_id": 3,
        "vision_start_token_id": 4, "dtype": "bfloat16",
    })
}

#[test]
fn text_model_of_a_model_that_sees_images_is_read() {
    let all = cases("golden_delta");
    for name in ["qwen3_5 1", "qwen3_5 4", "qwen3_5_moe 0", "qwen3_5_moe 5"] {
        let case = all.iter().find(|case| case.name == name).unwrap();
        let model = case.model();
        let mut stored: Vec<(String, Tensor)> = Vec::new();
        for (name, tensor) in model.parameters() {
            let name =
                name.strip_prefix("model.").map_or_else(|| name.clone(), |n| format!("model.language_model.{n}"));
            stored.push((name, tensor.detach()));
        }
        // Experts together, as these checkpoints have them.
        if let Some(experts) = model.config.experts {
            let find = |name: String| model.parameters().into_iter().find(|(n, _)| *n == name).unwrap().1.detach();
            stored.retain(|(name, _)| !name.contains(".mlp.experts."));
            for layer in 0..model.config.num_hidden_layers {
                let of = |expert: usize, part: &str| {
                    find(format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"))
                };
                let both = |expert| Tensor::cat(&[of(expert, "gate"), of(expert, "up")], 0);
                let each = 0..experts.count;
                let gate_up: Vec<Tensor> = each.clone().map(both).collect();
                let down: Vec<Tensor> = each.map(|expert| of(expert, "down")).collect();
                let prefix = format!("model.language_model.layers.{layer}.mlp.experts");
                stored.push((format!("{prefix}.gate_up_proj"), Tensor::stack(&gate_up, 0)));
                stored.push((format!("{prefix}.down_proj"), Tensor::stack(&down, 0)));
            }
        }
        let text_tensors = stored.len();
        for name in ["model.visual.blocks.0.norm1.weight", "mtp.fc.weight"] {
            stored.push((name.to_owned(), Tensor::ones([2, 3], (Kind::Float, Device::Cpu))));
        }
        let dir = tempfile::tempdir().unwrap();
        Tensor::write_safetensors(&stored, dir.path().join("model.safetensors")).unwrap();
        let config = with_images(&case.record["config"]);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let loaded = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap();
        assert!(logits(&loaded, &case.rows()).equal(&logits(&model, &case.rows())), "{name}");
        assert_eq!(tensors_beside_text(dir.path(), false).unwrap(), 2);
        // The checkpoint that is written has the text model alone.
        let out = tempfile::tempdir().unwrap();
        loaded.save(out.path()).unwrap();
        let again = Model::load(out.path(), Device::Cpu, Kind::Float).unwrap();
        assert!(again.parameters().iter().zip(model.parameters()).all(|((a, x), (b, y))| *a == b && x.equal(&y)));
        let written: Value =
            serde_json::from_str(&std::fs::read_to_string(out.path().join("config.json")).unwrap()).unwrap();
        assert!(written["vision_config"].is_null() && written["text_config"].is_null());
        assert_eq!(written["model_type"], case.record["config"]["model_type"]);
        // A missing tensor is named as the text model has it.
        stored.truncate(text_tensors - 1);
        Tensor::write_safetensors(&stored, dir.path().join("model.safetensors")).unwrap();
        let error = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err();
        assert!(error.message.contains("missing"), "{error}");
    }
}

#[test]
fn contradictory_configs_are_refused_by_name() {
    let text = cases("golden_delta")[0].record["config"].clone();
    let read = |value: &Value| Config::from_json(value);
    assert!(read(&text).is_ok() && read(&with_images(&text)).is_ok());
    for (name, value) in [
        ("linear_num_key_heads", json!(5)),
        ("linear_conv_kernel_dim", json!(0)),
        ("layer_types", json!(vec!["linear_attention"; 9])),
        ("layer_types", json!(vec!["sliding_attention"; text["num_hidden_layers"].as_u64().unwrap() as usize])),
        ("full_attention_interval", json!(1)),
        ("full_attention_interval", json!(0)),
        ("attn_output_gate", json!(false)),
        ("mamba_ssm_dtype", json!("bfloat16")),
        ("use_sliding_window", json!(true)),
        ("partial_rotary_factor", json!(0.001)),
        ("hidden_act", json!("gelu")),
        ("head_wise_attn_output_gate", json!(true)),
    ] {
        let mut changed = text.clone();
        if name == "partial_rotary_factor" {
            changed["rope_parameters"][name] = value;
        } else {
            changed[name] = value;
        }
        let error = read(&changed).unwrap_err();
        assert!(error.message.contains(name), "{name}: {error}");
    }
    for (name, field, value) in [
        ("tie_word_embeddings", "tie_word_embeddings", json!(!text["tie_word_embeddings"].as_bool().unwrap())),
        ("hidden_size", "hidden_size", json!(7)),
        ("text_config", "text_config", Value::Null),
        ("architectures", "architectures", json!(["Qwen3_5MoeForConditionalGeneration"])),
        ("audio_config", "audio_config", json!({ "layers": 2 })),
    ] {
        let mut changed = with_images(&text);
        changed[field] = value;
        let error = read(&changed).unwrap_err();
        assert!(error.message.contains(name), "{name}: {error}");
    }
    let mut changed = with_images(&text);
    changed["text_config"]["model_type"] = json!("qwen3_5_moe_text");
    assert!(read(&changed).unwrap_err().message.contains("text_config.model_type"));
}
