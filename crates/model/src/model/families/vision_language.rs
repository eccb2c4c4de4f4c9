//! Models that see images: the parts of their `config.json`.
//!
//! The fields of the text model are in `text_config`, or beside `vision_config` in files of older
//! versions of transformers. They are read like the file of a text model.

use serde_json::{Map, Value, json};

use super::super::config::Sections;
use super::super::vision::config::{TILES, TowerKind, VisionConfig};
use super::{Config, Fields};
use r1_base::error::{Error, Kind, Result};

/// A kind of model that sees images.
struct ModelKind {
    model_type: &'static str,
    /// Its class, which its text model has too if there is no other one.
    class: &'static str,
    /// The class of its text model alone, if r1 reads checkpoints of it.
    text_class: Option<&'static str>,
    /// `mrope_section` if it is missing, in models whose sections always alternate.
    sections: Option<[usize; 3]>,
    /// Whether names of tensors in its checkpoints have the parts of the module tree.
    full_names: bool,
}

impl ModelKind {
    fn text_class(&self) -> &'static str {
        self.text_class.unwrap_or(self.class)
    }

    /// Whether it reads tiles of images, and its text model is a Llama.
    fn is_tiled(&self) -> bool {
        self.text_class == Some(LLAMA)
    }

    /// `model_type` of the text model.
    fn text_type(&self) -> String {
        if self.is_tiled() { "llama".to_owned() } else { format!("{}_text", self.model_type) }
    }
}

const LLAMA: &str = "LlamaForCausalLM";

const fn kind(model_type: &'static str, class: &'static str) -> ModelKind {
    ModelKind { model_type, class, text_class: None, sections: None, full_names: true }
}

const fn tiled(model_type: &'static str, class: &'static str) -> ModelKind {
    ModelKind { text_class: Some(LLAMA), ..kind(model_type, class) }
}

const fn qwen3_5(model_type: &'static str, class: &'static str, text_class: &'static str) -> ModelKind {
    ModelKind { text_class: Some(text_class), sections: Some([11, 11, 10]), ..kind(model_type, class) }
}

const KINDS: &[ModelKind] = &[
    ModelKind { full_names: false, ..kind("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration") },
    ModelKind { sections: Some([24, 20, 20]), ..kind("qwen3_vl", "Qwen3VLForConditionalGeneration") },
    qwen3_5("qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    qwen3_5("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    tiled("idefics3", "Idefics3ForConditionalGeneration"),
    tiled("smolvlm", "SmolVLMForConditionalGeneration"),
];

/// Fields about images.
const IMAGES: &[&str] = &[
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
    "scale_factor",
];

/// Fields of training code in `text_config` of Idefics3, which transformers does not read.
const WITHOUT_EFFECT: &[&str] = &[
    "is_llama_config",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "qk_layer_norms",
    "rope_interleaved",
    "transformers.js_config",
    "use_reentrant_checkpointing",
    "use_resampler",
];

/// The part of a model that sees images.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionPart {
    pub tower: VisionConfig,
    /// The token that stands for an image in a text.
    pub image_token: u32,
    /// The fields of the file beside `text_config`.
    fields: Map<String, Value>,
    /// The names of `fields` that `text_config` does not have.
    outer_only: Vec<String>,
    /// Whether the fields of the text model are in `text_config`.
    nested: bool,
    /// See [`ModelKind`].
    sections: Option<[usize; 3]>,
    /// Whether names of tensors in its checkpoints have the parts of the module tree, such as
    /// `model.language_model.`; otherwise they begin with `model.` and `visual.`.
    pub(in crate::model) full_names: bool,
}

fn kind_of(object: &Map<String, Value>) -> Option<&'static ModelKind> {
    let model_type = object.get("model_type").and_then(Value::as_str).unwrap_or_default();
    KINDS.iter().find(|kind| kind.model_type == model_type)
}

/// The config of the text model in the config of a model that sees images; `None` for others.
pub(in crate::model) fn text_config(object: &Map<String, Value>) -> Result<Option<Map<String, Value>>> {
    let Some(kind) = kind_of(object) else { return Ok(None) };
    let classes = [kind.class.to_owned(), kind.class.replace("ForConditionalGeneration", "ForCausalLM")];
    if let Some(other) = object.get("architectures").filter(|other| !other.is_null())
        && !classes.iter().any(|class| *other == json!([class]))
    {
        return Err(Fields::wrong("architectures", other, &format!("`model_type` is {:?}", kind.model_type)));
    }
    let mut text = match object.get("text_config") {
        Some(Value::Object(text)) => text.clone(),
        _ if has_tower(kind, object) => Map::new(),
        _ => return Err(Fields::missing("text_config")),
    };
    let text_kind = json!(kind.text_type());
    if let Some(other) = text.get("model_type").filter(|other| **other != text_kind) {
        let expected = format!("`model_type` is {:?}", kind.model_type);
        return Err(Fields::wrong("text_config.model_type", other, &expected));
    }
    text.insert("model_type".to_owned(), text_kind);
    text.insert("architectures".to_owned(), json!([kind.text_class()]));
    for (name, value) in object {
        let nested = ["text_config", "model_type", "architectures"].contains(&name.as_str());
        if nested || IMAGES.contains(&name.as_str()) {
            continue;
        }
        let inner = text.entry(name.clone()).or_insert_with(|| value.clone());
        // Token ids and the type of the weights can differ.
        let differs = inner != value && !name.ends_with("_token_id") && !name.ends_with("dtype");
        if differs && name != "transformers_version" {
            return Err(Fields::wrong(name, value, &format!("`text_config.{name}` is {inner}")));
        }
    }
    if kind.is_tiled() {
        text.retain(|name, _| !WITHOUT_EFFECT.contains(&name.as_str()));
    }
    Ok(Some(text))
}

