//! What mixes the tokens of a sequence in a layer, with the names of the checkpoint.

use tch::Tensor;

use super::Config;
use super::gated_delta::GatedDelta;
use super::layers::{Linear, Maker, ParameterNode, set_merged};
use super::short_conv::ShortConv;
use super::stacked::Stack;
use r1_base::error::Result;

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one for each layer
pub(super) enum Mixer {
    Attention(Attention),
    Delta(GatedDelta),
    Conv(ShortConv),
}

#[derive(Debug)]
pub(super) struct Attention {
    /// With an output gate, the rows of each head's gate follow the rows of its queries.
    pub q: Linear,
    /// None if the rows of queries, keys and values are one projection, `q`.
    pub kv: Option<[Linear; 2]>,
    /// Query, key and value, if they are stored together.
    pub qkv: Option<Stack>,
    pub head_norms: Option<HeadNorms>,
    /// `[H]`
    pub sinks: Option<Tensor>,
    pub o: Linear,
}

/// RMSNorms of query and key heads, `[D]` each, or of all of them together, `[H * D]`.
#[derive(Debug)]
pub(super) struct HeadNorms {
    pub q: Tensor,
    pub k: Tensor,
}

impl Mixer {
    /// Uninitialised parameters.
    pub(super) fn new(maker: &Maker, config: &Config, index: usize) -> Result<Self> {
        if let Some(shape) = config.delta.filter(|_| config.layer(index).linear) {
            return Ok(Self::Delta(GatedDelta::new(maker, config, shape)?));
        }
        if let Some(taps) = config.short_conv.filter(|_| config.layer(index).linear) {
            return Ok(Self::Conv(ShortConv::new(maker, config, taps)?));
        }
        Ok(Self::Attention(Attention::new(maker, config)?))
    }

    /// Visits every part with its name within the layer.
    pub(super) fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        match self {
            Self::Attention(attention) => attention.walk(f),
            Self::Delta(delta) => delta.walk(f),
            Self::Conv(conv) => conv.walk(f),
        }
    }

    /// Adds every projection with its name within the layer.
    pub(super) fn linears_mut<'a>(&'a mut self, all: &mut Vec<(String, &'a mut Linear)>) {
        match self {
            Self::Attention(Attention { q, kv, o, .. }) => {
                let mut add = |name: &str, linear| all.push((format!("self_attn.{name}_proj"), linear));
                add(if kv.is_some() { "q" } else { "qkv" }, q);
                if let Some([k, v]) = kv {
                    add("k", k);
                    add("v", v);
                }
                add("o", o);
            }
            Self::Delta(delta) => delta.linears_mut(all),
            Self::Conv(conv) => conv.linears_mut(all),
        }
    }

    pub(super) fn set_merged(&mut self, on: bool) -> Result<()> {
        match self {
            Self::Attention(Attention { q, kv, qkv, o, .. }) => {
                match kv {
                    Some([k, v]) => set_merged([q, k, v], qkv.as_mut(), on)?,
                    None => set_merged([q], None, on)?,
                }
                set_merged([o], None, on)
            }
            Self::Delta(delta) => delta.set_merged(on),
            Self::Conv(conv) => conv.set_merged(on),
        }
    }
}

impl Attention {
    fn new(maker: &Maker, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let queries = config.num_attention_heads * config.head_dim;
        let gated = if config.output_gate { 2 * queries } else { queries };
        let keys = config.num_key_value_heads * config.head_dim;
        let biases = config.biases;
        let head_norms = || -> Result<HeadNorms> {
            let [q, k] = if config.joint_norms { [queries, keys] } else { [config.head_dim; 2] };
            Ok(HeadNorms { q: maker.leaf(&[q])?, k: maker.leaf(&[k])? })
        };
        let sinks = || maker.leaf(&[config.num_attention_heads]);
        let (q, kv, qkv) = if config.joint.qkv {
            (maker.linear(gated + 2 * keys, hidden, biases.qkv)?, None, None)
        } else {
            let mut all = maker.siblings(gated + 2 * keys, hidden, biases.qkv)?;
            (all.linear(gated)?, Some([all.linear(keys)?, all.linear(keys)?]), all.stack)
        };
        Ok(Self {
            q,
            kv,
            qkv,
            head_norms: config.head_norms.then(head_norms).transpose()?,
            sinks: config.sinks.then(sinks).transpose()?,
            o: maker.linear(hidden, queries, biases.output)?,
        })
    }

    fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        match &self.kv {
            Some([k, v]) => {
                f("self_attn.q_proj", ParameterNode::Linear(&self.q));
                f("self_attn.k_proj", ParameterNode::Linear(k));
                f("self_attn.v_proj", ParameterNode::Linear(v));
            }
            None => f("self_attn.qkv_proj", ParameterNode::Linear(&self.q)),
        }
        if let Some(norms) = &self.head_norms {
            f("self_attn.q_norm", ParameterNode::Norm(&norms.q));
            f("self_attn.k_norm", ParameterNode::Norm(&norms.k));
        }
        if let Some(sinks) = &self.sinks {
            f("self_attn.sinks", ParameterNode::Bare(sinks));
        }
        f("self_attn.o_proj", ParameterNode::Linear(&self.o));
    }
}
