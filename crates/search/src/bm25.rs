//! BM25 scores and the passages with the best ones.
//!
//! The score of a passage is the sum over the query's terms `t`, repetitions included, of
//!
//! ```text
//! idf(t) * tf / (tf + k1 * (1 - b + b * length / average length))
//! idf(t) = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))
//! ```
//!
//! where `N` is the number of passages and `n(t)` the number of passages with the term. This is the
//! variant of Lucene since 8.0, of Pyserini and of `bm25s` (`method="lucene"`). Titles count
//! `title_boost` times: `tf = tf(text) + title_boost * tf(title)`, and the same for lengths, which
//! is the weighting of fields of BM25F (Robertson, Zaragoza, Taylor 2004). With a boost of 1, title
//! and text are one text.
//!
//! `tantivy` has its own scorer, whose k1 and b are constants (1.2, 0.75) and whose lengths are
//! rounded to one byte. This one supports any k1 and b and uses exact lengths, in f64. Passages
//! that cannot be among the best are skipped with MaxScore (Turtle and Flood 1995): a term adds
//! less than its idf, so that once the worst of the best `k` scores is above the sum of the
//! smallest weights, passages with only those terms are skipped.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tantivy::columnar::ColumnValues;
use tantivy::postings::{Postings, SegmentPostings};
use tantivy::{DocSet, TERMINATED};

/// Parameters of BM25.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bm25 {
    /// Saturation of the term frequency, 0 or more.
    pub k1: f64,
    /// Length normalisation, from 0 to 1.
    pub b: f64,
    /// Weight of a title relative to the text, 0 or more.
    pub title_boost: f64,
}

impl Default for Bm25 {
    /// The values of Lucene.
    fn default() -> Self {
        Self { k1: 1.2, b: 0.75, title_boost: 1.0 }
    }
}

impl Bm25 {
    /// Additional weight of a title's terms, which the postings of title and text already count
    /// once.
    pub(super) fn title_extra(self) -> f64 {
        if self.title_boost == 0.0 { 0.0 } else { self.title_boost - 1.0 }
    }

    /// The inverse document frequency of a term in `with` of `all` passages.
    pub(super) fn idf(all: u64, with: u64) -> f64 {
        let with = with as f64;
        ((all as f64 - with + 0.5) / (with + 0.5)).ln_1p()
    }
}

/// A term of the query in one segment.
pub(super) struct Cursor {
    /// Postings of title and text.
    pub(super) postings: SegmentPostings,
    /// Postings of titles; `None` if titles count once.
    pub(super) titles: Option<SegmentPostings>,
    /// Inverse document frequency times the occurrences in the query: an upper bound.
    pub(super) weight: f64,
}

impl Cursor {
    /// The term frequency in the current document.
    fn frequency(&mut self, extra: f64) -> f64 {
        let plain = f64::from(self.postings.term_freq());
        let Some(titles) = &mut self.titles else { return plain };
        let document = self.postings.doc();
        if titles.doc() < document {
            titles.seek(document);
        }
        if titles.doc() == document { plain + extra * f64::from(titles.term_freq()) } else { plain }
    }
}

/// Columns of one segment.
#[derive(Clone)]
pub(super) struct SegmentColumns {
    /// Number of the passage.
    pub(super) passage: Arc<dyn ColumnValues<u64>>,
    /// Number of terms of title and text, and of the title.
    pub(super) length: Arc<dyn ColumnValues<u64>>,
    pub(super) title_length: Arc<dyn ColumnValues<u64>>,
}

/// Inputs of a score other than the postings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) bm25: Bm25,
    /// Average length of a passage, titles weighted; above 0.
    pub(super) average: f64,
}

impl Weights {
    /// The part of the denominator that depends on the passage.
    fn norm(&self, columns: &SegmentColumns, document: u32) -> f64 {
        let Bm25 { k1, b, .. } = self.bm25;
        let mut length = columns.length.get_val(document) as f64;
        let extra = self.bm25.title_extra();
        if extra != 0.0 {
            length += extra * columns.title_length.get_val(document) as f64;
        }
        k1 * (1.0 - b + b * length / self.average)
    }
}

