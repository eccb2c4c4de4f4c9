//! Low-rank adapters (arXiv:2106.09685) in the files of PEFT: `adapter_config.json` and
//! `adapter_model.safetensors`.
//!
//! A projection W is used as W + scale · B A, with A `[r, in]`, B `[out, r]` and scale alpha / r,
//! or alpha / √r for rank-stabilised adapters (arXiv:2312.03732). The model's own weights are
//! frozen while it has an adapter. Dropout is kept in the file and never applied.

use std::collections::BTreeSet;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use super::config::{Config, ExpertStorage, Joint};
use super::layers::{Linear, ParameterNode, Parameters};
use super::plain::Arithmetic;
use super::stored::StoredTensor;
use super::unwritten::UnwrittenFile;
use super::vision::{TOWER, VisionTower};
use super::{json_file, text_model, weights};
use r1_base::error::{Error, Kind as ErrorKind, Result, suggest};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Fields of the adapter's base model and its Hub revision.
const BASE: &str = "base_model_name_or_path";
const REVISION: &str = "revision";
/// PEFT's prefix of module names.
pub(super) const PREFIX: &str = "base_model.model.";

/// An adapter's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// r: rows of A.
    pub rank: usize,
    pub alpha: f64,
    /// The scale is alpha / √r, not alpha / r.
    pub rank_stabilised: bool,
    /// Projections by the end of their names (`q_proj`), of the language model or (`visual.qkv`,
    /// `visual.*`) of the vision tower.
    pub target_modules: Vec<String>,
    /// Content of the file, which is written back.
    pub source: Map<String, Value>,
}

/// Fields without effect on the computation: names, training, initialisation, distribution over
/// machines. Fields with effect are in [`LoraConfig`]; all others must be absent, null, false or
/// empty.
const INERT: &str = "
    peft_type task_type auto_mapping peft_version base_model_name_or_path revision
    inference_mode r lora_alpha use_rslora target_modules bias init_lora_weights lora_dropout
    layers_pattern megatron_config megatron_core loftq_config eva_config corda_config
    lora_ga_config qalora_group_size runtime_config
";

/// Initialisations that do not change the base weights. Others subtract the initial adapter from
/// the base weights, so that the adapter does not match its base model.
const BEGINNINGS: &[&str] = &["gaussian", "eva", "orthogonal", "mica"];

impl LoraConfig {
    /// Configuration of a new adapter on the projections with these name suffixes.
    pub fn new(rank: usize, alpha: f64, target_modules: &[&str]) -> Self {
        let target_modules = target_modules.iter().map(ToString::to_string).collect();
        Self { rank, alpha, rank_stabilised: false, target_modules, source: Map::new() }
    }

    /// Base model of the adapter: a directory or a Hub id, with `@REVISION` if the file has a
    /// revision.
    pub fn base(&self) -> Option<String> {
        let name = self.source.get(BASE).and_then(Value::as_str)?;
        Some(match self.source.get(REVISION).and_then(Value::as_str) {
            Some(revision) if !Path::new(name).exists() => format!("{name}@{revision}"),
            _ => name.to_owned(),
        })
    }

    /// Sets the base model of the adapter, and its revision for a Hub model.
    pub fn set_base(&mut self, name: &str, revision: Option<&str>) {
        self.source.insert(BASE.to_owned(), json!(name));
        self.source.insert(REVISION.to_owned(), json!(revision));
    }

