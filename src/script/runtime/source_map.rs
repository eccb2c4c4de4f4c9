//! The lines where a script sets its settings, read from its syntax tree.
//!
//! Settings are values, and a refused value has no line. The syntax tree has: a dotted name such as
//! `trainer.critic.lr` is followed through table constructors, constructor calls (`r1.grpo { … }`),
//! variables that are assigned once, and modules that return tables. For a computed value, the
//! place is the line of the deepest known key, and marked as such.

use std::collections::{BTreeMap, HashMap};

use full_moon::LuaVersion;
use full_moon::ast::{
    Assignment, Call, Expression, Field, FunctionArgs, FunctionCall, Index, LastStmt, LocalAssignment, Prefix, Suffix,
    TableConstructor, Var,
};
use full_moon::node::Node;
use full_moon::tokenizer::{TokenReference, TokenType};
use full_moon::visitors::Visitor;

use crate::error::Error;

/// Maximum number of variables and modules followed for one name; also ends cycles.
const HOPS: usize = 32;

/// The syntax trees of a script's files, reduced to what settings need.
#[derive(Default)]
pub(crate) struct SourceMap {
    /// By path.
    files: BTreeMap<String, FileMap>,
    /// Paths of modules by the name passed to `require`.
    modules: BTreeMap<String, String>,
}

/// One file: its variables, its calls, and what it returns.
#[derive(Default)]
struct FileMap {
    /// Dotted names (`options`, `options.lr`) with every value that they are assigned.
    assigned: HashMap<String, Vec<(usize, ExpressionShape)>>,
    calls: Vec<(Site, ExpressionShape)>,
    returned: Option<ExpressionShape>,
}

/// The place where a script sets a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// `path:line`.
    pub(crate) place: String,
    /// Whether this is the place of the setting itself. For a computed setting it is the place of
    /// the enclosing table, or of the call that takes it.
    pub(crate) is_exact: bool,
}

impl Location {
    fn new(path: &str, line: usize, is_exact: bool) -> Self {
        Self { place: format!("{path}:{line}"), is_exact }
    }

    /// The error of the setting `key`, with this place.
    pub(crate) fn of(self, error: Error, key: &str) -> Error {
        let error = error.at(&self.place);
        if self.is_exact {
            return error;
        }
        let note = format!("the script computes {key}: the line is that of the nearest known table or call");
        Error { hint: Some(error.hint.map_or_else(|| note.clone(), |hint| format!("{hint}; {note}"))), ..error }
    }
}

/// Position of a call.
struct Site {
    /// The function as written: `r1.grpo`.
    function: String,
    /// The line that the VM reports for the call: the line where the function's name ends.
    line: usize,
}

/// An expression, as far as fields can be found in it.
#[derive(Clone)]
enum ExpressionShape {
    Table(Vec<TableEntry>),
    /// A variable or a field of one: `a.b`.
    Name(String),
    Module(String),
    /// The result of a function for a table. A constructor of r1 keeps its fields.
    Call {
        function: String,
        argument: Box<ExpressionShape>,
    },
    Computed,
}

#[derive(Clone)]
struct TableEntry {
    /// `None` for an item of a list.
    name: Option<String>,
    line: usize,
    value: ExpressionShape,
}