/// Rounding errors of a sum of scores, relative.
const ROUNDING: f64 = 1e-9;

/// Adds the best passages of a segment to `best`. Cursors are in order of their weights.
pub(super) fn search(weights: &Weights, columns: &SegmentColumns, cursors: &mut [Cursor], best: &mut Best) {
    let extra = weights.bm25.title_extra();
    // Upper bound of the sum of the first i + 1 terms.
    let mut limits = Vec::with_capacity(cursors.len());
    cursors.iter().fold(0.0, |sum, cursor| {
        limits.push(sum + cursor.weight);
        sum + cursor.weight
    });
    let mut parts = vec![0.0; cursors.len()];
    // The terms before it are read only for passages that have one of the other terms.
    let mut first = best.skipped(&limits);
    while first < cursors.len() {
        let document = cursors[first..].iter().map(|cursor| cursor.postings.doc()).min().unwrap_or(TERMINATED);
        if document == TERMINATED {
            break;
        }
        let norm = weights.norm(columns, document);
        let mut sum = 0.0;
        parts.fill(0.0);
        let score = |cursor: &mut Cursor| {
            let frequency = cursor.frequency(extra);
            // Both are 0 if k1 is 0 and a title boost of 0 makes the frequency 0.
            if frequency > 0.0 { cursor.weight * frequency / (frequency + norm) } else { 0.0 }
        };
        for at in first..cursors.len() {
            if cursors[at].postings.doc() == document {
                parts[at] = score(&mut cursors[at]);
                sum += parts[at];
                cursors[at].postings.advance();
            }
        }
        let mut possible = true;
        for at in (0..first).rev() {
            if best.is_below(sum + limits[at]) {
                possible = false;
                break;
            }
            let cursor = &mut cursors[at];
            if cursor.postings.doc() < document {
                cursor.postings.seek(document);
            }
            if cursor.postings.doc() == document {
                parts[at] = score(cursor);
                sum += parts[at];
            }
        }
        if possible {
            // Always summed in the same order, so that a score does not depend on skipped terms.
            best.offer(parts.iter().sum(), columns.passage.get_val(document));
            first = best.skipped(&limits);
        }
    }
}

/// The best passages so far: by score, then by number.
pub(super) struct Best {
    limit: usize,
    worst_first: BinaryHeap<Scored>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Scored {
    score: f64,
    passage: u64,
}

impl Eq for Scored {}

impl Ord for Scored {
    /// The worse one is greater.
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.passage.cmp(&other.passage))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Best {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, worst_first: BinaryHeap::with_capacity(limit + 1) }
    }

    fn offer(&mut self, score: f64, passage: u64) {
        if score > 0.0 {
            self.offer_any(score, passage);
        }
    }

    /// As `offer`, also for scores that are not positive.
    pub(super) fn offer_any(&mut self, score: f64, passage: u64) {
        self.worst_first.push(Scored { score, passage });
        if self.worst_first.len() > self.limit {
            self.worst_first.pop();
        }
    }

    /// Whether a passage with at most this score is not among the best. Equal scores may be.
    fn is_below(&self, score: f64) -> bool {
        let full = self.worst_first.len() == self.limit;
        full && self.worst_first.peek().is_some_and(|worst| score < worst.score * (1.0 - ROUNDING))
    }

    /// Number of terms, from the first, whose summed bounds are too small for a passage to be
    /// among the best.
    fn skipped(&self, limits: &[f64]) -> usize {
        limits.partition_point(|limit| self.is_below(*limit))
    }

    /// Passages and scores, best first.
    pub(super) fn ranked(self) -> Vec<(u64, f64)> {
        self.worst_first.into_sorted_vec().into_iter().map(|hit| (hit.passage, hit.score)).collect()
    }
}
