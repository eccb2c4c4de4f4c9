//! Python's formatting of values (`json.dumps`, `repr`, `str`), for templates and prompts that must
//! match transformers.

use std::fmt::Write;

use minijinja::Value as Jinja;
use minijinja::value::ValueKind;
use serde_json::Value;

use super::values::Items;

/// Options of `json.dumps`.
pub(super) struct JsonLayout {
    /// Spaces per level; `None` is a single line.
    pub indent: Option<usize>,
    pub item: String,
    pub key: String,
    pub ascii: bool,
    pub sort: bool,
}

impl Default for JsonLayout {
    /// `json.dumps(value, ensure_ascii=False)`, the default of transformers' `tojson`.
    fn default() -> Self {
        Self { indent: None, item: ", ".to_owned(), key: ": ".to_owned(), ascii: false, sort: false }
    }
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn dumps(value: &Value) -> String {
    dumps_with(value, &JsonLayout::default())
}

fn write_json(out: &mut String, value: &Value, layout: &JsonLayout, depth: usize) {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = layout.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&python_number(number)),
        Value::String(text) => write_string(out, text, layout.ascii),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(&layout.item);
                }
                line(out, depth + 1);
                write_json(out, item, layout, depth + 1);
            }
            line(out, depth);
            out.push(']');
        }
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if layout.sort {
                entries.sort_by(|a, b| a.0.cmp(b.0));
            }
            out.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push_str(&layout.item);
                }
                line(out, depth + 1);
                write_string(out, key, layout.ascii);
                out.push_str(&layout.key);
                write_json(out, item, layout, depth + 1);
            }
            line(out, depth);
            out.push('}');
        }
    }
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            letter if letter < ' ' || (ascii && !letter.is_ascii()) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    // Writing to a string can't fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

fn python_number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => python_float(float),
        _ => number.to_string(),
    }
}

/// `repr` of a float: the shortest digits, with an exponent from 1e16 up and below 1e-4.
fn python_float(float: f64) -> String {
    if !float.is_finite() {
        return if float.is_nan() {
            "nan".to_owned()
        } else if float > 0.0 {
            "inf".to_owned()
        } else {
            "-inf".to_owned()
        };
    }
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `int(text, base)`; `None` where Python raises, and beyond 128 bits.
pub(super) fn int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let named = match prefix.as_deref() {
        Some("0b") => 2,
        Some("0o") => 8,
        Some("0x") => 16,
        _ => 0,
    };
    let (base, digits) = match base {
        0 if named > 0 => (named, &digits[2..]),
        0 if digits.starts_with('0') && digits.contains(|digit| digit != '0' && digit != '_') => return None,
        0 => (10, digits),
        2..=36 if named == base => (base, digits[2..].strip_prefix('_').unwrap_or(&digits[2..])),
        2..=36 => (base, digits),
        _ => return None,
    };
    let digits = without_underscores(digits)?;
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&format!("{}{digits}", if is_negative { "-" } else { "" }), base).ok()
}

/// `float(text)`; `None` where Python raises.
pub(super) fn float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// The text without underscores; `None` if one is not between two digits.
fn without_underscores(text: &str) -> Option<String> {
    if !text.contains('_') {
        return Some(text.to_owned());
    }
    let ends = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && part.ends_with(|letter: char| letter.is_ascii_alphanumeric())
    };
    let mut parts = text.split('_');
    parts
        .clone()
        .enumerate()
        .all(|(at, part)| ends(if at == 0 { part.trim_start_matches(['+', '-']) } else { part }))
        .then(|| parts.by_ref().collect())
}

/// `json.dumps` of a template value with this layout.
pub(super) fn dumps_with(value: &Value, layout: &JsonLayout) -> String {
    let mut out = String::new();
    write_json(&mut out, value, layout, 0);
    out
}

/// `str(value)`: what `{{ value }}` prints.
pub(super) fn write_str(out: &mut impl Write, value: &Jinja) -> std::fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// `str(value)` as a string.
pub(super) fn str(value: &Jinja) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = write_str(&mut out, value);
    out
}

/// `repr` of a JSON value.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = write_repr(&mut out, &Jinja::from_serialize(value));
    out
}

/// `repr(value)`, used inside printed lists and dictionaries.
fn write_repr(out: &mut impl Write, value: &Jinja) -> std::fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(float) => out.write_str(&python_float(float)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.downcast_object_ref::<Items>();
            if let Some(range) = items.and_then(Items::range) {
                return out.write_str(range);
            }
            let (open, close) = items.map_or_else(|| ("[".to_owned(), "]"), Items::brackets);
            out.write_str(&open)?;
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.write_str(", ")?;
                }
                write_repr(out, &item)?;
            }
            out.write_str(close)
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.write_str(", ")?;
                }
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn write_quoted(out: &mut impl Write, text: &str) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            letter if letter == quote => write!(out, "\\{quote}")?,
            letter if !is_printable(letter) => match letter as u32 {
                code @ 0..0x100 => write!(out, "\\x{code:02x}")?,
                code @ 0x100..0x1_0000 => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
            letter => out.write_char(letter)?,
        }
    }
    out.write_char(quote)
}

/// `str.isprintable` of one character.
fn is_printable(letter: char) -> bool {
    // Behind a letter, a combining mark stays.
    let escaped: String = format!("a{letter}").escape_debug().collect();
    !(letter.is_control() || escaped.starts_with("a\\u") || (letter.is_whitespace() && letter != ' '))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn dumps_like_python() {
        let value: Value = serde_json::from_str(
            r#"{"b": [1, 2.0, -0.5, 1e16, 1e-5, 123456789.125, 0.0001, 1e22], "a": {"é": "\"\\\n\u0001</x>"}, "e": [{}, []], "n": null}"#,
        )
        .unwrap();
        assert_eq!(
            dumps(&value),
            r#"{"b": [1, 2.0, -0.5, 1e+16, 1e-05, 123456789.125, 0.0001, 1e+22], "a": {"é": "\"\\\n\u0001</x>"}, "e": [{}, []], "n": null}"#
        );
        let layout =
            JsonLayout { indent: Some(2), item: ",".to_owned(), ascii: true, sort: true, ..JsonLayout::default() };
        let out = dumps_with(&serde_json::json!({"z": ["é", "👋"], "a": []}), &layout);
        assert_eq!(out, "{\n  \"a\": [],\n  \"z\": [\n    \"\\u00e9\",\n    \"\\ud83d\\udc4b\"\n  ]\n}");
    }

    #[test]
    fn prints_like_python() {
        let value = Jinja::from_serialize(serde_json::json!({"a": [1, 2.5, true, null, "it's", "say \"x\"\n"]}));
        assert_eq!(str(&value), r#"{'a': [1, 2.5, True, None, "it's", 'say "x"\n']}"#);
    }
}
