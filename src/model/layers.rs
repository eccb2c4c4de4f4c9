//! The parameters of a Qwen2 model; the tree of names is the checkpoint's.

use tch::{Device, Kind, Tensor};

use super::Config;
use crate::error::Result;

/// A weight `[out, in]` that may have a bias `[out]`.
#[derive(Debug)]
pub(super) struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub input_norm: Tensor,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub post_norm: Tensor,
}

/// All parameters.
#[derive(Debug)]
pub(super) struct Parameters {
    pub embed: Tensor,
    pub layers: Vec<Layer>,
    pub norm: Tensor,
    /// A shallow clone of `embed` when tied.
    pub lm_head: Tensor,
    tied: bool,
}

impl Parameters {
    /// Uninitialised parameters of the configured shapes.
    pub(super) fn empty(config: &Config, device: Device, kind: Kind) -> Result<Self> {
        let leaf = |shape: &[i64]| -> Result<Tensor> {
            Ok(Tensor::f_empty(shape, (kind, device))?.f_set_requires_grad(true)?)
        };
        let hidden = config.hidden_size as i64;
        let inner = config.intermediate_size as i64;
        let queries = (config.num_attention_heads * config.head_dim) as i64;
        let keys = (config.num_key_value_heads * config.head_dim) as i64;
        let plain =
            |outputs, inputs| -> Result<Linear> { Ok(Linear { weight: leaf(&[outputs, inputs])?, bias: None }) };
        let biased = |outputs| -> Result<Linear> {
            Ok(Linear { weight: leaf(&[outputs, hidden])?, bias: Some(leaf(&[outputs])?) })
        };
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for _ in 0..config.num_hidden_layers {
            layers.push(Layer {
                input_norm: leaf(&[hidden])?,
                q: biased(queries)?,
                k: biased(keys)?,
                v: biased(keys)?,
                o: plain(hidden, queries)?,
                gate: plain(inner, hidden)?,
                up: plain(inner, hidden)?,
                down: plain(hidden, inner)?,
                post_norm: leaf(&[hidden])?,
            });
        }
        let vocab = config.vocab_size as i64;
        let embed = leaf(&[vocab, hidden])?;
        let tied = config.tie_word_embeddings;
        let lm_head = if tied { embed.shallow_clone() } else { leaf(&[vocab, hidden])? };
        Ok(Self { embed, layers, norm: leaf(&[hidden])?, lm_head, tied })
    }

    /// Checkpoint keys and shallow clones, in the order the native code counts on; a tied head is not repeated.
    pub(super) fn named(&self) -> Vec<(String, Tensor)> {
        let mut all = vec![("model.embed_tokens.weight".to_owned(), self.embed.shallow_clone())];
        for (index, layer) in self.layers.iter().enumerate() {
            let mut add = |name: &str, tensor: &Tensor| {
                all.push((format!("model.layers.{index}.{name}"), tensor.shallow_clone()));
            };
            add("input_layernorm.weight", &layer.input_norm);
            for (name, linear) in [
                ("self_attn.q_proj", &layer.q),
                ("self_attn.k_proj", &layer.k),
                ("self_attn.v_proj", &layer.v),
                ("self_attn.o_proj", &layer.o),
                ("mlp.gate_proj", &layer.gate),
                ("mlp.up_proj", &layer.up),
                ("mlp.down_proj", &layer.down),
            ] {
                add(&format!("{name}.weight"), &linear.weight);
                if let Some(bias) = &linear.bias {
                    add(&format!("{name}.bias"), bias);
                }
            }
            add("post_attention_layernorm.weight", &layer.post_norm);
        }
        all.push(("model.norm.weight".to_owned(), self.norm.shallow_clone()));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), self.lm_head.shallow_clone()));
        }
        all
    }
}