/// The vision tower in the config of a model; `None` for a model without one.
pub(in crate::model) fn vision_part(object: &Map<String, Value>) -> Result<Option<VisionPart>> {
    let Some(kind) = kind_of(object).filter(|kind| has_tower(kind, object)) else { return Ok(None) };
    let present = |name: &str| object.get(name).filter(|value| !value.is_null());
    let Some(tower) = present("vision_config") else { return Err(Fields::missing("vision_config")) };
    let Some(token) = present("image_token_id") else { return Err(Fields::missing("image_token_id")) };
    let image_token = token.as_u64().and_then(|id| u32::try_from(id).ok());
    let image_token = image_token.ok_or_else(|| Fields::wrong("image_token_id", token, "it must be a token id"))?;
    let mut tower = tower.clone();
    if let (Some(fields), Some(text)) = (tower.as_object_mut(), object.get("text_config").filter(|_| kind.is_tiled())) {
        // The other towers have these fields.
        fields.insert("model_type".to_owned(), json!(TILES));
        fields.insert("out_hidden_size".to_owned(), text["hidden_size"].clone());
        fields.insert("spatial_merge_size".to_owned(), present("scale_factor").cloned().unwrap_or(json!(2)));
    }
    let nested = object.contains_key("text_config");
    let is_own = |name: &str| name != "text_config" && (!nested || !name.ends_with("dtype"));
    let fields: Map<_, _> =
        object.iter().filter(|(name, _)| is_own(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
    let inner = object.get("text_config").and_then(Value::as_object);
    let outer_only =
        fields.keys().filter(|name| inner.is_some_and(|inner| !inner.contains_key(*name))).cloned().collect();
    Ok(Some(VisionPart {
        tower: VisionConfig::from_json(&tower)?,
        image_token,
        fields,
        outer_only,
        nested,
        sections: kind.sections,
        full_names: kind.full_names,
    }))
}

/// Whether the model has a vision tower. The text model of a Qwen3.5 is read without
/// `vision_config`, too.
fn has_tower(kind: &ModelKind, object: &Map<String, Value>) -> bool {
    let is_needed = kind.text_class() == kind.class || kind.is_tiled();
    is_needed || object.get("vision_config").is_some_and(|tower| !tower.is_null())
}

impl VisionPart {
    /// The part of this text model, in which it sets the positions that rotate each pair.
    pub(in crate::model) fn for_text(self, config: &mut Config) -> Box<Self> {
        if let (Some(default), [rope]) = (self.sections, &mut config.ropes[..]) {
            let sizes = rope.sections.map_or(default, |sections| sections.sizes);
            rope.sections = Some(Sections { sizes, interleaved: true });
        }
        Box::new(self)
    }

    /// Validates what the tower and the text model of `config` have in common.
    pub(in crate::model) fn check(&self, config: &Config) -> Result<()> {
        let bad = |field: &str, why: String| Err(Error::new(Kind::Model, format!("`{field}` {why}")));
        if self.tower.out != config.hidden_size {
            let why = format!("is {}; `hidden_size` is {}", self.tower.out, config.hidden_size);
            return bad("vision_config.out_hidden_size", why);
        }
        if self.image_token as usize >= config.vocab_size {
            return bad("image_token_id", format!("is {}; `vocab_size` is {}", self.image_token, config.vocab_size));
        }
        if matches!(self.tower.kind, TowerKind::Tiles { .. }) {
            return Ok(());
        }
        let rope = config.ropes.first();
        let pairs = rope.map_or(0, |rope| rope.rotated(config.head_dim) / 2);
        let Some(sections) = rope.and_then(|rope| rope.sections) else {
            return bad("mrope_section", "must be a list of three numbers".to_owned());
        };
        let sum = sections.sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
        if sum != Some(pairs) {
            return bad("mrope_section", format!("is {:?}; a head has {pairs} pairs", sections.sizes));
        }
        Ok(())
    }

    /// The content of `config.json` with the written fields of the text model.
    pub(in crate::model) fn with_text(&self, mut text: Map<String, Value>) -> Map<String, Value> {
        let mut object = self.fields.clone();
        text.shift_remove("architectures");
        let text_kind = text.shift_remove("model_type").unwrap_or_default();
        if let Some(tower) = object.get_mut("vision_config").and_then(Value::as_object_mut) {
            // The type of the weights is beside it.
            tower.shift_remove("dtype");
            tower.shift_remove("torch_dtype");
        }
        if !self.nested {
            object.extend(text);
            return object;
        }
        for (name, value) in text.iter().filter(|(name, _)| !name.ends_with("_token_id")) {
            object.entry(name).and_modify(|outer| outer.clone_from(value));
        }
        object.extend(text.get("tie_word_embeddings").map(|tied| ("tie_word_embeddings".to_owned(), tied.clone())));
        for name in self.outer_only.iter().map(String::as_str).chain(["dtype", "torch_dtype", "transformers_version"]) {
            if name != "tie_word_embeddings" {
                text.shift_remove(name);
            }
        }
        text.insert("model_type".to_owned(), text_kind);
        object.insert("text_config".to_owned(), Value::Object(text));
        object
    }
}
