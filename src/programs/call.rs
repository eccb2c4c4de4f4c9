//! Calls of programs: arguments from Lua values, work on this thread, results as Lua values.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{FromLua, Lua, UserData, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use serde_path_to_error::Segment;

use crate::error::{Error, Kind, Result};
use crate::schema::join;
use crate::script::api::args::{fail, raise_here};
use crate::script::runtime::convert::{NonJson, from_json, to_json};
use crate::script::runtime::host::{misuse, place};

/// Something that a program holds: a script, a trajectory, a run. It is closed when Lua collects
/// it.
pub(super) struct Held<T>(pub(super) Rc<T>);

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: 'static> UserData for Held<T> {}

impl<T: 'static> FromLua for Held<T> {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Self> {
        let held = value.as_userdata().and_then(|held| held.borrow::<Self>().ok().map(|held| held.clone()));
        held.ok_or_else(|| mlua::Error::external(misuse(lua, "this method is called with another object")))
    }
}

/// Runs `work` as a task of this thread: its time is not CPU time of the function that waits for
/// it, and it may call other virtual machines. Errors without a place get the caller's line.
pub(super) async fn call<T: 'static>(lua: &Lua, work: impl Future<Output = Result<T>> + 'static) -> mlua::Result<T> {
    let ended = tokio::task::spawn_local(work).await;
    let ended = ended.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the call of the program has stopped")));
    ended.map_err(|error| raise_here(lua, error))
}

/// Plain data of an argument as a value.
///
/// # Errors
/// [`Kind::Script`] names the invalid field: `options.groups`; `name` may be empty.
pub(super) fn read<T: DeserializeOwned>(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<T> {
    let label = if name.is_empty() { "it" } else { name };
    let data = to_json(value, label, NonJson::Refuse).map_err(|why| fail(lua, function, why))?;
    serde_path_to_error::deserialize(data).map_err(|error| {
        let path = error.path().iter().fold(name.to_owned(), |path, segment| match segment {
            Segment::Seq { index } => format!("{path}[{}]", index + 1),
            Segment::Map { key: name } | Segment::Enum { variant: name } => join(&path, name),
            Segment::Unknown => path,
        });
        let field = if path.is_empty() { path } else { format!("`{path}`: ") };
        fail(lua, function, format!("{field}{}", error.inner()))
    })
}

/// The option `settings`, `{ ["trainer.lr"] = 1e-4 }`, in the form of the command line.
pub(super) fn overrides(lua: &Lua, function: &str, settings: &Value) -> mlua::Result<Vec<String>> {
    let settings: Option<BTreeMap<String, Json>> = read(lua, function, "settings", settings)?;
    let text = |(name, value): (String, Json)| match value {
        Json::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    };
    Ok(settings.into_iter().flatten().map(text).collect())
}

/// The directory of the running program, for paths that are not in the current directory.
pub(super) fn directory(lua: &Lua) -> PathBuf {
    let line = place(lua).unwrap_or_default();
    let path = line.rsplit_once(':').map_or("", |(path, _)| path);
    Path::new(path).parent().unwrap_or(Path::new("")).to_owned()
}

/// A result as a Lua value.
pub(super) fn to_lua(lua: &Lua, result: &impl Serialize) -> mlua::Result<Value> {
    from_json(lua, &serde_json::to_value(result).map_err(mlua::Error::external)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::train::RolloutOptions;

    #[test]
    fn an_error_in_a_call_names_the_invalid_field() {
        let lua = Lua::new();
        let refused = |table: &str| {
            let value: Value = lua.load(table).eval().unwrap();
            read::<RolloutOptions>(&lua, "f", "options", &value).unwrap_err().to_string()
        };
        let wrong = refused("{ groups = 'x' }");
        assert!(wrong.contains("f: `options.groups`: invalid type: string \"x\", expected usize"), "{wrong}");
        let unknown = refused("{ group = 1 }");
        assert!(unknown.contains("`options.group`: unknown field `group`, expected"), "{unknown}");
        let item = refused("{ rows = { 1, 'a' } }");
        assert!(item.contains("`options.rows[2]`: invalid type: string \"a\", expected u64"), "{item}");
        let ids = read::<Vec<String>>(&lua, "f", "ids", &lua.load("{ 'a', 3 }").eval().unwrap()).unwrap_err();
        assert!(ids.to_string().contains("`ids[2]`: invalid type: integer `3`, expected a string"), "{ids}");
    }
}
