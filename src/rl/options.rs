//! Parses a name and a table of options into typed options; errors name the option.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::counterparts;
use crate::error::{Error, Kind, Result, nearest};

/// A table of options of `what`. Null and an empty list (the form of an empty Lua table) are an
/// empty table.
pub(super) fn table(what: &str, options: &Value) -> Result<Map<String, Value>> {
    match options {
        Value::Null => Ok(Map::new()),
        Value::Array(list) if list.is_empty() => Ok(Map::new()),
        Value::Object(table) => Ok(table.clone()),
        other => Err(Error::new(Kind::Usage, format!("the options of `{what}` are a table, not {other}"))),
    }
}

/// The fields of a type, with their values.
pub(super) fn fields<T: Serialize>(base: &T) -> Map<String, Value> {
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
        if let Some(value) = table.shift_remove(name) {
            // Lua tables cannot hold nil: false turns an option off.
            let off = value == Value::Bool(false) && !defaults[name].is_boolean();
            all.insert(name.clone(), if off { Value::Null } else { value });
        }
    }
    serde_path_to_error::deserialize(Value::Object(all)).map_err(|error| {
        let message = format!("option `{}` of `{what}`: {}", error.path(), error.inner());
        Error::new(Kind::Usage, message).about_setting(error.path().to_string())
    })
}

/// [`take_from`] the defaults of `T`.
pub(super) fn take<T: Default + Serialize + DeserializeOwned>(what: &str, table: &mut Map<String, Value>) -> Result<T> {
    take_from(what, table, &T::default())
}

/// Refuses what is left in `table`.
///
/// # Errors
/// [`Kind::Usage`] names the first unknown option, and similar names.
pub(super) fn refuse_rest(what: &str, table: &Map<String, Value>, names: &[String]) -> Result<()> {
    let Some(name) = table.keys().next() else { return Ok(()) };
    let near = nearest(name, names.iter().map(String::as_str));
    let hint = if near.is_empty() {
        format!("it has {}", names.join(", "))
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Err(Error::new(Kind::Usage, format!("`{what}` has no option `{name}`")).about_setting(name).hint(hint))
}

/// The names of the fields.
pub(super) fn names<T: Serialize>(options: &T) -> Vec<String> {
    fields(options).keys().cloned().collect()
}

/// "There is no `kind` called `name`", with similar names.
pub(super) fn unknown(kind: &str, name: &str, names: &[&str]) -> Error {
    let near = nearest(name, names.iter().copied());
    let hint = if let Some(hint) = counterparts::value_hint(&format!("trainer.{kind}"), name) {
        hint
    } else if near.is_empty() {
        format!("there are {}", names.join(", "))
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
    let message = format!("option `{name}` of `{what}` is {range}, not {value}");
    Err(Error::new(Kind::Usage, message).about_setting(name))
}

/// Refuses a number that is not from 0 to 1.
pub(super) fn from_zero_to_one(what: &str, name: &str, value: f64) -> Result<()> {
    within(what, name, value, 0.0, 1.0)
}

/// Refuses a negative number.
pub(super) fn at_least_zero(what: &str, name: &str, value: f64) -> Result<()> {
    at_least(what, name, value, 0.0)
}

/// Refuses a number below `low`.
pub(super) fn at_least(what: &str, name: &str, value: f64, low: f64) -> Result<()> {
    within(what, name, value, low, f64::INFINITY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::rl::advantages::Estimator;
    use crate::rl::losses::TERMS;
    use crate::rl::objective::PolicyLoss;

    #[test]
    fn an_unknown_estimator_loss_or_option_is_refused_with_the_nearest_name() {
        let estimator = |name: &str, options: Value| Estimator::new(name, &options).unwrap_err().to_string();
        let loss = |name: &str, options: Value| PolicyLoss::new(name, &options).unwrap_err().to_string();
        assert_eq!(estimator("grop", Value::Null), "there is no estimator `grop`\n  hint: did you mean grpo?");
        assert!(loss("gsp", Value::Null).starts_with("there is no loss `gsp`\n  hint: did you mean gspo"));
        assert_eq!(
            estimator("gae", json!({"lamda": 0.9})),
            "`gae` has no option `lamda`\n  hint: did you mean lambda?"
        );
        assert!(loss("ppo", json!({"clip_hi": 0.3})).contains("did you mean clip_high"));
        assert!(loss("sapo", json!({"clip_high": 0.3})).contains("`sapo` has no option `clip_high`"));
        assert!(loss("dppo_tv", json!({"divergence": "kl"})).contains("`dppo_tv` has no option `divergence`"));
        assert!(estimator("gae", json!({"gamma": 1.5})).contains("option `gamma` of `gae` is from 0 to 1, not 1.5"));
        assert!(loss("ppo", json!({"clip_low": -0.1})).contains("option `clip_low` of `ppo`"));
        assert!(
            estimator("gigpo", json!({"mode": "std"})).contains("option `mode` of `gigpo` is mean_std or mean, not")
        );
        assert!(estimator("rloo", json!(3)).contains("the options of `rloo` are a table, not 3"));
    }

    #[test]
    fn the_options_of_every_loss_are_known_below() {
        assert_eq!(names(&TERMS), crate::algorithms::OF_EVERY_LOSS);
    }

    #[test]
    fn options_of_a_loss_replace_its_published_ones() {
        let options = |objective: &PolicyLoss| objective.formula.options();
        let changed = PolicyLoss::new("dppo_kl", &json!({"truncate": 5.0})).unwrap();
        assert_eq!(json!(options(&changed)), json!({"clip_low": 0.2, "clip_high": 0.2, "truncate": 5.0}));
        assert_eq!(json!(options(&PolicyLoss::named("dppo_kl").unwrap()))["truncate"], json!(20));
    }
}
