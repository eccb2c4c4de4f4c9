//! Splits long passages into chunks of words.

use super::Passage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Most words of a chunk.
    pub words: usize,
    /// Words at the end of a chunk that the next one begins with; fewer than `words`.
    pub overlap: usize,
}

impl Chunks {
    /// The passage itself if it is short enough; else chunks with its title and columns, and the
    /// ids `ID#1`, `ID#2`, …
    pub fn of(self, passage: Passage) -> Vec<Passage> {
        let spans = word_spans(&passage.text);
        if spans.len() <= self.words.max(1) {
            return vec![passage];
        }
        let step = self.words.saturating_sub(self.overlap).max(1);
        let mut chunks = Vec::new();
        for first in (0..spans.len()).step_by(step) {
            let last = (first + self.words).min(spans.len());
            let text = &passage.text[spans[first].0..spans[last - 1].1];
            let id = format!("{}#{}", passage.id, chunks.len() + 1);
            chunks.push(Passage { id, text: text.to_owned(), ..passage.clone() });
            if last == spans.len() {
                break;
            }
        }
        chunks
    }
}

/// The bytes of each word: characters between white space, or one character of a script that has no
/// spaces between words.
fn word_spans(text: &str) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    let mut inside = false;
    for (at, c) in text.char_indices() {
        let alone = is_without_spaces(c);
        if c.is_whitespace() {
            inside = false;
            continue;
        }
        match spans.last_mut().filter(|_| inside && !alone) {
            Some(word) => word.1 = at + c.len_utf8(),
            None => spans.push((at, at + c.len_utf8())),
        }
        inside = !alone;
    }
    spans
}

/// Chinese, Japanese, Thai, Lao, Khmer and Burmese.
fn is_without_spaces(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x9FFF
        | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_passage_is_split_into_chunks_of_words() {
        let passage =
            |text: &str| Passage { id: "a".into(), title: "T".into(), text: text.into(), ..Passage::default() };
        let split = |size: usize, overlap: usize, text: &str| {
            let chunks = Chunks { words: size, overlap }.of(passage(text));
            assert!(chunks.iter().all(|chunk| chunk.title == "T"));
            chunks.into_iter().map(|chunk| (chunk.id, chunk.text)).collect::<Vec<_>>()
        };
        let named = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect()
        };
        assert_eq!(split(3, 0, " one two\n\nthree "), named(&[("a", " one two\n\nthree ")]));
        assert_eq!(
            split(2, 0, "one two\n\nthree  four five"),
            named(&[("a#1", "one two"), ("a#2", "three  four"), ("a#3", "five")])
        );
        assert_eq!(split(3, 1, "a b c d e f g"), named(&[("a#1", "a b c"), ("a#2", "c d e"), ("a#3", "e f g")]));
        assert_eq!(split(3, 0, "r1 学习策略"), named(&[("a#1", "r1 学习"), ("a#2", "策略")]));
    }
}
