//! What goes wrong with a server, in words: it can't be reached, refuses, answers as no such server does, or breaks off.

use serde_json::Value;

use super::Remote;
use crate::error::{Error, Kind, harmless};
use crate::net::{Fault, Response};

/// Characters of a server's own words that are shown.
const WORDS: usize = 300;

/// What is wrong with an answer that has begun.
pub(super) enum Odd {
    /// The server's words of its own failure.
    Failed(String),
    /// It ended too early; why, where the network knows.
    BrokeOff(Option<String>),
    /// No OpenAI-compatible server says this.
    Foreign(String),
}

impl Remote {
    /// Before an answer has begun.
    pub(super) fn fault(&self, fault: Fault) -> Error {
        match fault {
            Fault::Stopped => stopped(),
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => {
                Error::new(Kind::Model, format!("can't talk to {}: {why}", self.base))
                    .hint("is the server running, and is --api-base its address? (HTTPS_PROXY and NO_PROXY are heeded)")
            }
        }
    }

    /// While an answer comes.
    pub(super) fn cut(&self, fault: Fault) -> Error {
        match fault {
            Fault::Stopped => stopped(),
            Fault::Absent(why) | Fault::Broken(why) | Fault::NotPublic(why) => self.odd(Odd::BrokeOff(Some(why))),
        }
    }

    pub(super) fn odd(&self, odd: Odd) -> Error {
        let base = &self.base;
        match odd {
            Odd::Failed(words) => Error::new(Kind::Model, format!("{base} failed at its reply: {}", short(&words)))
                .hint("its own log may say more"),
            Odd::BrokeOff(why) => {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                Error::new(Kind::Model, format!("{base} broke its reply off{why}"))
                    .hint("ask again; its own log may say why")
            }
            Odd::Foreign(why) => Error::new(
                Kind::Model,
                format!("{base} does not answer as an OpenAI-compatible server: {}", short(&why)),
            )
            .hint(ENDING),
        }
    }

    /// An answer that leads elsewhere.
    pub(super) fn moved(&self, response: &Response) -> Option<Error> {
        let status = response.status;
        let to = response.header("location").filter(|_| (300..400).contains(&status))?;
        let to = short(to.strip_suffix("/chat/completions").unwrap_or(to));
        let error = Error::new(Kind::Model, format!("{} answers {status}: it has moved to {to}", self.base));
        Some(error.hint("give --api-base the new address"))
    }

    /// An answer that is none, by its status.
    pub(super) fn refused(&self, status: u16, body: &[u8]) -> Error {
        let words = words_of(body);
        // Web pages have it in their title.
        let words = words.strip_prefix(&status.to_string()).unwrap_or(&words).trim_start();
        let colon = if words.is_empty() { "" } else { ": " };
        let error = Error::new(Kind::Model, format!("{} answers {status}{colon}{words}", self.base));
        match status {
            401 | 403 if self.key.is_none() => error.hint("set OPENAI_API_KEY to a key of that server"),
            401 | 403 => error.hint("OPENAI_API_KEY is not a key that it takes"),
            404 | 405 => error.hint(format!("it knows no model `{}`, or {ENDING}", self.model)),
            429 => error.hint("it is busy, or a quota is used up: try again later"),
            500.. => error.hint("the failure is the server's: its own log may say more"),
            _ => error,
        }
    }
}

const ENDING: &str = "--api-base should end otherwise, as in http://localhost:8000/v1";

fn stopped() -> Error {
    Error::new(Kind::Interrupted, "stopped")
}

/// What the body of a refusal says: JSON's message, a web page's title, or the first line.
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
    // Letters beyond ASCII keep their length, so that places are those of the page.
    let small = page.to_ascii_lowercase();
    let begin = small.find("<title")?;
    let begin = begin + small[begin..].find('>')? + 1;
    let end = begin + small[begin..].find("</title")?;
    Some(page[begin..end].trim()).filter(|title| !title.is_empty())
}

/// A server's words of what is wrong.
pub(super) fn error_of(answer: &Value) -> Option<String> {
    let error = answer.get("error").filter(|error| !error.is_null());
    let words = error.and_then(|error| error["message"].as_str().or(error.as_str()));
    let words = words.or_else(|| answer["message"].as_str()).or_else(|| answer["detail"].as_str());
    let listed = || {
        // A list of what is wrong with the fields of the request.
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

/// A text of somebody else's on one line of a message.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut letters = harmless(&line).into_owned();
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
    fn refusals_are_read_whatever_they_are_written_in() {
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
