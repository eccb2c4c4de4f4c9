//! `r1.logprobs`: log-probabilities of a text under the policy, the reference policy or a model by
//! name.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;

use super::args::{FromField, TableFields, check_text};
use super::argument::argument;
use super::arguments::{Arguments, arguments};
use super::image;
use super::outcome::{OutsideCall, outcome_of};
use crate::error::{Error, Kind, Result};
use crate::mdp::Message;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::convert::{float, from_answer};
use crate::script::runtime::host::{Call, Host};
use crate::script::runtime::messages::messages;
use crate::script::runtime::named_models::{ModelInput, shared_models};
use crate::script::runtime::policy_request::{LogprobsRequest, PolicyRequest};

const NAME: &str = "r1.logprobs";

arguments! {
    /// Arguments of `r1.logprobs`.
    pub(super) struct LogprobsArguments {
        model: String = "policy".to_owned();
        prompt: PromptArgument;
        text: String, needs("the text to score");
        temperature: Temperature = Temperature(1.0);
    }
}

/// A prompt as a script writes it.
pub(super) enum PromptArgument {
    Text(String),
    Messages(Vec<Message>),
}

impl FromField for PromptArgument {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        match value {
            Value::String(text) => Ok(Self::Text(text.to_string_lossy())),
            Value::Table(list) => {
                let list = image::stored(fields.lua, list, name)?;
                messages(&list, name).map(Self::Messages).map_err(|invalid| fields.raise(invalid.of_script()))
            }
            other => Err(fields.refuse(name, "messages or text", other)),
        }
    }
}

impl PromptArgument {
    /// The messages; a text is one message of the user.
    pub(super) fn messages(self) -> Vec<Message> {
        match self {
            Self::Text(text) => vec![Message::user(text)],
            Self::Messages(messages) => messages,
        }
    }
}

/// A number above 0.
pub(super) struct Temperature(pub(super) f64);

argument!(Temperature, "a number above 0", |value| float(value)
    .filter(|number| *number > 0.0 && number.is_finite())
    .map(Self));

/// The answer as recorded.
#[derive(Serialize, Deserialize)]
struct ScoredText {
    logprobs: Vec<f64>,
}

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    bind_async(lua, r1, "logprobs", move |lua, options: Value| {
        let call = host.current();
        let arguments = LogprobsArguments::read(&lua, NAME, &options);
        let outside = OutsideCall::new(&lua, NAME, None);
        async move {
            let LogprobsArguments { model, prompt, text, temperature } = arguments?;
            let (messages, Temperature(temperature)) = (prompt.messages(), temperature);
            check_text(&lua, NAME, &messages)?;
            check_text(&lua, NAME, &[Message::assistant(text.clone())])?;
            let request = json!({ "messages": messages, "text": text, "model": model, "temperature": temperature });
            let live = async {
                let result = match model.as_str() {
                    "policy" | "reference" => score(&call, messages, text, temperature, model == "reference").await,
                    name => {
                        let prompt = ModelInput::Messages(messages);
                        shared_models(NAME, name)?.score(name, prompt, text, temperature).await
                    }
                };
                outcome_of(result.map(|logprobs| ScoredText { logprobs }))
            };
            let convert = |ScoredText { logprobs }: ScoredText| {
                let sum: f64 = logprobs.iter().sum();
                let mean = sum / logprobs.len().max(1) as f64;
                let result = json!({ "logprobs": logprobs, "sum": sum, "mean": mean, "tokens": logprobs.len() });
                from_answer(&lua, &result)
            };
            outside.answer(&call, ("logprobs", request), live, convert).await
        }
    })
}

/// Scores the text with the policy or the reference policy.
async fn score(
    call: &Call,
    messages: Vec<Message>,
    text: String,
    temperature: f64,
    reference: bool,
) -> Result<Vec<f64>> {
    let (reply, scored) = oneshot::channel();
    if !call.record.send(PolicyRequest::Logprobs(LogprobsRequest { messages, text, temperature, reference, reply })) {
        return Err(Error::new(Kind::Script, format!("{NAME}: there is no policy here"))
            .hint("name a model: r1.logprobs { model = \"r1-nano\", prompt = …, text = … }"));
    }
    let gone = || Error::new(Kind::Interrupted, format!("{NAME}: the policy stopped before it replied"));
    let logprobs = scored.await.map_err(|_| gone())??;
    Ok(logprobs.into_iter().map(f64::from).collect())
}
