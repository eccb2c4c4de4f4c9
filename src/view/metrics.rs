//! The metrics of a run, read from `metrics.jsonl` as it grows. No value is left out: curves that
//! are drawn from a sample of the steps hide single bad ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result, readable};

/// The values by step and name.
#[derive(Debug, Default)]
pub(super) struct RunMetrics {
    /// Bytes that have been read: whole lines.
    read: u64,
    /// The file that was read: a resumed run replaces it.
    file: u64,
    /// How often earlier values changed: the file was replaced, or a resumed run repeated steps.
    epoch: u64,
    rows: BTreeMap<u64, StepMetrics>,
    names: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct StepMetrics {
    /// Seconds since 1970.
    time: Option<f64>,
    values: Map<String, Value>,
}

impl StepMetrics {
    fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name)?.as_f64()
    }

    /// Tokens of the step: sampled ones, or those of supervised training.
    fn tokens(&self) -> f64 {
        let sampled = || Some(self.get("throughput/tokens_per_s")? * self.get("time/sampling")?);
        sampled().or_else(|| self.get("sft/tokens")).or_else(|| self.get("policy/tokens")).unwrap_or(0.0).round()
    }
}

/// What tells a file from the one that replaced it.
#[cfg(unix)]
fn file_number(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn file_number(_metadata: &std::fs::Metadata) -> u64 {
    0
}

impl RunMetrics {
    /// Reads the lines that are new. A run without the file has no metrics.
    pub(super) fn update(&mut self, run: &Path) -> Result<()> {
        let path = run.join("metrics.jsonl");
        let failed = |error: &std::io::Error| Error::io(Kind::Store, "read the metrics", &path, error);
        let mut file = match readable(&path).and_then(|()| File::open(&path)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(&error)),
        };
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        let number = file_number(&metadata);
        if metadata.len() < self.read || (self.read > 0 && number != self.file) {
            *self = Self { epoch: self.epoch + 1, ..Self::default() };
        }
        self.file = number;
        file.seek(SeekFrom::Start(self.read)).map_err(|error| failed(&error))?;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = lines.read_until(b'\n', &mut line).map_err(|error| failed(&error))?;
            // The last line may be under way.
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            self.read += bytes as u64;
            self.add(&line);
        }
    }

    /// Adds a line. One that is damaged is skipped.
    fn add(&mut self, line: &[u8]) {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(line) else { return };
        let Some(step) = fields.get("step").and_then(Value::as_u64) else { return };
        if self.rows.last_key_value().is_some_and(|(last, _)| step < *last) {
            self.epoch += 1;
        }
        let row = self.rows.entry(step).or_default();
        row.time = fields.remove("time").and_then(|time| time.as_f64()).or(row.time);
        for (name, value) in fields.into_iter().filter(|(name, _)| name.contains('/')) {
            if !self.names.contains(&name) {
                self.names.insert(name.clone());
            }
            row.values.insert(name, value);
        }
    }

    /// What the list of runs has: names, last step, last values of the main metrics.
    pub(super) fn overview(&self) -> Value {
        const MAIN: [&str; 5] = ["reward/mean", "eval/accuracy", "eval/reward", "sft/loss", "eval/loss"];
        let last = |name: &str| {
            let value = self.rows.values().rev().find_map(|row| row.get(name))?;
            Some((name.to_owned(), json!(value)))
        };
        json!({
            "step": self.rows.last_key_value().map(|(step, _)| *step),
            "began": self.rows.values().find_map(|row| row.time),
            "last": self.rows.values().rev().find_map(|row| row.time),
            "names": self.names.iter().collect::<Vec<_>>(),
            "values": MAIN.into_iter().filter_map(last).collect::<Map<_, _>>(),
        })
    }

    /// The values of the last step.
    pub(super) fn last(&self) -> Map<String, Value> {
        self.rows.values().next_back().map(|row| row.values.clone()).unwrap_or_default()
    }

    /// Columns of values from a step on, in the order of `steps`; null where a step has none,
    /// "nan" where the value was not finite. `tokens` are cumulative.
    pub(super) fn values(&self, names: Option<&[&str]>, from: u64) -> Value {
        let rows = || self.rows.range(from..).map(|(_, row)| row);
        let mut tokens = self.rows.range(..from).map(|(_, row)| row.tokens()).sum::<f64>();
        let cumulative = rows().map(|row| {
            tokens += row.tokens();
            tokens
        });
        let wanted = self.names.iter().filter(|name| names.is_none_or(|names| names.contains(&name.as_str())));
        let value = |row: &StepMetrics, name: &String| match row.values.get(name) {
            Some(Value::Null) => json!("nan"),
            value => json!(value.and_then(Value::as_f64)),
        };
        let column = |name: &String| rows().map(|row| value(row, name)).collect::<Vec<_>>();
        json!({
            "epoch": self.epoch,
            "steps": self.rows.range(from..).map(|(step, _)| *step).collect::<Vec<_>>(),
            "times": rows().map(|row| row.time).collect::<Vec<_>>(),
            "tokens": cumulative.collect::<Vec<_>>(),
            "series": wanted.map(|name| (name.clone(), json!(column(name)))).collect::<Map<_, _>>(),
        })
    }
}
