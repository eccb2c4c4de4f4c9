//! Ranks texts by a query: BM25 (Robertson and Zaragoza 2009) over words.
//!
//! [`TextIndex`] indexes all texts for many queries; [`rank`] answers one query without an index.

use std::collections::{BTreeSet, HashMap};

/// BM25 parameters: `k1` limits the weight of repeated words, `b` the length normalisation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bm25Weights {
    pub(crate) k1: f64,
    pub(crate) b: f64,
}

impl Default for Bm25Weights {
    fn default() -> Self {
        Self { k1: 1.2, b: 0.75 }
    }
}

impl Bm25Weights {
    /// Score of `count` occurrences of a word in a text of `length` words, where `having` of
    /// `texts` texts contain the word.
    fn score(self, count: f64, length: f64, mean: f64, having: f64, texts: f64) -> f64 {
        let rarity = (1.0 + (texts - having + 0.5) / (having + 0.5)).ln();
        rarity * count * (self.k1 + 1.0) / (count + self.k1 * (1.0 - self.b + self.b * length / mean))
    }
}

/// An inverted index of texts.
#[derive(Debug)]
pub(crate) struct TextIndex {
    weights: Bm25Weights,
    vocabulary: HashMap<Box<str>, u32>,
    /// Whether new texts add words to the index.
    grows: bool,
    /// For each word: (text, occurrences), in order of texts.
    texts: Vec<Vec<(u32, u32)>>,
    /// Number of words of each text.
    lengths: Vec<u32>,
    mean: f64,
    /// Approximate size in bytes.
    bytes: usize,
}

impl TextIndex {
    /// An index of all words.
    pub(crate) fn new(weights: Bm25Weights) -> Self {
        let (vocabulary, texts, lengths) = (HashMap::new(), Vec::new(), Vec::new());
        Self { weights, vocabulary, grows: true, texts, lengths, mean: 0.0, bytes: 0 }
    }

    pub(crate) fn add(&mut self, text: &str) {
        let (mut ids, mut length) = (Vec::new(), 0);
        words(text, |word| {
            length += 1;
            match self.vocabulary.get(word) {
                Some(id) => ids.push(*id),
                None if self.grows => ids.push(self.add_word(word)),
                None => {}
            }
        });
        let text_index = self.lengths.len() as u32;
        self.lengths.push(length);
        self.bytes += 4;
        ids.sort_unstable();
        for same in ids.chunk_by(|a, b| a == b) {
            self.texts[same[0] as usize].push((text_index, same.len() as u32));
            self.bytes += 8;
        }
    }

    fn add_word(&mut self, word: &str) -> u32 {
        let id = self.texts.len() as u32;
        self.vocabulary.insert(word.into(), id);
        self.bytes += word.len() + 64;
        self.texts.push(Vec::new());
        id
    }

