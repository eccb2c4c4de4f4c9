//! Declarations of settings: `section!` declares a table of settings once. It generates the typed
//! struct, its defaults, the reader with its errors, the entry of the reference
//! (docs/reference/settings.md, `r1 doc`, editor types), and the rule for a reload of the script.
//!
//! The settings of r1 are in `config`; this module has the macros that declare them.

mod field;
mod misfit;
mod need;
mod section;

use serde::Serialize;
use serde_json::Value as Json;

pub use crate::{choices, names, section};
pub use field::{Field, KiB, MiB, Time};
pub use misfit::{Misfit, MisfitReason, join};
pub use need::{Is, Need, is_off};
pub use section::{Section, Table, fields_of, read};

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Dotted name, as on the command line: `trainer.lr`.
    pub path: &'static str,
    /// The trainer that has it, if two have a setting of this name: `sft`, or empty.
    pub only: &'static str,
    /// `number`, `integer`, `boolean`, `string`, `list`, `table`, or the values there are: `"auto"
    /// | "cpu"`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The type in Luau, for editors.
    #[serde(skip)]
    pub lua: String,
    /// `seconds`, `MiB`, `tokens`, `steps` …; empty for plain numbers and text.
    pub unit: &'static str,
    /// As JSON; `null` if leaving it out has a meaning.
    pub default: String,
    /// The allowed values, if the type has others; empty for all.
    pub range: &'static str,
    pub doc: &'static str,
    /// The conditions without which it has no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    /// The time at which a change in the script takes effect in a run.
    pub reload: Reload,
    /// The effect of `key=value` on the command line.
    #[serde(skip)]
    pub written: ValueSyntax,
    /// Whether it is a table whose names are not fixed, but depend on its value or the script.
    #[serde(skip)]
    pub open: bool,
}

/// The time at which a setting changes in a run whose script was changed (docs/guide/reload.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reload {
    /// With the next step of training.
    NextStep,
    /// With the next group of trajectories.
    NextGroup,
    /// Its options with the next step; another name waits for a restart.
    Options,
    /// With the next step, except that it stays 0, or stays above 0, until a restart.
    Switch,
    /// Parts that are built at the start of a run depend on it.
    Restart,
}

impl Reload {
    /// The time of the change, as text.
    pub fn words(self) -> &'static str {
        match self {
            Self::NextStep => "next step",
            Self::NextGroup => "next group",
            Self::Options => "next step; another name after a restart",
            Self::Switch => "next step; from 0 or to 0 after a restart",
            Self::Restart => "after a restart",
        }
    }
}

/// The syntax of the text after `key=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSyntax {
    /// JSON if it parses, else text.
    Json,
    /// Text; a quoted JSON string is unquoted.
    Text,
    /// Text, unless it is a list, a table, a quoted string or `null` as JSON.
    TextOrTable,
}

impl Setting {
    /// A declared setting, by its type and its default.
    pub fn of<F: Field>(path: &'static str, doc: &'static str, default: &F::Value) -> Self {
        let default = serde_json::to_value(default).unwrap_or(Json::Null);
        Self {
            kind: F::kind(),
            lua: F::lua(),
            default: shown(&default),
            written: F::WRITTEN,
            open: F::OPEN,
            ..Self::new(path, "", doc)
        }
    }

    /// A setting that no section declares.
    pub fn new(path: &'static str, kind: &str, doc: &'static str) -> Self {
        Self {
            path,
            only: "",
            kind: kind.to_owned(),
            lua: String::new(),
            unit: "",
            default: "null".to_owned(),
            range: "",
            doc: doc.trim_ascii(),
            needs: Vec::new(),
            reload: Reload::NextStep,
            written: if kind == "string" { ValueSyntax::Text } else { ValueSyntax::Json },
            open: false,
        }
    }

    #[must_use]
    pub fn default(mut self, json: &str) -> Self {
        json.clone_into(&mut self.default);
        self
    }

    #[must_use]
    pub fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// `≥ 1`, `> 0`, `0 to 1`, `0 ≤ x < 1`, which is checked; or text, for a range that is checked
    /// elsewhere.
    #[must_use]
    pub fn range(mut self, range: &'static str) -> Self {
        self.range = range;
        self
    }

    /// Has no effect unless `setting` is this: a recipe with the one and not the other is refused,
    /// and the reference states the condition. A setting does not need itself, so that the option
    /// of a whole table may name the switch in it.
    #[must_use]
    pub fn needs(mut self, setting: &'static str, is: Is) -> Self {
        if setting != self.path {
            self.needs.push(Need { setting, is });
        }
        self
    }

    /// The condition as text: `trainer.kl.coef > 0`. Empty if there is none.
    pub fn needed(&self) -> String {
        self.needs.iter().map(Need::words).collect::<Vec<_>>().join("; ")
    }

    /// Waits for a restart when a script is reloaded.
    #[must_use]
    pub fn restart(self) -> Self {
        self.reload(Reload::Restart)
    }

    #[must_use]
    pub fn reload(mut self, reload: Reload) -> Self {
        self.reload = reload;
        self
    }

    #[must_use]
    pub fn written(mut self, written: ValueSyntax) -> Self {
        self.written = written;
        self
    }

    /// A table with arbitrary names.
    #[must_use]
    pub fn open(mut self) -> Self {
        self.open = true;
        self
    }

    /// The last part of its path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// `trainer`; empty for `name`, `seed` and `needs`.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Whether this is the setting `path`, or one of the section or table `path`.
    pub fn is_below(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Documentation with default, unit and range in one sentence, for editors.
    pub fn summary(&self) -> String {
        let default = match self.default.as_str() {
            "null" | "[]" | "\"\"" => String::new(),
            table if table.starts_with('{') => String::new(),
            default => format!("default {default}"),
        };
        let needed = if self.needs.is_empty() { String::new() } else { format!("needs {}", self.needed()) };
        let notes = [&default, self.unit, self.range, &needed].into_iter().filter(|text| !text.is_empty());
        let notes: Vec<&str> = notes.collect();
        if notes.is_empty() {
            return self.doc.to_owned();
        }
        format!("{} ({}).", self.doc.trim_end_matches('.'), notes.join(", "))
    }

    /// The value of the text after `key=`.
    pub fn value(&self, text: &str) -> Json {
        self.written.value(text)
    }
}

impl ValueSyntax {
    /// The value of the text after `key=`.
    pub fn value(self, text: &str) -> Json {
        let json = serde_json::from_str::<Json>(text).ok();
        let json = json.filter(|json| match self {
            Self::Json => true,
            Self::Text => json.is_string(),
            Self::TextOrTable => !json.is_number() && !json.is_boolean(),
        });
        json.unwrap_or_else(|| text.into())
    }
}

/// A default as text: `8`, `1e-6`, a choice by its name.
fn shown(json: &Json) -> String {
    match json {
        Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            Some(float) if float.abs() < 1e-3 => format!("{float:e}"),
            _ => number.to_string(),
        },
        Json::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")),
        Json::Object(fields) if fields.len() == 1 && fields.contains_key("name") => shown(&fields["name"]),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
