//! Names and types of a table's columns.
//!
//! A column of text is a column of numbers if every cell that is not empty is one: integers without
//! leading zeros that fit 64 bits, or finite decimal numbers. All other cells stay text, so that
//! `007`, `1,234` and dates are text. Names of columns in a file are arbitrary. In SQL they must be
//! unique without regard to case, so they are cleaned.

use std::collections::{HashMap, HashSet};

use rusqlite::types::ValueRef;
use serde_json::{Map, Value as Json};

use super::ColumnTypes;
use super::data::{InvalidTable, Problem};
use crate::json::Odd;
use crate::schema::choices;

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    /// Bytes that a query returns (`x'00ff'`); tables have none.
    Blob(Vec<u8>),
}

choices! {
    #[derive(Default, PartialOrd, Ord)]
    pub enum ColumnType {
        /// Whole numbers of 64 bits.
        Integer = "integer",
        /// Floating point numbers of 64 bits.
        Real = "real",
        /// Text.
        #[default]
        Text = "text",
        /// Values of several types.
        Mixed = "mixed",
    }
}

impl Cell {
    pub(super) fn as_value(&self) -> ValueRef<'_> {
        match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }
    }
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(text) => Self::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(blob) => Self::Blob(blob.to_vec()),
        }
    }
}

impl ColumnType {
    /// The name in SQL; mixed columns have none.
    pub fn sql(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
            Self::Mixed => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name in the data.
    pub key: String,
    /// Its name in SQL.
    pub name: String,
    pub kind: ColumnType,
    /// Cells are text that is converted; empty ones are null.
    is_text: bool,
    thousands: bool,
}

/// Characters of a column's name that are kept.
const NAME: usize = 100;

/// Names that differ without case: a second `Name` is `Name_2`.
#[derive(Debug, Default)]
pub struct TableNames {
    taken: HashSet<String>,
    /// The number that the last column of a name got.
    counts: HashMap<String, usize>,
}

impl TableNames {
    /// A name for column number `at` (from 1), whose header is `header`.
    pub(super) fn column(&mut self, header: &str, at: usize) -> String {
        let plain: String = header.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let plain: String = plain.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(NAME).collect();
        let plain = if plain.is_empty() { format!("column_{at}") } else { plain };
        let count = self.counts.entry(plain.to_lowercase()).or_default();
        loop {
            *count += 1;
            let name = if *count == 1 { plain.clone() } else { format!("{plain}_{count}") };
            if self.taken.insert(name.to_lowercase()) {
                return name;
            }
        }
    }

    /// Adds a table's name; false if there is one already.
    pub fn table(&mut self, name: &str) -> bool {
        self.taken.insert(name.to_lowercase())
    }

    /// Whether a table can have this name: letters, digits and `_`.
    pub fn is_name(name: &str) -> bool {
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        starts && plain && name.len() <= 64 && !name.to_ascii_lowercase().starts_with("sqlite_")
    }
}

/// Finds columns and their types from all rows.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    types: &'a ColumnTypes,
    /// Cells of text may be numbers.
    infer: bool,
    /// By key, in the order of their first appearance.
    places: HashMap<String, usize>,
    seen: Vec<(String, SeenTypes)>,
}

/// The types of values found in a column.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // independent of each other
struct SeenTypes {
    integer: bool,
    real: bool,
    text: bool,
    /// Text that is not a number.
    is_text: bool,
}

impl SeenTypes {
    fn add_text(&mut self, text: &str, infer: bool, thousands: bool) {
        if !infer {
            self.text = true;
            return;
        }
        match number(text, thousands) {
            Some(Cell::Integer(_)) => self.integer = true,
            Some(Cell::Real(_)) => self.real = true,
            Some(_) => {}
            None => (self.text, self.is_text) = (true, true),
        }
    }
}

impl<'a> Scan<'a> {
    pub(super) fn new(types: &'a ColumnTypes, is_text: bool) -> Self {
        let infer = types.infer.unwrap_or(is_text);
        Self { types, infer, places: HashMap::new(), seen: Vec::new() }
    }

    /// Adds columns that may have no cell.
    pub(super) fn header(&mut self, keys: impl IntoIterator<Item = String>) {
        for key in keys {
            self.seen_of(&key);
        }
    }

    fn seen_of(&mut self, key: &str) -> &mut SeenTypes {
        let at = if let Some(at) = self.places.get(key) {
            *at
        } else {
            self.places.insert(key.to_owned(), self.seen.len());
            self.seen.push((key.to_owned(), SeenTypes::default()));
            self.seen.len() - 1
        };
        &mut self.seen[at].1
    }

