//! A WebSocket with a text message per request, whose answer is the next text message.
//!
//! The connection is opened by the first request. It is read between requests as well, since
//! servers close connections of clients that do not answer pings. After a message without a
//! request, a request without an answer, or a cancelled request, an answer could be assigned to
//! the wrong request: the connection is closed, and every further request fails.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::super::background::detach;
use super::ConnectionError;
use crate::error::clip;
use crate::net::{AllowedAddresses, Fault, SocketTarget, WebSocket, http_url};

/// Characters of a message that are shown.
const SHOWN: usize = 200;

/// A WebSocket URL with the scheme of HTTP, which has the same host and port. `None` for another
/// scheme.
pub fn websocket_as_http(url: &str) -> Option<String> {
    http_url(url).map(|(http, _)| http)
}

/// The server, and its limits.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// `ws://` or `wss://`.
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub reach: AllowedAddresses,
    /// Maximum bytes of a message of the server.
    pub max_bytes: usize,
    /// The last message, which gets no answer.
    pub close_message: Option<String>,
    /// Longest wait until the connection is open.
    pub start_timeout: Duration,
}

struct SocketRequest {
    text: String,
    /// Longest wait for the answer.
    timeout: Duration,
    reply: oneshot::Sender<Result<String, ConnectionError>>,
}

/// A connection. Dropping it ends the connection with a closing handshake.
pub struct Socket {
    requests: mpsc::UnboundedSender<SocketRequest>,
}

impl Socket {
    /// A connection that is opened by the first request.
    pub fn new(options: SocketOptions) -> Self {
        let (requests, received) = mpsc::unbounded_channel();
        detach(serve(options, received));
        Self { requests }
    }

    /// Sends a text and waits for the next text of the server. If the future is dropped, the
    /// connection is closed.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub async fn request(&self, text: String, timeout: Duration) -> Result<String, ConnectionError> {
        let (reply, answer) = oneshot::channel();
        let lost = || ConnectionError::Failed("the thread of the servers stopped".to_owned());
        self.requests.send(SocketRequest { text, timeout, reply }).map_err(|_| lost())?;
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

/// The state of a connection between two requests.
enum SocketState {
    New,
    Open(Box<WebSocket>),
    /// The reason of its end.
    Broken(String),
}

/// Answers requests until the last handle is dropped.
async fn serve(options: SocketOptions, mut requests: mpsc::UnboundedReceiver<SocketRequest>) {
    let mut state = SocketState::New;
    while let Some(SocketRequest { text, timeout, mut reply }) = next(&mut state, &mut requests).await {
        if reply.is_closed() {
            continue;
        }
        if matches!(state, SocketState::New) {
            match open(&options).await {
                Ok(socket) => state = SocketState::Open(Box::new(socket)),
                Err(error) => {
                    // The next request tries again. The receiver may have been dropped.
                    let _ = reply.send(Err(error));
                    continue;
                }
            }
        }
        let answer = match &mut state {
            SocketState::Open(socket) => tokio::select! {
                answer = exchange(socket, text, timeout) => answer,
                () = reply.closed() => Err("a request was cancelled before its answer".to_owned().into()),
            },
            SocketState::Broken(why) => Err(format!("the connection is closed: {why}").into()),
            SocketState::New => continue,
        };
        if let (Err(error), SocketState::Open(_)) = (&answer, &state) {
            state = SocketState::Broken(error.clone().message());
        }
        let _ = reply.send(answer);
    }
    if let SocketState::Open(socket) = state {
        socket.close(options.close_message).await;
    }
}

/// The next request. An open connection is read meanwhile.
async fn next(state: &mut SocketState, requests: &mut mpsc::UnboundedReceiver<SocketRequest>) -> Option<SocketRequest> {
    if let SocketState::Open(socket) = state {
        let why = tokio::select! {
            biased;
            message = socket.receive() => match message {
                Ok(text) => format!("the server sent a message without a request: {}", clip(&text, SHOWN)),
                Err(fault) => reason(fault).message(),
            },
            request = requests.recv() => return request,
        };
        *state = SocketState::Broken(why);
    }
    requests.recv().await
}

async fn open(options: &SocketOptions) -> Result<WebSocket, ConnectionError> {
    let SocketOptions { url, headers, reach, max_bytes, start_timeout: limit, .. } = options.clone();
    let target = SocketTarget { url, headers, public_only: reach != AllowedAddresses::Anywhere, max_bytes };
    match timeout(limit, WebSocket::connect(&target)).await {
        Ok(opened) => opened.map_err(reason),
        Err(_) => Err(format!("no connection within {} s", limit.as_secs_f64()).into()),
    }
}

async fn exchange(socket: &mut WebSocket, text: String, limit: Duration) -> Result<String, ConnectionError> {
    let answer = timeout(limit, async {
        socket.send(text).await?;
        socket.receive().await
    });
    match answer.await {
        Ok(answer) => answer.map_err(reason),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs_f64()).into()),
    }
}

fn reason(fault: Fault) -> ConnectionError {
    match fault {
        Fault::NotPublic(why) => ConnectionError::NotPublic(why),
        Fault::Absent(why) | Fault::Broken(why) => ConnectionError::Failed(why),
        Fault::Stopped => ConnectionError::Failed("stopped".to_owned()),
    }
}
