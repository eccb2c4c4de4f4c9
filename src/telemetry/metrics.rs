//! Metrics of a step, and their log: `metrics.jsonl` and TensorBoard events.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};

use super::prometheus::Exporter;
use super::tensorboard::{EventFile, drop_events};
use crate::error::{Error, Kind, Result};

/// Metric values by name, sorted. Names are listed in [`names`](super::names).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub fn new() -> Self {
        Self::default()
    }

    /// Metrics of a test.
    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, f64)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }

    /// Sets a metric; a negative zero is zero.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value + 0.0);
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Adds all metrics of `other`, replacing equal names.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// JSON object; non-finite values are null.
    pub fn to_json(&self) -> Map<String, Value> {
        self.iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
    }
}

impl From<Metrics> for BTreeMap<String, f64> {
    fn from(metrics: Metrics) -> Self {
        metrics.0
    }
}

/// The log of a run's metrics, one JSON object per line.
pub(super) const FILE: &str = "metrics.jsonl";

/// The folder of a run with its TensorBoard events.
const EVENTS: &str = "tb";

/// Writes the metrics of each step to `metrics.jsonl` and `tb/` in a run directory.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    /// Length of the complete lines, bytes.
    length: u64,
    /// The last line and its byte offset.
    last: Option<Line>,
    events: EventFile,
    /// The run's name, and the server of its newest line.
    exporter: Option<(String, Exporter)>,
}

impl MetricsLog {
    /// Opens the logs of a run. `from` is the first step that a resumed run repeats: lines from it
    /// on are dropped.
    pub fn open(run: &Path, from: Option<u64>) -> Result<Self> {
        let path = run.join(FILE);
        let (file, length, last) =
            opened(&path, from, |_| false).map_err(|error| Error::io(Kind::Store, "write metrics", &path, &error))?;
        let folder = run.join(EVENTS);
        if let Some(from) = from {
            drop_events(&folder, |step, _| step >= from)?;
        }
        let events = EventFile::create(&folder, now(), from)?;
        Ok(Self { path, file, length, last, events, exporter: None })
    }

    /// Also serves the newest line at `http://127.0.0.1:PORT/metrics` for Prometheus.
    ///
    /// # Errors
    /// `Kind::Usage` if the port is in use.
    pub fn serve(&mut self, run: String, port: u16) -> Result<()> {
        let exporter = Exporter::start(port)?;
        if let Some((_, line)) = &self.last {
            exporter.set(&run, line);
        }
        self.exporter = Some((run, exporter));
        Ok(())
    }

    /// Prepares an evaluation after a step that a resumed run repeats: removes the events that a
    /// killed process wrote of it.
    ///
    /// # Errors
    /// `Kind::Store`.
    pub fn repeats_evaluation(&self, step: u64) -> Result<()> {
        let folder = self.path.with_file_name(EVENTS);
        let is_of_evaluation = |tag: &str| tag.starts_with("eval/") || tag.starts_with("trajectory/eval/");
        drop_events(&folder, |at, tag| at == step && is_of_evaluation(tag))
    }

    /// Whether the last line is of this step and has this metric.
    pub fn has(&self, step: u64, metric: &str) -> bool {
        self.last.as_ref().is_some_and(|(_, line)| line["step"].as_u64() == Some(step) && line.contains_key(metric))
    }

    /// The best value of a metric and its step; the first of equal ones.
    ///
    /// # Errors
    /// `Kind::Store` if the file can't be read.
    pub fn best(&self, metric: &str, is_better: impl Fn(f64, f64) -> bool) -> Result<Option<(u64, f64)>> {
        let text = std::fs::read_to_string(&self.path)
            .map_err(|error| Error::io(Kind::Store, "read metrics", &self.path, &error))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let values = lines.filter_map(|line| Some((line["step"].as_u64()?, line[metric].as_f64()?)));
        Ok(values.reduce(|best, point| if is_better(point.1, best.1) { point } else { best }))
    }

