//! Reads the Lua modules that come with r1: what a file returns, with the comments above it.
//!
//! A module returns a table, whose functions and values are written `name.part`, or a function.

use std::sync::LazyLock;

use full_moon::ast::{Ast, Expression, FunctionBody, Index, LastStmt, Parameter, Prefix, Stmt, Suffix, Var};
use full_moon::node::Node;
use full_moon::tokenizer::TokenReference;
use serde::Serialize;

use super::comment::Comment;
use super::declarations::{parse, word};
use super::{Entry, Param, SINCE, Scope, first_sentence};
use crate::error::Result;
use crate::script::runtime::library;

/// A module: `require(NAME)`.
#[derive(Debug, Serialize)]
pub struct Module {
    /// `@r1/rewards/qa`.
    pub name: String,
    pub doc: String,
    /// The functions and values of the table that it returns, such as `@r1/rewards/qa.f1`; or the
    /// function that it returns, with the name of the module.
    pub entries: Vec<Entry>,
}

impl Module {
    /// The first sentence of the description.
    pub fn summary(&self) -> &str {
        first_sentence(&self.doc)
    }

    /// The functions of this module and of those in its folder.
    pub fn all(&self) -> impl Iterator<Item = &'static Entry> {
        let below = format!("{}/", self.name);
        modules()
            .iter()
            .filter(move |other| other.name == self.name || other.name.starts_with(&below))
            .flat_map(|other| &other.entries)
    }
}

/// All modules in Lua, by name.
pub fn modules() -> &'static [Module] {
    static MODULES: LazyLock<Vec<Module>> = LazyLock::new(|| {
        let sources = library::sources().filter(|(name, _)| !name.ends_with(".py"));
        let mut read: Vec<Module> =
            sources.filter_map(|(name, text)| read(&format!("{}{name}", library::PREFIX), text).ok()).collect();
        read.sort_by(|one, other| one.name.cmp(&other.name));
        read
    });
    &MODULES
}

/// The module with a name, also without `@r1/`.
pub fn module(name: &str) -> Option<&'static Module> {
    modules().iter().find(|module| module.name == name || module.name.strip_prefix(library::PREFIX) == Some(name))
}

/// Reads a module.
///
/// # Errors
/// The place and the reason if the file does not parse.
pub(super) fn read(name: &str, text: &str) -> Result<Module> {
    let ast = parse(text)?;
    let first = ast.nodes().tokens().next().map(Comment::first).unwrap_or_default();
    let mut module = Module { name: name.to_owned(), doc: first.text, entries: Vec::new() };
    let Some(LastStmt::Return(returned)) = ast.nodes().last_stmt() else { return Ok(module) };
    match returned.returns().iter().next() {
        Some(Expression::Function(function)) => {
            let comment = Comment::above(returned.token());
            let comment =
                if comment.text.is_empty() { Comment { text: module.doc.clone(), ..comment } } else { comment };
            module.entries.push(entry(name.to_owned(), Some(function.body()), comment));
        }
        Some(Expression::Var(Var::Name(table))) => module.entries = parts(&ast, name, &table.token().to_string()),
        _ => {}
    }
    Ok(module)
}

/// The functions and values that are assigned to fields of a variable.
fn parts(ast: &Ast, module: &str, table: &str) -> Vec<Entry> {
    let mut parts = Vec::new();
    for statement in ast.nodes().stmts() {
        match statement {
            Stmt::FunctionDeclaration(function) => {
                let names: Vec<String> = function.name().names().iter().map(word).collect();
                if let ([of, part], None) = (&names[..], function.name().method_name())
                    && of == table
                {
                    let comment = Comment::above(function.function_token());
                    parts.push(entry(format!("{module}.{part}"), Some(function.body()), comment));
                }
            }
            Stmt::Assignment(assignment) => {
                let (variable, value) = (assignment.variables().iter().next(), assignment.expressions().iter().next());
                if let (Some((token, part)), Some(value)) = (variable.and_then(|one| field_of(one, table)), value) {
                    let body = match value {
                        Expression::Function(function) => Some(function.body()),
                        _ => None,
                    };
                    parts.push(entry(format!("{module}.{part}"), body, Comment::above(token)));
                }
            }
            _ => {}
        }
    }
    parts
}

/// The first token and the field of `table.field`.
fn field_of<'a>(variable: &'a Var, table: &str) -> Option<(&'a TokenReference, String)> {
    let Var::Expression(expression) = variable else { return None };
    let Prefix::Name(name) = expression.prefix() else { return None };
    let mut suffixes = expression.suffixes();
    match (suffixes.next()?, suffixes.next()) {
        (Suffix::Index(Index::Dot { name: part, .. }), None) if word(name) == table => Some((name, word(part))),
        _ => None,
    }
}

fn entry(name: String, body: Option<&FunctionBody>, comment: Comment) -> Entry {
    let parameter = |parameter: &Parameter| Param {
        name: parameter.to_string().trim().to_owned(),
        kind: String::new(),
        doc: String::new(),
        fields: Vec::new(),
    };
    let params = body.map(|body| body.parameters().iter().map(parameter).collect()).unwrap_or_default();
    let returns = if body.is_some() { Vec::new() } else { vec![("any".to_owned(), String::new())] };
    let (doc, example) = (comment.text, comment.example);
    Entry { name, params, returns, doc, example, since: SINCE, scope: Scope::Anywhere, value: body.is_none() }
}
