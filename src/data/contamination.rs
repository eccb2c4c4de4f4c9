//! Overlap of training rows with evaluation rows, by n-grams of words.
//!
//! A training row is contaminated if it shares an n-gram of words, without case and punctuation,
//! with an evaluation row (Brown et al. 2020, appendix C: n = 13). As there, n-grams that are in
//! more than ten training texts are ignored: they are instructions around the problem, not the
//! problem. An evaluation text of fewer than n words is compared as a whole.

use std::collections::{HashMap, HashSet};

use super::texts::{hash, words};
use crate::error::Result;

/// How overlap is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlapOptions {
    /// Words of an n-gram.
    pub(crate) n: usize,
    /// N-grams in more training texts than this are ignored; 0: none are.
    pub(crate) common: u64,
}

/// A training row that overlaps with an evaluation row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contaminated {
    /// The training row.
    pub(crate) row: u64,
    /// The evaluation row with the first common n-gram.
    pub(crate) eval: u64,
    /// Number of n-grams of the training row that are in an evaluation row.
    pub(crate) ngrams: u64,
    /// The first of them.
    pub(crate) ngram: String,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    /// In the order of the training rows.
    pub(crate) rows: Vec<Contaminated>,
    /// N-grams that were ignored because they are common.
    pub(crate) ignored: Vec<String>,
    /// Evaluation rows that are in some training row.
    pub(crate) eval_rows: u64,
    /// Evaluation rows that have fewer than n words.
    pub(crate) short: u64,
}

pub(crate) struct DatasetTexts<'a> {
    pub(crate) count: u64,
    pub(crate) text: &'a dyn Fn(u64) -> Result<String>,
}

/// What the evaluation rows contain.
#[derive(Default)]
struct Known {
    /// Hash of an n-gram -> the first evaluation row with it.
    ngrams: HashMap<u64, u64>,
    /// Hash of all words of a short text -> its row.
    whole: HashMap<u64, u64>,
    short: u64,
}

/// Compares the training rows with the evaluation rows. Texts of training rows are read twice.
///
/// # Errors
/// Errors of the texts.
pub(crate) fn overlap(train: &DatasetTexts<'_>, eval: &DatasetTexts<'_>, options: OverlapOptions) -> Result<Overlap> {
    let OverlapOptions { n, common } = options;
    let mut evaluated = Known::default();
    for row in 0..eval.count {
        let tokens = words(&(eval.text)(row)?);
        if tokens.is_empty() {
            continue;
        }
        if tokens.len() < n {
            evaluated.short += 1;
            evaluated.whole.entry(hash(&tokens)).or_insert(row);
        }
        for ngram in tokens.windows(n) {
            evaluated.ngrams.entry(hash(ngram)).or_insert(row);
        }
    }
    // Different training texts with an n-gram, up to one more than are allowed.
    let mut texts: HashMap<u64, HashSet<u64>> = HashMap::new();
    if common > 0 {
        for row in 0..train.count {
            let tokens = words(&(train.text)(row)?);
            let text = hash(&tokens);
            for ngram in tokens.windows(n).map(hash).filter(|ngram| evaluated.ngrams.contains_key(ngram)) {
                let entry = texts.entry(ngram).or_default();
                if entry.len() as u64 <= common {
                    entry.insert(text);
                }
            }
        }
    }
    let is_common = |ngram: &u64| texts.get(ngram).is_some_and(|entry| entry.len() as u64 > common);
    let mut result = Overlap { short: evaluated.short, ..Overlap::default() };
    let (mut seen, mut ignored) = (HashSet::new(), HashSet::new());
    for row in 0..train.count {
        let tokens = words(&(train.text)(row)?);
        let mut entry: Option<Contaminated> = None;
        let mut count = |eval: u64, ngram: &[String]| {
            seen.insert(eval);
            let entry = entry.get_or_insert_with(|| Contaminated { row, eval, ngrams: 0, ngram: ngram.join(" ") });
            entry.ngrams += 1;
        };
        if tokens.len() < n
            && let Some(eval) = evaluated.whole.get(&hash(&tokens))
        {
            count(*eval, &tokens);
        }
        for ngram in tokens.windows(n) {
            let key = hash(ngram);
            let Some(eval) = evaluated.ngrams.get(&key) else { continue };
            if is_common(&key) {
                if ignored.insert(key) {
                    result.ignored.push(ngram.join(" "));
                }
            } else {
                count(*eval, ngram);
            }
        }
        result.rows.extend(entry);
    }
    result.eval_rows = seen.len() as u64;
    Ok(result)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn compared(train: &[String], eval: &[&str], options: OverlapOptions) -> Overlap {
        let train_text = |row: u64| Ok(train[row as usize].clone());
        let eval_text = |row: u64| Ok(eval[row as usize].to_owned());
        let train = DatasetTexts { count: train.len() as u64, text: &train_text };
        let eval = DatasetTexts { count: eval.len() as u64, text: &eval_text };
        overlap(&train, &eval, options).unwrap()
    }

    const FOUR: OverlapOptions = OverlapOptions { n: 4, common: 2 };

    #[test]
    fn rows_that_share_an_ngram_are_contaminated() {
        let train = ["The robe takes two bolts, and half.", "Nothing in common here at all.", "takes TWO bolts and"];
        let train = train.map(str::to_owned);
        let overlap = compared(&train, &["x y z w", "A robe takes two bolts and half that."], FOUR);
        let first = Contaminated { row: 0, eval: 1, ngrams: 3, ngram: "robe takes two bolts".to_owned() };
        let second = Contaminated { row: 2, eval: 1, ngrams: 1, ngram: "takes two bolts and".to_owned() };
        assert_eq!(overlap.rows, [first, second]);
        assert_eq!((overlap.eval_rows, overlap.short, overlap.ignored.len()), (1, 0, 0));
    }

    #[test]
    fn instructions_that_many_texts_share_are_ignored() {
        let train: Vec<String> = (0..5).map(|n| format!("Solve this step by step: problem {n}")).collect();
        let eval = ["Solve this step by step: problem of the test"];
        assert_eq!(compared(&train, &eval, FOUR).rows, []);
        assert_eq!(compared(&train, &eval, FOUR).ignored.len(), 3);
        assert_eq!(compared(&train, &eval, OverlapOptions { common: 0, ..FOUR }).rows.len(), 5);
        // Repeats of one text are one text.
        let same = vec!["Solve this step by step: the only one".to_owned(); 5];
        assert_eq!(compared(&same, &eval, FOUR).rows.len(), 5);
    }

    #[test]
    fn short_texts_are_compared_as_a_whole() {
        let train = ["What is 2+2?", "What is 2+2 in binary?"].map(str::to_owned);
        let overlap = compared(&train, &["what is 2 2"], OverlapOptions { n: 13, common: 10 });
        assert_eq!(overlap.rows.iter().map(|contaminated| contaminated.row).collect::<Vec<u64>>(), [0]);
        assert_eq!(overlap.short, 1);
    }
}
