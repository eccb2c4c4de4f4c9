//! What a run leaves in its directory, without times, to compare a resumed run with one that was
//! never interrupted.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::events::events;
use super::run_files::{files, json_lines};

/// What a run leaves, by file name, without times and measurements of the machine.
pub(crate) fn left(run: &Path) -> BTreeMap<String, Vec<u8>> {
    fn scrub(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !is_measured(name));
                fields.values_mut().for_each(scrub);
            }
            Value::Array(all) => all.iter_mut().for_each(scrub),
            _ => {}
        }
    }
    let scrubbed = |mut value: Value| {
        scrub(&mut value);
        value.to_string().into_bytes()
    };
    let mut kept = files(run);
    // TensorBoard has a file for each process. The configuration keeps the history of the run.
    let is_of_process =
        |name: &str| name.contains("tb/events") || name.ends_with(".lock") || name.ends_with("config.json");
    kept.retain(|name, _| !is_of_process(name) || name.contains("step-"));
    for (name, bytes) in &mut kept {
        if name.ends_with(".jsonl") {
            // Lines of trajectories that run at the same time have no order.
            let mut lines: Vec<Vec<u8>> =
                json_lines(std::str::from_utf8(bytes).unwrap()).into_iter().map(scrubbed).collect();
            if name.ends_with("log.jsonl") {
                lines.sort();
            }
            *bytes = lines.join(&b'\n');
        } else if name.ends_with(".parquet") {
            let all = r1::store::read_trajectories(&run.join(name)).unwrap();
            let tasks = r1::store::read_step_tasks(&run.join(name)).unwrap();
            *bytes = scrubbed(serde_json::to_value((tasks, all)).unwrap());
        }
    }
    kept.insert("tb".to_owned(), event_list(run));
    join_parts(&mut kept);
    kept
}

/// Replaces the files of an optimiser's state, one or the parts of several processes, by a list of
/// its tensors.
fn join_parts(kept: &mut BTreeMap<String, Vec<u8>>) {
    let names: Vec<String> = kept.keys().filter(|name| name.contains("/optimizer")).cloned().collect();
    let mut joined: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for name in names {
        let bytes = kept.remove(&name).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let folder = name.rsplit_once('/').unwrap().0;
        let all = joined.entry(format!("{folder}/optimizer.safetensors")).or_default();
        for (tensor, view) in tensors.tensors() {
            let text = format!("{:?} {:?} {:08x}", view.dtype(), view.shape(), crc32c::crc32c(view.data()));
            let other = all.insert(tensor.clone(), text);
            assert!(other.is_none() || tensor == "step", "{tensor} is in two files of {folder}");
        }
    }
    for (_, bytes) in kept.iter_mut().filter(|(name, _)| name.ends_with("trainer_state/manifest.json")) {
        let mut manifest: Value = serde_json::from_slice(bytes).unwrap();
        without_optimizers(&mut manifest);
        *bytes = manifest.to_string().into_bytes();
    }
    kept.extend(joined.into_iter().map(|(name, tensors)| (name, format!("{tensors:#?}").into_bytes())));
}

/// Removes the files of optimisers from a manifest.
fn without_optimizers(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| !name.contains("/optimizer"));
        fields.values_mut().for_each(without_optimizers);
    }
}

/// Fields and metrics that differ between two equal runs.
fn is_measured(name: &str) -> bool {
    let measured = [
        "time",
        "throughput/",
        "memory/",
        "script/memory",
        "rollout/cached_share",
        "seconds",
        "prefilled",
        "script_hash",
    ];
    measured.iter().any(|part| name.starts_with(part))
}

/// A line for each value that TensorBoard shows. The settings are written by each process.
fn event_list(run: &Path) -> Vec<u8> {
    let shown = events(run).into_iter().filter(|(tag, ..)| !is_measured(tag) && !tag.starts_with("_hparams_"));
    shown
        .map(|(tag, step, value)| format!("{tag} {step} {:08x}\n", crc32c::crc32c(&value)))
        .collect::<Vec<_>>()
        .concat()
        .into_bytes()
}

/// The first difference between the files of a run and those of another one that is `whole`.
pub(crate) fn difference(whole: &BTreeMap<String, Vec<u8>>, run: &BTreeMap<String, Vec<u8>>) -> Option<String> {
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    if names(whole) != names(run) {
        return Some(format!("files {:?}\nnot {:?}", names(run), names(whole)));
    }
    let (name, expected) = whole.iter().find(|(name, bytes)| **bytes != run[*name])?;
    let texts = [expected, &run[name]].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let [expected, text] = texts.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let short = |line: &&str| line.chars().take(1000).collect::<String>();
    // A line of the file that the other one does not have, or has less often.
    let lacks = |lines: &[&str], other: &[&str]| {
        let count = |lines: &[&str], line: &str| lines.iter().filter(|one| **one == line).count();
        lines.iter().find(|line| count(lines, line) > count(other, line)).map(short)
    };
    Some(format!("{name}\n  missing: {:?}\n  too much: {:?}", lacks(&expected, &text), lacks(&text, &expected)))
}

pub(crate) fn assert_same(whole: &BTreeMap<String, Vec<u8>>, run: &Path, point: &str) {
    if let Some(difference) = difference(whole, &left(run)) {
        panic!("{point}: {difference}");
    }
}
