//! An open model: loading, scoring, sampling.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;
use tch::{Kind as Type, Tensor};

use crate::config::PolicySettings;
use crate::engine::{self, Engine, EngineClient, EngineOptions, Queue, TokenBytes, logprobs_of};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load;
use crate::mdp::{Completion, Policy, Request, Sampling, Scoring, StreamSeed};
use crate::model::{Model, Packed, upload};
use crate::script::named_models::{ModelInput, ModelResponse, ResponseRequest, TokenLogprob};
use crate::telemetry::Reporter;
use crate::text::{AUTO, FormatChoice, Renderer, Style};
use crate::{store, train};

/// Number of positions whose logits are in memory at once.
const CHUNK: usize = 256;
/// Maximum number of responses that a model generates at the same time.
const MAX_BATCH: usize = 16;
/// Maximum number of values returned by `logits`.
const MAX_LOGITS: usize = 1 << 22;

/// Log-probabilities of ids.
#[derive(Default)]
pub(super) struct ScoredIds {
    pub(super) logprobs: Vec<f64>,
    /// The most likely ids by position.
    pub(super) top: Vec<Vec<TokenLogprob>>,
}

/// A model with its engine. It is freed when the last use ends.
pub(super) struct OpenModel {
    pub(super) model: Rc<Model>,
    /// `None` for a directory without a tokenizer, which takes token ids only.
    renderer: Option<Arc<Renderer>>,
    /// Directory of the tokenizer and the template.
    pub(super) dir: PathBuf,
    engine: RefCell<Engine>,
    /// Submits requests to the engine.
    pub(super) client: EngineClient,
    queue: Queue,
    sampling: Sampling,
    eos: Arc<Vec<u32>>,
    requests: Cell<u64>,
}

impl OpenModel {
    /// Opens a model; `policy.model` is its directory, a run or a name. Its files select the
    /// tool-call format if `format` is not set.
    pub(super) fn open(mut policy: PolicySettings, format: Option<&str>, reporter: &Reporter) -> Result<Self> {
        let path = Path::new(&policy.model);
        if path.exists() {
            policy.model = store::find_model(path)?.display().to_string();
        }
        let (mut model, dir) = load::load_model(&policy, Fetching { reporter, interrupt: None })?;
        let format = FormatChoice::named(format.unwrap_or(AUTO))?;
        let with_text = dir.join("tokenizer.json").exists();
        let renderer =
            if with_text { Some(load::load_renderer(&dir, &Style::of_format(format), reporter)?) } else { None };
        if let Some(images) = renderer.as_ref().and_then(|renderer| renderer.images()) {
            model.set_images(Arc::clone(images));
        }
        let model = Rc::new(model);
        let bytes = match &renderer {
            Some(renderer) => renderer.tokenizer().token_bytes(),
            None => vec![Vec::new(); model.config.vocab_size],
        };
        let sizes = EngineOptions::sized(&model.config, model.cache_options(), MAX_BATCH, policy.max_context);
        let engine = RefCell::new(Engine::new(Rc::clone(&model), Arc::new(TokenBytes::new(bytes)), sizes)?);
        let eos = match &renderer {
            Some(renderer) => renderer.stop_ids(),
            None => Arc::new(eos(&model.config.to_json()["eos_token_id"])),
        };
        let sampling = train::model_sampling(&dir, Sampling::default().max_new_tokens, reporter)?;
        let (client, queue) = engine::channel();
        Ok(Self { model, renderer, dir, engine, client, queue, sampling, eos, requests: Cell::new(0) })
    }

