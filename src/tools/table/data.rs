//! Tables of plain data, such as a column of a task: rows as objects, a header with rows as lists,
//! or CSV text.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::column::{Column, ColumnType, Scan};
use super::{Cell, ColumnTypes, SAMPLE, TableInfo};
use crate::error::{Error, Kind, suggest};

/// A table in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct TableData {
    pub name: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

/// The reason why data is not a table.
#[derive(Debug)]
pub struct InvalidTable {
    /// Name of the table.
    name: String,
    /// Number of the row, from 1; 0 for the table as a whole.
    row: u64,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("it has no columns")]
    Empty,
    #[error("it must be a list of rows, {{ header = {{…}}, rows = {{…}} }}, or CSV text")]
    Form,
    #[error("the row is not a table of cells by column")]
    NoObject,
    #[error("the row is not a list of cells")]
    NoList,
    #[error("`header` must be a list of names")]
    Header,
    /// A row with more or fewer cells than the header.
    #[error("the row has {cells} cells and the header {header}")]
    Ragged { cells: usize, header: usize },
    #[error("it is not CSV: {0}")]
    Csv(csv::Error),
    /// A cell that is not of the type that was given for its column.
    #[error("column `{column}` has the type {}, got {:?}", kind.name(), got.chars().take(80).collect::<String>())]
    Cell { column: String, kind: ColumnType, got: String },
    /// A type is given for a column that the table does not have.
    #[error("`types` names the column `{name}`, which it does not have")]
    UnknownColumn { name: String, names: Vec<String> },
}

impl From<Problem> for InvalidTable {
    fn from(problem: Problem) -> Self {
        Self { name: String::new(), row: 0, problem }
    }
}

