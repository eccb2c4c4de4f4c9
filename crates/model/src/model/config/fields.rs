//! Reads the fields of a `config.json`. Fields that are not read must be known to have no effect.

use serde_json::{Map, Value};

use crate::model::json_file::clipped;
use r1_base::error::{Error, Kind, Result};

/// Fields without effect on a forward pass: generation defaults, past training, bookkeeping.
/// Token ids (`…_token_id`) and names that start with `_` are not listed.
const INERT: &str = "
    architectures model_type dtype torch_dtype transformers_version use_cache auto_map
    attn_implementation cache_implementation pretraining_tp gradient_checkpointing use_bfloat16
    output_attentions output_hidden_states return_dict return_dict_in_generate output_scores
    output_router_logits num_nextn_predict_layers num_mtp_layers router_aux_loss_coef
    keys_to_ignore_at_inference torchscript is_decoder chunk_size_feed_forward
    cross_attention_hidden_size task_specific_params id2label label2id problem_type
    finetuning_task tokenizer_class prefix tf_legacy_loss pruned_heads model_name temperature
    top_k top_p min_p typical_p do_sample max_length max_new_tokens min_length num_beams
    num_beam_groups num_return_sequences repetition_penalty length_penalty diversity_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping bad_words_ids
    suppress_tokens begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values
    unsloth_fixed unsloth_version transformers.js_config
";

/// The fields not read yet.
pub(in crate::model) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// Takes a field that is present and not null.
    pub(in crate::model) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field and checks its type.
    pub(in crate::model) fn take_if(&mut self, name: &str, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        if self.0.get(name).is_some_and(fits) { self.take(name) } else { None }
    }

    /// An unread field.
    pub(in crate::model) fn get(&self, name: &str) -> Option<Value> {
        self.0.get(name).filter(|value| !value.is_null()).cloned()
    }

    /// Whether an unread field is present, even if null.
    pub(in crate::model) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(in crate::model) fn wrong(name: &str, value: &Value, expected: &str) -> Error {
        let shown = clipped(&value.to_string());
        Error::new(Kind::Model, format!("`{name}` is {shown} in config.json; {expected}"))
    }

    pub(in crate::model) fn missing(name: &str) -> Error {
        Error::new(Kind::Model, format!("`{name}` is missing in config.json"))
    }

    /// A whole number; an error if it is missing without a default.
    pub(in crate::model) fn size(&mut self, name: &str, default: Option<usize>) -> Result<usize> {
        match self.optional_size(name)? {
            Some(size) => Ok(size),
            None => default.ok_or_else(|| Self::missing(name)),
        }
    }

    pub(in crate::model) fn optional_size(&mut self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let size = value.as_u64().and_then(|number| usize::try_from(number).ok());
        size.map(Some).ok_or_else(|| Self::wrong(name, &value, "it must be a whole number"))
    }

    /// A whole number that can have several names, which must agree.
    pub(in crate::model) fn same_size(&mut self, names: &[&str], default: usize) -> Result<usize> {
        let mut size = None;
        for name in names {
            let Some(other) = self.optional_size(name)? else { continue };
            if size.is_some_and(|size| size != other) {
                return Err(Self::wrong(name, &other.into(), &format!("`{}` has another value", names[0])));
            }
            size = Some(other);
        }
        Ok(size.unwrap_or(default))
    }

    /// Sets the first of the fields if none of them has a value.
    pub(in crate::model) fn set_default(&mut self, names: &[&str], value: Value) {
        if names.iter().all(|name| self.0.get(*name).is_none_or(Value::is_null)) {
            self.0.insert(names[0].to_owned(), value);
        }
    }

    pub(in crate::model) fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| Self::wrong(name, &value, "it must be a number"))
    }

    pub(in crate::model) fn flag(&mut self, name: &str, default: bool) -> Result<bool> {
        let Some(value) = self.take(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| Self::wrong(name, &value, "it must be true or false"))
    }

    /// Refuses every value of a field but one.
    pub(in crate::model) fn only(&mut self, name: &str, accepted: impl Into<Value>) -> Result<()> {
        let accepted = accepted.into();
        let same = |value: &Value| match (value.as_f64(), accepted.as_f64()) {
            (Some(value), Some(accepted)) => (value - accepted).abs() < f64::EPSILON,
            _ => *value == accepted,
        };
        match self.take(name).filter(|value| !same(value)) {
            Some(value) => Err(Self::wrong(name, &value, &format!("only {accepted} is supported"))),
            None => Ok(()),
        }
    }

    /// A list with one entry per layer, if present.
    pub(in crate::model) fn per_layer(&mut self, name: &str, layers: usize) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(all)) if all.len() == layers => Ok(Some(all)),
            Some(other) => {
                Err(Self::wrong(name, &other, &format!("it must be a list with an entry for each of {layers} layers")))
            }
        }
    }

    /// Fails on the first unread field that is not known to have no effect.
    pub(super) fn finish(self) -> Result<()> {
        let inert = |name: &str| {
            INERT.split_whitespace().any(|inert| inert == name)
                || name.starts_with('_')
                || ["_token_id", "_token_index", "_token_ids"].iter().any(|end| name.ends_with(end))
        };
        match self.0.iter().find(|(name, value)| !value.is_null() && !inert(name)) {
            None => Ok(()),
            Some((name, value)) if name == "quantization_config" => {
                Err(Self::wrong(name, value, "quantised weights are not read")
                    .hint("download the model in f32, bf16 or f16; policy.dtype sets the type of the computation"))
            }
            Some((name, value)) => {
                Err(Self::wrong(name, value, "this field is not known here and may change what the model computes")
                    .hint("if it does not affect the forward pass, remove it from config.json"))
            }
        }
    }
}
