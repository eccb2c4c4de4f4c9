//! Converts VM errors into errors for the user: message, `file:line`, the line itself, and a
//! traceback of the script's frames, through host functions that call back.

use mlua::Error as LuaError;

use super::host::MESSAGE;
use crate::error::{Error, Kind, Subject, clip};
use crate::mdp::{ErrorRecord, Status};

/// A failed call into the script.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: Status,
    pub error: Error,
    /// A fault of the recipe that every attempt would repeat.
    pub lasting: bool,
    /// The script's frames, innermost first: `scripts/retool.lua:12 in step`. May be empty.
    pub traceback: Vec<String>,
    /// A value was nil where another type was needed, usually a missing column. Luau reports this
    /// only as text; functions of the host name the type of the value.
    pub of_nil: bool,
}

impl Failure {
    pub(crate) fn new(status: Status, error: Error) -> Self {
        let text = &error.message;
        let of_nil = text.contains("got nil") || (text.contains("attempt to") && text.contains("nil"));
        Self { status, error, lasting: false, traceback: Vec::new(), of_nil }
    }

    /// Whether the row has no reference: an error of the dataset, and not of this trajectory.
    pub fn lacks_reference(&self) -> bool {
        self.error.subject.as_deref() == Some(&Subject::Reference)
    }

    /// The failure as it is stored, with the text of the line at its place.
    pub(crate) fn record(&self, line: Option<String>) -> ErrorRecord {
        ErrorRecord { line, traceback: self.traceback.clone(), ..ErrorRecord::from(&self.error) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Status::EnvError, error)
    }
}

/// An error of the virtual machine in an operation of the host, usually out of memory.
impl From<LuaError> for Failure {
    fn from(error: LuaError) -> Self {
        let status = if is_memory(&error) { Status::ScriptLimit } else { Status::EnvError };
        Self::new(status, describe(&error).error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.record(None).fmt(f)
    }
}

/// A VM error with its traceback: the innermost cause. An [`Error`] raised by a host function keeps
/// its kind, place and hint.
pub(crate) fn describe(error: &LuaError) -> Failure {
    let of_text = |text: &str| Error::new(Kind::Script, clip(text, MESSAGE)).into();
    match error {
        LuaError::CallbackError { traceback, cause } => {
            // The frames of the caller come after the callee's.
            let mut inner = describe(cause).located();
            let outer = frames(traceback);
            if !inner.traceback.ends_with(&outer) {
                inner.traceback.extend(outer);
                inner.traceback.truncate(FRAMES);
            }
            inner.located()
        }
        LuaError::WithContext { context, cause } => {
            let mut inner = describe(cause).located();
            inner.traceback.push(context.clone());
            inner
        }
        LuaError::ExternalError(external) => {
            let error = external.downcast_ref::<Error>().cloned();
            error.map_or_else(|| of_text(&external.to_string()), Failure::from)
        }
        LuaError::RuntimeError(text) | LuaError::SyntaxError { message: text, .. } => {
            let (message, traceback) = text.split_once("\nstack traceback:").unwrap_or((text, ""));
            let (location, message) = split_place(message);
            let message = textless(message);
            let mut error = Error::new(Kind::Script, clip(message, MESSAGE));
            error.place = location.map(str::to_owned);
            error.hint = super::language_hints::of_message(message).map(str::to_owned);
            Failure { traceback: frames(traceback), ..error.into() }.located()
        }
        LuaError::MemoryError(_) => of_text("not enough memory"),
        other => of_text(&other.to_string()),
    }
}

/// Whether an error is caused by the VM running out of memory.
pub(crate) fn is_memory(error: &LuaError) -> bool {
    match error {
        LuaError::MemoryError(_) => true,
        LuaError::CallbackError { cause, .. } | LuaError::WithContext { cause, .. } => is_memory(cause),
        LuaError::RuntimeError(text) => text.starts_with("not enough memory"),
        _ => false,
    }
}

impl Failure {
    /// The place is the innermost frame, unless a closer one is known.
    fn located(mut self) -> Self {
        if let Some(frame) = self.traceback.iter().find(|frame| !frame.starts_with("r1.")) {
            let location = frame.split_once(" in ").map_or(frame.as_str(), |(location, _)| location).to_owned();
            self.error = self.error.at(location);
        }
        self
    }
}

/// A value without text prints as an address, which differs in every run.
fn textless(message: &str) -> &str {
    let (kind, address) = message.split_once(": 0x").unwrap_or((message, ""));
    match kind {
        _ if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) => message,
        "table" => "an error value that is a table without text",
        "function" => "an error value that is a function",
        "userdata" => "an error value that is a userdata",
        _ => "an error value that is not text",
    }
}

/// `scripts/x.lua:3: message` -> place and message.
fn split_place(text: &str) -> (Option<&str>, &str) {
    for (colon, _) in text.match_indices(':') {
        let rest = &text[colon + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 && rest[digits..].starts_with(": ") {
            let location = &text[..colon + 1 + digits];
            if is_script(location) {
                return (Some(location), &rest[digits + 2..]);
            }
            // Library functions that the host replaces.
            if location.starts_with("[r1]:") || location.starts_with("r1]:") {
                return (None, &rest[digits + 2..]);
            }
        }
    }
    (None, text)
}

/// Maximum number of frames shown.
const FRAMES: usize = 20;

/// The script's frames of a traceback, without frames of the host, the embedded library and C.
fn frames(traceback: &str) -> Vec<String> {
    traceback.lines().filter_map(frame).take(FRAMES).collect()
}

/// `scripts/x.lua:3: in function 'step'` and `scripts/x.lua:3 function step` -> `scripts/x.lua:3 in
/// step`.
fn frame(line: &str) -> Option<String> {
    let line = line.trim();
    let (colon, digits) = line.match_indices(':').find_map(|(colon, _)| {
        let rest = &line[colon + 1..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        (digits > 0).then_some((colon, digits))
    })?;
    let (location, rest) = line.split_at(colon + 1 + digits);
    // A module of r1 reports errors of its caller, or of a program in another language.
    if !is_script(location) || location.starts_with("@r1/") {
        return None;
    }
    let name = rest.rsplit("function ").next().filter(|_| rest.contains("function "));
    let name = name.map(|name| name.trim_matches(['\'', '`', '"', '<', '>', ' '])).filter(|name| !name.is_empty());
    Some(match name {
        Some(name) if !name.contains(':') => format!("{location} in {name}"),
        _ => location.to_owned(),
    })
}

/// Chunks of the host are named `[r1]…`, mlua's own start with `__mlua` or `[string`.
fn is_script(location: &str) -> bool {
    !location.starts_with('[') && !location.starts_with("__mlua") && !location.contains('\n')
}
