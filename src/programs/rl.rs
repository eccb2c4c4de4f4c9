//! `r1.rl`: estimators and losses of training, over plain tables.

use mlua::{Lua, Table, Value};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::call::call;
use crate::error::{Error, Kind, Result};
use crate::mdp::StepRow;
use crate::rl::plain;
use crate::script::api::args::{answer, fail, optional, raise, text};
use crate::script::api::namespace;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::convert::{NonJson, to_json};
use crate::script::runtime::host::place;

/// Options of a loss that the host applies to any loss.
const OF_HOST: [&str; 4] = ["loss_agg", "importance", "rejection", "correction_over"];

/// Moves the options of a loss function out of the table that also has options of the host.
fn function_options(options: &mut Json) -> Json {
    let Some(fields) = options.as_object_mut() else { return Json::Null };
    let all = std::mem::take(fields).into_iter();
    let (of_host, of_function) = all.partition(|(name, _)| OF_HOST.contains(&name.as_str()));
    *fields = of_host;
    Json::Object(of_function)
}

pub(super) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let rl = lua.create_table()?;
    bind_async(lua, &rl, "advantages", async |lua, (name, rows, options): (Value, Value, Value)| {
        const NAME: &str = "r1.rl.advantages";
        let name = text(&lua, NAME, "name", &name)?;
        let (rows, options) = (step_rows(&lua, NAME, &rows)?, data(&lua, NAME, "options", &options)?);
        compute(&lua, NAME, move || {
            let computed = plain::advantages(&name, &rows, &options)?;
            let mut report = json!({ "advantages": computed.advantages, "counted": computed.counted });
            if computed.targets.iter().flatten().any(|is_target| *is_target) {
                (report["returns"], report["targets"]) = (json!(computed.returns), json!(computed.targets));
            }
            Ok(report)
        })
        .await
    })?;

    bind_async(lua, &rl, "loss", async |lua, (loss, rows, options): (Value, Value, Value)| {
        const NAME: &str = "r1.rl.loss";
        let mut options = data(&lua, NAME, "options", &options)?;
        let (name, graph) = match &loss {
            // Options that the host does not have belong to the function.
            Value::Function(custom) => {
                let graph = crate::algorithms::trace(&lua, custom, &function_options(&mut options))?;
                (String::new(), Some(graph))
            }
            name => (text(&lua, NAME, "name", name)?, None),
        };
        let rows = step_rows(&lua, NAME, &rows)?;
        compute(&lua, NAME, move || {
            let plain::PlainLoss { loss, gradient, metrics } = match graph {
                Some(graph) => plain::custom_loss(&graph, &rows, &options)?,
                None => plain::loss(&name, &rows, &options)?,
            };
            Ok(json!({ "loss": loss, "gradient": gradient, "metrics": metrics }))
        })
        .await
    })?;

    bind_async(lua, &rl, "value_loss", async |lua, lists: (Value, Value, Value, Value)| {
        const NAME: &str = "r1.rl.value_loss";
        let (values, values_old, returns, options) = lists;
        let list = |what, list| numbers::<f64>(&lua, NAME, what, "a list of numbers", list);
        let (values, values_old) = (list("values", &values)?, list("values_old", &values_old)?);
        let (returns, options) = (list("returns", &returns)?, data(&lua, NAME, "options", &options)?);
        compute(&lua, NAME, move || {
            let report = plain::value_loss(&values, &values_old, &returns, &options)?;
            Ok(json!({ "loss": report.loss, "gradient": report.gradient, "clip_frac": report.clip_frac }))
        })
        .await
    })?;

    bind_async(lua, &rl, "entropy", async |lua, (logits, temperature): (Value, Value)| {
        const NAME: &str = "r1.rl.entropy";
        let temperature = optional(&lua, NAME, "temperature", &temperature)?.unwrap_or(1.0);
        let logits = numbers(&lua, NAME, "logits", "a list of lists of numbers", &logits)?;
        compute(&lua, NAME, move || Ok(json!(plain::entropy(&logits, temperature)?))).await
    })?;
    namespace(lua, r1, "r1.rl", rl)
}

/// Plain data of an argument.
fn data(lua: &Lua, function: &str, what: &str, value: &Value) -> mlua::Result<Json> {
    to_json(value, what, NonJson::Refuse).map_err(|why| fail(lua, function, why))
}

fn step_rows(lua: &Lua, function: &str, rows: &Value) -> mlua::Result<Vec<StepRow>> {
    StepRow::read_all(data(lua, function, "rows", rows)?).map_err(|error| refuse(lua, function, error))
}

/// A list of numbers, or of lists of numbers.
fn numbers<T: DeserializeOwned>(
    lua: &Lua,
    function: &str,
    what: &str,
    wanted: &str,
    list: &Value,
) -> mlua::Result<Vec<T>> {
    // An empty Lua table is a list and a table.
    let listed = |json: Json| match json {
        Json::Object(table) if table.is_empty() => Json::Array(Vec::new()),
        json => json,
    };
    let list = match listed(data(lua, function, what, list)?) {
        Json::Array(items) => items.into_iter().map(listed).collect(),
        other => other,
    };
    let wrong = |_| refuse(lua, function, Error::new(Kind::Usage, format!("`{what}` must be {wanted}")));
    serde_json::from_value(list).map_err(wrong)
}

/// The error of an argument, or of the computation, at the line of the program.
fn refuse(lua: &Lua, function: &str, error: Error) -> mlua::Error {
    let inside = error.place.map_or_else(String::new, |location| format!("{location}: "));
    let kind = if error.kind == Kind::Usage { Kind::Script } else { error.kind };
    let message = format!("{function}: {inside}{}", error.message);
    raise(Error { kind, message, place: place(lua), ..error })
}

/// Computes apart from the CPU time of the program.
async fn compute(lua: &Lua, function: &str, work: impl FnOnce() -> Result<Json> + 'static) -> mlua::Result<Value> {
    let result = call(lua, async move { Ok(work()) }).await?;
    answer(lua, &result.map_err(|error| refuse(lua, function, error))?)
}
