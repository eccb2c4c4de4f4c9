//! The size of plain data, as `lua/measure.lua` measures it.

use mlua::{FromLuaMulti, Lua, MultiValue};

/// The size of a value of the script when it is written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(usize),
    /// Larger than the limit of the measurement.
    TooLarge,
    /// Not plain data: the problem, and its path in the value.
    NotPlain {
        what: String,
        path: String,
    },
}

impl FromLuaMulti for Size {
    fn from_lua_multi(values: MultiValue, lua: &Lua) -> mlua::Result<Self> {
        let (bytes, what, path): (Option<usize>, Option<String>, Option<String>) =
            FromLuaMulti::from_lua_multi(values, lua)?;
        Ok(match (bytes, what) {
            (Some(bytes), _) => Self::Bytes(bytes),
            (None, Some(what)) if what != "large" => Self::NotPlain { what, path: path.unwrap_or_default() },
            (None, _) => Self::TooLarge,
        })
    }
}
