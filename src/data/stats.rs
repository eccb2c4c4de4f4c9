//! Statistics of the columns of a dataset: types, missing values, lengths, distinct values,
//! repeated rows.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::texts::text_of;
use crate::error::Result;
use crate::json::Odd;

/// Columns with at most this many different values list them.
const FEW: usize = 10;
/// Longest value that is listed, in characters.
const LONGEST: usize = 40;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Statistics {
    pub(crate) rows: u64,
    /// Rows that are equal to an earlier one in every column.
    pub(crate) repeated_rows: u64,
    /// In the order in which they first occur.
    pub(crate) columns: Vec<ColumnStatistics>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ColumnStatistics {
    pub(crate) name: String,
    /// Type -> number of values.
    pub(crate) types: BTreeMap<&'static str, u64>,
    /// Rows without a value: null, empty text, or no such column.
    pub(crate) missing: u64,
    /// Different values.
    pub(crate) distinct: u64,
    /// The values and their numbers, if there are few, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) values: Vec<(String, u64)>,
    /// Of text and messages, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) characters: Option<Distribution>,
    /// The same in tokens, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<Distribution>,
    /// Of numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) numbers: Option<Distribution>,
    /// Of lists, in items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) items: Option<Distribution>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) least: f64,
    pub(crate) mean: f64,
    pub(crate) median: f64,
    /// 95 % of the values are at most this.
    pub(crate) p95: f64,
    pub(crate) most: f64,
    /// Numbers of values in intervals of equal width from the smallest to the largest.
    pub(crate) histogram: Vec<u64>,
}

/// Intervals of a histogram.
const INTERVALS: usize = 40;

impl Distribution {
    /// `None` without values. Quantiles are values of the data (the nearest rank).
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (least, highest) = (*values.first()?, *values.last()?);
        let rank = |share: f64| {
            let position = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
            values.get(position - 1).copied().unwrap_or(highest)
        };
        let mut histogram = vec![0; if highest > least { INTERVALS } else { 1 }];
        let last = histogram.len() - 1;
        for value in &values {
            let position =
                if highest > least { (value - least) / (highest - least) * histogram.len() as f64 } else { 0.0 };
            histogram[(position as usize).min(last)] += 1;
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { least, mean, median: rank(0.5), p95: rank(0.95), most: highest, histogram })
    }
}

/// A column while rows are read.
#[derive(Default)]
struct ColumnScan {
    types: BTreeMap<&'static str, u64>,
    filled: u64,
    seen: HashSet<[u8; 16]>,
    values: BTreeMap<String, u64>,
    many: bool,
    characters: Vec<f64>,
    tokens: Vec<f64>,
    numbers: Vec<f64>,
    items: Vec<f64>,
}

/// Number of tokens of a text.
pub(crate) type TokenCount<'a> = dyn Fn(&str) -> Result<usize> + 'a;

/// Reads all rows.
///
/// # Errors
/// Errors of `row` and `tokens`.
pub(crate) fn statistics(
    count: u64,
    row: &dyn Fn(u64) -> Result<Map<String, Json>>,
    tokens: Option<&TokenCount<'_>>,
) -> Result<Statistics> {
    let mut columns: Vec<(String, ColumnScan)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let (mut seen, mut repeated_rows) = (HashSet::new(), 0);
    for index in 0..count {
        let row = row(index)?;
        repeated_rows += u64::from(!seen.insert(digest(&Json::Object(sorted(&row)))));
        for (name, value) in &row {
            let number = *places.entry(name.clone()).or_insert_with(|| {
                columns.push((name.clone(), ColumnScan::default()));
                columns.len() - 1
            });
            columns[number].1.add(value, tokens)?;
        }
    }
    let columns = columns.into_iter().map(|(name, column)| column.finish(name, count)).collect();
    Ok(Statistics { rows: count, repeated_rows, columns })
}

