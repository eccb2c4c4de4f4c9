//! The order in which dataset rows are drawn: a new permutation in every epoch, computed without
//! storing it, or a fixed order; and how several datasets are mixed.

use std::cell::RefCell;

use sha2::{Digest, Sha256};

use crate::error::{Error, Kind, Result};
use crate::script::{DataPart, RowKey};

/// Most rows of a dataset that are sorted.
const MOST_SORTED: u64 = 10_000_000;

/// The row at each position of a run. A position's row depends only on the datasets, their weights
/// and the seed, so a resumed run draws the same rows as an uninterrupted one.
pub(crate) struct Order {
    parts: Vec<OrderedDataset>,
    /// A position, and the number of rows of each dataset before it.
    drawn: RefCell<(u64, Vec<u64>)>,
}

struct OrderedDataset {
    /// The usable rows, by their number in the split.
    rows: RowNumbers,
    /// Share of the positions.
    share: f64,
    /// Salt of the random stream of its order.
    salt: u64,
    /// Whether every epoch is a new permutation.
    shuffled: bool,
}

impl OrderedDataset {
    /// Its row at a position of the epochs over it.
    fn at(&self, position: u64, seed: u64) -> u64 {
        let rows = self.rows.len();
        let index = if self.shuffled { shuffled(position, rows, seed) } else { position % rows.max(1) };
        self.rows.get(index)
    }
}

enum RowNumbers {
    /// All rows of the dataset, from this number on.
    All {
        first: u64,
        count: u64,
    },
    Some(Vec<u64>),
}

impl RowNumbers {
    fn len(&self) -> u64 {
        match self {
            Self::All { count, .. } => *count,
            Self::Some(rows) => rows.len() as u64,
        }
    }

    fn get(&self, index: u64) -> u64 {
        match self {
            Self::All { first, .. } => first + index,
            Self::Some(rows) => usize::try_from(index).ok().and_then(|index| rows.get(index)).copied().unwrap_or(0),
        }
    }
}

impl Order {
    /// The order of the rows of `parts` without `left_out`, which is sorted.
    ///
    /// # Errors
    /// [`Kind::Data`] if a dataset has no usable rows.
    pub(crate) fn new(parts: &[DataPart], left_out: &[u64]) -> Result<Self> {
        let weighted = parts.iter().any(|part| part.weight.is_some());
        let mut first = 0;
        let mut datasets = Vec::with_capacity(parts.len());
        for part in parts {
            let all = first..first + part.rows;
            first = all.end;
            let without = left_out.iter().any(|row| all.contains(row));
            let rows = if without {
                RowNumbers::Some(all.filter(|row| left_out.binary_search(row).is_err()).collect())
            } else {
                RowNumbers::All { first: all.start, count: part.rows }
            };
            if rows.len() == 0 {
                let which = if part.name.is_empty() { String::new() } else { format!(" `{}`", part.name) };
                let message = format!("no row of the dataset{which} can be used: each one's prompt is too long");
                return Err(Error::new(Kind::Data, message).hint(
                    "lower sampling.max_new_tokens, or raise data.max_prompt_tokens or policy.max_context (at most \
                         the model's own context)",
                ));
            }
            let share = if weighted { part.weight.unwrap_or(1.0) } else { rows.len() as f64 };
            let salt = if parts.len() == 1 { 0 } else { named(&part.name) };
            datasets.push(OrderedDataset { rows, share, salt, shuffled: true });
        }
        let sum: f64 = datasets.iter().map(|part| part.share).sum();
        for part in &mut datasets {
            part.share /= sum;
        }
        Ok(Self { drawn: RefCell::new((0, vec![0; datasets.len()])), parts: datasets })
    }

    /// The rows of each dataset in the order in which they are stored, in every epoch.
    pub(crate) fn unshuffled(mut self) -> Self {
        self.parts.iter_mut().for_each(|part| part.shuffled = false);
        self
    }

