//! The functions of a recipe that order and weigh training rows: `row_order` and `row_weight`.

use std::cmp::Ordering;

use mlua::Value;
use serde_json::{Value as Json, json};

use super::worker::Worker;
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::Split;
use crate::script::runtime::convert::{self, float, show};
use crate::script::runtime::failure::describe;
use crate::script::runtime::host::{Call, EntryPoint};
use crate::script::runtime::place::at_definition;

/// A result of `row_order`.
#[derive(Clone, Debug, PartialEq)]
pub enum RowKey {
    Number(f64),
    Text(String),
}

impl RowKey {
    /// The order of two keys of the same type; numbers are finite.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => one.total_cmp(two),
            (Self::Text(one), Self::Text(two)) => one.cmp(two),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

impl Worker {
    /// Whether the recipe sorts its training rows.
    pub fn has_row_order(&self) -> bool {
        self.recipe.row_order.is_some()
    }

    /// Whether the recipe weighs its training rows.
    pub fn has_row_weight(&self) -> bool {
        self.recipe.row_weight.is_some()
    }

    /// The key of a training row; `None` if the recipe does not sort them.
    ///
    /// # Errors
    /// [`Kind::Script`] where the function fails or returns something else than a finite number or
    /// text; errors of [`Worker::row`].
    pub fn row_key(&self, index: u64) -> Result<Option<RowKey>> {
        let Some(function) = &self.recipe.row_order else { return Ok(None) };
        let row = self.row(Split::Train, index)?;
        let input = convert::from_row(&self.vm.lua, &row).map_err(|error| describe(&error).error)?;
        let call = Call::new(EntryPoint::Curriculum, (0, index), &self.vm.limits);
        let value: Value = self.vm.call_now(&call, function, input).map_err(|failure| failure.error)?;
        match (&value, float(&value)) {
            (_, Some(number)) if number.is_finite() => Ok(Some(RowKey::Number(number))),
            (Value::String(text), _) => Ok(Some(RowKey::Text(text.to_string_lossy()))),
            (other, _) => {
                let message = format!("row_order returned {}; it must return a finite number or text", show(other));
                Err(self.broken("row_order", index, at_definition(function, message)))
            }
        }
    }

    /// The probability that a training row is drawn on its turn; 1 without a function `row_weight`.
    ///
    /// # Errors
    /// [`Kind::Script`] where the function fails or returns something else than a number from 0 to
    /// 1; errors of [`Worker::row`].
    pub fn row_weight(&self, index: u64, successes: f64, attempts: f64) -> Result<f64> {
        let Some(function) = &self.recipe.row_weight else { return Ok(1.0) };
        let row = self.row(Split::Train, index)?;
        let past = json!({ "successes": successes, "attempts": attempts });
        let convert = |json: &Json| convert::from_row(&self.vm.lua, json).map_err(|error| describe(&error).error);
        let call = Call::new(EntryPoint::Curriculum, (1, index), &self.vm.limits);
        let input = (convert(&past)?, convert(&row)?);
        let value: Value = self.vm.call_now(&call, function, input).map_err(|failure| failure.error)?;
        float(&value).filter(|weight| (0.0..=1.0).contains(weight)).ok_or_else(|| {
            let message = format!("row_weight returned {}; it must return a number from 0 to 1", show(&value));
            self.broken("row_weight", index, at_definition(function, message))
        })
    }

    fn broken(&self, function: &str, index: u64, error: Error) -> Error {
        let location = self.place_of_row(Split::Train, index);
        let subject = Subject::Returned { function: function.to_owned(), field: None };
        Error { kind: Kind::Script, ..error }.about(subject).hint(format!("the row is {location}"))
    }
}
