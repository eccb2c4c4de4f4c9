//! A Qwen2 model's shape, read from a Hugging Face `config.json`.
//!
//! Both forms are read: the classic one (`rope_theta`, `rope_scaling`) and the one transformers 5 writes
//! (`rope_parameters`). A field that would change the arithmetic in a way not built here is an error that names the
//! field. Fields that say nothing about the arithmetic (token ids, dates, generation defaults) are kept and written back.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result};

/// Shape and constants of a Qwen2 model (arXiv:2407.10671).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// V: rows of the embedding, special and padding rows included.
    pub vocab_size: usize,
    /// E.
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    /// H: query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// D: even; `hidden_size / num_attention_heads` unless given.
    pub head_dim: usize,
    /// Longest sequence the model was trained for; whoever builds prompts keeps to it, the arithmetic does not.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    /// Everything else in the file (`eos_token_id`, …), as it was.
    pub other: Map<String, Value>,
}

impl Default for Config {
    /// The shape of r1-nano, the embedded model.
    fn default() -> Self {
        Self {
            vocab_size: 512,
            hidden_size: 192,
            intermediate_size: 512,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 48,
            max_position_embeddings: 1024,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            other: Map::new(),
        }
    }
}

impl Config {
    /// Reads `config.json` in `dir`.
    ///
    /// Errors: `Kind::Model` with the path, for a missing file, bad JSON, another architecture, an unsupported field.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Error::io(Kind::Model, "read the model's config", &path, &error)
                .hint("a model is a directory with config.json, model.safetensors and tokenizer.json")
        })?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| Error::new(Kind::Model, format!("config.json is not JSON: {error}")).at_path(&path))?;
        Self::from_json(&value).map_err(|error| error.at_path(&path))
    }

    /// Reads and checks the parsed file.
    pub fn from_json(value: &Value) -> Result<Self> {
        let Value::Object(object) = value else {
            return Err(Error::new(Kind::Model, "config.json is not a JSON object"));
        };
        let mut fields = Fields(object.clone());
        fields.architecture()?;
        fields.refuse_unsupported()?;
        let hidden_size = fields.size("hidden_size", None)?;
        let num_attention_heads = fields.size("num_attention_heads", None)?;
        let num_hidden_layers = fields.size("num_hidden_layers", None)?;
        fields.sliding_window(num_hidden_layers)?;
        let config = Self {
            vocab_size: fields.size("vocab_size", None)?,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", None)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: fields.size("num_key_value_heads", Some(num_attention_heads))?,
            head_dim: fields.size("head_dim", Some(hidden_size / num_attention_heads.max(1)))?,
            max_position_embeddings: fields.size("max_position_embeddings", Some(32_768))?,
            rms_norm_eps: fields.number("rms_norm_eps", 1e-6)?,
            rope_theta: fields.rope()?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            initializer_range: fields.number("initializer_range", 0.02)?,
            other: fields.0,
        };
        config.check()?;
        Ok(config)
    }

    /// The file's content, in the classic form, which every version of transformers reads.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("architectures".to_owned(), json!(["Qwen2ForCausalLM"]));
        object.insert("model_type".to_owned(), json!("qwen2"));
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            object.insert(name.to_owned(), json!(value));
        }
        for (name, value) in [
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
            ("initializer_range", self.initializer_range),
        ] {
            object.insert(name.to_owned(), json!(value));
        }
        object.insert("hidden_act".to_owned(), json!("silu"));
        object.insert("use_sliding_window".to_owned(), json!(false));
        object.insert("tie_word_embeddings".to_owned(), json!(self.tie_word_embeddings));
        for (name, value) in &self.other {
            object.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Value::Object(object)
    }

    /// Checks that the shape can be computed at all.
    pub fn check(&self) -> Result<()> {
        let bad = |field: &str, why: String| Err(Error::new(Kind::Model, format!("`{field}` {why}")));
        for (field, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 || value > 1 << 30 {
                return bad(field, format!("is {value}; it must be between 1 and 2^30"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return bad(
                "num_key_value_heads",
                format!("is {}, which does not divide {} heads", self.num_key_value_heads, self.num_attention_heads),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("head_dim", format!("is {}; rotary embeddings need an even one", self.head_dim));
        }
        for (field, value) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            if !(value.is_finite() && value > 0.0) {
                return bad(field, format!("is {value}; it must be above 0"));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return bad("initializer_range", format!("is {}; it must be 0 or more", self.initializer_range));
        }
        Ok(())
    }
}

/// The fields not read yet; what is read is taken out, so that the rest can be kept.
struct Fields(Map<String, Value>);

impl Fields {
    /// A field that is there and not null.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    fn wrong(name: &str, value: &Value, expected: &str) -> Error {
        Error::new(Kind::Model, format!("`{name}` is {value} in config.json; {expected}"))
    }

    fn size(&mut self, name: &str, default: Option<usize>) -> Result<usize> {
        match (self.take(name), default) {
            (Some(value), _) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(|| Self::wrong(name, &value, "it must be a whole number")),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(Error::new(Kind::Model, format!("`{name}` is missing in config.json"))),
        }
    }

    fn number(&mut self, name: &str, default: f64) -> Result<f64> {
        match self.take(name) {
            Some(value) => value.as_f64().ok_or_else(|| Self::wrong(name, &value, "it must be a number")),
            None => Ok(default),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name) {
            Some(value) => value.as_bool().ok_or_else(|| Self::wrong(name, &value, "it must be true or false")),
            None => Ok(false),
        }
    }

    /// `architectures` and `model_type` must both mean Qwen2, as far as they are given.
    fn architecture(&mut self) -> Result<()> {
        let unsupported = |name: &str, value: &Value| {
            Self::wrong(name, value, "only Qwen2ForCausalLM is supported")
                .hint("Qwen2 and Qwen2.5 text models have this architecture")
        };
        let architectures = self.take("architectures");
        let model_type = self.take("model_type");
        if architectures.is_none() && model_type.is_none() {
            return Err(Error::new(Kind::Model, "config.json names neither `architectures` nor `model_type`"));
        }
        if let Some(value) = architectures.filter(|value| *value != json!(["Qwen2ForCausalLM"])) {
            return Err(unsupported("architectures", &value));
        }
        if let Some(value) = model_type.filter(|value| *value != json!("qwen2")) {
            return Err(unsupported("model_type", &value));
        }
        Ok(())
    }

    /// Fields at whose only supported value the arithmetic is plain Qwen2.
    fn refuse_unsupported(&mut self) -> Result<()> {
        if let Some(value) = self.take("hidden_act").filter(|value| *value != json!("silu")) {
            return Err(Self::wrong("hidden_act", &value, "only \"silu\" is supported"));
        }
        for name in ["attention_dropout", "embd_pdrop", "resid_pdrop", "hidden_dropout"] {
            if let Some(value) = self.take(name).filter(|value| value.as_f64() != Some(0.0)) {
                return Err(Self::wrong(name, &value, "dropout is not supported"));
            }
        }
        if let Some(value) = self.take("partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
            return Err(Self::wrong("partial_rotary_factor", &value, "only 1.0 is supported"));
        }
        if let Some(value) = self.take("mlp_bias").filter(|value| *value != json!(false)) {
            return Err(Self::wrong("mlp_bias", &value, "only false is supported"));
        }
        for name in ["attention_bias", "qkv_bias"] {
            if let Some(value) = self.take(name).filter(|value| *value != json!(true)) {
                return Err(Self::wrong(name, &value, "Qwen2 has biases on q, k and v"));
            }
        }
        for name in [
            "quantization_config",
            "num_experts",
            "num_local_experts",
            "vision_config",
            "final_logit_softcapping",
            "attn_logit_softcapping",
            "logit_scale",
            "residual_multiplier",
            "embedding_multiplier",
        ] {
            if let Some(value) = self.take(name) {
                return Err(Self::wrong(name, &value, "this is not supported"));
            }
        }
        Ok(())
    }

    /// Sliding-window attention is refused where a layer would use it.
    fn sliding_window(&mut self, layers: usize) -> Result<()> {
        let window = self.take("sliding_window");
        let used = self.flag("use_sliding_window")?;
        let first = self.size("max_window_layers", Some(28))?;
        if let Some(types) = self.take("layer_types") {
            let full = types.as_array().is_some_and(|all| all.iter().all(|kind| kind == "full_attention"));
            if !full {
                return Err(Self::wrong("layer_types", &types, "only \"full_attention\" is supported"));
            }
        } else if used && window.is_some() && first < layers {
            return Err(Self::wrong("use_sliding_window", &json!(true), "sliding-window attention is not supported"));
        }
        Ok(())
    }

    /// Theta, from either form; every kind of scaling is refused.
    fn rope(&mut self) -> Result<f64> {
        let mut theta = self.take("rope_theta").map(|value| ("rope_theta", value));
        for name in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.take(name) else { continue };
            let Value::Object(fields) = &value else {
                return Err(Self::wrong(name, &value, "it must be an object"));
            };
            for (key, field) in fields {
                match key.as_str() {
                    "rope_type" | "type" if field == "default" => {}
                    "rope_theta" => theta = Some(("rope_parameters.rope_theta", field.clone())),
                    "partial_rotary_factor" if field.as_f64() == Some(1.0) => {}
                    _ if field.is_null() => {}
                    _ => {
                        let place = format!("{name}.{key}");
                        return Err(Self::wrong(&place, field, "only plain rotary embeddings are supported"));
                    }
                }
            }
        }
        match theta {
            Some((name, value)) => value.as_f64().ok_or_else(|| Self::wrong(name, &value, "it must be a number")),
            None => Ok(10_000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn classic() -> Value {
        json!({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "rope_scaling": null,
            "tie_word_embeddings": true, "use_sliding_window": false, "eos_token_id": 2,
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut config = classic();
        config[name] = value;
        config
    }

    fn refusal(name: &str, value: Value) -> String {
        Config::from_json(&with(name, value)).unwrap_err().message
    }

    #[test]
    fn both_forms_mean_the_same() {
        let mut new = classic();
        for gone in ["rope_theta", "rope_scaling"] {
            new.as_object_mut().unwrap().remove(gone);
        }
        new["architectures"] = Value::Null;
        new["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1_000_000.0});
        new["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
        let classic = Config::from_json(&classic()).unwrap();
        assert_eq!(Config::from_json(&new).unwrap(), classic);
        assert_eq!((classic.head_dim, classic.rope_theta), (16, 1e6));
        assert_eq!(classic.other["eos_token_id"], 2);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let config = Config::from_json(&classic()).unwrap();
        let written = config.to_json();
        assert_eq!(written["eos_token_id"], 2);
        assert_eq!(Config::from_json(&written).unwrap(), config);
        Config::default().check().unwrap();
        assert_eq!(Config::from_json(&Config::default().to_json()).unwrap(), Config::default());
    }

    #[test]
    fn unsupported_fields_are_named() {
        for (name, value) in [
            ("architectures", json!(["LlamaForCausalLM"])),
            ("model_type", json!("qwen3")),
            ("hidden_act", json!("gelu")),
            ("use_sliding_window", json!("yes")),
            ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
            ("attention_dropout", json!(0.1)),
            ("quantization_config", json!({"bits": 4})),
            ("num_key_value_heads", json!(3)),
            ("head_dim", json!(15)),
            ("hidden_size", json!(-1)),
            ("vocab_size", json!(0)),
            ("rms_norm_eps", json!("small")),
        ] {
            let message = refusal(name, value);
            assert!(message.contains(&format!("`{name}`")), "{message}");
        }
        let scaled = refusal("rope_scaling", json!({"type": "yarn", "factor": 4.0}));
        assert!(scaled.contains("`rope_scaling.type` is \"yarn\""), "{scaled}");
        let mut window = with("use_sliding_window", json!(true));
        window["sliding_window"] = json!(128);
        window["max_window_layers"] = json!(1);
        assert!(Config::from_json(&window).unwrap_err().message.contains("`use_sliding_window`"));
        window["max_window_layers"] = json!(3);
        assert!(Config::from_json(&window).is_ok());
        let mut missing = classic();
        missing.as_object_mut().unwrap().remove("hidden_size");
        assert!(Config::from_json(&missing).unwrap_err().message.contains("`hidden_size` is missing"));
    }
}
