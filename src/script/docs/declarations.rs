//! Reads lua/types/r1.d.luau: functions, values and named types, with what their comments say.
//!
//! `declare NAME: TYPE` is a global: a table is a namespace, whose fields are functions, values and
//! further namespaces. Fields of `type Globals` are functions of Luau that r1 changes. `export
//! type` is a named type, whose functions with `self` are methods.

use full_moon::LuaVersion;
use full_moon::ast::luau::{TypeArgument, TypeDeclaration, TypeField, TypeFieldKey, TypeInfo};
use full_moon::ast::punctuated::Punctuated;
use full_moon::ast::{Ast, Stmt};
use full_moon::tokenizer::TokenReference;

use super::comment::Comment;
use super::{Entry, Named, Param, SINCE, Scope};
use crate::error::{Error, Kind, Result};

/// What the file declares.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    pub(super) entries: Vec<Entry>,
    pub(super) types: Vec<Named>,
}

/// Functions of Luau, which have no namespace in r1.
const GLOBALS: &str = "Globals";

/// Reads the file.
///
/// # Errors
/// The place and the reason if it is not as described above.
pub(super) fn read(text: &str) -> Result<Declarations> {
    let ast = parse(&as_types(text))?;
    let mut read = Declarations::default();
    let mut declared = Vec::new();
    for statement in ast.nodes().stmts() {
        match statement {
            Stmt::ExportedTypeDeclaration(exported) => {
                declared.push((exported.type_declaration(), Comment::above(exported.export_token()), true));
            }
            Stmt::TypeDeclaration(global) => declared.push((global, Comment::above(global.type_token()), false)),
            other => return Err(refused(format!("not a declaration: {}", other.to_string().trim()))),
        }
    }
    for (declaration, comment, _) in declared.iter().filter(|(.., is_type)| *is_type) {
        let fields = match declaration.type_definition() {
            TypeInfo::Table { fields, .. } => read.fields_of(fields),
            _ => Vec::new(),
        };
        let name = word(declaration.type_name());
        read.types.push(Named { name, doc: comment.text.clone(), is_open: is_open(declaration), fields });
    }
    for (declaration, comment, is_type) in declared {
        read.declare(declaration, comment, is_type)?;
    }
    Ok(read)
}

