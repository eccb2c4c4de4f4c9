//! Texts by likeness to a query: BM25 (Robertson and Zaragoza 2009) over words, for notes and small collections.

use std::collections::BTreeMap;

/// How soon more occurrences of a word stop to count, and how much long texts are held back.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The texts that share words with the query, best first, equal ones in their order: index from 0, and score.
///
/// # Errors
/// That of `go_on`, which is asked between the steps.
pub(crate) fn rank<E>(
    query: &str,
    texts: &[String],
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Vec<(usize, f64)>, E> {
    let mut counted: Vec<BTreeMap<String, f64>> = Vec::with_capacity(texts.len());
    for text in texts {
        go_on()?;
        counted.push(counts(text));
    }
    let lengths: Vec<f64> = counted.iter().map(|words| words.values().sum()).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len().max(1) as f64;
    let mut scores = vec![0.0; texts.len()];
    for word in counts(query).keys() {
        go_on()?;
        let having = counted.iter().filter(|words| words.contains_key(word)).count() as f64;
        let rarity = (1.0 + (texts.len() as f64 - having + 0.5) / (having + 0.5)).ln();
        for ((score, words), length) in scores.iter_mut().zip(&counted).zip(&lengths) {
            if let Some(count) = words.get(word) {
                *score += rarity * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / mean));
            }
        }
    }
    let mut found: Vec<(usize, f64)> = scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Ok(found)
}

/// How often each word occurs. A word is a run of letters and digits in lower case; scripts that leave no space between
/// words are read letter by letter.
fn counts(text: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    let mut word = String::new();
    let mut end = |word: &mut String| {
        if !word.is_empty() {
            *counts.entry(std::mem::take(word)).or_insert(0.0) += 1.0;
        }
    };
    for c in text.chars() {
        let alone = matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x3040..=0x30FF | 0x3400..=0x9FFF);
        if alone || !c.is_alphanumeric() {
            end(&mut word);
        }
        if alone {
            end(&mut c.to_string());
        } else if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
    }
    end(&mut word);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_when_it_is_told_to() {
        let texts = vec!["a".to_owned(); 10];
        let mut left = 3;
        let stopped = rank("a", &texts, || {
            left -= 1;
            if left == 0 { Err("stop") } else { Ok(()) }
        });
        assert_eq!(stopped, Err("stop"));
    }

    fn order(query: &str, texts: &[&str]) -> Vec<usize> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        ranked(query, &texts).into_iter().map(|(index, _)| index).collect()
    }

    fn ranked(query: &str, texts: &[String]) -> Vec<(usize, f64)> {
        rank(query, texts, || Ok::<_, std::convert::Infallible>(())).unwrap_or_else(|never| match never {})
    }

    #[test]
    fn rare_words_and_short_texts_come_first() {
        let texts =
            ["the key is red", "the door is blue and the key is elsewhere, they say", "the sky", "Ein Schlüssel"];
        assert_eq!(order("red key", &texts), [0, 1]);
        assert_eq!(order("SCHLÜSSEL?", &texts), [3]);
        assert!(order("unknown", &texts).is_empty() && order("", &texts).is_empty() && order("x", &[]).is_empty());
        assert_eq!(order("a", &["a", "a"]), [0, 1]);
    }

    #[test]
    fn scripts_without_spaces_are_read_by_letters() {
        assert_eq!(order("红色", &["钥匙是蓝色的", "门是红色的", "天空"]), [1, 0]);
    }

    #[test]
    fn scores_are_those_of_the_formula() {
        let texts = ["a b".to_owned(), "b".to_owned()];
        let (_, score) = ranked("a", &texts)[0];
        let rarity = (1.0_f64 + 1.5 / 1.5).ln();
        let expected = rarity * 2.2 / (1.0 + 1.2 * (0.25 + 0.75 * 2.0 / 1.5));
        assert!((score - expected).abs() < 1e-12);
    }
}
