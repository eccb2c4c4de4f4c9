//! The parameters of a Qwen2 model, as named tensors over fused storage.
//!
//! The tree of names is the checkpoint's. What is multiplied with the same input (q, k and v; gate and up) lies in one
//! buffer, so that one product computes it; the named tensors are views of that buffer, each a leaf of its own for
//! autograd, and an optimiser that updates them in place updates the buffer.

use tch::{Device, Kind, Tensor};

use super::Config;
use crate::error::{self, Error, Result};

/// A weight [out, in] that may have a bias [out].
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
    pub post_norm: Tensor,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
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

/// Consecutive views of one buffer, each a leaf that wants a gradient.
fn views<const N: usize>(storage: &Tensor, sizes: [i64; N]) -> Result<[Tensor; N]> {
    let mut start = 0;
    let mut all = Vec::with_capacity(N);
    for size in sizes {
        all.push(storage.f_narrow(0, start, size)?.f_detach()?.f_set_requires_grad(true)?);
        start += size;
    }
    all.try_into().map_err(|_| Error::new(error::Kind::Internal, "parameters lost their shape"))
}

impl Parameters {
    /// Uninitialised parameters of the configured shapes.
    pub(super) fn empty(config: &Config, device: Device, kind: Kind) -> Result<Self> {
        let _guard = tch::no_grad_guard();
        let buffer = |shape: &[i64]| Tensor::f_empty(shape, (kind, device));
        let leaf = |shape: &[i64]| -> Result<Tensor> { Ok(buffer(shape)?.f_set_requires_grad(true)?) };
        let hidden = config.hidden_size as i64;
        let inner = config.intermediate_size as i64;
        let queries = (config.num_attention_heads * config.head_dim) as i64;
        let keys = (config.num_key_value_heads * config.head_dim) as i64;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for _ in 0..config.num_hidden_layers {
            let sizes = [queries, keys, keys];
            let [q_weight, k_weight, v_weight] = views(&buffer(&[queries + 2 * keys, hidden])?, sizes)?;
            let [q_bias, k_bias, v_bias] = views(&buffer(&[queries + 2 * keys])?, sizes)?;
            let [gate, up] = views(&buffer(&[2 * inner, hidden])?, [inner, inner])?;
            layers.push(Layer {
                input_norm: leaf(&[hidden])?,
                q: Linear { weight: q_weight, bias: Some(q_bias) },
                k: Linear { weight: k_weight, bias: Some(k_bias) },
                v: Linear { weight: v_weight, bias: Some(v_bias) },
                o: Linear { weight: leaf(&[hidden, queries])?, bias: None },
                post_norm: leaf(&[hidden])?,
                gate: Linear { weight: gate, bias: None },
                up: Linear { weight: up, bias: None },
                down: Linear { weight: leaf(&[hidden, inner])?, bias: None },
            });
        }
        let vocab = config.vocab_size as i64;
        let embed = leaf(&[vocab, hidden])?;
        let tied = config.tie_word_embeddings;
        let lm_head = if tied { embed.shallow_clone() } else { leaf(&[vocab, hidden])? };
        Ok(Self { embed, layers, norm: leaf(&[hidden])?, lm_head, tied })
    }

    /// Checkpoint keys and shallow clones, in the order of the checkpoint; a tied head is not repeated.
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
