//! The options of an algorithm's functions: default, type and range, as its file declares them.
//!
//! ```lua
//! options = {
//!   clip_low = { 0.2, from = 0, to = 1 },    -- a number from 0 to 1
//!   beta = { 0.1, above = 0 },
//!   normalize = { "std", one_of = { "std", "none" } },
//!   reward_to_go = false,                    -- the type of the default, any value
//!   similarity = { false, from = 0, to = 1 },  -- a number, or false
//!   weights = { {} },                        -- a table of numbers
//! }
//! ```

use mlua::{LuaSerdeExt, Table, Value};
use serde_json::{Map, Value as Json};

use super::lua::kind;
use crate::error::{Error, Kind, Result, suggest};

/// The options that every loss has beside its own.
pub const OF_EVERY_LOSS: [&str; 9] = [
    "loss_agg",
    "seq",
    "ratio_over",
    "horizon",
    "kl_coef",
    "kl",
    "kl_straight_through",
    "kl_times_ratio",
    "entropy_coef",
];

/// A declared option.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    pub name: String,
    pub default: Json,
    pub range: Range,
}

/// The values of an option; `Any` accepts any value of the default's type.
#[derive(Clone, Debug, PartialEq)]
pub enum Range {
    Any,
    /// Numbers from `low` to `high`, without `low` if `above`.
    Numbers {
        low: f64,
        above: bool,
        high: f64,
    },
    OneOf(Vec<String>),
}

impl Declared {
    /// Reads an entry of the table `options`.
    pub(super) fn read(name: String, value: &Value) -> Result<Self> {
        let refuse = |message: String| {
            let hint = format!("write {name} = 0.2, or {name} = {{ 0.2, from = 0, to = 1 }}");
            Err(Error::new(Kind::Script, format!("option `{name}`: {message}")).hint(hint))
        };
        let Value::Table(table) = value else {
            return match plain(value) {
                Some(default) => Ok(Self { name, default, range: Range::Any }),
                None => refuse(format!("its default is a number, a text or a boolean, not {}", kind(value))),
            };
        };
        let field = |name: &str| table.raw_get::<Value>(name).unwrap_or(Value::Nil);
        let number = |name: &str| match field(name) {
            Value::Integer(number) => Some(number as f64),
            other => other.as_number(),
        };
        let default = match table.raw_get::<Value>(1).unwrap_or(Value::Nil) {
            Value::Table(empty) if empty.is_empty() => Some(Json::Object(Map::new())),
            value => plain(&value),
        };
        let Some(default) = default else {
            return refuse("the first entry is the default: a number, a text, a boolean or {}".to_owned());
        };
        let fields = ["from", "to", "above", "one_of"];
        let names = table.pairs::<Value, Value>().flatten();
        let mut names = names.filter_map(|(key, _)| key.as_string().map(mlua::LuaString::to_string_lossy));
        if let Some(name) = names.find(|name| !fields.contains(&name.as_str())) {
            return refuse(format!("it has no field `{name}`; {}", suggest(&name, fields)));
        }
        let range = match (number("from"), number("above"), number("to"), field("one_of")) {
            (None, None, None, Value::Nil) => Range::Any,
            (None, None, None, Value::Table(names)) => Range::OneOf(names.sequence_values().flatten().collect()),
            (low, above, high, Value::Nil) => Range::Numbers {
                low: low.or(above).unwrap_or(f64::NEG_INFINITY),
                above: above.is_some(),
                high: high.unwrap_or(f64::INFINITY),
            },
            _ => return refuse("give numbers as from, above and to, or names as one_of".to_owned()),
        };
        Ok(Self { name, default, range })
    }

    /// Refuses a value of another type than the default, or out of its range.
    pub(super) fn check(&self, what: &str, value: &Json) -> Result<()> {
        if value == &self.default {
            return Ok(());
        }
        let (fits, wanted) = match (&self.range, &self.default) {
            (Range::OneOf(names), _) => {
                (value.as_str().is_some_and(|name| names.iter().any(|allowed| allowed == name)), names.join(" or "))
            }
            (Range::Numbers { low, above, high }, _) => {
                let inside = |x: f64| x <= *high && if *above { x > *low } else { x >= *low };
                let to = if high.is_finite() { format!(" to {high}") } else { String::new() };
                let from = match (above, high.is_finite()) {
                    (true, _) => "above",
                    (false, true) => "from",
                    (false, false) => "at least",
                };
                let off = if self.default.is_boolean() { ", or false" } else { "" };
                (value.as_f64().is_some_and(inside), format!("{from} {low}{to}{off}"))
            }
            (Range::Any, Json::Object(_)) => {
                let numbers = value.as_object().is_some_and(|table| table.values().all(Json::is_number));
                (numbers || value.as_array().is_some_and(Vec::is_empty), "a table of numbers".to_owned())
            }
            (Range::Any, Json::Number(_)) => (value.is_number(), "a number".to_owned()),
            (Range::Any, Json::Bool(_)) => (value.is_boolean(), "true or false".to_owned()),
            (Range::Any, _) => (value.is_string(), "a text".to_owned()),
        };
        let message = || format!("option `{}` of `{what}` is {wanted}, not {value}", self.name);
        if fits { Ok(()) } else { Err(Error::new(Kind::Usage, message()).about_setting(&self.name)) }
    }
}

/// A number, a text or a boolean.
fn plain(value: &Value) -> Option<Json> {
    match value {
        Value::Integer(number) => Some((*number).into()),
        Value::Number(number) => serde_json::Number::from_f64(*number).map(Json::Number),
        Value::Boolean(truth) => Some((*truth).into()),
        Value::String(text) => text.to_str().ok().map(|text| (*text).into()),
        _ => None,
    }
}

/// The entries of the table `options`, in the order in which `source` names them.
pub(super) fn read(table: Option<&Table>, source: &str) -> Result<Vec<Declared>> {
    let mut options = Vec::new();
    for (name, value) in table.into_iter().flat_map(Table::pairs::<String, Value>).flatten() {
        options.push(Declared::read(name, &value)?);
    }
    options.sort_by_key(|option| (source.find(&format!("{} =", option.name)), option.name.clone()));
    Ok(options)
}

/// Takes the values of `declared` out of `values`; the others have their defaults.
///
/// # Errors
/// [`Kind::Usage`] names an option of the wrong type or out of its range.
pub(super) fn take(what: &str, declared: &[Declared], values: &mut Map<String, Json>) -> Result<Map<String, Json>> {
    let mut all = Map::new();
    for option in declared {
        let value = match values.shift_remove(&option.name) {
            Some(value) if !value.is_null() => {
                option.check(what, &value)?;
                value
            }
            _ => option.default.clone(),
        };
        all.insert(option.name.clone(), value);
    }
    Ok(all)
}

/// A table of plain values, such as `{ name = "gspo", seq = "step" }`.
pub(super) fn plain_table(lua: &mlua::Lua, table: &Table) -> Option<Map<String, Json>> {
    match lua.from_value(Value::Table(table.clone())) {
        Ok(Json::Object(map)) => Some(map),
        _ => None,
    }
}
