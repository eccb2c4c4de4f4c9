//! Models: loading, scoring, sampling.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;
use tch::{Kind as Type, Tensor};

use crate::engine::{self, Engine, EngineOptions, Queue, TokenBytes, logprobs_of};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load;
use crate::mdp::{Completion, Policy, Request, Sampling, Scoring, StreamSeed};
use crate::model::{Model, Packed, upload};
use crate::script::services::model::{
    Generate, Logprobs, ModelCall, OpenModel, Prompt, Response, Score, ScoredIds, TokenLogprob,
};
use crate::script::services::request::Reply;
use crate::telemetry::Reporter;
use crate::text::{AUTO, FormatChoice, Renderer, Style};
use crate::{store, train};

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

impl Models {
    pub(super) fn new(reporter: Reporter) -> Self {
        Self { reporter, open: BTreeMap::new(), next: 0 }
    }

    pub(super) fn answer(&mut self, call: ModelCall) {
        use ModelCall as Call;
        match call {
            Call::OpenModel(request, reply) => reply.send(self.open(request)),
            Call::CloseModel(request, reply) => {
                self.open.remove(&request.model);
                reply.send(Ok(()));
            }
            Call::TextDir(request, reply) => reply.send(self.text_dir(&request.name)),
            Call::ModelConfig(request, reply) => {
                reply.send(self.opened(request.model).map(|opened| opened.model.config.to_json()));
            }
            Call::ModelDir(request, reply) => {
                reply.send(self.opened(request.model).map(|opened| opened.dir.clone()));
            }
            Call::Logprobs(request, reply) => {
                reply.send(self.opened(request.model).and_then(|opened| opened.logprobs(&request)));
            }
            Call::Score(request, reply) => {
                reply.send(self.opened(request.model).and_then(|opened| opened.score(request)));
            }
            Call::Logits(request, reply) => {
                reply.send(self.opened(request.model).and_then(|opened| opened.logits(&request.ids)));
            }
            Call::Generate(request, reply) => self.generate(vec![(request, reply)]),
            // Reward models are separate (`reward_models`).
            Call::OpenRewardModel(..) | Call::Reward(..) => {}
        }
    }

    fn opened(&mut self, model: u64) -> Result<&mut Opened> {
        self.open.get_mut(&model).ok_or_else(|| Error::new(Kind::Internal, "the model is not open"))
    }

    /// Generates a batch of responses; `calls` are all for the model of the first.
    pub(super) fn generate(&mut self, calls: Vec<(Generate, Reply<Response>)>) {
        let model = calls.first().map_or(0, |(first, _)| first.model);
        let (requests, replies): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        match self.opened(model) {
            Ok(opened) => {
                let results = opened.generate(requests);
                replies.into_iter().zip(results).for_each(|(reply, result)| reply.send(result));
            }
            Err(error) => replies.into_iter().for_each(|reply| reply.send(Err(error.clone()))),
        }
    }

    /// Serves the requests of trajectories until the last one is complete.
    pub(super) fn serve(&mut self, model: u64, queue: Queue) -> Result<()> {
        self.opened(model)?.engine.serve(queue).map(drop)
    }

    /// Directory of a tokenizer and a template: a run's newest checkpoint, or the model of a name.
    fn text_dir(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(name);
        let fetching = Fetching { reporter: &self.reporter, interrupt: None };
        if path.exists() { store::find_model(path) } else { load::text_dir(name, fetching) }
    }