/// The columns by name, so that their order does not matter.
fn sorted(row: &Map<String, Json>) -> Map<String, Json> {
    let ordered: BTreeMap<&String, &Json> = row.iter().collect();
    ordered.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn digest(value: &Json) -> [u8; 16] {
    let digest = Sha256::digest(value.to_string());
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

fn is_messages(items: &[Json]) -> bool {
    !items.is_empty() && items.iter().all(|item| item.get("role").is_some_and(Json::is_string))
}

/// The number of bytes that a value of a row is; `None` for other values.
pub(crate) fn byte_count(value: &Json) -> Option<usize> {
    match Odd::of(value)? {
        Odd::Bytes(bytes) => Some(bytes.len()),
        Odd::Number(_) => None,
    }
}

impl ColumnScan {
    fn add(&mut self, value: &Json, tokens: Option<&TokenCount<'_>>) -> Result<()> {
        let mut text = None;
        let kind = match value {
            Json::Null => return Ok(()),
            Json::String(string) if string.is_empty() => return Ok(()),
            Json::String(string) => {
                text = Some(string.clone());
                "text"
            }
            Json::Bool(_) => "boolean",
            Json::Number(number) => {
                self.numbers.extend(number.as_f64());
                "number"
            }
            Json::Array(items) if is_messages(items) => {
                text = Some(text_of(value));
                self.items.push(items.len() as f64);
                "messages"
            }
            Json::Array(items) => {
                self.items.push(items.len() as f64);
                "list"
            }
            Json::Object(_) if byte_count(value).is_some() => "bytes",
            Json::Object(_) => "object",
        };
        self.filled += 1;
        *self.types.entry(kind).or_default() += 1;
        self.seen.insert(digest(value));
        if let Some(text) = &text {
            self.characters.push(text.chars().count() as f64);
            if let Some(tokens) = tokens {
                self.tokens.push(tokens(text)? as f64);
            }
        }
        if !self.many && kind != "bytes" {
            let shown = text.unwrap_or_else(|| value.to_string());
            *self.values.entry(shown).or_default() += 1;
            self.many = self.values.len() > FEW || self.values.keys().any(|value| value.chars().count() > LONGEST);
            if self.many {
                self.values.clear();
            }
        }
        Ok(())
    }

    fn finish(self, name: String, rows: u64) -> ColumnStatistics {
        let mut values: Vec<(String, u64)> = self.values.into_iter().collect();
        values.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
        // Values that all occur once are not a category.
        if values.iter().all(|(_, count)| *count == 1) && rows > 1 {
            values.clear();
        }
        ColumnStatistics {
            name,
            types: self.types,
            missing: rows - self.filled,
            distinct: self.seen.len() as u64,
            values,
            characters: Distribution::of(self.characters),
            tokens: Distribution::of(self.tokens),
            numbers: Distribution::of(self.numbers),
            items: Distribution::of(self.items),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_have_types_lengths_and_missing_values() {
        let rows = [
            json!({ "problem": "ab", "level": 1, "tags": [1, 2], "kind": "x" }),
            json!({ "problem": "äöü", "level": 2.5, "kind": "y" }),
            json!({ "problem": "", "level": null, "kind": "x" }),
            json!({ "kind": "x", "problem": "ab", "level": 1, "tags": [1, 2] }),
        ];
        let row = |index: u64| Ok(rows[index as usize].as_object().unwrap().clone());
        let tokens = |text: &str| Ok(text.len());
        let statistics = statistics(4, &row, Some(&tokens)).unwrap();
        assert_eq!((statistics.rows, statistics.repeated_rows), (4, 1));
        let names: Vec<&str> = statistics.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["problem", "level", "tags", "kind"]);
        let [problem, level, tags, kind] = &statistics.columns[..] else { panic!("four columns") };
        assert_eq!((problem.missing, problem.distinct), (1, 2));
        let characters = problem.characters.clone().unwrap();
        assert_eq!((characters.least, characters.median, characters.most), (2.0, 2.0, 3.0));
        assert!((characters.mean - 7.0 / 3.0).abs() < 1e-12);
        assert_eq!(problem.tokens.as_ref().map(|lengths| lengths.most), Some(6.0));
        assert_eq!((level.missing, level.types["number"]), (1, 3));
        assert_eq!((tags.missing, tags.items.as_ref().unwrap().mean), (2, 2.0));
        assert_eq!(kind.values, [("x".to_owned(), 3), ("y".to_owned(), 1)]);
    }

    #[test]
    fn a_summary_has_quantiles_and_a_histogram() {
        let summary = Distribution::of((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!((summary.median, summary.p95, summary.mean), (50.0, 95.0, 50.5));
        assert_eq!((summary.histogram.len(), summary.histogram.iter().sum::<u64>()), (40, 100));
        assert_eq!(Distribution::of(vec![3.0, 3.0]).unwrap().histogram, [2]);
        assert_eq!(Distribution::of(Vec::new()), None);
    }
}
