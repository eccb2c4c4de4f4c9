//! Settings of a recipe without effect: the condition in their declaration does not hold.

use serde_json::Value;

use super::settings;
use crate::schema::{Setting, is_off};

/// A setting without effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Lacking {
    /// `trainer.kl.kind`
    pub setting: &'static str,
    /// The condition: `trainer.kl.coef > 0`.
    pub need: String,
    /// The reason why the condition does not hold: `trainer.kl.coef is 0`.
    pub why: String,
}

/// The written settings whose condition does not hold. `values` has the values of all settings,
/// `written` those that were written. `supervised` says which trainer the recipe has.
///
/// A setting that is off needs nothing, and a table whose switch is written as off keeps its other
/// settings.
pub fn lacking(values: &Value, written: &Value, supervised: bool) -> Vec<Lacking> {
    let only = if supervised { "sft" } else { "" };
    let of_trainer = |setting: &&Setting| setting.only == only || setting.section() != "trainer";
    let lacks = |setting: &'static Setting| {
        let path = setting.path;
        if setting.needs.is_empty() || is_off(value_of(written, path)) {
            return None;
        }
        setting.needs.iter().find_map(|need| {
            let why = need.unmet(value_of(values, need.setting))?;
            let kept = need.is_switch_of(path) && !value_of(written, need.setting).is_null();
            (!kept).then(|| Lacking { setting: path, need: need.words(), why })
        })
    };
    settings().filter(of_trainer).filter_map(lacks).collect()
}

/// The value of a setting by its dotted name; null if there is none.
pub fn value_of<'a>(settings: &'a Value, key: &str) -> &'a Value {
    key.split('.').try_fold(settings, |value, name| value.get(name)).unwrap_or(&Value::Null)
}
