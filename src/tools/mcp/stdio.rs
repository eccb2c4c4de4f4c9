//! Messages of a server over its standard output, one JSON object per line.
//!
//! Unlike the transport of `rmcp` it never writes an answer to something that it can't read, fails
//! a call whose answer is too long or can't be read, reads messages of several lines, and counts
//! what it drops.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as Plain};

use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ClientNotification, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::{Mutex, Notify};

use super::super::child::{Pipes, lock};
use super::super::lines::{Lines, Read, Traffic};
use super::messages::{MessagePart, failure, is_answer_to, read};
use super::{MOST_MESSAGE, MOST_OUTPUT};

/// A server's standard streams as a transport.
pub(super) struct Stdio {
    output: Lines,
    input: Arc<Mutex<Option<ChildStdin>>>,
    traffic: Arc<Traffic>,
    /// Notified when a message is too long to be read.
    too_long: Arc<Notify>,
    /// The lines of a message that has not ended.
    lines: Unfinished,
    /// Messages that were read and not yet passed on.
    ready: VecDeque<ServerJsonRpcMessage>,
    /// Requests without an answer.
    waiting: Arc<Plain<Vec<RequestId>>>,
}

/// The beginning of JSON that continues on the next line.
#[derive(Default)]
struct Unfinished {
    text: Vec<u8>,
    /// Open brackets, and whether the text ends inside a string or after a backslash in it.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Unfinished {
    /// Adds a line; true if the brackets are closed.
    fn add(&mut self, line: &[u8]) -> bool {
        for byte in line {
            match byte {
                _ if std::mem::take(&mut self.escaped) => {}
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.text.extend_from_slice(line);
        self.depth == 0
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).text
    }
}

impl Stdio {
    pub(super) fn new(pipes: Pipes, traffic: Arc<Traffic>, too_long: Arc<Notify>) -> Self {
        let input = Arc::new(Mutex::new(Some(pipes.stdin)));
        let output = Lines::new(pipes.stdout, Arc::clone(&traffic), MOST_MESSAGE, MOST_OUTPUT);
        let (lines, ready, waiting) = (Unfinished::default(), VecDeque::new(), Arc::default());
        Self { output, input, traffic, too_long, lines, ready, waiting }
    }

    /// The messages of the next line; `None` if it has none, or is not the last line of one.
    fn next_parts(&mut self) -> Option<Vec<MessagePart>> {
        let line = self.output.line.as_slice();
        let has_begun = !self.lines.text.is_empty();
        if !has_begun && !is_beginning(line) {
            return read(line);
        }
        // A complete message ends one that was begun, which was none.
        if has_begun && line.starts_with(b"{") && is_message(line) {
            self.lines.take();
            return read(line);
        }
        if self.lines.text.len() + line.len() > MOST_MESSAGE {
            self.lines.take();
            self.too_long.notify_waiters();
            return None;
        }
        let is_complete = self.lines.add(line);
        if is_complete { read(&self.lines.take()) } else { Some(Vec::new()) }
    }

    /// Takes the parts of an answer; one that can't be read fails the request that it names, or the
    /// only one that waits.
    fn take(&mut self, parts: Vec<MessagePart>) {
        let mut waiting = lock(&self.waiting);
        for part in parts {
            let only = |waiting: &Vec<RequestId>| waiting.first().filter(|_| waiting.len() == 1).cloned();
            let message = match part {
                MessagePart::Message(message) => match *message {
                    ServerJsonRpcMessage::Error(error) if error.id.is_none() => {
                        ServerJsonRpcMessage::error(error.error, only(&waiting))
                    }
                    message => message,
                },
                MessagePart::Unreadable(id, why) => {
                    let id = id.filter(|id| waiting.contains(id)).or_else(|| only(&waiting));
                    let Some(id) = id else {
                        self.traffic.garbage.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    failure(&why, id)
                }
            };
            waiting.retain(|id| !is_answer_to(&message, id));
            self.ready.push_back(message);
        }
    }
}

/// Whether a line is the beginning of JSON, such as the first line of a printed object.
fn is_beginning(line: &[u8]) -> bool {
    let start = line.trim_ascii();
    (start.starts_with(b"{") || start.starts_with(b"["))
        && serde_json::from_slice::<serde::de::IgnoredAny>(start).is_err_and(|error| error.is_eof())
}

/// Whether a line is a complete message, also one that can't be read.
fn is_message(line: &[u8]) -> bool {
    line.windows(9).any(|part| part == b"\"jsonrpc\"") && read(line).is_some()
}

impl Transport<RoleClient> for Stdio {
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let input = Arc::clone(&self.input);
        let mut waiting = lock(&self.waiting);
        match &message {
            ClientJsonRpcMessage::Request(request) => waiting.push(request.id.clone()),
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification {
                    waiting.retain(|id| Some(id) != cancelled.params.request_id.as_ref());
                }
            }
            _ => {}
        }
        drop(waiting);
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
            if let Some(message) = self.ready.pop_front() {
                if matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)) {
                    self.traffic.bytes.store(0, Ordering::Relaxed);
                }
                return Some(message);
            }
            if self.output.next().await? == Read::TooLong {
                self.too_long.notify_waiters();
                continue;
            }
            let parts = self.next_parts();
            self.output.clear();
            match parts {
                Some(parts) => self.take(parts),
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
