//! Lines that a script logs or prints, and their receivers.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A logged line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// `scripts/retool.lua:12`
    pub place: String,
    pub text: String,
    /// The function that ran: `script` (the file, while it is loaded), `row`, `reset`, `context`,
    /// `step`, `flow`, `reward`, `advantage` …
    pub function: Cow<'static, str>,
    /// Trajectory id; empty for calls outside a trajectory, and where trajectories have no ids.
    pub trajectory: String,
    /// Steps of the trajectory so far.
    pub steps: u64,
}

type Receive = dyn Fn(&LogLine) + Send + Sync;

/// Receives the lines that a script logs, immediately and from any thread.
#[derive(Clone, Default)]
pub struct LogSink(Option<Arc<Receive>>);

impl LogSink {
    pub fn new(receive: impl Fn(&LogLine) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(receive)))
    }

    /// The receiver; `None` for an unset sink.
    pub(crate) fn receiver(&self) -> Option<&Receive> {
        self.0.as_deref()
    }
}

impl std::fmt::Debug for LogSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "LogSink(_)" } else { "LogSink" })
    }
}

/// Receives the output of a program: the text, and the place of an `r1.log`.
pub type Echo = Box<dyn Fn(&LogLine, LogStream)>;

/// Output stream of a program's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// `print`, `io.write`
    Out,
    /// `r1.log`
    Log,
}