    /// Reads the `adapter_config.json` in `dir`; `None` if there is none.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(CONFIG);
        if !path.exists() {
            return Ok(None);
        }
        let value = json_file::read_json(&path, CONFIG)?;
        Self::from_json(&value).map(Some).map_err(|error| error.at_path(&path))
    }

    fn from_json(value: &Value) -> Result<Self> {
        let wrong = |name: &str, value: &Value, expected: &str| {
            Error::new(
                ErrorKind::Model,
                format!("`{name}` is {} in {CONFIG}; {expected}", json_file::clipped(&value.to_string())),
            )
        };
        let Value::Object(source) = value else {
            return Err(Error::new(ErrorKind::Model, format!("{CONFIG} is not a JSON object")));
        };
        let get = |name: &str| source.get(name).unwrap_or(&Value::Null);
        if get("peft_type") != "LORA" {
            return Err(wrong("peft_type", get("peft_type"), "only \"LORA\" is supported"));
        }
        if !(get("bias").is_null() || get("bias") == "none") {
            return Err(wrong("bias", get("bias"), "only \"none\" is supported"));
        }
        if let Some(value) = source.get("init_lora_weights")
            && !(value.is_null() || value.is_boolean() || BEGINNINGS.iter().any(|beginning| value == beginning))
        {
            let expected = "this initialisation changes the base weights";
            return Err(wrong("init_lora_weights", value, expected)
                .hint("PEFT saves it as a plain adapter with `path_initial_model_for_weight_conversion`"));
        }
        let has_effect = |name: &str| INERT.split_whitespace().all(|inert| inert != name);
        for (name, value) in source.iter().filter(|(name, _)| has_effect(name)) {
            let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
            if !(value.is_null() || value == false || empty) {
                return Err(wrong(name, value, "this is not supported"));
            }
        }
        let rank = get("r").as_u64().filter(|rank| (1..=1 << 20).contains(rank));
        let rank = rank.ok_or_else(|| wrong("r", get("r"), "it must be a whole number above 0"))?;
        let alpha = get("lora_alpha").as_f64().filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| wrong("lora_alpha", get("lora_alpha"), "it must be a number"))?;
        let rank_stabilised = match get("use_rslora") {
            Value::Null => false,
            Value::Bool(value) => *value,
            other => return Err(wrong("use_rslora", other, "it must be true or false")),
        };
        // The modules of an adapter are read from its tensors, so patterns are not parsed.
        let target_modules = match get("target_modules") {
            Value::Array(all) => all.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            _ => Vec::new(),
        };
        let mut config = Self { rank: rank as usize, alpha, rank_stabilised, target_modules, source: source.clone() };
        // The first versions of r1 wrote the revision into the name, which PEFT does not support.
        if let Some((name, revision)) = get(BASE).as_str().and_then(|base| base.split_once('@'))
            && get(REVISION).is_null()
            && !Path::new(get(BASE).as_str().unwrap_or_default()).exists()
        {
            config.set_base(name, Some(revision));
        }
        Ok(config)
    }

    fn to_json(&self) -> Value {
        let mut object = self.source.clone();
        for (name, value) in [
            ("peft_type", json!("LORA")),
            ("task_type", json!("CAUSAL_LM")),
            ("r", json!(self.rank)),
            // PEFT requires an integer for whole numbers.
            ("lora_alpha", if self.alpha.fract() == 0.0 { json!(self.alpha as i64) } else { json!(self.alpha) }),
            ("use_rslora", json!(self.rank_stabilised)),
        ] {
            object.insert(name.to_owned(), value);
        }
        if !self.target_modules.is_empty() {
            object.insert("target_modules".to_owned(), json!(self.target_modules));
        }
        for (name, value) in [("bias", json!("none")), ("lora_dropout", json!(0.0)), ("inference_mode", json!(true))] {
            object.entry(name).or_insert(value);
        }
        Value::Object(object)
    }

    fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// Whether a new adapter applies to the projection.
    pub(super) fn targets(&self, module: &str) -> bool {
        self.target_modules.iter().any(|target| is_target(target, module))
    }
}

/// Whether a target is the name of a projection or its end. Targets that begin with `visual.` are
/// projections of the vision tower, `visual.*` all of them; other targets are not.
pub(super) fn is_target(target: &str, module: &str) -> bool {
    let parts = match (target.strip_prefix(TOWER), module.strip_prefix(TOWER)) {
        (Some("*"), Some(_)) => return true,
        (Some(target), Some(module)) => Some((target, module)),
        (None, None) => Some((target, module)),
        _ => None,
    };
    let is_end = |rest: &str| rest.is_empty() || rest.ends_with('.');
    parts.is_some_and(|(target, module)| module.strip_suffix(target).is_some_and(is_end))
}

/// The projections of a model that an adapter with these targets applies to.
pub(super) fn adapted_modules(config: &Config, targets: &[String]) -> Vec<String> {
    let (Joint { qkv, gate_up }, dense) = (config.joint, config.experts.is_none());
    let together = config.experts.is_some_and(|experts| experts.storage != ExpertStorage::Single);
    let mut selected: Vec<String> = Vec::new();
    for name in targets {
        let name = match name.as_str() {
            "gate_proj" | "up_proj" | "down_proj" if together => continue,
            "q_proj" | "k_proj" | "v_proj" if qkv => "qkv_proj",
            "gate_proj" | "up_proj" if gate_up && dense => "gate_up_proj",
            other => config.architecture.projection(other),
        };
        if !selected.iter().any(|other| other == name) {
            selected.push(name.to_owned());
        }
    }
    selected
}

/// The adapter of one projection, in at least f32.
#[derive(Debug)]
pub(super) struct Lora {
    /// `[r, in]`
    pub a: Tensor,
    /// `[out, r]`
    pub b: Tensor,
    pub scale: f64,
    /// Whether products are in the type of the model, with the adapter rounded to it: on CUDA in
    /// bf16 and f16. The adapter itself and its gradients stay in f32.
    pub narrow: bool,
}

