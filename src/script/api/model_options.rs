//! Options of `r1.model` and of its methods, which `programs` installs.

use mlua::Value;
use serde_json::{Map, Value as Json, json};

use super::args::{FromField, TableFields};
use super::arguments::arguments;
use crate::error::{Error, Kind};

arguments! {
    /// Options of `r1.model`.
    pub(crate) struct OpenOptions {
        format: Option<String>;
        ..policy: ["base", "device", "dtype", "max_context"];
    }

    /// Options of `Model:logprobs`.
    pub(crate) struct LogprobsOptions {
        top: usize = 0;
        temperature: f64 = 1.0;
    }

    /// Options of `Model:generate`: of sampling, and of the response.
    pub(crate) struct SampleOptions {
        logit_bias: Option<LogitBias>;
        ..others: [
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "top_logprobs",
            "max_new_tokens",
            "max_seconds",
            "stop",
            "seed",
            "stop_ids",
            "tools",
            "ignore_eos",
        ];
    }
}

/// Numbers by token id, with the ids as text. A script writes them as numbers or as text.
pub(crate) struct LogitBias(pub(crate) Map<String, Json>);

impl FromField for LogitBias {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        const WANTED: &str = "numbers by token id";
        let Value::Table(numbers) = value else { return Err(fields.refuse(name, WANTED, value)) };
        let mut bias = Map::new();
        numbers.for_each(|id: Value, by: Value| {
            let id = match &id {
                Value::Integer(id) => id.to_string(),
                Value::String(id) => id.to_string_lossy(),
                other => return Err(fields.refuse(name, WANTED, other)),
            };
            let by = match by {
                Value::Integer(by) => json!(by),
                Value::Number(by) if by.is_finite() => json!(by),
                other => return Err(fields.refuse(&format!("{name}[{id}]"), "a number", &other)),
            };
            if bias.insert(id.clone(), by).is_none() {
                return Ok(());
            }
            let why = format!("`{name}` has two values for id {id}");
            Err(fields.refused(name, Error::new(Kind::Script, why)))
        })?;
        Ok(Self(bias))
    }
}
