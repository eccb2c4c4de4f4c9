//! Values shown to the user: in Lua syntax, with sorted keys, and limited in size.

use std::fmt::Write;

use mlua::{Table, Value};
use serde_json::Value as Json;

use super::convert;

/// The kind of a part of a shown value, for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowStyle {
    Plain,
    Key,
    Text,
    Number,
    /// `nil`, `true`, functions, and omitted parts.
    Word,
}

/// A part of a shown value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownSpan {
    pub text: String,
    pub style: ShowStyle,
}

/// Limits of the size and width of the output.
#[derive(Clone, Debug)]
pub struct ShowLimits {
    /// Tables that fit into so many columns stay on one line; 0: every table is broken into lines.
    pub width: usize,
    pub depth: usize,
    /// Maximum entries of one table.
    pub entries: usize,
    /// Maximum characters of one text.
    pub text: usize,
    /// Maximum parts of the whole value.
    pub spans: usize,
}

impl Default for ShowLimits {
    fn default() -> Self {
        Self { width: 100, depth: 8, entries: 60, text: 600, spans: 2000 }
    }
}

impl ShowLimits {
    /// One entry per line and high limits, for comparison line by line.
    pub fn lines() -> Self {
        Self { width: 0, depth: 40, entries: 10_000, text: 20_000, spans: 200_000 }
    }

    /// One short line.
    pub fn brief() -> Self {
        Self { width: usize::MAX, depth: 2, entries: 6, text: 60, spans: 60 }
    }
}

/// A value, ready to be printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub spans: Vec<ShownSpan>,
    /// The value of typed code, if it is plain data.
    pub data: Option<Json>,
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spans.iter().try_for_each(|span| f.write_str(&span.text))
    }
}

impl Shown {
    pub(crate) fn of(value: &Value, layout: &ShowLimits) -> Self {
        let mut writer = ShowWriter { layout, left: layout.spans, entries: ENTRIES, open: Vec::new() };
        let tree = writer.read(value);
        let mut spans = Vec::new();
        tree.write(&mut spans, layout.width, 0, 0);
        Self { spans, data: None }
    }

    /// The value of typed code, with its data.
    pub(crate) fn typed(value: &Value) -> Self {
        let data = convert::to_json(value, "it", convert::NonJson::Refuse).ok();
        Self { data, ..Self::of(value, &ShowLimits::default()) }
    }
}

/// Whether `text` is a valid name in Luau.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Maximum entries read for one value, over all its tables.
const ENTRIES: usize = 1 << 18;

/// A value read for display.
enum ShownTree {
    Leaf(ShownSpan),
    /// Entries with their keys; list items have no key.
    Table(Vec<ShownEntry>),
}

type ShownEntry = (Option<Vec<ShownSpan>>, ShownTree);

struct ShowWriter<'a> {
    layout: &'a ShowLimits,
    left: usize,
    /// Remaining entries of tables.
    entries: usize,
    /// The tables being read, to detect cycles.
    open: Vec<*const std::ffi::c_void>,
}

fn span(style: ShowStyle, text: impl Into<String>) -> ShownSpan {
    ShownSpan { text: text.into(), style }
}