impl SourceMap {
    /// The map of files, given as (path, source), main file first. A file that does not parse has
    /// no positions.
    pub(crate) fn new<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        modules: BTreeMap<String, String>,
    ) -> Self {
        let files: Vec<(&str, &str)> = files.into_iter().collect();
        // The parser is recursive, and the calling thread may have a small stack.
        let parsed = std::thread::scope(|scope| {
            let parse = || files.iter().map(|(path, text)| ((*path).to_owned(), FileMap::parse(text))).collect();
            let thread = std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, parse);
            thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
        });
        Self { files: parsed, modules }
    }

    /// The place where the recipe returned by `main` sets `key` (`trainer.lr`), or its deepest
    /// known part.
    pub(crate) fn setting(&self, main: &str, key: &str) -> Option<Location> {
        let returned = self.files.get(main)?.returned.as_ref()?;
        self.follow(main, returned, &segments(key), HOPS)
    }

    /// The place where the argument of the call of `function` at `line` of `path` sets `key`: in
    /// the call, or in its argument. `None` for a call with a table that does not set it.
    pub(crate) fn argument(&self, path: &str, line: usize, function: &str, key: &str) -> Option<Location> {
        let calls = self.files.get(path)?.calls.iter().filter(|(site, _)| site.line == line);
        let (named, others): (Vec<_>, Vec<_>) = calls.partition(|(site, _)| site.function == function);
        let computed = named.iter().any(|(_, shape)| !matches!(shape, ExpressionShape::Table(_)));
        // A constructor under another name (`local grpo = r1.grpo`) is still a call on this line.
        let position =
            named.into_iter().chain(others).find_map(|(_, shape)| self.follow(path, shape, &segments(key), HOPS));
        position.or_else(|| computed.then(|| Location::new(path, line, false)))
    }

    fn follow(&self, path: &str, shape: &ExpressionShape, key: &[KeySegment<'_>], hops: usize) -> Option<Location> {
        let ([first, rest @ ..], Some(hops)) = (key, hops.checked_sub(1)) else { return None };
        match shape {
            ExpressionShape::Table(entries) => {
                let entry = match first {
                    KeySegment::Name(name) => entries.iter().rfind(|entry| entry.name.as_deref() == Some(name)),
                    KeySegment::Item(index) => entries.iter().filter(|entry| entry.name.is_none()).nth(*index),
                }?;
                let deeper = self.follow(path, &entry.value, rest, hops);
                Some(deeper.unwrap_or_else(|| Location::new(path, entry.line, rest.is_empty())))
            }
            ExpressionShape::Name(name) => self.variable(path, name, key, hops),
            ExpressionShape::Module(name) => {
                let path = self.modules.get(name)?;
                self.follow(path, self.files.get(path)?.returned.as_ref()?, key, hops)
            }
            ExpressionShape::Call { function, argument } => {
                let position = self.follow(path, argument, key, hops)?;
                Some(Location { is_exact: position.is_exact && self.is_constructor(path, function), ..position })
            }
            ExpressionShape::Computed => None,
        }
    }

    /// Whether a function is one of r1, also under another name (`local grpo = r1.grpo`).
    fn is_constructor(&self, path: &str, function: &str) -> bool {
        let assigned = self.files.get(path).and_then(|file| file.assigned.get(function));
        let is_ours = |name: &str| name.starts_with("r1.");
        match assigned.map(Vec::as_slice) {
            Some([(_, ExpressionShape::Name(name))]) => is_ours(name),
            _ => is_ours(function),
        }
    }

    /// A field of a variable: set separately (`options.lr = 1`), or in the table assigned to the
    /// variable.
    fn variable(&self, path: &str, name: &str, key: &[KeySegment<'_>], hops: usize) -> Option<Location> {
        let file = self.files.get(path)?;
        for named in (0..=key.len()).rev() {
            let (prefix, rest) = key.split_at(named);
            let names = prefix.iter().map(|segment| match segment {
                KeySegment::Name(name) => Some(*name),
                KeySegment::Item(_) => None,
            });
            let Some(names) = names.collect::<Option<Vec<&str>>>() else { continue };
            let full = std::iter::once(name).chain(names).collect::<Vec<&str>>().join(".");
            match file.assigned.get(&full).map(Vec::as_slice) {
                // With several assignments it is not known which one ran last.
                Some([(line, value)]) => {
                    let deeper = self.follow(path, value, rest, hops);
                    return deeper.or_else(|| (named > 0).then(|| Location::new(path, *line, rest.is_empty())));
                }
                Some(_) => return None,
                None => {}
            }
        }
        // `shared.trainer`, where `shared` is a module or a table.
        let (outer, field) = name.rsplit_once('.')?;
        let key: Vec<KeySegment<'_>> = std::iter::once(KeySegment::Name(field)).chain(key.iter().copied()).collect();
        self.variable(path, outer, &key, hops.checked_sub(1)?)
    }
}

#[derive(Clone, Copy)]
enum KeySegment<'a> {
    Name(&'a str),
    /// An item of a list, from 0.
    Item(usize),
}

/// The names and items of `groups[1].lr`; items are written from 1.
fn segments(key: &str) -> Vec<KeySegment<'_>> {
    let mut all = Vec::new();
    for part in key.split('.') {
        let mut pieces = part.split('[');
        all.extend(pieces.next().filter(|name| !name.is_empty()).map(KeySegment::Name));
        let items = pieces.filter_map(|piece| piece.trim_end_matches(']').parse::<usize>().ok());
        all.extend(items.filter_map(|item| item.checked_sub(1)).map(KeySegment::Item));
    }
    all
}

