//! Conversion between Lua values and plain data: JSON, snapshots, short forms for messages.
//!
//! Lua has one table type and one number type. From Lua: a table whose keys are exactly 1..n is a
//! list, one whose keys are strings is an object, an empty one is an object (unless it was an empty
//! list in JSON); whole numbers up to 2^53 are integers. To Lua: `null` in an object is left out,
//! in a list it is `r1.json.null`, and a whole number above 2^53 is text. [`super::origin`] keeps
//! the lost details and the order of keys for the conversion back.

use mlua::{Lua, Table, Value};
use serde_json::{Map, Number, Value as Json};

use super::limits;
use super::not_plain::{NotPlain, NotPlainReason};
use super::origin::{long_digits, note_list, note_object, note_of, restore_list, restore_object};
use crate::error::clip;
use crate::json::{self, Odd, TAG};
use crate::script::runtime::show::{ShowLimits, Shown};

/// Maximum nesting of tables; also ends cycles.
const DEPTH: usize = 100;

/// Maximum number of values and bytes of text in one conversion. A table that occurs twice counts
/// twice: a few tables that contain each other can expand to more than any memory.
const MOST: ConversionBudget = ConversionBudget { values: 1 << 22, bytes: 256 << 20 };

/// Values of a table between two checks of the call's CPU time.
const STEP: usize = 1 << 10;

/// Limits of [`show`].
const SHOWN: ConversionBudget = ConversionBudget { values: 1 << 10, bytes: 1 << 16 };

/// Remaining budget of a conversion.
#[derive(Clone, Copy)]
struct ConversionBudget {
    values: usize,
    bytes: usize,
}

impl ConversionBudget {
    /// Takes values and bytes of text; false if the budget is used up.
    fn take(&mut self, values: usize, bytes: usize) -> bool {
        match (self.values.checked_sub(values), self.bytes.checked_sub(bytes)) {
            (Some(values), Some(bytes)) => {
                *self = Self { values, bytes };
                true
            }
            _ => false,
        }
    }
}

/// Handling of values that JSON cannot represent: other keys, strings that are not UTF-8, NaN,
/// infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NonJson {
    /// Return an error.
    Refuse,
    /// Store strings that are not UTF-8 under [`TAG`], such as images; return an error for others.
    TagBytes,
    /// Store them under [`TAG`]; [`from_snapshot`] reads them.
    Tag,
}

/// A Lua value as JSON; `at` is its name in messages (`state`, `policy`).
///
/// # Errors
/// The first part of the value that is not plain data.
pub(crate) fn to_json(value: &Value, at: &str, odd: NonJson) -> Result<Json, NotPlain> {
    write_json(value, odd, 0, &mut MOST.clone()).map_err(|error| error.inside(at))
}

/// Errors have the path inside `value`: paths are made of the keys when an error is returned, since
/// every state and observation is converted.
fn write_json(value: &Value, odd: NonJson, depth: usize, budget: &mut ConversionBudget) -> Result<Json, NotPlain> {
    // Each pair of a table takes two values. If the caller's turn has ended, the message is not
    // seen.
    if !budget.take(1, 0) || ((budget.values / 2).is_multiple_of(STEP) && limits::is_late()) {
        return Err(NotPlain::new(NotPlainReason::TooMuch));
    }
    match value {
        Value::Nil => Ok(Json::Null),
        Value::Boolean(truth) => Ok(Json::Bool(*truth)),
        Value::Integer(whole) => Ok(Json::Number((*whole).into())),
        Value::Number(number) => match Number::from_f64(*number) {
            Some(number) => Ok(Json::Number(number)),
            None if odd == NonJson::Tag => Ok(json::of_float(*number)),
            None => Err(NotPlain::new(NotPlainReason::Number(show(value)))),
        },
        Value::String(text) => {
            let bytes = text.as_bytes();
            if !budget.take(0, bytes.len()) {
                return Err(NotPlain::new(NotPlainReason::TooMuch));
            }
            match std::str::from_utf8(&bytes) {
                Ok(text) => Ok(Json::String(text.to_owned())),
                Err(_) if odd != NonJson::Refuse => Ok(json::of_bytes(&bytes)),
                Err(_) => Err(NotPlain::new(NotPlainReason::NotUtf8)),
            }
        }
        Value::Table(table) => write_table(table, odd, depth, budget),
        value if value.is_null() => Ok(Json::Null),
        other => Err(NotPlain::new(NotPlainReason::Type(other.type_name()))),
    }
}

