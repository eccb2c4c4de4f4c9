//! Functions of programs where they are not available: recipes. [`ProgramApi`] installs them.
//!
//! [`ProgramApi`]: crate::script::runtime::host::ProgramApi

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::args::fail;
use super::{namespace, recipe};
use crate::script::runtime::host::Host;

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let refusal = |name: &'static str, rest: &'static str| -> mlua::Result<Function> {
        let why = format!("is for programs (`r1 lua`){rest}");
        lua.create_function(move |lua, _: MultiValue| -> mlua::Result<()> { Err(fail(lua, name, &why)) })
    };
    r1.raw_set("model", refusal("r1.model", "; a recipe names its model in `policy`")?)?;
    r1.raw_set("script", refusal("r1.script", " and tests (`r1 test`)")?)?;
    r1.raw_set("rollout", refusal("r1.rollout", " and tests (`r1 test`)")?)?;
    let rl = lua.create_table()?;
    let named = "; a recipe names its estimator in `trainer`";
    rl.raw_set("advantages", refusal("r1.rl.advantages", named)?)?;
    rl.raw_set("loss", refusal("r1.rl.loss", named)?)?;
    rl.raw_set("value_loss", refusal("r1.rl.value_loss", "")?)?;
    rl.raw_set("entropy", refusal("r1.rl.entropy", "")?)?;
    namespace(lua, r1, "r1.rl", rl)?;
    // A script worker runs a program up to this call to load the recipe in it.
    let host = host.clone();
    let training = lua.create_function(move |lua, (value, _): (Value, Value)| -> mlua::Result<()> {
        const NAME: &str = "r1.training";
        if !value.is_table() {
            return Err(fail(lua, NAME, "is for programs (`r1 lua`)"));
        }
        host.recipe.replace(Some(recipe::of(lua, &value)?));
        Err(fail(lua, NAME, "the file is loaded only for its recipe"))
    })?;
    r1.raw_set("training", training)
}
