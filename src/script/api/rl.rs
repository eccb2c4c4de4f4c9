//! `r1.rl`: estimators and losses of training, over plain tables. The tensors stay with the host's
//! [`Services`].

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::args::{fail, optional, raise, text};
use super::model::answer;
use super::seal;
use crate::error::{Error, Kind, Result};
use crate::mdp::StepRow;
use crate::script::Services;
use crate::script::runtime::convert::{NonJson, to_json};
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::services::Call;
use crate::script::runtime::services::request::Request;
use crate::script::runtime::services::rl::{Advantages, Entropy, Loss, LossFunction, ValueLoss};

/// Options of a loss that the host applies to any loss.
const OF_HOST: [&str; 4] = ["loss_agg", "importance", "rejection", "correction_over"];

/// Splits the options of a loss function from those of the host.
fn own_options(options: &mut Json) -> Json {
    let Some(fields) = options.as_object_mut() else { return Json::Null };
    let (hosts, own) = std::mem::take(fields).into_iter().partition(|(name, _)| OF_HOST.contains(&name.as_str()));
    *fields = hosts;
    Json::Object(own)
}

/// A function of `r1.rl`.
#[derive(Clone)]
struct Function {
    host: Rc<Host>,
    name: &'static str,
    /// The place of the same option in a recipe.
    recipe: &'static str,
}

impl Function {
    fn services(&self, lua: &Lua) -> mlua::Result<Arc<dyn Services>> {
        let only = || fail(lua, self.name, format!("is for programs (`r1 lua`){}", self.recipe));
        self.host.services.clone().ok_or_else(only)
    }

    fn plain(&self, lua: &Lua, what: &str, value: &Value) -> mlua::Result<Json> {
        to_json(value, what, NonJson::Refuse).map_err(|why| fail(lua, self.name, why))
    }

    fn rows(&self, lua: &Lua, rows: &Value) -> mlua::Result<Vec<StepRow>> {
        StepRow::read_all(self.plain(lua, "rows", rows)?).map_err(|error| self.refuse(lua, error))
    }

    /// A list of numbers, or of lists of numbers.
    fn numbers<T: DeserializeOwned>(&self, lua: &Lua, what: &str, of: &str, list: &Value) -> mlua::Result<Vec<T>> {
        // An empty Lua table is a list and a table.
        let listed = |json: Json| match json {
            Json::Object(table) if table.is_empty() => Json::Array(Vec::new()),
            json => json,
        };
        let list = match listed(self.plain(lua, what, list)?) {
            Json::Array(items) => items.into_iter().map(listed).collect(),
            other => other,
        };
        let wrong = |_| self.refuse(lua, Error::new(Kind::Usage, format!("`{what}` must be {of}")));
        serde_json::from_value(list).map_err(wrong)
    }

    /// The error of an argument, or of the host. The place is the line of the program.
    fn refuse(&self, lua: &Lua, error: Error) -> mlua::Error {
        let inside = error.place.map_or_else(String::new, |place| format!("{place}: "));
        let kind = if error.kind == Kind::Usage { Kind::Script } else { error.kind };
        let message = format!("{}: {inside}{}", self.name, error.message);
        raise(Error { kind, message, place: misuse(lua, "").place, ..error })
    }

    async fn call<R>(&self, lua: &Lua, request: R) -> mlua::Result<Value>
    where
        R: Request<Calls: Into<Call>, Reply: Serialize>,
    {
        let reply: Result<R::Reply> = self.services(lua)?.call(request).await;
        answer(lua, &reply.map_err(|error| self.refuse(lua, error))?)
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let rl = lua.create_table()?;
    let named = "; a recipe names its estimator in `trainer`";
    let function = |name, recipe| Function { host: host.clone(), name, recipe };

    let own = function("r1.rl.advantages", named);
    let advantages = lua.create_async_function(move |lua, (name, rows, options): (Value, Value, Value)| {
        let own = own.clone();
        async move {
            let name = text(&lua, own.name, "name", &name)?;
            own.services(&lua)?;
            let (rows, options) = (own.rows(&lua, &rows)?, own.plain(&lua, "options", &options)?);
            own.call(&lua, Advantages { name, rows, options }).await
        }
    })?;
    rl.raw_set("advantages", advantages)?;

    let own = function("r1.rl.loss", named);
    let loss = lua.create_async_function(move |lua, (loss, rows, options): (Value, Value, Value)| {
        let own = own.clone();
        async move {
            own.services(&lua)?;
            let mut options = own.plain(&lua, "options", &options)?;
            let loss = match &loss {
                // Options unknown to the host are those of the function.
                Value::Function(custom) => {
                    LossFunction::Custom(crate::algorithms::trace(&lua, custom, &own_options(&mut options))?)
                }
                name => LossFunction::Named(text(&lua, own.name, "name", name)?),
            };
            let rows = own.rows(&lua, &rows)?;
            own.call(&lua, Loss { loss, rows, options }).await
        }
    })?;
    rl.raw_set("loss", loss)?;

    let own = function("r1.rl.value_loss", "");
    let value_loss = lua.create_async_function(move |lua, lists: (Value, Value, Value, Value)| {
        let own = own.clone();
        async move {
            let (values, values_old, returns, options) = lists;
            own.services(&lua)?;
            let list = |what, list| own.numbers(&lua, what, "a list of numbers", list);
            let request = ValueLoss {
                values: list("values", &values)?,
                values_old: list("values_old", &values_old)?,
                returns: list("returns", &returns)?,
                options: own.plain(&lua, "options", &options)?,
            };
            own.call(&lua, request).await
        }
    })?;
    rl.raw_set("value_loss", value_loss)?;

    let own = function("r1.rl.entropy", "");
    let entropy = lua.create_async_function(move |lua, (logits, temperature): (Value, Value)| {
        let own = own.clone();
        async move {
            own.services(&lua)?;
            let temperature: Option<f64> = optional(&lua, own.name, "temperature", &temperature)?;
            let temperature = temperature.unwrap_or(1.0);
            let logits = own.numbers(&lua, "logits", "a list of lists of numbers", &logits)?;
            own.call(&lua, Entropy { logits, temperature }).await
        }
    })?;
    rl.raw_set("entropy", entropy)?;
    seal(lua, "r1.rl", &rl)?;
    r1.raw_set("rl", rl)
}
