//! Duplicate rows: equal texts after normalisation, and near duplicates by the Jaccard similarity
//! of their word 5-grams.
//!
//! Candidates for near duplicates are found with MinHash and banding (Broder 1997; Leskovec et al.,
//! Mining of Massive Datasets, chapter 3), and their similarity is then computed exactly, so that
//! only a pair that shares no band is missed.

use std::collections::{BTreeSet, HashMap};

use super::texts::{hash, mixed, normalised, words};
use crate::error::Result;

/// Words of a shingle.
const SHINGLE: usize = 5;
/// Hash functions of a signature.
const HASHES: usize = 128;
/// Probability with which two texts of the threshold's similarity share a band.
const RECALL: f64 = 0.99;

/// A row that repeats an earlier one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Duplicate {
    pub(crate) row: u64,
    /// The earlier row, which is kept.
    pub(crate) of: u64,
    /// The Jaccard similarity of their shingles; 1 for equal texts.
    pub(crate) similarity: f64,
    /// Whether the normalised texts are equal.
    pub(crate) exact: bool,
}

/// Duplicates among `count` rows, in the order of the rows. Rows without text have none. With
/// `near`, rows of at least this similarity to an earlier row that is kept are duplicates, too.
/// `text` is called once for each row, and again for candidates.
///
/// # Errors
/// Errors of `text`.
pub(crate) fn duplicates(
    count: u64,
    near: Option<f64>,
    text: &dyn Fn(u64) -> Result<String>,
) -> Result<Vec<Duplicate>> {
    let mut pairs = Vec::new();
    let mut equal: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut bands = near.map(Bands::new);
    for row in 0..count {
        let row_text = text(row)?;
        let plain = normalised(&row_text);
        if plain.is_empty() {
            continue;
        }
        let same = equal.entry(hash(std::slice::from_ref(&plain))).or_default();
        let mut of = None;
        for other in same.iter() {
            if normalised(&text(*other)?) == plain {
                of = Some(*other);
                break;
            }
        }
        if let Some(of) = of {
            pairs.push(Duplicate { row, of, similarity: 1.0, exact: true });
            continue;
        }
        same.push(row);
        let (Some(bands), Some(threshold)) = (&mut bands, near) else { continue };
        let shingles = shingles(&row_text);
        if shingles.is_empty() {
            continue;
        }
        let keys = bands.keys(&shingles);
        let mut best: Option<(u64, f64)> = None;
        for other in bands.candidates(&keys) {
            let similarity = jaccard(&shingles, &self::shingles(&text(other)?));
            if similarity >= threshold && best.is_none_or(|(_, limit)| similarity > limit) {
                best = Some((other, similarity));
            }
        }
        match best {
            Some((of, similarity)) => pairs.push(Duplicate { row, of, similarity, exact: false }),
            None => bands.add(row, &keys),
        }
    }
    Ok(pairs)
}

