//! `model.*`: loading, scoring, sampling; `text.dir`: the directory of a model's tokenizer and
//! template.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tch::{Kind as Type, Tensor};

use crate::config::PolicySettings;
use crate::engine::{self, Engine, EngineOptions, Policy, Queue, TokenBytes, logprobs_of};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Message, Request, Sampling, Seed, StreamSeed};
use crate::model::{Model, Packed};
use crate::schema::section;
use crate::script::section_over;
use crate::telemetry::Reporter;
use crate::text::{AUTO, FormatChoice, Renderer, Style};
use crate::train::Fetching;
use crate::{script, store, train};

/// Number of positions whose logits are in memory at once.
const CHUNK: usize = 256;
/// Maximum number of responses that a model generates at the same time.
pub(super) const MAX_BATCH: usize = 16;
/// Maximum number of values returned by `logits`.
const MAX_LOGITS: usize = 1 << 22;

/// The open models.
pub(super) struct Models {
    /// Shows downloads.
    reporter: Reporter,
    open: BTreeMap<u64, Opened>,
    next: u64,
}

struct Opened {
    model: Rc<Model>,
    /// `None` for a directory without a tokenizer, which takes token ids only.
    renderer: Option<Arc<Renderer>>,
    /// Directory of the tokenizer and the template.
    dir: PathBuf,
    engine: Engine,
    sampling: Sampling,
    eos: Arc<Vec<u32>>,
    requests: u64,
}

/// Options of `model.open`. Other fields are those of `policy` in a recipe.
#[derive(Deserialize)]
struct OpenOptions {
    #[serde(default)]
    format: Option<String>,
    #[serde(flatten)]
    policy: Map<String, Json>,
}

