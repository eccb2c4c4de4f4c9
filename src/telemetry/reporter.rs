//! Printing during a run.
//!
//! Results (section titles, step lines, tables, charts) go to stdout; notes, warnings and bars go
//! to stderr. With `--json`, stdout has one JSON object per line instead; with `--quiet`, only
//! warnings are printed. A closed pipe disables its stream and never stops a run: the run directory
//! has all output.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use console::Style;
use indicatif::{MultiProgress, ProgressDrawTarget};
use serde_json::{Value, json};

use super::bar::Bar;
use super::chart::{self, Plot};
use super::metrics::Metrics;
use super::names;
use super::report::ReportStyle;
use super::table::{StepTable, align};
use crate::error::without_control_characters;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Progress bars and lines, for a terminal.
    Bars,
    /// Lines only, for a log file.
    Plain,
    /// Warnings only.
    Quiet,
    /// One JSON object per line on stdout.
    Json,
}

/// Prints the output of a run. Clones share state and can be used from any thread.
#[derive(Clone)]
pub struct Reporter(Arc<ReporterInner>);

pub(super) struct ReporterInner {
    pub(super) mode: OutputMode,
    pub(super) bars: MultiProgress,
    pub(super) unicode: bool,
    out: Mutex<OutputStream>,
    err: Mutex<OutputStream>,
    table: Mutex<StepTable>,
    /// Width of the terminal that stdout is; `None` for a file or a pipe.
    columns: Option<usize>,
}

struct OutputStream {
    /// `None` after the other end was closed.
    writer: Option<Box<dyn Write + Send>>,
    colour: bool,
}

