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
    progress: Arc<Progress>,
    drawn: Option<ProgressBar>,
    /// Time of the last line; `None` before the first.
    line: Mutex<Option<Instant>>,
}

/// What a phase has done, in units and in tokens.
struct Progress {
    started: Instant,
    /// 0 if unknown.
    total: u64,
    done: AtomicU64,
    /// Units done before this phase, by a run that is resumed.
    before: AtomicU64,
    /// Units that are worked on at the same time.
    concurrent: AtomicU64,
    tokens: AtomicU64,
    /// Replaces `tokens` once it is set.
    token_source: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

impl Progress {
    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Tokens per second; `None` without tokens, and in the first moments of a phase.
    fn rate(&self) -> Option<f64> {
        let counted = || self.tokens.load(Ordering::Relaxed);
        let (tokens, seconds) = (self.token_source.get().map_or_else(counted, |source| source()), self.seconds());
        (tokens > 0 && seconds > 0.3).then(|| tokens as f64 / seconds)
    }

    /// Seconds until the end of the phase at its rate so far. `None` if too little is done to know
    /// it: of units that are worked on at the same time, the first ones to end are the shortest.
    fn seconds_left(&self) -> Option<f64> {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (done, before) = (read(&self.done), read(&self.before));
        let (measured, seconds) = (done.saturating_sub(before), self.seconds());
        let enough = read(&self.concurrent).min(self.total.saturating_sub(before) / 2).max(1);
        (self.total > done && measured >= enough && seconds > 0.3)
            .then(|| seconds * (self.total - done) as f64 / measured as f64)
    }
}

impl Bar {
    pub(super) fn new(reporter: &Arc<ReporterInner>, phase: &str, total: u64, unit: &str) -> Self {
        let progress = Arc::new(Progress {
            started: Instant::now(),
            total,
            done: AtomicU64::new(0),
            before: AtomicU64::new(0),
            concurrent: AtomicU64::new(1),
            tokens: AtomicU64::new(0),
            token_source: OnceLock::new(),
        });
        let drawn = (reporter.mode == OutputMode::Bars).then(|| {
            let bar = reporter.bars.add(if total > 0 { ProgressBar::new(total) } else { ProgressBar::no_length() });
            let columns =
                console::Term::stderr().size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns));
            let width = bar_width(columns, total, unit);
            bar.set_style(style((total > 0).then_some(width), reporter.unicode, &progress));
            bar.set_prefix(phase.to_owned());
            bar.set_message(unit.to_owned());
            bar.enable_steady_tick(Duration::from_millis(150));
            bar
        });
        Self(Arc::new(BarState {
            reporter: Arc::clone(reporter),
            phase: phase.to_owned(),
            unit: unit.to_owned(),
            progress,
            drawn,
            line: Mutex::new(None),
        }))
    }

    /// The bar of a run that is resumed, with `n` units done before: the time left is that of the
    /// rate since then.
    #[must_use]
    pub fn resumed_after(self, n: u64) -> Self {
        self.0.progress.before.store(n, Ordering::Relaxed);
        self.0.progress.done.store(n, Ordering::Relaxed);
        if let Some(bar) = &self.0.drawn {
            bar.set_position(n);
        }
        self
    }

    /// The bar of a phase that works on `n` units at the same time: the time left is displayed
    /// once so many, or half of all, are done.
    #[must_use]
    pub fn concurrent(self, n: u64) -> Self {
        self.0.progress.concurrent.store(n, Ordering::Relaxed);
        self
    }

    /// Advances the bar by `n` units.
    pub fn inc(&self, n: u64) {
        let done = self.0.progress.done.fetch_add(n, Ordering::Relaxed) + n;
        match &self.0.drawn {
            Some(bar) => bar.inc(n),
            None => self.0.maybe_line(done),
        }
    }

    /// Adds `n` sampled or computed tokens to the displayed rate.
    pub fn tokens(&self, n: u64) {
        self.0.progress.tokens.fetch_add(n, Ordering::Relaxed);
    }

    /// Displays the rate of a token counter that was 0 at the start of the phase.
    pub fn tokens_from(&self, source: impl Fn() -> u64 + Send + Sync + 'static) {
        // Only the first source is used.
        let _ = self.0.progress.token_source.set(Box::new(source));
    }

    /// Finishes the phase and removes its bar.
    pub fn finish(&self) {
        self.0.finish();
    }
}

