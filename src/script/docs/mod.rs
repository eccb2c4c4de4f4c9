//! The declaration of every host function: name, parameters, types, description, example. Terminal
//! help, completion, editor types and docs/lua.md are generated from it. Tests compare it with the
//! virtual machines and run the examples.

mod context;
#[cfg(test)]
pub(crate) mod defaults;
mod env;
mod external_calls;
mod loss;
mod luacats;
mod luau;
mod markdown;
mod models;
mod notation;
mod program;
mod search;
mod settings;
mod tables;
mod text;
mod tools;
mod trainers;
mod training;
mod types;

use std::sync::LazyLock;

use serde::Serialize;

use crate::config::{EnvSettings, Settings};
use crate::error::nearest;
use crate::schema::{Section, Setting};
use crate::tools::table::TableOptions;
use crate::tools::{PythonOptions, RhaiOptions};

pub use luacats::luacats;
pub use luau::luau;
pub use markdown::{markdown, with_reference};
pub use settings::{find_settings, settings_hint, settings_markdown, settings_page};
pub use types::{Named, named_types};

/// The kinds of script in which a function is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Anywhere,
    /// In programs (`r1 lua`) only, including tests.
    Programs,
    /// In tests (`r1 test`) only.
    Tests,
}

/// A host function, a method (`Context:keep_first`) or a value (`r1.json.null`).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Entry {
    pub name: &'static str,
    pub params: &'static [Param],
    /// Types and descriptions; a type that ends in `…` is any number of values.
    pub returns: &'static [(&'static str, &'static str)],
    /// Lists show the first sentence only.
    pub doc: &'static str,
    /// Lua code; a test checks lines `EXPRESSION  --> VALUES`, with values as JSON.
    pub example: &'static str,
    /// The first version with the function.
    pub since: &'static str,
    pub scope: Scope,
    /// A constant, not a function.
    pub value: bool,
}

/// A parameter, or a field of a table parameter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Param {
    /// A final `?` marks an optional parameter.
    pub name: &'static str,
    /// In Luau's notation; `table` if `fields` lists its fields.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub doc: &'static str,
    #[serde(skip_serializing_if = "<[Param]>::is_empty")]
    pub fields: &'static [Param],
}

const SINCE: &str = "0.1";

/// A parameter.
const fn p(name: &'static str, kind: &'static str, doc: &'static str) -> Param {
    Param { name, kind, doc, fields: &[] }
}

/// A table parameter with fields.
const fn table(name: &'static str, doc: &'static str, fields: &'static [Param]) -> Param {
    Param { name, kind: "table", doc, fields }
}

/// A function.
const fn f(
    name: &'static str,
    params: &'static [Param],
    returns: &'static [(&'static str, &'static str)],
    doc: &'static str,
    example: &'static str,
) -> Entry {
    Entry { name, params, returns, doc, example, since: SINCE, scope: Scope::Anywhere, value: false }
}

/// A function for programs.
const fn program(
    name: &'static str,
    params: &'static [Param],
    returns: &'static [(&'static str, &'static str)],
    doc: &'static str,
    example: &'static str,
) -> Entry {
    Entry { name, params, returns, doc, example, since: SINCE, scope: Scope::Programs, value: false }
}

/// A constant.
const fn constant(name: &'static str, kind: &'static [(&'static str, &'static str)], doc: &'static str) -> Entry {
    Entry { name, params: &[], returns: kind, doc, example: "", since: SINCE, scope: Scope::Anywhere, value: true }
}

/// All entries, in the order of the reference.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    static ALL: LazyLock<Vec<Entry>> = LazyLock::new(|| {
        let tables: [&'static [Entry]; 12] = [
            env::ENTRIES,
            tools::ENTRIES,
            tables::ENTRIES,
            context::ENTRIES,
            trainers::ENTRIES,
            loss::ENTRIES,
            text::ENTRIES,
            external_calls::ENTRIES,
            search::ENTRIES,
            models::ENTRIES,
            training::ENTRIES,
            program::ENTRIES,
        ];
        tables.into_iter().flatten().map(|entry| with_settings(*entry)).collect()
    });
    ALL.iter()
}

/// The entries of `r1.recipe`, `r1.env` and tools of the host, with the settings that they take in
/// addition to the fields that their entry has.
fn with_settings(entry: Entry) -> Entry {
    let (settings, [table]) = (
        match entry.name {
            "r1.recipe" => Settings::declared(),
            "r1.env" => EnvSettings::declared(),
            "r1.tools.python" => PythonOptions::declared(),
            "r1.tools.rhai" => RhaiOptions::declared(),
            "r1.tools.table" => TableOptions::declared(),
            _ => return entry,
        },
        entry.params,
    ) else {
        return entry;
    };
    // `memory_mb` is written `memory`.
    let has = |setting: &Setting| {
        table.fields.iter().any(|field| field.name.trim_end_matches('?') == setting.name().trim_end_matches("_mb"))
    };
    // The list that contains these texts is static.
    let param = |setting: Setting| Param {
        name: format!("{}?", setting.name()).leak(),
        kind: setting.lua.clone().leak(),
        doc: setting.summary().trim_end_matches('.').to_owned().leak(),
        fields: &[],
    };
    let settings = settings.into_iter().filter(|setting| !has(setting)).map(param);
    let fields: Vec<Param> = table.fields.iter().copied().chain(settings).collect();
    Entry { params: vec![Param { fields: fields.leak(), ..*table }].leak(), ..entry }
}

