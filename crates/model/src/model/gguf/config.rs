//! The `config.json` that the metadata of a GGUF file describes, which the families then read.
//!
//! Every field of the architecture is used or refused: a field that is not known could change the
//! numbers of the model. What a file does not say is as in llama.cpp.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::header::{Gguf, with_file};
use crate::model::json_file::clipped;
use r1_base::error::{Error, Kind, Result};

/// A family of models.
pub(super) struct Family {
    /// Its name in llama.cpp, which begins the names of its fields.
    pub(super) gguf: &'static str,
    /// Its class in transformers, and `model_type`.
    class: &'static str,
    model_type: &'static str,
    /// Whether the rows of queries and keys are interleaved.
    pub(super) interleaved: bool,
    /// Whether norms are around the blocks, with 1 added to their weights.
    pub(super) norms_around: bool,
}

const fn family(gguf: &'static str, class: &'static str, model_type: &'static str) -> Family {
    Family { gguf, class, model_type, interleaved: false, norms_around: false }
}

const FAMILIES: [Family; 6] = [
    Family { interleaved: true, ..family("llama", "LlamaForCausalLM", "llama") },
    family("qwen2", "Qwen2ForCausalLM", "qwen2"),
    family("qwen3", "Qwen3ForCausalLM", "qwen3"),
    family("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"),
    Family { norms_around: true, ..family("gemma3", "Gemma3ForCausalLM", "gemma3_text") },
    Family { interleaved: true, ..family("smollm3", "SmolLM3ForCausalLM", "smollm3") },
];

impl Family {
    pub(super) fn of(gguf: &Gguf) -> Result<&'static Self> {
        let name = gguf.architecture()?;
        const { &FAMILIES }.iter().find(|family| family.gguf == name).ok_or_else(|| {
            let names = FAMILIES.map(|family| family.gguf).join(", ");
            Error::new(Kind::Model, format!("GGUF files of the architecture `{}` are not supported", clipped(name)))
                .hint(format!("supported are {names}; of other families r1 reads safetensors"))
        })
    }
}

impl Gguf {
    /// The `config.json` of the model at `path`.
    ///
    /// # Errors
    /// `Kind::Model` for an unsupported architecture or field.
    pub fn config(path: &Path) -> Result<Value> {
        with_file(path, |gguf, bytes| config(&gguf, bytes)).map_err(|error| error.at_path(path))
    }
}

/// The fields of an architecture that are not used yet.
struct MetadataFields {
    prefix: String,
    rest: Map<String, Value>,
}

impl MetadataFields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.rest.shift_remove(name)
    }

    fn wrong(&self, name: &str, value: &Value, why: &str) -> Error {
        let value = clipped(&value.to_string());
        Error::new(Kind::Model, format!("the metadata `{}{name}` is {value}; {why}", self.prefix))
    }

    fn required(&mut self, name: &str) -> Result<Value> {
        self.number(name)?
            .ok_or_else(|| Error::new(Kind::Model, format!("the metadata has no `{}{name}`", self.prefix)))
    }

    /// A number. A list with one value for all layers is that value.
    fn number(&mut self, name: &str) -> Result<Option<Value>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let first = match &value {
            Value::Array(values) => match values.first() {
                Some(first) if values.iter().all(|other| other == first) => first.clone(),
                _ => return Err(self.wrong(name, &value, "layers that differ in it are not supported")),
            },
            value => value.clone(),
        };
        if first.is_number() { Ok(Some(first)) } else { Err(self.wrong(name, &value, "it must be a number")) }
    }

    /// Refuses a value other than `expected`.
    fn only(&mut self, name: &str, expected: &Value) -> Result<()> {
        match self.number(name)? {
            Some(value) if value != *expected => {
                Err(self.wrong(name, &value, &format!("only {expected} is supported with the other fields")))
            }
            _ => Ok(()),
        }
    }
}

/// The `config.json` of a file, whose content is `file`.
fn config(gguf: &Gguf, file: &[u8]) -> Result<Value> {
    let family = Family::of(gguf)?;
    let prefix = format!("{}.", family.gguf);
    let inner = |(name, value): (&String, &Value)| Some((name.strip_prefix(&prefix)?.to_owned(), value.clone()));
    let mut fields = MetadataFields { rest: gguf.metadata.iter().filter_map(inner).collect(), prefix: prefix.clone() };
    let has = |name: &str| gguf.tensor(name).is_some();

    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([family.class]));
    config.insert("model_type".to_owned(), json!(family.model_type));
    for (field, name) in [
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("context_length", "max_position_embeddings"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ] {
        config.insert(name.to_owned(), fields.required(field)?);
    }
    let heads = config["num_attention_heads"].clone();
    config.insert("num_key_value_heads".to_owned(), fields.number("attention.head_count_kv")?.unwrap_or(heads));
    let head_dim = head_dim(&mut fields, &config)?;
    config.insert("head_dim".to_owned(), head_dim);
    let rows = gguf.tensor("token_embd.weight").and_then(|tensor| tensor.shape.first().copied());
    let rows = rows.ok_or_else(|| Error::new(Kind::Model, "there is no tensor token_embd.weight"))?;
    config.insert("vocab_size".to_owned(), json!(rows));
    fields.take("vocab_size");
    config.insert("tie_word_embeddings".to_owned(), json!(!has("output.weight")));
    config.insert("rope_theta".to_owned(), fields.number("rope.freq_base")?.unwrap_or_else(|| json!(10_000.0)));
    if let Some(scaling) = rope_scaling(&mut fields, gguf, file, &config)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    match family.gguf {
        "gemma3" => gemma3(&mut fields, &mut config)?,
        "qwen3moe" => qwen3_moe(&mut fields, &mut config)?,
        // Mixtral has the architecture of Llama.
        _ => fields.only("expert_count", &json!(0))?,
    }
    fields.only("expert_used_count", &json!(0))?;
    if family.gguf != "qwen2" {
        config.insert("attention_bias".to_owned(), json!(has("blk.0.attn_q.bias")));
    }
    if family.interleaved {
        config.insert("mlp_bias".to_owned(), json!(has("blk.0.ffn_gate.bias")));
    }
    if let Some((name, value)) = fields.rest.iter().next() {
        return Err(fields.wrong(name, value, "this field is not supported"));
    }
    for (field, name) in [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")] {
        if let Some(id) = gguf.metadata.get(&format!("tokenizer.ggml.{field}_token_id")) {
            config.insert(name.to_owned(), id.clone());
        }
    }
    config.insert("torch_dtype".to_owned(), json!("float32"));
    Ok(Value::Object(config))
}

