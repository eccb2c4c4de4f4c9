//! `r1.generate`: the policy or a named model generates a text for the script, such as a summary or
//! a judgement.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

use super::args::{check_text, fail};
use super::argument::{NonNegative, TextArguments, argument};
use super::arguments::{Arguments, arguments};
use super::endpoint::ModelEndpoint;
use super::image;
use super::outcome::{NilReason, OutsideCall, outcome_of};
use super::policy::check_stop;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, GeneratedText, Message, Outcome, SampledTokens, Seed};
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::{Call, Host};
use crate::script::runtime::named_models::{ModelInput, ResponseOptions, ResponseRequest, shared_models};
use crate::script::runtime::policy_request::{GenerateOptions, GenerateRequest, PolicyRequest, SampledText};

const NAME: &str = "r1.generate";

arguments! {
    /// Options of `r1.generate`.
    pub(super) struct GenerateArguments {
        model: ModelChoice = ModelChoice::Policy;
        max_new_tokens: Option<usize>;
        temperature: Option<NonNegative>;
        top_k: Option<usize>;
        top_p: Option<NonNegative>;
        min_p: Option<NonNegative>;
        stop: TextArguments = TextArguments::default();
        train: bool = false;
    }
}

/// The option `model`.
pub(super) enum ModelChoice {
    Policy,
    Named(String),
    /// A table for [`ModelEndpoint::read`].
    Server(Value),
}

argument!(ModelChoice, "a name, or { url =, name =, key = }", |value| {
    match value {
        Value::String(name) => Some(Self::Named(name.to_string_lossy())),
        Value::Table(_) => Some(Self::Server(value.clone())),
        _ => None,
    }
});

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    bind_async(lua, r1, "generate", move |lua, (prompt, options): (Value, Value)| {
        let call = host.current();
        let arguments = read(&lua, &host, &prompt, &options);
        let target = arguments.as_ref().ok().and_then(|arguments| match &arguments.model {
            Writer::Endpoint(endpoint) => Some(endpoint.target()),
            _ => None,
        });
        let (outside, host) = (OutsideCall::new(&lua, NAME, target), host.clone());
        async move {
            let GenerateCall { messages, options, model } = arguments?;
            let seed = call.random();
            let mut request = json!({ "messages": messages, "train": options.train, "seed": seed });
            match &model {
                Writer::Policy => {}
                Writer::Model(name) => request["model"] = json!(name),
                Writer::Endpoint(endpoint) => request["model"] = endpoint.shown(),
            }
            if let (Json::Object(request), Json::Object(options)) = (&mut request, json!(options)) {
                request.extend(options);
            }
            let live = async {
                match model {
                    Writer::Policy => write(&call, messages, options, seed).await,
                    Writer::Endpoint(endpoint) => endpoint.complete(NAME, &host, &messages, &options).await,
                    Writer::Model(name) => write_with(&name, messages.clone(), &options, seed).await,
                }
            };
            let convert = |GeneratedText { text, finish_reason, tokens, .. }: GeneratedText| {
                let facts = lua.create_table_with_capacity(0, 2)?;
                facts.raw_set("finish_reason", finish_reason.name())?;
                facts.raw_set("tokens", tokens)?;
                Ok((text, facts))
            };
            Ok(match outside.answer(&call, ("generate", request), live, convert).await? {
                Ok((text, facts)) => (Some(text), Value::Table(facts)),
                Err(NilReason(error)) => (None, Value::String(lua.create_string(error)?)),
            })
        }
    })
}

struct GenerateCall {
    messages: Vec<Message>,
    options: GenerateOptions,
    model: Writer,
}

/// The generating model.
enum Writer {
    Policy,
    /// A model by name.
    Model(String),
    /// A model behind a server.
    Endpoint(ModelEndpoint),
}

