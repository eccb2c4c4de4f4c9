//! The parts of JSON that are lost in a Luau table: nulls, the order of the keys, whole numbers
//! above 2^53 (text in Luau) and whole numbers that were written as floats (`3.0`). They are kept
//! in a metatable, the *note*, which [`super::convert::to_json`] applies, so that data that passes
//! through a script is unchanged.
//!
//! A note applies only to fields that the script did not change: a field that it set or removed is
//! converted as any other. A table that loses nothing has no note. The note of an object is the
//! list of its keys, with the value where Luau changes it (`["id", ["size", 9007199254740993]]`);
//! the note of a list is an object of such values by position (`{"2": 3.0}`).

use std::collections::HashSet;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json};

/// The field of a metatable that holds a note; lua/measure.lua uses the same name.
const NOTE: &str = "__r1_json";

/// Largest whole number up to which all are numbers of Luau.
const EXACT: u64 = 1 << 53;

/// The digits of a whole number that Luau's numbers, which are doubles, would round.
pub(crate) fn long_digits(json: &Json) -> Option<String> {
    let Json::Number(number) = json else { return None };
    let size = number.as_i64().map(i64::unsigned_abs).or_else(|| number.as_u64());
    size.filter(|size| *size > EXACT).map(|_| number.to_string())
}

fn is_changed(json: &Json) -> bool {
    match json {
        Json::Number(number) if number.is_f64() => number.as_f64().is_some_and(|float| float.fract() == 0.0),
        json => long_digits(json).is_some(),
    }
}

/// Whether a value is the noted one, unchanged by the script.
fn is_same(now: &Json, noted: &Json) -> bool {
    match now {
        Json::String(text) => long_digits(noted).is_some_and(|digits| digits == *text),
        Json::Number(number) => noted.is_f64() && number.as_f64() == noted.as_f64(),
        _ => false,
    }
}

/// Adds a note of the lost details to the table of an object.
pub(super) fn note_object(lua: &Lua, table: &Table, fields: &Map<String, Json>) -> mlua::Result<()> {
    let sorted = fields.keys().zip(fields.keys().skip(1)).all(|(a, b)| a < b);
    if sorted && !fields.values().any(|value| value.is_null() || is_changed(value)) {
        return Ok(());
    }
    let key = |(name, value): (&String, &Json)| match value {
        value if value.is_null() || is_changed(value) => Json::Array(vec![name.as_str().into(), value.clone()]),
        _ => name.as_str().into(),
    };
    mark(lua, table, &fields.iter().map(key).collect::<Json>().to_string())
}

/// Adds a note of the lost details to the table of a list.
pub(super) fn note_list(lua: &Lua, table: &Table, items: &[Json]) -> mlua::Result<()> {
    let changed = items.iter().enumerate().filter(|(_, item)| is_changed(item));
    let note: Map<String, Json> = changed.map(|(index, item)| ((index + 1).to_string(), item.clone())).collect();
    if note.is_empty() { Ok(()) } else { mark(lua, table, &Json::Object(note).to_string()) }
}

/// Adds a note to a table. Tables with equal notes share a metatable.
fn mark(lua: &Lua, table: &Table, note: &str) -> mlua::Result<()> {
    const KNOWN: &str = "r1.json_notes";
    let tables = if let Ok(Some(tables)) = lua.named_registry_value::<Option<Table>>(KNOWN) {
        tables
    } else {
        let tables = lua.create_table()?;
        let weak = lua.create_table()?;
        weak.raw_set("__mode", "v")?;
        tables.set_metatable(Some(weak))?;
        lua.set_named_registry_value(KNOWN, &tables)?;
        tables
    };
    let name = lua.create_string(note)?;
    let meta = if let Some(meta) = tables.raw_get::<Option<Table>>(&name)? {
        meta
    } else {
        let meta = lua.create_table()?;
        meta.raw_set(NOTE, &name)?;
        meta.set_readonly(true);
        tables.raw_set(&name, &meta)?;
        meta
    };
    table.set_metatable(Some(meta))
}

