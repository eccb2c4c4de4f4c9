//! Streamable HTTP: the requests of `rmcp` over `net`, with the address rules of `r1.http`.
//!
//! Answers are JSON or a stream of server-sent events. The stream of messages without a request
//! (`GET`) is opened where a server has it: progress may come there. Redirects are not followed.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, unfold};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::MOST_MESSAGE;
use crate::error::{Error, Kind, Result};
use crate::net::{Client, Fault, HeaderName, HeaderValue, Incoming, Request};
use crate::tools::AllowedAddresses;

const SESSION: &str = "mcp-session-id";
/// Time without data after the time limit of a call before its connection is closed.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent calls of one server.
const CALLS: usize = 256;

/// A failed exchange, with the message of `net`.
#[derive(Clone, Debug)]
pub(super) struct HttpFault(String);

impl fmt::Display for HttpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for HttpFault {}

type Failure = StreamableHttpError<HttpFault>;

/// The transport to a server.
///
/// # Errors
/// [`Kind::Usage`] for certificates that can't be read.
pub(super) fn transport(
    url: &str,
    headers: &[(String, String)],
    reach: AllowedAddresses,
    timeout: Duration,
) -> Result<(StreamableHttpClientTransport<Backend>, LastFault)> {
    let silence = timeout + GRACE;
    let client = match reach {
        AllowedAddresses::Anywhere => Client::new(silence)?,
        AllowedAddresses::Public => Client::public(silence)?,
        AllowedAddresses::Nowhere => {
            return Err(Error::new(Kind::Script, format!("the recipe does not declare that it needs {url}")));
        }
    };
    let last = LastFault::default();
    let backend = Backend { client, headers: headers.to_vec().into(), last: last.clone() };
    let config = StreamableHttpClientTransportConfig::with_uri(url).max_concurrent_requests(CALLS);
    Ok((StreamableHttpClientTransport::with_client(backend, config), last))
}

/// The last failure of a transport. `rmcp` does not pass on all of them.
#[derive(Clone, Default)]
pub(super) struct LastFault(Arc<Mutex<Option<String>>>);

impl LastFault {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, error: &Failure) {
        self.note(reason(error));
    }

    fn note(&self, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// The cause of a failed exchange.
pub(super) fn reason(error: &(dyn StdError + 'static)) -> String {
    match error.downcast_ref::<Failure>() {
        Some(StreamableHttpError::Client(fault)) => fault.to_string(),
        Some(StreamableHttpError::UnexpectedServerResponse(what)) => what.to_string(),
        Some(StreamableHttpError::SessionExpired) => "its session has expired".to_owned(),
        _ => error.to_string(),
    }
}

/// The HTTP client of `rmcp`.
#[derive(Clone)]
pub(super) struct Backend {
    client: Client,
    headers: Arc<[(String, String)]>,
    last: LastFault,
}

fn fault(fault: Fault) -> Failure {
    StreamableHttpError::Client(HttpFault(match fault {
        Fault::Absent(why) => format!("no connection: {why}"),
        Fault::Broken(why) | Fault::NotPublic(why) => why,
        Fault::Stopped => "stopped".to_owned(),
    }))
}

fn unexpected(what: impl Into<String>) -> Failure {
    StreamableHttpError::UnexpectedServerResponse(what.into().into())
}

impl Backend {
    async fn send(
        &self,
        (method, url): (&'static str, &str),
        body: Option<Vec<u8>>,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<Incoming, Failure> {
        let mut headers = vec![("accept".into(), "application/json, text/event-stream".to_owned())];
        if body.is_some() {
            headers.push(("content-type".into(), "application/json".to_owned()));
        }
        headers.extend(session.map(|id| (SESSION.into(), id.to_owned())));
        for (name, value) in &custom {
            headers.extend(value.to_str().ok().map(|value| (name.as_str().to_owned().into(), value.to_owned())));
        }
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone().into(), value.clone())));
        let request = Request { method, url: url.to_owned(), headers, body };
        self.client.open(request).await.map_err(fault)
    }

    async fn post(
        &self,
        url: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(message)?;
        let response = self.send(("POST", url), Some(body), session, custom).await?;
        let (status, own) = (response.status, response.header(SESSION).map(str::to_owned));
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
        if kind.starts_with("text/event-stream") && status == 200 {
            return Ok(StreamableHttpPostResponse::Sse(events(response, self.last.clone()), own));
        }
        let awaits = matches!(message, ClientJsonRpcMessage::Request(_));
        let bytes = response.whole(MOST_MESSAGE).await.map_err(fault)?;
        if (200..300).contains(&status) && !awaits {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        match serde_json::from_slice::<ServerJsonRpcMessage>(&bytes) {
            Ok(message @ ServerJsonRpcMessage::Error(_)) => Ok(StreamableHttpPostResponse::Json(message, own)),
            Ok(message) if (200..300).contains(&status) => Ok(StreamableHttpPostResponse::Json(message, own)),
            _ => {
                let start: String = String::from_utf8_lossy(&bytes).chars().take(100).collect();
                let kind = if kind.is_empty() { "no type".to_owned() } else { kind };
                Err(unexpected(format!("HTTP {status} ({kind}) is not an answer of an MCP server: {start:?}")))
            }
        }
    }
}

/// The events of a response, up to [`MOST_MESSAGE`] bytes in all. `rmcp` drops the error that ends
/// them, so that it is noted as the last failure.
fn events(response: Incoming, last: LastFault) -> BoxStream<'static, std::result::Result<Sse, SseError>> {
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
    SseStream::from_bytes_stream(pieces).boxed()
}

impl StreamableHttpClient for Backend {
    type Error = HttpFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<StreamableHttpPostResponse, Failure> {
        let posted = self.post(&uri, &message, session_id.as_deref(), custom_headers).await;
        posted.inspect_err(|error| self.last.set(error))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> std::result::Result<(), Failure> {
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
    ) -> std::result::Result<BoxStream<'static, std::result::Result<Sse, SseError>>, Failure> {
        if let Some(last) = last_event_id.and_then(|last| HeaderValue::from_str(&last).ok()) {
            custom_headers.insert(HeaderName::from_static("last-event-id"), last);
        }
        let response = self.send(("GET", &uri), None, session_id.as_deref(), custom_headers).await?;
        let kind = response.header("content-type").unwrap_or_default().to_lowercase();
        match response.status {
            200 if kind.starts_with("text/event-stream") => Ok(events(response, self.last.clone())),
            404 if session_id.is_some() => Err(StreamableHttpError::SessionExpired),
            _ => Err(StreamableHttpError::ServerDoesNotSupportSse),
        }
    }
}
