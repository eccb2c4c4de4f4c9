//! Parses a name and a table of options into typed options; errors name the option.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::counterparts;
use crate::error::{Error, Kind, Result, nearest};

/// A table of options of `what`. Nothing and an empty list (how an empty Lua table may arrive) are
/// an empty table.
pub(super) fn table(what: &str, options: &Value) -> Result<Map<String, Value>> {
    match options {
        Value::Null => Ok(Map::new()),
        Value::Array(list) if list.is_empty() => Ok(Map::new()),
        Value::Object(table) => Ok(table.clone()),
        other => Err(Error::new(Kind::Usage, format!("the options of `{what}` are a table, not {other}"))),
    }
}

fn fields<T: Serialize>(base: &T) -> Map<String, Value> {
    match serde_json::to_value(base) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Takes the options that are fields of `T` out of `table`; the others keep their value in `base`.
///
/// # Errors
/// [`Kind::Usage`] for a value of the wrong type.
pub(super) fn take_from<T: Serialize + DeserializeOwned>(
    what: &str,
    table: &mut Map<String, Value>,
    base: &T,
) -> Result<T> {
    let defaults = fields(base);
    let mut all = defaults.clone();
    for name in defaults.keys() {
        if let Some(value) = table.remove(name) {
            // One at a time, so that an error can name its option.
            let mut one = defaults.clone();
            one.insert(name.clone(), value.clone());
            if let Err(error) = serde_json::from_value::<T>(Value::Object(one)) {
                return Err(Error::new(Kind::Usage, format!("option `{name}` of `{what}`: {error}")));
            }
            all.insert(name.clone(), value);
        }
    }
    serde_json::from_value(Value::Object(all)).map_err(|error| Error::new(Kind::Internal, error.to_string()))
}

/// [`take_from`] the defaults of `T`.
pub(super) fn take<T: Default + Serialize + DeserializeOwned>(what: &str, table: &mut Map<String, Value>) -> Result<T> {
    take_from(what, table, &T::default())
}

/// Refuses what is left in `table`.
///
/// # Errors
/// [`Kind::Usage`] names the first option that nothing reads, and those that resemble it.
pub(super) fn refuse_rest(what: &str, table: &Map<String, Value>, known: &[String]) -> Result<()> {
    let Some(name) = table.keys().next() else { return Ok(()) };
    let near = nearest(name, known.iter().map(String::as_str));
    let hint = if near.is_empty() {
        format!("it has {}", known.join(", "))
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Err(Error::new(Kind::Usage, format!("`{what}` has no option `{name}`")).hint(hint))
}

/// The names of the fields.
pub(super) fn names<T: Serialize>(options: &T) -> Vec<String> {
    fields(options).keys().cloned().collect()
}

/// "There is no `kind` called `name`", with those that resemble it.
pub(super) fn unknown(kind: &str, name: &str, known: &[&str]) -> Error {
    let near = nearest(name, known.iter().copied());
    let hint = if let Some(hint) = counterparts::value_hint(&format!("trainer.{kind}"), name) {
        hint
    } else if near.is_empty() {
        format!("there are {}", known.join(", "))
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Error::new(Kind::Usage, format!("there is no {kind} `{name}`")).hint(hint)
}

/// Refuses a number outside its range.
pub(super) fn within(what: &str, name: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if value >= low && value <= high {
        return Ok(());
    }
    let range = if high.is_finite() { format!("from {low} to {high}") } else { format!("at least {low}") };
    Err(Error::new(Kind::Usage, format!("option `{name}` of `{what}` is {range}, not {value}")))
}

/// Refuses a number that is not from 0 to 1.
pub(super) fn from_zero_to_one(what: &str, name: &str, value: f64) -> Result<()> {
    within(what, name, value, 0.0, 1.0)
}

/// Refuses a negative number.
pub(super) fn at_least_zero(what: &str, name: &str, value: f64) -> Result<()> {
    within(what, name, value, 0.0, f64::INFINITY)
}
