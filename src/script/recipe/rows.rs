//! Rows of a recipe's datasets, from files, from row functions and from the recipe itself.

use mlua::Value;
use serde_json::Value as Json;

use super::columns;
use super::datasets::NamedDataset;
use super::worker::Worker;
use crate::config::{Generated, Source, Trainer};
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::Demonstration;
pub use crate::mdp::Split;
use crate::schema::join;
use crate::script::runtime::convert::{self, NonJson, kind};
use crate::script::runtime::host::{Call, EntryPoint};
use crate::script::runtime::place::{at_definition, at_function, definition};
use crate::text::schema_order::order_tools;

/// The columns that the default reset reads.
const OF_RESET: [&str; 4] = ["prompt", "problem", "question", "messages"];

/// A dataset of a split.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPart {
    /// Its name in the recipe; empty for a single dataset.
    pub name: String,
    /// Sampling weight relative to the other datasets; `None` if not set.
    pub weight: Option<f64>,
    pub rows: u64,
    /// The rows are made by a function of the recipe.
    pub generated: bool,
}

impl Worker {
    /// Number of rows; `None` if the recipe has no such split.
    pub fn rows(&self, split: Split) -> Result<Option<u64>> {
        if self.script.source_of(split).is_none() {
            return Ok(None);
        }
        Ok(Some(self.parts(split)?.iter().map(|part| part.rows).sum()))
    }

