//! The answer that a reply states in words: "the answer is …", a heading "Final Answer", and
//! corrections of it.
//!
//! The value of a statement ends where an explanation begins ("because", ";", a remark in
//! brackets). A statement that denies ("not 6"), bounds ("more than 5") or guesses ("either 4 or
//! 5") is no answer.

use std::sync::LazyLock;

use super::extract::{formula, pieces};
use super::functions::named;
use super::words::phrases;

/// What a text states.
#[derive(Debug)]
pub(super) enum Stated {
    Nothing,
    Answer(String),
    /// A statement without an answer.
    Unclear,
}

/// Maximum number of statements that are looked at, from the last one on.
const STATEMENTS: usize = 8;

/// Maximum length of the sentence with the value, in bytes.
const SENTENCE: usize = 2048;

/// Maximum number of words between "answer" and its verb.
const WORDS: usize = 8;

/// Bytes after a statement in which a correction begins, and of the correction.
const REMARK: usize = 120;
const CORRECTION: usize = 600;

// The lists of phrases.tsv, where their meaning is.
static VERBS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("verbs"));
static NOUN_PHRASE: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("noun_phrase"));
static ADVERBS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("adverbs"));
static ALTERNATIVES: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("alternatives"));
static EXPLAINS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("explains"));
static HEDGES: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("hedges"));
static CONDITIONS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("conditions"));
static COMMENTS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("comments"));
static OTHERS: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("others"));

/// The last statement of an answer. After a box only "final answer", a heading, and "the answer is
/// actually" count.
pub(super) fn last(text: &str, boxed: bool) -> Stated {
    let lower = text.to_ascii_lowercase();
    let mut end = lower.len();
    for _ in 0..STATEMENTS {
        let Some(at) = lower[..end].rfind("answer") else { break };
        end = at;
        let Some(start) = begin(&lower, at, boxed) else { continue };
        let rest = &text[start..];
        let rest = rest.trim_start_matches([':', '*', '_', ' ', '\n', '\r', '=', '"']);
        let length = sentence(&rest[..rest.floor_char_boundary(SENTENCE)]);
        match value(&rest[..length]) {
            Stated::Nothing => {}
            stated => return corrected(&rest[length..], stated),
        }
    }
    Stated::Nothing
}

/// Whether a sentence supposes or reports an answer that is not the reply's.
pub(super) fn is_other(sentence: &str) -> bool {
    words(sentence).iter().any(|word| OTHERS.contains(&word.as_str()))
}

/// Where the value begins, if a statement begins with the "answer" at `at`.
fn begin(lower: &str, at: usize, boxed: bool) -> Option<usize> {
    let before = &lower[..at];
    if before.ends_with(['<', '/', '\\', '{', '_']) || before.ends_with(char::is_alphanumeric) {
        return None;
    }
    let mut rest = &lower[at + "answer".len()..];
    rest = rest.strip_prefix('s').unwrap_or(rest);
    if rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '>' | '_' | '}' | '\'')) {
        return None;
    }
    let line = before.rsplit('\n').next().unwrap_or_default();
    let line_words: Vec<&str> =
        line.split(|c: char| c.is_whitespace() || matches!(c, '*' | '#' | '_')).filter(|w| !w.is_empty()).collect();
    let is_final = line_words.last() == Some(&"final");
    // A heading: the line has no other word.
    let ending = rest.split('\n').next().unwrap_or_default();
    let heads = |word: &&str| matches!(*word, "final" | "the" | "my" | "our" | "short" | "correct");
    if line_words.iter().all(heads) && ending.chars().all(|c| c.is_whitespace() || matches!(c, '*' | '#' | '_' | ':')) {
        return Some(lower.len() - rest.len() + ending.len());
    }
    if line_words.iter().rev().take(4).any(|word| OTHERS.contains(word)) {
        return None;
    }
    for _ in 0..WORDS {
        rest = rest.trim_start_matches([' ', '*', '_', ',']);
        // The longest verb: "comes out to be" before "comes out to".
        let verb = VERBS.iter().filter(|verb| starts_with_words(rest, verb)).max_by_key(|verb| verb.len());
        if let Some(verb) = verb {
            let value = &rest[verb.len()..];
            let corrects = value.trim_start().starts_with("actually");
            return (!boxed || is_final || corrects).then_some(lower.len() - value.len());
        }
        let word = rest.split(|c: char| !c.is_alphanumeric() && !matches!(c, '(' | ')')).next().unwrap_or_default();
        let short = word.trim_matches(['(', ')']).len() == 1 || word.bytes().all(|byte| byte.is_ascii_digit());
        if word.is_empty() || !(short || NOUN_PHRASE.contains(&word)) {
            return None;
        }
        rest = &rest[word.len()..];
    }
    None
}

