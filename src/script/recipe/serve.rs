//! Single tool calls on the state of a trajectory, without an action of a policy (`r1 mcp`).

use mlua::{Function, Table, Value};
use serde_json::{Value as Json, json};

use super::worker::Worker;
use crate::mdp::ToolRecord;
use crate::script::runtime::convert;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::EntryPoint;
use crate::script::runtime::state::State;

impl Worker {
    /// Calls a tool with the state as `call.state`, like `r1.call_tools` in a step; counts as a
    /// step. A failing tool is a result.
    ///
    /// # Errors
    /// An error of the script: an error of the tool's `run`, a limit.
    pub async fn call_tool(&self, state: &State, name: &str, arguments: &Json) -> Result<ToolRecord, Failure> {
        let call = self.call_of(EntryPoint::Step, state);
        let input = || -> mlua::Result<(Function, Value, Table)> {
            let r1: Table = self.vm.environment.raw_get("r1")?;
            let calls = json!([{ "name": name, "arguments": arguments }]);
            let options = self.vm.lua.create_table()?;
            options.raw_set("state", &state.table)?;
            Ok((r1.raw_get("call_tools")?, convert::from_json(&self.vm.lua, &calls)?, options))
        };
        let (call_tools, calls, options) = input()?;
        let _results: Value = self.vm.call(&call, &call_tools, (calls, options)).await?;
        state.steps.set(state.steps.get() + 1);
        Ok(call.tools.take().pop().unwrap_or_default())
    }
}