fn read(lua: &Lua, host: &Rc<Host>, prompt: &Value, options: &Value) -> mlua::Result<GenerateCall> {
    let messages = match prompt {
        Value::String(text) => vec![Message::user(text.to_string_lossy())],
        Value::Table(list) => image::read_messages(lua, NAME, list)?,
        other => return Err(fail(lua, NAME, format!("takes messages or text, got {}", kind(other)))),
    };
    check_text(lua, NAME, &messages)?;
    let arguments = GenerateArguments::read_optional(lua, NAME, options)?;
    let model = match arguments.model {
        ModelChoice::Policy => Writer::Policy,
        ModelChoice::Named(name) => Writer::Model(name),
        ModelChoice::Server(server) => Writer::Endpoint(ModelEndpoint::read(lua, host, NAME, &server)?),
    };
    let train = arguments.train;
    check_stop(lua, NAME, &arguments.stop)?;
    let options = GenerateOptions {
        max_new_tokens: arguments.max_new_tokens,
        temperature: arguments.temperature.map(f64::from),
        top_k: arguments.top_k,
        top_p: arguments.top_p.map(f64::from),
        min_p: arguments.min_p.map(f64::from),
        stop: arguments.stop.0,
        train,
    };
    if train && !matches!(model, Writer::Policy) {
        return Err(fail(lua, NAME, "`train` is for text of the policy, and `model` is another model"));
    }
    let is_policy =
        options.temperature.is_some() || options.top_k.is_some() || options.top_p.is_some() || options.min_p.is_some();
    if train && is_policy {
        let why = "with `train` the policy uses the recipe's `sampling`: leave out temperature, top_k, top_p, min_p";
        return Err(fail(lua, NAME, why));
    }
    Ok(GenerateCall { messages, options, model })
}

/// Generates with the policy. If the tokens are trained on, they are recorded.
async fn write(
    call: &Call,
    messages: Vec<Message>,
    options: GenerateOptions,
    seed: u64,
) -> Result<Outcome<GeneratedText>> {
    let (reply, written) = oneshot::channel();
    let train = options.train;
    if !call.record.send(PolicyRequest::Generate(GenerateRequest { messages, options, seed, reply })) {
        return Err(Error::new(Kind::Script, "r1.generate: there is no policy here")
            .hint("r1 repl and r1 infer have one; a test gives the texts: script:reset { generate = { \"text\" } }"));
    }
    let gone = || Error::new(Kind::Interrupted, "r1.generate: the policy stopped before it replied");
    let written = written.await.map_err(|_| gone())?;
    outcome_of(written.map(|written| generated_text(written, train)))
}

fn generated_text(SampledText { prompt_ids, completion, text }: SampledText, train: bool) -> GeneratedText {
    let tokens = Some(completion.tokens() as u64);
    let prompt_tokens = completion.server.as_ref().map(|server| server.reply.usage.prompt_tokens);
    let Completion { token_ids, logprobs, finish_reason, support, .. } = completion;
    let sampled = train.then_some(SampledTokens { prompt_ids, token_ids, logprobs, support });
    GeneratedText { text, finish_reason, tokens, prompt_tokens, sampled }
}

/// Generates with a model by name.
async fn write_with(
    name: &str,
    messages: Vec<Message>,
    options: &GenerateOptions,
    seed: u64,
) -> Result<Outcome<GeneratedText>> {
    let mut sampling = options.fields();
    // The texts of the model's own settings do not apply.
    sampling.entry("stop").or_insert_with(|| json!([]));
    let options = ResponseOptions { seed: Seed(seed), ..ResponseOptions::default() };
    let request = ResponseRequest { prompt: ModelInput::Messages(messages), options, sampling: sampling.into() };
    let response = shared_models(NAME, name)?.generate(name, request).await?;
    Ok(Outcome::Ok(GeneratedText {
        text: response.text.unwrap_or_default(),
        finish_reason: response.finish_reason,
        tokens: Some(response.token_ids.len() as u64),
        prompt_tokens: None,
        sampled: None,
    }))
}