    /// Logs the metrics of a step. Each step has one line: metrics of the same step as the last
    /// line, such as an evaluation after a training step, are merged into it.
    ///
    /// # Errors
    /// `Kind::Store`; the line of the step is then unchanged.
    pub fn log(&mut self, step: u64, metrics: &Metrics) -> Result<()> {
        let time = now();
        let same = self.last.take().filter(|(_, line)| line["step"].as_u64() == Some(step));
        let (start, before) = same.unwrap_or_else(|| (self.length, Map::new()));
        let mut object = before.clone();
        object.entry("step").or_insert_with(|| Value::from(step));
        object.entry("time").or_insert_with(|| Value::from((time * 1e3).round() / 1e3));
        object.extend(metrics.to_json());
        // The line comes last: a resumed run does not repeat an evaluation that has one.
        self.events.scalars(time, step, metrics.iter())?;
        if let Err(e) = self.put(start, &object) {
            // Restores the previous line. If this fails too, readers skip the incomplete line.
            let _ = if before.is_empty() { self.file.set_len(start).map(|()| start) } else { self.put(start, &before) };
            return Err(Error::io(Kind::Store, "write metrics", &self.path, &e));
        }
        if let Some((run, exporter)) = &self.exporter {
            exporter.set(run, &object);
        }
        self.last = Some((start, object));
        Ok(())
    }

    /// Writes histograms to TensorBoard, by name.
    ///
    /// # Errors
    /// `Kind::Store`.
    pub fn distributions(&mut self, step: u64, all: &[(&str, Vec<f64>)]) -> Result<()> {
        let time = now();
        all.iter().try_for_each(|(name, values)| self.events.histogram(time, step, name, values))
    }

    /// Writes a Markdown text to TensorBoard.
    ///
    /// # Errors
    /// `Kind::Store`.
    pub fn text(&mut self, step: u64, name: &str, text: &str) -> Result<()> {
        self.events.text(now(), step, name, text)
    }

    /// Writes the run's settings to TensorBoard as hyperparameters.
    ///
    /// # Errors
    /// `Kind::Store`.
    pub fn settings(&mut self, settings: &Value) -> Result<()> {
        fn flatten(at: &str, value: &Value, flat: &mut BTreeMap<String, Value>) {
            match value {
                Value::Object(fields) => {
                    for (name, value) in fields {
                        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                        flatten(&path, value, flat);
                    }
                }
                Value::Null => {}
                other => drop(flat.insert(at.to_owned(), other.clone())),
            }
        }
        let mut flat = BTreeMap::new();
        flatten("", settings, &mut flat);
        self.events.hyperparameters(now(), &flat)
    }

    /// Truncates the file at `start` and appends a line.
    fn put(&mut self, start: u64, object: &Map<String, Value>) -> io::Result<u64> {
        let line = format!("{}\n", Value::Object(object.clone()));
        self.file.seek(SeekFrom::Start(start))?;
        self.file.write_all(line.as_bytes())?;
        self.length = start + line.len() as u64;
        self.file.set_len(self.length)?;
        Ok(self.length)
    }
}

/// The last step in the metrics of a run; `None` if there are none.
///
/// # Errors
/// `Kind::Store` if the file can't be read.
pub fn last_step(run: &Path) -> Result<Option<u64>> {
    let path = run.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let read = File::open(&path).and_then(|file| kept(&file, |_| true));
    let (_, last) = read.map_err(|error| Error::io(Kind::Store, "read metrics", &path, &error))?;
    Ok(last.and_then(|(_, line)| line.get("step").and_then(Value::as_u64)))
}

/// Opens a JSONL log with a field `step` for appending; returns the file and its length. Lines of
/// the step `from` and later ones, and from the first one on that is `repeated`, are removed,
/// because a resumed run writes them again.
pub(crate) fn open_lines(
    path: &Path,
    from: Option<u64>,
    repeated: impl Fn(&Map<String, Value>) -> bool,
) -> Result<(File, u64)> {
    let opened = opened(path, from, repeated).map(|(file, length, _)| (file, length));
    opened.map_err(|error| Error::io(Kind::Store, "write the log", path, &error))
}

/// The file, its length and its last line.
fn opened(
    path: &Path,
    from: Option<u64>,
    repeated: impl Fn(&Map<String, Value>) -> bool,
) -> io::Result<(File, u64, Option<Line>)> {
    let mut file = File::options().create(true).read(true).write(true).truncate(false).open(path)?;
    let before = |step: u64| from.is_none_or(|from| step < from);
    let kept = kept(&file, |line| line.get("step").and_then(Value::as_u64).is_some_and(before) && !repeated(line))?;
    file.set_len(kept.0)?;
    file.seek(SeekFrom::End(0))?;
    Ok((file, kept.0, kept.1))
}

