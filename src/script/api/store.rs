//! `r1.store`: the records of runs as plain tables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::args::{Fields, fail, fail_with, raise, required, text};
use super::argument::{ANY, Whole};
use super::store_write;
use crate::error::{Error, Kind};
use crate::mdp::{Split, Step, Trajectory, seed_value};
use crate::script::runtime::convert::{NonJson, from_json, to_json};
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::{Host, place};
use crate::store::{StoredRun, read_trajectories};

/// Directory of runs by name.
const RUNS: &str = "runs";

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let store = lua.create_table()?;
    let own = host.clone();
    store.raw_set(
        "steps",
        lua.create_function(move |lua, (run, options): (Value, Value)| {
            const NAME: &str = "r1.store.steps";
            let run = open(lua, &own, NAME, &run)?;
            let none = Value::Table(lua.create_table()?);
            let fields = Fields::new(lua, NAME, if options.is_nil() { &none } else { &options }, &["split"])?;
            run.steps(split_of(&fields)?).map_err(raise)
        })?,
    )?;
    let own = host.clone();
    store.raw_set(
        "trajectories",
        lua.create_function(move |lua, (run, step, options): (Value, Value, Value)| {
            const NAME: &str = "r1.store.trajectories";
            let file = file_of(lua, &own, NAME, &run)?;
            let step = if file.is_some() { 0 } else { required::<Whole<0, ANY>>(lua, NAME, "step", &step)?.0 };
            let fields = Fields::optional(lua, NAME, &options, &["ids", "record", "split"])?;
            let flag = |name: &str| -> mlua::Result<bool> { Ok(fields.read(name)?.unwrap_or(false)) };
            let (ids, record, split) = (flag("ids")?, flag("record")?, split_of(&fields)?);
            let list = lua.create_table()?;
            let found = match file {
                Some(file) => read_trajectories(&file),
                None => open(lua, &own, NAME, &run)?.trajectories(split, step),
            };
            for trajectory in found.map_err(raise)? {
                list.raw_push(from_json(lua, &trajectory_table(&trajectory, ids, record))?)?;
            }
            Ok(list)
        })?,
    )?;
    let own = host.clone();
    store.raw_set(
        "write",
        lua.create_function(move |lua, (path, list, options): (Value, Value, Value)| {
            const NAME: &str = "r1.store.write";
            programs_only(lua, &own, NAME)?;
            let path = text(lua, NAME, "path", &path)?;
            let fields = Fields::optional(lua, NAME, &options, &["from", "overwrite"])?;
            let overwrite = fields.read("overwrite")?.unwrap_or(false);
            let list = to_json(&list, "trajectories", NonJson::Refuse).map_err(|why| fail_with(lua, NAME, why))?;
            let tables = match &list {
                Json::Array(tables) => tables.as_slice(),
                Json::Object(fields) if fields.is_empty() => &[],
                other => return Err(fail(lua, NAME, format!("takes a list of trajectories, got {other}"))),
            };
            let mut stored = BTreeMap::new();
            if !fields.get("from")?.is_nil() {
                let run = open(lua, &own, NAME, &fields.get("from")?)?;
                let named = |table: &Json| table["id"].as_str().and_then(Split::of_id);
                let wanted: BTreeSet<(Split, u64)> = tables.iter().filter_map(named).collect();
                for (split, step) in wanted {
                    if !run.steps(split).map_err(raise)?.contains(&step) {
                        continue;
                    }
                    let all = run.trajectories(split, step).map_err(raise)?;
                    stored.extend(all.into_iter().map(|trajectory| (trajectory.id.clone(), trajectory)));
                }
            }
            store_write::write(Path::new(&path), tables, &stored, overwrite).map_err(|error| match error.place {
                None => raise(Error { place: place(lua), message: format!("{NAME}: {}", error.message), ..error }),
                Some(_) => raise(error),
            })
        })?,
    )?;
    super::seal(lua, "r1.store", &store)?;
    r1.raw_set("store", store)
}

/// The option `split`; training by default.
fn split_of(fields: &Fields<'_>) -> mlua::Result<Split> {
    let Some(name) = fields.text("split")? else { return Ok(Split::Train) };
    Split::ALL.into_iter().find(|split| split.name() == name).ok_or_else(|| {
        let error = Error::new(Kind::Script, format!("there is no split `{name}`"));
        fields.refused("split", error.hint("\"train\" or \"eval\""))
    })
}

fn programs_only(lua: &Lua, host: &Host, function: &str) -> mlua::Result<()> {
    match &*host.grants.borrow() {
        Grants::Everything => Ok(()),
        _ => Err(fail(lua, function, "is for programs (`r1 lua`)")),
    }
}

/// The path, if `run` is a Parquet file.
fn file_of(lua: &Lua, host: &Host, function: &str, run: &Value) -> mlua::Result<Option<PathBuf>> {
    programs_only(lua, host, function)?;
    let name = text(lua, function, "run", run)?;
    let path = PathBuf::from(name);
    Ok(Some(path).filter(|path| path.extension().is_some_and(|extension| extension == "parquet")))
}

fn open(lua: &Lua, host: &Host, function: &str, run: &Value) -> mlua::Result<StoredRun> {
    programs_only(lua, host, function)?;
    let name = text(lua, function, "run", run)?;
    StoredRun::open(Path::new(&name), Path::new(RUNS)).map_err(raise)
}

/// A trajectory as a table for programs (the declared type `Trajectory`), used by `r1.store`,
/// `r1.rollout` and `Attempt:finish`. Token ids and the record of external calls are long; they are
/// included on request.
pub fn trajectory_table(trajectory: &Trajectory, ids: bool, record: bool) -> Json {
    let mut table = json!({
        "id": trajectory.id,
        "split": trajectory.split,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "fork": trajectory.fork,
        "seed": seed_value(trajectory.seed),
        "task_index": trajectory.task_index,
        "task": trajectory.task,
        "status": trajectory.status.name(),
        "truncated_by": trajectory.truncated_by,
        "retries": trajectory.retries,
        "error": trajectory.error_text(),
        "error_fields": trajectory.error,
        "script_hash": trajectory.script_hash,
        "reward": trajectory.total_reward(),
        "outcome_reward": trajectory.outcome_reward,
        "parts": trajectory.reward_parts,
        "messages": trajectory.messages,
        "steps": trajectory.steps.iter().map(|step| plain_step(step, ids)).collect::<Vec<_>>(),
    });
    if record {
        table["record"] = json!(trajectory.record);
    }
    table
}

fn plain_step(step: &Step, ids: bool) -> Json {
    let mut table = json!({
        "text": step.text,
        "reward": step.reward,
        "finish_reason": step.finish_reason.name(),
        "terminated": step.terminated,
        "truncated": step.truncated,
        "new_row": step.new_row,
        "tools": step.tools,
        "prompt_tokens": step.prompt_ids.len(),
        "response_tokens": step.response_ids.len(),
    });
    if ids {
        table["prompt_ids"] = json!(step.prompt_ids);
        table["response_ids"] = json!(step.response_ids);
        table["logprobs"] = json!(step.logprobs);
        if !step.support.is_whole() {
            table["support"] = json!(step.support);
        }
    }
    table
}
