//! The client of a server: one reply, with retries.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::api::ChatApi;
use super::failure::ServerFailure;
use super::reply::{PartialReply, RawReply, Show};
use super::sampling::ServerSampling;
use super::stream::{EVENT, EventPart, events};
use super::{anthropic, openai};
use crate::config::ServerApi;
use crate::error::{Error, Kind, Result};
use crate::mdp::ServerChat;
use crate::net::{self, Client, Response, WebRequest};

/// The longest wait before another attempt.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The longest wait that a server may request in rollouts.
const LONGEST_REQUESTED_WAIT: Duration = Duration::from_mins(5);

/// Maximum pieces of a reply: servers send a piece for one or more tokens, some for each character.
/// A reply with more does not end.
fn most_pieces(max_tokens: Option<usize>) -> usize {
    max_tokens.map_or(1 << 20, |tokens| tokens.saturating_mul(16).saturating_add(1024))
}

/// Options of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The URL that `/chat/completions` or `/messages` is appended to.
    pub base: String,
    pub api: ServerApi,
    /// The name of the model on the server.
    pub model: String,
    /// The flag or setting that has the URL, for messages.
    pub setting: &'static str,
    /// Longest wait for the next piece of a reply: a server may have a queue.
    pub silence: Duration,
    /// Maximum attempts of a request.
    pub attempts: u32,
    pub patience: Patience,
}

/// The failures after which a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A user waits, and has seen the beginning of the reply: only a busy server.
    Chat,
    /// Every failure that may be transient.
    Rollout,
}

/// The API of a URL: Anthropic's for Anthropic's own host.
fn api_of(choice: ServerApi, base: &str) -> &'static ChatApi {
    let host = || net::host_and_port(base).map(|(host, _)| host);
    match choice {
        ServerApi::Anthropic => &anthropic::API,
        ServerApi::Auto if host().as_deref() == Some("api.anthropic.com") => &anthropic::API,
        ServerApi::OpenAi | ServerApi::Auto => &openai::API,
    }
}

/// A model behind a server.
#[derive(Debug)]
pub struct Server {
    client: Client,
    pub(super) options: ServerOptions,
    pub(super) api: &'static ChatApi,
    pub(super) key: Option<String>,
    /// The model requires OpenAI's new name of the limit on tokens; found out by the first request.
    new_limit: AtomicBool,
}