/// Whether `text` starts with the words of `phrase`, the last of them complete.
fn starts_with_words(text: &str, phrase: &str) -> bool {
    let whole = phrase.ends_with(char::is_alphanumeric);
    text.strip_prefix(phrase)
        .is_some_and(|rest| !whole || !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
}

/// The length of the first sentence: up to a full stop, an exclamation or question mark that ends
/// it, or a line break, outside formulas.
fn sentence(text: &str) -> usize {
    let mut at = 0;
    for piece in pieces(text) {
        if !piece.math {
            for (offset, c) in piece.text.char_indices() {
                let rest = &text[at + offset + c.len_utf8()..];
                let ends = matches!(c, '.' | '!' | '?')
                    && rest.trim_start_matches(['*', '"', ')', '_', '!', '?']).starts_with(char::is_whitespace);
                if ends
                    || (rest.trim_matches(['*', '"', ')', '_', '!', '?']).is_empty() && matches!(c, '.' | '!' | '?'))
                    || (c == '\n' && at + offset > 0)
                {
                    return at + offset;
                }
            }
        }
        at = piece.end;
    }
    text.len()
}

/// What a sentence after "the answer is" states.
pub(super) fn value(sentence: &str) -> Stated {
    let mut rest = sentence.trim();
    loop {
        let lower = rest.to_ascii_lowercase();
        let Some(adverb) = ADVERBS.iter().find(|adverb| starts_with_words(&lower, adverb)) else { break };
        rest = rest[adverb.len()..].trim_start_matches([' ', ',', ':', '*']);
    }
    let lower = rest.to_ascii_lowercase();
    if let Some(denied) = lower.strip_prefix("not ") {
        // "not 6 but 5"
        let other = denied.find(" but ").map(|at| rest["not ".len() + at + " but ".len()..].trim());
        let other = other.map(|other| other.strip_prefix("rather ").unwrap_or(other));
        return match other {
            Some(other) if !other.to_ascii_lowercase().starts_with("not") => value(other),
            _ => Stated::Unclear,
        };
    }
    let rest = rest[..explained(rest)].trim().trim_end_matches([',', ';', ':', '!', '?']).trim();
    if rest.trim_matches(['*', '_', '.', '"']).is_empty() || rest.contains("\\boxed") {
        return Stated::Nothing;
    }
    let first_words: Vec<String> = words(rest);
    if first_words.first().is_some_and(|word| COMMENTS.contains(&word.as_str()))
        && !rest.contains(|c: char| c.is_ascii_digit())
    {
        return Stated::Nothing;
    }
    let pieces = pieces(rest);
    let number = |text: &str| text.find(|c: char| c.is_ascii_digit());
    let Some(first) = pieces.iter().position(|piece| piece.math) else {
        let before = number(rest).map_or("", |at| &rest[..at]);
        if hedged(before) {
            return Stated::Unclear;
        }
        // "Jane started 3 hours ago": the number, if it is the only one.
        let prose = rest.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count() >= 3;
        let mut numbers = rest.split_whitespace().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        return match (prose, numbers.next(), numbers.next()) {
            (true, Some(_), None) if words(rest).iter().any(|word| CONDITIONS.contains(&word.as_str())) => {
                Stated::Unclear
            }
            (true, Some(number), None) => Stated::Answer(number.to_owned()),
            _ => Stated::Answer(rest.to_owned()),
        };
    };
    let before = if first == 0 { "" } else { pieces[0].text };
    if hedged(before) || number(before).is_some() {
        return Stated::Unclear;
    }
    let last = pieces.last().filter(|piece| !piece.math).map_or("", |piece| piece.text);
    let conditional = words(last).iter().any(|word| CONDITIONS.contains(&word.as_str()));
    let connected = |text: &str| words(text).iter().all(|word| matches!(word.as_str(), "and" | "or"));
    let several = pieces[first..].iter().any(|piece| !piece.math && piece.text != last && !connected(piece.text));
    if conditional || (several && before.trim().is_empty()) {
        return Stated::Unclear;
    }
    formula(rest).map_or(Stated::Nothing, Stated::Answer)
}

fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty());
    parts.map(str::to_lowercase).collect()
}

