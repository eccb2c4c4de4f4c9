//! `r1.format { … }`: a tool-call format defined by the recipe, and validation of its functions'
//! results.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, LuaString, Table, Value, WeakLua};
use serde_json::{Map, Value as Json, json};

use super::args::{FromField, TableFields, fail_with, refused};
use super::argument::{argument, host_object, items};
use super::arguments::{Arguments, arguments};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, ToolCall};
use crate::script::runtime::bind::in_lua;
use crate::script::runtime::convert::{NonJson, from_json, kind, to_json};
use crate::script::runtime::definitions::{FormatHandle, RecipeFormat};
use crate::script::runtime::failure::describe;
use crate::script::runtime::host::{Call, EntryPoint, Host};
use crate::script::runtime::place::at_definition;
use crate::script::runtime::vm::Vm;
use crate::text::{AUTO, Format, OwnFormat, OwnOptions, ReplyError};

const NAME: &str = "r1.format";
/// The name of a format without `name`.
const UNNAMED: &str = "custom";

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    let check: Function = in_lua(lua, include_str!("../../../lua/format.lua"), ())?;
    let make = move |lua: &Lua, value: Value| {
        let format = Rc::new(format(lua, &value, &check)?);
        // A format made later, by a function, belongs to no recipe.
        if host.current().entry == EntryPoint::Load {
            let mut formats = host.formats.borrow_mut();
            if formats.iter().any(|listed| listed.options.name == format.options.name) {
                let why = format!("two formats are called `{}`", format.options.name);
                let error = Error::new(Kind::Script, why).about_setting("name").hint("give each a `name` of its own");
                return Err(fail_with(lua, NAME, error));
            }
            formats.push(format.clone());
        }
        Ok(FormatHandle(format))
    };
    r1.raw_set("format", lua.create_function(make)?)
}

arguments! {
    /// Arguments of `r1.format`.
    pub(super) struct FormatArguments {
        name: String = UNNAMED.to_owned();
        parse: Function, needs("a function that reads the calls of a reply");
        write: Option<Function>;
        result: Option<Function>;
        schema: Option<Function>;
        starts: NonEmptyTexts = NonEmptyTexts::default();
        stop: NonEmptyTexts = NonEmptyTexts::default();
        same_turn: bool = false;
        thinking: bool = true;
    }
}

/// A list of texts that are not empty.
#[derive(Default)]
pub(super) struct NonEmptyTexts(Vec<String>);

argument!(NonEmptyTexts, "a list of texts that are not empty", |value| items(value.as_table()?)
    .filter(|texts: &Vec<String>| texts.iter().all(|text| !text.is_empty()))
    .map(Self));

/// The field `format` of a function: a name, or a result of `r1.format`.
pub(super) enum FormatArgument {
    Named(String),
    Own(Rc<RecipeFormat>),
}

impl FromField for FormatArgument {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        match value {
            Value::String(name) => Ok(Self::Named(name.to_string_lossy())),
            Value::Function(_) => Err(fields.misplaced_function(name)),
            other => host_object(other)
                .map(|FormatHandle(format)| Self::Own(format))
                .ok_or_else(|| fields.refuse(name, "a name, or a result of r1.format", other)),
        }
    }
}

fn format(lua: &Lua, value: &Value, check: &Function) -> mlua::Result<RecipeFormat> {
    let arguments = FormatArguments::read(lua, NAME, value)?;
    let FormatArguments { name, parse, write, result, schema, starts, stop, same_turn, thinking } = arguments;
    let refuse = |field: &str, why: String| refused(lua, NAME, field, why);
    if name == AUTO || Format::from_name(&name).is_ok() {
        return Err(refuse("name", format!("`name` is \"{name}\", the name of a built-in format")));
    }
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(refuse("name", "`name` must be a word".to_owned()));
    }
    if same_turn && stop.0.is_empty() {
        let why = "`same_turn` needs `stop`: the strings after which a response waits for tool results";
        return Err(refuse("same_turn", why.to_owned()));
    }
    let options = OwnOptions {
        name,
        version: String::new(),
        starts: starts.0,
        stop: stop.0,
        same_turn,
        thinking,
        writes: write.is_some(),
    };
    Ok(RecipeFormat { options, parse, check: check.clone(), write, result, schema })
}