impl InvalidTable {
    pub(super) fn of(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    pub(super) fn at_row(self, row: u64) -> Self {
        Self { row, ..self }
    }
}

impl fmt::Display for InvalidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table `{}`", self.name)?;
        if self.row > 0 {
            write!(f, ", row {}", self.row)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl From<InvalidTable> for Error {
    fn from(invalid: InvalidTable) -> Self {
        let error = Self::new(Kind::Data, invalid.to_string());
        match &invalid.problem {
            Problem::UnknownColumn { name, names } => error.hint(suggest(name, names.iter().map(String::as_str))),
            Problem::Cell { .. } => error.hint("give the column the type \"text\" or \"mixed\" in `types`"),
            Problem::Ragged { .. } => {
                error.hint("every row needs a cell for each column; r1.json.null is an empty one")
            }
            _ => error,
        }
    }
}

impl TableData {
    /// Reads a table: a list of objects, `{ header = …, rows = … }` with lists of cells, or CSV
    /// text whose first line has the names.
    ///
    /// # Errors
    /// The first row that does not fit.
    pub fn read(name: &str, data: &Json, types: &ColumnTypes) -> Result<Self, InvalidTable> {
        let read = match data {
            Json::String(text) => Self::of_csv(text, types),
            Json::Array(rows) => Self::of_objects(rows, types),
            Json::Object(fields) => Self::of_lists(fields, types),
            _ => Err(Problem::Form.into()),
        };
        let read = read.map_err(|error| error.of(name))?;
        Ok(Self { name: name.to_owned(), ..read })
    }

    /// Whether data is one table, not several by name.
    pub fn is_one(data: &Json) -> bool {
        match data {
            Json::Object(fields) => fields.get("rows").is_some_and(is_list),
            _ => true,
        }
    }

    fn of_objects(rows: &[Json], types: &ColumnTypes) -> Result<Self, InvalidTable> {
        let mut scan = Scan::new(types, false);
        for (row, at) in rows.iter().zip(1..) {
            let Json::Object(fields) = row else {
                return Err(InvalidTable::from(Problem::NoObject).at_row(at));
            };
            scan.row(fields);
        }
        let columns = scan.finish()?;
        let cells = |(row, at): (&Json, u64)| {
            let cells = columns.iter().map(|column| column.cell(row.get(&column.key)));
            cells.collect::<Result<Vec<Cell>, _>>().map_err(|error| error.at_row(at))
        };
        let rows = rows.iter().zip(1..).map(cells).collect::<Result<_, _>>()?;
        Ok(Self { name: String::new(), columns, rows })
    }

    fn of_lists(fields: &Map<String, Json>, types: &ColumnTypes) -> Result<Self, InvalidTable> {
        let Some(rows) = fields.get("rows").filter(|rows| is_list(rows)) else { return Err(Problem::Form.into()) };
        let rows: &[Json] = rows.as_array().map_or(&[], Vec::as_slice);
        let Some(header) = fields.get("header") else {
            return Self::of_objects(rows, types);
        };
        let Some(header) = header.as_array() else { return Err(Problem::Header.into()) };
        let name = |name: &Json| match name {
            Json::String(name) => Some(name.clone()),
            Json::Null => Some(String::new()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let header: Option<Vec<String>> = header.iter().map(name).collect();
        let header = header.ok_or(Problem::Header)?;
        let list = |row: &Json| row.as_array().cloned().or_else(|| is_list(row).then(Vec::new));
        Self::of_rows(&header, rows.iter().map(|row| list(row).ok_or_else(|| Problem::NoList.into())), types)
    }

    fn of_csv(text: &str, types: &ColumnTypes) -> Result<Self, InvalidTable> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
        let mut records = reader.records();
        let header: Vec<String> = match records.next() {
            None => return Err(Problem::Empty.into()),
            Some(record) => record.map_err(Problem::Csv)?.iter().map(str::to_owned).collect(),
        };
        let row = |record: Result<csv::StringRecord, csv::Error>| {
            Ok(record.map_err(Problem::Csv)?.iter().map(Json::from).collect())
        };
        Self::of_rows(&header, records.map(row), types)
    }

    /// Rows as lists of cells. Columns are found by their place, since headers may repeat names.
    fn of_rows(
        header: &[String],
        rows: impl Iterator<Item = Result<Vec<Json>, InvalidTable>>,
        types: &ColumnTypes,
    ) -> Result<Self, InvalidTable> {
        let keys: Vec<String> = (0..header.len()).map(|at| at.to_string()).collect();
        // Types are given by the names of the header.
        let declared =
            header.iter().zip(&keys).filter_map(|(name, key)| Some((key.clone(), *types.declared.get(name)?)));
        let column_types = ColumnTypes { declared: declared.collect(), ..types.clone() };
        let mut names = super::TableNames::default();
        let names: Vec<String> = header.iter().zip(1..).map(|(name, at)| names.column(name, at)).collect();
        if let Some(name) = types.declared.keys().find(|name| !header.contains(name)) {
            return Err(Problem::UnknownColumn { name: name.clone(), names }.into());
        }
        let mut scan = Scan::new(&column_types, true);
        scan.header(keys.iter().cloned());
        let mut kept: Vec<Vec<Json>> = Vec::new();
        for (row, at) in rows.zip(1..) {
            let row = row.map_err(|error| error.at_row(at))?;
            if row.len() != header.len() {
                let ragged = Problem::Ragged { cells: row.len(), header: header.len() };
                return Err(InvalidTable::from(ragged).at_row(at));
            }
            for (key, cell) in keys.iter().zip(&row) {
                scan.cell(key, cell);
            }
            kept.push(row);
        }
        let mut columns = scan.finish()?;
        for (column, name) in columns.iter_mut().zip(names) {
            column.name = name;
        }
        let cells = |(row, at): (Vec<Json>, u64)| {
            let cells = columns.iter().zip(&row).map(|(column, cell)| column.cell(Some(cell)));
            cells.collect::<Result<Vec<Cell>, _>>().map_err(|error| error.at_row(at))
        };
        let rows = kept.into_iter().zip(1..).map(cells).collect::<Result<_, _>>()?;
        Ok(Self { name: String::new(), columns, rows })
    }

    /// The table as CSV, or with another separator; null is an empty cell.
    pub fn to_csv(&self, separator: u8) -> Vec<u8> {
        let mut writer = csv::WriterBuilder::new().delimiter(separator).from_writer(Vec::new());
        // Writing to memory does not fail.
        let _ = writer.write_record(self.columns.iter().map(|column| column.name.as_str()));
        for row in &self.rows {
            let _ = writer.write_record(row.iter().map(|cell| match cell {
                Cell::Null => String::new(),
                Cell::Text(text) => text.clone(),
                other => super::show::json(other).to_string(),
            }));
        }
        writer.into_inner().unwrap_or_default()
    }

    pub(super) fn info(&self) -> TableInfo {
        TableInfo {
            name: self.name.clone(),
            columns: self.columns.clone(),
            rows: self.rows.len() as u64,
            sample: self.rows.iter().take(SAMPLE).cloned().collect(),
        }
    }
}

/// A list; an empty Lua table may be a list or an object.
fn is_list(value: &Json) -> bool {
    value.is_array() || value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn read(data: &Json) -> Result<TableData, String> {
        TableData::read("t", data, &ColumnTypes::default()).map_err(|error| Error::from(error).to_string())
    }

    #[test]
    fn a_table_is_csv_text_objects_or_a_header_with_rows() {
        let wanted =
            vec![vec![Cell::Text("a".to_owned()), Cell::Integer(1)], vec![Cell::Text("b,c".to_owned()), Cell::Null]];
        for data in [
            json!("name,n\na,1\n\"b,c\",\n"),
            json!([{ "name": "a", "n": 1 }, { "name": "b,c" }]),
            json!({ "header": ["name", "n"], "rows": [["a", "1"], ["b,c", ""]] }),
            json!({ "rows": [{ "name": "a", "n": 1 }, { "name": "b,c", "n": null }] }),
        ] {
            let table = read(&data).unwrap();
            assert_eq!(table.rows, wanted, "{data}");
            let columns: Vec<(&str, ColumnType)> = table.columns.iter().map(|c| (c.name.as_str(), c.kind)).collect();
            assert_eq!(columns, [("name", ColumnType::Text), ("n", ColumnType::Integer)], "{data}");
        }
        // Objects keep their types: text of digits stays text.
        assert_eq!(read(&json!([{ "n": "1" }])).unwrap().rows, [[Cell::Text("1".to_owned())]]);
    }

    #[test]
    fn data_that_is_no_table_is_refused_with_its_row() {
        for (data, message) in [
            (json!("a,b\n1,2\n3\n"), "table `t`, row 2: the row has 1 cells and the header 2"),
            (json!({ "header": ["a"], "rows": [["x"], ["y", "z"]] }), "row 2: the row has 2 cells and the header 1"),
            (json!([{ "a": 1 }, 2]), "row 2: the row is not a table of cells by column"),
            (json!({ "header": ["a"], "rows": [5] }), "row 1: the row is not a list of cells"),
            (json!({ "header": "a", "rows": [] }), "`header` must be a list of names"),
            (json!(5), "it must be a list of rows"),
            (json!({ "a": 1 }), "it must be a list of rows"),
            (json!(""), "it has no columns"),
            (json!([]), "it has no columns"),
        ] {
            let refused = read(&data).unwrap_err();
            assert!(refused.contains(message), "{data}: {refused}");
        }
    }

    #[test]
    fn types_of_columns_can_be_given() {
        let types =
            |name: &str, kind| ColumnTypes { declared: [(name.to_owned(), kind)].into(), ..ColumnTypes::default() };
        let data = json!("zip,n\n12,1\n");
        let table = TableData::read("t", &data, &types("zip", ColumnType::Text)).unwrap();
        assert_eq!(table.rows, [[Cell::Text("12".to_owned()), Cell::Integer(1)]]);
        let wrong = TableData::read("t", &json!("zip\nx1\n"), &types("zip", ColumnType::Real)).unwrap_err();
        assert_eq!(wrong.to_string(), "table `t`, row 1: column `zip` has the type real, got \"x1\"");
        let unknown = TableData::read("t", &data, &types("zips", ColumnType::Text)).unwrap_err();
        assert!(Error::from(unknown).to_string().contains("did you mean `zip`?"));
        let thousands = ColumnTypes { thousands: true, ..ColumnTypes::default() };
        let table = TableData::read("t", &json!("n\n\"1,234\"\n"), &thousands).unwrap();
        assert_eq!(table.rows, [[Cell::Integer(1234)]]);
    }
}
