//! A condition on rows of columns as a Luau expression: `reward < 0 and steps > 3`.
//!
//! The names that it uses decide which columns are read. It is compiled to a loop over the rows of
//! a file, so that a row costs no call of the host. Numbers that are not stored are NaN, of which
//! no comparison is true; texts are nil.

use std::collections::BTreeSet;

use full_moon::LuaVersion;
use full_moon::ast::{GenericFor, LastStmt, LocalAssignment, NumericFor, Parameter, Prefix, Var};
use full_moon::tokenizer::TokenReference;
use full_moon::visitors::Visitor;
use mlua::serde::SerializeOptions;
use mlua::{Function, IntoLua, Lua, LuaSerdeExt, MultiValue, StdLib, Value, VmState};
use serde_json::Value as Json;

use crate::error::{Error, Kind, Result, suggest};
use crate::store::ColumnValues;

/// Bytes that the values of a file and the expression may take.
const MEMORY: usize = 1 << 30;

/// A compiled condition.
pub struct Condition {
    lua: Lua,
    select: Function,
    text: String,
    columns: Vec<&'static str>,
    stops: fn() -> bool,
}

impl Condition {
    /// Compiles an expression over `columns`. It is stopped when `stops` returns true.
    ///
    /// # Errors
    /// [`Kind::Usage`] for what is not one expression, and for the name of no column, with the
    /// nearest ones.
    pub fn new(text: &str, columns: &[&'static str], stops: fn() -> bool) -> Result<Self> {
        let internal = |error: mlua::Error| Error::new(Kind::Internal, format!("can't start a Lua VM: {error}"));
        let libraries = StdLib::MATH | StdLib::TABLE | StdLib::STRING | StdLib::UTF8 | StdLib::BIT | StdLib::BUFFER;
        let lua = Lua::new_with(libraries, mlua::LuaOptions::default()).map_err(internal)?;
        lua.sandbox(true).map_err(internal)?;
        lua.set_memory_limit(MEMORY).map_err(internal)?;
        lua.set_interrupt(move |_| if stops() { Err(mlua::Error::runtime("stopped")) } else { Ok(VmState::Continue) });
        let returned = format!("return {text}\n");
        if let Err(error) = lua.load(&returned).set_name("=").into_function() {
            return Err(refused(text, &reason(&error)));
        }
        let mut used = BTreeSet::new();
        for name in free_names(&returned).ok_or_else(|| refused(text, "it is not one expression"))? {
            if let Some(column) = columns.iter().find(|column| **column == name) {
                used.insert(*column);
            } else if !lua.globals().contains_key(name.as_str()).map_err(internal)? {
                return Err(refused(text, &format!("there is no column `{name}`"))
                    .hint(suggest(&name, columns.iter().copied())));
            }
        }
        let columns: Vec<&str> = used.into_iter().collect();
        let select = lua.load(source(text, &columns)).set_name("=").into_function();
        let select = select.map_err(|error| refused(text, &reason(&error)))?;
        Ok(Self { lua, select, text: text.to_owned(), columns, stops })
    }

    /// The columns that it uses.
    pub fn columns(&self) -> &[&'static str] {
        &self.columns
    }

    /// Whether it holds, for each of `rows` rows. `values` has the values of its columns.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an expression that fails.
    pub fn select(&self, values: &[ColumnValues], rows: usize) -> Result<Vec<bool>> {
        let at = self.lua.create_buffer([0_u8; 8]).map_err(|error| self.failed(&error, values, 0))?;
        let run = || {
            let holds = self.lua.create_buffer_with_capacity(rows)?;
            let columns = values.iter().map(|values| self.to_lua(values));
            let fixed = [rows.into_lua(&self.lua), Ok(Value::Buffer(at.clone())), Ok(Value::Buffer(holds.clone()))];
            let arguments: MultiValue = fixed.into_iter().chain(columns).collect::<mlua::Result<_>>()?;
            self.select.call::<()>(arguments)?;
            Ok(holds.to_vec().into_iter().map(|byte| byte != 0).collect())
        };
        run().map_err(|error: mlua::Error| self.failed(&error, values, f64::from_le_bytes(at.read_bytes(0)) as usize))
    }

    /// Numbers as a buffer of doubles, texts and data as a list.
    fn to_lua(&self, values: &ColumnValues) -> mlua::Result<Value> {
        let list = |items: &[Option<String>], item: &dyn Fn(&str) -> mlua::Result<Value>| {
            let list = self.lua.create_table_with_capacity(items.len(), 0)?;
            for (text, number) in items.iter().zip(1_usize..) {
                if let Some(text) = text {
                    list.raw_set(number, item(text)?)?;
                }
            }
            Ok(Value::Table(list))
        };
        match values {
            ColumnValues::Numbers(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                self.lua.create_buffer(bytes).map(Value::Buffer)
            }
            ColumnValues::Texts(texts) => list(texts, &|text| text.into_lua(&self.lua)),
            ColumnValues::Json(texts) => {
                let options = SerializeOptions::new().set_array_metatable(false).serialize_unit_to_null(false);
                list(texts, &|text| {
                    let json: Json = serde_json::from_str(text).unwrap_or_default();
                    self.lua.to_value_with(&json, options)
                })
            }
        }
    }

    /// The error of an expression that failed at a row.
    fn failed(&self, error: &mlua::Error, values: &[ColumnValues], row: usize) -> Error {
        if (self.stops)() {
            return Error::new(Kind::Interrupted, "stopped");
        }
        let error = refused(&self.text, &format!("{}, at trajectory {} of the file", reason(error), row + 1));
        if values.iter().any(|column| column.json(row).is_null()) {
            return error.hint("a value that is not stored is nil, as in `error and error:find(\"timeout\")`");
        }
        error
    }
}

fn refused(text: &str, why: &str) -> Error {
    Error::new(Kind::Usage, format!("the condition `{text}` is refused: {why}"))
}

/// The message of an error in the chunk without its position.
fn reason(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::SyntaxError { message, .. } | mlua::Error::RuntimeError(message) => message.clone(),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    // `:1: Expected …`
    line.trim_start_matches(|c: char| c == ':' || c == ' ' || c.is_ascii_digit()).to_owned()
}

/// The loop. Its own names begin with `__`, so that an expression does not read them by mistake.
fn source(text: &str, columns: &[&str]) -> String {
    let lists = (0..columns.len()).map(|index| format!(", __{index}")).collect::<Vec<_>>().concat();
    // Either kind of list, decided once for all rows.
    let readers = (0..columns.len()).map(|index| format!("local __is{index} = type(__{index}) == \"buffer\"\n"));
    let readers = readers.collect::<Vec<_>>().concat();
    let value = |(index, name): (usize, &&str)| {
        format!("local {name} = if __is{index} then __number(__{index}, __row * 8) else __{index}[__row + 1]\n")
    };
    let values: String = columns.iter().enumerate().map(value).collect();
    format!(
        "local __rows, __at, __holds{lists} = ...\n\
         local __number, __writef64, __writeu8 = buffer.readf64, buffer.writef64, buffer.writeu8\n{readers}\
         for __row = 0, __rows - 1 do\n__writef64(__at, 0, __row)\n{values}\
         if (\n{text}\n) then __writeu8(__holds, __row, 1) end\nend\n"
    )
}

/// The names that an expression uses and does not define, from `return EXPRESSION`; `None` if it is
/// not one expression.
fn free_names(returned: &str) -> Option<BTreeSet<String>> {
    // The parser is recursive.
    let parsed = std::thread::scope(|scope| {
        let parse = || {
            let ast = full_moon::parse_fallible(returned, LuaVersion::luau()).into_result().ok()?;
            let Some(LastStmt::Return(last)) = ast.nodes().last_stmt() else { return None };
            if last.returns().len() != 1 || ast.nodes().stmts().next().is_some() {
                return None;
            }
            let mut names = ExpressionNames::default();
            names.visit_ast(&ast);
            Some(names.used.difference(&names.bound).cloned().collect())
        };
        std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, parse).ok()?.join().ok()
    });
    parsed.flatten()
}

