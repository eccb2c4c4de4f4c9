//! TensorBoard event files: TFRecord framing around protobuf `TensorboardEvent` messages.
//!
//! Field numbers follow tensorflow/core/util/event.proto, framework/summary.proto,
//! framework/tensor.proto and tensorboard/plugins/hparams/plugin_data.proto. Only the fields for
//! scalars, histograms, texts and hyperparameters are declared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use serde_json::Value as Json;

use crate::error::{Error, Kind, Result};

#[derive(Clone, PartialEq, Message)]
struct TensorboardEvent {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<EventSummary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct EventSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Tagged>,
}

/// `EventSummary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Tagged {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "5")]
    histo: Option<Histogram>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

/// `HistogramProto`. A bucket ranges from the previous bucket's limit (the first: `min`) to its own
/// limit.
#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

/// `TensorProto` of texts.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    /// 7 is DT_STRING.
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<TensorShape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `SummaryMetadata`: the plugin that displays the value.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    content: Vec<u8>,
}

/// `HParamsPluginData` of the start of a session.
#[derive(Clone, PartialEq, Message)]
struct Hyperparameters {
    #[prost(message, optional, tag = "3")]
    started: Option<Started>,
}

#[derive(Clone, PartialEq, Message)]
struct Started {
    #[prost(btree_map = "string, message", tag = "1")]
    values: BTreeMap<String, Hyperparameter>,
    #[prost(double, tag = "5")]
    start_time: f64,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
struct Hyperparameter {
    #[prost(double, optional, tag = "2")]
    number: Option<f64>,
    #[prost(string, optional, tag = "3")]
    text: Option<String>,
    #[prost(bool, optional, tag = "4")]
    flag: Option<bool>,
}

/// Status 1 is START: TensorBoard then discards this step and later steps of older files.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Start of the names of event files.
const FILES: &str = "events.out.tfevents.";

/// Cuts off the event files in `dir`, each at the first value that is `dropped` by its step and
/// tag. The events of a file are in the order of the steps.
///
/// # Errors
/// [`Kind::Store`] with the path of a file that can't be read or written.
pub(super) fn drop_events(dir: &Path, dropped: impl Fn(u64, &str) -> bool) -> Result<()> {
    let failed = |path: &Path, e: &io::Error| Error::io(Kind::Store, "write TensorBoard events", path, e);
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(dir, &e)),
    };
    for entry in entries {
        let path = entry.map_err(|e| failed(dir, &e))?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILES)) {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(|e| failed(&path, &e))?;
        let mut kept = 0;
        while let Some((event, length)) = first_event(&bytes[kept..]) {
            let values = event.summary.map(|summary| summary.value).unwrap_or_default();
            if values.iter().any(|value| dropped(event.step as u64, &value.tag)) {
                let file = File::options().write(true).open(&path);
                file.and_then(|file| file.set_len(kept as u64)).map_err(|e| failed(&path, &e))?;
                break;
            }
            kept += length;
        }
    }
    Ok(())
}

/// The first event in the bytes of a file and the length of its record; `None` at the end, and for
/// a record that is damaged or incomplete.
fn first_event(bytes: &[u8]) -> Option<(TensorboardEvent, usize)> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let end = usize::try_from(length).ok()?.checked_add(12)?;
    let event = TensorboardEvent::decode(bytes.get(12..end)?).ok()?;
    (bytes.len() >= end + 4).then_some((event, end + 4))
}

