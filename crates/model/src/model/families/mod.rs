//! One file per architecture, which reads its `config.json`.
//!
//! Common code is here. A missing field has the default of transformers.

mod gemma3;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mistral;
mod olmo;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;
mod vision_language;

use serde_json::{Map, Value, json};

use super::config::{
    Activation, Biases, Config, ExpertStorage, Experts, Fields, Joint, LayerKind, Norms, Rope, Router, SharedExpert,
};
use r1_base::error::{Error, Kind, Result};

pub use vision_language::VisionPart;
pub(super) use vision_language::{text_config, vision_part};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Llama,
    Mistral,
    Gemma3,
    SmolLm3,
    GptOss,
    Olmo2,
    Olmo3,
    Glm4Moe,
    Qwen2Moe,
    Granite,
    Ministral,
    Glm4,
    Phi3,
    Qwen35,
    Qwen35Moe,
    Qwen3Next,
    Lfm2,
    Qwen25Vl,
    Qwen3Vl,
}

/// Architecture, class in transformers, `model_type`, reader of the config.
type Family = (Architecture, &'static str, &'static str, fn(Architecture, &mut Fields) -> Result<Config>);

const ALL: &[Family] = &[
    (Architecture::Qwen2, "Qwen2ForCausalLM", "qwen2", qwen2::read),
    (Architecture::Qwen3, "Qwen3ForCausalLM", "qwen3", qwen3::read),
    (Architecture::Qwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe::read),
    (Architecture::Llama, "LlamaForCausalLM", "llama", llama::read),
    (Architecture::Mistral, "MistralForCausalLM", "mistral", mistral::read),
    (Architecture::Gemma3, "Gemma3ForCausalLM", "gemma3_text", gemma3::read),
    (Architecture::SmolLm3, "SmolLM3ForCausalLM", "smollm3", smollm3::read),
    (Architecture::GptOss, "GptOssForCausalLM", "gpt_oss", gpt_oss::read),
    (Architecture::Olmo2, "Olmo2ForCausalLM", "olmo2", olmo::read),
    (Architecture::Olmo3, "Olmo3ForCausalLM", "olmo3", olmo::read),
    (Architecture::Glm4Moe, "Glm4MoeForCausalLM", "glm4_moe", glm4_moe::read),
    (Architecture::Qwen2Moe, "Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe::read),
    (Architecture::Granite, "GraniteForCausalLM", "granite", granite::read),
    (Architecture::Ministral, "MinistralForCausalLM", "ministral", mistral::read),
    (Architecture::Glm4, "Glm4ForCausalLM", "glm4", glm4::read),
    (Architecture::Phi3, "Phi3ForCausalLM", "phi3", phi3::read),
    (Architecture::Qwen35, "Qwen3_5ForCausalLM", "qwen3_5_text", qwen3_5::read),
    (Architecture::Qwen35Moe, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", qwen3_5::read_moe),
    (Architecture::Qwen3Next, "Qwen3NextForCausalLM", "qwen3_next", qwen3_next::read),
    (Architecture::Lfm2, "Lfm2ForCausalLM", "lfm2", lfm2::read),
    (Architecture::Qwen25Vl, "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", qwen2::read),
    (Architecture::Qwen3Vl, "Qwen3VLForConditionalGeneration", "qwen3_vl_text", qwen3::read),
];

/// Parts of unsupported families that no supported family has.
const MISSING: &[(&str, &str)] = &[
    ("deepseek", "multi-head latent attention (MLA)"),
    ("kimi", "multi-head latent attention (MLA)"),
    ("gemma2", "soft caps of attention scores and logits"),
    ("gemma3n", "embeddings of each layer"),
    ("gemma4", "embeddings of each layer"),
    ("lfm2moe", "experts beside short convolutions"),
    ("llama4", "attention in chunks"),
    ("mamba", "state-space layers"),
    ("ministral3", "attention scores that are scaled by position"),
    ("mistral3", "attention scores that are scaled by position"),
    ("nemotronh", "state-space layers"),
];

impl Architecture {
    fn entry(self) -> &'static Family {
        ALL.iter().find(|(family, ..)| *family == self).unwrap_or(&ALL[0])
    }

    /// Class in transformers, as in `architectures`.
    pub fn class(self) -> &'static str {
        self.entry().1
    }

    /// The name in `model_type`.
    pub fn model_type(self) -> &'static str {
        self.entry().2
    }

    /// Names of the checkpoint within a layer that differ from Llama's: Llama's, this family's.
    pub(super) fn renamed(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::GptOss => &[("mlp.gate", "mlp.router")],
            Self::Lfm2 => &[
                ("input_layernorm", "operator_norm"),
                ("post_attention_layernorm", "ffn_norm"),
                ("self_attn.q_norm", "self_attn.q_layernorm"),
                ("self_attn.k_norm", "self_attn.k_layernorm"),
                ("self_attn.o_proj", "self_attn.out_proj"),
                ("mlp.gate_proj", "feed_forward.w1"),
                ("mlp.up_proj", "feed_forward.w3"),
                ("mlp.down_proj", "feed_forward.w2"),
            ],
            Self::Glm4 => &[
                ("post_attention_layernorm", "post_self_attn_layernorm"),
                ("pre_feedforward_layernorm", "post_attention_layernorm"),
                ("post_feedforward_layernorm", "post_mlp_layernorm"),
            ],
            _ => &[],
        }
    }

    /// The checkpoint's name of the norm after the last layer.
    pub(super) fn last_norm(self) -> &'static str {
        if self == Self::Lfm2 { "model.embedding_norm.weight" } else { "model.norm.weight" }
    }

    /// The checkpoint's name of a projection, from its name in Llama. A name that differs includes
    /// the block, because two blocks of LFM2 have an `out_proj`.
    pub(super) fn projection(self, name: &str) -> &str {
        let is_same = |ours: &str| ours.rsplit('.').next() == Some(name);
        self.renamed().iter().find(|(ours, _)| is_same(ours)).map_or(name, |(_, theirs)| *theirs)
    }

    /// Architecture by the fields `architectures` and `model_type`, at least one of which must be
    /// present.
    pub(super) fn of(object: &Map<String, Value>) -> Result<Self> {
        let unsupported = |name: &str, value: &Value| {
            let classes: Vec<&str> = ALL.iter().map(|(_, class, ..)| *class).collect();
            let plain = value.to_string().to_lowercase().replace('_', "");
            let missing = MISSING.iter().find(|(family, _)| plain.contains(family));
            let missing = missing.map_or_else(String::new, |(_, part)| format!(": it has {part}"));
            Fields::wrong(name, value, &format!("this architecture is not supported{missing}"))
                .hint(format!("supported are {}", classes.join(", ")))
        };
        let present = |name: &str| object.get(name).filter(|value| !value.is_null());
        let (classes, kind) = (present("architectures"), present("model_type"));
        let find = |name: &str, value: &Value, same: &dyn Fn(&str, &str) -> bool| {
            let family = ALL.iter().find(|(_, class, kind, _)| same(class, kind)).map(|(family, ..)| *family);
            family.ok_or_else(|| unsupported(name, value))
        };
        let by_class =
            classes.map(|value| find("architectures", value, &|class, _| *value == json!([class]))).transpose()?;
        let by_kind = kind.map(|value| find("model_type", value, &|_, kind| value == kind)).transpose()?;
        match (by_class, by_kind) {
            (Some(class), Some(kind)) if class != kind => Err(Error::new(
                Kind::Model,
                format!("`architectures` is {} but `model_type` is {:?}", class.class(), kind.model_type()),
            )),
            (Some(family), _) | (None, Some(family)) => Ok(family),
            (None, None) => Err(Error::new(Kind::Model, "config.json names neither `architectures` nor `model_type`")),
        }
    }
}

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    (architecture.entry().3)(architecture, fields)
}

