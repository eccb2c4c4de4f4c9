//! Progress of one phase: a bar on a terminal, otherwise a line at intervals.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::json;

use super::format::{duration, thousands};
use super::reporter::{OutputMode, ReporterInner};

/// Interval between progress lines without bars.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of one phase. Clones share state and can be used from any thread. The bar is removed by
/// [`finish`](Self::finish) or when the last clone is dropped.
#[derive(Clone)]
pub struct Bar(Arc<BarState>);

struct BarState {
    reporter: Arc<ReporterInner>,
    phase: String,
    unit: String,
    /// 0 if unknown.
    total: u64,
    done: AtomicU64,
    /// Token counts for the displayed rate.
    tokens: Arc<TokenCounter>,
    started: Instant,
    drawn: Option<ProgressBar>,
    /// Time of the last line; `None` before the first.
    line: Mutex<Option<Instant>>,
}

/// Number of tokens: counted here, or read from a callback.
#[derive(Default)]
struct TokenCounter {
    counted: AtomicU64,
    source: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

impl TokenCounter {
    /// Tokens per second; `None` without tokens, and in the first moments of a phase.
    fn rate(&self, seconds: f64) -> Option<f64> {
        let tokens = self.source.get().map_or_else(|| self.counted.load(Ordering::Relaxed), |source| source());
        (tokens > 0 && seconds > 0.3).then(|| tokens as f64 / seconds)
    }
}

impl Bar {
    pub(super) fn new(reporter: &Arc<ReporterInner>, phase: &str, total: u64, unit: &str) -> Self {
        let tokens = Arc::new(TokenCounter::default());
        let started = Instant::now();
        let drawn = (reporter.mode == OutputMode::Bars).then(|| {
            let bar = reporter.bars.add(if total > 0 { ProgressBar::new(total) } else { ProgressBar::no_length() });
            let columns =
                console::Term::stderr().size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns));
            let width = bar_width(columns, total, unit);
            bar.set_style(style((total > 0).then_some(width), reporter.unicode, Arc::clone(&tokens), started));
            bar.set_prefix(phase.to_owned());
            bar.set_message(unit.to_owned());
            bar.enable_steady_tick(Duration::from_millis(150));
            bar
        });
        Self(Arc::new(BarState {
            reporter: Arc::clone(reporter),
            phase: phase.to_owned(),
            unit: unit.to_owned(),
            total,
            done: AtomicU64::new(0),
            tokens,
            started,
            drawn,
            line: Mutex::new(None),
        }))
    }

    /// Advances the bar by `n` units.
    pub fn inc(&self, n: u64) {
        let done = self.0.done.fetch_add(n, Ordering::Relaxed) + n;
        match &self.0.drawn {
            Some(bar) => bar.inc(n),
            None => self.0.maybe_line(done),
        }
    }

    /// Adds `n` sampled or computed tokens to the displayed rate.
    pub fn tokens(&self, n: u64) {
        self.0.tokens.counted.fetch_add(n, Ordering::Relaxed);
    }

    /// Displays the rate of a token counter that was 0 at the start of the phase.
    pub fn tokens_from(&self, source: impl Fn() -> u64 + Send + Sync + 'static) {
        // Only the first source is used.
        let _ = self.0.tokens.source.set(Box::new(source));
    }

    /// Finishes the phase and removes its bar.
    pub fn finish(&self) {
        self.0.finish();
    }
}

impl BarState {
    fn maybe_line(&self, done: u64) {
        let mut last = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.unwrap_or(self.started).elapsed() < LINE_EVERY {
            return;
        }
        *last = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = self.tokens.rate(seconds);
        let left = (self.total > done && done > 0).then(|| seconds * (self.total - done) as f64 / done as f64);
        match self.reporter.mode {
            OutputMode::Json => self.reporter.event(
                "progress",
                &json!({
                    "phase": self.phase, "done": done, "total": self.total, "unit": self.unit,
                    "tokens_per_s": rate, "seconds_left": left,
                }),
            ),
            OutputMode::Plain => {
                let total = if self.total > 0 { format!("/{}", self.total) } else { String::new() };
                let rate = rate.map_or_else(String::new, |rate| format!(", {} tokens/s", thousands(rate)));
                let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
                self.reporter.error_line(&format!("  {}: {done}{total} {}{rate}{left}", self.phase, self.unit));
            }
            OutputMode::Bars | OutputMode::Quiet => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.drawn {
            bar.finish_and_clear();
            self.reporter.bars.remove(bar);
        }
    }
}

impl Drop for BarState {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Width of the bar itself, so that its line fits in the terminal: one that wraps is not removed
/// completely.
fn bar_width(columns: usize, total: u64, unit: &str) -> usize {
    const WIDTHS: std::ops::RangeInclusive<usize> = 4..=28;
    // The phase, the bar's margins, a rate of six digits and a time.
    let others = 2
        + 17
        + 2
        + 7
        + total.to_string().len()
        + 1
        + unit.len()
        + "  999,999 tokens/s".len()
        + "  59 min 59 s left".len();
    columns.saturating_sub(others).clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// `bar`: the width of the bar, if the total is known.
fn style(bar: Option<usize>, unicode: bool, tokens: Arc<TokenCounter>, started: Instant) -> ProgressStyle {
    let template = match bar {
        Some(width) => format!("  {{prefix:<17}} {{bar:{width}}} {{pos:>6}}/{{len}} {{msg}}{{rate}}  {{left}}"),
        None => "  {prefix:<17} {spinner} {pos} {msg}{rate}  {elapsed}".to_owned(),
    };
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let style =
        if unicode { style.progress_chars("━╸ ") } else { style.progress_chars("=> ").tick_chars("|/-\\ ") };
    style
        .with_key("rate", move |_: &ProgressState, w: &mut dyn fmt::Write| {
            if let Some(rate) = tokens.rate(started.elapsed().as_secs_f64()) {
                // A write error only omits the rate.
                let _ = write!(w, "  {} tokens/s", thousands(rate));
            }
        })
        .with_key("left", |state: &ProgressState, w: &mut dyn fmt::Write| {
            let is_measured = state.pos() > 0 && state.elapsed().as_secs_f64() > 0.3;
            if is_measured && state.len().is_some_and(|len| len > state.pos()) {
                let _ = write!(w, "{} left", duration(state.eta().as_secs_f64()));
            }
        })
}