/// The numbers of a head, which other fields repeat.
fn head_dim(fields: &mut MetadataFields, config: &Map<String, Value>) -> Result<Value> {
    let size = |name: &str| config[name].as_u64().unwrap_or(0);
    let default = size("hidden_size").checked_div(size("num_attention_heads")).unwrap_or(0);
    let head_dim = fields.number("attention.key_length")?.unwrap_or_else(|| json!(default));
    fields.only("attention.value_length", &head_dim)?;
    fields.only("rope.dimension_count", &head_dim)?;
    Ok(head_dim)
}

/// The field `rope_scaling`.
fn rope_scaling(
    fields: &mut MetadataFields,
    gguf: &Gguf,
    file: &[u8],
    config: &Map<String, Value>,
) -> Result<Option<Value>> {
    let factor = fields.number("rope.scaling.factor")?;
    let default = if factor.is_some() { "linear" } else { "none" };
    let kind = fields.take("rope.scaling.type").unwrap_or_else(|| json!(default));
    let original = fields.number("rope.scaling.original_context_length")?;
    // Whether the model was trained with the scaling has no effect.
    fields.take("rope.scaling.finetuned");
    if let Some(tensor) = gguf.tensor("rope_freqs.weight") {
        if kind != "none" || factor.is_some() {
            return Err(fields.wrong("rope.scaling.type", &kind, "there is a tensor rope_freqs.weight, too"));
        }
        let factors = tensor.kind.dequantise(tensor.bytes(file));
        return llama3(&factors, config).map(Some);
    }
    match (kind.as_str(), factor) {
        (Some("none"), _) => Ok(None),
        (Some("linear"), Some(factor)) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        (Some("yarn"), Some(factor)) => {
            let original = original.unwrap_or_else(|| config["max_position_embeddings"].clone());
            Ok(Some(json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original
            })))
        }
        _ => Err(fields.wrong("rope.scaling.type", &kind, "none, linear and yarn with a factor are supported")),
    }
}

/// The scaling of Llama 3.1 and later, of which a file has the divisors of the frequencies only: 1
/// for wavelengths below 2048 tokens, the factor above 8192, and a ramp between, in all models.
fn llama3(divisors: &[f32], config: &Map<String, Value>) -> Result<Value> {
    const ORIGINAL: f64 = 8192.0;
    let (theta, factor) = (config["rope_theta"].as_f64().unwrap_or(1.0), divisors.iter().copied().fold(1.0, f32::max));
    let is_same = divisors.iter().enumerate().all(|(at, &divisor)| {
        let wavelength = std::f64::consts::TAU * theta.powf(at as f64 / divisors.len() as f64);
        let ramp = ((ORIGINAL / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - ramp) / f64::from(factor) + ramp);
        (f64::from(divisor) / expected - 1.0).abs() < 1e-3
    });
    let is_whole = config["head_dim"].as_u64() == Some(2 * divisors.len() as u64);
    if !is_same || !is_whole || !factor.is_finite() {
        return Err(Error::new(
            Kind::Model,
            "the tensor rope_freqs.weight has other factors than Llama 3's scaling of rotary embeddings",
        )
        .hint("use the weights in safetensors, with the scaling in config.json"));
    }
    Ok(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL as u64
    }))
}

fn gemma3(fields: &mut MetadataFields, config: &mut Map<String, Value>) -> Result<()> {
    // The largest model, of 62 layers, has another scale of attention.
    let size = |name: &str| config[name].as_u64().unwrap_or(0);
    let scalar = if size("num_hidden_layers") == 62 {
        json!(size("hidden_size").checked_div(size("num_attention_heads")))
    } else {
        config["head_dim"].clone()
    };
    config.insert("query_pre_attn_scalar".to_owned(), scalar);
    config.insert("sliding_window".to_owned(), fields.required("attention.sliding_window")?);
    let pattern = fields.number("attention.sliding_window_pattern")?.unwrap_or_else(|| json!(6));
    config.insert("sliding_window_pattern".to_owned(), pattern);
    let local = fields.number("rope.freq_base_swa")?.unwrap_or_else(|| json!(10_000.0));
    config.insert("rope_local_base_freq".to_owned(), local);
    for (field, name) in [("attn", "attn_logit_softcapping"), ("final", "final_logit_softcapping")] {
        if let Some(value) = fields.take(&format!("{field}_logit_softcapping")) {
            config.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

fn qwen3_moe(fields: &mut MetadataFields, config: &mut Map<String, Value>) -> Result<()> {
    for (field, name) in [
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ] {
        config.insert(name.to_owned(), fields.required(field)?);
    }
    config.insert("norm_topk_prob".to_owned(), json!(true));
    Ok(())
}
