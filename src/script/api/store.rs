//! `r1.store`: the records of runs as plain tables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::args::{fail, optional, plain, raise, text};
use super::argument::argument;
use super::arguments::{Arguments, arguments};
use super::store_write;
use crate::error::Error;
use crate::mdp::{Split, Step, Trajectory, seed_value};
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::from_json;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::{Host, place};
use crate::store::{Curation, StoredRun, read_curation, read_trajectories};

/// Directory of runs by name.
const RUNS: &str = "runs";

arguments! {
    /// Options of `r1.store.steps`.
    pub(super) struct StepsOptions {
        split: Split = Split::Train;
    }

    /// Options of `r1.store.trajectories`.
    pub(super) struct TrajectoriesOptions {
        ids: bool = false;
        record: bool = false;
        split: Split = Split::Train;
    }

    /// Options of `r1.store.write`.
    pub(super) struct WriteOptions {
        /// The run with the trajectories that the tables change.
        from: Option<String>;
        overwrite: bool = false;
    }
}

argument!(Split, "\"train\" or \"eval\"", |value| {
    let name = String::read(value)?;
    Self::ALL.into_iter().find(|split| split.name() == name)
});

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let store = lua.create_table()?;
    let shared_host = host.clone();
    bind(lua, &store, "steps", move |lua, (run, options): (Value, Value)| {
        const NAME: &str = "r1.store.steps";
        let run = path_of(lua, &shared_host, NAME, "run", &run)?;
        let options = StepsOptions::read_optional(lua, NAME, &options)?;
        open(&run)?.steps(options.split).map_err(raise)
    })?;
    let shared_host = host.clone();
    bind(lua, &store, "trajectories", move |lua, (run, step, options): (Value, Value, Value)| {
        const NAME: &str = "r1.store.trajectories";
        let run = path_of(lua, &shared_host, NAME, "run", &run)?;
        let is_file = run.extension().is_some_and(|extension| extension == "parquet");
        let step: Option<usize> = optional(lua, NAME, "step", &step)?;
        let TrajectoriesOptions { ids, record, split } = TrajectoriesOptions::read_optional(lua, NAME, &options)?;
        let list = lua.create_table()?;
        let add = |read: Result<Vec<Trajectory>, Error>, notes: &BTreeMap<String, Curation>| -> mlua::Result<()> {
            for trajectory in read.map_err(raise)? {
                let mut table = trajectory_table(&trajectory, ids, record);
                add_notes(&mut table, notes.get(&trajectory.id));
                list.raw_push(from_json(lua, &table)?)?;
            }
            Ok(())
        };
        if is_file {
            add(read_trajectories(&run), &BTreeMap::new())?;
            return Ok(list);
        }
        let run = open(&run)?;
        let notes = read_curation(run.path()).map_err(raise)?;
        let steps = match step {
            Some(step) => vec![step as u64],
            None => run.steps(split).map_err(raise)?,
        };
        for step in steps {
            add(run.trajectories(split, step), &notes)?;
        }
        Ok(list)
    })?;
    let shared_host = host.clone();
    bind(lua, &store, "write", move |lua, (path, list, options): (Value, Value, Value)| {
        const NAME: &str = "r1.store.write";
        let path = path_of(lua, &shared_host, NAME, "path", &path)?;
        let options = WriteOptions::read_optional(lua, NAME, &options)?;
        let list = plain(lua, NAME, "trajectories", &list)?;
        let tables = match &list {
            Json::Array(tables) => tables.as_slice(),
            Json::Object(fields) if fields.is_empty() => &[],
            other => return Err(fail(lua, NAME, format!("takes a list of trajectories, got {other}"))),
        };
        let mut stored = BTreeMap::new();
        if let Some(from) = &options.from {
            let run = open(Path::new(from))?;
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
        store_write::write(&path, tables, &stored, options.overwrite).map_err(|error| match error.place {
            None => raise(Error { place: place(lua), message: format!("{NAME}: {}", error.message), ..error }),
            Some(_) => raise(error),
        })
    })?;
    super::namespace(lua, r1, "r1.store", store)
}

/// A path argument of a function that only programs have.
fn path_of(lua: &Lua, host: &Host, function: &str, name: &str, value: &Value) -> mlua::Result<PathBuf> {
    match &*host.grants.borrow() {
        Grants::Everything => text(lua, function, name, value).map(PathBuf::from),
        _ => Err(fail(lua, function, "is for programs (`r1 lua`)")),
    }
}

/// A run by its directory, or by its name in [`RUNS`].
fn open(run: &Path) -> mlua::Result<StoredRun> {
    StoredRun::open(run, Path::new(RUNS)).map_err(raise)
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
    if trajectory.dropped {
        table["dropped"] = true.into();
    }
    if record {
        table["record"] = json!(trajectory.record);
    }
    table
}

/// Adds what people noted about a trajectory to its table.
pub fn add_notes(table: &mut Json, notes: Option<&Curation>) {
    if let Some(Curation { tags, note, quality, exclude, .. }) = notes {
        table["notes"] = json!({ "tags": tags, "note": note, "quality": quality, "exclude": exclude });
    }
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
        if !step.trained.is_empty() {
            table["trained"] = json!(step.trained);
        }
    }
    table
}
