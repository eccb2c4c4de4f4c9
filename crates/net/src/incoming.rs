//! A response whose body is awaited piece by piece, such as a stream of server-sent events.

use tokio::sync::mpsc;

use super::{BodyPiece, CHANNEL_PIECES, Client, Fault, HeaderMap, WebRequest};

/// The head of a response, and its body as it arrives. Dropping it ends the exchange at the next
/// bytes or at the time limit.
#[derive(Debug)]
pub struct Incoming {
    pub status: u16,
    pub headers: HeaderMap,
    pieces: mpsc::Receiver<BodyPiece>,
}

impl Client {
    /// Sends the request on a new thread and waits for the head of the response.
    pub async fn open(&self, request: WebRequest) -> Result<Incoming, Fault> {
        let (sender, mut pieces) = mpsc::channel(CHANNEL_PIECES);
        self.start(request, move |piece| sender.blocking_send(piece).is_ok())?;
        match pieces.recv().await {
            Some(BodyPiece::Head(status, headers)) => Ok(Incoming { status, headers, pieces }),
            Some(BodyPiece::Broken(fault)) => Err(fault),
            Some(BodyPiece::Body(_) | BodyPiece::End) | None => {
                Err(Fault::Broken("the connection was lost".to_owned()))
            }
        }
    }
}

impl Incoming {
    /// A header's text; `None` if it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The next bytes of the body; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, Fault>> {
        match self.pieces.recv().await? {
            BodyPiece::Body(bytes) => Some(Ok(bytes)),
            BodyPiece::Broken(fault) => Some(Err(fault)),
            BodyPiece::Head(..) | BodyPiece::End => None,
        }
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
