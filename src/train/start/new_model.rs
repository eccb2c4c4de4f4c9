//! A new model: a tokenizer trained on the recipe's own conversations, and random weights.

use std::path::Path;

use crate::config::InitModel;
use crate::error::{Error, Kind, Result};
use crate::model::{Config, Model};
use crate::script::{Split, Worker};
use crate::telemetry::Reporter;
use crate::text::train_tokenizer;
use crate::train::rows::demonstrations;
use crate::train::rows::order;

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
    for position in 0..wanted {
        let index = order::shuffled(position, rows, seed);
        let demonstration = demonstrations::read(worker, Split::Train, index)?;
        for message in &demonstration.messages {
            texts.push(message.content.text());
            for call in &message.tool_calls {
                texts.push(serde_json::json!({ "name": call.name, "arguments": call.arguments }).to_string());
            }
        }
        texts.extend(demonstration.tools.iter().map(ToString::to_string));
        bar.inc(1);
    }
    bar.finish();
    let tokenizer = train_tokenizer(texts.into_iter(), init.vocab_size, &init.special_tokens)?;
    tokenizer.save(dir)?;
    let eos = tokenizer
        .id_of("<|im_end|>")
        .ok_or_else(|| Error::new(Kind::Internal, "the trained tokenizer has no end-of-turn token"))?;
    let config = serde_json::json!({
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
    let model = Model::init(Config::from_json(&config)?, tch::Device::Cpu, tch::Kind::Float, seed)?;
    model.save(dir)
}
