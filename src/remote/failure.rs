//! The reasons why a server gives no reply.

use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, clip, without_control_characters};
use crate::net::Fault;

/// Characters of a server's own message that are shown.
const WORDS: usize = 300;

/// The reason why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFailure {
    /// The caller stopped it.
    Stopped,
    /// No connection, or none that lasted until the response; with the network's message.
    Unreachable(String),
    /// A status other than 200.
    Refused {
        status: u16,
        /// The server's message.
        text: String,
        /// The wait that the server requests.
        after: Option<Duration>,
        /// The address that it moved to.
        moved: Option<String>,
        /// The prompt is longer than the context of the model.
        overflow: bool,
        /// The quota is used up: waiting does not help.
        no_quota: bool,
    },
    /// The server reported an error during its reply.
    Failed(String),
    /// A content filter stopped the reply.
    Filtered,
    /// The reply ended early; the reason, if the network reports one.
    BrokeOff(Option<String>),
    /// The response is not one of the API.
    Foreign(String),
    /// The request can't be written for this API.
    Unsupported(Box<Error>),
}

impl ServerFailure {
    /// A failure of the connection before the response.
    pub(super) fn before(fault: Fault) -> Self {
        match fault {
            Fault::Stopped => Self::Stopped,
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => Self::Unreachable(why),
        }
    }

    /// A failure of the connection during the response.
    pub(super) fn during(fault: Fault) -> Self {
        match fault {
            Fault::Stopped => Self::Stopped,
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => Self::BrokeOff(Some(why)),
        }
    }

    pub(super) fn refused(status: u16, after: Option<Duration>, moved: Option<String>, body: &[u8]) -> Self {
        let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
        let code = parsed["error"]["code"].as_str().unwrap_or_default();
        let text = words_of(body);
        let overflow = matches!(status, 400 | 413 | 422) && (code == "context_length_exceeded" || is_overflow(&text));
        Self::Refused { status, text, after, moved, overflow, no_quota: code == "insufficient_quota" }
    }

    /// Whether another request may have a reply: the server is busy, failed, or was interrupted.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, no_quota, .. } => matches!(status, 408 | 409 | 425 | 429 | 500..=599) && !no_quota,
            Self::Unreachable(_) | Self::Failed(_) | Self::BrokeOff(_) | Self::Foreign(_) => true,
            Self::Stopped | Self::Filtered | Self::Unsupported(_) => false,
        }
    }

    /// Whether the server refuses all requests: the key, the quota, the model, the address.
    pub(super) fn is_of_all_requests(&self) -> bool {
        matches!(self, Self::Refused { status: 300..=399 | 401 | 403..=405, .. } | Self::Unsupported(_))
            || matches!(self, Self::Refused { no_quota: true, .. })
    }
}

/// Whether a refusal is about the length of the prompt. Only OpenAI has a code for it.
fn is_overflow(text: &str) -> bool {
    ["maximum context length", "prompt is too long"].iter().any(|part| text.contains(part))
}

/// The message in the body of an error response: JSON's message, a web page's title, or the first
/// line.
fn words_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let message = match serde_json::from_slice::<Value>(body) {
        Ok(answer) => error_of(&answer).unwrap_or_else(|| answer.to_string()),
        // Web pages repeat the status in their title.
        Err(_) if text.trim_start().starts_with('<') => {
            let title = title(&text).unwrap_or("a web page");
            title.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').to_owned()
        }
        Err(_) => text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned(),
    };
    short(&message)
}

/// The title of a web page.
fn title(page: &str) -> Option<&str> {
    // ASCII lower case keeps the length, so that positions match the page.
    let small = page.to_ascii_lowercase();
    let begin = small.find("<title")?;
    let begin = begin + small[begin..].find('>')? + 1;
    let end = begin + small[begin..].find("</title")?;
    Some(page[begin..end].trim()).filter(|title| !title.is_empty())
}

/// The error message in a server's JSON.
pub(super) fn error_of(answer: &Value) -> Option<String> {
    let error = answer.get("error").filter(|error| !error.is_null());
    let text = error.and_then(|error| error["message"].as_str().or(error.as_str()));
    let text = text.or_else(|| answer["message"].as_str()).or_else(|| answer["detail"].as_str());
    let listed = || {
        // A list of errors about fields of the request.
        let wrong = |one: &Value| {
            let field = one["loc"].as_array().and_then(|field| field.last()?.as_str());
            let message = one["msg"].as_str()?;
            Some(field.map_or_else(|| message.to_owned(), |field| format!("{field}: {message}")))
        };
        let all: Vec<String> = answer["detail"].as_array()?.iter().filter_map(wrong).collect();
        Some(all.join("; ")).filter(|all| !all.is_empty())
    };
    text.map(str::to_owned).or_else(listed).or_else(|| error.map(Value::to_string))
}

/// Text of a server on one line of a message.
pub(super) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    clip(&without_control_characters(&line), WORDS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn error_messages_of_servers_are_read_in_any_format() {
        for (body, text) in [
            ("", ""),
            ("\n busy \nlater", "busy"),
            (r#"{"error": {"message": "No key.", "code": 7}}"#, "No key."),
            (r#"{"error": "no such model"}"#, "no such model"),
            (r#"{"object": "error", "message": "too long", "code": 400}"#, "too long"),
            (r#"{"detail": [{"loc": ["body", "top_p"], "msg": "at most 1"}, {"msg": "so"}]}"#, "top_p: at most 1; so"),
            (r#"{"error": {"code": 7}}"#, r#"{"code":7}"#),
            (r#"{"status": "down"}"#, r#"{"status":"down"}"#),
            ("<html><head><TITLE lang=en>502  Bad\nGateway</TITLE></head></html>", "Bad Gateway"),
            ("<!doctype html><p>İ<title>x", "a web page"),
            ("\u{1b}[2Jgone", "␛[2Jgone"),
        ] {
            assert_eq!(words_of(body.as_bytes()), text, "{body}");
        }
        assert_eq!(words_of("x".repeat(1000).as_bytes()).chars().count(), WORDS + 1);
    }

    #[test]
    fn refusals_differ_by_code_and_status() {
        let refused = |status: u16, body: &str| ServerFailure::refused(status, None, None, body.as_bytes());
        let is_overflow = |failure: ServerFailure| matches!(failure, ServerFailure::Refused { overflow: true, .. });
        assert!(is_overflow(refused(400, r#"{"error": {"code": "context_length_exceeded", "message": "m"}}"#)));
        assert!(is_overflow(refused(400, r#"{"message": "This model's maximum context length is 4096 tokens."}"#)));
        assert!(is_overflow(refused(400, r#"{"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}"#)));
        assert!(!is_overflow(refused(400, r#"{"error": {"message": "top_k is too long"}}"#)));
        assert!(refused(429, "").is_transient() && refused(529, "").is_transient());
        let quota = refused(429, r#"{"error": {"code": "insufficient_quota"}}"#);
        assert!(!quota.is_transient() && quota.is_of_all_requests());
        assert!(refused(401, "").is_of_all_requests() && !refused(400, "").is_of_all_requests());
        assert!(!refused(400, "").is_transient());
    }
}