section! {
    /// Options of `generate` in addition to the fields of [`Sampling`], which override the model's
    /// defaults.
    struct GenerateOptions: "" {
        /// Token ids that end a response, in addition to the model's own.
        stop_ids: Vec<u32> = Vec::new();
        /// Does not end a response at the model's own ids.
        ignore_eos: bool = false;
        /// Seed of the response.
        seed: Seed = Seed::default();
        /// Schemas of tools, for the chat template.
        tools: Vec<Json> = Vec::new();
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Scoring {
    top: usize,
    temperature: Option<f64>,
}

impl Models {
    pub(super) fn new(reporter: Reporter) -> Self {
        Self { reporter, open: BTreeMap::new(), next: 0 }
    }

    pub(super) fn call(&mut self, function: &str, arguments: &Json) -> Result<Json> {
        match function {
            "model.open" => return self.open(arguments),
            "text.dir" => return self.text_dir(arguments),
            "model.close" => {
                self.open.remove(&arguments["model"].as_u64().unwrap_or(u64::MAX));
                return Ok(Json::Null);
            }
            _ => {}
        }
        let opened = arguments["model"].as_u64().and_then(|handle| self.open.get_mut(&handle));
        let opened = opened.ok_or_else(|| Error::new(Kind::Internal, "the model is not open"))?;
        match function {
            "model.config" => Ok(opened.model.config.to_json()),
            "model.dir" => Ok(json!(opened.dir)),
            "model.logprobs" => opened.logprobs(&read::<Vec<u32>>(&arguments["ids"])?, &read(&arguments["options"])?),
            "model.score" => opened.score(arguments),
            "model.logits" => opened.logits(&read::<Vec<u32>>(&arguments["ids"])?),
            other => Err(Error::new(Kind::Internal, format!("unknown service `{other}`"))),
        }
    }

    /// Generates a batch of responses, in the order of `calls`, which are all for the model of the
    /// first.
    pub(super) fn generate(&mut self, calls: &[Json]) -> Vec<Result<Json>> {
        let handle = calls.first().and_then(|first| first["model"].as_u64());
        match handle.and_then(|handle| self.open.get_mut(&handle)) {
            Some(opened) => opened.generate(calls),
            None => calls.iter().map(|_| Err(Error::new(Kind::Internal, "the model is not open"))).collect(),
        }
    }

    /// Serves the requests of trajectories until the last one is complete.
    pub(super) fn serve(&mut self, arguments: &Json, queue: Queue) -> Result<Json> {
        let opened = arguments["model"].as_u64().and_then(|handle| self.open.get_mut(&handle));
        let opened = opened.ok_or_else(|| Error::new(Kind::Internal, "the model is not open"))?;
        opened.engine.serve(queue).map(|_| Json::Null)
    }

    /// Directory of a tokenizer and a template: a run's newest checkpoint, or the model of a name.
    fn text_dir(&self, arguments: &Json) -> Result<Json> {
        let name: String = read(&arguments["name"])?;
        let path = Path::new(&name);
        let fetching = Fetching { reporter: &self.reporter, interrupt: None };
        let dir = if path.exists() { store::find_model(path)? } else { train::text_dir(&name, fetching)? };
        Ok(json!(dir))
    }

    fn open(&mut self, arguments: &Json) -> Result<Json> {
        let name: String = read(&arguments["model"])?;
        let mut options: OpenOptions = read(&arguments["options"])?;
        let path = Path::new(&name);
        let name = if path.exists() { store::find_model(path)?.display().to_string() } else { name };
        options.policy.insert("model".to_owned(), json!(name));
        let policy: PolicySettings = script::section("policy", &Json::Object(options.policy))?;
        let (model, dir) = train::load_model(&policy, Fetching { reporter: &self.reporter, interrupt: None })?;
        let format = FormatChoice::named(options.format.as_deref().unwrap_or(AUTO))?;
        let with_text = dir.join("tokenizer.json").exists();
        let renderer =
            if with_text { Some(train::load_renderer(&dir, &Style::of_format(format), &self.reporter)?) } else { None };
        let bytes = match &renderer {
            Some(renderer) => renderer.tokenizer().token_bytes(),
            None => vec![Vec::new(); model.config.vocab_size],
        };
        let sizes = EngineOptions::sized(&model.config, model.cache_options(), MAX_BATCH, policy.max_context);
        let engine = Engine::new(Rc::clone(&model), Arc::new(TokenBytes::new(bytes)), sizes)?;
        let eos = match &renderer {
            Some(renderer) => renderer.stop_ids(),
            None => Arc::new(eos(&model.config.to_json()["eos_token_id"])),
        };
        let sampling = train::model_sampling(&dir, Sampling::default().max_new_tokens, &self.reporter)?;
        let opened = Opened { model, renderer, dir, engine, sampling, eos, requests: 0 };
        self.next += 1;
        self.open.insert(self.next, opened);
        Ok(json!(self.next))
    }
}

/// One id, or a list of them.
fn eos(value: &Json) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Json::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

fn read<T: for<'de> Deserialize<'de>>(value: &Json) -> Result<T> {
    let value = if value.as_array().is_some_and(Vec::is_empty) { &json!({}) } else { value };
    T::deserialize(value)
        .or_else(|error| {
            // An empty Lua table is a list and an object.
            if value.as_object().is_some_and(Map::is_empty) { T::deserialize(&json!([])) } else { Err(error) }
        })
        .map_err(|error| Error::new(Kind::Script, error.to_string()))
}

impl Opened {
    fn check(&self, ids: &[u32]) -> Result<()> {
        let refuse = |message: String| Err(Error::new(Kind::Script, message));
        let (vocab, most) = (self.model.config.vocab_size, self.model.config.longest_context());
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return refuse(format!("token id {id} is outside the vocabulary of {vocab}"));
        }
        if ids.len() > most {
            return refuse(format!("{} ids are more than the model's context of {most}", ids.len()));
        }
        Ok(())
    }

    /// Hidden states `[T, E]` of one row.
    fn hidden(&self, ids: &[u32]) -> Result<Tensor> {
        self.check(ids)?;
        self.model.forward(&Packed::from_rows(&[ids], self.model.device()))
    }

    /// For each id after the first: its log-probability, and the most likely ids at its position.
    fn logprobs(&self, ids: &[u32], options: &Scoring) -> Result<Json> {
        let temperature = options.temperature.unwrap_or(1.0);
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::new(Kind::Script, format!("`temperature` must be more than 0, got {temperature}")));
        }
        if options.top > self.model.config.vocab_size {
            let vocab = self.model.config.vocab_size;
            return Err(Error::new(Kind::Script, format!("`top` is {} and the vocabulary has {vocab}", options.top)));
        }
        self.check(ids)?;
        if ids.len() < 2 {
            return Ok(json!({ "logprobs": [], "top": [] }));
        }
        let _guard = tch::no_grad_guard();
        let hidden = self.hidden(ids)?;
        let count = ids.len() as i64 - 1;
        let before = hidden.f_narrow(0, 0, count)?;
        let targets: Vec<i64> = ids[1..].iter().map(|&id| i64::from(id)).collect();
        let targets = Tensor::f_from_slice(&targets)?.f_to_device(self.model.device())?;
        let (logprobs, _) = self.model.logprobs(&before, &targets, temperature, CHUNK)?;
        let logprobs = numbers(&logprobs)?;
        let mut top = Vec::new();
        if options.top > 0 {
            for start in (0..count).step_by(CHUNK) {
                let piece = before.f_narrow(0, start, (count - start).min(CHUNK as i64))?;
                let logits = self.model.logits(&piece)?.f_to_kind(Type::Float)?.f_div_scalar(temperature)?;
                let (values, places) =
                    logits.f_log_softmax(-1, Type::Float)?.f_topk(options.top as i64, -1, true, true)?;
                let places: Vec<i64> = places.f_view(-1)?.f_to_device(tch::Device::Cpu)?.try_into()?;
                for (values, ids) in numbers(&values)?.chunks(options.top).zip(places.chunks(options.top)) {
                    let row = ids.iter().zip(values).map(|(id, logprob)| json!({ "id": id, "logprob": logprob }));
                    top.push(Json::Array(row.collect()));
                }
            }
        }
        Ok(json!({ "logprobs": logprobs, "top": top }))
    }

    /// Log-probabilities of a text after a prompt.
    fn score(&self, arguments: &Json) -> Result<Json> {
        let mut ids = self.prompt(&arguments["prompt"], &[])?;
        let from = ids.len();
        match &self.renderer {
            Some(renderer) => ids.extend(renderer.tokenizer().encode(arguments["text"].as_str().unwrap_or_default())?),
            None => return Err(Error::new(Kind::Script, "the model has no tokenizer.json, so it cannot score text")),
        }
        let most = self.model.config.longest_context();
        if ids.len() > most {
            let message = format!("prompt and text have {} tokens, more than the context of {most}", ids.len());
            return Err(Error::new(Kind::Env, message));
        }
        let temperature = arguments["temperature"].as_f64().unwrap_or(1.0);
        let scored = logprobs_of(&self.model, &engine::Scoring { ids, from, temperature, reference: false })?;
        Ok(json!({ "logprobs": scored.into_iter().map(f64::from).collect::<Vec<_>>() }))
    }

    /// A list of V logits for each id.
    fn logits(&self, ids: &[u32]) -> Result<Json> {
        let vocab = self.model.config.vocab_size;
        if ids.len() * vocab > MAX_LOGITS {
            let message = format!("{} ids times {vocab} logits are more than {MAX_LOGITS} numbers", ids.len());
            return Err(Error::new(Kind::Script, message).hint("use :logprobs(ids, { top = k }), or fewer ids"));
        }
        if ids.is_empty() {
            return Ok(json!([]));
        }
        let _guard = tch::no_grad_guard();
        let all = numbers(&self.model.logits(&self.hidden(ids)?)?)?;
        Ok(Json::Array(all.chunks(vocab).map(|row| json!(row)).collect()))
    }

    /// Generates responses to ids, text or messages as one batch.
    fn generate(&mut self, calls: &[Json]) -> Vec<Result<Json>> {
        let (client, queue) = engine::channel();
        let submitted: Vec<Result<_>> = calls
            .iter()
            .map(|call| {
                let request = self.request(&call["prompt"], &call["sampling"])?;
                Ok((Arc::clone(&request.stop_ids), client.submit(request)))
            })
            .collect();
        drop(client);
        let served = self.engine.serve(queue);
        let gone = || Error::new(Kind::Internal, "the engine lost a request");
        let all = submitted.into_iter().map(|submitted| {
            let (stop_ids, reply) = submitted?;
            let reply = reply.blocking_recv().map_err(|_| served.as_ref().err().cloned().unwrap_or_else(gone))??;
            Ok(self.completion_json(&reply, &stop_ids))
        });
        all.collect()
    }

    fn request(&mut self, prompt: &Json, options: &Json) -> Result<Request> {
        let fields = options.as_object().cloned().unwrap_or_default();
        let own = |name: &String| ["stop_ids", "ignore_eos", "seed", "tools"].contains(&name.as_str());
        let (options, sampling): (Map<_, _>, Map<_, _>) = fields.into_iter().partition(|(name, _)| own(name));
        let options: GenerateOptions = script::section("sampling", &Json::Object(options))?;
        let sampling = section_over("sampling", &Json::Object(sampling), &self.sampling)?;
        let prompt_ids = self.prompt(prompt, &options.tools)?;
        self.check(&prompt_ids)?;
        self.check(&options.stop_ids)?;
        let mut stop_ids = if options.ignore_eos { Vec::new() } else { self.eos.to_vec() };
        stop_ids.extend(options.stop_ids);
        self.requests += 1;
        Ok(Request {
            prompt_ids,
            sampling: Arc::new(sampling),
            stop_ids: Arc::new(stop_ids),
            seed: StreamSeed { seed: options.seed.0, trajectory: 0, step: 0 },
            conversation: self.requests,
        })
    }

    fn completion_json(&self, reply: &Completion, stop_ids: &[u32]) -> Json {
        let own = match reply.token_ids.split_last() {
            Some((last, own)) if stop_ids.contains(last) => own,
            _ => &reply.token_ids,
        };
        let text = self.renderer.as_ref().map(|renderer| renderer.tokenizer().decode(own, false));
        let one = |&(id, logprob): &(u32, f32)| json!({ "id": id, "logprob": logprob });
        let top: Vec<Json> = reply.top_logprobs.iter().map(|place| place.iter().map(one).collect()).collect();
        let top = if top.is_empty() { Json::Null } else { top.into() };
        let logprobs: Vec<f64> = reply.logprobs.iter().map(|&logprob| f64::from(logprob)).collect();
        json!({
            "text": text, "token_ids": reply.token_ids, "logprobs": logprobs,
            "finish_reason": reply.finish_reason.name(), "top_logprobs": top,
        })
    }

    fn prompt(&self, prompt: &Json, tools: &[Json]) -> Result<Vec<u32>> {
        let wrong = || Error::new(Kind::Script, "the prompt must be a list of token ids, a list of messages, or text");
        let renderer = || {
            self.renderer
                .as_ref()
                .ok_or_else(|| Error::new(Kind::Script, "the model has no tokenizer.json, so it takes token ids only"))
        };
        match prompt {
            Json::String(text) => renderer()?.tokenizer().encode(text),
            Json::Array(list) if list.first().is_some_and(Json::is_u64) => {
                Vec::<u32>::deserialize(prompt).map_err(|_| wrong())
            }
            Json::Array(list) if list.first().is_some_and(Json::is_object) => {
                let messages = Vec::<Message>::deserialize(prompt)
                    .map_err(|error| Error::new(Kind::Script, format!("a message of the prompt: {error}")))?;
                renderer()?.prompt(&messages, tools)
            }
            _ => Err(wrong()),
        }
    }
}

