//! Times and sizes in settings: a number in the setting's unit, or text with a unit.

use serde_json::Value;

/// Accepted forms of a time, for messages.
pub const TIME: &str = "a number of seconds, or text such as \"5s\"";

/// Accepted forms of a size, for messages.
pub const SIZE: &str = "a whole number, or text such as \"512MiB\"";

/// Units of bare numbers, in bytes.
const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Parses a time to seconds: `"5"`, `"5s"`, `"500ms"`, `"2m"`, `"2min"`, `"1h"`.
pub fn seconds(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(number * factor)
}

/// Parses a size to MiB, rounded up: `"512"`, `"512MiB"`, `"1GiB"`. `MB` and `M` mean the same as
/// `MiB`, and so on.
pub fn mebibytes(text: &str) -> Option<u64> {
    bytes(text, MIB).map(|bytes| (bytes / MIB).ceil() as u64)
}

/// Parses a size to bytes; a bare number is in units of `unit` bytes.
fn bytes(text: &str, unit: f64) -> Option<f64> {
    let (number, name) = split(text)?;
    let factor = match name.to_ascii_lowercase().as_str() {
        "" => unit,
        "b" => 1.0,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => KIB * MIB,
        "t" | "tb" | "tib" => MIB * MIB,
        _ => return None,
    };
    Some(number * factor)
}

/// A non-negative number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then_some((number, text[end..].trim()))
}

/// Seconds, from a number or a text with a unit.
pub fn time(json: &Value) -> Option<f64> {
    match json {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => seconds(text),
        _ => None,
    }
}

/// Whole MiB, rounded up.
pub fn mib(json: &Value) -> Option<usize> {
    size(json, MIB)
}

/// Whole KiB, rounded up.
pub fn kib(json: &Value) -> Option<usize> {
    size(json, KIB)
}

fn size(json: &Value, unit: f64) -> Option<usize> {
    match json {
        Value::Number(number) => number.as_u64().and_then(|whole| usize::try_from(whole).ok()),
        Value::String(text) => bytes(text, unit).map(|bytes| (bytes / unit).ceil() as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use crate::schema::{KiB, MiB, Time, section};

    section! {
        /// Limits.
        struct Limits: "limits." {
            /// CPU time.
            cpu: f64 as Time = 0.1, unit("seconds");
            /// Waiting time.
            wait: f64 as Time = 60.0, unit("seconds");
            /// Memory.
            memory: usize as MiB = 64, unit("MiB");
            /// A trajectory.
            trajectory: usize as MiB = 64, unit("MiB");
            /// A text.
            text: usize as MiB = 64, unit("MiB");
            /// A result.
            result: usize as KiB = 64, unit("KiB");
        }
    }

    #[test]
    fn limits_take_numbers_and_units() {
        let read = |value| serde_json::from_value::<Limits>(value).map_err(|error| error.to_string());
        let plain = json!({ "cpu": 0.25, "wait": 120, "memory": 2048, "trajectory": 1, "text": 3, "result": 512 });
        let units = json!({ "cpu": "250ms", "wait": "2min", "memory": "2GiB", "trajectory": "100 KiB",
                            "text": "3MB", "result": "0.5MiB" });
        assert_eq!(read(units), read(plain));
        assert!(read(json!({ "cpu": "fast" })).unwrap_err().contains("such as \"5s\""));
        assert!(read(json!({ "memory": "2 parsecs" })).unwrap_err().contains("\"512MiB\""));
        assert!(read(json!({ "memory": -1 })).is_err() && read(json!({ "wait": "-1s" })).is_err());
        assert!(read(json!({ "memory": 1.5 })).is_err() && read(json!({ "result": [] })).is_err());
    }
}
