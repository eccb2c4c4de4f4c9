//! The tensors of a GGUF file by their names in Hugging Face layout, and what llama.cpp's converter
//! has changed in their numbers.

use std::borrow::Cow;

use serde_json::Value;

use super::config::Family;
use super::header::{Gguf, GgufTensor};
use crate::model::file_tensor::{FileNumbers, FileTensor, Rearrangement};
use r1_base::error::Result;

/// Modules outside of layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer.
const INNER: [(&str, &str); 15] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "gate_proj"),
    ("ffn_up_exps", "up_proj"),
    ("ffn_down_exps", "down_proj"),
];

/// Modules of a layer with norms around attention and the feed-forward block.
const AROUND: [(&str, &str); 3] = [
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The tensors of a file by their names in Hugging Face layout. A tensor whose name is not known
/// keeps it, so that the loader refuses it by name.
pub(in crate::model) fn renamed<'a>(gguf: &'a Gguf, file: &'a [u8]) -> Result<Vec<FileTensor<'a>>> {
    let family = Family::of(gguf)?;
    let mut tensors = Vec::new();
    let experts = gguf.metadata.get(&format!("{}.expert_count", family.gguf)).and_then(Value::as_u64);
    for tensor in gguf.tensors() {
        // config.json has its factors.
        if tensor.name == "rope_freqs.weight" {
            continue;
        }
        let name = new_name(family, &tensor.name);
        match name.as_deref().and_then(|name| name.split_once(".experts.")) {
            Some((layer, module)) if tensor.shape.first().copied() == experts => {
                add_experts(tensor, (layer, module), file, &mut tensors);
            }
            _ => tensors.push(stored(
                tensor,
                name.map_or(Cow::Borrowed(tensor.name.as_str()), Cow::Owned),
                &tensor.shape,
                tensor.bytes(file),
                rearrangement(gguf, family, &tensor.name),
            )),
        }
    }
    Ok(tensors)
}

fn new_name(family: &Family, name: &str) -> Option<String> {
    let of = |names: &[(&str, &str)], module: &str| {
        names.iter().find(|(name, _)| *name == module).map(|(_, new)| (*new).to_owned())
    };
    let (stem, end) = name.rsplit_once('.')?;
    let Some((layer, module)) = stem.strip_prefix("blk.").and_then(|stem| stem.split_once('.')) else {
        return Some(format!("{}.{end}", of(&OUTER, stem)?));
    };
    layer.parse::<u32>().ok()?;
    let around = if family.norms_around { of(&AROUND, module) } else { None };
    let new = around.or_else(|| of(&INNER, module))?;
    let inner = if module.ends_with("_exps") { "mlp.experts." } else { "" };
    Some(format!("model.layers.{layer}.{inner}{new}.{end}"))
}

/// Adds the experts of a tensor `[experts, rows, columns]`, each by its own name.
fn add_experts<'a>(
    tensor: &'a GgufTensor,
    (layer, module): (&str, &str),
    file: &'a [u8],
    tensors: &mut Vec<FileTensor<'a>>,
) {
    let bytes = tensor.bytes(file);
    let count = tensor.shape.first().map_or(1, |&count| count as usize);
    let length = bytes.len() / count;
    // Rows are whole blocks, so an expert is, unless the tensor has one dimension.
    if tensor.shape.len() < 2 || count > 1 << 16 {
        tensors.push(stored(tensor, tensor.name.as_str().into(), &tensor.shape, bytes, Rearrangement::None));
        return;
    }
    for (index, bytes) in bytes.chunks_exact(length).enumerate() {
        let name = format!("{layer}.experts.{index}.{module}");
        tensors.push(stored(tensor, name.into(), &tensor.shape[1..], bytes, Rearrangement::None));
    }
}

fn stored<'a>(
    tensor: &'a GgufTensor,
    name: Cow<'a, str>,
    shape: &[u64],
    bytes: &'a [u8],
    rearrangement: Rearrangement,
) -> FileTensor<'a> {
    let shape = shape.iter().map(|&size| size as i64).collect();
    FileTensor { name, shape, numbers: FileNumbers::Blocks(tensor.kind, rearrangement), bytes }
}

fn rearrangement(gguf: &Gguf, family: &Family, name: &str) -> Rearrangement {
    // The first of these fields that the file has, a number or a list with one for each layer.
    let heads = |fields: &[&str]| {
        let value = |field: &&str| gguf.metadata.get(&format!("{}.attention.{field}", family.gguf));
        let value = fields.iter().find_map(value).map(|value| value.get(0).unwrap_or(value));
        let count = value.and_then(Value::as_f64).map(|count| count as i64);
        let rows = gguf.tensor(name).and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0) as i64;
        // Otherwise the tensor has a wrong shape, which the loader refuses.
        let fits = count.filter(|&count| count > 0 && rows % (2 * count) == 0);
        fits.map_or(Rearrangement::None, Rearrangement::Interleaved)
    };
    match name.rsplit('.').nth(1) {
        Some("attn_q") if family.interleaved => heads(&["head_count"]),
        Some("attn_k") if family.interleaved => heads(&["head_count_kv", "head_count"]),
        Some(module) if family.norms_around && module.ends_with("norm") => Rearrangement::PlusOne,
        _ => Rearrangement::None,
    }
}
