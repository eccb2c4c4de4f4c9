//! Limits on the results of a template's filters and methods, checked before they are computed.
//!
//! Templates are untrusted, and one call can turn a short text into a huge one: `x|replace('', y)`,
//! `list|join(y)`, `[x] * n`. Each result may have [`LONGEST`] bytes, the whole rendering fewer.

use std::sync::LazyLock;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, FormatStyle, Value};
use regex::Regex;

use super::time_limit::in_time;

/// Maximum bytes of a value of a rendering.
pub(super) const LONGEST: usize = 1 << 28;

/// Bytes per value in a list.
pub(super) const ITEM: usize = size_of::<Value>();

/// Fails if a result would be larger than a value may be, or if the rendering's time is used
/// up.
pub(super) fn check_size(bytes: usize) -> Result<(), Error> {
    in_time()?;
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfFuel, format!("it makes a text or list of more than {LONGEST} bytes")))
}

/// Fails if a list of a value's items would be too large.
pub(super) fn check_list(value: &Value) -> Result<(), Error> {
    let items = match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0),
    };
    check_size(items.saturating_mul(ITEM))
}

/// The approximate size of a printed value; counting stops at the limit of a rendering.
#[derive(Default)]
pub(super) struct PrintedSize {
    /// Bytes of the strings and the text around them.
    pub(super) bytes: usize,
    /// Number of values: numbers, strings, lists, …
    pub(super) values: usize,
    /// Nesting depth of lists.
    pub(super) depth: usize,
}

impl PrintedSize {
    pub(super) fn of(value: &Value) -> Self {
        let mut size = Self::default();
        size.add(value, 1);
        size
    }

    fn add(&mut self, value: &Value, depth: usize) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        self.bytes = self.bytes.saturating_add(value.as_str().map_or(8, |text| text.len() + 4));
        // An iterator without a length can be consumed only once.
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) || value.len().is_none() {
            return;
        }
        for item in value.try_iter().into_iter().flatten() {
            if self.bytes > LONGEST {
                return;
            }
            if value.kind() == ValueKind::Map {
                self.add(&value.get_item(&item).unwrap_or_default(), depth + 1);
            }
            self.add(&item, depth + 1);
        }
    }
}

/// Refuses widths over 1000.
pub(super) fn narrow(width: usize) -> Result<usize, Error> {
    const WIDEST: usize = 1000;
    if width > WIDEST {
        let why = format!("a width of {width} is more than {WIDEST}");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(width)
}

/// Refuses a format string with a field wider than 1000, which could allocate gigabytes of spaces.
pub(super) fn narrow_fields(text: &str, style: FormatStyle, values: &[Value]) -> Result<(), Error> {
    static PERCENT: LazyLock<Regex> = LazyLock::new(|| pattern(r"%(\([^)]*\))?[^a-zA-Z%(]*\d{5}"));
    static BRACES: LazyLock<Regex> = LazyLock::new(|| pattern(r"\{[^{}]*\d{5}"));
    let wide = match style {
        FormatStyle::Printf => &PERCENT,
        FormatStyle::StrFormat => &BRACES,
    };
    if wide.is_match(text) {
        let why = "a field of more than 9999 letters in a format string";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    // Each field prints one value, padded to the field's width.
    let mark = if matches!(style, FormatStyle::Printf) { '%' } else { '{' };
    let longest = values.iter().map(|value| PrintedSize::of(value).bytes).max().unwrap_or(0).saturating_add(9999);
    check_size(text.len().saturating_add(text.matches(mark).count().saturating_mul(longest)))
}

/// Size in bytes of the text after a replacement.
pub(super) fn replaced(text: &str, from: &str, to: &str, count: Option<usize>) -> usize {
    let count = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    text.len().saturating_add(count.saturating_mul(to.len()))
}

#[allow(clippy::expect_used)] // patterns of this file, which the tests compile
pub(super) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of this file")
}
