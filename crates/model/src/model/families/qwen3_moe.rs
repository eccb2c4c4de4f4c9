//! Qwen3 mixtures of experts (arXiv:2505.09388): the attention of Qwen3; the feed-forward block of
//! a sparse layer is the weighted sum of the experts that a router selects for each token.

use serde_json::json;

use super::super::config::{ExpertStorage, Experts};
use super::{Architecture, Biases, Config, Defaults, Fields, LayerKind, Result, optional_window, uniform, windows};

pub(super) fn read(fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(Architecture::Qwen3Moe, fields, &Defaults::default())?;
    config.head_norms = true;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    let window = optional_window(fields, Some(4096))?;
    // Unlike in the dense models, every layer has the window; `max_window_layers` is ignored.
    fields.take("max_window_layers");
    windows(fields, &mut config, window, |_| true)?;

    let count = fields.same_size(&["num_experts", "num_local_experts"], 128)?;
    config.experts = Some(Experts {
        count,
        chosen: fields.size("num_experts_per_tok", Some(8))?,
        intermediate_size: fields.size("moe_intermediate_size", Some(768))?,
        normalised: fields.flag("norm_topk_prob", false)?,
        shared: None,
        biased: false,
        storage: ExpertStorage::Single,
    });
    let every = fields.size("decoder_sparse_step", Some(1))?;
    if every == 0 {
        return Err(Fields::wrong("decoder_sparse_step", &json!(0), "it must be 1 or more"));
    }
    let dense = fields.take("mlp_only_layers").unwrap_or_else(|| json!([]));
    let Some(listed) = dense.as_array() else {
        return Err(Fields::wrong("mlp_only_layers", &dense, "it must be a list of layers"));
    };
    if config.layers.is_empty() {
        config.layers = vec![LayerKind::default(); config.num_hidden_layers];
    }
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.sparse = !listed.contains(&json!(index)) && (index + 1).is_multiple_of(every);
    }
    Ok(config)
}