impl Lora {
    fn empty(linear: &Linear, config: &LoraConfig) -> Result<Self> {
        let weight = &linear.weight;
        let kind = if weight.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let rank = config.rank as i64;
        let leaf = |shape: [i64; 2]| -> Result<Tensor> {
            Ok(Tensor::f_empty(shape, (kind, weight.device()))?.f_set_requires_grad(true)?)
        };
        Ok(Self {
            a: leaf([rank, weight.size()[1]])?,
            b: leaf([weight.size()[0], rank])?,
            scale: config.scale(),
            narrow: weight.device().is_cuda() && matches!(weight.kind(), Kind::BFloat16 | Kind::Half),
        })
    }

    /// `output` `[T, out]`, the projection of x `[T, in]`, plus the adapter's contribution, in the
    /// type of x.
    pub(super) fn add_to(&self, output: &Tensor, x: &Tensor, arithmetic: Arithmetic) -> Result<Tensor> {
        if self.narrow && arithmetic == Arithmetic::Libtorch {
            // The matrices have few elements: all operations on T tokens are two products.
            let a = self.a.f_to_kind(x.kind())?;
            let b = self.b.f_mul_scalar(self.scale)?.f_to_kind(x.kind())?;
            return Ok(output.f_addmm(&x.f_linear(&a, None::<&Tensor>)?, &b.f_tr()?)?);
        }
        let inner = arithmetic.linear(&x.f_to_kind(self.a.kind())?, &self.a, None)?;
        let added = arithmetic.linear(&inner, &self.b, None)?.f_mul_scalar(self.scale)?;
        Ok(output.f_add(&added)?.f_to_kind(x.kind())?)
    }

    /// Adds B A to the projection's weight.
    fn merge(&self, weight: &Tensor) -> Result<()> {
        weight.shallow_clone().f_copy_(&self.merged_with(weight)?)?;
        Ok(())
    }

    /// `weight` + scale · B A, in the type of the adapter.
    pub(super) fn merged_with(&self, weight: &Tensor) -> Result<Tensor> {
        Ok(weight.f_to_kind(self.a.kind())?.f_add(&self.b.f_matmul(&self.a)?.f_mul_scalar(self.scale)?)?)
    }
}

/// Attaches a new adapter to its target projections: A uniform in ±1/√in, B 0, as in PEFT.
pub(super) fn attach(parameters: &mut Parameters, config: &LoraConfig, seed: u64) -> Result<()> {
    if config.target_modules.is_empty() {
        return Err(Error::new(ErrorKind::Script, "`policy.lora.targets` has no projection that can have an adapter"));
    }
    if config.rank == 0 || !config.alpha.is_finite() {
        return Err(Error::new(ErrorKind::Usage, "an adapter needs a rank above 0 and a finite alpha"));
    }
    let names: Vec<String> = parameters.linears_mut().into_iter().map(|(name, _)| name).collect();
    let is_lost = |target: &&String| !names.iter().any(|name| is_target(target, name));
    if let Some(lost) = config.target_modules.iter().find(is_lost) {
        let ends = projections(&names);
        let message = format!("`policy.lora.targets`: the model has no projection `{lost}`");
        return Err(Error::new(ErrorKind::Script, message).hint(suggest(lost, ends.iter().map(String::as_str))));
    }
    attach_where(parameters, config, seed, |name| config.targets(name))
}

/// Attaches a new adapter to the projections with these names.
pub(super) fn attach_where(
    parameters: &mut Parameters,
    config: &LoraConfig,
    seed: u64,
    is_adapted: impl Fn(&str) -> bool,
) -> Result<()> {
    let _guard = tch::no_grad_guard();
    for (stream, (name, linear)) in (0..).zip(parameters.linears_mut()) {
        if !is_adapted(&name) {
            continue;
        }
        let mut lora = Lora::empty(linear, config)?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        let bound = (lora.a.size()[1] as f64).sqrt().recip();
        let mut draw = || ((random.next_u64() >> 11) as f64 * (-52f64).exp2() - 1.0) * bound;
        let values: Vec<f64> = (0..lora.a.numel()).map(|_| draw()).collect();
        lora.a.f_copy_(&Tensor::f_from_slice(&values)?.f_view_as(&lora.a)?)?;
        let _ = lora.b.f_zero_()?;
        linear.lora = Some(lora);
    }
    freeze(parameters, true)
}