/// Byte offset and content of a line.
type Line = (u64, Map<String, Value>);

/// Length of the leading complete lines that are `wanted`, and the last of them.
fn kept(file: &File, wanted: impl Fn(&Map<String, Value>) -> bool) -> io::Result<(u64, Option<Line>)> {
    let mut reader = BufReader::new(file);
    let (mut kept, mut last) = (0, None);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        let object = serde_json::from_slice::<Map<String, Value>>(&line).ok().filter(&wanted);
        let Some(object) = object.filter(|_| line.ends_with(b"\n")) else { return Ok((kept, last)) };
        last = Some((kept, object));
        kept += read;
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lines(run: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn one(value: f64) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set("reward/mean", value);
        metrics
    }

    #[test]
    fn metrics_log_has_one_object_per_step_and_null_for_nan() {
        let run = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::open(run.path(), None).unwrap();
        log.log(1, &one(0.5)).unwrap();
        log.log(2, &one(f64::NAN)).unwrap();
        assert!(one(-0.0).get("reward/mean").unwrap().is_sign_positive());
        let lines = lines(run.path());
        assert_eq!(lines[0]["step"], 1);
        assert_eq!(lines[0]["reward/mean"], 0.5);
        assert!(lines[0]["time"].as_f64().unwrap() > 1e9);
        assert_eq!(lines[1]["reward/mean"], Value::Null);
    }

    #[test]
    fn resumed_metrics_log_drops_repeated_steps() {
        let run = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::open(run.path(), None).unwrap();
        for step in 1..=5 {
            log.log(step, &one(0.0)).unwrap();
        }
        drop(log);
        // The process was killed in the middle of a line.
        let path = run.path().join("metrics.jsonl");
        File::options().append(true).open(&path).unwrap().write_all(b"{\"step\": 6, \"rew").unwrap();
        let mut log = MetricsLog::open(run.path(), Some(4)).unwrap();
        log.log(4, &one(1.0)).unwrap();
        let steps: Vec<u64> = lines(run.path()).iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        assert_eq!(lines(run.path())[3]["reward/mean"], 1.0);
    }

    #[test]
    fn evaluation_metrics_are_merged_into_the_line_of_their_step() {
        let run = tempfile::tempdir().unwrap();
        let accuracy = |value: f64| {
            let mut metrics = Metrics::new();
            metrics.set("eval/accuracy", value);
            metrics
        };
        let mut log = MetricsLog::open(run.path(), None).unwrap();
        log.log(0, &accuracy(0.25)).unwrap();
        log.log(1, &one(0.5)).unwrap();
        log.log(1, &accuracy(0.75)).unwrap();
        drop(log);
        // A resumed run repeats the evaluation; a shorter line replaces a longer one.
        let mut log = MetricsLog::open(run.path(), Some(2)).unwrap();
        assert_eq!(log.best("eval/accuracy", |new, best| new > best).unwrap(), Some((1, 0.75)));
        assert!(log.best("eval/loss", |new, best| new > best).unwrap().is_none());
        assert!(log.has(1, "eval/accuracy") && !log.has(1, "eval/loss") && !log.has(0, "eval/accuracy"));
        log.log(1, &accuracy(1.0)).unwrap();
        log.log(2, &one(0.25)).unwrap();
        let lines = lines(run.path());
        let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [0, 1, 2]);
        assert_eq!((&lines[1]["reward/mean"], &lines[1]["eval/accuracy"]), (&Value::from(0.5), &Value::from(1.0)));
        assert!(lines[1]["time"].is_number() && lines[2].get("eval/accuracy").is_none());
    }

    #[test]
    fn metrics_log_error_names_a_directory_at_its_path() {
        let run = tempfile::tempdir().unwrap();
        std::fs::create_dir(run.path().join("metrics.jsonl")).unwrap();
        let error = MetricsLog::open(run.path(), None).unwrap_err();
        assert_eq!(error.kind, Kind::Store);
        assert!(error.place.unwrap().ends_with("metrics.jsonl"));
    }
}
