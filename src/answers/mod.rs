//! Final answers: extracted from replies and compared.
//!
//! A policy is optimised against [`math_equal`], so a wrong answer that passes is a reward hack,
//! and slow input is an attack. Its steps:
//!
//! 1. `extract`: the final answer of a reply.
//! 2. `token`, `literal`, `parse`, `arithmetic`, `names`: LaTeX or plain text to an expression;
//!    other text stays text.
//! 3. `compare`, `equation`, `sets`: units, relations, sets and lists, then values.
//! 4. `exact`: rational functions of the variables, `\pi`, `e` and `i` are compared exactly at
//!    rational points; `float`: roots and other functions in double precision at several points,
//!    with a bound on the rounding error.
//!
//! The length of an answer, its nesting, the size of its numbers and the work of a comparison are
//! bounded. Which forms are equal follows Math-Verify (Apache-2.0,
//! github.com/huggingface/Math-Verify), except that Math-Verify accepts rounded decimals: here a
//! decimal of fewer than 12 digits equals neither 1/3 nor `\pi`.

mod arithmetic;
mod compare;
mod equation;
mod exact;
mod expr;
mod extract;
mod float;
mod literal;
mod names;
mod number;
mod parse;
mod sets;
mod token;
mod words;

#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};

pub use extract::{last_boxed, tagged_answer};

use compare::Comparison;
use expr::Expr;

/// Maximum length of an answer that is parsed as mathematics, in bytes; a longer one is compared as
/// text.
const MAX_LENGTH: usize = 2000;

/// Whether `answer` equals `reference`.
///
/// Either may be a bare answer, LaTeX or plain text, or a reply that states one. The order matters
/// if the reference is an interval: `-2 \le x \le 7` does not equal `[-2, 7]`, though the interval
/// equals the inequality. An empty answer equals nothing.
pub fn math_equal(answer: &str, reference: &str) -> bool {
    let (a, b) = (read(answer), read(reference));
    let (Some(a), Some(b)) = (a, b) else { return false };
    let mut hasher = DefaultHasher::new();
    // The same points for both orders.
    let (one, two) = (hash(answer), hash(reference));
    (one.min(two), one.max(two)).hash(&mut hasher);
    Comparison::new(hasher.finish()).equal(&a, &b)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Parses a text as an expression; `None` if it is empty.
fn read(text: &str) -> Option<Expr> {
    let answer = extract::final_answer(text);
    let answer = trimmed(&answer);
    if answer.is_empty() {
        return None;
    }
    if answer.len() > MAX_LENGTH {
        return Some(Expr::Symbol(opaque(answer)));
    }
    if words::is_label(answer) {
        return Some(Expr::Symbol(answer.to_owned()));
    }
    if let Some(expr) = mathematics(answer) {
        return Some(expr);
    }
    let predicate =
        extract::predicate(answer).filter(|rest| !words::is_label(rest)).and_then(|rest| mathematics(&rest));
    Some(predicate.filter(|expr| !matches!(expr, Expr::Symbol(_))).unwrap_or_else(|| Expr::Symbol(opaque(answer))))
}

fn mathematics(text: &str) -> Option<Expr> {
    let unescaped;
    let mut text = text;
    // Undoes double escaping: `\\frac`. In a matrix `\\` ends a row.
    if text.contains("\\\\") && !text.contains("\\begin") {
        unescaped = text.replace("\\\\", "\\");
        text = &unescaped;
    }
    parse::parse(&token::tokens(text)?)
}

/// An answer without white space, punctuation, emphasis and quotation marks at both ends.
fn trimmed(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.strip_prefix("\\\"").unwrap_or(text);
        text = text.strip_suffix("\\\"").unwrap_or(text);
        text = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '`' | '"' | '\u{201c}' | '\u{201d}'));
        // `\,` at the end is a space, not a comma after a backslash.
        if !text.ends_with("\\,") && !text.ends_with("\\;") && !text.ends_with("\\:") {
            text = text.trim_end_matches(['.', ',', ';', ':', '?']);
        }
        if text == before {
            return text;
        }
    }
}

/// Normalizes text that is not mathematics: removes white space and formula delimiters, and lowers
/// the case of prose.
fn opaque(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !c.is_whitespace() && *c != '$').collect();
    let kept = kept.replace("\\left", "").replace("\\right", "").replace("\\!", "");
    let prose = text.split(|c: char| !c.is_alphabetic() && c != '\\').any(|run| run.len() >= 3 && !run.contains('\\'));
    if prose { kept.to_lowercase() } else { kept }
}
