//! The condition for a setting to have an effect, on another setting, like `depends on` in Kconfig.

use serde::Serialize;
use serde_json::Value as Json;

/// A condition on another setting. If it does not hold, the setting has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The other setting: `trainer.kl.coef`.
    pub setting: &'static str,
    pub is: Is,
}

/// The condition on the other setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Is {
    /// A number above 0.
    Positive,
    True,
    /// Set, and not empty.
    Set,
    /// One of these names.
    OneOf(&'static [&'static str]),
}

impl Need {
    /// `trainer.kl.coef > 0`, `data.eval`, `trainer.decay = "linear" or "cosine"`.
    pub fn words(&self) -> String {
        let setting = self.setting;
        match self.is {
            Is::Positive => format!("{setting} > 0"),
            Is::True => format!("{setting} = true"),
            Is::Set => setting.to_owned(),
            Is::OneOf(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                match names.split_last() {
                    Some((last, [])) => format!("{setting} = {last}"),
                    Some((last, others)) => format!("{setting} = {} or {last}", others.join(", ")),
                    None => setting.to_owned(),
                }
            }
        }
    }

    /// The reason why the condition does not hold for this value: `trainer.kl.coef is 0`.
    pub fn unmet(&self, value: &Json) -> Option<String> {
        let holds = match self.is {
            Is::OneOf(names) => value.as_str().is_some_and(|name| names.contains(&name)),
            Is::Positive | Is::True | Is::Set => !is_off(value),
        };
        let shown = match value {
            _ if holds => return None,
            Json::Null => "not set".to_owned(),
            Json::Number(number) if number.as_f64() == Some(0.0) => "0".to_owned(),
            value if self.is == Is::Set && is_off(value) => "empty".to_owned(),
            value => value.to_string(),
        };
        Some(format!("{} is {shown}", self.setting))
    }

    /// Whether the other setting switches its table on and off, and this setting is in that table.
    pub fn is_switch_of(&self, path: &str) -> bool {
        let table = |path: &'static str| path.rsplit_once('.').map_or("", |(table, _)| table);
        let own_table = table(self.setting);
        !matches!(self.is, Is::OneOf(_))
            && own_table.contains('.')
            && path.strip_prefix(own_table).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// Whether a value switches its setting off: nothing, 0, false or empty.
pub fn is_off(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Bool(truth) => !truth,
        Json::Number(number) => number.as_f64() == Some(0.0),
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(fields) => fields.is_empty(),
    }
}