/// `declare NAME: TYPE` as a type, which the parser knows, on the same line.
pub(super) fn as_types(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("declare ") {
        Some(rest) => format!("type {}\n", rest.replacen(": ", " = ", 1)),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// The files are part of r1, and tests read them all.
fn refused(message: String) -> Error {
    Error::new(Kind::Internal, message)
}

pub(super) fn parse(text: &str) -> Result<Ast> {
    let parsed = full_moon::parse_fallible(text, LuaVersion::luau()).into_result();
    parsed.map_err(|errors| refused(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

/// A type that is written in one line: `{Message}?`.
pub(super) fn parse_type(text: &str) -> Option<TypeInfo> {
    let ast = parse(&format!("type T = {text}")).ok()?;
    match ast.nodes().stmts().next()? {
        Stmt::TypeDeclaration(declaration) => Some(declaration.type_definition().clone()),
        _ => None,
    }
}

impl Declarations {
    fn declare(&mut self, declaration: &TypeDeclaration, comment: Comment, is_type: bool) -> Result<()> {
        let name = word(declaration.type_name());
        let scope = comment.scope.unwrap_or(Scope::Anywhere);
        match declaration.type_definition() {
            TypeInfo::Table { fields, .. } if is_type => {
                for (key, value) in named(fields).filter(|(_, value)| is_method(value)) {
                    self.entry(format!("{name}:{}", word(key)), value, Comment::above(key), scope)?;
                }
                Ok(())
            }
            _ if is_type => Ok(()),
            TypeInfo::Table { fields, .. } if name == GLOBALS => self.namespace("", fields, scope),
            TypeInfo::Table { fields, .. } => self.namespace(&format!("{name}."), fields, scope),
            value => self.entry(name, value, comment, scope),
        }
    }

    /// The fields of a table of functions and values.
    fn namespace(&mut self, prefix: &str, fields: &Punctuated<TypeField>, scope: Scope) -> Result<()> {
        for (key, value) in named(fields) {
            let comment = Comment::above(key);
            let name = format!("{prefix}{}", word(key));
            match value {
                TypeInfo::Table { fields, .. } => {
                    self.namespace(&format!("{name}."), fields, comment.scope.unwrap_or(scope))?;
                }
                value => self.entry(name, value, comment, scope)?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: String, kind: &TypeInfo, comment: Comment, scope: Scope) -> Result<()> {
        let mut entry = Entry {
            params: Vec::new(),
            returns: Vec::new(),
            doc: comment.text,
            example: comment.example,
            since: SINCE,
            scope: comment.scope.unwrap_or(scope),
            value: false,
            name,
        };
        let TypeInfo::Callback { arguments, return_type, .. } = kind else {
            entry.returns.push((one_line(kind), String::new()));
            entry.value = true;
            self.entries.push(entry);
            return Ok(());
        };
        let mut described = comment.params;
        for argument in arguments {
            let name = argument.name().map_or_else(|| "...".to_owned(), |(name, _)| word(name));
            if name == "self" {
                continue;
            }
            let of_this = described.iter().position(|(of, _)| *of == name);
            let doc = of_this.map_or_else(String::new, |index| described.remove(index).1);
            entry.params.push(self.param(&name, argument.type_info(), doc));
        }
        if let Some((unknown, _)) = described.first() {
            return Err(refused(format!("{}: `@param {unknown}` is not a parameter", entry.name)));
        }
        let mut described = comment.returns.into_iter();
        entry.returns =
            results(return_type).into_iter().map(|kind| (kind, described.next().unwrap_or_default())).collect();
        if described.next().is_some() {
            return Err(refused(format!("{}: more `@return` than results", entry.name)));
        }
        self.entries.push(entry);
        Ok(())
    }

    fn param(&self, name: &str, kind: &TypeInfo, doc: String) -> Param {
        let (kind, mark) = match kind {
            TypeInfo::Optional { base, .. } => (bare(base), "?"),
            TypeInfo::Variadic { type_info, .. } => (&**type_info, ""),
            kind => (kind, ""),
        };
        let fields = self.table(kind);
        // A table whose fields are described has them as rows, instead of in its type.
        let (kind, fields) = if fields.iter().any(|field| !field.doc.is_empty()) {
            (table_in(kind), fields)
        } else {
            (one_line(kind), Vec::new())
        };
        Param { name: format!("{name}{mark}"), kind, doc, fields }
    }

    /// The fields of a table, of the table in a union, and of all tables in an intersection, which
    /// can be named types.
    fn table(&self, kind: &TypeInfo) -> Vec<Param> {
        match kind {
            TypeInfo::Table { fields, .. } => self.fields_of(fields),
            TypeInfo::Union(union) => union.types().iter().flat_map(|kind| self.table(kind)).collect(),
            TypeInfo::Intersection(parts) => {
                let mut params: Vec<Param> = Vec::new();
                for part in parts.types() {
                    let fields = match part {
                        TypeInfo::Basic(name) => self.named(&word(name)),
                        part => self.table(part),
                    };
                    let is_new = |field: &Param| params.iter().all(|other| other.bare() != field.bare());
                    let new: Vec<Param> = fields.into_iter().filter(is_new).collect();
                    params.extend(new);
                }
                params
            }
            _ => Vec::new(),
        }
    }

    fn named(&self, name: &str) -> Vec<Param> {
        let fields = self.types.iter().find(|named| named.name == name).map_or(&[][..], |named| &named.fields);
        let as_row = |field: &Param| Param { doc: field.doc.trim_end_matches('.').to_owned(), ..field.clone() };
        fields.iter().map(as_row).collect()
    }

    /// The fields that are data. One that begins with two underscores is a mark of the type.
    fn fields_of(&self, fields: &Punctuated<TypeField>) -> Vec<Param> {
        let data = named(fields).filter(|(_, value)| !is_method(value));
        data.map(|(key, value)| self.param(&word(key), value, Comment::above(key).text))
            .filter(|field| !field.name.starts_with("__"))
            .collect()
    }
}

/// The named fields of a table type.
fn named(fields: &Punctuated<TypeField>) -> impl Iterator<Item = (&TokenReference, &TypeInfo)> {
    fields.iter().filter_map(|field| match field.key() {
        TypeFieldKey::Name(name) => Some((name, field.value())),
        _ => None,
    })
}

fn is_method(kind: &TypeInfo) -> bool {
    let TypeInfo::Callback { arguments, .. } = kind else { return false };
    arguments.iter().next().and_then(TypeArgument::name).is_some_and(|(name, _)| word(name) == "self")
}

/// Whether a value of the type can have other fields.
fn is_open(declaration: &TypeDeclaration) -> bool {
    match declaration.type_definition() {
        TypeInfo::Table { fields, .. } => named(fields).count() < fields.len(),
        kind => one_line(kind) == "any",
    }
}

pub(super) fn word(token: &TokenReference) -> String {
    token.token().to_string()
}

/// A type without the parentheses around it.
pub(super) fn bare(kind: &TypeInfo) -> &TypeInfo {
    match kind {
        TypeInfo::Tuple { types, .. } if types.len() == 1 => types.iter().next().map_or(kind, bare),
        kind => kind,
    }
}

/// The types of a function's results.
fn results(kind: &TypeInfo) -> Vec<String> {
    match kind {
        TypeInfo::Tuple { types, .. } => types.iter().map(one_line).collect(),
        kind => vec![one_line(kind)],
    }
}

/// A type with `table` for its tables.
fn table_in(kind: &TypeInfo) -> String {
    match kind {
        TypeInfo::Union(union) => union.types().iter().map(table_in).collect::<Vec<_>>().join(" | "),
        TypeInfo::Table { .. } | TypeInfo::Intersection(_) => "table".to_owned(),
        kind => one_line(kind),
    }
}

/// A type in one line, without comments: `{Message}`, `(a: T) -> U`.
fn one_line(kind: &TypeInfo) -> String {
    let text = kind.to_string();
    let code = text.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    let parts: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    let mut line = parts.join(" ");
    for (long, short) in [("{ ", "{"), (" }", "}"), (",}", "}"), ("( ", "("), (" )", ")"), ("(| ", "(")] {
        line = line.replace(long, short);
    }
    line.strip_prefix("| ").map_or_else(|| line.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use full_moon::visitors::Visitor;

    use super::*;

    fn file() -> String {
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/types/r1.d.luau")).unwrap()
    }

    #[derive(Default)]
    struct Names(Vec<String>);

    impl Visitor for Names {
        fn visit_type_info(&mut self, kind: &TypeInfo) {
            if let TypeInfo::Basic(name) = kind {
                self.0.push(word(name));
            }
        }
    }

    #[test]
    fn the_file_is_read_and_refers_to_known_types() {
        let read = read(&file()).unwrap();
        let mut written = Names::default();
        written.visit_ast(&parse(&as_types(&file())).unwrap());
        for name in written.0 {
            let is_basic = ["any", "string", "number", "boolean", "nil", "buffer"].contains(&name.as_str());
            assert!(is_basic || read.types.iter().any(|named| named.name == name), "`{name}` is not a type");
        }
        for named in &read.types {
            assert!(named.doc.ends_with('.'), "{} has no description", named.name);
        }
    }

    #[test]
    fn functions_values_methods_and_types_are_read() {
        let read = read(
            "--- The host.\ndeclare r1: {\n  --- Clips.\n  --- @param text The text\n  --- @return Short\n\
             clip: (text: string, options: {\n    --- Default: 1\n    head: number?,\n  } & Own) -> (string, ...any),\n\
             --- @tag programs\n  store: {\n    --- The size.\n    size: number,\n  },\n}\n\
             --- Options.\nexport type Own = {\n  --- Last.\n  tail: (string | number)?,\n\
             --- Copies.\n  copy: (self: Own) -> (),\n}\n",
        );
        let Declarations { entries, types } = read.unwrap();
        let signatures: Vec<String> = entries.iter().map(Entry::signature).collect();
        assert_eq!(signatures, ["r1.clip(text, options) -> string, ...any", "r1.store.size: number", "Own:copy()"]);
        let [text, options] = &entries[0].params[..] else { panic!() };
        assert_eq!((text.kind.as_str(), text.doc.as_str()), ("string", "The text"));
        assert_eq!((options.kind.as_str(), entries[0].field_names()), ("table", vec!["head", "tail"]));
        assert_eq!((entries[0].returns[0].1.as_str(), entries[1].scope), ("Short", Scope::Programs));
        let tail = &types[0].fields[0];
        assert_eq!((types[0].fields.len(), tail.name.as_str(), tail.kind.as_str()), (1, "tail?", "string | number"));
    }

    #[test]
    fn comments_that_do_not_fit_are_refused() {
        let refused = |comment: &str| {
            read(&format!("declare r1: {{\n  {comment}\n  f: (a: any) -> any,\n}}")).unwrap_err().message
        };
        assert_eq!(refused("--- @param b Wrong"), "r1.f: `@param b` is not a parameter");
        assert_eq!(refused("--- @return\n  --- @return"), "r1.f: more `@return` than results");
        assert!(read("declare r1: {}}").is_err() && read("local a = 1").is_err());
    }
}
