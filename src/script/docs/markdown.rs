//! The reference part of docs/reference/lua.md.

use std::fmt::Write;

use super::{Entry, Named, Param, Scope, all, named_types};
use crate::config::{Settings, settings};
use crate::schema::{Field, Table};
use crate::tools::table::TableOptions;
use crate::tools::{PythonOptions, RhaiOptions};

/// Columns of a line.
const WIDTH: usize = 100;

/// The reference.
pub fn markdown() -> String {
    let mut out = "## Reference\n\n`r1 doc NAME` shows the same in the terminal; a `?` marks optional parameters and \
         values that\ncan be nil.\n"
        .to_owned();
    let mut spaces: Vec<&str> = Vec::new();
    for entry in all() {
        if !spaces.contains(&entry.space()) {
            spaces.push(entry.space());
        }
    }
    // Namespaces in the order of their first entry; globals last.
    for space in spaces.iter().filter(|space| !space.is_empty()).chain(spaces.iter().filter(|space| space.is_empty())) {
        let _ = writeln!(out, "\n### {}\n", if space.is_empty() { "Globals" } else { space });
        for entry in all().filter(|entry| entry.space() == *space) {
            function(&mut out, entry);
        }
    }
    out.push_str(
        "\n### Types\n\nTypes of settings are in [settings.md](settings.md).\n\n| type | fields |\n|---|---|\n",
    );
    let tables = setting_types();
    let is_listed = |named: &&Named| !named.fields.is_empty() && tables.iter().all(|table| table.name != named.name);
    for named in named_types().iter().filter(is_listed) {
        let fields: Vec<String> = named.fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let _ = writeln!(out, "| `{}`: {} | {} |", named.name, named.doc.trim_end_matches('.'), fields.join(", "));
    }
    out
}

/// The types of settings, which docs/reference/settings.md and the options of tools list.
pub(super) fn setting_types() -> Vec<Table> {
    [Settings::tables(), PythonOptions::tables(), RhaiOptions::tables(), TableOptions::tables()].concat()
}

fn function(out: &mut String, entry: &Entry) {
    let only = match entry.scope {
        Scope::Anywhere => "",
        Scope::Programs => " *(programs)*",
        Scope::Tests => " *(tests)*",
    };
    let _ = writeln!(out, "`{}`{only}  ", entry.signature());
    wrap_after(out, "", "", &escape(&entry.doc));
    out.push('\n');
    let mut rows = String::new();
    list(&mut rows, &entry.params, 0);
    if !rows.is_empty() {
        let _ = writeln!(out, "{rows}");
    }
    let returns = entry.returns.iter().filter(|(_, doc)| !doc.is_empty());
    let returns: Vec<String> = returns.map(|(kind, doc)| format!("`{kind}`: {}", escape(doc))).collect();
    if !returns.is_empty() {
        wrap_after(out, "", "", &format!("Returns {}.", returns.join("; ")));
        out.push('\n');
    }
    if !entry.example.is_empty() {
        let _ = writeln!(out, "```lua\n{}\n```\n", entry.example);
    }
}

/// Whether docs/reference/settings.md lists a parameter.
fn is_setting(param: &Param) -> bool {
    let doc = |text: &str| text.trim_end_matches('.').to_owned();
    settings().any(|setting| setting.name() == param.bare() && doc(&setting.summary()) == doc(&param.doc))
}

/// Parameters with a description.
fn list(out: &mut String, params: &[Param], depth: usize) {
    for param in params.iter().filter(|param| !is_setting(param)) {
        if param.doc.is_empty() && param.fields.is_empty() {
            if depth > 0 {
                let _ = writeln!(out, "{}- `{}` ({})", "  ".repeat(depth - 1), param.name, code(&param.kind));
            }
            continue;
        }
        let kind = if param.kind == "table" { String::new() } else { format!(" ({})", code(&param.kind)) };
        let doc = if param.doc.is_empty() { String::new() } else { format!(": {}", escape(&param.doc)) };
        if depth == 0 && param.doc.is_empty() && param.kind == "table" {
            list(out, &param.fields, 1);
            continue;
        }
        let indent = "  ".repeat(depth.saturating_sub(1));
        wrap_after(out, &format!("{indent}- "), &format!("{indent}  "), &format!("`{}`{kind}{doc}", param.name));
        list(out, &param.fields, depth.max(1) + 1);
    }
}

fn code(kind: &str) -> String {
    format!("`{kind}`")
}

/// Escapes angle brackets (tags) and stars (emphasis).
fn escape(text: &str) -> String {
    text.replace('<', "\\<").replace('*', "\\*")
}

/// Writes a text, wrapped: `first` begins its first line, `rest` the others. Paragraphs and
/// indented lines stay apart.
pub(super) fn wrap_after(page: &mut String, first: &str, rest: &str, text: &str) {
    for (index, line) in text.split('\n').enumerate() {
        let start = if index == 0 { first } else { rest };
        if line.is_empty() && index > 0 {
            page.push('\n');
        } else if line.starts_with(' ') {
            let _ = writeln!(page, "{start}{line}");
        } else {
            wrap_line(page, start, rest, line);
        }
    }
}

fn wrap_line(page: &mut String, first: &str, rest: &str, text: &str) {
    page.push_str(first);
    let mut column = first.chars().count();
    let mut is_start = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if is_start {
            is_start = false;
        } else if column + 1 + length > WIDTH {
            page.push('\n');
            page.push_str(rest);
            column = rest.chars().count();
        } else {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += length;
    }
    page.push('\n');
}