    /// Completes the index after the last text.
    pub(crate) fn finish(&mut self) {
        let total: f64 = self.lengths.iter().map(|length| f64::from(*length)).sum();
        self.mean = total / self.lengths.len().max(1) as f64;
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `limit` best texts that share words with the query: (index from 0, score), best first,
    /// ties in order.
    ///
    /// # Errors
    /// The error of `go_on`, which is called between words.
    pub(crate) fn search<E>(
        &self,
        query: &str,
        limit: usize,
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<(usize, f64)>, E> {
        let mut scores = vec![0.0; self.lengths.len()];
        let total = self.lengths.len() as f64;
        for word in distinct(query) {
            let Some(id) = self.vocabulary.get(word.as_str()) else { continue };
            go_on()?;
            let having = &self.texts[*id as usize];
            for (index, count) in having {
                let length = f64::from(self.lengths[*index as usize]);
                scores[*index as usize] +=
                    self.weights.score(f64::from(*count), length, self.mean, having.len() as f64, total);
            }
        }
        Ok(best(scores, limit))
    }
}

/// The texts that share words with the query: (index from 0, score), best first, ties in order.
/// Only the query's words are indexed.
///
/// # Errors
/// The error of `go_on`, which is called between the steps.
pub(crate) fn rank<E>(
    query: &str,
    texts: &[String],
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Vec<(usize, f64)>, E> {
    let mut index = TextIndex { grows: false, ..TextIndex::new(Bm25Weights::default()) };
    for word in distinct(query) {
        index.add_word(&word);
    }
    for text in texts {
        go_on()?;
        index.add(text);
    }
    index.finish();
    index.search(query, usize::MAX, go_on)
}

/// The positive scores, best first.
fn best(scores: Vec<f64>, limit: usize) -> Vec<(usize, f64)> {
    let mut ranked: Vec<(usize, f64)> = scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
    let order = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if limit == 0 {
        return Vec::new();
    }
    if ranked.len() > limit {
        ranked.select_nth_unstable_by(limit - 1, order);
        ranked.truncate(limit);
    }
    ranked.sort_unstable_by(order);
    ranked
}

/// The distinct words of a query, sorted.
fn distinct(query: &str) -> BTreeSet<String> {
    let mut distinct = BTreeSet::new();
    words(query, |word| {
        distinct.insert(word.to_owned());
    });
    distinct
}

/// Calls `each` with every word. A word is a run of letters and digits in lower case; in scripts
/// without spaces between words every character is a word.
fn words(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::new();
    for c in text.chars() {
        let alone = matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x3040..=0x30FF | 0x3400..=0x9FFF);
        if (alone || !c.is_alphanumeric()) && !word.is_empty() {
            each(&word);
            word.clear();
        }
        if alone {
            each(c.encode_utf8(&mut [0; 4]));
        } else if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        } else if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
    }
    if !word.is_empty() {
        each(&word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bm25_index_and_direct_ranking_agree() {
        let texts: Vec<String> = (0..200_u32)
            .map(|n| {
                let text_words = (0..=n % 13).map(|k| format!("w{}", (n * 31 + k * k * 17) % 23));
                text_words.collect::<Vec<_>>().join(" ") + if n % 7 == 0 { " 红 rare" } else { "" }
            })
            .collect();
        let mut index = TextIndex::new(Bm25Weights::default());
        for text in &texts {
            index.add(text);
        }
        index.finish();
        for query in ["w1 w2 W3", "rare", "红色 w5", "nothing", "", "w1 w1 w1"] {
            let all = ranked(query, &texts);
            assert_eq!(search_all(&index, query, usize::MAX), all, "{query}");
            for limit in [0, 1, 3, 50] {
                assert_eq!(search_all(&index, query, limit), all[..all.len().min(limit)], "{query} {limit}");
            }
        }
        let mut plain = TextIndex::new(Bm25Weights { k1: 0.0, b: 0.0 });
        for text in &texts {
            plain.add(text);
        }
        plain.finish();
        // With k1 = 0 and b = 0 all texts that contain the word have the same score.
        let scores: Vec<f64> = search_all(&plain, "rare", 200).into_iter().map(|(_, score)| score).collect();
        assert!(scores.len() == 29 && scores.iter().all(|score| score.to_bits() == scores[0].to_bits()));
        assert_eq!(search_all(&TextIndex::new(Bm25Weights::default()), "x", 5), []);
    }

    #[test]
    fn ranking_stops_at_an_error_of_the_callback() {
        let texts = vec!["a".to_owned(); 10];
        let mut left = 3;
        let stopped = rank("a", &texts, || {
            left -= 1;
            if left == 0 { Err("stop") } else { Ok(()) }
        });
        assert_eq!(stopped, Err("stop"));
    }

    fn search_all(index: &TextIndex, query: &str, limit: usize) -> Vec<(usize, f64)> {
        index.search(query, limit, || Ok::<_, std::convert::Infallible>(())).unwrap_or_else(|never| match never {})
    }

    fn order(query: &str, texts: &[&str]) -> Vec<usize> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        ranked(query, &texts).into_iter().map(|(index, _)| index).collect()
    }

    fn ranked(query: &str, texts: &[String]) -> Vec<(usize, f64)> {
        rank(query, texts, || Ok::<_, std::convert::Infallible>(())).unwrap_or_else(|never| match never {})
    }

    #[test]
    fn ranking_prefers_rare_words_and_short_texts() {
        let texts =
            ["the key is red", "the door is blue and the key is elsewhere, they say", "the sky", "Ein Schlüssel"];
        assert_eq!(order("red key", &texts), [0, 1]);
        assert_eq!(order("SCHLÜSSEL?", &texts), [3]);
        assert!(order("unknown", &texts).is_empty() && order("", &texts).is_empty() && order("x", &[]).is_empty());
        assert_eq!(order("a", &["a", "a"]), [0, 1]);
    }

    #[test]
    fn ranking_splits_scripts_without_spaces_into_characters() {
        assert_eq!(order("红色", &["钥匙是蓝色的", "门是红色的", "天空"]), [1, 0]);
    }

    #[test]
    fn scores_follow_the_bm25_formula() {
        let texts = ["a b".to_owned(), "b".to_owned()];
        let (_, score) = ranked("a", &texts)[0];
        let rarity = (1.0_f64 + 1.5 / 1.5).ln();
        let expected = rarity * 2.2 / (1.0 + 1.2 * (0.25 + 0.75 * 2.0 / 1.5));
        assert!((score - expected).abs() < 1e-12);
    }
}
