//! `r1.script` and `r1.rollout`: other scripts and their trajectories, for programs. The functions
//! are in `lua/rollout.lua`; this file calls the host's [`Services`].

use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{AnyUserData, Function, Lua, Table, Value};
use serde::Serialize;
use serde_json::Value as Json;

use super::model;
use super::service::{Functions, Held, call, to_lua};
use super::store::trajectory_table;
use crate::mdp::Trajectory;
use crate::script::Services;
use crate::script::runtime::convert::{from_json, from_row};
use crate::script::runtime::host::{Host, place};
use crate::script::runtime::services::env::{
    BranchResult, CloseAttempt, CloseScript, CountRows, Finish, Fork, Logged, NextRequest, Observe, OpenScript,
    ReadRow, ReadState, Reset, RewardSoFar, RunTasks, TakeStep,
};
use crate::script::runtime::services::model::ModelDir;

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let only = "is for programs (`r1 lua`) and tests (`r1 test`)";
    let functions = Functions { host: host.clone(), name: "r1.script", only };
    let calls = lua.create_table()?;
    let own = functions.clone();
    let open = lua.create_async_function(move |lua, fields: Value| {
        let (own, base) = (own.clone(), directory(&lua));
        async move {
            let services = own.services(&lua)?;
            let request = OpenScript { directory: base, ..own.read(&lua, &fields)? };
            let opened = call(&lua, &services, request).await?;
            let held = Held::new(&services, opened.script, close_script);
            Ok((lua.create_userdata(held)?, to_lua(&lua, &opened.about)?))
        }
    })?;
    calls.raw_set("open", open)?;
    calls.raw_set("model_dir", functions.function::<ModelDir, _, _>(lua, |lua, _, dir| to_lua(lua, &dir))?)?;
    calls.raw_set("rows", functions.function::<CountRows, _, _>(lua, |lua, _, rows| to_lua(lua, &rows))?)?;
    calls.raw_set("row", functions.function::<ReadRow, _, _>(lua, |lua, _, row| from_row(lua, &row))?)?;
    calls.raw_set("reset", functions.function::<Reset, _, _>(lua, attempt)?)?;
    calls.raw_set("fork", functions.function::<Fork, _, _>(lua, attempt)?)?;
    calls.raw_set("observe", functions.function::<Observe, _, _>(lua, logged)?)?;
    calls.raw_set("request", functions.function::<NextRequest, _, _>(lua, logged)?)?;
    calls.raw_set("step", functions.function::<TakeStep, _, _>(lua, logged)?)?;
    calls.raw_set("state", functions.function::<ReadState, _, _>(lua, logged)?)?;
    calls.raw_set("reward", functions.function::<RewardSoFar, _, _>(lua, logged)?)?;
    let finish = |lua: &Lua, own: &Functions, reply| from_json(lua, &shown(&log(own, reply), None));
    calls.raw_set("finish", functions.function::<Finish, _, _>(lua, finish)?)?;
    let run = |lua: &Lua, own: &Functions, reply: Logged<Vec<BranchResult>>| {
        let all: Json = log(own, reply).iter().map(|one| shown(&one.trajectory, one.branch)).collect();
        from_json(lua, &all)
    };
    calls.raw_set("run", functions.function::<RunTasks, _, _>(lua, run)?)?;
    let handle_of = lua.create_function(|lua, held: AnyUserData| Held::number_of(lua, &held))?;
    let model_of = lua.create_function(|_, value: Value| Ok(model::handle(&value)))?;
    let source = include_str!("../../../lua/rollout.lua");
    let (open, rollout, script, attempt): (Function, Function, Table, Table) =
        lua.load(source).set_name("=[r1]").call((calls, handle_of, model_of))?;
    for methods in [script, attempt] {
        methods.set_readonly(true);
    }
    r1.raw_set("script", open)?;
    r1.raw_set("rollout", rollout)
}

fn close_script(services: &dyn Services, script: u64) {
    drop(services.call(CloseScript { script }));
}

fn close_attempt(services: &dyn Services, attempt: u64) {
    drop(services.call(CloseAttempt { attempt }));
}

/// Logs what a script logged during the call, and gives the result.
fn log<T>(own: &Functions, Logged { result, log }: Logged<T>) -> T {
    for line in log {
        own.host.log(line.place, line.text);
    }
    result
}

fn logged<T: Serialize>(lua: &Lua, own: &Functions, reply: Logged<T>) -> mlua::Result<Value> {
    to_lua(lua, &log(own, reply))
}

/// A trajectory that was opened.
fn attempt(lua: &Lua, own: &Functions, reply: Logged<u64>) -> mlua::Result<AnyUserData> {
    let services = own.services(lua)?;
    lua.create_userdata(Held::new(&services, log(own, reply), close_attempt))
}

/// A trajectory with its token ids; `branch` is the index of the continuation.
fn shown(trajectory: &Trajectory, branch: Option<u32>) -> Json {
    let mut shown = trajectory_table(trajectory, true, false);
    if let Some(branch) = branch {
        shown["branch"] = branch.into();
    }
    shown
}

/// The directory of the running program.
pub(super) fn directory(lua: &Lua) -> PathBuf {
    let place = place(lua).unwrap_or_default();
    let path = place.rsplit_once(':').map_or("", |(path, _)| path);
    Path::new(path).parent().unwrap_or(Path::new("")).to_owned()
}
