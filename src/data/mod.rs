//! Datasets of tasks: rows of files, a catalogue of published datasets, and the operations of
//! `r1 data`.
//!
//! - `rows`: [`Dataset`], rows of JSONL, JSON, CSV, Parquet and Arrow files; `write`: the reverse
//! - `catalog`: published datasets by name, with their sources and licences; `get` downloads one,
//!   `mapping` converts its columns to those that recipes read
//! - `verl`: rows in verl's columns, and back
//! - `stats`, `split`, `dedup`, `contamination`: operations on rows; `texts`: the text of a row

mod catalog;
mod contamination;
mod dedup;
mod get;
mod mapping;
mod rows;
mod split;
mod stats;
mod texts;
mod verl;
mod write;

pub(crate) use catalog::{CATALOG, published};
pub(crate) use contamination::{DatasetTexts, OverlapOptions, overlap};
pub(crate) use dedup::duplicates;
pub(crate) use get::{Fetched, GetOptions, get};
pub(crate) use rows::{CsvFile, Dataset, check_place, find, listed, open_text, utf8};
pub(crate) use split::{Amount, Division, split};
pub(crate) use stats::{byte_count, statistics};
pub(crate) use texts::{TextColumns, column, text_of};
pub(crate) use verl::{VerlOptions, from_verl, is_verl, to_verl};
pub(crate) use write::{check_output, write_rows};
