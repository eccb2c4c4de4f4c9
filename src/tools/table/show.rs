//! Results and tables as text for a model.

use std::fmt::Write;

use serde_json::Value as Json;

use super::database::in_sql;
use super::{Cell, QueryResult, TableInfo, TableOptions};
use crate::schema::choices;

choices! {
    #[derive(Default)]
    pub enum ResultFormat {
        /// A Markdown table.
        #[default]
        Markdown = "markdown",
        /// CSV with a header.
        Csv = "csv",
        /// `{"columns": […], "rows": [[…], …]}`
        Json = "json",
    }
}

/// Longest description of tables, bytes; columns beyond it are counted.
const DESCRIPTION: usize = 16 << 10;

/// A result within the limits of `options`. Rows that do not fit are left out as a whole, and a
/// mark says so.
pub fn show(result: &QueryResult, options: &TableOptions) -> String {
    let mut shown = 0;
    let mut text = head(result, options.format);
    for row in &result.rows {
        let line = line(row, options);
        let separator = usize::from(options.format == ResultFormat::Json && shown > 0);
        if text.len() + line.len() + separator > options.output_bytes {
            break;
        }
        if separator > 0 {
            text.push(',');
        }
        text.push_str(&line);
        shown += 1;
    }
    let cut = result.more || shown < result.rows.len();
    if options.format == ResultFormat::Json {
        text.push_str(if cut { "],\"more\":true}" } else { "]}" });
        return text;
    }
    if cut {
        let rows = if shown == 1 { "1 row is".to_owned() } else { format!("{shown} rows are") };
        let _ = write!(text, "… (there are more rows; {rows} shown)");
    } else if result.rows.is_empty() {
        text.push_str("(no rows)");
    }
    text.trim_end().to_owned()
}

fn head(result: &QueryResult, format: ResultFormat) -> String {
    let names: Vec<String> = result.columns.iter().map(|name| plain(name, format)).collect();
    match format {
        ResultFormat::Markdown => {
            format!("| {} |\n|{}\n", names.join(" | "), "---|".repeat(names.len()))
        }
        ResultFormat::Csv => format!("{}\n", names.join(",")),
        ResultFormat::Json => format!("{{\"columns\":{},\"rows\":[", Json::from(result.columns.clone())),
    }
}

fn line(row: &[Cell], options: &TableOptions) -> String {
    let cells = row.iter().map(|cell| shown_cell(cell, options));
    match options.format {
        ResultFormat::Markdown => format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")),
        ResultFormat::Csv => format!("{}\n", cells.collect::<Vec<_>>().join(",")),
        ResultFormat::Json => format!("[{}]", cells.collect::<Vec<_>>().join(",")),
    }
}

fn shown_cell(cell: &Cell, options: &TableOptions) -> String {
    let (format, limit) = (options.format, options.max_cell);
    match (cell, format) {
        (Cell::Null, ResultFormat::Markdown) => "NULL".to_owned(),
        (Cell::Null, ResultFormat::Csv) => String::new(),
        (Cell::Text(text), ResultFormat::Json) => Json::from(cut(text, limit)).to_string(),
        (Cell::Blob(_), ResultFormat::Json) => Json::from(blob(cell, limit)).to_string(),
        (Cell::Text(text), _) => plain(&cut(text, limit), format),
        (Cell::Blob(_), _) => blob(cell, limit),
        (number, _) => json(number).to_string(),
    }
}

/// A cell as JSON; bytes are hexadecimal text.
pub(super) fn json(cell: &Cell) -> Json {
    match cell {
        Cell::Null => Json::Null,
        Cell::Integer(number) => Json::from(*number),
        // SQLite has infinity (`9e999`); JSON has not.
        Cell::Real(number) if number.is_finite() => Json::from(*number),
        Cell::Real(number) => Json::from(number.to_string()),
        Cell::Text(text) => Json::from(text.as_str()),
        Cell::Blob(_) => Json::from(blob(cell, usize::MAX)),
    }
}

impl QueryResult {
    /// The rows as lists of JSON values.
    pub fn rows_as_json(&self) -> Json {
        self.rows.iter().map(|row| row.iter().map(json).collect::<Json>()).collect()
    }
}

/// `x'00ff'`, at most `limit` characters of it.
fn blob(cell: &Cell, limit: usize) -> String {
    let Cell::Blob(bytes) = cell else { return String::new() };
    let digits = bytes.iter().take(limit / 2).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    if bytes.len() > limit / 2 { format!("x'{digits}…'") } else { format!("x'{digits}'") }
}

/// The first `limit` characters, and a mark if there are more.
fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} more characters)", &text[..end], text[end..].chars().count()),
    }
}

/// Text that does not end its cell.
fn plain(text: &str, format: ResultFormat) -> String {
    match format {
        ResultFormat::Markdown => {
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            text.replace('|', "\\|")
        }
        ResultFormat::Csv if text.contains([',', '"', '\n', '\r']) => format!("\"{}\"", text.replace('"', "\"\"")),
        ResultFormat::Csv | ResultFormat::Json => text.to_owned(),
    }
}

