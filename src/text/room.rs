//! Bounds on what one filter or method of a template makes, checked before it is made.
//!
//! A template is text of a stranger, and one call can make much of little: `x|replace('', y)`, `list|join(y)`,
//! `[x] * n`. Each result may have [`LONGEST`] bytes, as the whole rendering may.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::dialect;
use super::template::LONGEST;

/// Bytes that a value takes in a list.
pub(super) const ITEM: usize = size_of::<Value>();

/// Fails where a result would have more bytes than a rendering may have, or the rendering's time is over.
pub(super) fn room(bytes: usize) -> Result<(), Error> {
    dialect::in_time()?;
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfFuel, format!("it makes a text or list of more than {LONGEST} bytes")))
}

/// Fails where a list of a value's items would be too large.
pub(super) fn listed(value: &Value) -> Result<(), Error> {
    let items = match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0),
    };
    room(items.saturating_mul(ITEM))
}

/// How large a value is once it is written out, about; nothing is counted once it is more than a rendering may have.
#[derive(Default)]
pub(super) struct Size {
    /// Of its texts and what stands around them.
    pub(super) bytes: usize,
    /// Its numbers, texts, lists, …
    pub(super) values: usize,
    /// How deep lists are in each other.
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
        // An iterator without a length can be gone through only once.
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
