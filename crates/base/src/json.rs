//! JSON that other programs wrote: models, servers, tools, files.
//!
//! `serde_json` rounds whole numbers of more than 64 bits to f64. The readers here keep their
//! digits, as text. [`read_foreign`] also reads what Python's `json` and JavaScript write or accept
//! and the standard does not allow: half of a surrogate pair, `NaN`, a byte order mark, bytes that
//! are not UTF-8.
//!
//! Values of rows that JSON does not have, bytes and numbers that are not finite, are objects with
//! the field [`TAG`] ([`Odd`]): `{"$r1": "bytes", "value": BASE64}`.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Result, Value, json};

/// The field of an object that stands for a value that JSON does not have.
pub const TAG: &str = "$r1";

/// A value that JSON does not have.
#[derive(Debug, PartialEq)]
pub enum Odd {
    Bytes(Vec<u8>),
    /// NaN or infinite.
    Number(f64),
}

impl Odd {
    /// The value that an object stands for; `None` for other JSON.
    pub fn of(json: &Value) -> Option<Self> {
        let object = json.as_object().filter(|object| object.len() == 2)?;
        let value = object.get("value")?.as_str()?;
        match object.get(TAG)?.as_str()? {
            "bytes" => BASE64_STANDARD.decode(value).ok().map(Self::Bytes),
            "number" => value.parse().ok().map(Self::Number),
            _ => None,
        }
    }
}

/// Bytes as an object.
pub fn of_bytes(bytes: &[u8]) -> Value {
    json!({ TAG: "bytes", "value": BASE64_STANDARD.encode(bytes) })
}

/// A number, as an object if it is not finite.
pub fn of_float(number: f64) -> Value {
    if number.is_finite() { number.into() } else { json!({ TAG: "number", "value": number.to_string() }) }
}

/// Reads JSON. A whole number of more than 64 bits is text with its digits.
pub fn read(text: &[u8]) -> Result<Value> {
    match std::str::from_utf8(text) {
        Ok(text) => match rewritten(text, false) {
            Cow::Borrowed(text) => serde_json::from_str(text),
            // Quotes move the positions in errors.
            Cow::Owned(new) => {
                serde_json::from_str(&new).map_err(|moved| serde_json::from_str::<Value>(text).err().unwrap_or(moved))
            }
        },
        // The error names the place.
        Err(_) => serde_json::from_slice(text),
    }
}

/// As [`read`], for the JSON of a server or a program. A byte order mark is skipped; half of a
/// surrogate pair and bytes that are not UTF-8 become U+FFFD; `NaN`, `Infinity` and numbers beyond
/// f64 become null.
pub fn read_foreign(text: &[u8]) -> Result<Value> {
    let text = String::from_utf8_lossy(text);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    serde_json::from_str(&rewritten(text, true))
}

/// Whether a text is a whole number of more than 64 bits, as [`read`] gives it.
pub fn is_long_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.len() >= 19
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
        && text.parse::<i64>().is_err()
        && text.parse::<u64>().is_err()
}

/// The text in the form that `serde_json` reads; `foreign`: see [`read_foreign`].
fn rewritten(text: &str, foreign: bool) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    // Everything before `copied` is in `out`, in its new form.
    let mut copied = 0;
    let mut replace = |from: usize, to: usize, with: &str| {
        out.push_str(&text[copied..from]);
        out.push_str(with);
        copied = to;
    };
    let (mut at, mut in_text) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                at += 1;
                let half = |at: usize| {
                    let escape = text.get(at..at + 6)?.strip_prefix("\\u")?;
                    u16::from_str_radix(escape, 16).ok().filter(|unit| (0xD800..=0xDFFF).contains(unit))
                };
                match (half(start), half(start + 6)) {
                    (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => at = start + 12,
                    (Some(_), _) if foreign => {
                        at = start + 6;
                        replace(start, at, "\u{fffd}");
                    }
                    _ => {}
                }
            }
            b'-' | b'0'..=b'9' if !in_text => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                at += bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = &text[start..at];
                let is_key = || bytes[at..].trim_ascii_start().starts_with(b":");
                if is_long_whole(number) && !is_key() {
                    replace(start, at, &format!("\"{number}\""));
                } else if foreign && (number == "-Infinity" || is_beyond_f64(number)) {
                    replace(start, at, "null");
                }
            }
            b'N' | b'I' if foreign && !in_text => {
                if let Some(word) = ["NaN", "Infinity"].into_iter().find(|word| text[start..].starts_with(word)) {
                    at = start + word.len();
                    replace(start, at, "null");
                }
            }
            _ => {}
        }
    }
    if copied == 0 {
        return text.into();
    }
    out.push_str(&text[copied..]);
    out.into()
}