impl Reporter {
    /// Prints to stdout and stderr. Colour needs a terminal, no `NO_COLOR`, and `colour`.
    pub fn new(quiet: bool, json: bool, colour: bool) -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let mode = match (json, quiet) {
            (true, _) => OutputMode::Json,
            (_, true) => OutputMode::Quiet,
            _ if err.is_terminal() && !dumb_terminal() => OutputMode::Bars,
            _ => OutputMode::Plain,
        };
        let colour = colour && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && !dumb_terminal();
        let terminal = out.is_terminal().then(|| console::Term::stdout().size_checked()).flatten();
        let columns = terminal.map(|(_, columns)| usize::from(columns));
        let (out_colour, err_colour) = (colour && out.is_terminal(), colour && err.is_terminal());
        let out = OutputStream { writer: Some(Box::new(out)), colour: out_colour };
        let err = OutputStream { writer: Some(Box::new(err)), colour: err_colour };
        Self::build(mode, out, err, supports_unicode(), columns)
    }

    /// Prints nothing, for programs that use the crate.
    pub fn silent() -> Self {
        let sink = || OutputStream { writer: None, colour: false };
        Self::build(OutputMode::Quiet, sink(), sink(), false, None)
    }

    fn build(mode: OutputMode, out: OutputStream, err: OutputStream, unicode: bool, columns: Option<usize>) -> Self {
        let target = if mode == OutputMode::Bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self(Arc::new(ReporterInner {
            mode,
            bars: MultiProgress::with_draw_target(target),
            unicode,
            out: Mutex::new(out),
            err: Mutex::new(err),
            table: Mutex::new(StepTable::of_width(columns)),
            columns,
        }))
    }

    /// Whether stdout is coloured.
    pub fn is_coloured(&self) -> bool {
        lock(&self.0.out).colour
    }

    pub fn mode(&self) -> OutputMode {
        self.0.mode
    }

    /// Starts the progress bar of a phase of `total` units (0: unknown).
    pub fn bar(&self, phase: &str, total: u64, unit: &str) -> Bar {
        Bar::new(&self.0, phase, total, unit)
    }

    /// Prints the title of a new part of the run. The table of steps begins anew.
    pub fn section(&self, title: &str) {
        *lock(&self.0.table) = StepTable::of_width(self.0.columns);
        self.show(
            "section",
            || json!({ "title": title }),
            |inner| {
                let title = styled(&inner.out, &Style::new().bold(), title);
                inner.out_line(&format!("\n{title}"));
            },
        );
    }

    /// Prints a note.
    pub fn info(&self, message: &str) {
        self.show(
            "info",
            || json!({ "message": message }),
            |inner| {
                inner.error_line(&format!("  {}", without_control_characters(message)));
            },
        );
    }

    /// Prints the response to a user action such as Ctrl-C, in every mode.
    pub fn answer(&self, message: &str) {
        match self.0.mode {
            OutputMode::Json => self.0.event("answer", &json!({ "message": message })),
            OutputMode::Quiet | OutputMode::Bars | OutputMode::Plain => self.0.error_line(&format!("  {message}")),
        }
    }

    /// Prompts for confirmation; `None` without a terminal. The default answer is no.
    pub fn confirm(&self, question: &str) -> Option<bool> {
        let can_ask = matches!(self.0.mode, OutputMode::Bars | OutputMode::Plain);
        if !can_ask || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return None;
        }
        self.0.error_line(&format!("{} [y/N]", without_control_characters(question)));
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        Some(read.is_ok() && matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    pub fn warn(&self, message: &str) {
        if self.0.mode == OutputMode::Json {
            return self.0.event("warning", &json!({ "message": message }));
        }
        let word = styled(&self.0.err, &Style::new().yellow().bold(), "warning");
        self.0.error_line(&format!("{word}: {}", without_control_characters(message)));
    }

    /// Prints the summary line of a step.
    pub fn step(&self, step: u64, total: u64, metrics: &Metrics) {
        let fields = || json!({ "step": step, "total": total, "metrics": metrics.to_json() });
        self.show("step", fields, |inner| {
            let (heading, row) = lock(&inner.table).row(step, total, metrics);
            if let Some(heading) = heading {
                inner.out_line(&styled(&inner.out, &Style::new().dim(), &heading));
            }
            inner.out_line(&row);
        });
    }

    /// Prints an event with `--json`, nothing with `--quiet`, and otherwise what `print` does.
    fn show(&self, event: &str, fields: impl FnOnce() -> Value, print: impl FnOnce(&ReporterInner)) {
        match self.0.mode {
            OutputMode::Json => self.0.event(event, &fields()),
            OutputMode::Quiet => {}
            OutputMode::Bars | OutputMode::Plain => print(&self.0),
        }
    }

    /// Prints text, such as a trajectory; not with `--json` or `--quiet`.
    pub fn text(&self, text: &str) {
        if matches!(self.0.mode, OutputMode::Bars | OutputMode::Plain) {
            self.0.out_line(text);
        }
    }

    /// Prints rows in aligned columns; the first row is the heading.
    pub fn table(&self, rows: &[Vec<String>]) {
        if matches!(self.0.mode, OutputMode::Bars | OutputMode::Plain) {
            for (number, line) in align(rows).into_iter().enumerate() {
                let line = if number == 0 { styled(&self.0.out, &Style::new().dim(), &line) } else { line };
                self.0.out_line(&line);
            }
        }
    }

    /// Plots a metric over steps, starting at step `first`; prints nothing for fewer than two
    /// steps.
    pub fn plot(&self, metric: &str, first: u64, values: &[f64]) {
        if matches!(self.0.mode, OutputMode::Bars | OutputMode::Plain) && values.len() > 1 {
            let bounds = names::is_share(metric).then_some((0.0, 1.0));
            let plot = Plot { title: metric, values, size: (60, 6), bounds, first };
            match chart::plot(&plot, ReportStyle::of(self)) {
                Ok(drawn) => drawn.lines().for_each(|line| self.0.out_line(&format!("  {line}"))),
                Err(error) => self.warn(&error.to_string()),
            }
        }
    }

    /// Prints a JSON event, with `--json` only.
    pub fn event(&self, name: &str, fields: &Value) {
        if self.0.mode == OutputMode::Json {
            self.0.event(name, fields);
        }
    }
}

impl ReportStyle {
    pub fn of(reporter: &Reporter) -> Self {
        Self { colour: reporter.is_coloured(), unicode: reporter.0.unicode }
    }
}

