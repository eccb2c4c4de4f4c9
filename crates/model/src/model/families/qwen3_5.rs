//! Qwen3.5 (huggingface.co/Qwen/Qwen3.5-27B), dense and with experts: the layers of Qwen3-Next with
//! separate projections. The checkpoints are of models that see images; their text model is read,
//! which has its own config inside theirs.

use serde_json::{Map, Value, json};

use super::{Architecture, Config, Fields, Result, qwen3_next, softmax_experts};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    qwen3_next::hybrid(architecture, fields, None, false)
}

pub(super) fn read_moe(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    // Every layer is sparse.
    fields.only("decoder_sparse_step", 1)?;
    fields.only("mlp_only_layers", json!([]))?;
    fields.only("norm_topk_prob", true)?;
    fields.set_default(&["norm_topk_prob"], json!(true));
    let inner = fields.size("moe_intermediate_size", Some(512))?;
    let mut config = qwen3_next::hybrid(architecture, fields, Some(inner), false)?;
    let shared = qwen3_next::shared_expert(fields)?;
    softmax_experts(fields, &mut config, [256, 8, inner], shared)?;
    Ok(config)
}

/// Fields about images.
const IMAGES: &[&str] =
    &["vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"];

/// The config of the text model in the config of a model that sees images; `None` for others.
pub(super) fn text_config(object: &Map<String, Value>) -> Result<Option<Map<String, Value>>> {
    let kind = object.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let class = match kind {
        "qwen3_5" => "Qwen3_5",
        "qwen3_5_moe" => "Qwen3_5Moe",
        _ => return Ok(None),
    };
    let Some(Value::Object(text)) = object.get("text_config") else { return Err(Fields::missing("text_config")) };
    let mut text = text.clone();
    let text_kind = json!(format!("{kind}_text"));
    if let Some(other) = text.get("model_type").filter(|other| **other != text_kind) {
        return Err(Fields::wrong("text_config.model_type", other, &format!("`model_type` is {kind:?}")));
    }
    let classes = ["ForConditionalGeneration", "ForCausalLM"].map(|end| json!([format!("{class}{end}")]));
    if let Some(other) = object.get("architectures").filter(|other| !other.is_null() && !classes.contains(other)) {
        return Err(Fields::wrong("architectures", other, &format!("`model_type` is {kind:?}")));
    }
    text.insert("model_type".to_owned(), text_kind);
    text.insert("architectures".to_owned(), json!([format!("{class}ForCausalLM")]));
    for (name, value) in object {
        let nested = ["text_config", "model_type", "architectures"].contains(&name.as_str());
        if nested || IMAGES.contains(&name.as_str()) {
            continue;
        }
        let inner = text.entry(name.clone()).or_insert_with(|| value.clone());
        // Token ids and the type of the weights can differ.
        let differs = inner != value && !name.ends_with("_token_id") && !name.ends_with("dtype");
        if differs && name != "transformers_version" {
            return Err(Fields::wrong(name, value, &format!("`text_config.{name}` is {inner}")));
        }
    }
    Ok(Some(text))
}
