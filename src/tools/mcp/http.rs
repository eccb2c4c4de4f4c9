//! Streamable HTTP: the requests of `rmcp` over `net`, with the address rules of `r1.http`.
//!
//! Answers are JSON or a stream of server-sent events. The stream of messages without a request
//! (`GET`) is opened where a server has it: progress may come there. Redirects are not followed.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io::Cursor;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, iter, unfold};
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::super::child::lock;
use super::MOST_MESSAGE;
use super::messages::{MessagePart, addressed, beginning, is_answer_to, read};
use crate::error::{Error, Kind, Result};
use crate::net::{AllowedAddresses, Client, Fault, HeaderName, HeaderValue, Incoming, WebRequest};

const SESSION: &str = "mcp-session-id";
/// Time without data after the time limit of a call before its connection is closed.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent calls of one server.
const CALLS: usize = 256;
/// Maximum number of attempts of a request to a server that is busy, and half of the first wait.
const ATTEMPTS: u32 = 3;
const BUSY: Duration = Duration::from_millis(250);

/// A failed exchange, with the message of `net`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HttpFault(String);

type HttpFailure = StreamableHttpError<HttpFault>;

/// The transport to a server.
///
/// # Errors
/// [`Kind::Usage`] for certificates that can't be read.
pub(super) fn transport(
    url: &str,
    headers: &[(String, String)],
    reach: AllowedAddresses,
    timeout: Duration,
) -> Result<(StreamableHttpClientTransport<McpHttpClient>, LastFault)> {
    let silence = timeout + GRACE;
    let client = match reach {
        AllowedAddresses::Anywhere => Client::new(silence)?,
        AllowedAddresses::Public => Client::public(silence)?,
        AllowedAddresses::Nowhere => {
            return Err(Error::new(Kind::Script, format!("the recipe does not declare that it needs {url}")));
        }
    };
    let last = LastFault::default();
    let backend = McpHttpClient { client, headers: headers.to_vec().into(), last: last.clone(), timeout };
    let config = StreamableHttpClientTransportConfig::with_uri(url).max_concurrent_requests(CALLS);
    Ok((StreamableHttpClientTransport::with_client(backend, config), last))
}

/// The last failure of a transport. `rmcp` does not pass on all of them.
#[derive(Clone, Default)]
pub(super) struct LastFault(Arc<Mutex<Option<String>>>);

impl LastFault {
    pub(super) fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn note(&self, why: String) {
        *lock(&self.0) = Some(why);
    }
}

/// The cause of a failed exchange.
pub(super) fn reason(error: &(dyn StdError + 'static)) -> String {
    match error.downcast_ref::<HttpFailure>() {
        Some(StreamableHttpError::Client(fault)) => fault.to_string(),
        Some(StreamableHttpError::UnexpectedServerResponse(what)) => what.to_string(),
        Some(StreamableHttpError::SessionExpired) => "its session has expired".to_owned(),
        _ => error.to_string(),
    }
}

/// The HTTP client of `rmcp`.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    client: Client,
    headers: Arc<[(String, String)]>,
    last: LastFault,
    /// The time limit of a call.
    timeout: Duration,
}

fn fault(fault: Fault) -> HttpFailure {
    StreamableHttpError::Client(HttpFault(match fault {
        Fault::Absent(why) => format!("no connection: {why}"),
        Fault::Broken(why) | Fault::NotPublic(why) => why,
        Fault::Stopped => "stopped".to_owned(),
    }))
}

fn unexpected(what: impl Into<String>) -> HttpFailure {
    StreamableHttpError::UnexpectedServerResponse(what.into().into())
}

