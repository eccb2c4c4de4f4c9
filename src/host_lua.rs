//! Lua files of r1 that the host itself calls: rules about settings, warnings about metrics, texts
//! of results. No code of users runs in their virtual machines.

use mlua::serde::SerializeOptions;
use mlua::{FromLua, Function, IntoLuaMulti, Lua, LuaSerdeExt, StdLib, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Kind, Result};

/// A file in a new virtual machine. Its chunk returns `C`: a table of functions, or one function.
pub(crate) struct HostFile<C = Table> {
    lua: Lua,
    chunk: C,
}

impl<C: FromLua> HostFile<C> {
    /// Loads `text`, the file `lua/NAME.lua`; its chunk gets the functions that `arguments` makes.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a mistake in the file.
    pub(crate) fn load<A: IntoLuaMulti>(
        name: &str,
        text: &str,
        arguments: impl FnOnce(&Lua) -> mlua::Result<A>,
    ) -> Result<Self> {
        let load = || -> mlua::Result<Self> {
            let libraries = StdLib::MATH | StdLib::TABLE | StdLib::STRING | StdLib::UTF8;
            let lua = Lua::new_with(libraries, mlua::LuaOptions::default())?;
            lua.sandbox(true)?;
            let chunk = lua.load(text).set_name(format!("@@r1/{name}.lua")).call(arguments(&lua)?)?;
            Ok(Self { lua, chunk })
        };
        load().map_err(|error| internal(&error))
    }

    /// The result of a function for a value. A missing value is nil.
    fn result<T: DeserializeOwned>(&self, function: mlua::Result<Function>, value: &impl Serialize) -> Result<T> {
        let options = SerializeOptions::new().set_array_metatable(false);
        let options = options.serialize_none_to_null(false).serialize_unit_to_null(false);
        let call = || self.lua.from_value(function?.call(self.lua.to_value_with(value, options)?)?);
        call().map_err(|error| internal(&error))
    }
}

impl HostFile {
    /// The result of a function of the file for a value.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a mistake in the file.
    pub(crate) fn call<T: DeserializeOwned>(&self, function: &str, value: &impl Serialize) -> Result<T> {
        self.result(self.chunk.get(function), value)
    }
}

impl HostFile<Function> {
    /// The result of the function of the file for a value.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a mistake in the file.
    pub(crate) fn run<T: DeserializeOwned>(&self, value: &impl Serialize) -> Result<T> {
        self.result(Ok(self.chunk.clone()), value)
    }
}

fn internal(error: &mlua::Error) -> Error {
    Error::new(Kind::Internal, format!("a Lua file of r1 fails: {error}"))
}
