//! The TensorBoard events of a run, as TensorBoard reads them.

use std::fs;
use std::path::Path;

use prost::Message;

/// The fields of tensorflow/core/util/event.proto that matter here.
#[derive(Clone, PartialEq, Message)]
struct AnyEvent {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Values>,
    #[prost(bytes = "vec", optional, tag = "7")]
    session: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Values {
    #[prost(bytes = "vec", repeated, tag = "1")]
    values: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Tag {
    #[prost(string, tag = "1")]
    tag: String,
}

/// Tag, step and encoded value of every event, sorted by tag and step. The start of a session
/// removes its step and later steps of earlier files. A record that was not written completely is
/// the last one of its file.
pub(crate) fn events(run: &Path) -> Vec<(String, i64, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(run.join("tb")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut all: Vec<(String, i64, Vec<u8>)> = Vec::new();
    for path in files {
        let bytes = fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        while rest.len() >= 12 {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let Some(data) = rest.get(12..12 + length) else { break };
            rest = &rest[(length + 16).min(rest.len())..];
            let event = AnyEvent::decode(data).unwrap();
            if event.session.is_some() {
                all.retain(|(_, step, _)| *step < event.step);
            }
            for value in event.summary.map(|summary| summary.values).unwrap_or_default() {
                all.push((Tag::decode(value.as_slice()).unwrap().tag, event.step, value));
            }
        }
    }
    all.sort();
    all
}
