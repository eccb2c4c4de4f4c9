//! Lua files of r1 that the host itself calls: rules about settings (`lua/rules.lua`) and warnings
//! about metrics (`lua/warnings.lua`). No code of users runs in their virtual machines.

use mlua::serde::SerializeOptions;
use mlua::{Function, Lua, LuaSerdeExt, StdLib, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Kind, Result};

/// A file whose chunk returns a table of functions, in a virtual machine of its own.
pub(crate) struct HostFile {
    lua: Lua,
    functions: Table,
}

impl HostFile {
    /// Loads `text`, the file `lua/NAME.lua`.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a mistake in the file.
    pub(crate) fn load(name: &str, text: &str) -> Result<Self> {
        let load = || -> mlua::Result<Self> {
            let lua = Lua::new_with(StdLib::MATH | StdLib::TABLE | StdLib::STRING, mlua::LuaOptions::default())?;
            lua.sandbox(true)?;
            let functions = lua.load(text).set_name(format!("@@r1/{name}.lua")).eval()?;
            Ok(Self { lua, functions })
        };
        load().map_err(|error| internal(&error))
    }

    /// The result of a function of the file for a value. A missing value is nil.
    ///
    /// # Errors
    /// [`Kind::Internal`] for a mistake in the file.
    pub(crate) fn call<T: DeserializeOwned>(&self, function: &str, value: &impl Serialize) -> Result<T> {
        let options = SerializeOptions::new().set_array_metatable(false);
        let options = options.serialize_none_to_null(false).serialize_unit_to_null(false);
        let call = || -> mlua::Result<T> {
            let function: Function = self.functions.get(function)?;
            self.lua.from_value(function.call(self.lua.to_value_with(value, options)?)?)
        };
        call().map_err(|error| internal(&error))
    }
}

fn internal(error: &mlua::Error) -> Error {
    Error::new(Kind::Internal, format!("a Lua file of r1 fails: {error}"))
}