fn write_table(table: &Table, odd: NonJson, depth: usize, budget: &mut ConversionBudget) -> Result<Json, NotPlain> {
    if depth == DEPTH {
        return Err(NotPlain::new(NotPlainReason::TooDeep));
    }
    let meta = table.metatable();
    let length = table.raw_len();
    let is_marked = |meta: &Table| meta.raw_get::<bool>("__r1_list").unwrap_or(false);
    let mut empty_list = length == 0 && meta.as_ref().is_some_and(is_marked);
    let note = meta.as_ref().and_then(note_of);
    if meta.is_some() && !empty_list && note.is_none() {
        return Err(NotPlain::new(NotPlainReason::Metatable));
    }
    let (mut list, mut fields, mut others) = (Vec::with_capacity(length), Vec::new(), Vec::new());
    each_pair(table, |key, item| {
        let text = if let Value::String(name) = &key { Some(name.as_bytes()) } else { None };
        if !budget.take(1, text.as_ref().map_or(0, |text| text.len())) {
            return Err(NotPlain::new(NotPlainReason::TooMuch));
        }
        let json = write_json(&item, odd, depth + 1, budget).map_err(|error| error.inside(&step_to(&key)))?;
        match (&key, text.as_deref().and_then(|text| std::str::from_utf8(text).ok())) {
            (Value::Integer(index), _) if *index as usize == list.len() + 1 => list.push(json),
            (_, Some(name)) if others.is_empty() => fields.push((name.to_owned(), json)),
            _ => others.push((key.clone(), json)),
        }
        Ok(())
    })
    .map_err(|stopped| match stopped {
        Stopped::By(error) => error,
        Stopped::Machine(error) => NotPlain::new(NotPlainReason::Machine(error)),
    })?;
    // A table has no order; sorting gives the same JSON for the same data every time.
    fields.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut object = Map::from_iter(fields);
    // A snapshot keeps notes apart.
    match note.filter(|_| odd != NonJson::Tag) {
        Some(Json::Array(note)) if list.is_empty() && others.is_empty() => {
            object = restore_object(&note, object);
        }
        Some(Json::Object(note)) if object.is_empty() => {
            restore_list(&note, &mut list);
            empty_list = true;
        }
        _ => {}
    }
    let is_mixed = !list.is_empty() && !object.is_empty();
    // Only a snapshot has values under this key.
    let is_mark = odd == NonJson::Tag && object.contains_key(TAG);
    if !is_mixed && others.is_empty() && !is_mark {
        return Ok(if object.is_empty() && (empty_list || !list.is_empty()) {
            Json::Array(list)
        } else {
            Json::Object(object)
        });
    }
    if odd != NonJson::Tag {
        let has_no_others = list.is_empty() && object.is_empty();
        return Err(NotPlain::new(if has_no_others { NotPlainReason::Keys } else { NotPlainReason::Mixed }));
    }
    let pair = |(key, item): (Json, Json)| Json::Array(vec![key, item]);
    let mut pairs: Vec<Json> = (1_usize..).zip(list).map(|(index, item)| pair((index.into(), item))).collect();
    pairs.extend(object.into_iter().map(|(name, item)| pair((name.into(), item))));
    let mut numbered = Vec::new();
    for (key, item) in others {
        if matches!(key, Value::Table(_)) {
            return Err(NotPlain::new(NotPlainReason::TableKey));
        }
        numbered.push((write_json(&key, odd, depth + 1, budget)?, item));
    }
    numbered.sort_by(|(a, _), (b, _)| {
        let number = |key: &Json| key.as_f64().unwrap_or(f64::INFINITY);
        number(a).total_cmp(&number(b)).then_with(|| a.to_string().cmp(&b.to_string()))
    });
    pairs.extend(numbered.into_iter().map(pair));
    Ok(Json::Object(Map::from_iter([(TAG.to_owned(), "pairs".into()), ("value".to_owned(), pairs.into())])))
}

/// The part of a path that stands for a key.
fn step_to(key: &Value) -> String {
    match key {
        Value::Integer(index) => format!("[{index}]"),
        Value::String(name) => format!(".{}", beginning(name, 100)),
        other => format!("[{}]", show(other)),
    }
}

/// The reason why a walk through a table ended early.
pub(crate) enum Stopped<E> {
    /// The caller's own error.
    By(E),
    Machine(mlua::Error),
}