    /// The rows of each dataset by a key, ascending, in every epoch. Rows with equal keys are in a
    /// random order, which depends on the seed.
    ///
    /// # Errors
    /// [`Kind::Script`] for a dataset that is too large to be sorted, or whose keys are numbers and
    /// text; errors of `key`.
    pub(crate) fn sorted(mut self, seed: u64, key: &mut dyn FnMut(u64) -> Result<RowKey>) -> Result<Self> {
        for part in &mut self.parts {
            let count = part.rows.len();
            if count > MOST_SORTED {
                let message = format!("row_order sorts all rows, and data.train has {count}");
                return Err(Error::new(Kind::Script, message).hint(format!("at most {MOST_SORTED} rows are sorted")));
            }
            let mut keyed: Vec<(RowKey, u64)> = Vec::new();
            for position in 0..count {
                let row = part.at(position, seed ^ part.salt);
                keyed.push((key(row)?, row));
            }
            let is_text = |pair: &(RowKey, u64)| matches!(pair.0, RowKey::Text(_));
            if keyed.iter().any(is_text) && !keyed.iter().all(is_text) {
                return Err(Error::new(Kind::Script, "row_order returned text for some rows and numbers for others"));
            }
            keyed.sort_by(|one, two| one.0.compare(&two.0));
            part.rows = RowNumbers::Some(keyed.into_iter().map(|(_, row)| row).collect());
            part.shuffled = false;
        }
        Ok(self)
    }

    /// Number of usable rows.
    pub(crate) fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows.len()).sum()
    }

    /// Whether several datasets are mixed. Their epochs end at different positions.
    pub(crate) fn is_mixed(&self) -> bool {
        self.parts.len() > 1
    }

    /// The row at a position of the run, by its number in the split.
    pub(crate) fn at(&self, position: u64, seed: u64) -> u64 {
        let [part] = &self.parts[..] else {
            let (which, within) = self.turn(position);
            let part = &self.parts[which];
            return part.at(within, seed ^ part.salt);
        };
        part.at(position, seed)
    }

    /// The first rows of each dataset in their own order, at most `limit` of each; all if it is 0.
    pub(crate) fn first(&self, limit: u64) -> Vec<u64> {
        let of = |part: &OrderedDataset| if limit == 0 { part.rows.len() } else { part.rows.len().min(limit) };
        self.parts.iter().flat_map(|part| (0..of(part)).map(|index| part.rows.get(index))).collect()
    }

    /// The dataset of a position, and the number of its rows before. The dataset that is furthest
    /// behind its share is next, so every part of the run has the same shares as the whole, up to
    /// one row.
    fn turn(&self, position: u64) -> (usize, u64) {
        let mut drawn = self.drawn.borrow_mut();
        if drawn.0 > position {
            *drawn = (0, vec![0; self.parts.len()]);
        }
        loop {
            let (at, counts) = &mut *drawn;
            let behind = |which: usize| self.parts[which].share * (*at + 1) as f64 - counts[which] as f64;
            let next =
                (1..self.parts.len()).fold(0, |best, which| if behind(which) > behind(best) { which } else { best });
            if *at == position {
                return (next, counts[next]);
            }
            counts[next] += 1;
            *at += 1;
        }
    }
}