/// One event file, open for appending.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a new file in `dir`; steps from `from` on in older files are discarded.
    pub(super) fn create(dir: &Path, time: f64, from: Option<u64>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(Kind::Store, "make the directory", dir, &e))?;
        // TensorBoard reads the files of a directory in the order of their names.
        let path = dir.join(format!("{FILES}{:017.6}.{}", time, std::process::id()));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|e| Error::io(Kind::Store, "write TensorBoard events", &path, &e))?;
        let mut events = Self { path, file };
        events.write(&TensorboardEvent {
            wall_time: time,
            file_version: Some("brain.Event:2".to_owned()),
            ..TensorboardEvent::default()
        })?;
        if let Some(step) = from {
            let step = step as i64;
            events.write(&TensorboardEvent {
                wall_time: time,
                step,
                session_log: Some(SessionLog { status: 1 }),
                ..TensorboardEvent::default()
            })?;
        }
        Ok(events)
    }

    /// Writes scalars of one step.
    pub(super) fn scalars<'a>(
        &mut self,
        time: f64,
        step: u64,
        scalars: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        let value =
            scalars.map(|(name, value)| Tagged { simple_value: Some(value as f32), ..Tagged::of(name) }).collect();
        self.values(time, step, value)
    }

    /// Writes a histogram of the finite `values`; nothing if there are none.
    pub(super) fn histogram(&mut self, time: f64, step: u64, name: &str, values: &[f64]) -> Result<()> {
        let Some(histo) = Histogram::of(values) else { return Ok(()) };
        self.values(time, step, vec![Tagged { histo: Some(histo), ..Tagged::of(name) }])
    }

    /// Writes a Markdown text.
    pub(super) fn text(&mut self, time: f64, step: u64, name: &str, text: &str) -> Result<()> {
        const STRING: i32 = 7;
        let tensor = Tensor {
            dtype: STRING,
            shape: Some(TensorShape { dim: vec![Dim { size: 1 }] }),
            string_val: vec![text.as_bytes().to_vec()],
        };
        let value = Tagged { tensor: Some(tensor), ..Tagged::shown_by("text", Vec::new(), name) };
        self.values(time, step, vec![value])
    }

    /// Writes the hyperparameters of the run: numbers, strings and booleans as they are, other
    /// values as JSON.
    pub(super) fn hyperparameters(&mut self, time: f64, settings: &BTreeMap<String, Json>) -> Result<()> {
        let one = |(name, value): (&String, &Json)| {
            let none = Hyperparameter::default();
            let value = match value {
                Json::Bool(flag) => Hyperparameter { flag: Some(*flag), ..none },
                Json::Number(number) => Hyperparameter { number: number.as_f64(), ..none },
                Json::String(text) => Hyperparameter { text: Some(text.clone()), ..none },
                other => Hyperparameter { text: Some(other.to_string()), ..none },
            };
            (name.clone(), value)
        };
        let started = Started { values: settings.iter().map(one).collect(), start_time: time };
        let content = Hyperparameters { started: Some(started) }.encode_to_vec();
        self.values(time, 0, vec![Tagged::shown_by("hparams", content, "_hparams_/session_start_info")])
    }

    fn values(&mut self, time: f64, step: u64, value: Vec<Tagged>) -> Result<()> {
        self.write(&TensorboardEvent {
            wall_time: time,
            step: step as i64,
            summary: Some(EventSummary { value }),
            ..TensorboardEvent::default()
        })
    }

    fn write(&mut self, event: &TensorboardEvent) -> Result<()> {
        write_record(&mut self.file, &event.encode_to_vec())
            .map_err(|e| Error::io(Kind::Store, "write TensorBoard events", &self.path, &e))
    }
}

impl Tagged {
    fn of(name: &str) -> Self {
        Self { tag: name.to_owned(), ..Self::default() }
    }

    fn shown_by(plugin: &str, content: Vec<u8>, name: &str) -> Self {
        let plugin = Plugin { name: plugin.to_owned(), content };
        Self { metadata: Some(Metadata { plugin: Some(plugin) }), ..Self::of(name) }
    }
}

impl Histogram {
    /// Buckets of equal width from the smallest to the largest finite value.
    fn of(values: &[f64]) -> Option<Self> {
        const BUCKETS: usize = 30;
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let min = finite.iter().copied().reduce(f64::min)?;
        let max = finite.iter().copied().reduce(f64::max)?;
        let count = if max > min { BUCKETS } else { 1 };
        let width = (max - min) / count as f64;
        let mut bucket = vec![0.0; count];
        for value in &finite {
            let index = if width > 0.0 { ((value - min) / width) as usize } else { 0 };
            bucket[index.min(count - 1)] += 1.0;
        }
        let limit = |index: usize| if index + 1 == count { max } else { min + width * (index + 1) as f64 };
        Some(Self {
            min,
            max,
            num: finite.len() as f64,
            sum: finite.iter().sum(),
            sum_squares: finite.iter().map(|value| value * value).sum(),
            bucket_limit: (0..count).map(limit).collect(),
            bucket,
        })
    }
}

/// One TFRecord: length, its checksum, the data, its checksum.
fn write_record(file: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_crc(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked_crc(data).to_le_bytes());
    file.write_all(&record)
}