/// Values of a tensor as f32.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    let flat = tensor.f_to_kind(Type::Float)?.f_contiguous()?.f_view(-1)?.f_to_device(tch::Device::Cpu)?;
    let values: Vec<f32> = flat.try_into()?;
    if values.iter().any(|value| value.is_nan()) {
        return Err(Error::new(Kind::Numeric, "the model returned NaN").hint("are its weights damaged?"));
    }
    Ok(values.into_iter().map(f64::from).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn batched_generate_equals_separate_generate() {
        let mut models = Models::new(Reporter::silent());
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
        let model = models.call("model.open", &json!({ "model": nano, "options": {} })).unwrap();
        let options: Vec<Json> = (0..6)
            .map(|seed| {
                let sampling = json!({ "seed": seed, "temperature": 1, "max_new_tokens": 12 });
                json!({ "model": model, "prompt": format!("What is {seed} + 3?"), "sampling": sampling })
            })
            .collect();
        let alone: Vec<Json> =
            options.iter().map(|one| models.generate(std::slice::from_ref(one)).remove(0).unwrap()).collect();
        let mut mixed = options.clone();
        mixed.insert(2, json!({ "model": model, "prompt": 5, "sampling": {} }));
        let mut together = models.generate(&mixed);
        // An invalid call fails alone.
        assert!(together.remove(2).is_err());
        for (mut found, mut expected) in together.into_iter().map(Result::unwrap).zip(alone) {
            // Without the CPU kernels the last bits depend on the batch.
            if !crate::native::has_cpu_kernels() {
                let numbers = |json: Json| -> Vec<f64> { serde_json::from_value(json).unwrap() };
                let (found, expected) = (numbers(found["logprobs"].take()), numbers(expected["logprobs"].take()));
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
            }
            assert_eq!(found, expected);
        }
        let opened = models.open.values().next().unwrap();
        assert_eq!(opened.engine.progress().stats().max_batch, 6);
    }
}
