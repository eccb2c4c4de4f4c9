//! Types for lua-language-server: LuaCATS annotations.

use std::fmt::Write;

use super::notation::{Type, read};
use super::types::named_types;
use super::{Entry, Param, Scope, all};

/// The contents of lua/types/r1.lua.
pub fn luacats() -> String {
    let mut out =
        "---@meta\n-- Types of r1 for lua-language-server. Made by `r1 doc --format luacats`; changes here are lost.\n\n"
            .to_owned();
    for named in named_types() {
        let _ = writeln!(out, "---{}.\n---@class r1.{}", named.doc, named.name);
        for (name, kind, doc) in &named.fields {
            let _ = writeln!(out, "{}", format!("---@field {name} {} {doc}", shown(kind)).trim_end());
        }
        if matches!(named.name, "Match" | "Task") {
            out.push_str("---@field [any] any\n");
        }
        if all().any(|entry| entry.is_method() && entry.space() == named.name) {
            let _ = writeln!(out, "local {} = {{}}\n", named.name);
            for entry in all().filter(|entry| entry.is_method() && entry.space() == named.name) {
                function(&mut out, entry);
            }
        } else {
            out.push('\n');
        }
    }
    out.push_str("---Functions of the host.\nr1 = {}\n\n");
    let mut spaces: Vec<&str> = vec!["", "r1", "math", "os"];
    for entry in all().filter(|entry| !entry.is_method()) {
        if !spaces.contains(&entry.space()) {
            spaces.push(entry.space());
            if entry.space() != "io" {
                let _ = writeln!(out, "{} = {{}}\n", entry.space());
            }
        }
        // The language server has Lua's own functions.
        let own = entry.space().is_empty() && entry.scope != Scope::Tests;
        if own || matches!(entry.space(), "math" | "os" | "io") {
            continue;
        }
        if entry.value {
            let kind = entry.returns.first().map_or_else(|| "any".to_owned(), |(kind, _)| shown(kind));
            let _ = writeln!(out, "---{}\n---@type {kind}\n{} = nil\n", entry.doc, entry.name);
        } else {
            function(&mut out, entry);
        }
    }
    out + LUAU
}

/// Functions of Luau that are not in Lua 5.4.
const LUAU: &str = r"
---@param x number
---@param min number
---@param max number
---@return number
function math.clamp(x, min, max) end

---@param x number
---@return integer
function math.round(x) end

---@param x number
---@return integer
function math.sign(x) end

---@param count integer
---@param value any
---@return table
function table.create(count, value) end

---@param list table
---@param value any
---@param from? integer
---@return integer?
function table.find(list, value, from) end

---@param t table
function table.clear(t) end

---@generic T: table
---@param t T
---@return T
function table.clone(t) end

---@generic T: table
---@param t T
---@return T
function table.freeze(t) end

---@param t table
---@return boolean
function table.isfrozen(t) end

---@param text string
---@param separator? string
---@return string[]
function string.split(text, separator) end
";

fn function(out: &mut String, entry: &Entry) {
    let _ = writeln!(out, "---{}", entry.doc.replace('\n', "\n---"));
    for param in entry.params {
        let name = param.name.trim_end_matches('?');
        let mark = if param.name.ends_with('?') { "?" } else { "" };
        let kind = param_kind(param);
        let _ = writeln!(out, "{}", format!("---@param {name}{mark} {kind} {}", param.doc).trim_end());
    }
    for (kind, doc) in entry.returns {
        let doc = if doc.is_empty() { String::new() } else { format!(" # {doc}") };
        let _ = writeln!(out, "---@return {}{doc}", shown(kind));
    }
    let names: Vec<&str> = entry.params.iter().map(|param| param.name.trim_end_matches('?')).collect();
    let _ = writeln!(out, "function {}({}) end\n", entry.name, names.join(", "));
}

fn param_kind(param: &Param) -> String {
    if param.fields.is_empty() {
        return shown(param.kind);
    }
    let fields: Vec<String> =
        param.fields.iter().map(|field| format!("{}: {}", field.name, param_kind(field))).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// A type in LuaCATS syntax.
fn shown(kind: &str) -> String {
    read(kind).map_or_else(|| "any".to_owned(), |kind| show(&kind))
}

fn show(kind: &Type<'_>) -> String {
    let named = |name: &str| {
        let own = name.chars().next().is_some_and(char::is_uppercase);
        if own { format!("r1.{name}") } else { name.to_owned() }
    };
    match kind {
        Type::Name(name) => named(name),
        Type::List(item) => match &**item {
            Type::Name(name) => format!("{}[]", named(name)),
            other => format!("({})[]", show(other)),
        },
        Type::Map(key, value) => format!("table<{}, {}>", show(key), show(value)),
        Type::Table(fields) => {
            let fields = fields.iter().map(|(name, kind)| match kind {
                _ if name.is_empty() => "[string]: any".to_owned(),
                Type::Optional(kind) => format!("{name}?: {}", show(kind)),
                kind => format!("{name}: {}", show(kind)),
            });
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        Type::Function(params, returns) => {
            let params = params.iter().enumerate().map(|(index, (name, kind))| {
                let name = if name.is_empty() { format!("a{}", index + 1) } else { (*name).to_owned() };
                format!("{name}: {}", show(kind))
            });
            let params = params.collect::<Vec<_>>().join(", ");
            // A function without results also matches a function with any number of results.
            if matches!(returns[..], [] | [Type::Many(_)]) {
                return format!("fun({params})");
            }
            let returns: Vec<String> = returns.iter().map(show).collect();
            format!("fun({params}): {}", returns.join(", "))
        }
        Type::Optional(kind) => match &**kind {
            Type::Name(name) => format!("{}?", named(name)),
            other => format!("({})?", show(other)),
        },
        Type::Either(all) => {
            let one = |kind: &Type<'_>| {
                let text = show(kind);
                if matches!(kind, Type::Function(..)) { format!("({text})") } else { text }
            };
            all.iter().map(one).collect::<Vec<_>>().join("|")
        }
        Type::Many(kind) => format!("{} ...", show(kind)),
    }
}
