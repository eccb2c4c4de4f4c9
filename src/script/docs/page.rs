//! Pages in the terminal: a function, a type, a module, a list.

use std::fmt::Write;

use super::{Entry, Module, Param, Scope, first_sentence, modules, named_types};

/// Width of a page in columns.
const WIDTH: usize = 100;

impl Entry {
    /// The full description.
    pub fn page(&self) -> String {
        let mut page = format!("{}\n\n", self.signature());
        wrap(&mut page, &self.doc);
        let rows = rows(&self.params, 0);
        let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let types = rows.iter().map(|(_, kind, _)| kind.chars().count()).max().unwrap_or(0).min(28);
        if rows.iter().any(|(_, kind, doc)| !kind.is_empty() || !doc.is_empty()) {
            page.push('\n');
            for (name, kind, doc) in rows {
                let _ = writeln!(page, "{}", format!("  {name:width$}  {kind:types$}  {doc}").trim_end());
            }
        }
        if !self.value && self.returns.iter().any(|(_, doc)| !doc.is_empty()) {
            page.push_str("\n  returns\n");
            for (kind, doc) in &self.returns {
                let _ = writeln!(page, "{}", format!("    {kind:types$}  {doc}").trim_end());
            }
        }
        if !self.example.is_empty() {
            let _ = write!(page, "\n  example\n    {}\n", self.example.replace('\n', "\n    "));
        }
        let only = match self.scope {
            Scope::Anywhere => "",
            Scope::Programs => "; in programs (r1 lua) only",
            Scope::Tests => "; in tests (r1 test) only",
        };
        let _ = write!(page, "\n  since {}{only}\n", self.since);
        page
    }
}

impl Module {
    /// The first sentence of the description.
    pub fn summary(&self) -> &str {
        first_sentence(&self.doc)
    }

    /// The description, and the functions of the module and of those in its folder.
    pub fn page(&self) -> String {
        let mut page = format!("require(\"{}\")\n\n", self.name);
        wrap(&mut page, &self.doc);
        for entry in self.entries.iter().filter(|entry| entry.name == self.name) {
            let _ = write!(page, "\n  returns a function: {}\n", entry.signature().replacen(&self.name, "", 1));
            if entry.doc != self.doc {
                page.push('\n');
                wrap(&mut page, &entry.doc);
            }
        }
        let listed: Vec<&Entry> = self.all().filter(|entry| entry.name != self.name).collect();
        if !listed.is_empty() {
            let _ = write!(page, "\n{}", list(listed));
        }
        page
    }
}

/// One line per entry, by namespace.
pub fn list<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let entries: Vec<&Entry> = entries.into_iter().collect();
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    let mut space = None;
    for entry in entries {
        if space.is_some_and(|space| space != entry.space()) {
            out.push('\n');
        }
        space = Some(entry.space());
        let _ = writeln!(out, "{:width$}  {}", entry.name, entry.summary());
    }
    out
}

/// One line per module.
pub fn list_of_modules() -> String {
    let width = modules().iter().map(|module| module.name.len()).max().unwrap_or(0);
    let line = |module: &Module| format!("{:width$}  {}\n", module.name, module.summary());
    modules().iter().map(line).collect()
}

/// The description of a named type.
pub fn type_page(name: &str) -> Option<String> {
    let named = named_types().iter().find(|named| named.name == name && !named.fields.is_empty())?;
    let mut page = format!("{}\n\n", named.name);
    wrap(&mut page, &named.doc);
    page.push('\n');
    let rows = rows(&named.fields, 0);
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let types = rows.iter().map(|(_, kind, _)| kind.chars().count()).max().unwrap_or(0);
    for (name, kind, doc) in rows {
        let _ = writeln!(page, "{}", format!("  {name:width$}  {kind:types$}  {doc}").trim_end());
    }
    Some(page)
}

/// Parameters and their fields as name, type and description.
fn rows(params: &[Param], depth: usize) -> Vec<(String, &str, &str)> {
    let mut table = Vec::new();
    for param in params {
        table.push((format!("{}{}", "  ".repeat(depth), param.name), param.kind.as_str(), param.doc.as_str()));
        table.extend(rows(&param.fields, depth + 1));
    }
    table
}

/// Writes a text, wrapped and indented by two spaces.
pub(super) fn wrap(page: &mut String, text: &str) {
    wrap_after(page, "  ", "  ", text);
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
