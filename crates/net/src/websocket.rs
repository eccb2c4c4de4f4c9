//! A WebSocket client (RFC 6455, the crate `tungstenite`): text messages over `ws://` and `wss://`,
//! through the proxy of the environment as HTTP requests.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use r1_base::error::clip;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Request};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use ureq::Proxy;

use super::stream::{ByteStream, ServerAddress, connect, proxy_for, proxy_in_words};
use super::{AGENT, CONNECT_TIMEOUT, Fault, host_and_port};

/// Longest wait for the server's half of a closing handshake.
const CLOSING: Duration = Duration::from_secs(2);
/// Bytes of the buffers for reading and writing, per connection.
const BUFFER: usize = 16 << 10;
/// Characters of a refusal that are shown.
const SHOWN: usize = 200;

/// The server of a WebSocket.
#[derive(Clone, Debug)]
pub struct SocketTarget {
    /// `ws://` or `wss://`.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// Only public addresses are allowed.
    pub public_only: bool,
    /// Maximum bytes of a message of the server.
    pub max_bytes: usize,
}

/// An open connection. Dropping it closes the connection without a closing handshake.
pub struct WebSocket {
    stream: WebSocketStream<Box<dyn ByteStream>>,
    max_bytes: usize,
}

/// The URL with the scheme of HTTP, and whether it is encrypted. `None` for other schemes.
pub fn http_url(url: &str) -> Option<(String, bool)> {
    let (scheme, rest) = url.split_once("://")?;
    match scheme {
        "ws" => Some((format!("http://{rest}"), false)),
        "wss" => Some((format!("https://{rest}"), true)),
        _ => None,
    }
}

impl WebSocket {
    /// Connects and opens a WebSocket. Requires a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`Fault::Absent`], [`Fault::NotPublic`], and [`Fault::Broken`] for a proxy that refuses the
    /// connection and a server that does not open a WebSocket.
    pub async fn connect(target: &SocketTarget) -> Result<Self, Fault> {
        Self::connect_with(target, Proxy::try_from_env().as_ref(), CONNECT_TIMEOUT).await
    }

    /// The same with the proxy of the environment, and the longest wait for the connection.
    async fn connect_with(target: &SocketTarget, proxy: Option<&Proxy>, limit: Duration) -> Result<Self, Fault> {
        let not_url = || Fault::Broken(format!("`{}` is not a URL that begins with ws:// or wss://", target.url));
        let (http, secure) = http_url(&target.url).ok_or_else(not_url)?;
        let (host, port) = host_and_port(&http).ok_or_else(not_url)?;
        let request = request(target)?;
        let proxy = proxy_for(proxy, &http);
        let server = ServerAddress { host: &host, port, secure, public_only: target.public_only };
        let stream = timeout(limit, connect(server, proxy)).await.unwrap_or_else(|_| {
            let by = proxy.map(|proxy| format!(" through {}", proxy_in_words(proxy))).unwrap_or_default();
            Err(Fault::Absent(format!("no connection{by} within {} s", limit.as_secs_f64())))
        })?;
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(0)
            .max_message_size(Some(target.max_bytes))
            .max_frame_size(Some(target.max_bytes));
        let max_bytes = target.max_bytes;
        match client_async_with_config(request, stream, Some(config)).await {
            Ok((stream, _)) => Ok(Self { stream, max_bytes }),
            Err(error) => Err(fault(error, max_bytes)),
        }
    }

    /// Sends a text.
    ///
    /// # Errors
    /// [`Fault::Broken`]: the connection is lost.
    pub async fn send(&mut self, text: String) -> Result<(), Fault> {
        self.stream.send(Message::text(text)).await.map_err(|error| fault(error, self.max_bytes))
    }

    /// The next text of the server; pings are answered meanwhile. It can be cancelled without
    /// losing a message.
    ///
    /// # Errors
    /// [`Fault::Broken`]: the connection was closed, the message is too long or not text.
    pub async fn receive(&mut self) -> Result<String, Fault> {
        let closed = |why: &str| Err(Fault::Broken(format!("the server closed the connection{why}")));
        loop {
            match self.stream.next().await {
                None => return closed(""),
                Some(Err(error)) => return Err(fault(error, self.max_bytes)),
                Some(Ok(Message::Close(frame))) => {
                    let reason = frame.map(|frame| format!(" ({})", clip(&frame.to_string(), SHOWN)));
                    return closed(&reason.unwrap_or_default());
                }
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                    let text = message.into_text().map_err(|_| Fault::Broken("the message is not text".to_owned()))?;
                    return Ok(text.as_str().to_owned());
                }
                Some(Ok(_)) => {}
            }
        }
    }

    /// Closes the connection with a closing handshake, and waits a moment for the server. After a
    /// last message the server is the first to close.
    pub async fn close(mut self, last: Option<String>) {
        if let Some(text) = last
            && self.send(text).await.is_ok()
        {
            let _ = timeout(CLOSING, self.drain()).await;
        }
        let handshake = async {
            if self.stream.close(None).await.is_ok() {
                self.drain().await;
            }
        };
        // The wait for a server that does not answer is limited.
        let _ = timeout(CLOSING, handshake).await;
    }

    /// Reads up to the end.
    async fn drain(&mut self) {
        while let Some(Ok(_)) = self.stream.next().await {}
    }
}

fn request(target: &SocketTarget) -> Result<Request<()>, Fault> {
    let mut request = target.url.as_str().into_client_request().map_err(|error| Fault::Broken(error.to_string()))?;
    request.headers_mut().insert("user-agent", HeaderValue::from_static(AGENT));
    for (name, value) in &target.headers {
        let pair = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
        // The value may be a secret.
        let (name, value) = pair.ok_or_else(|| Fault::Broken(format!("the header {name:?} is not valid")))?;
        request.headers_mut().insert(name, value);
    }
    Ok(request)
}

fn fault(error: WsError, max_bytes: usize) -> Fault {
    Fault::Broken(match error {
        WsError::ConnectionClosed | WsError::AlreadyClosed | WsError::Protocol(_) => {
            format!("the connection was lost: {error}")
        }
        WsError::Capacity(CapacityError::MessageTooLong { .. }) => {
            format!("the message has more than {max_bytes} bytes")
        }
        WsError::Http(response) => {
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let reason = if body.trim().is_empty() { String::new() } else { format!(": {}", clip(body.trim(), SHOWN)) };
            format!(
                "the server answers with status {} and does not open a WebSocket{reason}",
                response.status().as_u16()
            )
        }
        WsError::Io(error) => error.to_string(),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests;
