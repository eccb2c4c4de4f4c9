//! A response whose body is awaited piece by piece, such as a stream of server-sent events.

use std::io::Read;

use tokio::sync::{mpsc, oneshot};

use super::{CHANNEL_PIECES, Client, Fault, HeaderMap, PIECE, WebRequest, body_error_message, call, fault};

/// The head of a response, and its body as it arrives. Dropping it ends the exchange at the next
/// bytes or at the time limit.
#[derive(Debug)]
pub struct Incoming {
    pub status: u16,
    pub headers: HeaderMap,
    pieces: mpsc::Receiver<Result<Vec<u8>, Fault>>,
}

impl Client {
    /// Sends the request on a new thread and waits for the head of the response.
    pub async fn open(&self, request: WebRequest) -> Result<Incoming, Fault> {
        let (head, opened) = oneshot::channel();
        let agent = self.agent.clone();
        let exchange = move || {
            let url = request.url.clone();
            let (head_of, body) = match call(&agent, request) {
                Ok(answer) => answer.into_parts(),
                Err(error) => return drop(head.send(Err(fault(&agent, &url, &error)))),
            };
            let (sender, pieces) = mpsc::channel(CHANNEL_PIECES);
            let incoming = Incoming { status: head_of.status.as_u16(), headers: head_of.headers, pieces };
            if head.send(Ok(incoming)).is_err() {
                return;
            }
            let mut reader = body.into_with_config().limit(u64::MAX).reader();
            let mut piece = vec![0; PIECE];
            loop {
                let read = match reader.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) => Ok(piece[..count].to_vec()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(Fault::Broken(body_error_message(&agent, &error))),
                };
                let last = read.is_err();
                if sender.blocking_send(read).is_err() || last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("net".to_owned()).spawn(exchange);
        thread.map_err(|error| Fault::Broken(format!("can't start a thread: {error}")))?;
        opened.await.unwrap_or_else(|_| Err(Fault::Broken("the connection was lost".to_owned())))
    }
}

impl Incoming {
    /// A header's text; `None` if it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The next bytes of the body; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, Fault>> {
        self.pieces.recv().await
    }

    /// The complete body.
    ///
    /// # Errors
    /// [`Fault::Broken`] for one of more than `max_bytes` bytes.
    pub async fn whole(mut self, max_bytes: usize) -> Result<Vec<u8>, Fault> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            all.extend(piece?);
            if all.len() > max_bytes {
                return Err(Fault::Broken(format!("the response has more than {max_bytes} bytes")));
            }
        }
        Ok(all)
    }
}