impl ShowWriter<'_> {
    fn read(&mut self, value: &Value) -> ShownTree {
        let Some(left) = self.left.checked_sub(1) else { return ShownTree::Leaf(span(ShowStyle::Word, "…")) };
        self.left = left;
        match value {
            Value::Table(table) => self.table(table),
            other => ShownTree::Leaf(self.leaf(other)),
        }
    }

    fn leaf(&self, value: &Value) -> ShownSpan {
        match value {
            Value::Nil => span(ShowStyle::Word, "nil"),
            value if value.is_null() => span(ShowStyle::Word, "r1.json.null"),
            Value::Boolean(truth) => span(ShowStyle::Word, truth.to_string()),
            Value::Integer(number) => span(ShowStyle::Number, number.to_string()),
            Value::Number(number) => span(ShowStyle::Number, number.to_string()),
            Value::String(text) => span(ShowStyle::Text, quoted(&text.to_string_lossy(), self.layout.text)),
            Value::Function(function) => {
                let info = function.info();
                let name = info.name.map_or_else(String::new, |name| format!(" {name}"));
                let location = super::place::definition(function).map_or_else(String::new, |at| format!(" ({at})"));
                span(ShowStyle::Word, format!("function{name}{location}"))
            }
            other => span(ShowStyle::Word, convert::kind(other).trim_start_matches("a ").to_owned()),
        }
    }

    /// The entry in place of those that are too many.
    fn omitted(&self, count: usize) -> Option<ShownEntry> {
        let more = count.checked_sub(self.layout.entries).filter(|more| *more > 0)?;
        Some((None, ShownTree::Leaf(span(ShowStyle::Word, format!("… {more} more")))))
    }

    fn table(&mut self, table: &Table) -> ShownTree {
        let address = table.to_pointer();
        if self.open.contains(&address) {
            return ShownTree::Leaf(span(ShowStyle::Word, "(contains itself)"));
        }
        if self.open.len() >= self.layout.depth {
            return ShownTree::Leaf(span(ShowStyle::Word, "{…}"));
        }
        self.open.push(address);
        let length = table.raw_len();
        let mut entries = Vec::new();
        for index in 1..=length.min(self.layout.entries) {
            let item: Value = table.raw_get(index).unwrap_or(Value::Nil);
            entries.push((None, self.read(&item)));
        }
        entries.extend(self.omitted(length));
        let mut named: Vec<(Value, Value)> = Vec::new();
        // The only possible error is the closure's, which ends the iteration.
        let _ = table.for_each(|key: Value, item: Value| {
            self.entries = self.entries.checked_sub(1).ok_or_else(|| mlua::Error::runtime("enough"))?;
            if !matches!(&key, Value::Integer(index) if (1..=length as i64).contains(index)) {
                named.push((key, item));
            }
            Ok(())
        });
        named.sort_by_cached_key(|(key, _)| order(key));
        let count = named.len();
        for (key, item) in named.into_iter().take(self.layout.entries) {
            let key = match &key {
                Value::String(name) if is_name(&name.to_string_lossy()) => {
                    vec![span(ShowStyle::Key, name.to_string_lossy())]
                }
                other => vec![span(ShowStyle::Plain, "["), self.leaf(other), span(ShowStyle::Plain, "]")],
            };
            entries.push((Some(key), self.read(&item)));
        }
        entries.extend(self.omitted(count));
        self.open.pop();
        ShownTree::Table(entries)
    }
}

/// Numbers before names, each sorted.
fn order(key: &Value) -> (u8, u64, String) {
    match key {
        Value::Integer(_) | Value::Number(_) => {
            let bits = convert::float(key).unwrap_or(0.0).to_bits();
            // Maps the bits of a float to a total order.
            (0, if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }, String::new())
        }
        Value::String(name) => (1, 0, name.to_string_lossy()),
        other => (2, 0, other.to_string().unwrap_or_default()),
    }
}

impl ShownTree {
    /// Width on one line, in columns.
    fn width(&self) -> usize {
        let columns = |text: &str| text.chars().count();
        match self {
            Self::Leaf(span) => columns(&span.text),
            Self::Table(entries) if entries.is_empty() => 2,
            Self::Table(entries) => entries.iter().fold(2, |sum, (key, value)| {
                let key: usize = key.iter().flatten().map(|span| columns(&span.text)).sum();
                sum.saturating_add(value.width()).saturating_add(2 + if key > 0 { key + 3 } else { 0 })
            }),
        }
    }

    /// Writes at `indent`, after `used` columns of the line.
    fn write(self, out: &mut Vec<ShownSpan>, width: usize, indent: usize, used: usize) {
        let full_width = self.width();
        let entries = match self {
            Self::Leaf(leaf) => return out.push(leaf),
            Self::Table(entries) if entries.is_empty() => return out.push(span(ShowStyle::Plain, "{}")),
            Self::Table(entries) => entries,
        };
        let inline = width > 0 && full_width.saturating_add(indent).saturating_add(used) <= width;
        out.push(span(ShowStyle::Plain, if inline { "{ " } else { "{" }));
        let last = entries.len() - 1;
        for (index, (key, value)) in entries.into_iter().enumerate() {
            if !inline {
                out.push(span(ShowStyle::Plain, format!("\n{}", " ".repeat(indent + 2))));
            }
            let mut used = 0;
            if let Some(key) = key {
                used = key.iter().map(|span| span.text.chars().count()).sum::<usize>() + 3;
                out.extend(key);
                out.push(span(ShowStyle::Plain, " = "));
            }
            value.write(out, if inline { usize::MAX } else { width }, indent + 2, used);
            let between = match (inline, index == last) {
                (true, true) => "",
                (true, false) => ", ",
                (false, _) => ",",
            };
            out.push(span(ShowStyle::Plain, between));
        }
        let end = if inline { " }".to_owned() } else { format!("\n{}}}", " ".repeat(indent)) };
        out.push(span(ShowStyle::Plain, end));
    }
}

/// A text in Lua syntax; the number of omitted characters follows it.
fn quoted(text: &str, limit: usize) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(limit) {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    let more = text.chars().count().saturating_sub(limit);
    out.push('"');
    if more > 0 {
        let _ = write!(out, " … {more} more");
    }
    out
}