    /// Waits for a future; between its turns the engine serves the requests of this and of other
    /// futures, one step of the batch at a time.
    pub(super) async fn serve<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            if polled.is_pending() && self.engine.borrow_mut().step(&self.queue) {
                context.waker().wake_by_ref();
            }
            polled
        })
        .await
    }

    fn check(&self, ids: &[u32]) -> Result<()> {
        check_vocabulary(ids, self.model.config.vocab_size)?;
        let limit = self.model.config.longest_context();
        if ids.len() > limit {
            let message = format!("{} ids are more than the model's context of {limit}", ids.len());
            return Err(Error::new(Kind::Script, message));
        }
        Ok(())
    }

    /// Hidden states `[T, E]` of one row.
    fn hidden(&self, ids: &[u32]) -> Result<Tensor> {
        self.check(ids)?;
        self.model.forward(&Packed::from_rows(&[ids], self.model.device())?)
    }

    /// For each id after the first: its log-probability, and the most likely ids at its position.
    pub(super) fn logprobs(&self, ids: &[u32], top: usize, temperature: f64) -> Result<ScoredIds> {
        let vocab = self.model.config.vocab_size;
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::new(Kind::Script, format!("`temperature` must be more than 0, got {temperature}")));
        }
        if top > vocab {
            return Err(Error::new(Kind::Script, format!("`top` is {top} and the vocabulary has {vocab}")));
        }
        self.check(ids)?;
        if ids.len() < 2 {
            return Ok(ScoredIds::default());
        }
        let _guard = tch::no_grad_guard();
        let hidden = self.hidden(ids)?;
        let count = ids.len() as i64 - 1;
        let before = hidden.f_narrow(0, 0, count)?;
        let targets: Vec<i64> = ids[1..].iter().map(|&id| i64::from(id)).collect();
        let targets = upload(&Tensor::f_from_slice(&targets)?, self.model.device())?;
        let (logprobs, _) = self.model.logprobs(&before, &targets, temperature, CHUNK)?;
        let mut scored = ScoredIds { logprobs: numbers(&logprobs)?, top: Vec::new() };
        if top > 0 {
            for start in (0..count).step_by(CHUNK) {
                let piece = before.f_narrow(0, start, (count - start).min(CHUNK as i64))?;
                let logits = self.model.logits(&piece)?.f_to_kind(Type::Float)?.f_div_scalar(temperature)?;
                let (values, places) = logits.f_log_softmax(-1, Type::Float)?.f_topk(top as i64, -1, true, true)?;
                let places: Vec<i64> = places.f_view(-1)?.f_to_device(tch::Device::Cpu)?.try_into()?;
                let pairs = places.into_iter().zip(numbers(&values)?);
                let pairs: Vec<_> = pairs.map(|(id, logprob)| TokenLogprob { id: id as u32, logprob }).collect();
                scored.top.extend(pairs.chunks(top).map(<[_]>::to_vec));
            }
        }
        Ok(scored)
    }

    /// Log-probabilities of a text after a prompt.
    pub(super) fn score(&self, prompt: ModelInput, text: &str, temperature: f64) -> Result<Vec<f64>> {
        let mut ids = self.prompt(prompt, &[])?;
        let from = ids.len();
        match &self.renderer {
            Some(renderer) => ids.extend(renderer.tokenizer().encode(text)?),
            None => return Err(Error::new(Kind::Script, "the model has no tokenizer.json, so it cannot score text")),
        }
        let limit = self.model.config.longest_context();
        if ids.len() > limit {
            let message = format!("prompt and text have {} tokens, more than the context of {limit}", ids.len());
            return Err(Error::new(Kind::Env, message));
        }
        let scored = logprobs_of(&self.model, &Scoring { ids, from, temperature, reference: false })?;
        Ok(scored.into_iter().map(f64::from).collect())
    }

    /// A list of V logits for each id.
    pub(super) fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f64>>> {
        let vocab = self.model.config.vocab_size;
        if ids.len() * vocab > MAX_LOGITS {
            let message = format!("{} ids times {vocab} logits are more than {MAX_LOGITS} numbers", ids.len());
            return Err(Error::new(Kind::Script, message).hint("use :logprobs(ids, { top = k }), or fewer ids"));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let _guard = tch::no_grad_guard();
        let all = numbers(&self.model.logits(&self.hidden(ids)?)?)?;
        Ok(all.chunks(vocab).map(<[f64]>::to_vec).collect())
    }

    /// Generates a response. Concurrent calls are batched.
    pub(super) async fn generate(&self, request: ResponseRequest) -> Result<ModelResponse> {
        let request = self.request(request)?;
        let (stop_ids, conversation) = (Arc::clone(&request.stop_ids), request.conversation);
        let reply = self.client.submit(request);
        // Calls of `r1.join` are submitted before the first step.
        tokio::task::yield_now().await;
        let lost = |_| Error::new(Kind::Internal, "the engine lost a request");
        let completion = self.serve(reply).await;
        self.client.release(conversation);
        let completion = completion.map_err(lost)??;
        Ok(self.response(completion, &stop_ids))
    }

    fn request(&self, ResponseRequest { prompt, options, sampling }: ResponseRequest) -> Result<Request> {
        let sampling = sampling.over(&self.sampling)?;
        let prompt_ids = self.prompt(prompt, &options.tools)?;
        self.check(&prompt_ids)?;
        self.check(&options.stop_ids)?;
        let mut stop_ids = if options.ignore_eos { Vec::new() } else { self.eos.to_vec() };
        stop_ids.extend(options.stop_ids);
        self.requests.set(self.requests.get() + 1);
        Ok(Request {
            prompt_ids,
            sampling: Arc::new(sampling),
            stop_ids: Arc::new(stop_ids),
            seed: StreamSeed { seed: options.seed.0, trajectory: 0, step: 0 },
            conversation: self.requests.get(),
            chat: None,
        })
    }

    fn response(&self, reply: Completion, stop_ids: &[u32]) -> ModelResponse {
        let token_ids = match reply.token_ids.split_last() {
            Some((last, token_ids)) if stop_ids.contains(last) => token_ids,
            _ => &reply.token_ids,
        };
        let text = self.renderer.as_ref().map(|renderer| renderer.tokenizer().decode(token_ids, false));
        let one = |&(id, logprob): &(u32, f32)| TokenLogprob { id, logprob: f64::from(logprob) };
        let top: Vec<Vec<_>> = reply.top_logprobs.iter().map(|position| position.iter().map(one).collect()).collect();
        ModelResponse {
            text,
            logprobs: reply.logprobs.iter().map(|&logprob| f64::from(logprob)).collect(),
            finish_reason: reply.finish_reason,
            top_logprobs: Some(top).filter(|top| !top.is_empty()),
            token_ids: reply.token_ids,
        }
    }

    fn prompt(&self, prompt: ModelInput, tools: &[Json]) -> Result<Vec<u32>> {
        let missing = || Error::new(Kind::Script, "the model has no tokenizer.json, so it takes token ids only");
        let renderer = || self.renderer.as_ref().ok_or_else(missing);
        match prompt {
            ModelInput::Text(text) => renderer()?.tokenizer().encode(&text),
            ModelInput::Ids(ids) => Ok(ids),
            ModelInput::Messages(messages) => renderer()?.prompt(&messages, tools),
        }
    }
}