impl Server {
    /// The key comes from OPENAI_API_KEY or ANTHROPIC_API_KEY.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a URL that is not http or contains a password, and for a damaged key.
    pub fn new(options: ServerOptions) -> Result<Self> {
        let base = options.base.trim().trim_end_matches('/').to_owned();
        let setting = options.setting;
        if net::origin(&base).is_none() {
            return Err(Error::new(Kind::Usage, format!("{setting} is `{base}`, which is not an http URL"))
                .hint(format!("as in {}", written(setting, "http://localhost:8000/v1"))));
        }
        let api = api_of(options.api, &base);
        let variable = api.key_variable;
        // Settings are part of the records of a run.
        if base.contains(['@', '?', '#']) {
            let message = format!("{setting} has a user, a query or a fragment, and URLs are stored with a run");
            return Err(Error::new(Kind::Usage, message).hint(format!("leave it out; the key is {variable}")));
        }
        let key = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| key.bytes().any(|byte| !byte.is_ascii_graphic())) {
            return Err(Error::new(Kind::Usage, format!("{variable} has characters that no key has")));
        }
        let client = Client::new(options.silence)?;
        let options = ServerOptions { base, ..options };
        Ok(Self { client, options, api, key, new_limit: AtomicBool::new(false) })
    }

    pub fn model(&self) -> &str {
        &self.options.model
    }

    /// The URL.
    pub fn base(&self) -> &str {
        &self.options.base
    }

    /// A reply; `show` receives its text as it arrives. After `stop` the reply so far is returned.
    ///
    /// # Errors
    /// The last failure, after the attempts that [`ServerOptions`] allow.
    pub fn reply(
        &self,
        chat: &ServerChat,
        sampling: &ServerSampling,
        stop: &dyn Fn() -> bool,
        show: &mut Show<'_>,
    ) -> Result<RawReply, ServerFailure> {
        let mut attempt = 0;
        loop {
            let mut partial = PartialReply::default();
            let failure = match self.attempt(chat, sampling, &mut partial, stop, show) {
                Ok(()) => return Ok(partial.finish(chat.calls, false, attempt)),
                Err(ServerFailure::Stopped) => return Ok(partial.finish(chat.calls, true, attempt)),
                Err(failure) => failure,
            };
            attempt += 1;
            let Some(wait) = self.wait(&failure, attempt) else { return Err(failure) };
            if net::pause(wait, stop).is_err() {
                return Ok(PartialReply::default().finish(chat.calls, true, attempt));
            }
        }
    }

    /// The wait before the next attempt; `None` if there is none.
    fn wait(&self, failure: &ServerFailure, attempts: u32) -> Option<Duration> {
        let (after, status) = match failure {
            ServerFailure::Refused { after, status, .. } => (*after, Some(*status)),
            _ => (None, None),
        };
        let (again, longest) = match self.options.patience {
            Patience::Chat => (matches!(status, Some(429 | 502..=504)), LONGEST_WAIT),
            Patience::Rollout => (failure.is_transient(), LONGEST_REQUESTED_WAIT),
        };
        if !again || attempts >= self.options.attempts || after.is_some_and(|wait| wait > longest) {
            return None;
        }
        Some(after.unwrap_or_else(|| backoff(attempts)))
    }

    /// One request and its response.
    fn attempt(
        &self,
        chat: &ServerChat,
        sampling: &ServerSampling,
        partial: &mut PartialReply,
        stop: &dyn Fn() -> bool,
        show: &mut Show<'_>,
    ) -> Result<(), ServerFailure> {
        let response = self.send(chat, sampling, stop)?;
        let (piece_limit, mut pieces) = (most_pieces(sampling.max_tokens), 0);
        let mut event = |event: &Value| {
            let before = (partial.pieces, partial.finish);
            (self.api.event)(partial, event, show)?;
            if partial.bytes() > EVENT {
                return Err(ServerFailure::Foreign(format!("its reply has more than {} MiB", EVENT >> 20)));
            }
            if event["type"] == "message_stop" {
                return Ok(EventPart::End);
            }
            if before == (partial.pieces, partial.finish) {
                return Ok(EventPart::Nothing);
            }
            pieces += 1;
            if pieces > piece_limit {
                let tokens = sampling
                    .max_tokens
                    .map_or_else(String::new, |max_tokens| format!(", and max_tokens is {max_tokens}"));
                return Err(ServerFailure::Foreign(format!("its reply has more than {piece_limit} pieces{tokens}")));
            }
            Ok(EventPart::Piece)
        };
        events(response, self.options.silence, stop, &mut event)?;
        match partial.finish {
            Some(_) => Ok(()),
            None if partial.is_of_api => Err(ServerFailure::BrokeOff(None)),
            None => Err(ServerFailure::Foreign(self.api.lacking.to_owned())),
        }
    }

    /// Sends the request; once more with the new name of the limit on tokens if the model needs it.
    fn send(
        &self,
        chat: &ServerChat,
        sampling: &ServerSampling,
        stop: &dyn Fn() -> bool,
    ) -> Result<Response, ServerFailure> {
        loop {
            let new_limit = self.new_limit.load(Ordering::Relaxed);
            let body = (self.api.body)(&self.options.model, chat, sampling, new_limit)
                .map_err(|error| ServerFailure::Unsupported(Box::new(error)))?;
            let request = WebRequest {
                method: "POST",
                url: format!("{}{}", self.options.base, self.api.path),
                headers: self.headers(),
                body: Some(body.to_string().into_bytes()),
            };
            let response = self.client.send(request, stop).map_err(ServerFailure::before)?;
            let status = response.status;
            if (200..300).contains(&status) {
                return Ok(response);
            }
            let seconds = response.header("retry-after").and_then(|wait| wait.parse::<f64>().ok());
            let after = seconds.and_then(|wait| Duration::try_from_secs_f64(wait).ok());
            let moved = response.header("location").filter(|_| (300..400).contains(&status));
            let moved = moved.map(|to| to.strip_suffix(self.api.path).unwrap_or(to).to_owned());
            let body = response.bytes(EVENT, self.options.silence, stop).unwrap_or_default();
            if status == 400 && !new_limit && (self.api.wants_new_limit)(&body) {
                self.new_limit.store(true, Ordering::Relaxed);
                continue;
            }
            return Err(ServerFailure::refused(status, after, moved, &body));
        }
    }

    fn headers(&self) -> Vec<(std::borrow::Cow<'static, str>, String)> {
        let mut headers = vec![
            ("content-type".into(), "application/json".to_owned()),
            ("accept".into(), "text/event-stream, application/json".to_owned()),
        ];
        headers.extend(self.api.headers.iter().map(|(name, value)| ((*name).into(), (*value).to_owned())));
        let (name, before) = self.api.key_header;
        headers.extend(self.key.iter().map(|key| (name.into(), format!("{before}{key}"))));
        headers
    }
}

/// 1, 2, 4, … seconds, at most [`LONGEST_WAIT`], less up to a half: many requests that failed
/// together do not come back together.
fn backoff(attempts: u32) -> Duration {
    let longest = Duration::from_secs(1 << (attempts - 1).min(6)).min(LONGEST_WAIT);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    longest.mul_f64(1.0 - 0.5 * f64::from(nanos % 1000) / 1000.0)
}

/// A flag or a setting with a value, as typed.
fn written(setting: &str, value: &str) -> String {
    if setting.starts_with("--") { format!("{setting} {value}") } else { format!("{setting}={value}") }
}
