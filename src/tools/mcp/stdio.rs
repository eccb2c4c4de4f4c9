//! Messages of a server over its standard output, one JSON object per line.
//!
//! Unlike the transport of `rmcp` it never writes an answer to something that it can't read, fails
//! a call whose answer is too long or malformed, and counts what it drops.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rmcp::RoleClient;
use rmcp::model::{ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::{Mutex, Notify};

use super::super::child::Pipes;
use super::super::lines::{Lines, Read, Traffic};
use super::{MOST_MESSAGE, MOST_OUTPUT};

/// A server's standard streams as a transport.
pub(super) struct Stdio {
    output: Lines,
    input: Arc<Mutex<Option<ChildStdin>>>,
    traffic: Arc<Traffic>,
    /// Notified when a message is too long to be read.
    too_long: Arc<Notify>,
}

impl Stdio {
    pub(super) fn new(pipes: Pipes, traffic: Arc<Traffic>, too_long: Arc<Notify>) -> Self {
        let input = Arc::new(Mutex::new(Some(pipes.stdin)));
        let output = Lines::new(pipes.stdout, Arc::clone(&traffic), MOST_MESSAGE, MOST_OUTPUT);
        Self { output, input, traffic, too_long }
    }
}

/// A line as a message. A malformed answer becomes an error for the request that it names.
fn message(line: &[u8]) -> Option<ServerJsonRpcMessage> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let id = value.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let is_answer = value.get("method").is_none();
    match serde_json::from_value(value) {
        Ok(message) => Some(message),
        Err(error) if is_answer => {
            let data = ErrorData::new(ErrorCode::PARSE_ERROR, format!("its answer can't be read: {error}"), None);
            id.map(|id| ServerJsonRpcMessage::error(data, Some(id)))
        }
        Err(_) => None,
    }
}

impl Transport<RoleClient> for Stdio {
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let input = Arc::clone(&self.input);
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut input = input.lock().await;
            let input = input.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
            input.write_all(&line).await?;
            input.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if self.output.next().await? == Read::TooLong {
                self.too_long.notify_waiters();
                continue;
            }
            let read = message(self.output.line());
            self.output.clear();
            match read {
                Some(message) => {
                    if matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)) {
                        self.traffic.bytes.store(0, Ordering::Relaxed);
                    }
                    return Some(message);
                }
                None => drop(self.traffic.garbage.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // A write that the server never reads holds the lock: the process is killed anyway.
        if let Ok(mut input) = self.input.try_lock() {
            drop(input.take());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn malformed_answers_of_an_mcp_server_fail_their_request() {
        let id = |line: &str| match message(line.as_bytes()) {
            Some(ServerJsonRpcMessage::Error(error)) => (error.id, error.error.message.to_string()),
            other => panic!("{other:?}"),
        };
        let (of, why) = id(r#"{"jsonrpc": "1.0", "id": 7, "result": {}}"#);
        assert_eq!(of, Some(RequestId::Number(7)));
        assert!(why.starts_with("its answer can't be read"), "{why}");
        for garbage in ["", "hello", "[1]", "{}", r#"{"method": 5}"#, r#"{"jsonrpc": "2.0", "result": {}}"#] {
            assert!(message(garbage.as_bytes()).is_none(), "{garbage}");
        }
        let good = message(br#"{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}"#);
        assert!(matches!(good, Some(ServerJsonRpcMessage::Response(_))));
    }
}