impl FileMap {
    fn parse(text: &str) -> Self {
        let Ok(ast) = full_moon::parse_fallible(text, LuaVersion::luau()).into_result() else {
            return Self::default();
        };
        let mut map = Self::default();
        map.visit_ast(&ast);
        if let Some(LastStmt::Return(returned)) = ast.nodes().last_stmt() {
            map.returned = returned.returns().iter().next().map(shape);
        }
        map
    }

    fn assign(&mut self, name: String, line: usize, value: ExpressionShape) {
        self.assigned.entry(name).or_default().push((line, value));
    }
}

impl Visitor for FileMap {
    fn visit_local_assignment(&mut self, assignment: &LocalAssignment) {
        let mut values = assignment.expressions().iter();
        for name in assignment.names() {
            let value = values.next().map_or(ExpressionShape::Computed, shape);
            self.assign(text(name), line_of(name), value);
        }
    }

    fn visit_assignment(&mut self, assignment: &Assignment) {
        let mut values = assignment.expressions().iter();
        for variable in assignment.variables() {
            let value = values.next().map_or(ExpressionShape::Computed, shape);
            let line = variable.start_position().map_or(0, full_moon::tokenizer::Position::line);
            if let Some(name) = dotted(variable) {
                self.assign(name, line, value);
            }
        }
    }

    fn visit_function_call(&mut self, call: &FunctionCall) {
        let Some(argument) = argument(call) else { return };
        let suffixes: Vec<&Suffix> = call.suffixes().collect();
        let Some((_, before)) = suffixes.split_last() else { return };
        let end = before.last().map_or_else(|| call.prefix().end_position(), Node::end_position);
        let Some(end) = end else { return };
        self.calls.push((Site { function: called(call), line: end.line() }, argument));
    }
}

fn shape(expression: &Expression) -> ExpressionShape {
    match expression {
        Expression::TableConstructor(table) => fields(table),
        Expression::Parentheses { expression, .. } | Expression::TypeAssertion { expression, .. } => shape(expression),
        Expression::FunctionCall(call) => match argument(call) {
            Some(module @ ExpressionShape::Module(_)) => module,
            Some(argument) => ExpressionShape::Call { function: called(call), argument: Box::new(argument) },
            None => ExpressionShape::Computed,
        },
        Expression::Var(variable) => dotted(variable).map_or(ExpressionShape::Computed, ExpressionShape::Name),
        _ => ExpressionShape::Computed,
    }
}

/// The shape of a call's argument, which a constructor (`r1.grpo { … }`) keeps; the module of a
/// `require`.
fn argument(call: &FunctionCall) -> Option<ExpressionShape> {
    let suffixes: Vec<&Suffix> = call.suffixes().collect();
    let (Suffix::Call(Call::AnonymousCall(arguments)), before) = suffixes.split_last()? else { return None };
    let required = |text: &TokenReference| {
        let named = dotted_parts(call.prefix(), before.iter().copied())? == "require";
        let TokenType::StringLiteral { literal, .. } = text.token().token_type() else { return None };
        let name = literal.strip_suffix(".lua").unwrap_or(literal).trim_start_matches("./").to_owned();
        named.then_some(ExpressionShape::Module(name))
    };
    match &**arguments {
        FunctionArgs::TableConstructor(table) => Some(fields(table)),
        FunctionArgs::String(text) => required(text),
        FunctionArgs::Parentheses { arguments, .. } => match arguments.iter().next()? {
            Expression::String(text) => required(text),
            other if arguments.len() == 1 => Some(shape(other)),
            _ => None,
        },
        _ => None,
    }
}