/// The hashes of a text's shingles, sorted. A shorter text is one shingle.
fn shingles(text: &str) -> Vec<u64> {
    let tokens = words(text);
    if tokens.is_empty() {
        return Vec::new();
    }
    let mut all: Vec<u64> = tokens.windows(SHINGLE.min(tokens.len())).map(hash).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// |A ∩ B| / |A ∪ B| of two sorted lists.
fn jaccard(one: &[u64], two: &[u64]) -> f64 {
    let common = one.iter().filter(|value| two.binary_search(value).is_ok()).count();
    let all = one.len() + two.len() - common;
    if all == 0 { 0.0 } else { common as f64 / all as f64 }
}

/// Rows by the bands of their signatures.
struct Bands {
    /// Hash values of a band.
    width: usize,
    /// Number of a band and its hash -> rows.
    rows: HashMap<(usize, u64), Vec<u64>>,
}

impl Bands {
    fn new(threshold: f64) -> Self {
        Self { width: width(threshold), rows: HashMap::new() }
    }

    /// The hash of each band of the signature of shingles.
    fn keys(&self, shingles: &[u64]) -> Vec<u64> {
        let least = |number: usize| {
            let salt = mixed(number as u64 + 1);
            shingles.iter().map(|shingle| mixed(shingle ^ salt)).min().unwrap_or(0)
        };
        let signature: Vec<u64> = (0..HASHES).map(least).collect();
        signature.chunks_exact(self.width).map(|band| band.iter().fold(0, |all, value| mixed(all ^ value))).collect()
    }

    /// The rows that share a band, in order.
    fn candidates(&self, keys: &[u64]) -> BTreeSet<u64> {
        let of = |(band, key): (usize, &u64)| self.rows.get(&(band, *key)).into_iter().flatten().copied();
        keys.iter().enumerate().flat_map(of).collect()
    }

    fn add(&mut self, row: u64, keys: &[u64]) {
        for (band, key) in keys.iter().enumerate() {
            self.rows.entry((band, *key)).or_default().push(row);
        }
    }
}

/// The widest band with which two texts of this similarity are still found ([`RECALL`]): with b
/// bands of width r the probability is 1 - (1 - s^r)^b.
fn width(similarity: f64) -> usize {
    let recall = |width: usize| 1.0 - (1.0 - similarity.powi(width as i32)).powi((HASHES / width) as i32);
    (1..=HASHES).rev().find(|width| recall(*width) >= RECALL).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(texts: &[&str], near: Option<f64>) -> Vec<(u64, u64, bool)> {
        let text = |row: u64| Ok(texts[row as usize].to_owned());
        let pairs = duplicates(texts.len() as u64, near, &text).unwrap();
        pairs.into_iter().map(|pair| (pair.row, pair.of, pair.exact)).collect()
    }

    #[test]
    fn equal_texts_are_found_after_normalisation() {
        let texts = ["What is 2+3?", "what  is 2+3?\n", "What is 2-3?", "", " ", "What is 2+3?"];
        assert_eq!(found(&texts, None), [(1, 0, true), (5, 0, true)]);
    }

    #[test]
    fn near_duplicates_have_the_jaccard_similarity_of_their_shingles() {
        let long = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. \
                    How many clips did Natalia sell altogether in April and May?";
        let changed = long.replace("48", "50");
        let other =
            "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?";
        assert_eq!(found(&[long, other, &changed], Some(0.6)), [(2, 0, false)]);
        assert_eq!(found(&[long, other, &changed], Some(0.9)), []);
        // 31 words have 27 shingles; 5 of them have the number.
        let similarity = jaccard(&shingles(long), &shingles(&changed));
        assert!((similarity - 22.0 / 32.0).abs() < 1e-12, "{similarity}");
    }

    /// MinHash finds what a comparison of all pairs finds.
    #[test]
    fn candidates_cover_all_pairs_above_the_threshold() {
        let word = |n: u64| format!("w{}", mixed(n) % 50);
        let texts: Vec<String> = (0..200)
            .map(|row: u64| {
                let base = row / 4 * 1000;
                (0..60)
                    .map(|n| if n == row % 4 * 7 { format!("x{row}") } else { word(base + n) })
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        let text = |row: u64| Ok(texts[row as usize].clone());
        let pairs = duplicates(200, Some(0.7), &text).unwrap();
        let all: Vec<Vec<u64>> = texts.iter().map(|text| shingles(text)).collect();
        let mut kept: Vec<usize> = Vec::new();
        for (row, shingle_set) in all.iter().enumerate() {
            if !kept.iter().any(|other| jaccard(shingle_set, &all[*other]) >= 0.7) {
                kept.push(row);
            }
        }
        assert_eq!(200 - pairs.len(), kept.len());
        assert_eq!(kept.len(), 50);
    }

    #[test]
    fn bands_are_as_wide_as_the_recall_allows() {
        assert_eq!([0.5, 0.8, 0.95].map(width), [3, 6, 16]);
    }
}
