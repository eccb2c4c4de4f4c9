//! TensorBoard event files: TFRecord framing around protobuf `Event` messages.
//!
//! Field numbers are those of tensorflow/core/util/event.proto and framework/summary.proto; only what scalars need
//! is declared.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use prost::Message;

use crate::error::{Error, Kind, Result};

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Status 1 is START: TensorBoard then drops what older files say about this step and later ones.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// One event file, open for appending.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Starts a new file in `dir`; `resume_after` is the last step that older files are right about.
    pub(super) fn create(dir: &Path, time: f64, resume_after: Option<u64>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(Kind::Store, "make the directory", dir, &e))?;
        // TensorBoard reads the files of a directory in the order of their names.
        let path = dir.join(format!("events.out.tfevents.{:017.6}.{}", time, std::process::id()));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|e| Error::io(Kind::Store, "write TensorBoard events", &path, &e))?;
        let mut events = Self { path, file };
        events.write(&Event { wall_time: time, file_version: Some("brain.Event:2".to_owned()), ..Event::default() })?;
        if let Some(step) = resume_after {
            let step = step as i64 + 1;
            events.write(&Event {
                wall_time: time,
                step,
                session_log: Some(SessionLog { status: 1 }),
                ..Event::default()
            })?;
        }
        Ok(events)
    }

    /// Adds scalars of one step.
    pub(super) fn scalars<'a>(
        &mut self,
        time: f64,
        step: u64,
        scalars: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        let value =
            scalars.map(|(name, value)| Scalar { tag: name.to_owned(), simple_value: Some(value as f32) }).collect();
        self.write(&Event { wall_time: time, step: step as i64, summary: Some(Summary { value }), ..Event::default() })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        write_record(&mut self.file, &event.encode_to_vec())
            .map_err(|e| Error::io(Kind::Store, "write TensorBoard events", &self.path, &e))
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

/// CRC-32C, rotated and offset as the TFRecord format asks.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The events of a file, every checksum checked.
    fn read(path: &Path) -> Vec<Event> {
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
            events.push(Event::decode(data).unwrap());
            rest = after;
        }
        events
    }

    #[test]
    fn the_checksum_is_the_formats() {
        // CRC-32C of "123456789" is 0xe3069283.
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        // The version record that every TensorBoard file starts with: length 24 and its known checksum.
        let mut record = Vec::new();
        write_record(&mut record, &[0; 24]).unwrap();
        assert_eq!(record[..12], [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path(), 1.5, Some(3)).unwrap();
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
}
