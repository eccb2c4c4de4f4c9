//! A time line of what a process does, for `r1 run --profile`: spans of time on named tracks, in
//! the Trace Event Format of chrome://tracing and Perfetto.
//!
//! There is one time line for a process. Spans cost two clock readings while it records, and
//! nothing otherwise.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

static RECORDING: AtomicBool = AtomicBool::new(false);
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);

struct Timeline {
    start: Instant,
    /// Numbers of the tracks, in the order of their first spans.
    tracks: BTreeMap<String, usize>,
    events: Vec<Value>,
}

fn timeline() -> MutexGuard<'static, Option<Timeline>> {
    TIMELINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A span of time, which ends when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct TimelineSpan {
    track: String,
    name: &'static str,
    begin: Instant,
    details: Value,
}

/// Begins a span; `None` if nothing is recorded. Spans of a track must not overlap, unless one is
/// within the other. `track` is called only while the time line is recorded.
pub fn span(name: &'static str, track: impl FnOnce() -> String) -> Option<TimelineSpan> {
    let recording = RECORDING.load(Ordering::Relaxed);
    recording.then(|| TimelineSpan { track: track(), name, begin: Instant::now(), details: json!({}) })
}

impl TimelineSpan {
    /// Adds data that a viewer displays with the span.
    pub fn detail(&mut self, name: &str, value: Value) {
        self.details[name] = value;
    }
}

impl Drop for TimelineSpan {
    fn drop(&mut self) {
        let end = Instant::now();
        let mut timeline = timeline();
        let Some(timeline) = &mut *timeline else { return };
        let next = timeline.tracks.len();
        let number = *timeline.tracks.entry(std::mem::take(&mut self.track)).or_insert(next);
        let micros = |duration: std::time::Duration| duration.as_secs_f64() * 1e6;
        timeline.events.push(json!({
            "ph": "X", "pid": 1, "tid": number, "name": self.name, "args": self.details,
            "ts": micros(self.begin.saturating_duration_since(timeline.start)),
            "dur": micros(end.saturating_duration_since(self.begin)),
        }));
    }
}

/// Starts to record. What was recorded before is dropped.
pub fn start() {
    *timeline() = Some(Timeline { start: Instant::now(), tracks: BTreeMap::new(), events: Vec::new() });
    RECORDING.store(true, Ordering::Relaxed);
}

/// Stops; returns the trace as JSON. `None` if nothing was recorded.
pub fn stop() -> Option<Value> {
    RECORDING.store(false, Ordering::Relaxed);
    let Timeline { tracks, mut events, .. } = timeline().take()?;
    for (track, number) in tracks {
        let names = [("thread_name", json!({ "name": track })), ("thread_sort_index", json!({ "sort_index": number }))];
        events.extend(
            names.map(|(name, args)| json!({ "ph": "M", "pid": 1, "tid": number, "name": name, "args": args })),
        );
    }
    Some(json!({ "traceEvents": events, "displayTimeUnit": "ms" }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// One test: the time line is one for a process.
    #[test]
    fn spans_have_tracks_times_and_details() {
        assert!(span("before", || panic!("not called")).is_none());
        start();
        let outer = span("outer", || "a".to_owned());
        let mut inner = span("inner", || "a".to_owned()).unwrap();
        inner.detail("tokens", json!(3));
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(inner);
        drop(outer);
        drop(span("other", || "b".to_owned()));
        let trace = stop().unwrap();
        assert!(stop().is_none() && span("after", String::new).is_none());
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
        let (outer, inner) = (of("outer"), of("inner"));
        let number = |event: &Value, field: &str| event[field].as_f64().unwrap();
        assert!(number(inner, "dur") >= 2000.0 && inner["args"]["tokens"] == 3);
        assert!(number(outer, "ts") <= number(inner, "ts"));
        assert!(number(outer, "ts") + number(outer, "dur") >= number(inner, "ts") + number(inner, "dur"));
        assert!(outer["tid"] == inner["tid"] && outer["tid"] != of("other")["tid"]);
        let tracks = events.iter().filter(|event| event["name"] == "thread_name");
        assert_eq!(tracks.map(|event| event["args"]["name"].clone()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