impl McpHttpClient {
    async fn send(
        &self,
        (method, url): (&'static str, &str),
        body: Option<Vec<u8>>,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<Incoming, HttpFailure> {
        let mut headers = vec![("accept".into(), "application/json, text/event-stream".to_owned())];
        if body.is_some() {
            headers.push(("content-type".into(), "application/json".to_owned()));
        }
        headers.extend(session.map(|id| (SESSION.into(), id.to_owned())));
        for (name, value) in &custom {
            headers.extend(value.to_str().ok().map(|value| (name.as_str().to_owned().into(), value.to_owned())));
        }
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone().into(), value.clone())));
        let request = WebRequest { method, url: url.to_owned(), headers, body };
        self.client.open(request).await.map_err(fault)
    }

    async fn post(
        &self,
        url: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<StreamableHttpPostResponse, HttpFailure> {
        let body = serde_json::to_vec(message)?;
        let mut attempt = 1;
        let response = loop {
            let response = self.send(("POST", url), Some(body.clone()), session, custom.clone()).await?;
            // A server that is busy has not run the tool.
            let Some(wait) = self.wait(&response, attempt) else { break response };
            drop(response);
            tokio::time::sleep(wait).await;
            attempt += 1;
        };
        let (status, session_id) = (response.status, response.header(SESSION).map(str::to_owned));
        let kind = response.header("content-type").unwrap_or_default().to_lowercase();
        match status {
            202 | 204 => return Ok(StreamableHttpPostResponse::Accepted),
            404 if session.is_some() => return Err(StreamableHttpError::SessionExpired),
            301..=308 => {
                let to = response.header("location").unwrap_or("elsewhere");
                return Err(unexpected(format!("it redirects to {to}, which is not followed: give that URL")));
            }
            401 | 403 => {
                let what = if status == 401 { "401 Unauthorized" } else { "403 Forbidden" };
                return Err(unexpected(format!("HTTP {what}: `headers` sends a token, such as r1.secret(…)")));
            }
            _ => {}
        }
        let awaited = match message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        if kind.starts_with("text/event-stream") && status == 200 {
            return Ok(StreamableHttpPostResponse::Sse(events(response, awaited, self.last.clone()), session_id));
        }
        let bytes = response.whole(MOST_MESSAGE).await.map_err(fault)?;
        let is_success = (200..300).contains(&status);
        let Some(id) = awaited else {
            if is_success {
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            return Err(foreign(status, &kind, &bytes));
        };
        // The body is the answer to this request, or there is none.
        let messages = addressed(read(&bytes).unwrap_or_default(), &id);
        let is_used = |message: &ServerJsonRpcMessage| {
            is_answer_to(message, &id) && (is_success || matches!(message, ServerJsonRpcMessage::Error(_)))
        };
        if !messages.iter().any(is_used) {
            return Err(foreign(status, &kind, &bytes));
        }
        match <[ServerJsonRpcMessage; 1]>::try_from(messages) {
            Ok([message]) => Ok(StreamableHttpPostResponse::Json(message, session_id)),
            Err(batch) => Ok(StreamableHttpPostResponse::Sse(
                iter(batch.iter().map(|message| Ok(event(message))).collect::<Vec<_>>()).boxed(),
                session_id,
            )),
        }
    }

    /// The wait before a request is sent again; `None` if it is not.
    fn wait(&self, response: &Incoming, attempt: u32) -> Option<Duration> {
        if !matches!(response.status, 429 | 503) || attempt == ATTEMPTS {
            return None;
        }
        let requested = response.header("retry-after").and_then(|wait| wait.parse::<f64>().ok());
        let requested = requested.and_then(|wait| Duration::try_from_secs_f64(wait).ok());
        let wait = requested.unwrap_or(BUSY * (1 << attempt));
        (wait < self.timeout).then_some(wait)
    }
}

/// The failure for a response that is not an answer of the protocol.
fn foreign(status: u16, kind: &str, body: &[u8]) -> HttpFailure {
    let kind = if kind.is_empty() { "no type" } else { kind };
    unexpected(format!("HTTP {status} ({kind}) is not an answer of an MCP server: {:?}", beginning(body)))
}

fn event(message: &ServerJsonRpcMessage) -> Sse {
    Sse { data: serde_json::to_string(message).ok(), event: None, id: None, retry: None }
}

/// The events of a response, up to [`MOST_MESSAGE`] bytes in all; `awaited`: the request that it is
/// the response to. `rmcp` drops the error that ends them, so that it is noted as the last failure.
fn events(
    response: Incoming,
    awaited: Option<RequestId>,
    last: LastFault,
) -> BoxStream<'static, std::result::Result<Sse, SseError>> {
    let pieces = unfold((response, last, 0), |(mut response, last, mut seen)| async move {
        let piece = response.next().await?;
        let piece = match piece {
            Ok(bytes) => {
                seen += bytes.len();
                if seen > MOST_MESSAGE {
                    Err(HttpFault(format!("the answer has more than {} MiB", MOST_MESSAGE >> 20)))
                } else {
                    Ok(Cursor::new(bytes))
                }
            }
            Err(Fault::Broken(why) | Fault::Absent(why) | Fault::NotPublic(why)) => Err(HttpFault(why)),
            Err(Fault::Stopped) => Err(HttpFault("stopped".to_owned())),
        };
        if let Err(HttpFault(why)) = &piece {
            last.note(why.clone());
        }
        Some((piece, (response, last, seen)))
    });
    let rewrite = move |read_event: std::result::Result<Sse, SseError>| match read_event {
        Ok(event) => iter(rewritten(event, awaited.as_ref())),
        Err(error) => iter(vec![Err(error)]),
    };
    SseStream::from_bytes_stream(pieces).flat_map(rewrite).boxed()
}

/// The events that `rmcp` reads for an event of a server.
fn rewritten(received: Sse, awaited: Option<&RequestId>) -> Vec<std::result::Result<Sse, SseError>> {
    // Other events, such as `ping`, are not messages.
    if !matches!(received.event.as_deref(), None | Some("" | "message")) {
        return vec![Ok(received)];
    }
    let parts = received.data.as_deref().and_then(|data| read(data.as_bytes())).unwrap_or_default();
    let messages = match awaited {
        Some(id) => addressed(parts, id),
        None => parts
            .into_iter()
            .filter_map(|part| if let MessagePart::Message(received) = part { Some(*received) } else { None })
            .collect(),
    };
    // Its id and its wait count without a message too.
    let head = Sse { event: None, data: None, ..received };
    std::iter::once(Ok(head)).chain(messages.iter().map(|message| Ok(event(message)))).collect()
}

impl StreamableHttpClient for McpHttpClient {
    type Error = HttpFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<StreamableHttpPostResponse, HttpFailure> {
        let posted = self.post(&uri, &message, session_id.as_deref(), custom_headers).await;
        posted.inspect_err(|error| self.last.note(reason(error)))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<(), HttpFailure> {
        let response = self.send(("DELETE", &uri), None, Some(&session_id), custom_headers).await?;
        if response.status == 405 { Err(StreamableHttpError::ServerDoesNotSupportDeleteSession) } else { Ok(()) }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        mut custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<BoxStream<'static, std::result::Result<Sse, SseError>>, HttpFailure> {
        if let Some(last) = last_event_id.and_then(|last| HeaderValue::from_str(&last).ok()) {
            custom_headers.insert(HeaderName::from_static("last-event-id"), last);
        }
        let response = self.send(("GET", &uri), None, session_id.as_deref(), custom_headers).await?;
        let kind = response.header("content-type").unwrap_or_default().to_lowercase();
        match response.status {
            200 if kind.starts_with("text/event-stream") => Ok(events(response, None, self.last.clone())),
            404 if session_id.is_some() => Err(StreamableHttpError::SessionExpired),
            _ => Err(StreamableHttpError::ServerDoesNotSupportSse),
        }
    }
}