/// The function of a call as written; empty for one without a name.
fn called(call: &FunctionCall) -> String {
    let suffixes: Vec<&Suffix> = call.suffixes().collect();
    let before = suffixes.split_last().map_or(&[][..], |(_, before)| before);
    dotted_parts(call.prefix(), before.iter().copied()).unwrap_or_default()
}

fn fields(table: &TableConstructor) -> ExpressionShape {
    let entries = table.fields().iter().filter_map(|field| {
        let line = field.start_position()?.line();
        Some(match field {
            Field::NameKey { key, value, .. } => TableEntry { name: Some(text(key)), line, value: shape(value) },
            Field::ExpressionKey { key, value, .. } => {
                let Expression::String(key) = &**key else { return None };
                let TokenType::StringLiteral { literal, .. } = key.token().token_type() else { return None };
                TableEntry { name: Some(literal.to_string()), line, value: shape(value) }
            }
            Field::NoKey(value) => TableEntry { name: None, line, value: shape(value) },
            _ => return None,
        })
    });
    ExpressionShape::Table(entries.collect())
}

/// A variable written with names only: `a`, `a.b`.
fn dotted(variable: &Var) -> Option<String> {
    match variable {
        Var::Name(name) => Some(text(name)),
        Var::Expression(expression) => dotted_parts(expression.prefix(), expression.suffixes()),
        _ => None,
    }
}

fn dotted_parts<'a>(prefix: &Prefix, suffixes: impl IntoIterator<Item = &'a Suffix>) -> Option<String> {
    let Prefix::Name(name) = prefix else { return None };
    let mut all = text(name);
    for suffix in suffixes {
        let Suffix::Index(Index::Dot { name, .. }) = suffix else { return None };
        all.push('.');
        all.push_str(&text(name));
    }
    Some(all)
}

fn text(token: &TokenReference) -> String {
    token.token().to_string()
}

