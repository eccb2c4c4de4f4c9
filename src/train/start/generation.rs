//! The default sampling settings of a model: its `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result};
use crate::mdp::Sampling;
use crate::telemetry::Reporter;

const FILE: &str = "generation_config.json";

/// Unsupported fields that would change the sampling, with the values at which they have no effect.
const NOT_FOLLOWED: &[(&str, &[f64])] = &[
    ("num_beams", &[1.0]),
    ("num_beam_groups", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("typical_p", &[1.0]),
    ("epsilon_cutoff", &[0.0]),
    ("eta_cutoff", &[0.0]),
    ("diversity_penalty", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("encoder_no_repeat_ngram_size", &[0.0]),
    ("min_length", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("guidance_scale", &[1.0]),
    ("bad_words_ids", &[]),
    ("suppress_tokens", &[]),
    ("begin_suppress_tokens", &[]),
    ("sequence_bias", &[]),
    ("forced_bos_token_id", &[]),
    ("forced_eos_token_id", &[]),
    ("exponential_decay_length_penalty", &[]),
];

/// The sampling settings of the model in `dir`, with `limit` new tokens unless the file sets their
/// number, and the unmodified distribution for settings that it lacks. Unsupported fields cause a
/// warning.
///
/// # Errors
/// `Kind::Model` for a file that can't be read, and for a field of the wrong type, by its name.
pub fn model_sampling(dir: &Path, limit: usize, reporter: &Reporter) -> Result<Sampling> {
    let path = dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return read(&Map::new(), limit),
        Err(error) => return Err(Error::io(Kind::Model, "read the model's sampling settings", &path, &error)),
    };
    let bad = |why: String| Error::new(Kind::Model, format!("{FILE} is not a JSON object: {why}")).at_path(&path);
    let wanted: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let ignored = not_followed(&wanted);
    if !ignored.is_empty() {
        let which = ignored.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        reporter.warn(&format!("{}: {which} is not supported", path.display()));
    }
    read(&wanted, limit).map_err(|error| error.at_path(&path))
}

/// Whether the model's file has settings of the distribution to sample from.
pub fn sets_sampling(dir: &Path) -> bool {
    let text = std::fs::read(dir.join(FILE)).unwrap_or_default();
    let fields: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    let of_sampling = ["do_sample", "temperature", "top_p", "top_k", "min_p"];
    of_sampling.iter().any(|name| fields.get(*name).is_some_and(|value| !value.is_null()))
}

fn read(wanted: &Map<String, Value>, limit: usize) -> Result<Sampling> {
    let present = |name: &str| wanted.get(name).filter(|value| !value.is_null());
    let wrong = |name: &str, value: &Value, expected: &str| {
        Error::new(Kind::Model, format!("`{name}` is {value} in {FILE}; it must be {expected}"))
    };
    let number = |name: &str, default_value: f64| match present(name) {
        None => Ok(default_value),
        Some(value) => value.as_f64().ok_or_else(|| wrong(name, value, "a number")),
    };
    let count = |name: &str, default_value: usize| match present(name) {
        None => Ok(default_value),
        Some(value) => value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| wrong(name, value, "a whole number, 0 or more")),
    };
    let greedy = match present("do_sample") {
        None => false,
        Some(value) => !value.as_bool().ok_or_else(|| wrong("do_sample", value, "true or false"))?,
    };
    let defaults = Sampling::default();
    let temperature = number("temperature", defaults.temperature)?;
    Ok(Sampling {
        temperature: if greedy { 0.0 } else { temperature },
        top_p: number("top_p", defaults.top_p)?,
        top_k: count("top_k", defaults.top_k)?,
        min_p: number("min_p", defaults.min_p)?,
        repetition_penalty: number("repetition_penalty", defaults.repetition_penalty)?,
        max_new_tokens: count("max_new_tokens", limit)?.max(1),
        ..defaults
    })
}

fn not_followed(wanted: &Map<String, Value>) -> Vec<&'static str> {
    let acts = |value: &Value, off: &[f64]| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        value => value.as_f64().is_none_or(|value| !off.iter().any(|off| (value - off).abs() < f64::EPSILON)),
    };
    let active = |&&(name, off): &&(&'static str, &[f64])| wanted.get(name).is_some_and(|value| acts(value, off));
    NOT_FOLLOWED.iter().filter(active).map(|&(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn sampling_defaults_come_from_generation_config() {
        // The file of Qwen2.5's instruct models.
        let sampling = read(
            &object(&json!({ "bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "repetition_penalty": 1.1,
                "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": null, "transformers_version": "4.37.0" })),
            512,
        )
        .unwrap();
        let expected = Sampling {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.8,
            repetition_penalty: 1.1,
            max_new_tokens: 512,
            ..Sampling::default()
        };
        assert_eq!(sampling, expected);
        // The file of its base models: greedy, with a number of tokens.
        let sampling = read(&object(&json!({ "do_sample": false, "temperature": 0.7, "max_new_tokens": 2048 })), 512);
        assert_eq!(sampling.map(|defaults| (defaults.temperature, defaults.max_new_tokens)).unwrap(), (0.0, 2048));
        assert_eq!(read(&Map::new(), 7).unwrap(), Sampling { max_new_tokens: 7, ..Sampling::default() });
    }

    #[test]
    fn fields_of_the_wrong_type_are_named() {
        for (field, value) in [
            ("temperature", json!("hot")),
            ("top_p", json!([1])),
            ("top_k", json!(-1)),
            ("do_sample", json!("yes")),
            ("max_new_tokens", json!(1.5)),
        ] {
            let error = read(&object(&json!({ field: value })), 512).unwrap_err();
            assert!(error.message.starts_with(&format!("`{field}` is {value} in generation_config.json")), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "[1]").unwrap();
        let error = model_sampling(dir.path(), 5, &Reporter::new(true, false, false)).unwrap_err();
        assert!(error.kind == Kind::Model && error.message.contains("not a JSON object"), "{error}");
    }

    #[test]
    fn unsupported_generation_fields_are_reported() {
        let off = json!({ "num_beams": 1, "typical_p": 1.0, "min_length": 0, "suppress_tokens": [], "penalty_alpha": null,
            "bad_words_ids": null, "early_stopping": false, "temperature": 0.5 });
        assert!(not_followed(&object(&off)).is_empty());
        let on = json!({ "num_beams": 4, "suppress_tokens": [3], "guidance_scale": 1.5, "min_new_tokens": 2 });
        assert_eq!(not_followed(&object(&on)), ["num_beams", "min_new_tokens", "guidance_scale", "suppress_tokens"]);
    }
}
