//! The reference of the Lua API, read from Lua: host functions and types from lua/types/r1.d.luau,
//! modules from their files. Terminal help, completion and docs/reference/lua.md show it. Tests
//! compare it with the virtual machines and run the examples.

mod comment;
mod declarations;
#[cfg(test)]
pub(crate) mod defaults;
mod luacats;
#[cfg(test)]
pub(crate) mod made;
mod modules;
mod reference;
mod settings;

use std::borrow::Cow;
use std::sync::LazyLock;

use serde::Serialize;

use crate::error::nearest;

pub use modules::{Module, module, modules};
pub use reference::{luacats, markdown};
pub use settings::{find_settings, settings_hint};

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

impl Scope {
    fn of_tag(line: &str) -> Option<Self> {
        match line {
            "@tag programs" => Some(Self::Programs),
            "@tag tests" => Some(Self::Tests),
            _ => None,
        }
    }
}

/// A host function, a method (`Context:keep_first`), a function of a module, or a value
/// (`r1.json.null`).
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub name: String,
    pub params: Vec<Param>,
    /// Types and descriptions; a type that begins with `...` is any number of values.
    pub returns: Vec<(String, String)>,
    /// Lists show the first sentence only.
    pub doc: String,
    /// Lua code; a test checks lines `EXPRESSION  --> VALUES`, with values as JSON.
    pub example: String,
    /// The first version with the function.
    pub since: &'static str,
    pub scope: Scope,
    /// A constant, not a function.
    pub value: bool,
}

/// A parameter, or a field of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Param {
    /// A final `?` marks one that may be left out.
    pub name: String,
    /// In Luau's notation, with `table` for a table whose fields are in `fields`; empty if the
    /// module does not say it.
    #[serde(rename = "type")]
    pub kind: String,
    pub doc: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Param>,
}

/// A named type: a table with fields, or an opaque object.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: String,
    pub doc: String,
    pub fields: Vec<Param>,
    /// A value can have other fields.
    #[serde(skip)]
    pub is_open: bool,
}

const SINCE: &str = "0.1";

/// lua/types/r1.d.luau.
pub const fn luau() -> &'static str {
    include_str!("../../../lua/types/r1.d.luau")
}

/// The file is parsed at first use. A test parses it, so that parsing can't fail here.
static DECLARED: LazyLock<declarations::Declarations> =
    LazyLock::new(|| declarations::read(&current()).unwrap_or_default());

/// The file; tests read it from the disk, where one of them writes the types of settings.
fn current() -> Cow<'static, str> {
    if cfg!(test) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/types/r1.d.luau");
        return std::fs::read_to_string(path).unwrap_or_default().into();
    }
    luau().into()
}

/// The entries of the host, in the order of the file.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    DECLARED.entries.iter()
}

/// All named types.
pub fn named_types() -> &'static [Named] {
    &DECLARED.types
}

/// The named type with fields of a name.
pub fn find_type(name: &str) -> Option<&'static Named> {
    named_types().iter().find(|named| named.name == name && !named.fields.is_empty())
}

impl Param {
    /// The name without its mark.
    pub fn bare(&self) -> &str {
        self.name.trim_end_matches('?')
    }
}

impl Entry {
    /// Names of the fields of its table parameters.
    pub(crate) fn field_names(&self) -> Vec<&str> {
        self.params.iter().flat_map(|param| &param.fields).map(Param::bare).collect()
    }

    /// `r1.re.find(text, pattern, from?) -> number?, number?, ...string`
    pub fn signature(&self) -> String {
        let returns: Vec<&str> = self.returns.iter().map(|(kind, _)| kind.as_str()).collect();
        if self.value {
            return format!("{}: {}", self.name, returns.join(", "));
        }
        let params: Vec<&str> = self.params.iter().map(|param| param.name.as_str()).collect();
        let returns = if returns.is_empty() { String::new() } else { format!(" -> {}", returns.join(", ")) };
        format!("{}({}){returns}", self.name, params.join(", "))
    }

    /// The first sentence of the description.
    pub fn summary(&self) -> &str {
        first_sentence(&self.doc)
    }

    /// The name without its last part: `r1.re`, `Context`; empty for globals.
    pub fn space(&self) -> &str {
        self.name.rfind(['.', ':']).map_or("", |at| &self.name[..at])
    }

    /// The last part of the name.
    pub fn short(&self) -> &str {
        self.name.rfind(['.', ':']).map_or(&self.name, |at| &self.name[at + 1..])
    }

    pub fn is_method(&self) -> bool {
        self.name.contains(':')
    }

    /// Whether a name is the entry's, with or without `r1.` or `@r1/`.
    fn is_named(&self, name: &str) -> bool {
        let without = ["r1.", "@r1/"].iter().find_map(|prefix| self.name.strip_prefix(prefix));
        self.name == name || without == Some(name)
    }
}

fn first_sentence(text: &str) -> &str {
    let mut ends = text.match_indices(['.', ':', ';']).map(|(at, _)| at);
    let end = ends.find(|at| text[at + 1..].chars().next().is_none_or(char::is_whitespace));
    end.map_or(text, |at| &text[..at])
}

/// The entry with a name: full (`r1.re.find`), without `r1.`, or a method name (`keep_first`) if it
/// is unique. Functions of modules (`@r1/rewards/qa.f1`) come after functions of the host.
pub fn find(name: &str) -> Option<&'static Entry> {
    let name = name.trim().trim_end_matches("()");
    // A function with the name of its module is on the page of the module.
    let parts = |module: &'static Module| module.entries.iter().filter(move |entry| entry.name != module.name);
    let of_modules = || modules().iter().flat_map(parts);
    let full = |entry: &&'static Entry| entry.is_named(name);
    let host = all().find(full).or_else(|| only(all(), name));
    host.or_else(|| of_modules().find(full)).or_else(|| only(of_modules(), name))
}

/// The only entry with a last part.
fn only(entries: impl Iterator<Item = &'static Entry>, short: &str) -> Option<&'static Entry> {
    let mut matching = entries.filter(|entry| entry.short() == short);
    matching.next().filter(|_| matching.next().is_none())
}

/// The entries of a namespace (`r1.re`) or object (`Context`), or with a common prefix.
pub fn below(prefix: &str) -> Vec<&'static Entry> {
    let bare = |entry: &'static Entry| entry.name.strip_prefix("r1.").unwrap_or(&entry.name);
    all().filter(|entry| entry.name.starts_with(prefix) || bare(entry).starts_with(prefix)).collect()
}

/// Names similar to an unknown name.
pub fn like(name: &str) -> Vec<&'static str> {
    if name.starts_with('@') {
        let of_module = |module: &'static Module| module.entries.iter().map(|entry| entry.name.as_str());
        let names = modules().iter().map(|module| module.name.as_str());
        return nearest(name, names.chain(modules().iter().flat_map(of_module)));
    }
    let full = nearest(name, all().map(|entry| entry.name.as_str()));
    if !full.is_empty() {
        return full;
    }
    let short = name.rsplit(['.', ':']).next().unwrap_or(name);
    let near = nearest(short, all().map(Entry::short));
    all().filter(|entry| near.contains(&entry.short())).map(|entry| entry.name.as_str()).collect()
}
