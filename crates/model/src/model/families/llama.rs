//! Llama 2 and 3 (arXiv:2307.09288, arXiv:2407.21783), and models of their shape such as SmolLM and
//! SmolLM2: grouped-query attention, rotary embeddings (scaled from 3.1 on), RMSNorm before each
//! block, SwiGLU, optional biases.

use super::{Architecture, Biases, Config, Defaults, Fields, Result, uniform, windows};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults { max_position: 2048, ..Defaults::default() })?;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: fields.flag("mlp_bias", false)? };
    windows(fields, &mut config, None, |_| false)?;
    // Present in copies of SmolLM for other runtimes.
    fields.only("rope_interleaved", false)?;
    fields.only("is_llama_config", true)?;
    Ok(config)
}
