//! Types for lua-language-server: LuaCATS annotations.

use std::fmt::Write;

use full_moon::ast::luau::{TypeArgument, TypeField, TypeFieldKey, TypeInfo};

use super::declarations::{bare, parse_type, word};
use super::{Entry, Named, Param, Scope, all, named_types};

/// The contents of lua/types/r1.lua.
pub fn luacats() -> String {
    let mut out =
        "---@meta\n-- Types of r1 for lua-language-server. Made by `r1 doc --format luacats`; changes here are lost.\n\n"
            .to_owned();
    for named in named_types() {
        type_of(&mut out, named);
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
        let is_lua = entry.space().is_empty() && entry.scope != Scope::Tests;
        if is_lua || matches!(entry.space(), "math" | "os" | "io") {
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

fn type_of(out: &mut String, named: &Named) {
    let _ = writeln!(out, "---{}\n---@class r1.{}", named.doc.replace('\n', "\n---"), named.name);
    for field in &named.fields {
        let _ = writeln!(out, "{}", format!("---@field {} {} {}", field.name, param_kind(field), field.doc).trim_end());
    }
    if named.is_open {
        out.push_str("---@field [any] any\n");
    }
    let mut methods = all().filter(|entry| entry.is_method() && entry.space() == named.name).peekable();
    if methods.peek().is_some() {
        let _ = writeln!(out, "local {} = {{}}\n", named.name);
        methods.for_each(|entry| function(out, entry));
    } else {
        out.push('\n');
    }
}

/// Functions of Luau that are not in Lua 5.4.
const LUAU: &str = include_str!("luau.lua");

fn function(out: &mut String, entry: &Entry) {
    let _ = writeln!(out, "---{}", entry.doc.replace('\n', "\n---"));
    for param in &entry.params {
        let name = param.bare();
        let mark = if param.name.ends_with('?') { "?" } else { "" };
        let kind = param_kind(param);
        let _ = writeln!(out, "{}", format!("---@param {name}{mark} {kind} {}", param.doc).trim_end());
    }
    for (kind, doc) in &entry.returns {
        let doc = if doc.is_empty() { String::new() } else { format!(" # {doc}") };
        let _ = writeln!(out, "---@return {}{doc}", shown(kind));
    }
    let names: Vec<&str> = entry.params.iter().map(Param::bare).collect();
    let _ = writeln!(out, "function {}({}) end\n", entry.name, names.join(", "));
}

fn param_kind(param: &Param) -> String {
    if param.fields.is_empty() {
        return shown(&param.kind);
    }
    let fields: Vec<String> =
        param.fields.iter().map(|field| format!("{}: {}", field.name, param_kind(field))).collect();
    shown(&param.kind).replace("table", &format!("{{ {} }}", fields.join(", ")))
}

/// A type in LuaCATS syntax.
fn shown(kind: &str) -> String {
    match kind.strip_prefix("...") {
        Some(many) => format!("{} ...", shown(many)),
        None => parse_type(kind).map_or_else(|| "any".to_owned(), |kind| show(&kind)),
    }
}

fn show(kind: &TypeInfo) -> String {
    match kind {
        TypeInfo::Basic(name) => {
            let name = word(name);
            if name.starts_with(char::is_uppercase) { format!("r1.{name}") } else { name }
        }
        TypeInfo::Tuple { .. } => show(bare(kind)),
        TypeInfo::Array { type_info, .. } => match &**type_info {
            item @ TypeInfo::Basic(_) => format!("{}[]", show(item)),
            item => format!("({})[]", show(item)),
        },
        TypeInfo::Optional { base, .. } => match &**base {
            base @ TypeInfo::Basic(_) => format!("{}?", show(base)),
            base => format!("({})?", show(base)),
        },
        TypeInfo::Union(union) => {
            let one = |kind: &TypeInfo| match bare(kind) {
                function @ TypeInfo::Callback { .. } => format!("({})", show(function)),
                kind => show(kind),
            };
            union.types().iter().map(one).collect::<Vec<_>>().join("|")
        }
        TypeInfo::Table { fields, .. } => {
            let field = |key: &TypeFieldKey, value: &TypeInfo| match (key, value) {
                (TypeFieldKey::Name(name), TypeInfo::Optional { base, .. }) => {
                    format!("{}?: {}", word(name), show(bare(base)))
                }
                (TypeFieldKey::Name(name), value) => format!("{}: {}", word(name), show(value)),
                (TypeFieldKey::IndexSignature { inner, .. }, value) => format!("[{}]: {}", show(inner), show(value)),
                _ => String::new(),
            };
            let only = fields.iter().next().filter(|_| fields.len() == 1);
            if let Some(TypeFieldKey::IndexSignature { inner, .. }) = only.map(TypeField::key) {
                let value = only.map_or_else(String::new, |field| show(field.value()));
                return format!("table<{}, {value}>", show(inner));
            }
            let fields = fields.iter().map(|one| field(one.key(), one.value()));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        TypeInfo::Callback { arguments, return_type, .. } => {
            let argument = |(index, one): (usize, &TypeArgument)| {
                let name = one.name().map_or_else(|| format!("a{}", index + 1), |(name, _)| word(name));
                format!("{name}: {}", show(one.type_info()))
            };
            let arguments = arguments.iter().enumerate().map(argument).collect::<Vec<_>>().join(", ");
            let results = match &**return_type {
                TypeInfo::Tuple { types, .. } => types.iter().map(show).collect::<Vec<_>>().join(", "),
                kind => show(kind),
            };
            // A function without results also matches a function with any number of results.
            if results.is_empty() || results.ends_with("...") {
                return format!("fun({arguments})");
            }
            format!("fun({arguments}): {results}")
        }
        TypeInfo::Variadic { type_info, .. } => format!("{} ...", show(type_info)),
        other => other.to_string().trim().to_owned(),
    }
}
