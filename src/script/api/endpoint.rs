//! A model behind an OpenAI-compatible server, for `r1.generate` and `:summarize`: `model = { url
//! =, name =, key = }`.
//!
//! The host must be declared (`needs = { "http:HOST" }`), and so must the variable of the key
//! (`"env:NAME"`). The record contains the request and the response, never the key.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Value};
use serde_json::{Value as Json, json};

use super::args::{fail, undeclared};
use super::argument::Whole;
use super::arguments::{Arguments, arguments};
use super::outcome::{self, not_public};
use super::secret::{NamedTexts, Secrets, Text};
use crate::error::{Error, Kind, Result, clip};
use crate::json;
use crate::mdp::{FinishReason, GeneratedText, Message, Outcome};
use crate::net::{HttpError, HttpRequest, HttpResponse, host_and_port, http};
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::Host;
use crate::script::runtime::policy_request::GenerateOptions;

/// Default timeout of one request.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Default number of retries; the first wait, and the longest wait that a server may request.
const RETRIES: u64 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response.
const MOST_BYTES: usize = 16 << 20;
/// Names of the limit on response tokens: for most servers, and for OpenAI's reasoning models.
const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

arguments! {
    /// The option `model` of `r1.generate` as a table: a model behind a server.
    pub(super) struct ServerArguments {
        url: Option<String>;
        name: Option<String>;
        key: Value;
        headers: NamedTexts = NamedTexts::default();
        timeout: Duration = TIMEOUT;
        retries: Whole<0, 20> = Whole(RETRIES);
    }
}

/// A model server with its timeout and retries.
pub(super) struct ModelEndpoint {
    /// URL of `/chat/completions`.
    url: String,
    name: String,
    headers: NamedTexts,
    timeout: Duration,
    retries: u32,
}

