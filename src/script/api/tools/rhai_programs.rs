//! `r1.tools.rhai`: programs of the embedded interpreter.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};

use super::super::argument::Seconds;
use super::super::arguments::{Arguments, arguments};
use super::declaration::{ToolArguments, section, text_parameter};
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::Result;
use crate::schema::Section;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::interpreters;
use crate::script::runtime::servers::Listings;
use crate::script::runtime::tool::{Run, Tool, ToolHandle};
use crate::tools::thread::on_thread;
use crate::tools::{Rhai, RhaiOptions};

arguments! {
    /// Arguments of `r1.tools.rhai`.
    pub(crate) struct RhaiArguments {
        timeout: Option<Seconds>;
        + tool: ToolArguments;
        + limits: LimitArguments;
        ..options: RhaiOptions::FIELDS;
    }
}

/// `r1.tools.rhai { … }`.
pub(super) fn declare(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.rhai";
    let RhaiArguments { timeout, tool, limits, mut options } = RhaiArguments::read_optional(lua, NAME, value)?;
    options.extend(timeout.map(|time| ("timeout".to_owned(), time.0.into())));
    let options = section(lua, NAME, options)?;
    let description = "Runs a Rhai program and gives what it prints.";
    let parameters = text_parameter("code", "The program");
    Ok(tool.tool(lua, "rhai", description, parameters, limits.into(), Run::Rhai(options)))
}

impl HostTool for RhaiOptions {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let live = async {
                let rhai: Arc<Rhai> = interpreters::rhai(self)?;
                let (code, prelude) = (attempt.text("code"), attempt.of.prelude.clone());
                // Other trajectories of this worker continue.
                on_thread("rhai-call", move || rhai.run(&code, &prelude)).await
            };
            attempt.recorded(&attempt.of.prelude, &[], live).await
        })
    }

    fn prepare(&self, _: &Tool, _: &Listings, _: &Grants) -> Result<()> {
        interpreters::rhai(self).map(drop)
    }
}
