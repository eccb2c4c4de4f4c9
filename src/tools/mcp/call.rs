//! One call of a tool: its answer, its progress, and its cancellation. And the client side of a
//! connection: the notifications of a server.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, Implementation, ProgressNotificationParam, ProgressToken, ServerResult,
};
use rmcp::service::{NotificationContext, Peer, PeerRequestOptions, RequestHandle, ServiceError};
use rmcp::{ClientHandler, RoleClient};
use tokio::sync::watch;

use super::super::background::detach;
use super::super::child::lock;

/// Characters of a message of progress that are shown.
const SHOWN: usize = 200;

/// The last progress of each running call; empty text before the first.
type CallProgress = Arc<Mutex<HashMap<ProgressToken, watch::Sender<String>>>>;

/// Receives the notifications of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Notifications {
    progress: CallProgress,
}

impl ClientHandler for Notifications {
    /// The client information of the handshake: r1 has no client capabilities.
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("r1", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        // Progress of an unknown call is dropped.
        if let Some(call) = lock(&self.progress).get(&params.progress_token) {
            call.send_replace(in_words(&params));
        }
    }
}

/// `3 of 10: reading page 3`
fn in_words(params: &ProgressNotificationParam) -> String {
    let mut text = params.progress.to_string();
    if let Some(total) = params.total {
        let _ = write!(text, " of {total}");
    }
    if let Some(message) = params.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
        let plain = message.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c });
        text.push_str(": ");
        text.extend(plain);
    }
    text
}

/// A call that was sent. If it is dropped without an answer, the server is sent a cancellation.
pub(super) struct RunningCall {
    handle: Option<RequestHandle<RoleClient>>,
    token: ProgressToken,
    notifications: Notifications,
    /// Changes with each progress notification.
    pub(super) progress: watch::Receiver<String>,
}

impl RunningCall {
    pub(super) async fn send(
        peer: &Peer<RoleClient>,
        notifications: &Notifications,
        params: CallToolRequestParams,
    ) -> Result<Self, ServiceError> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let handle = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
        let (sender, progress) = watch::channel(String::new());
        let token = handle.progress_token.clone();
        lock(&notifications.progress).insert(token.clone(), sender);
        Ok(Self { handle: Some(handle), token, notifications: notifications.clone(), progress })
    }

    pub(super) async fn answer(&mut self) -> Result<CallToolResponse, ServiceError> {
        let Some(handle) = &mut self.handle else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.handle = None;
        match answer.map_err(|_| ServiceError::TransportClosed)?? {
            ServerResult::CallToolResult(result) => Ok(CallToolResponse::Complete(result)),
            // A result without content.
            ServerResult::EmptyResult(_) => Ok(CallToolResponse::Complete(CallToolResult::default())),
            ServerResult::InputRequiredResult(result) => Ok(CallToolResponse::InputRequired(result)),
            ServerResult::CreateTaskResult(result) => Ok(CallToolResponse::Task(result)),
            _ => Err(ServiceError::UnexpectedResponse),
        }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        lock(&self.notifications.progress).remove(&self.token);
        if let Some(handle) = self.handle.take() {
            // A server that has ended needs no cancellation.
            detach(async move { drop(handle.cancel(Some("the call was ended by the client".to_owned())).await) });
        }
    }
}