fn line_of(token: &TokenReference) -> usize {
    token.token().start_position().line()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn map(main: &str) -> SourceMap {
        SourceMap::new([("main.lua", main)], BTreeMap::new())
    }

    #[track_caller]
    fn holds(main: &str, key: &str, line: usize) {
        located(map(main).setting("main.lua", key), &format!("main.lua:{line}"), true);
    }

    #[track_caller]
    fn located(location: impl Into<Option<Location>>, text: &str, is_exact: bool) {
        assert_eq!(location.into(), Some(Location { place: text.to_owned(), is_exact }));
    }

    #[test]
    fn the_line_of_a_setting_is_not_that_of_the_same_name_in_a_nested_table() {
        let script = "return r1.recipe {\n  trainer = r1.grpo {\n    critic = { lr = 1e-5 },\n    lr = -1,\n  },\n}";
        holds(script, "trainer.lr", 4);
        holds(script, "trainer.critic.lr", 3);
    }

    #[test]
    fn comments_strings_and_other_tables_are_not_lines_of_settings() {
        let script = "-- lr = 1\nlocal words = 'lr = 2'\nlocal other = { lr = 3 }\n--[[ lr = 4\n]]\nreturn r1.recipe { \
                      trainer = r1.grpo { group_size = 2,\n lr = 5 } }";
        holds(script, "trainer.lr", 7);
        holds(script, "trainer.group_size", 6);
    }

    #[test]
    fn variables_that_are_assigned_once_are_followed() {
        let script = "local sampling = {\n  temperature = -1,\n}\nlocal options: any = { lr = 1 }\noptions.steps = 0\n\
                      local recipe = r1.recipe({ sampling = sampling, trainer = r1.grpo(options) })\nreturn recipe";
        holds(script, "sampling.temperature", 2);
        holds(script, "trainer.lr", 4);
        holds(script, "trainer.steps", 5);
    }

    #[test]
    fn a_computed_setting_has_the_line_of_its_deepest_known_key() {
        let script =
            "local a = { lr = 1 }\na = { lr = 2 }\nreturn r1.recipe {\n  trainer = make(1, 2),\n  sampling = a,\n}";
        located(map(script).setting("main.lua", "trainer.lr"), "main.lua:4", false);
        located(map(script).setting("main.lua", "sampling.lr"), "main.lua:5", false);
        assert_eq!(map(script).setting("main.lua", "limits.cpu"), None);
        assert_eq!(map("return nonsense(").setting("main.lua", "trainer.lr"), None);
        assert_eq!(map("local a = b\nlocal b = a\nreturn a").setting("main.lua", "trainer.lr"), None);
    }

    #[test]
    fn modules_are_followed_by_the_name_they_are_required_with() {
        let main = "local shared = require(\"lib/shared\")\nlocal base = require('./lib/base.lua')\n\
                    return r1.recipe { trainer = shared.trainer, sampling = base, env = r1.env(shared.env) }";
        let shared = "return {\n  trainer = r1.grpo {\n    lr = 1 },\n  env = { max_steps = 0 } }";
        let base = "local M = {}\nM.temperature = 2\nreturn M";
        let modules = [("lib/shared", "s/lib/shared.lua"), ("lib/base", "s/lib/base.lua")];
        let modules = modules.map(|(name, path)| (name.to_owned(), path.to_owned())).into();
        let map = SourceMap::new([("m.lua", main), ("s/lib/shared.lua", shared), ("s/lib/base.lua", base)], modules);
        located(map.setting("m.lua", "trainer.lr"), "s/lib/shared.lua:3", true);
        located(map.setting("m.lua", "env.max_steps"), "s/lib/shared.lua:4", true);
        located(map.setting("m.lua", "sampling.temperature"), "s/lib/base.lua:2", true);
    }

    #[test]
    fn items_of_lists_are_counted_from_one() {
        let script = "return r1.recipe { trainer = r1.grpo { groups = {\n{ lr = 1 },\n{ lr = 2 } } } }";
        holds(script, "trainer.groups[2].lr", 3);
    }

    #[test]
    fn an_argument_is_found_in_its_own_call() {
        let script = "local e = r1.env { max_steps = 1 } local t = r1.tool {\n max_steps = 2 }\nlocal make = r1.env\n\
                      local f = make {\n\n max_steps = 3 }";
        let map = map(script);
        let at = |line, function, key| map.argument("main.lua", line, function, key);
        located(at(1, "r1.env", "max_steps"), "main.lua:1", true);
        located(at(1, "r1.tool", "max_steps"), "main.lua:2", true);
        located(at(4, "r1.env", "max_steps"), "main.lua:6", true);
        assert_eq!(at(4, "r1.env", "format"), None);
    }

    #[test]
    fn a_setting_that_a_function_computes_is_not_at_an_exact_line() {
        let script = "local function fast(t) t.lr = 1 return t end\nlocal grpo = r1.grpo\n\
                      local options = {}\nfor k, v in pairs(more) do options[k] = v end\n\
                      return r1.recipe {\n trainer = grpo(fast {\n lr = 2 }), env = r1.env(options) }";
        let map = map(script);
        located(map.setting("main.lua", "trainer.lr"), "main.lua:7", false);
        located(map.argument("main.lua", 6, "grpo", "steps"), "main.lua:6", false);
        located(map.argument("main.lua", 7, "r1.env", "format"), "main.lua:7", false);
        let script = "local grpo = r1.grpo\nreturn r1.recipe {\n trainer = grpo {\n lr = 2 } }";
        holds(script, "trainer.lr", 4);
    }

    #[test]
    fn deep_nesting_does_not_end_the_process() {
        let deep = format!("return {}{}", "{a=".repeat(900), "}".repeat(900).replace("}}", "} }"));
        let _ = map(&deep);
        let key = vec!["a"; 20].join(".");
        assert!(map(&format!("return {}1{}", "{a=".repeat(190), "}".repeat(190))).setting("main.lua", &key).is_some());
    }
}