/// The note in a metatable, as text.
fn text_of(meta: &Table) -> Option<mlua::LuaString> {
    match meta.raw_get(NOTE) {
        Ok(Value::String(note)) => Some(note),
        _ => None,
    }
}

/// The note in the metatable of a table that was made from JSON and lost details.
pub(super) fn note_of(meta: &Table) -> Option<Json> {
    let note: Json = serde_json::from_slice(&text_of(meta)?.as_bytes()).ok()?;
    (note.is_array() || note.is_object()).then_some(note)
}

/// Whether a table has no metatable but a note.
pub(crate) fn is_plain(table: &Table) -> bool {
    table.metatable().is_none_or(|meta| text_of(&meta).is_some())
}

/// The object of a table with a note: lost entries are back at their place, new ones come
/// last.
pub(super) fn restore_object(note: &[Json], mut now: Map<String, Json>) -> Map<String, Json> {
    let mut object = Map::with_capacity(now.len());
    for key in note {
        let (name, noted) = match key {
            Json::String(name) => (name.as_str(), None),
            key => (key[0].as_str().unwrap_or_default(), key.get(1)),
        };
        match (now.swap_remove(name), noted) {
            (Some(value), Some(noted)) if is_same(&value, noted) => object.insert(name.to_owned(), noted.clone()),
            (Some(value), _) => object.insert(name.to_owned(), value),
            (None, Some(Json::Null)) => object.insert(name.to_owned(), Json::Null),
            (None, _) => None,
        };
    }
    now.sort_keys();
    object.append(&mut now);
    object
}

/// The list of a table with a note. Long whole numbers are recognised at other places of the list
/// too, since scripts sort and shift lists.
pub(super) fn restore_list(note: &Map<String, Json>, now: &mut [Json]) {
    let long: HashSet<String> = note.values().filter_map(long_digits).collect();
    for (index, item) in now.iter_mut().enumerate() {
        if let Some(noted) = note.get(&(index + 1).to_string()).filter(|noted| is_same(item, noted)) {
            *item = noted.clone();
        } else if let Json::String(text) = item
            && long.contains(text)
            && let Ok(number) = serde_json::from_str(text)
        {
            *item = number;
        }
    }
}

/// The notes of a value and of all tables in it, for a snapshot: `[note, [[key, notes], …]]`, null
/// where there are none. The value is plain data and not nested too deeply.
pub(crate) fn notes(value: &Value) -> mlua::Result<Json> {
    let Value::Table(table) = value else { return Ok(Json::Null) };
    let mut inner = Vec::new();
    table.for_each(|key: Value, item: Value| {
        let item_notes = notes(&item)?;
        match key {
            _ if item_notes.is_null() => {}
            Value::Integer(index) => inner.push((Json::from(index), item_notes)),
            Value::String(name) if name.to_str().is_ok() => inner.push((name.to_string_lossy().into(), item_notes)),
            _ => {}
        }
        Ok(())
    })?;
    let table_note =
        table.metatable().and_then(|meta| text_of(&meta)).map_or(Json::Null, |note| note.to_string_lossy().into());
    if table_note.is_null() && inner.is_empty() {
        return Ok(Json::Null);
    }
    inner.sort_by_key(|(key, _)| (key.as_u64(), key.as_str().map(str::to_owned)));
    let inner = inner.into_iter().map(|(key, item_notes)| Json::Array(vec![key, item_notes])).collect();
    Ok(Json::Array(vec![table_note, inner]))
}

/// The inverse of [`notes`].
pub(crate) fn restore_notes(lua: &Lua, value: &Value, notes: &Json) -> mlua::Result<()> {
    let (Value::Table(table), Some(inner)) = (value, notes[1].as_array()) else { return Ok(()) };
    if let Some(note) = notes[0].as_str() {
        mark(lua, table, note)?;
    }
    for pair in inner {
        let item: Value = match &pair[0] {
            Json::String(name) => table.raw_get(name.as_str())?,
            key => table.raw_get(key.as_u64().unwrap_or_default())?,
        };
        restore_notes(lua, &item, &pair[1])?;
    }
    Ok(())
}
