//! Rows of a recipe's datasets, from files, from its functions and from the recipe itself.

use std::sync::Arc;

use mlua::Value;
use serde_json::Value as Json;

use super::columns;
use super::convert::{self, Odd, kind};
use super::host::{Call, Entry};
use super::vm::{at_definition, definition};
use super::worker::Worker;
use crate::config::{Source, Trainer};
use crate::error::{Error, Kind, Result};
use crate::mdp::Demonstration;

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    Eval,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }
}

/// What a task has of its environment.
#[derive(Clone, Debug)]
pub struct OfTask {
    /// The environment's name; empty for the only one.
    pub env: String,
    /// The schemas of the tools that the policy is shown.
    pub tools: Arc<[Json]>,
    /// Steps after which it is cut off.
    pub max_steps: usize,
}

impl Worker {
    /// Number of rows; `None` if the recipe has no such split.
    pub fn rows(&self, split: Split) -> Result<Option<u64>> {
        match self.script.source_of(split) {
            None => Ok(None),
            Some(Source::Generated { count, .. }) => Ok(Some(*count)),
            Some(Source::Rows(rows)) => Ok(Some(rows.len() as u64)),
            Some(_) => Ok(self.script.dataset(split)?.map(super::dataset::Dataset::len)),
        }
    }

    /// Where a row comes from: `data.jsonl:17`, or the line of the function that makes it.
    pub fn place_of_row(&self, split: Split, index: u64) -> String {
        if let Ok(Some(file)) = self.script.dataset(split) {
            return file.place(index);
        }
        let row = self.recipe.rows[split as usize].as_ref().and_then(definition);
        row.unwrap_or_else(|| self.script.path.display().to_string())
    }

    /// One row (`index` from 0) as the script's env takes it.
    ///
    /// # Errors
    /// [`Kind::Data`] with file and line for a row that can't be read or lacks what the default `reset` (or
    /// supervised training) needs; [`Kind::Script`] if the function that makes rows fails.
    pub fn row(&self, split: Split, index: u64) -> Result<Json> {
        let mut row = match self.script.source_of(split) {
            None => return Err(Error::new(Kind::Data, format!("the recipe has no data.{}", split.name()))),
            Some(Source::Generated { count, seed }) => self.generate(split, index, *count, *seed)?,
            Some(Source::Rows(rows)) => usize::try_from(index)
                .ok()
                .and_then(|index| rows.get(index))
                .cloned()
                .ok_or_else(|| no_row(split, index, rows.len() as u64))?,
            Some(_) => match self.script.dataset(split)? {
                Some(file) => file.row(index)?,
                None => Json::Null,
            },
        };
        let supervised = matches!(self.script.settings.trainer, Trainer::Sft(_));
        let placed = |error: Error| error.at(self.place_of_row(split, index));
        columns::decode(&mut row).map_err(|why| placed(Error::new(Kind::Data, why)))?;
        let own_reset = supervised || self.envs.of(&row).map_err(placed)?.env.own_reset;
        if supervised && !Demonstration::is_one(&row) {
            let known: Vec<&str> = row.as_object().into_iter().flat_map(|row| row.keys()).map(String::as_str).collect();
            let mut hint = format!("it has {}", names(&known));
            if !matches!(self.script.source_of(split), Some(Source::Generated { .. } | Source::Rows(_))) {
                hint = format!("{hint}; columns = {{ messages = \"…\" }} renames one");
            }
            let message =
                "the row has no column `messages`, which r1.sft needs, nor those of another format (docs/sft.md)";
            return Err(placed(Error::new(Kind::Data, message)).hint(hint));
        }
        let needed: &[&str] =
            if supervised || own_reset { &[] } else { &["prompt", "problem", "question", "messages"] };
        let holds = |name: &&str| {
            row.get(name).is_some_and(|value| value.is_array() || (value.is_string() && *name != "messages"))
        };
        if !needed.is_empty() && !needed.iter().any(holds) {
            let known: Vec<&str> = row.as_object().into_iter().flat_map(|row| row.keys()).map(String::as_str).collect();
            let wanted = needed.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
            let mut hint = format!("it has {}", names(&known));
            if !matches!(self.script.source_of(split), Some(Source::Generated { .. } | Source::Rows(_))) {
                hint = format!("{hint}; columns = {{ {} = \"…\" }} renames one", needed[0]);
            }
            return Err(Error::new(
                Kind::Data,
                format!("the row has no column {wanted}, which the default reset needs"),
            )
            .at(self.place_of_row(split, index))
            .hint(hint));
        }
        Ok(row)
    }

    /// A row for each environment of the recipe, to try things on: the first that there is among the first 10,000 rows.
    pub fn rows_of_environments(&self, split: Split) -> Result<Vec<u64>> {
        const LOOKED_AT: u64 = 10_000;
        if !self.envs.named() {
            return Ok(vec![0]);
        }
        let (mut found, mut rows) = (Vec::new(), Vec::new());
        for index in 0..self.rows(split)?.unwrap_or(0).min(LOOKED_AT) {
            let name = self.envs.of(&self.row(split, index)?)?.env.name.clone();
            if !found.contains(&name) {
                found.push(name);
                rows.push(index);
            }
            if found.len() == self.envs.all.len() {
                break;
            }
        }
        Ok(rows)
    }

    /// What a task has of its environment.
    ///
    /// # Errors
    /// [`Kind::Data`] if its columns name an environment or a tool that there is not.
    pub fn of_task(&self, task: &Json) -> Result<OfTask> {
        let env = self.envs.of(task)?;
        Ok(OfTask { env: env.env.name.clone(), tools: env.schemas.clone(), max_steps: env.max_steps })
    }

    /// The name of the first environment, where rows name one.
    pub fn first_env(&self) -> Option<&str> {
        self.envs.first_named()
    }

    fn generate(&self, split: Split, index: u64, count: u64, seed: u64) -> Result<Json> {
        let Some(function) = &self.recipe.rows[split as usize] else {
            return Err(Error::new(Kind::Data, format!("data.{} has no row function", split.name())));
        };
        if index >= count {
            return Err(no_row(split, index, count));
        }
        let call = Call::new(Entry::Row, (seed, index), &self.vm.limits);
        let value: Value = self.vm.call_now(&call, function, index + 1).map_err(|failure| failure.error)?;
        if !value.is_table() {
            let message = format!("row({}) returned {}; it must return a table", index + 1, kind(&value));
            return Err(at_definition(function, message));
        }
        convert::to_json(&value, "row", Odd::Refuse).map_err(|why| at_definition(function, why))
    }
}

fn no_row(split: Split, index: u64, count: u64) -> Error {
    Error::new(Kind::Data, format!("there is no row {index}; data.{} has {count}", split.name()))
}

pub(super) fn names(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