impl ModelEndpoint {
    /// Reads `{ url =, name =, key =, headers =, timeout =, retries = }`.
    ///
    /// # Errors
    /// Refuses unknown fields, and a host or a variable that the recipe does not declare.
    pub(super) fn read(lua: &Lua, host: &Rc<Host>, function: &'static str, arguments: &Value) -> mlua::Result<Self> {
        let ServerArguments { url, name, key, headers, timeout, retries } =
            ServerArguments::read(lua, function, arguments)?;
        let needed = |name: &str, arguments: Option<String>, example: &str| match arguments {
            Some(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            _ => Err(fail(lua, function, format!("`model` has no `{name}`, such as \"{example}\""))),
        };
        let base = needed("url", url, "https://api.openai.com/v1")?;
        let name = needed("name", name, "gpt-4.1-mini")?;
        let url = format!("{}/chat/completions", base.trim_end_matches('/').trim_end_matches("/chat/completions"));
        let Some((target, port)) = host_and_port(&url) else {
            let why = format!("`model.url` is `{base}`, which is not a URL: it must begin with http:// or https://");
            return Err(fail(lua, function, why));
        };
        if !host.grants.borrow().reaches(&target, port) {
            return Err(undeclared(lua, host, function, &format!("http:{target}")));
        }
        headers.check(lua, host, function)?;
        let NamedTexts(mut headers) = headers;
        if !key.is_nil() {
            let got = || format!("`model.key` must be r1.secret(NAME), got {}", kind(&key));
            let key = Text::read(&key).ok_or_else(|| fail(lua, function, got()))?;
            if !key.is_secret() {
                let why = "`model.key` is text; a key is an environment variable: key = r1.secret(\"NAME\")";
                return Err(fail(lua, function, why));
            }
            key.check(lua, host, function)?;
            headers.push(("authorization".to_owned(), Text::plain("Bearer ").joined(key)));
        }
        headers.push(("content-type".to_owned(), Text::plain("application/json")));
        Ok(Self { url, name, headers: NamedTexts(headers), timeout, retries: retries.0 as u32 })
    }

    /// Host and port.
    pub(super) fn target(&self) -> (String, u16) {
        host_and_port(&self.url).unwrap_or_default()
    }

    /// As the record names it.
    pub(super) fn shown(&self) -> Json {
        json!({ "url": self.url, "name": self.name })
    }

    /// Sends the request. It is sent again to a server that is busy or unreachable. A name that
    /// resolves to a private address returns `error` and `undeclared`.
    ///
    /// # Errors
    /// [`Kind::Env`] if there is no text: the trajectory fails and is not scored.
    pub(super) async fn complete(
        self,
        function: &str,
        host: &Host,
        messages: &[Message],
        options: &GenerateOptions,
    ) -> Result<Outcome<GeneratedText>> {
        let mut body = json!({ "model": self.name, "messages": messages });
        for (name, value) in options.fields() {
            body[if name == "max_new_tokens" { MAX_TOKENS } else { &name }] = value;
        }
        let failed = |why: String| {
            let message = format!("{function}: {} at {}: {why}", self.name, self.url);
            Error::new(Kind::Env, message)
        };
        let mut attempt = 0;
        loop {
            let mut secrets = Secrets::default();
            let sent = self.request(host, &body, &mut secrets).await?;
            let (why, wait) = match sent {
                // Another request would have the same result.
                Err(HttpError::NotPublic(why)) => {
                    return Ok(not_public(secrets.mask(why)));
                }
                Ok(answer) if answer.status == 200 => {
                    let text = String::from_utf8_lossy(&secrets.mask_bytes(answer.body)).into_owned();
                    return match parse_response(&text) {
                        Ok(generated) => Ok(Outcome::Ok(generated)),
                        // A result that the script can expect, for this prompt.
                        Err(why @ NoCompletion::Filtered) => Ok(outcome::failed(failed(why.to_string()).message)),
                        Err(why) => Err(failed(why.to_string())),
                    };
                }
                Ok(answer) => {
                    let (status, wait) = (answer.status, wait_of(&answer));
                    let text = String::from_utf8_lossy(&secrets.mask_bytes(answer.body)).into_owned();
                    if status == 400 && text.contains(MAX_COMPLETION_TOKENS) && !body[MAX_TOKENS].is_null() {
                        let limit = body[MAX_TOKENS].take();
                        body.as_object_mut().map(|body| body.remove(MAX_TOKENS));
                        body[MAX_COMPLETION_TOKENS] = limit;
                        continue;
                    }
                    let why = format!("the server answered {status}: {}", clip(text.trim(), 300));
                    if !matches!(status, 408 | 409 | 425 | 429 | 500..=599) {
                        return Err(failed(why).hint(match status {
                            401 | 403 => "the key is refused: is the variable of r1.secret(…) the right one?",
                            404 => {
                                "is `url` what /chat/completions is appended to, and is `name` a model of the server?"
                            }
                            _ => "the server does not take this request",
                        }));
                    }
                    (why, wait)
                }
                Err(HttpError::Failed(why)) => (secrets.mask(why), None),
            };
            if attempt == self.retries {
                let again = if attempt == 0 { String::new() } else { format!(" (after {} attempts)", attempt + 1) };
                return Err(failed(format!("{why}{again}")));
            }
            tokio::time::sleep(wait.unwrap_or(FIRST_WAIT * 2_u32.pow(attempt.min(6)))).await;
            attempt += 1;
        }
    }

    async fn request(
        &self,
        host: &Host,
        body: &Json,
        secrets: &mut Secrets,
    ) -> Result<std::result::Result<HttpResponse, HttpError>> {
        let (headers, hidden) = self.headers.headers(secrets)?;
        let request = HttpRequest {
            method: "POST",
            url: self.url.clone(),
            headers,
            secrets: hidden,
            body: Some(body.to_string().into_bytes()),
            timeout: self.timeout,
            max_bytes: MOST_BYTES,
        };
        let reach = |name: &str, port: u16| host.grants.borrow().reach(name, port);
        Ok(http(request, &reach).await)
    }
}

/// The wait that the server requests.
fn wait_of(answer: &HttpResponse) -> Option<Duration> {
    let (_, value) = answer.headers.iter().find(|(name, _)| name == "retry-after")?;
    Duration::try_from_secs_f64(value.trim().parse().ok()?).ok().map(|wait| wait.min(LONGEST_WAIT))
}

/// A response without the text of a completion.
#[derive(Debug, thiserror::Error)]
enum NoCompletion {
    #[error("the answer {why}: {}", clip(.body.trim(), 300))]
    Invalid { why: &'static str, body: String },
    #[error("its content filter stopped the reply")]
    Filtered,
}

fn parse_response(body: &str) -> Result<GeneratedText, NoCompletion> {
    let invalid = |why| NoCompletion::Invalid { why, body: body.to_owned() };
    let answer = json::read_foreign(body.as_bytes()).map_err(|_| invalid("is not JSON"))?;
    let choice = &answer["choices"][0];
    let finish_reason = match choice["finish_reason"].as_str() {
        Some("content_filter") => return Err(NoCompletion::Filtered),
        Some("length") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    let text = match content(&choice["message"]["content"]) {
        Some(text) => text,
        // The limit was reached within the reasoning.
        None if finish_reason == FinishReason::Length => String::new(),
        None => return Err(invalid("has no text")),
    };
    let tokens = answer["usage"]["completion_tokens"].as_u64();
    Ok(GeneratedText { text, finish_reason, tokens, prompt_tokens: None, sampled: None })
}

/// The text of a message: text, or a list of parts, of which those with reasoning are left out.
fn content(answer: &Json) -> Option<String> {
    let part = |part: &Json| match part["type"].as_str() {
        Some("text" | "output_text") => part["text"].as_str().map(str::to_owned),
        Some("thinking" | "reasoning" | "reference") => Some(String::new()),
        _ => None,
    };
    match answer {
        Json::String(text) => Some(text.clone()),
        Json::Array(parts) if !parts.is_empty() => parts.iter().map(part).collect(),
        _ => None,
    }
}