/// CRC-32C, rotated and offset as the TFRecord format requires.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Reads the events of a file and verifies their checksums.
    fn read(path: &Path) -> Vec<TensorboardEvent> {
        let bytes = std::fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let (length_crc, after) = after.split_at(4);
            assert_eq!(masked_crc(length).to_le_bytes(), length_crc);
            let (data, after) = after.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
            let (data_crc, after) = after.split_at(4);
            assert_eq!(masked_crc(data).to_le_bytes(), data_crc);
            events.push(TensorboardEvent::decode(data).unwrap());
            rest = after;
        }
        events
    }

    #[test]
    fn tensorboard_records_have_tfrecord_checksums() {
        // CRC-32C of "123456789" is 0xe3069283.
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        // The version record that every TensorBoard file starts with: length 24 and its known
        // checksum.
        let mut record = Vec::new();
        write_record(&mut record, &[0; 24]).unwrap();
        assert_eq!(record[..12], [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn tensorboard_events_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path(), 1.5, Some(4)).unwrap();
        file.scalars(2.5, 4, [("reward/mean", 0.25), ("policy/loss", f64::NAN)].into_iter()).unwrap();
        let events = read(&file.path);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].session_log.clone().unwrap().status), (4, 1));
        let summary = events[2].summary.as_ref().unwrap();
        assert_eq!((events[2].wall_time, events[2].step, summary.value.len()), (2.5, 4, 2));
        assert_eq!(summary.value[0].tag, "reward/mean");
        assert_eq!(summary.value[0].simple_value, Some(0.25));
        assert!(summary.value[1].simple_value.unwrap().is_nan());
    }

    #[test]
    fn events_are_dropped_by_step_and_tag() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path(), 1.5, None).unwrap();
        file.hyperparameters(1.5, &BTreeMap::new()).unwrap();
        for step in [1, 2] {
            file.scalars(2.5, step, std::iter::once(("policy/loss", 0.5))).unwrap();
            file.scalars(2.5, step, std::iter::once(("eval/accuracy", 0.5))).unwrap();
        }
        let tags = || -> Vec<(i64, String)> {
            let of = |event: TensorboardEvent| {
                event
                    .summary
                    .into_iter()
                    .flat_map(move |s| s.value.into_iter().map(move |value| (event.step, value.tag)))
            };
            read(&file.path).into_iter().flat_map(of).collect()
        };
        // An incomplete record ends a file.
        let length = std::fs::metadata(&file.path).unwrap().len();
        let all = std::fs::read(&file.path).unwrap();
        assert_eq!(tags().len(), 5);
        drop_events(dir.path(), |step, tag| step == 2 && tag.starts_with("eval/")).unwrap();
        assert_eq!(tags().last().unwrap(), &(2, "policy/loss".to_owned()));
        drop_events(dir.path(), |step, _| step >= 1).unwrap();
        assert_eq!(tags(), [(0, "_hparams_/session_start_info".to_owned())]);
        std::fs::write(&file.path, &all[..all.len() - 1]).unwrap();
        drop_events(dir.path(), |step, _| step >= 3).unwrap();
        assert_eq!(std::fs::metadata(&file.path).unwrap().len(), length - 1);
        drop_events(&dir.path().join("none"), |_, _| true).unwrap();
    }

    #[test]
    fn tensorboard_histograms_count_every_finite_value() {
        let values: Vec<f64> = (0..60).map(f64::from).chain([f64::NAN, f64::INFINITY]).collect();
        let histogram = Histogram::of(&values).unwrap();
        assert_eq!((histogram.min, histogram.max, histogram.num, histogram.sum), (0.0, 59.0, 60.0, 1770.0));
        assert_eq!((histogram.bucket.len(), histogram.bucket.iter().sum::<f64>()), (30, 60.0));
        assert_eq!(histogram.bucket_limit.last(), Some(&59.0));
        assert!(
            histogram.bucket_limit.is_sorted() && histogram.bucket.iter().all(|count| (*count - 2.0).abs() < 1e-12)
        );
        let single = Histogram::of(&[0.5, 0.5]).unwrap();
        assert_eq!((single.bucket_limit, single.bucket), (vec![0.5], vec![2.0]));
        assert!(Histogram::of(&[f64::NAN]).is_none());
    }

    /// Compares a histogram, a text and hyperparameters with the bytes of TensorBoard's protocol
    /// buffers.
    #[test]
    fn tensorboard_bytes_equal_those_of_the_protocol_buffers() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path(), 1.5, None).unwrap();
        file.histogram(2.0, 3, "h", &[1.0]).unwrap();
        file.text(2.0, 3, "t", "hi").unwrap();
        let settings = BTreeMap::from([("lr".to_owned(), Json::from(0.5)), ("on".to_owned(), Json::from(true))]);
        file.hyperparameters(2.0, &settings).unwrap();
        let written: Vec<String> = read(&file.path)[1..].iter().map(|event| hex(&event.encode_to_vec())).collect();
        assert_eq!(written, BYTES);
    }

    /// Computed by tests/golden/tensorboard/make.py.
    const BYTES: [&str; 3] = [
        concat!(
            "09000000000000004010032a480a460a01682a4109000000000000f03f11000000000000f03f19000000000000f03f21",
            "000000000000f03f29000000000000f03f3208000000000000f03f3a08000000000000f03f",
        ),
        "09000000000000004010032a1d0a1b0a0174420c0807120412020801420268694a080a060a0474657874",
        concat!(
            "0900000000000000402a550a530a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f4a330a310a",
            "0768706172616d7312261a240a0f0a026c72120911000000000000e03f0a080a026f6e12022001290000000000000040",
        ),
    ];
}
