//! Qwen3.5 (huggingface.co/Qwen/Qwen3.5-27B), dense and with experts: the layers of Qwen3-Next with
//! separate projections. The config of the text model is inside that of the model that sees images.

use serde_json::json;

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
