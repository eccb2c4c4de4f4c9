//! The newest metrics of a run for Prometheus, in its text format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::names;
use crate::error::{Error, Kind, Result};
use crate::net;

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of lines of `metrics.jsonl`, each with the name of its run as the label `run`. The
/// name of a metric is `r1_` and its name in docs/reference/metrics.md with `_` for other
/// characters than letters and digits.
pub fn exposition<'a>(runs: impl IntoIterator<Item = (&'a str, &'a Map<String, Value>)> + Clone) -> String {
    let numbers = |line: &'a Map<String, Value>| line.iter().filter_map(|(name, value)| Some((name, value.as_f64()?)));
    let mut all: Vec<(&String, String, f64)> = Vec::new();
    for (run, line) in runs {
        let run = run.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        all.extend(numbers(line).map(|(name, value)| (name, run.clone(), value)));
    }
    // The lines of a metric are together.
    all.sort_by(|a, b| a.0.cmp(b.0));
    let (mut text, mut last) = (String::new(), None);
    for (name, run, value) in all {
        let metric: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        // Writing to a string does not fail.
        if last != Some(name) {
            if let Some(meaning) = names::meaning(name) {
                let meaning = meaning.replace('\\', r"\\").replace('\n', " ");
                let _ = writeln!(text, "# HELP r1_{metric} {meaning}");
            }
            let _ = writeln!(text, "# TYPE r1_{metric} gauge");
            last = Some(name);
        }
        let _ = writeln!(text, "r1_{metric}{{run=\"{run}\"}} {value}");
    }
    text
}

/// A server of the newest metrics of a run at `http://127.0.0.1:PORT/metrics`, until it is dropped.
#[derive(Debug)]
pub(super) struct Exporter {
    text: Arc<Mutex<String>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// # Errors
    /// [`Kind::Usage`] if the port is in use or may not be used.
    pub(super) fn start(port: u16) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(Kind::Usage, format!("can't serve metrics on port {port}: {error}"))
                .hint("choose another port with --metrics-port")
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let text = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&text);
        let body = move || shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let serve = move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let stopped = async { drop(stopped.await) };
                net::serve_text(listener, "/metrics", CONTENT_TYPE, body, stopped).await;
            });
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self { text, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn set(&self, run: &str, line: &Map<String, Value>) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = exposition([(run, line)]);
    }
}

impl Drop for Exporter {
    /// Waits until the port is free: a run has one server for its cold start and one for itself.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use serde_json::json;

    use super::*;

    fn line(value: Value) -> Map<String, Value> {
        let Value::Object(line) = value else { panic!("an object") };
        line
    }

    #[test]
    fn metrics_of_runs_are_gauges_with_the_run_as_label() {
        let a = line(json!({ "step": 3, "policy/clip_frac": 0.25, "eval/accuracy": null }));
        let b = line(json!({ "step": 4, "own metric": 1e-9 }));
        assert_eq!(
            exposition([("a", &a), ("b\"\\", &b)]),
            "# TYPE r1_own_metric gauge\nr1_own_metric{run=\"b\\\"\\\\\"} 0.000000001\n\
             # HELP r1_policy_clip_frac Share of tokens whose ratio was clipped\n\
             # TYPE r1_policy_clip_frac gauge\nr1_policy_clip_frac{run=\"a\"} 0.25\n\
             # TYPE r1_step gauge\nr1_step{run=\"a\"} 3\nr1_step{run=\"b\\\"\\\\\"} 4\n"
        );
    }

    #[test]
    fn the_newest_line_is_served_until_the_exporter_is_dropped() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let answer = |head: &str| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream
                .write_all(format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
                .unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let exporter = Exporter::start(port).unwrap();
        exporter.set("a", &line(json!({ "step": 1 })));
        exporter.set("a", &line(json!({ "step": 2 })));
        let text = answer("GET /metrics");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("text/plain; version=0.0.4"), "{text}");
        assert!(text.ends_with("r1_step{run=\"a\"} 2\n"), "{text}");
        assert!(answer("GET /").starts_with("HTTP/1.1 404"));
        assert!(answer("POST /metrics").starts_with("HTTP/1.1 405"));
        let refusal = Exporter::start(port).unwrap_err();
        assert!(refusal.message.starts_with(&format!("can't serve metrics on port {port}: ")), "{refusal}");
        drop(exporter);
        Exporter::start(port).unwrap();
    }
}