/// A format that can be called: in the virtual machine of its functions.
pub(crate) struct Callable<'a> {
    pub(crate) format: &'a RecipeFormat,
    pub(crate) lua: &'a Lua,
    /// The machine, if the call has its own limits; `None` for the limits of the running call.
    pub(crate) vm: Option<&'a Vm>,
}

impl Callable<'_> {
    fn call<R: FromLuaMulti>(&self, name: &str, function: &Function, arguments: impl IntoLuaMulti) -> Result<R> {
        let called = match self.vm {
            Some(vm) => {
                let call = Call::new(EntryPoint::Format, (0, 0), &vm.limits);
                vm.call_now(&call, function, arguments).map_err(|failure| failure.error)
            }
            None => function.call(arguments).map_err(|error| describe(&error).error),
        };
        called.map_err(|error| Error { message: format!("{}: {}", self.named(name), error.message), ..error })
    }

    /// `parse` of the format `search`
    fn named(&self, name: &str) -> String {
        format!("`{name}` of the format `{}`", self.format.options.name)
    }

    fn broken(&self, name: &str, function: &Function, why: &str) -> Error {
        at_definition(function, format!("{} returned {why}", self.named(name)))
    }

    fn lua_value(&self, json: &Json) -> Result<Value> {
        from_json(self.lua, json).map_err(|error| describe(&error).error)
    }

    /// Calls a function that returns text.
    fn text(&self, name: &str, function: &Function, argument: &Json) -> Result<String> {
        match self.call(name, function, self.lua_value(argument)?)? {
            Value::String(text) => Ok(text.to_string_lossy()),
            other => Err(self.broken(name, function, &format!("{}; it must return text", kind(&other)))),
        }
    }
}

impl OwnFormat for Callable<'_> {
    fn options(&self) -> &OwnOptions {
        &self.format.options
    }

    fn parse(&self, text: &str, tools: &[Json]) -> Result<Vec<Parsed>> {
        let parse = &self.format.parse;
        let text = Value::String(self.lua.create_string(text).map_err(|error| describe(&error).error)?);
        let arguments = (parse, text, self.lua_value(&json!(tools))?);
        let (calls, why): (Option<Table>, Option<LuaString>) = self.call("parse", &self.format.check, arguments)?;
        let broken = |why: &str| self.broken("parse", parse, why);
        let calls = calls.ok_or_else(|| broken(&why.map(|why| why.to_string_lossy()).unwrap_or_default()))?;
        let read = |(index, call): (usize, mlua::Result<Table>)| {
            read_call(&call.map_err(|error| describe(&error).error)?, index, &broken)
        };
        calls.sequence_values().enumerate().map(read).collect()
    }

    fn write(&self, calls: &[ToolCall]) -> Result<String> {
        let Some(write) = &self.format.write else {
            let why =
                format!("the format `{}` has no `write`: calls can't be written as text", self.format.options.name);
            return Err(at_definition(&self.format.parse, why)
                .hint("add write = function(calls) … end, or give messages whose text has their calls"));
        };
        let call = |call: &ToolCall| json!({ "id": call.id, "name": call.name, "arguments": call.arguments });
        self.text("write", write, &calls.iter().map(call).collect())
    }

    fn results(&self, results: &[Message]) -> Result<Option<String>> {
        let Some(function) = &self.format.result else { return Ok(None) };
        let result = |message: &Message| {
            let mut result = json!({ "content": message.content.text() });
            for (name, value) in [("name", &message.name), ("call_id", &message.tool_call_id)] {
                if let Some(value) = value {
                    result[name] = value.as_str().into();
                }
            }
            result
        };
        self.text("result", function, &results.iter().map(result).collect()).map(Some)
    }

    fn describe(&self, tools: &[Json]) -> Result<Option<String>> {
        let Some(function) = &self.format.schema else { return Ok(None) };
        self.text("schema", function, &json!(tools)).map(Some)
    }
}