    pub(super) fn row(&mut self, row: &Map<String, Json>) {
        for (key, value) in row {
            self.cell(key, value);
        }
    }

    /// A cell of text, in the column of the header with the number `at`.
    pub(super) fn text(&mut self, at: usize, text: &str) {
        let (infer, thousands) = (self.infer, self.types.thousands);
        let Some((_, seen)) = self.seen.get_mut(at) else { return };
        // After one word, other cells change nothing.
        if !seen.is_text {
            seen.add_text(text, infer, thousands);
        }
    }

    pub(super) fn cell(&mut self, key: &str, value: &Json) {
        let (infer, thousands) = (self.infer, self.types.thousands);
        let seen = self.seen_of(key);
        match value {
            Json::Null => {}
            Json::Bool(_) => seen.integer = true,
            Json::Number(number) if number.as_i64().is_some() => seen.integer = true,
            Json::Number(number) if number.is_f64() => seen.real = true,
            Json::Object(_) if matches!(Odd::of(value), Some(Odd::Number(_))) => seen.real = true,
            Json::String(text) => seen.add_text(text, infer, thousands),
            _ => seen.text = true,
        }
    }

    /// The columns with their names and types.
    pub(super) fn finish(self) -> Result<Vec<Column>, InvalidTable> {
        let mut names = TableNames::default();
        let mut columns: Vec<Column> = Vec::with_capacity(self.seen.len());
        for (at, (key, seen)) in self.seen.into_iter().enumerate() {
            let name = names.column(&key, at + 1);
            let declared = self.types.declared.get(&key).or_else(|| self.types.declared.get(&name));
            let inferred = match (seen.text, seen.integer, seen.real) {
                // One word makes all cells text.
                (true, ..) if seen.is_text => ColumnType::Text,
                (_, false, false) => ColumnType::Text,
                (true, ..) => ColumnType::Mixed,
                (false, _, true) => ColumnType::Real,
                (false, true, false) => ColumnType::Integer,
            };
            let kind = declared.copied().unwrap_or(inferred);
            let is_text = self.infer || declared.is_some_and(|declared| *declared != ColumnType::Mixed);
            columns.push(Column { key, name, kind, is_text, thousands: self.types.thousands });
        }
        if columns.is_empty() {
            return Err(Problem::Empty.into());
        }
        let unknown =
            |declared: &&String| !columns.iter().any(|column| column.key == **declared || column.name == **declared);
        if let Some(declared) = self.types.declared.keys().find(unknown) {
            let column_names = columns.iter().map(|column| column.name.clone()).collect();
            return Err(Problem::UnknownColumn { name: declared.clone(), names: column_names }.into());
        }
        Ok(columns)
    }
}

impl Column {
    /// The value of a cell.
    ///
    /// # Errors
    /// A cell that is not of a type that the recipe gives.
    pub(super) fn cell(&self, value: Option<&Json>) -> Result<Cell, InvalidTable> {
        let value = match value {
            None | Some(Json::Null) => return Ok(Cell::Null),
            Some(Json::String(text)) => return self.text(text).map(Cell::from),
            Some(value) => value,
        };
        let cell = match value {
            Json::Null => Cell::Null,
            Json::Bool(value) => Cell::Integer(i64::from(*value)),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => Cell::Integer(number),
                (None, Some(float)) if number.is_f64() => Cell::Real(float),
                _ => Cell::Text(number.to_string()),
            },
            nested => match Odd::of(nested) {
                Some(Odd::Number(number)) => Cell::Real(number),
                Some(Odd::Bytes(bytes)) => Cell::Blob(bytes),
                None => Cell::Text(nested.to_string()),
            },
        };
        match (self.kind, cell) {
            (ColumnType::Real, Cell::Integer(number)) => Ok(Cell::Real(number as f64)),
            (ColumnType::Text, Cell::Integer(_) | Cell::Real(_)) => Ok(Cell::Text(value.to_string())),
            (ColumnType::Integer, Cell::Real(_) | Cell::Text(_)) | (ColumnType::Real, Cell::Text(_)) => {
                Err(self.wrong(&value.to_string()))
            }
            (_, cell) => Ok(cell),
        }
    }

    /// The value of a cell of text.
    ///
    /// # Errors
    /// As [`Column::cell`].
    pub(super) fn text<'a>(&self, text: &'a str) -> Result<ValueRef<'a>, InvalidTable> {
        if !self.is_text {
            return match self.kind {
                ColumnType::Integer | ColumnType::Real => Err(self.wrong(&Json::from(text).to_string())),
                ColumnType::Text | ColumnType::Mixed => Ok(ValueRef::Text(text.as_bytes())),
            };
        }
        if text.is_empty() {
            return Ok(ValueRef::Null);
        }
        match self.kind {
            ColumnType::Text | ColumnType::Mixed => Ok(ValueRef::Text(text.as_bytes())),
            kind => match (kind, number(text, self.thousands)) {
                (ColumnType::Integer, Some(Cell::Integer(number))) => Ok(ValueRef::Integer(number)),
                (_, Some(Cell::Integer(number))) => Ok(ValueRef::Real(number as f64)),
                (ColumnType::Real, Some(Cell::Real(number))) => Ok(ValueRef::Real(number)),
                // White space.
                (_, Some(Cell::Null)) => Ok(ValueRef::Null),
                _ => Err(self.wrong(text)),
            },
        }
    }

    fn wrong(&self, got: &str) -> InvalidTable {
        Problem::Cell { column: self.name.clone(), kind: self.kind, got: got.to_owned() }.into()
    }
}