    fn open(&mut self, OpenModel { mut policy, format }: OpenModel) -> Result<u64> {
        let path = Path::new(&policy.model);
        if path.exists() {
            policy.model = store::find_model(path)?.display().to_string();
        }
        let (model, dir) = load::load_model(&policy, Fetching { reporter: &self.reporter, interrupt: None })?;
        let model = Rc::new(model);
        let format = FormatChoice::named(format.as_deref().unwrap_or(AUTO))?;
        let with_text = dir.join("tokenizer.json").exists();
        let renderer =
            if with_text { Some(load::load_renderer(&dir, &Style::of_format(format), &self.reporter)?) } else { None };
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
        Ok(self.next)
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

impl Opened {
    fn check(&self, ids: &[u32]) -> Result<()> {
        let refuse = |message: String| Err(Error::new(Kind::Script, message));
        let (vocab, limit) = (self.model.config.vocab_size, self.model.config.longest_context());
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return refuse(format!("token id {id} is outside the vocabulary of {vocab}"));
        }
        if ids.len() > limit {
            return refuse(format!("{} ids are more than the model's context of {limit}", ids.len()));
        }
        Ok(())
    }

    /// Hidden states `[T, E]` of one row.
    fn hidden(&self, ids: &[u32]) -> Result<Tensor> {
        self.check(ids)?;
        self.model.forward(&Packed::from_rows(&[ids], self.model.device())?)
    }

    /// For each id after the first: its log-probability, and the most likely ids at its position.
    fn logprobs(&self, Logprobs { ids, top, temperature, .. }: &Logprobs) -> Result<ScoredIds> {
        let (vocab, top, temperature) = (self.model.config.vocab_size, *top, *temperature);
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
    fn score(&self, Score { prompt, text, temperature, .. }: Score) -> Result<Vec<f64>> {
        let mut ids = self.prompt(prompt, &[])?;
        let from = ids.len();
        match &self.renderer {
            Some(renderer) => ids.extend(renderer.tokenizer().encode(&text)?),
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
    fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f64>>> {
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

    /// Generates responses as one batch, in the order of `calls`.
    fn generate(&mut self, calls: Vec<Generate>) -> Vec<Result<Response>> {
        let (client, queue) = engine::channel();
        let submitted: Vec<Result<_>> = calls
            .into_iter()
            .map(|call| {
                let request = self.request(call)?;
                Ok((Arc::clone(&request.stop_ids), client.submit(request)))
            })
            .collect();
        drop(client);
        let served = self.engine.serve(queue);
        let gone = || Error::new(Kind::Internal, "the engine lost a request");
        let all = submitted.into_iter().map(|submitted| {
            let (stop_ids, reply) = submitted?;
            let reply = reply.blocking_recv().map_err(|_| served.as_ref().err().cloned().unwrap_or_else(gone))??;
            Ok(self.response(reply, &stop_ids))
        });
        all.collect()
    }

    fn request(&mut self, Generate { prompt, options, sampling, .. }: Generate) -> Result<Request> {
        let sampling = sampling.over(&self.sampling)?;
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
            chat: None,
        })
    }

    fn response(&self, reply: Completion, stop_ids: &[u32]) -> Response {
        let token_ids = match reply.token_ids.split_last() {
            Some((last, token_ids)) if stop_ids.contains(last) => token_ids,
            _ => &reply.token_ids,
        };
        let text = self.renderer.as_ref().map(|renderer| renderer.tokenizer().decode(token_ids, false));
        let one = |&(id, logprob): &(u32, f32)| TokenLogprob { id, logprob: f64::from(logprob) };
        let top: Vec<Vec<_>> = reply.top_logprobs.iter().map(|position| position.iter().map(one).collect()).collect();
        Response {
            text,
            logprobs: reply.logprobs.iter().map(|&logprob| f64::from(logprob)).collect(),
            finish_reason: reply.finish_reason,
            top_logprobs: Some(top).filter(|top| !top.is_empty()),
            token_ids: reply.token_ids,
        }
    }

    fn prompt(&self, prompt: Prompt, tools: &[Json]) -> Result<Vec<u32>> {
        let renderer = || {
            self.renderer
                .as_ref()
                .ok_or_else(|| Error::new(Kind::Script, "the model has no tokenizer.json, so it takes token ids only"))
        };
        match prompt {
            Prompt::Text(text) => renderer()?.tokenizer().encode(&text),
            Prompt::Ids(ids) => Ok(ids),
            Prompt::Messages(messages) => renderer()?.prompt(&messages, tools),
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

    use serde_json::json;

    use super::*;
    use crate::config::PolicySettings;
    use crate::mdp::Seed;
    use crate::script::services::model::ResponseOptions;

    #[test]
    fn batched_generate_equals_separate_generate() {
        let mut models = Models::new(Reporter::silent());
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
        let policy = Box::new(PolicySettings { model: nano.display().to_string(), ..PolicySettings::default() });
        let model = models.open(OpenModel { policy, format: None }).unwrap();
        let generate = |prompt, seed| {
            let sampling = serde_json::from_value(json!({ "temperature": 1, "max_new_tokens": 12 })).unwrap();
            let options = ResponseOptions { seed: Seed(seed), ..ResponseOptions::default() };
            Generate { model, prompt, options, sampling }
        };
        let calls: Vec<Generate> =
            (0..6).map(|seed| generate(Prompt::Text(format!("What is {seed} + 3?")), seed)).collect();
        let opened = models.opened(model).unwrap();
        let alone: Vec<Response> =
            calls.iter().map(|one| opened.generate(vec![one.clone()]).remove(0).unwrap()).collect();
        let mut mixed = calls;
        mixed.insert(2, generate(Prompt::Ids(vec![u32::MAX]), 0));
        let mut together = opened.generate(mixed);
        // An invalid call fails alone.
        assert!(together.remove(2).is_err());
        for (mut actual, mut expected) in together.into_iter().map(Result::unwrap).zip(alone) {
            // Without the CPU kernels the last bits depend on the batch.
            if !crate::native::has_cpu_kernels() {
                let actual = std::mem::take(&mut actual.logprobs);
                let expected = std::mem::take(&mut expected.logprobs);
                assert!(actual.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
            }
            assert_eq!(actual, expected);
        }
        assert_eq!(opened.engine.progress().stats().max_batch, 6);
    }
}