/// Calls `f` for each pair of a table, up to its first error.
pub(crate) fn each_pair<E>(table: &Table, mut f: impl FnMut(Value, Value) -> Result<(), E>) -> Result<(), Stopped<E>> {
    let mut failure = None;
    let walked = table.for_each(|key: Value, value: Value| {
        f(key, value).map_err(|error| {
            failure = Some(error);
            mlua::Error::runtime("stopped")
        })
    });
    match (failure, walked) {
        (Some(error), _) => Err(Stopped::By(error)),
        (None, Err(error)) => Err(Stopped::Machine(error)),
        (None, Ok(())) => Ok(()),
    }
}

/// JSON as Lua data. [`to_json`] returns the same JSON.
pub(crate) fn from_json(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    read_json(lua, json, JsonSource::Json, &mut 0)
}

/// A row of a dataset as Lua data, with the values that JSON does not have.
pub(crate) fn from_row(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    read_json(lua, json, JsonSource::Row, &mut 0)
}

/// The inverse of [`to_json`] with [`NonJson::Tag`].
pub(crate) fn from_snapshot(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    read_json(lua, json, JsonSource::Snapshot, &mut 0)
}

/// Results of the host as Lua data, without the note of the original JSON.
pub(crate) fn from_answer(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    read_json(lua, json, JsonSource::Host, &mut 0)
}

#[derive(Clone, Copy, PartialEq)]
enum JsonSource {
    Json,
    Row,
    /// Its notes are kept apart.
    Snapshot,
    /// A result of the host, which is not converted back.
    Host,
}

fn read_json(lua: &Lua, json: &Json, source: JsonSource, count: &mut usize) -> mlua::Result<Value> {
    let noted = matches!(source, JsonSource::Json | JsonSource::Row);
    *count += 1;
    if count.is_multiple_of(STEP) && limits::is_late() {
        // The caller's turn has ended: its error is the limit's.
        return Err(mlua::Error::runtime("the CPU limit was reached"));
    }
    match json {
        Json::Null => Ok(Value::Nil),
        Json::Bool(truth) => Ok(Value::Boolean(*truth)),
        Json::Number(number) => match long_digits(json).filter(|_| source != JsonSource::Host) {
            Some(digits) => Ok(Value::String(lua.create_string(digits)?)),
            None => Ok(number_value(number)),
        },
        Json::String(text) => Ok(Value::String(lua.create_string(text)?)),
        Json::Array(items) => {
            let list = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                let value = read_json(lua, item, source, count)?;
                list.raw_push(if value.is_nil() { Value::NULL } else { value })?;
            }
            if items.is_empty() {
                list.set_metatable(Some(list_metatable(lua)?))?;
            } else if noted {
                note_list(lua, &list, items)?;
            }
            Ok(Value::Table(list))
        }
        Json::Object(fields) => {
            let is_snapshot = source == JsonSource::Snapshot;
            match Odd::of(json).filter(|_| is_snapshot || source == JsonSource::Row) {
                Some(Odd::Bytes(bytes)) => return Ok(Value::String(lua.create_string(bytes)?)),
                Some(Odd::Number(number)) => return Ok(Value::Number(number)),
                None if is_snapshot && fields.contains_key(TAG) => return read_tagged(lua, fields, count),
                None => {}
            }
            let object = lua.create_table_with_capacity(0, fields.len())?;
            for (name, item) in fields {
                let value = read_json(lua, item, source, count)?;
                object.raw_set(name.as_str(), if is_snapshot && value.is_nil() { Value::NULL } else { value })?;
            }
            if noted {
                note_object(lua, &object, fields)?;
            }
            Ok(Value::Table(object))
        }
    }
}

/// A table of a snapshot whose keys JSON does not have, or bytes of a snapshot of earlier versions.
fn read_tagged(lua: &Lua, fields: &Map<String, Json>, count: &mut usize) -> mlua::Result<Value> {
    let bad = || mlua::Error::runtime("not a snapshot of a state");
    let items = fields.get("value").and_then(Json::as_array).ok_or_else(bad)?;
    match fields.get(TAG).and_then(Json::as_str) {
        Some("bytes") => {
            let bytes: Vec<u8> = items.iter().filter_map(Json::as_u64).map(|byte| byte as u8).collect();
            lua.create_string(bytes).map(Value::String)
        }
        Some("pairs") => {
            let table = lua.create_table_with_capacity(0, items.len())?;
            for pair in items {
                let mut read = |at| read_json(lua, pair.get(at).ok_or_else(bad)?, JsonSource::Snapshot, count);
                table.raw_set(read(0)?, read(1)?)?;
            }
            Ok(Value::Table(table))
        }
        _ => Err(bad()),
    }
}