/// The salt of a dataset's random stream.
fn named(name: &str) -> u64 {
    let digest = Sha256::digest(name);
    digest.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Row number `position` of the endless sequence of epochs over `rows` rows. An epoch contains
/// every row once; its order depends only on the seed and the epoch, so a resumed run draws the
/// same rows.
pub(crate) fn shuffled(position: u64, rows: u64, seed: u64) -> u64 {
    let rows = rows.max(1);
    let (epoch, mut index) = (position / rows, position % rows);
    let bits = (64 - (rows - 1).leading_zeros()).max(2).next_multiple_of(2);
    // A Feistel network permutes [0, 2^bits); walking its cycle until it lands inside permutes [0,
    // rows).
    loop {
        index = feistel(index, bits / 2, seed, epoch);
        if index < rows {
            return index;
        }
    }
}

fn feistel(value: u64, half: u32, seed: u64, epoch: u64) -> u64 {
    let mask = (1_u64 << half) - 1;
    let (mut left, mut right) = (value >> half, value & mask);
    for round in 0..4_u64 {
        let mut hash = Sha256::new();
        for word in [seed, epoch, round, right] {
            hash.update(word.to_le_bytes());
        }
        let digest = hash.finalize();
        let mixed = u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ]);
        (left, right) = (right, (left ^ mixed) & mask);
    }
    (left << half) | right
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_epoch_draws_every_row_once() {
        for rows in [1, 2, 3, 7, 64, 1000] {
            let first: HashSet<u64> = (0..rows).map(|position| shuffled(position, rows, 5)).collect();
            let second: HashSet<u64> = (rows..2 * rows).map(|position| shuffled(position, rows, 5)).collect();
            assert_eq!(first.len() as u64, rows);
            assert_eq!(first, second);
            assert!(first.iter().all(|row| *row < rows));
        }
    }

    #[test]
    fn seeds_and_epochs_differ() {
        let order = |seed, epoch: u64| (0..100).map(|i| shuffled(epoch * 100 + i, 100, seed)).collect::<Vec<_>>();
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_eq!(order(1, 1), order(1, 1));
    }

    fn part(name: &str, weight: Option<f64>, rows: u64) -> DataPart {
        DataPart { name: name.to_owned(), weight, rows, generated: false }
    }

    #[test]
    fn the_order_of_a_single_dataset_is_unchanged() {
        let order = Order::new(&[part("", None, 10)], &[]).unwrap();
        assert_eq!(order.rows(), 10);
        assert!((0..40).all(|position| order.at(position, 5) == shuffled(position, 10, 5)));
        let order = Order::new(&[part("", None, 5)], &[1, 3]).unwrap();
        let epoch: HashSet<u64> = (0..3).map(|position| order.at(position, 5)).collect();
        assert_eq!(epoch, HashSet::from([0, 2, 4]));
        assert!(Order::new(&[part("", None, 2)], &[0, 1]).is_err());
    }

    #[test]
    fn rows_are_in_their_own_order_or_sorted() {
        let order = Order::new(&[part("", None, 4)], &[2]).unwrap().unshuffled();
        assert_eq!((0..7).map(|position| order.at(position, 5)).collect::<Vec<_>>(), [0, 1, 3, 0, 1, 3, 0]);
        let mut key = |row: u64| Ok(RowKey::Number((row % 3) as f64));
        let sorted = |seed: u64, key: &mut dyn FnMut(u64) -> Result<RowKey>| {
            let order = Order::new(&[part("", None, 30)], &[]).unwrap().sorted(seed, key).unwrap();
            (0..60).map(|position| order.at(position, seed)).collect::<Vec<u64>>()
        };
        let one = sorted(1, &mut key);
        assert!(one[..10].iter().all(|row| row % 3 == 0) && one[20..30].iter().all(|row| row % 3 == 2), "{one:?}");
        assert_eq!(one[..30], one[30..]);
        assert_eq!(one[..30].iter().collect::<HashSet<_>>().len(), 30);
        assert_ne!(one, sorted(2, &mut key));
        let mut mixed = |row: u64| Ok(if row == 3 { RowKey::Text("x".to_owned()) } else { RowKey::Number(1.0) });
        let error = Order::new(&[part("", None, 5)], &[]).unwrap().sorted(1, &mut mixed).err().unwrap();
        assert_eq!(error.kind, Kind::Script);
    }

    #[test]
    fn datasets_are_mixed_by_weight() {
        let parts = [part("a", Some(3.0), 4), part("b", None, 100)];
        let order = Order::new(&parts, &[5]).unwrap();
        let drawn: Vec<u64> = (0..400).map(|position| order.at(position, 1)).collect();
        // Six of any eight positions are of `a`; an epoch of it takes every row once.
        for stretch in drawn.chunks(8) {
            assert_eq!(stretch.iter().filter(|row| **row < 4).count(), 6);
        }
        let a: Vec<u64> = drawn.iter().copied().filter(|row| *row < 4).collect();
        assert!(a.chunks(4).all(|epoch| epoch.iter().collect::<HashSet<_>>().len() == 4));
        assert!(!drawn.contains(&5) && drawn.iter().all(|row| *row < 104));
        // Positions can be computed in any order, without stored state.
        let fresh = Order::new(&parts, &[5]).unwrap();
        assert_eq!(fresh.at(333, 1), drawn[333]);
        assert_eq!(order.at(2, 1), drawn[2]);
        // Without weights every dataset has as many as it has rows.
        let order = Order::new(&[part("a", None, 25), part("b", None, 75)], &[]).unwrap();
        let epoch: HashSet<u64> = (0..100).map(|position| order.at(position, 1)).collect();
        assert_eq!(epoch.len(), 100);
        assert_eq!(order.first(2), [0, 1, 25, 26]);
        assert_eq!(order.first(0).len(), 100);
    }
}
