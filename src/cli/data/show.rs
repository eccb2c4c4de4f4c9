//! `r1 data show`: prints rows.

use std::fmt::Write;

use serde_json::{Map, Value as Json};

use super::super::args::OutputArgs;
use super::super::data_args::ShowArgs;
use super::super::{print, print_json};
use crate::data::{Amount, Division, byte_count, column, split};
use crate::error::{Error, Kind, Result, without_control_characters};

/// Characters of a value that are shown without `--full`.
const SHOWN: usize = 400;

pub(super) fn run(args: &ShowArgs, output: OutputArgs) -> Result<()> {
    let data = args.rows_of.open()?;
    let rows = match args.sample {
        Some(limit) => {
            let amount = Amount::Rows(limit.min(data.len()));
            split(data.len(), &[amount], &Division::Rows, args.seed)?.swap_remove(0)
        }
        None if args.row >= data.len() => {
            return Err(Error::new(Kind::Usage, format!("there is no row {}", args.row))
                .at("--row")
                .hint(format!("rows are counted from 0, and the data has {}", data.len())));
        }
        None => (args.row..data.len().min(args.row.saturating_add(args.rows))).collect(),
    };
    for index in rows {
        let row = data.raw_row(index)?;
        let row = selected(row, &args.column).map_err(|error| error.at(data.place(index)))?;
        if output.json {
            print_json(Json::Object(row))?;
            continue;
        }
        let mut text = format!("row {index}  {}\n", data.place(index));
        let width = row.keys().map(|name| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &row {
            field(&mut text, name, width, value, args.full);
        }
        print(&without_control_characters(&format!("{text}\n")))?;
    }
    Ok(())
}

fn selected(row: Map<String, Json>, columns: &[String]) -> Result<Map<String, Json>> {
    if columns.is_empty() {
        return Ok(row);
    }
    columns.iter().map(|name| Ok((name.clone(), column(&row, name)?.clone()))).collect()
}

/// A column; further lines of its value are indented.
fn field(text: &mut String, name: &str, width: usize, value: &Json, full: bool) {
    let shown = match value {
        Json::String(string) => string.clone(),
        bytes if byte_count(bytes).is_some() => format!("{} bytes", byte_count(bytes).unwrap_or(0)),
        Json::Array(items) if !items.is_empty() && items.iter().all(is_message) => {
            items.iter().map(message).collect::<Vec<String>>().join("\n")
        }
        other => json_of(other).to_string(),
    };
    let length = shown.chars().count();
    let shown = if full || length <= SHOWN {
        shown
    } else {
        let begin: String = shown.chars().take(SHOWN).collect();
        format!("{begin}… ({length} characters)")
    };
    let indent = width + 4;
    for (number, line) in shown.lines().enumerate() {
        let label = if number == 0 { name } else { "" };
        let pad = indent.saturating_sub(2 + label.chars().count());
        let _ = writeln!(text, "  {label}{:pad$}{line}", "");
    }
    if shown.is_empty() {
        let _ = writeln!(text, "  {name}");
    }
}

/// A value with bytes as their number.
fn json_of(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(json_of).collect(),
        Json::Object(fields) => match byte_count(value) {
            Some(count) => format!("{count} bytes").into(),
            None => fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect(),
        },
        other => other.clone(),
    }
}

fn is_message(item: &Json) -> bool {
    item.get("role").is_some_and(Json::is_string)
}

fn message(item: &Json) -> String {
    let role = item["role"].as_str().unwrap_or_default();
    let content = &item["content"];
    let content = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
    format!("{role}: {content}")
}