/// A text as a number, null if it is empty; `None` for other text.
fn number(text: &str, thousands: bool) -> Option<Cell> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Cell::Null);
    }
    let joined;
    let plain = if thousands && has_thousands(text) {
        joined = text.replace(',', "");
        &joined
    } else {
        text
    };
    let digits = plain.strip_prefix('-').unwrap_or(plain);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let whole = digits.bytes().take_while(u8::is_ascii_digit).count();
    if whole > 1 && digits.starts_with('0') {
        return None;
    }
    if whole == digits.len() {
        return plain.parse().ok().map(Cell::Integer);
    }
    let real: f64 = plain.parse().ok()?;
    real.is_finite().then_some(Cell::Real(real))
}

/// Digits in groups of three: `1,234`, `-12,345.6`.
fn has_thousands(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut groups = digits.split_once('.').map_or(digits, |(whole, _)| whole).split(',');
    let all = |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    groups.next().is_some_and(|first| first.len() <= 3 && all(first))
        && groups.all(|group| group.len() == 3 && all(group))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_tables_are_exact_and_other_text_stays_text() {
        for (text, wanted) in [
            ("12", Some(Cell::Integer(12))),
            ("-7", Some(Cell::Integer(-7))),
            ("0", Some(Cell::Integer(0))),
            ("0.50", Some(Cell::Real(0.5))),
            (".5", Some(Cell::Real(0.5))),
            ("1e3", Some(Cell::Real(1000.0))),
            (" ", Some(Cell::Null)),
            ("9223372036854775807", Some(Cell::Integer(i64::MAX))),
            ("9223372036854775808", None),
            ("007", None),
            ("07", None),
            ("-00", None),
            ("1,234", None),
            ("2001-02-03", None),
            ("1e999", None),
            ("inf", None),
            ("NaN", None),
            ("0x10", None),
            ("+5", None),
            ("١٢", None),
        ] {
            assert_eq!(number(text, false), wanted, "{text}");
        }
        assert_eq!(number("1,234", true), Some(Cell::Integer(1234)));
        assert_eq!(number("-12,345.5", true), Some(Cell::Real(-12345.5)));
        for text in ["1,23", "1234,567", ",123", "1,,234"] {
            assert_eq!(number(text, true), None, "{text}");
        }
    }

    #[test]
    fn headers_that_are_empty_equal_or_hostile_get_different_names() {
        let types = ColumnTypes::default();
        let mut scan = Scan::new(&types, true);
        scan.header(["Name", "name", "", " ", "a\"; DROP TABLE t; --\0\n x"].map(str::to_owned));
        let names: Vec<String> = scan.finish().map(|all| all.into_iter().map(|column| column.name).collect()).unwrap();
        assert_eq!(names, ["Name", "name_2", "column_3", "column_4", "a\"; DROP TABLE t; -- x"]);
    }

    proptest! {
        #[test]
        fn cleaned_column_names_are_different_without_case(headers in prop::collection::vec("[aAbB_2 ]{0,4}", 1..30)) {
            let mut names = TableNames::default();
            let cleaned: Vec<String> = headers.iter().enumerate().map(|(at, name)| names.column(name, at + 1)).collect();
            let lower: HashSet<String> = cleaned.iter().map(|name| name.to_lowercase()).collect();
            prop_assert_eq!(lower.len(), headers.len());
        }
    }
}
