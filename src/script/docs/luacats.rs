//! Types in the syntax of LuaCATS, for lua-language-server.

use full_moon::ast::luau::{TypeArgument, TypeField, TypeFieldKey, TypeInfo};

use super::declarations::{bare, parse_type, word};

/// A type in LuaCATS syntax.
pub(super) fn in_luacats(kind: &str) -> String {
    match kind.strip_prefix("...") {
        Some(many) => format!("{} ...", in_luacats(many)),
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
