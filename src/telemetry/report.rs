//! Results of commands as text for people: a function in Lua (lua/reports, a file each) writes the
//! text from the data that `--json` prints. Pictures are made in the same way.

use console::Style;
use mlua::{Function, Lua, Table};
use serde::Serialize;

use super::format::{compact, counted, duration, plain, signed, thousands};
use super::table::align;
use crate::error::Result;
use crate::host_lua::HostFile;

/// How the text is printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportStyle {
    pub colour: bool,
    /// The terminal has block characters.
    pub unicode: bool,
}

/// The text of a result, written by the function that the file `source` of lua/reports returns.
/// Missing values are nil.
///
/// # Errors
/// [`Kind::Internal`](crate::error::Kind::Internal) for a mistake in the file.
pub fn report(source: &'static str, result: &impl Serialize, style: ReportStyle) -> Result<String> {
    HostFile::<Function>::load("reports", source, |lua| formats(lua, style))?.run(result)
}

type NumberFormat = fn(f64) -> String;

/// The formats of the host: numbers, colours, columns, charts.
fn formats(lua: &Lua, ReportStyle { colour, unicode }: ReportStyle) -> mlua::Result<Table> {
    let formats = lua.create_table()?;
    formats.raw_set("colour", colour)?;
    let numbers: [(&str, NumberFormat); 5] =
        [("thousands", thousands), ("compact", compact), ("duration", duration), ("plain", plain), ("signed", signed)];
    for (name, format) in numbers {
        formats.raw_set(name, lua.create_function(move |_, number: f64| Ok(format(number)))?)?;
    }
    let count = |_: &Lua, (count, one, several): (usize, String, String)| Ok(counted(count, &one, &several));
    formats.raw_set("counted", lua.create_function(count)?)?;
    let paint = move |_: &Lua, (style, text): (String, String)| {
        Ok(Style::from_dotted_str(&style).force_styling(colour).apply_to(text).to_string())
    };
    formats.raw_set("paint", lua.create_function(paint)?)?;
    let columns = |_: &Lua, rows: Vec<Vec<String>>| Ok(align(&rows));
    formats.raw_set("columns", lua.create_function(columns)?)?;
    let chart = lua.load(include_str!("../../lua/reports/chart.lua")).set_name("@@r1/reports/chart.lua");
    let chart: Table = chart.call((&formats, unicode))?;
    for pair in chart.pairs::<String, Function>() {
        let (name, draw) = pair?;
        formats.raw_set(name, draw)?;
    }
    let escaped = |_: &Lua, text: String| {
        Ok(text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"))
    };
    formats.raw_set("escaped", lua.create_function(escaped)?)?;
    let lines = |_: &Lua, text: String| Ok(text.lines().map(str::to_owned).collect::<Vec<_>>());
    formats.raw_set("lines", lua.create_function(lines)?)?;
    let first = |_: &Lua, (text, count): (String, usize)| Ok(text.chars().take(count).collect::<String>());
    formats.raw_set("first", lua.create_function(first)?)?;
    Ok(formats)
}