/// Loads the adapter in `dir` into its projections.
pub(super) fn load(parameters: &mut Parameters, dir: &Path) -> Result<LoraConfig> {
    let config = LoraConfig::load(dir)?
        .ok_or_else(|| Error::new(ErrorKind::Model, format!("there is no {CONFIG}")).at_path(dir))?;
    let path = dir.join(WEIGHTS);
    let names: Vec<String> = weights::names(&path)?.iter().map(|name| text_model::name_of(name)).collect();
    for (module, linear) in parameters.linears_mut() {
        if names.contains(&format!("{PREFIX}{module}.lora_A.weight")) {
            linear.lora = Some(Lora::empty(linear, &config)?);
        }
    }
    let stored = StoredTensor::all(&named(parameters));
    let problems = weights::read_files(std::slice::from_ref(&path), &stored, |_| false);
    match problems {
        Ok(problems) if problems.is_empty() => {}
        other => {
            detach(parameters, false)?;
            return Err(other?
                .into_error("adapter and model disagree")
                .at_path(&path)
                .hint("load the model that the adapter was trained on"));
        }
    }
    freeze(parameters, true)?;
    Ok(config)
}

/// The files of the adapter in PEFT's format.
pub(super) fn unwritten(parameters: &Parameters, config: &LoraConfig) -> Vec<UnwrittenFile> {
    let (mut json, mut tensors) = (config.to_json(), named(parameters));
    if let Some(tower) = &parameters.vision {
        // The modules of a model that reads images have these names in PEFT.
        for (name, _) in &mut tensors {
            *name = text_model::full_name(name, tower.config.language());
        }
        if config.target_modules.iter().any(|target| target.starts_with(TOWER)) {
            json["target_modules"] = json!(pattern(tensors.iter().map(|(name, _)| name.as_str())));
        }
    }
    let config = UnwrittenFile::bytes(CONFIG, format!("{json:#}\n").into_bytes());
    vec![config, UnwrittenFile::tensors(WEIGHTS, "the weight", &tensors)]
}

/// A regular expression of the modules with these tensors in PEFT: ends of names can be the same
/// in the tower and in the language model.
fn pattern<'a>(tensors: impl Iterator<Item = &'a str>) -> String {
    let modules: BTreeSet<String> = tensors
        .filter_map(|name| name.strip_prefix(PREFIX)?.strip_suffix(".lora_A.weight"))
        .map(|module| {
            let parts: Vec<&str> = module.split('.').collect();
            let last = parts.len() - 1;
            // The numbers of layers.
            let is_number = |index: usize, part: &str| index < last && part.parse::<usize>().is_ok();
            let each = parts.iter().enumerate().map(|(index, part)| if is_number(index, part) { r"\d+" } else { part });
            each.collect::<Vec<_>>().join(r"\.")
        })
        .collect();
    modules.into_iter().collect::<Vec<_>>().join("|")
}

/// Removes the adapter, after merging it into the weights if `merged`.
pub(super) fn detach(parameters: &mut Parameters, merged: bool) -> Result<()> {
    let _guard = tch::no_grad_guard();
    for (_, linear) in parameters.linears_mut() {
        if let Some(lora) = linear.lora.take().filter(|_| merged) {
            lora.merge(&linear.weight)?;
        }
    }
    freeze(parameters, false)
}

/// Tensors of the adapter with PEFT's keys.
pub(super) fn named(parameters: &Parameters) -> Vec<(String, Tensor)> {
    let mut all = Vec::new();
    let mut add = |name: &str, linear: &Linear| {
        let Some(lora) = &linear.lora else { return };
        for (key, tensor) in [("lora_A", &lora.a), ("lora_B", &lora.b)] {
            all.push((format!("{PREFIX}{name}.{key}.weight"), tensor.shallow_clone()));
        }
    };
    parameters.walk(&mut |name, part| {
        if let ParameterNode::Linear(linear) = part {
            add(name, linear);
        }
    });
    let tower = parameters.vision.iter().flat_map(VisionTower::linears);
    tower.for_each(|(name, linear)| add(&format!("{TOWER}{name}"), linear));
    all
}

/// Freezes or unfreezes the base weights.
fn freeze(parameters: &Parameters, frozen: bool) -> Result<()> {
    // The correction of a router is never trained.
    let trained = parameters.named().into_iter().filter(|(name, _)| !name.ends_with("e_score_correction_bias"));
    for (_, tensor) in trained {
        let _ = tensor.f_set_requires_grad(!frozen)?;
    }
    Ok(())
}

/// The names of projections as targets, for a hint.
fn projections(linear_names: &[String]) -> Vec<String> {
    let end = |name: &String| -> Option<String> {
        let start = if name.starts_with(TOWER) { TOWER } else { "" };
        Some(format!("{start}{}", name.rsplit('.').next()?))
    };
    let mut ends: Vec<String> = linear_names.iter().filter_map(end).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