/// `films(title TEXT, year INTEGER)`
pub(super) fn signature(info: &TableInfo) -> String {
    let mut text = format!("{}(", in_sql(&info.name));
    for (at, column) in info.columns.iter().enumerate() {
        if text.len() > DESCRIPTION / 4 {
            let _ = write!(text, ", … {} more columns", info.columns.len() - at);
            break;
        }
        let separator = if at == 0 { "" } else { ", " };
        let _ = write!(text, "{}", format!("{separator}{} {}", in_sql(&column.name), column.kind.sql()).trim_end());
    }
    text.push(')');
    text
}

/// The tables, their columns and numbers of rows, each with its first `preview` rows.
pub fn describe(tables: &[TableInfo], preview: usize, options: &TableOptions) -> String {
    let mut text = String::new();
    for (at, info) in tables.iter().enumerate() {
        if text.len() > DESCRIPTION {
            let _ = writeln!(text, "… {} more tables", tables.len() - at);
            break;
        }
        let rows = if info.rows == 1 { "1 row".to_owned() } else { format!("{} rows", info.rows) };
        let _ = writeln!(text, "{}, {rows}", signature(info));
        if preview > 0 && !info.sample.is_empty() {
            let result = QueryResult {
                columns: info.columns.iter().map(|column| column.name.clone()).collect(),
                rows: info.sample.iter().take(preview).cloned().collect(),
                more: info.rows > preview as u64,
            };
            let _ = writeln!(text, "{}", show(&result, options));
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> QueryResult {
        QueryResult {
            columns: vec!["name".to_owned(), "a|b".to_owned()],
            rows: vec![
                vec![Cell::Text("x, \"y\"\nz".to_owned()), Cell::Real(2.0)],
                vec![Cell::Text("long ".repeat(10)), Cell::Null],
                vec![Cell::Blob(vec![0, 255]), Cell::Integer(-3)],
            ],
            more: false,
        }
    }

    #[test]
    fn the_commas_of_json_rows_count_towards_the_limit() {
        let rows = vec![vec![Cell::Integer(1)], vec![Cell::Integer(2)]];
        let result = QueryResult { columns: vec!["a".to_owned()], rows, more: false };
        let with = |output_bytes| {
            show(&result, &TableOptions { format: ResultFormat::Json, output_bytes, ..TableOptions::default() })
        };
        let all = r#"{"columns":["a"],"rows":[[1],[2]]}"#;
        // The closing brackets are not counted.
        assert_eq!(with(all.len() - 2), all);
        assert_eq!(with(all.len() - 3), r#"{"columns":["a"],"rows":[[1]],"more":true}"#);
    }

    #[test]
    fn results_are_markdown_csv_or_json() {
        let options = |format| TableOptions { format, max_cell: 12, ..TableOptions::default() };
        insta::assert_snapshot!(show(&result(), &options(ResultFormat::Markdown)), @r#"
        | name | a\|b |
        |---|---|
        | x, "y" z | 2.0 |
        | long long lo… (38 more characters) | NULL |
        | x'00ff' | -3 |
        "#);
        insta::assert_snapshot!(show(&result(), &options(ResultFormat::Csv)), @r#"
        name,a|b
        "x, ""y""
        z",2.0
        long long lo… (38 more characters),
        x'00ff',-3
        "#);
        insta::assert_snapshot!(show(&result(), &options(ResultFormat::Json)), @r#"{"columns":["name","a|b"],"rows":[["x, \"y\"\nz",2.0],["long long lo… (38 more characters)",null],["x'00ff'",-3]]}"#);
    }

    #[test]
    fn a_long_result_ends_with_a_whole_row_and_a_mark() {
        let long = QueryResult {
            columns: vec!["n".to_owned()],
            rows: (0..1000).map(|n| vec![Cell::Integer(n)]).collect(),
            more: true,
        };
        for format in [ResultFormat::Markdown, ResultFormat::Csv, ResultFormat::Json] {
            let options = TableOptions { format, output_bytes: 100, ..TableOptions::default() };
            let text = show(&long, &options);
            assert!(text.len() < 160, "{text}");
            if format == ResultFormat::Json {
                let json: Json = serde_json::from_str(&text).unwrap_or_default();
                assert_eq!(
                    (&json["more"], json["rows"].as_array().map_or(0, Vec::len)),
                    (&Json::Bool(true), 17),
                    "{text}"
                );
            } else {
                assert!(text.contains("\n… (there are more rows; "), "{text}");
            }
        }
        let none = QueryResult { columns: vec!["n".to_owned()], ..QueryResult::default() };
        assert_eq!(show(&none, &TableOptions::default()), "| n |\n|---|\n(no rows)");
    }
}