/// A format of the running virtual machine for a renderer of that machine. Renderers may be shared
/// between threads and functions of Luau may not, so the renderer has a number, which is an index
/// in its own thread.
pub(crate) struct LocalFormat {
    options: OwnOptions,
    number: u64,
}

thread_local! {
    static LENT: RefCell<HashMap<u64, (WeakLua, Weak<RecipeFormat>)>> = RefCell::default();
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

impl LocalFormat {
    /// The format, while `format` is referenced.
    pub(crate) fn new(lua: &Lua, format: &Rc<RecipeFormat>) -> Self {
        let number = NUMBER.get();
        NUMBER.set(number + 1);
        LENT.with_borrow_mut(|lent| lent.insert(number, (lua.weak(), Rc::downgrade(format))));
        Self { options: format.options.clone(), number }
    }
}

impl Drop for LocalFormat {
    fn drop(&mut self) {
        // The entries of an ending thread are already dropped.
        let _ = LENT.try_with(|lent| lent.borrow_mut().remove(&self.number));
    }
}

impl Stored for LocalFormat {
    fn options(&self) -> &OwnOptions {
        &self.options
    }

    fn with<T>(&self, f: impl FnOnce(&Callable<'_>) -> Result<T>) -> Result<T> {
        let lent_format = LENT.with_borrow(|lent| {
            let (lua, format) = lent.get(&self.number)?;
            Some((lua.try_upgrade()?, format.upgrade()?))
        });
        let Some((lua, format)) = lent_format else {
            let why = format!("the virtual machine of the format `{}` is gone", self.options.name);
            return Err(Error::new(Kind::Internal, why));
        };
        f(&Callable { format: &format, lua: &lua, vm: None })
    }
}

/// A format whose functions are in a virtual machine that is looked up for each call.
pub(crate) trait Stored {
    fn options(&self) -> &OwnOptions;

    /// Calls `f` with the functions of the format.
    fn with<T>(&self, f: impl FnOnce(&Callable<'_>) -> Result<T>) -> Result<T>;
}

/// A stored format as one of a renderer.
pub(crate) struct FormatOfRecipe<F>(pub(crate) F);

impl<F: Stored + Send + Sync> OwnFormat for FormatOfRecipe<F> {
    fn options(&self) -> &OwnOptions {
        self.0.options()
    }

    fn parse(&self, text: &str, tools: &[Json]) -> Result<Vec<Parsed>> {
        self.0.with(|format| format.parse(text, tools))
    }

    fn write(&self, calls: &[ToolCall]) -> Result<String> {
        self.0.with(|format| format.write(calls))
    }

    fn results(&self, results: &[Message]) -> Result<Option<String>> {
        self.0.with(|format| format.results(results))
    }

    fn describe(&self, tools: &[Json]) -> Result<Option<String>> {
        self.0.with(|format| format.describe(tools))
    }
}

/// A call that `parse` returned, or why it could not be parsed.
type Parsed = Result<ToolCall, ReplyError>;

/// A call that `lua/format.lua` has checked. `broken` makes the error for invalid arguments.
fn read_call(item: &Table, index: usize, broken: &dyn Fn(&str) -> Error) -> Result<Parsed> {
    let lua_error = |error: mlua::Error| describe(&error).error;
    let text = |name: &str| item.raw_get(name).map(|text: Option<LuaString>| text.map(|text| text.to_string_lossy()));
    if let Some(error) = text("error").map_err(lua_error)? {
        return Ok(Err(ReplyError::Own(error)));
    }
    let id = text("id").map_err(lua_error)?;
    let name = text("name").map_err(lua_error)?.unwrap_or_default();
    let value: Value = item.raw_get("arguments").map_err(lua_error)?;
    let at = format!("calls[{}].arguments", index + 1);
    let arguments = match to_json(&value, &at, NonJson::Refuse).map_err(|not_plain| broken(&not_plain.to_string()))? {
        Json::Object(arguments) => arguments,
        Json::Null => Map::new(),
        Json::Array(empty) if empty.is_empty() => Map::new(),
        _ => return Err(broken(&format!("{at} = {}; it must be a table of named arguments", kind(&value)))),
    };
    Ok(Ok(ToolCall { id, name, arguments: Json::Object(arguments) }))
}
