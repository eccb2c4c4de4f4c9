//! `r1.training`: training loops for programs. The loop is in `lua/training.lua`; this file calls
//! the host's [`Services`].

use std::rc::Rc;

use mlua::{AnyUserData, Function, Lua, Table, Value};
use serde::Serialize;
use serde_json::Value as Json;

use super::args::fail;
use super::recipe;
use super::service::{Functions, Held, call, to_lua};
use super::store::trajectory_table;
use super::trajectory::directory;
use crate::algorithms;
use crate::script::Services;
use crate::script::runtime::convert::{NonJson, from_json, to_json};
use crate::script::runtime::host::{Host, place};
use crate::script::runtime::services::training::{
    AtStep, CloseTraining, Evaluate, LogMetrics, NextStep, OpenTraining, RenewReference, SampleTrajectories,
    SaveCheckpoint, SupervisedStep, TrajectoryAdvantages, TrajectoryLogprobs, TrajectoryValues, UpdateWeights,
};

const NAME: &str = "r1.training";

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let functions = Functions { host: host.clone(), name: NAME, only: "is for programs (`r1 lua`)" };
    let calls = lua.create_table()?;
    let own = functions.clone();
    let open = lua.create_async_function(move |lua, fields: Value| {
        let (own, base) = (own.clone(), directory(&lua));
        async move {
            let services = own.services(&lua)?;
            let request = OpenTraining { directory: base, ..own.read(&lua, &fields)? };
            let opened = call(&lua, &services, request).await?;
            let held = Held::new(&services, opened.training, close);
            Ok((lua.create_userdata(held)?, to_lua(&lua, &opened.about)?))
        }
    })?;
    calls.raw_set("open", open)?;
    let handle_of = lua.create_function(|lua, held: AnyUserData| Held::number_of(lua, &held))?;
    let own = functions.clone();
    let rollout = lua.create_async_function(move |lua, (fields, with_ids): (Value, bool)| {
        let own = own.clone();
        async move {
            let request: SampleTrajectories = own.read(&lua, &fields)?;
            let AtStep { result, step, steps } = call(&lua, &own.services(&lua)?, request).await?;
            let all: Json = result.iter().map(|trajectory| trajectory_table(trajectory, with_ids, false)).collect();
            Ok((from_json(&lua, &all)?, step, steps))
        }
    })?;
    calls.raw_set("rollout", rollout)?;
    calls.raw_set("advantages", functions.function::<TrajectoryAdvantages, _, _>(lua, at_step)?)?;
    calls.raw_set("update", functions.function::<UpdateWeights, _, _>(lua, at_step)?)?;
    calls.raw_set("sft", functions.function::<SupervisedStep, _, _>(lua, at_step)?)?;
    calls.raw_set("logprobs", functions.function::<TrajectoryLogprobs, _, _>(lua, at_step)?)?;
    calls.raw_set("values", functions.function::<TrajectoryValues, _, _>(lua, at_step)?)?;
    calls.raw_set("renew_reference", functions.function::<RenewReference, _, _>(lua, at_step)?)?;
    calls.raw_set("evaluate", functions.function::<Evaluate, _, _>(lua, at_step)?)?;
    calls.raw_set("log", functions.function::<LogMetrics, _, _>(lua, at_step)?)?;
    calls.raw_set("next_step", functions.function::<NextStep, _, _>(lua, at_step)?)?;
    calls.raw_set("save", functions.function::<SaveCheckpoint, _, _>(lua, at_step)?)?;
    let own = host.clone();
    // A recipe inside the program: its path and settings. A script worker runs the file up to here
    // to load it.
    let here = lua.create_function(move |lua, value: Value| {
        let recipe = recipe::of(lua, &value)?;
        if own.services.is_none() {
            own.recipe.replace(Some(recipe));
            return Err(fail(lua, NAME, "the file is loaded only for its recipe"));
        }
        let place = place(lua).unwrap_or_default();
        let path = place.rsplit_once(':').map_or(place.as_str(), |(path, _)| path).to_owned();
        let settings = serde_json::to_string(&recipe.settings);
        Ok((path, settings.map_err(|error| fail(lua, NAME, format!("the recipe: {error}")))?))
    })?;
    let trace = lua.create_function(|lua, (function, options): (Function, Value)| {
        let options = if options.is_nil() { Json::Null } else { plain(lua, &options)? };
        let graph = algorithms::trace(lua, &function, &options)?;
        serde_json::to_string(&graph).map_err(|error| fail(lua, NAME, format!("the loss: {error}")))
    })?;
    let source = include_str!("../../../lua/training.lua");
    let (training, methods): (Function, Table) =
        lua.load(source).set_name("=[r1]").call((calls, handle_of, here, trace))?;
    methods.set_readonly(true);
    r1.raw_set("training", training)
}

fn close(services: &dyn Services, training: u64) {
    drop(services.call(CloseTraining { training }));
}

/// A result, and the step and the steps of the run.
fn at_step<T: Serialize>(lua: &Lua, _: &Functions, at: AtStep<T>) -> mlua::Result<(Value, u64, usize)> {
    let AtStep { result, step, steps } = at;
    Ok((to_lua(lua, &result)?, step, steps))
}

fn plain(lua: &Lua, value: &Value) -> mlua::Result<Json> {
    to_json(value, "it", NonJson::Refuse).map_err(|why| fail(lua, NAME, why))
}