/// Refuses ids that a model does not have.
pub(super) fn check_vocabulary(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(Error::new(Kind::Script, format!("token id {id} is outside the vocabulary of {vocab}"))),
        None => Ok(()),
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

    use futures_util::future::join_all;
    use serde_json::json;

    use super::*;
    use crate::mdp::Seed;
    use crate::programs::Executor;
    use crate::script::named_models::ResponseOptions;

    #[test]
    fn batched_generate_equals_separate_generate() {
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
        let policy = PolicySettings { model: nano.display().to_string(), ..PolicySettings::default() };
        let model = OpenModel::open(policy, None, &Reporter::silent()).unwrap();
        let request = |prompt, seed| {
            let sampling = serde_json::from_value(json!({ "temperature": 1, "max_new_tokens": 12 })).unwrap();
            let options = ResponseOptions { seed: Seed(seed), ..ResponseOptions::default() };
            ResponseRequest { prompt, options, sampling }
        };
        let requests: Vec<_> =
            (0..6).map(|seed| request(ModelInput::Text(format!("What is {seed} + 3?")), seed)).collect();
        let executor = Executor::new().unwrap();
        let alone: Vec<ModelResponse> =
            requests.iter().map(|one| executor.block_on(model.generate(one.clone())).unwrap()).collect();
        let mut mixed = requests;
        mixed.insert(2, request(ModelInput::Ids(vec![u32::MAX]), 0));
        let mut together = executor.block_on(join_all(mixed.into_iter().map(|one| model.generate(one))));
        // An invalid call fails alone.
        assert!(together.remove(2).is_err());
        for (mut batched, mut expected) in together.into_iter().map(Result::unwrap).zip(alone) {
            // Without the CPU kernels the last bits depend on the batch.
            if !crate::native::has_cpu_kernels() {
                let batched = std::mem::take(&mut batched.logprobs);
                let expected = std::mem::take(&mut expected.logprobs);
                assert!(batched.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
            }
            assert_eq!(batched, expected);
        }
        assert_eq!(model.engine.borrow().progress().stats().max_batch, 6);
    }
}