/// Changes the written content of `config.json` to what is read again as this config.
pub(super) fn write(config: &Config, object: &mut Map<String, Value>) {
    match config.architecture {
        Architecture::Phi3 => phi3::write(config, object),
        Architecture::Lfm2 => lfm2::write(object),
        _ => {}
    }
    if let Some(vision) = &config.vision {
        *object = vision.with_text(std::mem::take(object));
    }
}

/// Defaults of a family for missing fields.
struct Defaults {
    theta: f64,
    max_position: usize,
    /// `hidden_size / num_attention_heads` if `None`.
    head_dim: Option<usize>,
    /// The field is required if `None`.
    intermediate_size: Option<usize>,
    /// Part of each head that is rotated; the whole head, and no other value of the field, if
    /// `None`.
    partial: Option<f64>,
    tied: bool,
    rms_norm_eps: f64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            theta: 10_000.0,
            max_position: 32_768,
            head_dim: None,
            intermediate_size: None,
            partial: None,
            tied: false,
            rms_norm_eps: 1e-6,
        }
    }
}

/// Sizes and constants that every family has, for layers without biases, windows or experts.
///
/// `rope` reads the rotary embeddings, given the default of theta and `max_position_embeddings`.
fn common(
    architecture: Architecture,
    fields: &mut Fields,
    defaults: &Defaults,
    rope: impl FnOnce(&mut Fields, f64, usize) -> Result<Vec<Rope>>,
) -> Result<Config> {
    let hidden_size = fields.size("hidden_size", None)?;
    let num_attention_heads = fields.size("num_attention_heads", None)?;
    let max_position = fields.size("max_position_embeddings", Some(defaults.max_position))?;
    let num_hidden_layers = fields.size("num_hidden_layers", None)?;
    if num_hidden_layers > 1 << 16 {
        return Err(Fields::wrong("num_hidden_layers", &json!(num_hidden_layers), "it must be at most 65536"));
    }
    let head_dim = defaults.head_dim.unwrap_or(hidden_size / num_attention_heads.max(1));
    for name in ["attention_dropout", "embd_pdrop", "resid_pdrop", "hidden_dropout"] {
        fields.only(name, 0.0)?;
    }
    for name in ["is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", "use_mrope"] {
        fields.only(name, false)?;
    }
    Ok(Config {
        architecture,
        vocab_size: fields.size("vocab_size", None)?,
        hidden_size,
        intermediate_size: fields.size("intermediate_size", defaults.intermediate_size)?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: fields.size("num_key_value_heads", Some(num_attention_heads))?,
        head_dim: fields.size("head_dim", Some(head_dim))?,
        max_position_embeddings: max_position,
        rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps),
        tie_word_embeddings: fields.flag("tie_word_embeddings", defaults.tied)?,
        initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
        biases: Biases::default(),
        ropes: rope(fields, defaults.theta, max_position)?,
        ..Config::default()
    })
}