/// Metatable that marks an empty list, so that it is written as `[]`.
pub(crate) fn list_metatable(lua: &Lua) -> mlua::Result<Table> {
    const KEY: &str = "r1.empty_list";
    if let Ok(Some(meta)) = lua.named_registry_value::<Option<Table>>(KEY) {
        return Ok(meta);
    }
    let meta = lua.create_table()?;
    meta.raw_set("__r1_list", true)?;
    meta.set_readonly(true);
    lua.set_named_registry_value(KEY, &meta)?;
    Ok(meta)
}

fn number_value(number: &Number) -> Value {
    match number.as_i64() {
        Some(whole) => Value::Integer(whole),
        None => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// A deep copy; it shares no table with the original.
pub(crate) fn deep_copy(lua: &Lua, table: &Table) -> mlua::Result<Table> {
    copy(lua, table, 0, &mut MOST.clone())
}

fn copy(lua: &Lua, table: &Table, depth: usize, budget: &mut ConversionBudget) -> mlua::Result<Table> {
    if depth == DEPTH {
        return Err(mlua::Error::runtime("the state is nested too deeply, or contains itself"));
    }
    let copied = lua.create_table_with_capacity(table.raw_len(), 0)?;
    table.for_each(|key: Value, item: Value| {
        if !budget.take(1, 0) {
            return Err(mlua::Error::runtime("the state holds too much to be copied"));
        }
        match item {
            Value::Table(inner) => copied.raw_set(key, copy(lua, &inner, depth + 1, budget)?),
            item => copied.raw_set(key, item),
        }
    })?;
    copied.set_metatable(table.metatable())?;
    Ok(copied)
}

/// A Lua number as f64.
pub(crate) fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// A value on one short line, for messages.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        value if value.is_null() => "null".to_owned(),
        Value::Number(number) if number.is_nan() => "NaN".to_owned(),
        Value::Number(number) if number.is_infinite() => "infinity".to_owned(),
        Value::String(text) => format!("\"{}\"", clip(&beginning(text, 240), 60)),
        Value::Boolean(_) | Value::Integer(_) | Value::Number(_) => value.to_string().unwrap_or_default(),
        Value::Table(_) => write_json(value, NonJson::Refuse, 0, &mut SHOWN.clone())
            .map_or_else(|_| "a table".to_owned(), |json| clip(&json.to_string(), 200)),
        other => format!("a {}", other.type_name()),
    }
}

/// Limits of [`printed`].
const PRINTED: ConversionBudget = ConversionBudget { values: 1 << 16, bytes: 1 << 20 };

/// Line width above which [`printed`] breaks tables.
const COLUMNS: usize = 100;

/// A table as `print` shows it: JSON, indented where one line would be too long; values that JSON
/// cannot represent are shown as in the REPL.
pub(crate) fn printed(value: &Value) -> String {
    match write_json(value, NonJson::Refuse, 0, &mut PRINTED.clone()) {
        Ok(json) => {
            let line = json.to_string();
            if line.chars().nth(COLUMNS).is_none() {
                return line;
            }
            serde_json::to_string_pretty(&json).unwrap_or(line)
        }
        Err(_) => Shown::of(value, &ShowLimits::default()).to_string(),
    }
}

/// A table on one line of a log.
pub(crate) fn logged(value: &Value) -> String {
    write_json(value, NonJson::Refuse, 0, &mut SHOWN.clone()).map_or_else(
        |_| Shown::of(value, &ShowLimits { width: usize::MAX, ..ShowLimits::default() }).to_string(),
        |json| json.to_string(),
    )
}

/// The first `bytes` bytes of a text, for messages.
pub(crate) fn beginning(text: &mlua::LuaString, bytes: usize) -> String {
    let all = text.as_bytes();
    String::from_utf8_lossy(&all[..all.len().min(bytes)]).into_owned()
}

/// The type of a value with its article, for messages about type errors.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Nil | Value::Boolean(_) => show(value),
        Value::Integer(_) | Value::Number(_) => format!("the number {}", show(value)),
        Value::String(_) => format!("the text {}", show(value)),
        Value::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_name()),
    }
}