impl BarState {
    fn maybe_line(&self, done: u64) {
        let mut last = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.unwrap_or(self.progress.started).elapsed() < LINE_EVERY {
            return;
        }
        *last = Some(Instant::now());
        let (rate, left, total) = (self.progress.rate(), self.progress.seconds_left(), self.progress.total);
        match self.reporter.mode {
            OutputMode::Json => self.reporter.event(
                "progress",
                &json!({
                    "phase": self.phase, "done": done, "total": total, "unit": self.unit,
                    "tokens_per_s": rate, "seconds_left": left,
                }),
            ),
            OutputMode::Plain => {
                let total = if total > 0 { format!("/{total}") } else { String::new() };
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
fn style(bar: Option<usize>, unicode: bool, progress: &Arc<Progress>) -> ProgressStyle {
    let template = match bar {
        Some(width) => format!("  {{prefix:<17}} {{bar:{width}}} {{pos:>6}}/{{len}} {{msg}}{{rate}}  {{left}}"),
        None => "  {prefix:<17} {spinner} {pos} {msg}{rate}  {elapsed}".to_owned(),
    };
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let style =
        if unicode { style.progress_chars("━╸ ") } else { style.progress_chars("=> ").tick_chars("|/-\\ ") };
    let (of_rate, of_left) = (Arc::clone(progress), Arc::clone(progress));
    // A write error only omits the number.
    style
        .with_key("rate", move |_: &ProgressState, w: &mut dyn fmt::Write| {
            if let Some(rate) = of_rate.rate() {
                let _ = write!(w, "  {} tokens/s", thousands(rate));
            }
        })
        .with_key("left", move |_: &ProgressState, w: &mut dyn fmt::Write| {
            if let Some(left) = of_left.seconds_left() {
                let _ = write!(w, "{} left", duration(left));
            }
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn progress(total: u64, done: u64, before: u64, concurrent: u64) -> Progress {
        Progress {
            started: Instant::now().checked_sub(Duration::from_secs(10)).unwrap(),
            total,
            done: done.into(),
            before: before.into(),
            concurrent: concurrent.into(),
            tokens: 0.into(),
            token_source: OnceLock::new(),
        }
    }

    fn left(progress: &Progress) -> Option<f64> {
        progress.seconds_left().map(f64::round)
    }

    #[test]
    fn the_time_left_is_that_of_the_units_of_this_process() {
        assert_eq!(left(&progress(30, 10, 0, 1)), Some(20.0));
        assert_eq!(left(&progress(30, 20, 15, 1)), Some(20.0), "resumed after 15");
        assert_eq!(left(&progress(30, 15, 15, 1)), None, "resumed, and nothing is done");
        assert_eq!(left(&progress(30, 30, 0, 1)), None);
        assert_eq!(left(&progress(0, 10, 0, 1)), None, "unknown total");
    }

    #[test]
    fn the_time_left_is_unknown_until_the_first_concurrent_units_are_done() {
        assert_eq!(left(&progress(300, 99, 0, 100)), None);
        assert_eq!(left(&progress(300, 100, 0, 100)), Some(20.0));
        assert_eq!(left(&progress(64, 31, 0, 128)), None);
        assert_eq!(left(&progress(64, 32, 0, 128)), Some(10.0));
        assert_eq!(left(&progress(1, 0, 0, 128)), None);
    }
}
