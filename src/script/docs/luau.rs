//! Types for luau-lsp: a definition file for Luau.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::notation::{Type, read};
use super::types::{Named, named_types};
use super::{Entry, Param, Scope, all};

/// The contents of lua/types/r1.d.luau.
pub fn luau() -> String {
    let mut out = "-- Types of r1 for luau-lsp. Made by `r1 doc --format luau`; changes here are lost.\n\n".to_owned();
    let mut spaces: Vec<&str> = Vec::new();
    for entry in all().filter(|entry| !entry.is_method() && entry.name.starts_with("r1.")) {
        if !spaces.contains(&entry.space()) {
            spaces.push(entry.space());
        }
    }
    for named in named_types() {
        let methods: Vec<&Entry> = all().filter(|entry| entry.is_method() && entry.space() == named.name).collect();
        type_of(&mut out, &named, &methods);
    }
    out.push_str("declare r1: {\n");
    for entry in all().filter(|entry| !entry.is_method() && entry.space() == "r1") {
        member(&mut out, entry, 1);
    }
    for space in spaces.iter().filter(|space| **space != "r1") {
        let _ = writeln!(out, "  {}: {{", space.trim_start_matches("r1."));
        for entry in all().filter(|entry| !entry.is_method() && entry.space() == *space) {
            member(&mut out, entry, 2);
        }
        out.push_str("  },\n");
    }
    out.push_str("}\n\n--- The arguments of a program.\ndeclare arg: {string}\n");
    for entry in all().filter(|entry| entry.scope == Scope::Tests && !entry.is_method()) {
        let _ = writeln!(out, "\n--- {}\ndeclare function {}{}", entry.doc, entry.name, declared(entry));
    }
    // Globals of programs that Luau's own declarations lack.
    let extra: BTreeSet<&str> = ["io"].into();
    for space in extra {
        let _ = writeln!(out, "\ndeclare {space}: {{");
        for entry in all().filter(|entry| entry.space() == space) {
            member(&mut out, entry, 1);
        }
        out.push_str("}\n");
    }
    out
}

fn type_of(out: &mut String, named: &Named, methods: &[&Entry]) {
    let _ = writeln!(out, "--- {}.", named.doc);
    // The type `{ [any]: any }` would refuse rows with typed fields.
    if named.name == "Task" {
        out.push_str("export type Task = any\n\n");
        return;
    }
    let open = if named.name == "Match" { "  [any]: any,\n" } else { "" };
    if named.fields.is_empty() && methods.is_empty() && open.is_empty() {
        let _ = writeln!(out, "export type {} = {{ __r1: \"{}\" }}\n", named.name, named.name);
        return;
    }
    let _ = writeln!(out, "export type {} = {{", named.name);
    for (name, kind, doc) in &named.fields {
        if !doc.is_empty() {
            let _ = writeln!(out, "  --- {doc}");
        }
        let bare = name.trim_end_matches('?');
        let _ = writeln!(out, "  {bare}: {},", optional(kind, name.ends_with('?')));
    }
    for entry in methods {
        comment(out, entry, 1);
        let _ = writeln!(out, "  {}: {},", entry.short(), signature(entry, Some(named.name)));
    }
    out.push_str(open);
    out.push_str("}\n\n");
}

fn member(out: &mut String, entry: &Entry, depth: usize) {
    comment(out, entry, depth);
    let kind = match entry.returns.first() {
        Some((kind, _)) if entry.value => shown(kind),
        _ => signature(entry, None),
    };
    let _ = writeln!(out, "{}{}: {kind},", "  ".repeat(depth), entry.short());
}

fn comment(out: &mut String, entry: &Entry, depth: usize) {
    let _ = writeln!(out, "{}--- {}", "  ".repeat(depth), entry.doc.replace('\n', " "));
}

fn signature(entry: &Entry, this: Option<&str>) -> String {
    let this = this.map(|name| format!("self: {name}"));
    let params: Vec<String> = this.into_iter().chain(params(entry, "...any")).collect();
    format!("({}) -> {}", params.join(", "), returns(entry.returns.iter().map(|(kind, _)| *kind)))
}

/// The signature for `declare function`.
fn declared(entry: &Entry) -> String {
    let params: Vec<String> = params(entry, "...: any").collect();
    format!("({}): {}", params.join(", "), returns(entry.returns.iter().map(|(kind, _)| *kind)))
}

/// Names and types; `rest` is the type of further arguments.
fn params(entry: &Entry, rest: &str) -> impl Iterator<Item = String> {
    entry.params.iter().map(move |param| {
        if param.name == "..." { rest.to_owned() } else { format!("{}: {}", bare(param), param_kind(param)) }
    })
}

fn returns<'a>(kinds: impl Iterator<Item = &'a str>) -> String {
    let kinds: Vec<String> = kinds.map(shown).collect();
    match kinds.as_slice() {
        [only] if !only.starts_with("...") && !only.contains("->") => only.clone(),
        all => format!("({})", all.join(", ")),
    }
}

fn bare(param: &Param) -> &str {
    param.name.trim_end_matches('?')
}

fn param_kind(param: &Param) -> String {
    let is_optional = param.name.ends_with('?');
    if param.fields.is_empty() {
        return optional(param.kind, is_optional);
    }
    let fields: Vec<String> =
        param.fields.iter().map(|field| format!("{}: {}", bare(field), param_kind(field))).collect();
    format!("{{ {} }}{}", fields.join(", "), if is_optional { "?" } else { "" })
}

fn optional(kind: &str, is_optional: bool) -> String {
    let kind = shown(kind);
    if !is_optional || kind == "any" {
        return kind;
    }
    if kind.contains('|') || kind.contains("->") { format!("({kind})?") } else { format!("{kind}?") }
}

/// A type in Luau's syntax.
fn shown(kind: &str) -> String {
    read(kind).map_or_else(|| "any".to_owned(), |kind| show(&kind))
}

fn show(kind: &Type<'_>) -> String {
    match kind {
        Type::Name("table") => "{ [any]: any }".to_owned(),
        Type::Name("integer") => "number".to_owned(),
        Type::Name(name) => (*name).to_owned(),
        Type::List(item) => format!("{{ {} }}", show(item)),
        Type::Map(key, value) => format!("{{ [{}]: {} }}", show(key), show(value)),
        Type::Table(fields) => {
            let fields = fields.iter().map(|(name, kind)| {
                if name.is_empty() { "[string]: any".to_owned() } else { format!("{name}: {}", show(kind)) }
            });
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        Type::Function(params, returns) => {
            let params = params
                .iter()
                .map(|(name, kind)| if name.is_empty() { show(kind) } else { format!("{name}: {}", show(kind)) });
            let returns: Vec<String> = returns.iter().map(show).collect();
            let returns = match returns.as_slice() {
                [only] if !only.starts_with("...") => only.clone(),
                all => format!("({})", all.join(", ")),
            };
            format!("({}) -> {returns}", params.collect::<Vec<_>>().join(", "))
        }
        Type::Optional(kind) => {
            let inner = show(kind);
            if inner.contains('|') || inner.contains("->") { format!("({inner})?") } else { format!("{inner}?") }
        }
        Type::Either(all) => {
            let one = |kind: &Type<'_>| {
                let text = show(kind);
                if text.contains("->") { format!("({text})") } else { text }
            };
            all.iter().map(one).collect::<Vec<_>>().join(" | ")
        }
        Type::Many(kind) => format!("...{}", show(kind)),
    }
}
