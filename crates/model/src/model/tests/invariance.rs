//! Batch invariance of generation in f32 on the CPU: a token's logits are bitwise independent of
//! the batch.

use tch::{Kind, Tensor};

use super::families::{Case, cases};
use crate::model::{Config, KvCache, LoraConfig, Model, Span};
use crate::native;

/// Other sequences of many lengths.
fn others(model: &Model, count: usize) -> Vec<Vec<u32>> {
    let vocab = model.config.vocab_size as u32;
    (0..count).map(|index| (0..=3 * index as u32).map(|at| (7 * at + index as u32) % vocab).collect()).collect()
}

/// Logits after the last token of `row`, computed in chunks that end at `ends`, in a batch with
/// `neighbours` as the other sequences.
fn last_logits(model: &Model, row: &[u32], ends: &[usize], neighbours: &[Vec<u32>]) -> Tensor {
    let mut cache: KvCache = model.new_cache(1 + neighbours.len(), 8).unwrap();
    let (mut start, mut last) = (0, None);
    for (step, &end) in ends.iter().enumerate() {
        let mut spans: Vec<Span<'_>> = Vec::new();
        for (index, other) in neighbours.iter().enumerate() {
            // Some of the other sequences start at each step, in slots before and after the tested
            // sequence.
            if index % ends.len() == step {
                spans.push(Span { slot: index + 1, start: 0, ids: other });
            }
        }
        let middle = spans.len() / 2;
        spans.insert(middle, Span { slot: 0, start, ids: &row[start..end] });
        last = Some(model.step(&mut cache, &spans).unwrap().get(middle as i64));
        start = end;
    }
    last.unwrap()
}

fn bits(logits: &Tensor) -> Vec<u32> {
    Vec::<f32>::try_from(logits).unwrap().into_iter().map(f32::to_bits).collect()
}

fn check(name: &str, model: &Model, row: &[u32]) {
    // One thread is faster for models of this size; the wide model below uses two.
    native::set_threads(1);
    let mut row = row.to_vec();
    // Dynamic rotary embeddings depend on the length beyond the model's limit.
    row.truncate(model.config.max_position_embeddings);
    let alone = bits(&last_logits(model, &row, &[row.len()], &[]));
    let all: Vec<usize> = (1..=row.len()).collect();
    let neighbours = others(model, 23);
    let neighbours: Vec<Vec<u32>> = neighbours
        .into_iter()
        .map(|row_ids| row_ids[..row_ids.len().min(model.config.max_position_embeddings)].to_vec())
        .collect();
    for (what, ends, neighbours) in [
        ("in three pieces", vec![3, row.len() / 2, row.len()], &[][..]),
        ("token by token", all.clone(), &[][..]),
        ("with others", vec![row.len()], &neighbours[..]),
        ("in pieces with others", vec![row.len() / 2, row.len()], &neighbours[..]),
    ] {
        let actual = bits(&last_logits(model, &row, &ends, neighbours));
        let differing = actual.iter().zip(&alone).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 0, "{name}, {what}: {differing} of {} logits differ", alone.len());
    }
}

#[test]
fn logits_do_not_depend_on_the_batch_in_any_family() {
    for case in cases("golden") {
        check(&case.name, &case.model(), &case.rows()[1]);
    }
}

#[test]
fn logits_do_not_depend_on_the_batch_with_an_adapter() {
    for case in cases("golden") {
        check(&case.name, &with_adapter(&case), &case.rows()[1]);
    }
}

fn with_adapter(case: &Case) -> Model {
    let mut model = case.model();
    model.add_adapter(LoraConfig::new(4, 8.0, &["q_proj", "v_proj", "down_proj"]), 3).unwrap();
    let _guard = tch::no_grad_guard();
    // A new adapter has no effect, so its weights are changed.
    for (name, mut tensor) in model.parameters() {
        if name.contains("lora_B") {
            let count = tensor.numel() as i64;
            let values = Tensor::arange(count, (Kind::Float, tensor.device())).sin() * 0.2;
            tensor.copy_(&values.view_as(&tensor));
        }
    }
    model
}

#[test]
fn logits_do_not_depend_on_the_batch_in_wide_models() {
    // Wider than a block of the products and longer than a table of angles.
    let config = serde_json::json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 160,
        "intermediate_size": 224, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 40, "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 40, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
    });
    let model = Model::init(Config::from_json(&config).unwrap(), tch::Device::Cpu, Kind::Float, 5).unwrap();
    let row: Vec<u32> = (0..300u32).map(|at| at * 31 % 300).collect();
    native::set_threads(1);
    let alone = bits(&last_logits(&model, &row, &[300], &[]));
    native::set_threads(2);
    assert_eq!(bits(&last_logits(&model, &row, &[100, 299, 300], &others(&model, 30))), alone);
}
