//! Limits on the results of a template's filters and methods, checked before they are computed.
//!
//! Templates are untrusted, and one call can turn a short text into a huge one: `x|replace('', y)`,
//! `list|join(y)`, `[x] * n`. Each result may have [`LONGEST`] bytes, as may the whole rendering.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::template::LONGEST;
use super::time_limit::in_time;

/// Bytes per value in a list.
pub(super) const ITEM: usize = size_of::<Value>();

/// Fails if a result would be larger than a rendering may be, or if the rendering's time is used
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
pub(super) struct Size {
    /// Bytes of the strings and the text around them.
    pub(super) bytes: usize,
    /// Number of values: numbers, strings, lists, …
    pub(super) values: usize,
    /// Nesting depth of lists.
    pub(super) depth: usize,
}

impl Size {
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
