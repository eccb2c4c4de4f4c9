//! JSON in which whole numbers of more than 64 bits are text with their digits.
//!
//! `serde_json` reads such numbers as floating point, which changes their digits.

use std::borrow::Cow;

use serde_json::Value;

/// Parses JSON. A whole number of more than 64 bits is text: `{"n": 12345678901234567890123}` gives
/// `"12345678901234567890123"`.
///
/// # Errors
/// Those of `serde_json::from_slice`, with positions in `bytes`.
pub(crate) fn from_slice(bytes: &[u8]) -> serde_json::Result<Value> {
    match quoted(bytes) {
        Cow::Borrowed(bytes) => serde_json::from_slice(bytes),
        // Quotes move the positions in errors.
        Cow::Owned(text) => {
            serde_json::from_slice(&text).map_err(|moved| serde_json::from_slice::<Value>(bytes).err().unwrap_or(moved))
        }
    }
}

/// As [`from_slice`].
///
/// # Errors
/// As [`from_slice`].
pub(crate) fn from_str(text: &str) -> serde_json::Result<Value> {
    from_slice(text.as_bytes())
}

/// The text with quotes around whole numbers of more than 64 bits.
fn quoted(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut copied) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string(&bytes[at..]),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = bytes[at..].iter().take_while(is_part).count();
                let number = &bytes[at..at + length];
                let is_key = bytes[at + length..].trim_ascii_start().starts_with(b":");
                if is_long(number) && !is_key {
                    out.extend_from_slice(&bytes[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(number);
                    out.push(b'"');
                    copied = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[copied..]);
    Cow::Owned(out)
}

/// The length of the string at the start of `bytes`, with its quotes.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Whether this is a whole number of JSON that needs more than 64 bits.
fn is_long(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    if digits.len() < 19 || digits.starts_with(b"0") || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let text = std::str::from_utf8(number).unwrap_or_default();
    text.parse::<i64>().is_err() && text.parse::<u64>().is_err()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_of_more_than_64_bits_keep_their_digits() {
        let huge = "9".repeat(400);
        let text = format!(
            r#"{{"a": 12345678901234567890123, "b": [-9223372036854775809, -9223372036854775808, 18446744073709551615,
            18446744073709551616], "c\"1": "\\", "12345678901234567890123": "x 12345678901234567890123\"", "d": 1.5e3,
            "e": 12345678901234567890123.5, "f": {huge}}}"#
        );
        assert_eq!(
            from_str(&text).unwrap(),
            json!({
                "a": "12345678901234567890123",
                "b": ["-9223372036854775809", i64::MIN, u64::MAX, "18446744073709551616"],
                "c\"1": "\\", "12345678901234567890123": "x 12345678901234567890123\"", "d": 1500.0,
                "e": 12_345_678_901_234_567_890_123.5, "f": huge,
            })
        );
        assert_eq!(from_str("12345678901234567890123").unwrap(), json!("12345678901234567890123"));
    }

    #[test]
    fn errors_have_the_positions_of_the_text() {
        for text in [
            "[12345678901234567890123, x]",
            "[012345678901234567890123]",
            "{12345678901234567890123: 1}",
            "\"\\",
            "[1e400]",
        ] {
            assert_eq!(
                from_str(text).unwrap_err().to_string(),
                serde_json::from_str::<Value>(text).unwrap_err().to_string()
            );
        }
    }
}
