//! The log output of a script during a run: the first lines of each rollout on the terminal, all of
//! them in `log.jsonl`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result};
use crate::mdp::Split;
use crate::script::{LogLine, LogSink};
use crate::telemetry::{OutputMode, Reporter, open_lines};

/// File of a run directory: one object per line with `step`, `trajectory`, `function`, `steps`,
/// `place` and `text`.
const FILE: &str = "log.jsonl";

/// Maximum number of distinct lines of a rollout on the terminal; the others are counted.
const SHOWN: usize = 10;

/// Characters of a line on the terminal.
const COLUMNS: usize = 400;

/// Maximum bytes that a rollout adds to the file.
const BYTES: usize = 64 << 20;

/// The log of a run's script. Clones share it; scripts write to it from their own threads.
#[derive(Clone)]
pub(crate) struct ScriptLog {
    reporter: Reporter,
    inner: Arc<Mutex<ScriptLogInner>>,
}

#[derive(Default)]
struct ScriptLogInner {
    /// `None` before the run directory exists.
    file: Option<(PathBuf, BufWriter<File>)>,
    failed: Option<io::Error>,
    /// The training step that lines belong to.
    step: u64,
    /// Place and text of the lines of this rollout that were shown.
    shown: HashSet<(String, String)>,
    /// Lines of this rollout that were not shown.
    hidden: u64,
    /// The lines of this rollout for another process, if it writes them.
    collected: Option<Vec<LogLine>>,
    /// The lines of trajectories of later steps.
    later: Vec<LogLine>,
    /// Bytes of this rollout in the file, and the number of lines beyond the limit.
    bytes: usize,
    lost: u64,
}

impl ScriptLog {
    pub(crate) fn new(reporter: &Reporter) -> Self {
        Self { reporter: reporter.clone(), inner: Arc::default() }
    }

    pub(crate) fn sink(&self) -> LogSink {
        let log = self.clone();
        LogSink::new(move |line| log.line(line))
    }

    /// Starts writing to the run directory. `from` is the first step that a resumed run repeats,
    /// and `evaluation` the step of an evaluation that it repeats.
    pub(crate) fn open(&self, run: &Path, from: Option<u64>, evaluation: Option<u64>) -> Result<()> {
        let path = run.join(FILE);
        let prefix = evaluation.map(|step| format!("eval-{step}-"));
        let repeated = |line: &Map<String, Value>| {
            let trajectory = line.get("trajectory").and_then(Value::as_str);
            prefix.as_ref().zip(trajectory).is_some_and(|(prefix, id)| id.starts_with(prefix))
        };
        let (file, _) = open_lines(&path, from, repeated)?;
        self.lock().file = Some((path, BufWriter::new(file)));
        Ok(())
    }

    /// Sets the training step of further lines. Earlier lines of trajectories of this step are
    /// written now.
    pub(crate) fn at(&self, step: u64) {
        let mut inner = self.lock();
        inner.step = step;
        let (lines, later): (Vec<_>, _) =
            std::mem::take(&mut inner.later).into_iter().partition(|line| !is_later(line, step));
        inner.later = later;
        drop(inner);
        for line in &lines {
            self.line(line);
        }
    }

    /// Writes a line to the file, and to the terminal if it is one of the first.
    pub(crate) fn line(&self, line: &LogLine) {
        self.write(line, true);
    }

    /// The lines of the script's top level. A resumed run with an unchanged script has them in the
    /// file already.
    pub(crate) fn top_level(&self, lines: &[LogLine], stored: bool) {
        for line in lines {
            self.write(line, !stored);
        }
    }

    /// Lines from now on are collected for another process.
    pub(crate) fn collect(&self) {
        self.lock().collected.get_or_insert_default();
    }

    /// The lines since [`collect`](Self::collect), or since the last call if collecting `goes_on`.
    pub(crate) fn collected(&self, goes_on: bool) -> Vec<LogLine> {
        let mut inner = self.lock();
        let lines = inner.collected.take();
        inner.collected = (goes_on && lines.is_some()).then(Vec::new);
        lines.unwrap_or_default()
    }

