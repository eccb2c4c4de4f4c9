//! `r1.store.write`: writes trajectories from plain tables to Parquet files in the format of runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{ErrorRecord, Seed, Step, Trajectory};
use crate::script::docs::{self, Param};

/// A table of a type in lua/types/r1.d.luau, which declares its fields.
struct TableType {
    name: &'static str,
    /// In messages.
    what: &'static str,
    /// Fields with another name in the record.
    renamed: &'static [(&'static str, &'static str)],
    /// Fields that are computed from others.
    computed: &'static [&'static str],
}

const TRAJECTORY: TableType = TableType {
    name: "Trajectory",
    what: "a trajectory",
    renamed: &[("error_fields", "error"), ("parts", "reward_parts")],
    computed: &["reward", "branch"],
};

const STEP: TableType =
    TableType { name: "Step", what: "a step", renamed: &[], computed: &["prompt_tokens", "response_tokens"] };

/// Lists, which an empty Lua table may represent; other empty tables are objects.
const LISTS: [&str; 7] = ["messages", "record", "steps", "tools", "prompt_ids", "response_ids", "logprobs"];

/// The trajectory of a table. Missing fields come from `base`, or have the values of a trajectory
/// that ended without reward. The seed and the record of `base` are kept: Lua numbers cannot
/// represent all their values.
///
/// # Errors
/// [`Kind::Usage`] with the field.
pub(super) fn trajectory(table: &Json, base: Option<&Trajectory>) -> Result<Trajectory> {
    let defaults = json!({
        "id": "", "group": 0, "sample": 0, "seed": 0, "task_index": 0, "task": null, "status": "terminated",
        "error": null, "script_hash": "", "outcome_reward": 0.0, "reward_parts": {}, "messages": [], "record": [],
        "steps": [],
    });
    let start = base.map_or(defaults, |base| json!(base));
    let kept: &[&str] = if base.is_some() { &["seed", "record"] } else { &[] };
    let mut merged = overlay(start, table, &TRAJECTORY, kept)?;
    // A seed that a double would round is given as text.
    let seed: Seed = serde_json::from_value(merged["seed"].clone()).map_err(|error| misfit(&error.to_string()))?;
    merged["seed"] = json!(seed.0);
    // A text alone is the message.
    if let Some(text) = merged["error"].as_str() {
        merged["error"] = json!(ErrorRecord::of_text(text));
    }
    if let Some(steps) = fields_of(table, "a trajectory")?.get("steps") {
        let stored = base.map_or(&[][..], |base| &base.steps);
        merged["steps"] = steps_of(&listed("steps", steps), stored)?;
    }
    let made: Trajectory = serde_json::from_value(merged).map_err(|error| misfit(&error.to_string()))?;
    if made.id.is_empty() {
        return Err(Error::new(Kind::Usage, "a trajectory has an `id`, such as \"1-0-0\""));
    }
    for (index, step) in made.steps.iter().enumerate() {
        if step.logprobs.len() != step.response_ids.len() {
            let (numbers, ids) = (step.logprobs.len(), step.response_ids.len());
            let message = format!("step {} has {numbers} logprobs for {ids} response_ids", index + 1);
            return Err(Error::new(Kind::Usage, message).hint("give a log-probability for each sampled id"));
        }
    }
    Ok(made)
}

fn steps_of(steps: &Json, stored: &[Step]) -> Result<Json> {
    let Some(list) = steps.as_array() else {
        return Err(Error::new(Kind::Usage, "`steps` must be a list of tables"));
    };
    let defaults = json!({
        "prompt_ids": [], "response_ids": [], "logprobs": [], "text": "", "finish_reason": "stop", "reward": 0.0,
        "terminated": false, "truncated": false, "tools": [], "prefilled": 0, "new_row": true, "next_prompt_ids": [],
    });
    let one = |(index, step): (usize, &Json)| {
        let start = stored.get(index).map_or_else(|| defaults.clone(), |stored_step| json!(stored_step));
        overlay(start, step, &STEP, &[])
    };
    list.iter().enumerate().map(one).collect()
}

/// `start` with the fields of a table, except those in `kept`.
fn overlay(start: Json, table: &Json, of: &TableType, kept: &[&str]) -> Result<Json> {
    let declared = docs::find_type(of.name).into_iter().flat_map(|named| &named.fields).map(Param::bare);
    let field_names = declared.chain(of.renamed.iter().map(|(name, _)| *name));
    let mut merged = start;
    for (name, value) in fields_of(table, of.what)? {
        if !field_names.clone().any(|field| field == name) {
            let message = format!("{} has no field `{name}`", of.what);
            return Err(Error::new(Kind::Usage, message).hint(suggest(name, field_names)));
        }
        let renamed = of.renamed.iter().find(|(field, _)| field == name);
        let stored_name = renamed.map_or(name.as_str(), |(_, stored_name)| stored_name);
        if !of.computed.contains(&stored_name) && !kept.contains(&stored_name) {
            merged[stored_name] = listed(stored_name, value);
        }
    }
    Ok(merged)
}

fn fields_of<'a>(table: &'a Json, what: &str) -> Result<&'a Map<String, Json>> {
    table.as_object().ok_or_else(|| Error::new(Kind::Usage, format!("{what} must be a table, got {table}")))
}

/// An empty table as a list for the fields in [`LISTS`], else as an object.
fn listed(name: &str, value: &Json) -> Json {
    match value {
        Json::Object(fields) if fields.is_empty() && LISTS.contains(&name) => json!([]),
        Json::Array(items) if items.is_empty() && !LISTS.contains(&name) => json!({}),
        other => other.clone(),
    }
}

fn misfit(why: &str) -> Error {
    Error::new(Kind::Usage, format!("a field has the wrong type: {why}"))
}

/// Writes the trajectories of `tables` to a file. `stored` has the base trajectories by id.
pub(super) fn write(
    path: &Path,
    tables: &[Json],
    stored: &BTreeMap<String, Trajectory>,
    overwrite: bool,
) -> Result<usize> {
    if path.extension().is_none_or(|extension| extension != "parquet") {
        return Err(Error::new(Kind::Usage, format!("`{}` is not a Parquet file", path.display()))
            .hint("name one: \"own.parquet\", or \"runs/NAME/trajectories/step-000007.parquet\""));
    }
    if path.exists() && !overwrite {
        return Err(Error::new(Kind::Store, "the file exists")
            .at_path(path)
            .hint("choose another name, or pass { overwrite = true }"));
    }
    let read = |(index, table): (usize, &Json)| {
        let base = table["id"].as_str().and_then(|id| stored.get(id));
        trajectory(table, base)
            .map_err(|error| Error { message: format!("trajectory {}: {}", index + 1, error.message), ..error })
    };
    let all = tables.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
    // The directory is synced too, so a bare name needs one.
    let bare = path.parent().is_none_or(|folder| folder.as_os_str().is_empty());
    let path = if bare { &Path::new(".").join(path) } else { path };
    crate::store::write_trajectories(path, 0, &all)?;
    Ok(all.len())
}