impl ReporterInner {
    pub(super) fn event(&self, name: &str, fields: &Value) {
        let mut object = serde_json::Map::new();
        object.insert("event".to_owned(), Value::from(name));
        if let Value::Object(fields) = fields {
            object.extend(fields.clone());
        }
        self.out_line(&Value::Object(object).to_string());
    }

    fn out_line(&self, line: &str) {
        self.bars.suspend(|| lock(&self.out).line(line));
    }

    pub(super) fn error_line(&self, line: &str) {
        self.bars.suspend(|| lock(&self.err).line(line));
    }
}

fn styled(stream: &Mutex<OutputStream>, style: &Style, text: &str) -> String {
    style.clone().force_styling(lock(stream).colour).apply_to(text).to_string()
}

impl OutputStream {
    fn line(&mut self, line: &str) {
        if let Some(writer) = &mut self.writer
            && writer.write_all(format!("{line}\n").as_bytes()).and_then(|()| writer.flush()).is_err()
        {
            self.writer = None;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Whether the locale supports block characters. An unset locale, common in containers, counts as
/// UTF-8.
fn supports_unicode() -> bool {
    let named = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let locale = named.into_iter().find(|value| !value.is_empty());
    !dumb_terminal()
        && locale.is_none_or(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured output of a reporter.
    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Printed {
        fn text(&self) -> String {
            String::from_utf8_lossy(&lock(&self.0)).into_owned()
        }
    }

    /// Calls every print function; returns stdout and stderr.
    fn print_all(mode: OutputMode, colour: bool) -> (String, String) {
        let (out, err) = (Printed::default(), Printed::default());
        let stream = |printed: &Printed| OutputStream { writer: Some(Box::new(printed.clone())), colour };
        let reporter = Reporter::build(mode, stream(&out), stream(&err), false, None);
        reporter.section("Training");
        reporter.info("loading the model");
        reporter.warn("slow");
        let bar = reporter.bar("sampling", 4, "trajectories");
        bar.inc(1);
        bar.tokens(100);
        bar.finish();
        let mut metrics = Metrics::new();
        metrics.set("reward/mean", 0.5);
        metrics.set("policy/loss", f64::NAN);
        reporter.step(3, 10, &metrics);
        reporter.text("done");
        reporter.event("summary", &json!({ "accuracy": 1.0 }));
        (out.text(), err.text())
    }

    #[test]
    fn reporter_prints_plain_lines() {
        let (out, err) = print_all(OutputMode::Plain, false);
        assert_eq!(out, "\nTraining\n   step   reward\n   3/10   +0.500\ndone\n");
        assert_eq!(err, "  loading the model\nwarning: slow\n");
    }

    #[test]
    fn quiet_reporter_prints_only_warnings() {
        assert_eq!(print_all(OutputMode::Quiet, false), (String::new(), "warning: slow\n".to_owned()));
    }

    #[test]
    fn json_reporter_prints_one_object_per_line() {
        let (out, err) = print_all(OutputMode::Json, false);
        assert_eq!(err, "");
        assert_eq!(
            out.lines().collect::<Vec<_>>(),
            [
                r#"{"event":"section","title":"Training"}"#,
                r#"{"event":"info","message":"loading the model"}"#,
                r#"{"event":"warning","message":"slow"}"#,
                r#"{"event":"step","step":3,"total":10,"metrics":{"policy/loss":null,"reward/mean":0.5}}"#,
                r#"{"event":"summary","accuracy":1.0}"#,
            ]
        );
    }

    #[test]
    fn colour_adds_only_escape_codes() {
        let (plain, coloured) = (print_all(OutputMode::Plain, false), print_all(OutputMode::Plain, true));
        assert_ne!(plain, coloured);
        assert_eq!(console::strip_ansi_codes(&coloured.0), plain.0);
        assert_eq!(console::strip_ansi_codes(&coloured.1), plain.1);
    }

    #[test]
    fn closed_pipe_disables_output() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let closed = || OutputStream { writer: Some(Box::new(Closed)), colour: false };
        let reporter = Reporter::build(OutputMode::Plain, closed(), closed(), false, None);
        reporter.warn("x");
        reporter.text("y");
        assert!(lock(&reporter.0.out).writer.is_none());
    }
}
