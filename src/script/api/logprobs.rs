//! `r1.logprobs`: log-probabilities of a text under the policy, the reference policy or a model by
//! name.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;

use super::args::{Fields, fail, fail_with, raise};
use super::generate::Opened;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Failed, Message, Outcome};
use crate::script::runtime::convert::{from_answer, kind};
use crate::script::runtime::host::{Call, Host};
use crate::script::runtime::messages::messages;
use crate::script::runtime::policy_request::{LogprobsRequest, PolicyRequest};
use crate::script::runtime::services::model::{Prompt, Score};

const NAME: &str = "r1.logprobs";

/// The text to score, and the model.
struct LogprobsCall {
    messages: Vec<Message>,
    text: String,
    model: String,
    temperature: f64,
}

/// The answer as recorded.
#[derive(Serialize, Deserialize)]
struct Scored {
    logprobs: Vec<f64>,
}

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>, opened: &Opened) -> mlua::Result<()> {
    let (host, opened) = (host.clone(), opened.clone());
    let logprobs = lua.create_async_function(move |lua, options: Value| {
        let call = host.current();
        let arguments = read(&lua, &options);
        let (host, opened) = (host.clone(), opened.clone());
        async move {
            let LogprobsCall { messages, text, model, temperature } = arguments?;
            let request = json!({ "messages": messages, "text": text, "model": model, "temperature": temperature });
            let live = async {
                let found = match model.as_str() {
                    "policy" | "reference" => score(&call, messages, text, temperature, model == "reference").await,
                    name => {
                        let (services, model) = opened.get(&host, NAME, name).await?;
                        let prompt = Prompt::Messages(messages);
                        services.call(Score { model, prompt, text, temperature }).await
                    }
                };
                match found {
                    Ok(logprobs) => Ok(Outcome::Ok(Scored { logprobs })),
                    // Errors that the script can fix: a text that is too long.
                    Err(error) if error.kind == Kind::Env => {
                        Ok(Outcome::Failed(Failed { error: error.message, undeclared: false }))
                    }
                    Err(error) => Err(error),
                }
            };
            let numbers = match call.ask("logprobs", request, live).await.map_err(raise)? {
                Outcome::Ok(Scored { logprobs }) => logprobs,
                Outcome::Failed(Failed { error, .. }) => {
                    return Ok((Value::Nil, Value::String(lua.create_string(error)?)));
                }
            };
            let sum: f64 = numbers.iter().sum();
            let mean = sum / numbers.len().max(1) as f64;
            let found = json!({ "logprobs": numbers, "sum": sum, "mean": mean, "tokens": numbers.len() });
            Ok((from_answer(&lua, &found)?, Value::Nil))
        }
    })?;
    r1.raw_set("logprobs", logprobs)
}

fn read(lua: &Lua, options: &Value) -> mlua::Result<LogprobsCall> {
    let fields = Fields::new(lua, NAME, options, &["model", "prompt", "text", "temperature"])?;
    let messages = match fields.get("prompt")? {
        Value::String(text) => vec![Message::user(text.to_string_lossy())],
        Value::Table(list) => messages(&list, "prompt").map_err(|invalid| fail_with(lua, NAME, invalid.of_script()))?,
        other => return Err(fields.refuse("prompt", "messages or text", &other)),
    };
    let Some(text) = fields.text("text")? else {
        return Err(fail(lua, NAME, "needs `text`, the text to score"));
    };
    let temperature = match fields.get("temperature")? {
        Value::Nil => 1.0,
        Value::Integer(number) if number > 0 => number as f64,
        Value::Number(number) if number > 0.0 && number.is_finite() => number,
        other => return Err(fail(lua, NAME, format!("`temperature` must be a number above 0, got {}", kind(&other)))),
    };
    let model = fields.text("model")?.unwrap_or_else(|| "policy".to_owned());
    Ok(LogprobsCall { messages, text, model, temperature })
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