/// [`common`] for families with one rotary embedding for all layers.
fn uniform(architecture: Architecture, fields: &mut Fields, defaults: &Defaults) -> Result<Config> {
    fields.only("hidden_act", "silu")?;
    common(architecture, fields, defaults, |fields, theta, max| {
        let default = Rope { theta, partial: defaults.partial.unwrap_or(1.0), ..Rope::default() };
        let rope = Rope::read(fields, &default, max)?;
        if defaults.partial.is_none() && rope.partial < 1.0 {
            return Err(Fields::wrong("partial_rotary_factor", &json!(rope.partial), "only 1.0 is supported"));
        }
        Ok(vec![rope])
    })
}

/// The rotary embeddings of full and of sliding layers, with the default of theta of each.
fn layered_ropes(fields: &mut Fields, [theta, local]: [f64; 2], max_position: usize) -> Result<Vec<Rope>> {
    let with_theta = |theta| Rope { theta, ..Rope::default() };
    let nested = |value: &Value| value.get("full_attention").is_some() || value.get("sliding_attention").is_some();
    let Some(value) = fields.take_if("rope_parameters", nested) else {
        // transformers merges `rope_scaling` into `rope_type = "default"`, so the old key `type`
        // has no effect.
        let untyped = |value: &Value| value.is_object() && value.get("rope_type").is_none_or(Value::is_null);
        fields.take_if("rope_scaling", untyped);
        fields.only("partial_rotary_factor", 1.0)?;
        let full = Rope::read(fields, &with_theta(theta), max_position)?;
        return Ok(vec![full, with_theta(local)]);
    };
    let outer = fields.number("rope_theta")?.unwrap_or(theta);
    if let Some(scaling) = fields.take("rope_scaling") {
        return Err(Fields::wrong("rope_scaling", &scaling, "`rope_parameters` is given too"));
    }
    let mut both = Vec::new();
    for (name, theta) in [("full_attention", outer), ("sliding_attention", local)] {
        both.push(match value.get(name).filter(|value| !value.is_null()) {
            Some(parameters) => {
                let table = format!("rope_parameters.{name}");
                Rope::from_value(&table, parameters, &with_theta(theta), [max_position; 2])?
            }
            None => with_theta(theta),
        });
    }
    if let Some(rope) = both.iter().find(|rope| rope.partial < 1.0) {
        return Err(Fields::wrong("partial_rotary_factor", &json!(rope.partial), "only 1.0 is supported"));
    }
    let is_layer_type = |name: &str| ["full_attention", "sliding_attention"].contains(&name);
    if let Some((name, value)) =
        value.as_object().and_then(|object| object.iter().find(|(name, _)| !is_layer_type(name)))
    {
        return Err(Fields::wrong(&format!("rope_parameters.{name}"), value, "this field is not known here"));
    }
    Ok(both)
}

