//! Text to terms: the same function for passages and queries.
//!
//! r1 computes terms itself instead of using `tantivy`'s tokenizers, so that the length of a
//! passage is exactly its number of terms and an index can be compared with other implementations
//! of BM25 term by term.

use tantivy::tokenizer::{Language, Stemmer, TextAnalyzer, TokenStream, WhitespaceTokenizer};

use r1_base::schema::names;

/// Longest term in bytes. Longer terms are dropped: they are data such as base64, not words.
pub(super) const LONGEST_TERM: usize = 255;

/// Lucene's English stop words, which `bm25s` also has as `stopwords="en"`.
const STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
];

names! {
    /// A function from text to terms.
    #[derive(Default)]
    pub enum Analyzer {
        /// Runs of letters and digits, in lower case. Chinese characters and Hiragana are a term
        /// each.
        #[default]
        Standard = "standard",
        /// As [`Analyzer::Standard`], without stop words, stemmed by Snowball's English stemmer.
        English = "english",
        /// Parts between white space, unchanged.
        None = "none",
    }
}

impl Analyzer {
    /// Appends the terms of a text to `out`, each preceded by a space unless `out` is empty, and
    /// returns their number. No term has white space in it.
    pub(super) fn analyze(self, text: &str, out: &mut String) -> u64 {
        match self {
            Self::None => {
                let terms = text.split_whitespace().filter(|term| term.len() <= LONGEST_TERM);
                terms.map(|term| push(out, term)).sum()
            }
            Self::Standard => words(text, |word| push(out, word)),
            Self::English => {
                let mut plain = String::with_capacity(text.len());
                words(text, |word| if STOP_WORDS.contains(&word) { 0 } else { push(&mut plain, word) });
                let tokens = WhitespaceTokenizer::default();
                let mut stemmer = TextAnalyzer::builder(tokens).filter(Stemmer::new(Language::English)).build();
                let mut stream = stemmer.token_stream(&plain);
                let mut count = 0;
                while stream.advance() {
                    count += push(out, &stream.token().text);
                }
                count
            }
        }
    }

    /// The terms of a query, in order, with repetitions.
    pub fn terms(self, text: &str) -> Vec<String> {
        let mut joined = String::new();
        self.analyze(text, &mut joined);
        joined.split_ascii_whitespace().map(str::to_owned).collect()
    }
}

fn push(out: &mut String, term: &str) -> u64 {
    if !out.is_empty() {
        out.push(' ');
    }
    out.push_str(term);
    1
}

/// Calls `take` with every word in lower case; returns the sum of its results.
fn words(text: &str, mut take: impl FnMut(&str) -> u64) -> u64 {
    let mut total = 0;
    let mut lower = String::new();
    let mut give = |word: &str| {
        if word.is_empty() || word.len() > LONGEST_TERM {
            return 0;
        }
        if word.is_ascii() {
            lower.clear();
            lower.push_str(word);
            lower.make_ascii_lowercase();
            return take(&lower);
        }
        // Lower case depends on the neighbours (Greek sigma) and may be longer.
        let lower = word.to_lowercase();
        if lower.len() > LONGEST_TERM { 0 } else { take(&lower) }
    };
    let mut start = None;
    for (at, letter) in text.char_indices() {
        let alone = is_ideograph(letter);
        if letter.is_alphanumeric() && !alone {
            start.get_or_insert(at);
            continue;
        }
        if let Some(from) = start.take() {
            total += give(&text[from..at]);
        }
        if alone {
            total += give(&text[at..at + letter.len_utf8()]);
        }
    }
    if let Some(from) = start {
        total += give(&text[from..]);
    }
    total
}

/// Letters of scripts without spaces between words: each is a term, as in Lucene.
fn is_ideograph(letter: char) -> bool {
    matches!(letter, '\u{3041}'..='\u{309f}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(analyzer: Analyzer, text: &str) -> String {
        analyzer.terms(text).join("|")
    }

    #[test]
    fn search_analyzers_make_terms_of_text() {
        let text = "The quick-brown FOXES can't jump_over 3.14 dogs' ÉTÉ";
        assert_eq!(shown(Analyzer::None, text), "The|quick-brown|FOXES|can't|jump_over|3.14|dogs'|ÉTÉ");
        assert_eq!(shown(Analyzer::Standard, text), "the|quick|brown|foxes|can|t|jump|over|3|14|dogs|été");
        assert_eq!(shown(Analyzer::English, text), "quick|brown|fox|can|t|jump|over|3|14|dog|été");
        assert_eq!(shown(Analyzer::Standard, "東京タワー ひらがな x"), "東|京|タワー|ひ|ら|が|な|x");
        assert_eq!(shown(Analyzer::Standard, "ΟΔΟΣ İx a\0b"), "οδος|i̇x|a|b");
        assert_eq!(shown(Analyzer::Standard, " \t.,;"), "");
    }

    #[test]
    fn terms_of_search_longer_than_255_bytes_are_left_out() {
        let text = format!("a {} b", "x".repeat(LONGEST_TERM + 1));
        for analyzer in [Analyzer::None, Analyzer::Standard, Analyzer::English] {
            let mut out = String::new();
            let count = analyzer.analyze(&text.replace("a ", "c "), &mut out);
            assert_eq!((out.as_str(), count), ("c b", 2));
        }
    }

    #[test]
    fn the_number_of_terms_is_that_of_the_parts_between_spaces() {
        for text in ["", "one", "The one of the two", "a\u{b}b c\u{a0}d \u{2028}e"] {
            for analyzer in [Analyzer::None, Analyzer::Standard, Analyzer::English] {
                let mut out = String::from("before");
                let count = analyzer.analyze(text, &mut out);
                assert_eq!(out.split_ascii_whitespace().count() as u64, count + 1, "{analyzer:?} {text:?} {out:?}");
            }
        }
    }

    #[test]
    fn unknown_analyzers_are_refused_with_the_nearest_name() {
        insta::assert_snapshot!(Analyzer::named("analyzer", "englsh").unwrap_err(), @r#"
        there is no analyzer `englsh`
          hint: did you mean `english`?
        "#);
    }
}
