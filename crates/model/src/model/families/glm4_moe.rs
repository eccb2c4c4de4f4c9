//! GLM-4.5 and GLM-4.6 (arXiv:2508.06471): mixtures of experts with DeepSeek-V3's router and shared
//! experts; the first layers are dense; half of each head is rotated.

use super::{Architecture, Biases, Config, Defaults, Fields, LayerKind, Result, uniform};
use crate::model::config::{ExpertStorage, Experts, Router, SharedExpert};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let defaults = Defaults { max_position: 131_072, partial: Some(0.5), rms_norm_eps: 1e-5, ..Defaults::default() };
    let mut config = uniform(architecture, fields, &defaults)?;
    config.head_norms = fields.flag("use_qk_norm", false)?;
    config.biases = Biases { qkv: fields.flag("attention_bias", false)?, ..Biases::default() };
    sigmoid_experts(fields, &mut config)?;
    Ok(config)
}

/// The experts of all layers but the first ones, with DeepSeek-V3's router.
fn sigmoid_experts(fields: &mut Fields, config: &mut Config) -> Result<()> {
    let intermediate_size = fields.size("moe_intermediate_size", Some(1408))?;
    let shared = fields.size("n_shared_experts", Some(1))?;
    let shared = (shared > 0)
        .then(|| SharedExpert { intermediate_size: intermediate_size.saturating_mul(shared), gated: false });
    let router = Router::Sigmoid {
        groups: fields.size("n_group", Some(1))?,
        top_groups: fields.size("topk_group", Some(1))?,
        scaling: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
    };
    config.experts = Some(Experts {
        count: fields.same_size(&["n_routed_experts", "num_local_experts", "num_experts"], 128)?,
        chosen: fields.size("num_experts_per_tok", Some(8))?,
        intermediate_size,
        normalised: fields.flag("norm_topk_prob", true)?,
        router,
        shared,
        biased: false,
        storage: ExpertStorage::Single,
    });
    let dense = fields.size("first_k_dense_replace", Some(1))?;
    config.layers.resize(config.num_hidden_layers, LayerKind::default());
    config.layers.iter_mut().skip(dense).for_each(|layer| layer.sparse = true);
    Ok(())
}
