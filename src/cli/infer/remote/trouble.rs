//! Error messages about a server: unreachable, refusing, not OpenAI-compatible, or interrupted.

use serde_json::Value;

use super::Remote;
use crate::error::{Error, Kind, without_control_characters};
use crate::net::{Fault, Response};

/// Characters of a server's own message that are shown.
const WORDS: usize = 300;

/// An error after the response has started.
pub(super) enum ResponseError {
    /// The server reported an error.
    Failed(String),
    /// It ended early; the reason, if the network reports one.
    BrokeOff(Option<String>),
    /// The response is not of an OpenAI-compatible server.
    Foreign(String),
}

impl Remote {
    /// An error before the response.
    pub(super) fn fault(&self, fault: Fault) -> Error {
        match fault {
            Fault::Stopped => stopped(),
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => {
                Error::new(Kind::Model, format!("can't reach {}: {why}", self.base))
                    .hint("is the server running, and is --api-base its address? (HTTPS_PROXY and NO_PROXY are used)")
            }
        }
    }

    /// An error during the response.
    pub(super) fn cut(&self, fault: Fault) -> Error {
        match fault {
            Fault::Stopped => stopped(),
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => {
                self.response_error(ResponseError::BrokeOff(Some(why)))
            }
        }
    }

    pub(super) fn response_error(&self, odd: ResponseError) -> Error {
        let base = &self.base;
        match odd {
            ResponseError::Failed(words) => {
                Error::new(Kind::Model, format!("{base} failed during its reply: {}", short(&words)))
                    .hint("see the server's log")
            }
            ResponseError::BrokeOff(why) => {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                Error::new(Kind::Model, format!("{base} interrupted its reply{why}"))
                    .hint("try again; see the server's log")
            }
            ResponseError::Foreign(why) => {
                Error::new(Kind::Model, format!("{base} is not an OpenAI-compatible server: {}", short(&why)))
                    .hint(ENDING)
            }
        }
    }

    /// The error for a redirect.
    pub(super) fn moved(&self, response: &Response) -> Option<Error> {
        let status = response.status;
        let to = response.header("location").filter(|_| (300..400).contains(&status))?;
        let to = short(to.strip_suffix("/chat/completions").unwrap_or(to));
        let error = Error::new(Kind::Model, format!("{} responded with {status}: it moved to {to}", self.base));
        Some(error.hint("use the new address in --api-base"))
    }

    /// The error for an error status.
    pub(super) fn refused(&self, status: u16, body: &[u8]) -> Error {
        let words = words_of(body);
        // Web pages repeat the status in their title.
        let words = words.strip_prefix(&status.to_string()).unwrap_or(&words).trim_start();
        let colon = if words.is_empty() { "" } else { ": " };
        let error = Error::new(Kind::Model, format!("{} responded with {status}{colon}{words}", self.base));
        match status {
            401 | 403 if self.key.is_none() => error.hint("set OPENAI_API_KEY to a key of that server"),
            401 | 403 => error.hint("the server refuses the key in OPENAI_API_KEY"),
            404 | 405 => error.hint(format!("the server has no model `{}`, or {ENDING}", self.model)),
            429 => error.hint("it is busy, or a quota is used up: try again later"),
            500.. => error.hint("the server failed: see its log"),
            _ => error,
        }
    }
}

const ENDING: &str = "--api-base has a wrong path; for example http://localhost:8000/v1";

fn stopped() -> Error {
    Error::new(Kind::Interrupted, "stopped")
}

/// The message in the body of an error response: JSON's message, a web page's title, or the first
/// line.
fn words_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words = match serde_json::from_slice::<Value>(body) {
        Ok(answer) => error_of(&answer).unwrap_or_else(|| answer.to_string()),
        Err(_) if text.trim_start().starts_with('<') => title(&text).unwrap_or("a web page").to_owned(),
        Err(_) => text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned(),
    };
    short(&words)
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
    let words = error.and_then(|error| error["message"].as_str().or(error.as_str()));
    let words = words.or_else(|| answer["message"].as_str()).or_else(|| answer["detail"].as_str());
    let listed = || {
        // A list of errors about fields of the request.
        let wrong = |one: &Value| {
            let place = one["loc"].as_array().and_then(|place| place.last()?.as_str());
            let message = one["msg"].as_str()?;
            Some(place.map_or_else(|| message.to_owned(), |place| format!("{place}: {message}")))
        };
        let all: Vec<String> = answer["detail"].as_array()?.iter().filter_map(wrong).collect();
        Some(all.join("; ")).filter(|all| !all.is_empty())
    };
    words.map(str::to_owned).or_else(listed).or_else(|| error.map(Value::to_string))
}

/// Text of a server on one line of a message.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut letters = without_control_characters(&line).into_owned();
    if letters.chars().count() > WORDS {
        letters = letters.chars().take(WORDS).collect::<String>() + "…";
    }
    letters
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn error_messages_of_servers_are_read_in_any_format() {
        for (body, words) in [
            ("", ""),
            ("\n busy \nlater", "busy"),
            (r#"{"error": {"message": "No key.", "code": 7}}"#, "No key."),
            (r#"{"error": "no such model"}"#, "no such model"),
            (r#"{"object": "error", "message": "too long", "code": 400}"#, "too long"),
            (r#"{"detail": [{"loc": ["body", "top_p"], "msg": "at most 1"}, {"msg": "so"}]}"#, "top_p: at most 1; so"),
            (r#"{"error": {"code": 7}}"#, r#"{"code":7}"#),
            (r#"{"status": "down"}"#, r#"{"status":"down"}"#),
            ("<html><head><TITLE lang=en>502  Bad\nGateway</TITLE></head></html>", "502 Bad Gateway"),
            ("<!doctype html><p>İ<title>x", "a web page"),
            ("\u{1b}[2Jgone", "␛[2Jgone"),
        ] {
            assert_eq!(words_of(body.as_bytes()), words, "{body}");
        }
        assert_eq!(words_of("x".repeat(1000).as_bytes()).chars().count(), WORDS + 1);
    }
}