    /// The datasets of a split, in the order of their rows.
    ///
    /// # Errors
    /// [`Kind::Data`] for files that cannot be read.
    pub fn parts(&self, split: Split) -> Result<Vec<DataPart>> {
        let part = |named: NamedDataset<'_>| {
            let rows = self.count(split, &named)?;
            let generated = matches!(named.source, Source::Generated(_));
            Ok(DataPart { name: named.name.to_owned(), weight: named.weight, rows, generated })
        };
        self.script.parts(split).into_iter().map(part).collect()
    }

    fn count(&self, split: Split, named: &NamedDataset<'_>) -> Result<u64> {
        Ok(match named.source {
            Source::Generated(generated) => generated.count,
            Source::Rows(rows) => rows.len() as u64,
            _ => self.script.dataset(split, named)?.map_or(0, crate::data::Dataset::len),
        })
    }

    /// The dataset of a row, and the row's index in it.
    fn find(&self, split: Split, index: u64) -> Result<Option<(NamedDataset<'_>, u64)>> {
        let mut within = index;
        let parts = self.script.parts(split);
        if let [alone] = parts[..] {
            return Ok(Some((alone, index)));
        }
        for named in parts {
            let rows = self.count(split, &named)?;
            if within < rows {
                return Ok(Some((named, within)));
            }
            within -= rows;
        }
        Ok(None)
    }

    /// The place of a row: `data.jsonl:17`, the line of its row function, or `recipe.lua:5,
    /// data.train[2]` for a row in the recipe.
    pub fn place_of_row(&self, split: Split, index: u64) -> String {
        let script = || self.script.path.display().to_string();
        let Some((named, within)) = self.find(split, index).ok().flatten() else { return script() };
        if let Ok(Some(file)) = self.script.dataset(split, &named) {
            return file.place(within);
        }
        if let Source::Rows(_) = named.source {
            let table = format!("data.{}", split.name());
            let table = if named.name.is_empty() { table } else { join(&table, named.name) };
            let name = format!("{table}[{}]", within + 1);
            return format!("{}, {name}", self.script.place_of(&name));
        }
        self.recipe.rows[split as usize].get(named.name).and_then(definition).unwrap_or_else(script)
    }

    /// An error about a row: with the row as its subject, the column that the error names, and the
    /// place of the row.
    pub fn about_row(&self, split: Split, index: u64, mut error: Error) -> Error {
        let dataset = self.find(split, index).ok().flatten().and_then(|(named, within)| {
            if let Source::Rows(_) = named.source {
                return Some(Subject::Row { file: self.script.path.clone(), row: within, field: None });
            }
            let dataset = self.script.dataset(split, &named).ok().flatten()?;
            dataset.subject(within)
        });
        if let Some(Subject::Row { file, row, .. }) = dataset {
            let field = match error.subject.take().map(|subject| *subject) {
                Some(Subject::Column(column)) => Some(column),
                Some(other) => {
                    error = error.about(other);
                    None
                }
                None => None,
            };
            error = error.about(Subject::Row { file, row, field });
        }
        error.at(self.place_of_row(split, index))
    }

    /// One row (`index` from 0), as the script's environment takes it.
    ///
    /// # Errors
    /// [`Kind::Data`] with file and line for a row that cannot be read or lacks a column needed by
    /// the default `reset` (or by supervised training); [`Kind::Script`] if the row function fails.
    pub fn row(&self, split: Split, index: u64) -> Result<Json> {
        if self.script.source_of(split).is_none() {
            return Err(Error::new(Kind::Data, format!("the recipe has no data.{}", split.name())));
        }
        let Some((named, within)) = self.find(split, index)? else {
            return Err(no_row(split, index, self.rows(split)?.unwrap_or(0)));
        };
        let mut row = match named.source {
            Source::Generated(Generated { count, seed }) => self.generate(split, named.name, within, *count, *seed)?,
            Source::Rows(rows) => usize::try_from(within)
                .ok()
                .and_then(|index| rows.get(index))
                .cloned()
                .ok_or_else(|| no_row(split, index, rows.len() as u64))?,
            _ => match self.script.dataset(split, &named)? {
                Some(file) => file.row(within)?,
                None => Json::Null,
            },
        };
        if matches!(named.source, Source::Generated(_) | Source::Rows(_)) {
            order_tools(&mut row);
        }
        if let Some(fields) = row.as_object_mut() {
            let fill = [("data_source", Some(named.name).filter(|name| !name.is_empty())), ("env", named.env)];
            for (column, value) in fill.into_iter().filter_map(|(column, value)| Some((column, value?))) {
                let cell = fields.entry(column).or_insert(Json::Null);
                if cell.is_null() {
                    *cell = value.into();
                }
            }
        }
        let supervised = matches!(self.script.settings.trainer, Trainer::Sft(_));
        let placed = |error: Error| self.about_row(split, index, error);
        columns::decode(&mut row).map_err(|invalid| placed(invalid.into()))?;
        if !supervised {
            self.store_row_images(&mut row).map_err(placed)?;
        }
        let own_reset = supervised || self.envs.of(split, &row).map_err(placed)?.env.own_reset;
        let holds = |name: &&str| {
            row.get(name).is_some_and(|value| value.is_array() || (value.is_string() && *name != "messages"))
        };
        let (message, renamed) = if supervised && !Demonstration::is_supported(&row) {
            let why =
                "the row has no column `messages`, which r1.sft needs, nor those of another format (docs/guide/sft.md)";
            (why.to_owned(), "messages")
        } else if !own_reset && !OF_RESET.iter().any(holds) {
            let wanted = OF_RESET.map(|name| format!("`{name}`")).join(" or ");
            (format!("the row has no column {wanted}, which the default reset needs"), OF_RESET[0])
        } else {
            return Ok(row);
        };
        let mut hint = format!("it has {}", columns_of(&row));
        if !matches!(named.source, Source::Generated(_) | Source::Rows(_)) {
            hint = format!("{hint}; columns = {{ {renamed} = \"…\" }} renames one");
        }
        Err(placed(Error::new(Kind::Data, message)).hint(hint))
    }

    /// One row per environment of the recipe, for trials: the first ones among the first 10,000
    /// rows.
    pub fn rows_of_environments(&self, split: Split) -> Result<Vec<u64>> {
        const LOOKED_AT: u64 = 10_000;
        if !self.envs.named(split) {
            return Ok(vec![0]);
        }
        let (mut env_names, mut rows) = (Vec::new(), Vec::new());
        for index in 0..self.rows(split)?.unwrap_or(0).min(LOOKED_AT) {
            let name = self.envs.of(split, &self.row(split, index)?)?.env.name.clone();
            if !env_names.contains(&name) {
                env_names.push(name);
                rows.push(index);
            }
            if env_names.len() == self.envs.count(split) {
                break;
            }
        }
        Ok(rows)
    }

    fn generate(&self, split: Split, name: &str, index: u64, count: u64, seed: u64) -> Result<Json> {
        let Some(function) = self.recipe.rows[split as usize].get(name) else {
            return Err(Error::new(Kind::Data, format!("data.{} has no row function", split.name())));
        };
        if index >= count {
            return Err(no_row(split, index, count));
        }
        let call = Call::new(EntryPoint::Row, (seed, index), &self.vm.limits);
        let value: Value = self.vm.call_now(&call, function, index + 1).map_err(|failure| failure.error)?;
        if !value.is_table() {
            let message = format!("row({}) returned {}; it must return a table", index + 1, kind(&value));
            return Err(at_definition(function, message));
        }
        convert::to_json(&value, "row", NonJson::TagBytes).map_err(|not_plain| at_function(function, not_plain.into()))
    }
}

fn no_row(split: Split, index: u64, count: u64) -> Error {
    Error::new(Kind::Data, format!("there is no row {index}; data.{} has {count}", split.name()))
}

/// The names of a row's columns, in words.
pub(super) fn columns_of(row: &Json) -> String {
    let columns = row.as_object().into_iter().flat_map(serde_json::Map::keys);
    let names: Vec<String> = columns.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