/// The names that an expression uses, and those that functions in it define.
#[derive(Default)]
struct ExpressionNames {
    used: BTreeSet<String>,
    bound: BTreeSet<String>,
}

impl ExpressionNames {
    fn bind<'a>(&mut self, names: impl IntoIterator<Item = &'a TokenReference>) {
        self.bound.extend(names.into_iter().map(text));
    }
}

fn text(name: &TokenReference) -> String {
    name.token().to_string()
}

impl Visitor for ExpressionNames {
    fn visit_var(&mut self, node: &Var) {
        if let Var::Name(name) = node {
            self.used.insert(text(name));
        }
    }

    fn visit_prefix(&mut self, node: &Prefix) {
        if let Prefix::Name(name) = node {
            self.used.insert(text(name));
        }
    }

    fn visit_parameter(&mut self, node: &Parameter) {
        if let Parameter::Name(name) = node {
            self.bind([name]);
        }
    }

    fn visit_local_assignment(&mut self, node: &LocalAssignment) {
        self.bind(node.names());
    }

    fn visit_generic_for(&mut self, node: &GenericFor) {
        self.bind(node.names());
    }

    fn visit_numeric_for(&mut self, node: &NumericFor) {
        self.bind([node.index_variable()]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COLUMNS: [&str; 5] = ["reward", "steps", "status", "messages", "error"];

    fn condition(text: &str) -> Result<Condition> {
        Condition::new(text, &COLUMNS, || false)
    }

    fn select(text: &str) -> Vec<bool> {
        let condition = condition(text).unwrap();
        let texts = |texts: [Option<&str>; 3]| texts.map(|text| text.map(str::to_owned)).to_vec();
        let values = condition.columns().iter().map(|name| match *name {
            "reward" => ColumnValues::Numbers(vec![-1.0, 2.0, f64::NAN]),
            "steps" => ColumnValues::Numbers(vec![5.0, 1.0, 7.0]),
            "status" => ColumnValues::Texts(texts([Some("truncated"), Some("terminated"), Some("env_error")])),
            "error" => ColumnValues::Texts(texts([None, None, Some("timeout of a tool")])),
            _ => ColumnValues::Json(texts([Some(r#"[{"content":"a"}]"#), Some("[]"), Some("null")])),
        });
        condition.select(&values.collect::<Vec<_>>(), 3).unwrap()
    }

    #[test]
    fn an_expression_selects_rows_of_its_columns() {
        assert_eq!(select("reward < 0 and steps > 3"), [true, false, false]);
        assert_eq!(select("status == \"terminated\" or reward ~= reward"), [false, true, true]);
        assert_eq!(select("messages and #messages > 0 and messages[1].content == 'a'"), [true, false, false]);
        assert_eq!(select("error and error:find('timeout') -- a comment"), [false, false, true]);
        assert_eq!(select("math.abs(reward) >= 1"), [true, true, false]);
        assert_eq!(select("true"), [true; 3]);
        assert_eq!(
            select("(function(x) local y = x for i = 1, 2 do y += i end return y > 9 end)(steps)"),
            [false, false, true]
        );
    }

    #[test]
    fn the_columns_of_an_expression_are_those_that_it_names() {
        let columns = |text: &str| condition(text).unwrap().columns().to_vec();
        assert_eq!(columns("reward < 0 and steps > 3"), ["reward", "steps"]);
        assert_eq!(columns("messages[1].status == `{error}` or ({ reward = 1 }).steps"), ["error", "messages"]);
        assert!(columns("(function(reward) return reward end)(1)").is_empty());
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let why = |text: &str| condition(text).err().unwrap().to_string();
        assert!(
            why("rewrad < 0").contains("no column `rewrad`\n  hint: did you mean `reward`?"),
            "{}",
            why("rewrad < 0")
        );
        assert!(why("reward <").contains("refused: "), "{}", why("reward <"));
        assert!(why("reward, steps").contains("not one expression"));
        assert!(why("1 end return 2").contains("refused"), "{}", why("1 end return 2"));
        assert!(why("os.exit()").contains("no column `os`"));
        let failing = condition("error:find('x')").unwrap();
        let none = ColumnValues::Texts(vec![Some("x".to_owned()), None]);
        let error = failing.select(&[none], 2).unwrap_err().to_string();
        assert!(error.contains("nil") && error.contains("at trajectory 2") && error.contains("hint"), "{error}");
    }

    #[test]
    fn an_expression_without_end_is_stopped() {
        let condition = Condition::new("(function() while true do end end)()", &COLUMNS, || true).unwrap();
        assert_eq!(condition.select(&[], 1).unwrap_err().kind, Kind::Interrupted);
    }
}
