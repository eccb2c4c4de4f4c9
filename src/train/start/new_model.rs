//! A new model: a tokenizer trained on the recipe's own conversations, and random weights.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{InitModel, VisionInit};
use crate::error::{Error, Kind, Result};
use crate::load::{IMAGE_FRAMES, IMAGE_MERGE, new_images, new_processor};
use crate::model::{Config, Model};
use crate::script::{Split, Worker};
use crate::telemetry::Reporter;
use crate::text::{Tokenizer, train_tokenizer};
use crate::train::rows::demonstrations;
use crate::train::rows::order;
use crate::vision::IMAGE_TOKENS;

/// Writes tokenizer, config and random weights into `dir`.
pub(crate) fn make(
    dir: &Path,
    init: &InitModel,
    worker: &Worker,
    rows: u64,
    seed: u64,
    reporter: &Reporter,
) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Error::io(Kind::Store, "make the directory", dir, &error))?;
    let wanted = (init.tokenizer_rows as u64).min(rows);
    let bar = reporter.bar("tokenizer", wanted, "rows");
    let mut texts = Vec::new();
    // Only the texts are used.
    let images = init.vision.as_ref().map(new_images).transpose()?;
    for position in 0..wanted {
        let index = order::shuffled(position, rows, seed);
        let demonstration = demonstrations::read(worker, Split::Train, index, images.as_ref())?;
        for message in &demonstration.messages {
            texts.push(message.content.text());
            for call in &message.tool_calls {
                texts.push(json!({ "name": call.name, "arguments": call.arguments }).to_string());
            }
        }
        texts.extend(demonstration.tools.iter().map(ToString::to_string));
        bar.inc(1);
    }
    bar.finish();
    let mut special = init.special_tokens.clone();
    if init.vision.is_some() {
        special.extend(IMAGE_TOKENS.map(str::to_owned));
    }
    let tokenizer = train_tokenizer(texts.into_iter(), init.vocab_size, &special)?;
    tokenizer.save(dir)?;
    let eos = tokenizer
        .id_of("<|im_end|>")
        .ok_or_else(|| Error::new(Kind::Internal, "the trained tokenizer has no end-of-turn token"))?;
    let mut config = json!({
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": init.hidden_size,
        "intermediate_size": init.intermediate_size,
        "num_hidden_layers": init.num_hidden_layers,
        "num_attention_heads": init.num_attention_heads,
        "num_key_value_heads": init.num_key_value_heads,
        "max_position_embeddings": init.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "rope_theta": init.rope_theta,
        "tie_word_embeddings": true,
        "vocab_size": tokenizer.vocab_size(),
        "eos_token_id": eos,
    });
    if let Some(vision) = &init.vision {
        config = with_vision(config, init, vision, &tokenizer);
        let processor = dir.join("preprocessor_config.json");
        crate::store::write_bytes(&processor, format!("{:#}\n", new_processor(vision)).as_bytes())?;
    }
    let model = Model::init(Config::from_json(&config)?, tch::Device::Cpu, tch::Kind::Float, seed)?;
    model.save(dir)
}

/// Learned positions along each side of an image.
const POSITIONS: usize = 16;

/// The config of a Qwen3-VL, whose text model has the sizes of `text`.
fn with_vision(mut text: Value, init: &InitModel, vision: &VisionInit, tokenizer: &Tokenizer) -> Value {
    let head_dim = init.hidden_size / init.num_attention_heads.max(1);
    let pairs = head_dim / 2;
    // Pairs for height and width are a third each, rounded down.
    let side = pairs / 3;
    let [start, image, end] = IMAGE_TOKENS.map(|token| tokenizer.id_of(token));
    text["model_type"] = json!("qwen3_vl_text");
    text["head_dim"] = json!(head_dim);
    text["rope_scaling"] = json!({
        "rope_type": "default",
        "mrope_section": [pairs - 2 * side, side, side],
        "mrope_interleaved": true,
    });
    if let Some(fields) = text.as_object_mut() {
        fields.shift_remove("architectures");
    }
    json!({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "vision_start_token_id": start,
        "image_token_id": image,
        "vision_end_token_id": end,
        "tie_word_embeddings": true,
        "text_config": text,
        "vision_config": {
            "model_type": "qwen3_vl",
            "hidden_act": "gelu_pytorch_tanh",
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_heads": vision.num_heads,
            "in_channels": 3,
            "out_hidden_size": init.hidden_size,
            "patch_size": vision.patch_size,
            "temporal_patch_size": IMAGE_FRAMES,
            "spatial_merge_size": IMAGE_MERGE,
            "num_position_embeddings": POSITIONS * POSITIONS,
            "deepstack_visual_indexes": [],
        },
    })
}
