//! The error messages of failures.

use regex::{NoExpand, Regex};

use super::failure::{ServerFailure, short};
use super::server::Server;
use crate::error::{Error, Kind, secret_pattern};

impl Server {
    pub fn error(&self, failure: &ServerFailure) -> Error {
        let (base, setting) = (&self.options.base, self.options.setting);
        let example = self.api.example;
        let ending = format!("{setting} has a wrong path; for example {example}");
        let new = |message: String| Error::new(Kind::Model, self.without_key(&message));
        match failure {
            ServerFailure::Stopped => Error::new(Kind::Interrupted, "stopped"),
            ServerFailure::Unreachable(why) => new(format!("can't reach {base}: {why}")).hint(format!(
                "is the server running, and is {setting} its address? (HTTPS_PROXY and NO_PROXY are used)"
            )),
            ServerFailure::Refused { status, moved: Some(to), .. } => {
                new(format!("{base} responded with {status}: it moved to {}", short(to)))
                    .hint(format!("use the new address in {setting}"))
            }
            ServerFailure::Refused { status, text, no_quota, .. } => {
                let colon = if text.is_empty() { "" } else { ": " };
                let error = new(format!("{base} responded with {status}{colon}{text}"));
                let key = self.api.key_variable;
                match status {
                    401 | 403 if self.key.is_none() => error.hint(format!("set {key} to a key of that server")),
                    401 | 403 => error.hint(format!("the server refuses the key in {key}")),
                    404 | 405 => error.hint(format!("the server has no model `{}`, or {ending}", self.options.model)),
                    _ if *no_quota => error.hint("the quota of the key is used up"),
                    429 => error.hint("it is busy, or a quota is used up: try again later"),
                    500.. => error.hint("the server failed: see its log"),
                    _ => error,
                }
            }
            ServerFailure::Failed(text) => {
                new(format!("{base} failed during its reply: {}", short(text))).hint("see the server's log")
            }
            ServerFailure::Filtered => {
                new(format!("{base} failed during its reply: its content filter stopped the reply"))
                    .hint("see the server's log")
            }
            ServerFailure::BrokeOff(why) => {
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                new(format!("{base} interrupted its reply{why}")).hint("try again; see the server's log")
            }
            ServerFailure::Foreign(why) => {
                let message = format!("{base} is not {}: {}", self.api.server, short(why));
                new(message).hint(ending)
            }
            ServerFailure::Unsupported(error) => (**error).clone(),
        }
    }

    /// A text of the server without the key, which it may repeat.
    fn without_key(&self, text: &str) -> String {
        let pattern = self.key.as_deref().and_then(|key| Regex::new(&secret_pattern(key)).ok());
        pattern.map_or_else(|| text.to_owned(), |key| key.replace_all(text, NoExpand("***")).into_owned())
    }
}