/// Which layers are of the kind `special` and which are `full_attention`, by `layer_types`, or else
/// by the function `default` of the layer index.
fn special_layers(
    fields: &mut Fields,
    layers: usize,
    [special, accepted]: [&str; 2],
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let types = fields.per_layer("layer_types", layers)?;
    let is_special = |index: usize| match types.as_ref().and_then(|types| types.get(index)) {
        None => Ok(default(index)),
        Some(kind) if kind == special => Ok(true),
        Some(kind) if kind == "full_attention" => Ok(false),
        Some(kind) => Err(Fields::wrong("layer_types", kind, &format!("{accepted} are supported"))),
    };
    (0..layers).map(is_special).collect()
}

/// Sets the windows of the layers by `layer_types`, or else by the function `sliding` of the layer
/// index.
fn windows(
    fields: &mut Fields,
    config: &mut Config,
    window: Option<usize>,
    sliding: impl Fn(usize) -> bool,
) -> Result<()> {
    let kind = json!("sliding_attention");
    if window.is_none()
        && fields.get("layer_types").is_some_and(|types| types.as_array().is_some_and(|types| types.contains(&kind)))
    {
        return Err(Fields::wrong("layer_types", &kind, "but `sliding_window` is not used"));
    }
    let names = ["sliding_attention", "full_attention and sliding_attention"];
    let slides = special_layers(fields, config.num_hidden_layers, names, sliding)?;
    if window.is_some() && slides.contains(&true) {
        let layer = |slides| LayerKind { window: window.filter(|_| slides), ..LayerKind::default() };
        config.layers = slides.into_iter().map(layer).collect();
    }
    Ok(())
}

/// The experts of Qwen's mixtures, with the defaults of their number, of those per token, and of
/// their inner size.
fn softmax_experts(
    fields: &mut Fields,
    config: &mut Config,
    [count, chosen, inner]: [usize; 3],
    shared: Option<SharedExpert>,
) -> Result<()> {
    config.experts = Some(Experts {
        count: fields.same_size(&["num_experts", "num_local_experts"], count)?,
        chosen: fields.size("num_experts_per_tok", Some(chosen))?,
        intermediate_size: fields.size("moe_intermediate_size", Some(inner))?,
        normalised: fields.flag("norm_topk_prob", false)?,
        router: Router::Softmax,
        shared,
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
    config.layers.resize(config.num_hidden_layers, LayerKind::default());
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.sparse = !listed.contains(&json!(index)) && (index + 1).is_multiple_of(every);
    }
    Ok(())
}

/// Sets the same window for all layers. transformers does not read `layer_types` of these families,
/// so other types are refused.
fn same_window(fields: &mut Fields, config: &mut Config, window: Option<usize>) -> Result<()> {
    let types = fields.get("layer_types").unwrap_or_default();
    windows(fields, config, window, |_| window.is_some())?;
    if (0..config.num_hidden_layers).any(|layer| config.layer(layer).window != window) {
        return Err(Fields::wrong("layer_types", &types, "all layers of this family have the window `sliding_window`"));
    }
    Ok(())
}

/// The window of the Qwen family: `sliding_window` if `use_sliding_window`.
fn optional_window(fields: &mut Fields, default: Option<usize>) -> Result<Option<usize>> {
    let is_set = fields.has("sliding_window");
    let window = fields.optional_size("sliding_window")?.or(default.filter(|_| !is_set));
    let used = fields.flag("use_sliding_window", false)?;
    Ok(window.filter(|_| used))
}