/// Whether a number of JSON, such as `1e400`, is infinite as f64.
fn is_beyond_f64(number: &str) -> bool {
    number.contains(['e', 'E']) && number.parse::<f64>().is_ok_and(f64::is_infinite)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_json_does_not_have_are_objects() {
        assert_eq!(of_float(0.5), json!(0.5));
        assert_eq!(of_float(f64::NAN), json!({ "$r1": "number", "value": "NaN" }));
        assert!(matches!(Odd::of(&of_float(f64::NAN)), Some(Odd::Number(number)) if number.is_nan()));
        assert_eq!(Odd::of(&of_float(f64::NEG_INFINITY)), Some(Odd::Number(f64::NEG_INFINITY)));
        assert_eq!(of_bytes(b"\xff\x00"), json!({ "$r1": "bytes", "value": "/wA=" }));
        assert_eq!(Odd::of(&of_bytes(b"\xff\x00")), Some(Odd::Bytes(vec![255, 0])));
        for other in
            [json!({}), json!({ "$r1": "bytes", "value": "*" }), json!({ "$r1": "bytes", "value": "", "x": 1 })]
        {
            assert_eq!(Odd::of(&other), None);
        }
    }

    #[test]
    fn whole_numbers_of_more_than_64_bits_keep_their_digits() {
        let long = "12345678901234567890123";
        for (text, expected) in [
            (format!("{{\"a\": {long}}}"), json!({ "a": long })),
            (format!("[-{long}, 1, {long}]"), json!([format!("-{long}"), 1, long])),
            (long.to_owned(), json!(long)),
            // Numbers that fit, and text, are unchanged.
            ("[18446744073709551615, -9223372036854775808]".to_owned(), json!([u64::MAX, i64::MIN])),
            ("18446744073709551616".to_owned(), json!("18446744073709551616")),
            ("-9223372036854775809".to_owned(), json!("-9223372036854775809")),
            (format!("{{\"{long}\": \"{long}, \\\"{long}\"}}"), json!({ long: format!("{long}, \"{long}") })),
            (format!("[{long}.5, {long}e2]"), json!([1.234_567_890_123_456_8e22, 1.234_567_890_123_456_8e24])),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap(), expected, "{text}");
            assert_eq!(read_foreign(text.as_bytes()).unwrap(), expected, "{text}");
        }
        let error = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
        let serde_error = |text: &str| serde_json::from_str::<Value>(text).unwrap_err().to_string();
        for text in [format!("[{long}, x]"), format!("{{{long}: 1}}"), format!("[{long}, 1e400]")] {
            assert_eq!(error(&text), serde_error(&text), "the position is the one in the text");
        }
        // A leading zero is not JSON.
        assert!(read(b"00000000000000000000001").is_err());
        assert!(is_long_whole("-9223372036854775809") && !is_long_whole("18446744073709551615"));
        assert!(!is_long_whole("012345678901234567890123") && !is_long_whole("1234567890123456789012x"));
    }

    #[test]
    fn json_of_python_and_javascript_is_read_where_the_standard_is_narrower() {
        for (text, expected) in [
            (r#""hello\ud83d""#, json!("hello\u{fffd}")),
            (r#""\ude00 \ud83d\ude00 \ud83d\n \ud83d\u0041""#, json!("\u{fffd} 😀 \u{fffd}\n \u{fffd}A")),
            (r#"{"\udc00": "\\ud83d"}"#, json!({ "\u{fffd}": "\\ud83d" })),
            (
                r#"{"x": NaN, "y": [Infinity, -Infinity, 1e400, -1e400, 1e-400]}"#,
                json!({ "x": null, "y": [null, null, null, null, 0.0] }),
            ),
            (r#"["NaN", "-Infinity"]"#, json!(["NaN", "-Infinity"])),
            ("\u{feff}{\n \"a\":\r\n1}\n", json!({ "a": 1 })),
        ] {
            assert_eq!(read_foreign(text.as_bytes()).unwrap(), expected, "{text}");
        }
        assert_eq!(read_foreign(b"\"caf\xE9\"").unwrap(), json!("caf\u{fffd}"));
        for text in [r#""\ud83d""#, "NaN", "1e400", "\u{feff}1"] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["", "Na", "{", "[NaN", r#""\ud8"#, r#""\u"#, "\\", "-", "nan", "[1 2]", "\"\\ud83d\\ud8"] {
            assert!(read_foreign(text.as_bytes()).is_err(), "{text}");
        }
    }
}