    fn write(&self, line: &LogLine, stores: bool) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(lines) = &mut inner.collected {
            lines.push(line.clone());
            return;
        }
        if is_later(line, inner.step) {
            inner.later.push(line.clone());
            return;
        }
        let mut fields = Map::new();
        fields.insert("step".to_owned(), inner.step.into());
        if !line.trajectory.is_empty() {
            fields.insert("trajectory".to_owned(), line.trajectory.as_str().into());
            fields.insert("steps".to_owned(), line.steps.into());
        }
        for (name, text) in [("function", &*line.function), ("place", &line.place), ("text", &line.text)] {
            fields.insert(name.to_owned(), text.into());
        }
        let object = Value::Object(fields);
        if let Some((_, file)) = inner.file.as_mut().filter(|_| stores) {
            let bytes = format!("{object}\n");
            if inner.bytes + bytes.len() > BYTES {
                inner.lost += 1;
            } else {
                inner.bytes += bytes.len();
                inner.failed = file.write_all(bytes.as_bytes()).err().or(inner.failed.take());
            }
        }
        let key = (line.place.clone(), line.text.clone());
        if inner.shown.len() >= SHOWN || inner.shown.contains(&key) {
            inner.hidden += 1;
            return;
        }
        inner.shown.insert(key);
        match self.reporter.mode() {
            OutputMode::Json => self.reporter.event("log", &object),
            _ => self.reporter.info(&in_words(line)),
        }
    }

    /// Ends a rollout: reports how many lines were not shown, and writes the file.
    ///
    /// # Errors
    /// [`Kind::Store`] if the file could not be written.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.shown.clear();
        let (hidden, lost) = (std::mem::take(&mut inner.hidden), std::mem::take(&mut inner.lost));
        let step = inner.step;
        inner.bytes = 0;
        let mut written = Ok(());
        let mut path = None;
        if let Some((log_path, file)) = &mut inner.file {
            written = inner.failed.take().map_or_else(|| file.flush(), Err);
            path = Some(log_path.clone());
        }
        drop(guard);
        if hidden > 0 {
            match (self.reporter.mode(), &path) {
                (OutputMode::Json, _) => self.reporter.event("log_omitted", &json!({ "step": step, "lines": hidden })),
                (_, Some(path)) => {
                    let lines = if hidden == 1 { "1 more line".to_owned() } else { format!("{hidden} more lines") };
                    self.reporter.info(&format!("log      {lines} in {}", path.display()));
                }
                (_, None) => self.reporter.info(&format!("log      {hidden} more, not shown")),
            }
        }
        if lost > 0 {
            self.reporter.warn(&format!("the script logs too much: {lost} lines of this step were dropped"));
        }
        written.map_err(|error| Error::io(Kind::Store, "write the log", path.unwrap_or_default(), &error))
    }

    fn lock(&self) -> MutexGuard<'_, ScriptLogInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a line is of a trajectory of a later training step.
fn is_later(line: &LogLine, step: u64) -> bool {
    matches!(Split::of_id(&line.trajectory), Some((Split::Train, of_trajectory)) if of_trajectory > step)
}

/// A line for the terminal: trajectory, function, place and text. Control characters are shown, not
/// sent to the terminal.
pub fn in_words(line: &LogLine) -> String {
    let LogLine { place: location, text, function, trajectory, .. } = line;
    let from = match (&**function, trajectory.is_empty()) {
        ("script" | "", _) => String::new(),
        (function, true) => format!("{function}  "),
        (function, false) => format!("{trajectory} {function}  "),
    };
    let shown: String = text
        .chars()
        .take(COLUMNS)
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => char::from_u32(0x2400 + u32::from(c)).filter(|_| c < ' ').unwrap_or('␣'),
            c => c,
        })
        .collect();
    let more = if text.chars().nth(COLUMNS).is_some() { "…" } else { "" };
    let location = if location.is_empty() { String::new() } else { format!("{location}: ") };
    format!("log      {from}{location}{}{more}", shown.replace('\n', "\n           "))
}
