//! The parts of declarations that tools share.

use std::rc::Rc;

use mlua::{Lua, Value};
use serde_json::{Map, Value as Json, json};

use super::super::args::{FromField, TableFields, fail_with};
use super::super::arguments::arguments;
use crate::schema::Section;
use crate::script::runtime::host::place_of_recipe;
use crate::script::runtime::tool::{CallLimits, Run, Tool, ToolHandle, ToolRewards};
use crate::script::settings;

arguments! {
    /// Fields that all tools have.
    pub(crate) struct ToolArguments {
        name: Option<String>;
        description: Option<String>;
        max_result_tokens: Option<usize>;
        rewards: ToolRewards = ToolRewards::default();
        hidden: bool = false;
    }
}

impl FromField for ToolRewards {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        settings::section(name, &fields.plain(name, value)?).map_err(|error| fields.raise(error))
    }
}

impl ToolArguments {
    /// The tool with these fields, and its name and description if they are left out.
    pub(super) fn tool(
        self,
        lua: &Lua,
        name: &str,
        description: &str,
        parameters: Json,
        limits: CallLimits,
        run: Run,
    ) -> ToolHandle {
        let name = self.name.unwrap_or_else(|| name.to_owned());
        let description = self.description.unwrap_or_else(|| description.to_owned());
        let Self { max_result_tokens, rewards, hidden, .. } = self;
        let location = place_of_recipe(lua);
        let tool =
            Tool { name, description, parameters, max_result_tokens, rewards, limits, hidden, place: location, run };
        ToolHandle(Rc::new(tool))
    }
}

/// The parameters of a tool with one text.
pub(super) fn text_parameter(name: &str, description: &str) -> Json {
    json!({
        "type": "object",
        "properties": { name: { "type": "string", "description": description } },
        "required": [name],
    })
}

/// The options of an interpreter.
pub(super) fn section<O: Section>(lua: &Lua, function: &str, options: Map<String, Json>) -> mlua::Result<O> {
    settings::section(function, &Json::Object(options)).map_err(|error| fail_with(lua, "tool", error))
}
