//! Error output: an `error:` block on stderr, or one JSON object on stdout; exit codes; caught
//! panics.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::error::{ContextKind, ContextValue};
use console::Style;
use serde_json::json;

use crate::error::{Error, Kind, Result, Subject, without_control_characters};
use crate::native::out_of_memory;

#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorFormat {
    json: bool,
    /// Whether colour is enabled; it also needs a terminal.
    pub(super) colour: bool,
}

impl ErrorFormat {
    pub(super) fn new(json: bool, colour: bool) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { json, colour: colour && !refused }
    }

    /// Prints the error and returns the exit code.
    pub(super) fn fail(self, error: &Error) -> ExitCode {
        if self.json {
            Self::object(error);
        } else {
            let style = |style: Style, word: &str| {
                style.force_styling(self.colour && io::stderr().is_terminal()).apply_to(word).to_string()
            };
            let text = without_control_characters(&error.to_string())
                .replace("\n  hint:", &format!("\n  {}:", style(Style::new().cyan(), "hint")));
            write_ignoring_errors(io::stderr(), &format!("{}: {text}\n", style(Style::new().red().bold(), "error")));
        }
        ExitCode::from(error.kind.exit_code())
    }

    /// Prints an argument error of clap.
    pub(super) fn refuse(self, error: &clap::Error) -> ExitCode {
        if self.json {
            let text = error.render().to_string();
            let mut lines = text.lines().map(str::trim);
            let message = lines.next().unwrap_or_default().trim_start_matches("error: ");
            let mut shown = Error::new(Kind::Usage, message);
            if let Some(tip) = lines.find_map(|line| line.strip_prefix("tip: ")) {
                shown = shown.hint(tip);
            }
            if let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) {
                shown = shown.about(Subject::Argument(argument.clone()));
            }
            Self::object(&shown);
        } else {
            // If stderr can't be written, only the exit code reports the error.
            let _ = error.print();
        }
        ExitCode::from(Kind::Usage.exit_code())
    }

    fn object(error: &Error) {
        let object = json!({
            "event": "error",
            "kind": error.kind.name(),
            "exit_code": error.kind.exit_code(),
            "message": error.message,
            "subject": error.subject,
            "place": error.place,
            "hint": error.hint,
        });
        write_ignoring_errors(io::stdout(), &format!("{object}\n"));
    }
}

/// Writes a text; a failure to write it is ignored.
fn write_ignoring_errors(mut stream: impl Write, text: &str) {
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

/// The message and place of the main thread's last panic.
static PANIC: Mutex<Option<(String, String)>> = Mutex::new(None);

/// Runs `body`; a panic becomes an internal error that can be reported.
pub(super) fn catch<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::set_hook(Box::new(note_panic));
    if let Ok(done) = panic::catch_unwind(panic::AssertUnwindSafe(body)) {
        return done;
    }
    let (message, location) = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    Err(panic_error(&message, location))
}

/// Some failures of libtorch are panics of tch; running out of memory is not an internal error.
fn panic_error(message: &str, location: String) -> Error {
    let first = message.lines().next().unwrap_or_default();
    if let Some(error) = out_of_memory(message, &format!("out of memory: {first}")) {
        return error;
    }
    Error::new(Kind::Internal, format!("internal error in r1: {first}")).at(location).hint(concat!(
        "please report it, with the command and this message, at ",
        env!("CARGO_PKG_REPOSITORY"),
        "/issues; RUST_BACKTRACE=1 shows more"
    ))
}

fn note_panic(info: &PanicHookInfo<'_>) {
    if crate::search::expects_panic() {
        return;
    }
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("a panic without a message").to_owned();
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        write_ignoring_errors(io::stderr(), &format!("{backtrace}\n"));
    }
    let thread = std::thread::current();
    if thread.name() == Some("main") {
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some((message, location));
    } else {
        // The thread that joins it handles the panic.
        let name = thread.name().unwrap_or("without a name");
        write_ignoring_errors(io::stderr(), &format!("warning: the thread {name} panicked at {location}: {message}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_internal_errors_and_out_of_memory_is_not() {
        let error = panic_error("index out of bounds\nmore", "src/x.rs:1:2".to_owned());
        assert_eq!(error.kind, Kind::Internal);
        assert_eq!(error.message, "internal error in r1: index out of bounds");
        assert!(error.hint.is_some_and(|hint| hint.contains("report")));
        let error = panic_error("Torch(\"CUDA out of memory. Tried to …\")", String::new());
        assert_eq!(error.kind, Kind::Device);
    }
}