fn hedged(before: &str) -> bool {
    words(before).iter().any(|word| HEDGES.contains(&word.as_str()) || word.ends_with("n't"))
}

/// Where the explanation after a value begins.
fn explained(text: &str) -> usize {
    let lower = text.to_ascii_lowercase();
    let mut from = 0;
    for piece in pieces(text) {
        let start = if piece.math { piece.end } else { from };
        from = piece.end;
        let Some(prose) = lower.get(start..piece.end).filter(|_| !piece.math) else { continue };
        for (offset, c) in prose.char_indices() {
            let at = start + offset;
            if at == 0 {
                continue;
            }
            let rest = &lower[at + c.len_utf8()..];
            let explains = match c {
                ' ' | ',' => {
                    let next = rest.trim_start();
                    let remark = next.strip_prefix('(').is_some_and(is_remark);
                    let dash =
                        ["- ", "– ", "— ", "-- "].iter().find_map(|dash| next.strip_prefix(dash)).is_some_and(is_prose);
                    remark
                        || dash
                        || EXPLAINS.iter().any(|phrase| starts_with_words(next, phrase))
                        || (c == ','
                            && ["as ", "so ", "where ", "giving ", "meaning "]
                                .iter()
                                .any(|word| next.starts_with(word)))
                }
                ';' => is_prose(rest.trim_start()) || rest.trim().is_empty(),
                '—' => is_prose(rest.trim_start()),
                _ => false,
            };
            if explains && !offers_another(rest) {
                return at;
            }
        }
    }
    text.len()
}

fn offers_another(remark: &str) -> bool {
    words(remark).iter().any(|word| ALTERNATIVES.contains(&word.as_str()))
}

/// Whether a text begins with a word that is not a variable, a function or a connector.
fn is_prose(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    word.chars().count() >= 2 && named(word).is_none() && !matches!(word, "and" | "or")
}

/// Whether a bracket holds words: "(8 boxes of 9)" and not "(x + 1)".
fn is_remark(text: &str) -> bool {
    let inside = text[..text.floor_char_boundary(200)].split(')').next().unwrap_or_default();
    let word = |word: &str| word.chars().count() >= 3 && named(word).is_none();
    inside.split(|c: char| !c.is_alphabetic()).any(word) || inside.starts_with(['≈', '$'])
}

/// A statement after the remarks that follow it: "wait, it should be 6", "that is wrong".
fn corrected(remarks: &str, stated: Stated) -> Stated {
    let remarks = remarks.trim_start_matches(['.', '!', '?', '*', ' ', '\n']);
    let remarks = &remarks[..remarks.floor_char_boundary(CORRECTION)];
    let lower = remarks.to_ascii_lowercase();
    if ["or ", "or, ", "alternatively", "maybe", "perhaps", "possibly"].iter().any(|word| lower.starts_with(word)) {
        return Stated::Unclear;
    }
    let begins = |phrase: &str| lower.find(phrase).is_some_and(|at| at < REMARK);
    let withdrawn = ["wrong", "incorrect", "mistake", "scratch that", "correction", "oops", "not right", "sorry"]
        .iter()
        .any(|phrase| begins(phrase));
    let doubted = ["wait", "actually", "hmm", "on second thought", "no, "].iter().any(|phrase| begins(phrase));
    if !withdrawn && !doubted {
        return stated;
    }
    let verb = ["it is ", "it's ", "should be ", "must be ", "make that ", "i mean ", "that is ", "is actually "]
        .into_iter()
        .filter_map(|verb| Some(lower.rfind(verb)? + verb.len()))
        .max();
    if let Some(from) = verb {
        let rest = &remarks[from..];
        let begins = rest.trim_start_matches(['*', ' ', '-', '\\', '(', '[']);
        if begins.starts_with(|c: char| c.is_ascii_digit() || c == '$') {
            return match value(&rest[..sentence(rest)]) {
                Stated::Nothing => Stated::Unclear,
                other => other,
            };
        }
    }
    if withdrawn { Stated::Unclear } else { stated }
}