impl Entry {
    /// Names of the fields of its table parameters; of tables inside a union if it has no others.
    pub(crate) fn field_names(&self) -> Vec<&'static str> {
        let listed: Vec<&Param> = self.params.iter().flat_map(|param| param.fields).collect();
        if !listed.is_empty() {
            return listed.into_iter().map(|field| field.name.trim_end_matches('?')).collect();
        }
        let parts = |param: &'static Param| match notation::read(param.kind) {
            Some(notation::Type::Either(parts)) => parts,
            _ => Vec::new(),
        };
        let names = |part: notation::Type<'static>| match part {
            notation::Type::Table(fields) => fields.into_iter().map(|(name, _)| name).collect(),
            _ => Vec::new(),
        };
        self.params.iter().flat_map(parts).flat_map(names).collect()
    }

    /// `r1.re.find(text, pattern, from?) -> integer?, integer?, string…`
    pub fn signature(&self) -> String {
        let returns: Vec<&str> = self.returns.iter().map(|(kind, _)| *kind).collect();
        if self.value {
            return format!("{}: {}", self.name, returns.join(", "));
        }
        let params: Vec<&str> = self.params.iter().map(|param| param.name).collect();
        let returns = if returns.is_empty() { String::new() } else { format!(" -> {}", returns.join(", ")) };
        format!("{}({}){returns}", self.name, params.join(", "))
    }

    /// The first sentence of the description.
    pub fn summary(&self) -> &'static str {
        let end = self.doc.match_indices(['.', ':', ';']).map(|(at, _)| at);
        let end = end.into_iter().find(|at| self.doc[at + 1..].starts_with(' ') || at + 1 == self.doc.len());
        end.map_or(self.doc, |at| &self.doc[..at])
    }

    /// The name without its last part: `r1.re`, `Context`; empty for globals.
    pub fn space(&self) -> &'static str {
        self.name.rfind(['.', ':']).map_or("", |at| &self.name[..at])
    }

    /// The last part of the name.
    pub fn short(&self) -> &'static str {
        self.name.rfind(['.', ':']).map_or(self.name, |at| &self.name[at + 1..])
    }

    /// A method of an object.
    pub fn is_method(&self) -> bool {
        self.name.contains(':')
    }

    /// The full description, for a terminal.
    pub fn page(&self) -> String {
        use std::fmt::Write;
        let mut page = format!("{}\n\n", self.signature());
        wrap(&mut page, self.doc);
        let rows = rows(self.params, 0);
        let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let types = rows.iter().map(|(_, kind, _)| kind.chars().count()).max().unwrap_or(0).min(28);
        if !rows.is_empty() {
            page.push('\n');
        }
        for (name, kind, doc) in rows {
            let _ = writeln!(page, "{}", format!("  {name:width$}  {kind:types$}  {doc}").trim_end());
        }
        if !self.value && self.returns.iter().any(|(_, doc)| !doc.is_empty()) {
            page.push_str("\n  returns\n");
            for (kind, doc) in self.returns {
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

/// Width of a page in columns.
const WIDTH: usize = 100;

/// Writes a text, wrapped and indented by two spaces.
fn wrap(page: &mut String, text: &str) {
    wrap_after(page, "  ", "  ", text);
}

/// Writes a text, wrapped: `first` begins its first line, `rest` the others.
fn wrap_after(page: &mut String, first: &str, rest: &str, text: &str) {
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

/// The description of a named type, for a terminal.
pub fn type_page(name: &str) -> Option<String> {
    use std::fmt::Write;
    let named = named_types().into_iter().find(|named| named.name == name && !named.fields.is_empty())?;
    let mut page = format!("{}\n\n", named.name);
    wrap(&mut page, &format!("{}.", named.doc));
    page.push('\n');
    let width = named.fields.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let types = named.fields.iter().map(|(_, kind, _)| kind.chars().count()).max().unwrap_or(0);
    for (name, kind, doc) in &named.fields {
        let _ = writeln!(page, "{}", format!("  {name:width$}  {kind:types$}  {doc}").trim_end());
    }
    Some(page)
}

/// Parameters and their fields as name, type and description.
fn rows(params: &[Param], depth: usize) -> Vec<(String, &'static str, &'static str)> {
    let mut found = Vec::new();
    for param in params {
        let kind = if param.fields.is_empty() { param.kind } else { "table" };
        found.push((format!("{}{}", "  ".repeat(depth), param.name), kind, param.doc));
        found.extend(rows(param.fields, depth + 1));
    }
    found
}

/// The entry with a name: full (`r1.re.find`), without `r1.`, or a method name (`keep_first`) if it
/// is unique.
pub fn find(name: &str) -> Option<&'static Entry> {
    let name = name.trim().trim_end_matches("()");
    let full = |entry: &&Entry| entry.name == name || entry.name.strip_prefix("r1.") == Some(name);
    all().find(full).or_else(|| {
        let mut found = all().filter(|entry| entry.short() == name);
        found.next().filter(|_| found.next().is_none())
    })
}

/// The entries of a namespace (`r1.re`) or object (`Context`), or with a common prefix.
pub fn below(prefix: &str) -> Vec<&'static Entry> {
    let bare = |entry: &Entry| entry.name.strip_prefix("r1.").unwrap_or(entry.name);
    all().filter(|entry| entry.name.starts_with(prefix) || bare(entry).starts_with(prefix)).collect()
}

/// Names similar to an unknown name.
pub fn like(name: &str) -> Vec<&'static str> {
    let full = nearest(name, all().map(|entry| entry.name));
    if !full.is_empty() {
        return full;
    }
    let short = name.rsplit(['.', ':']).next().unwrap_or(name);
    let near = nearest(short, all().map(Entry::short));
    all().filter(|entry| near.contains(&entry.short())).map(|entry| entry.name).collect()
}
