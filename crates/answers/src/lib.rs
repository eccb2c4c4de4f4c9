//! Final answers: extracted from replies and compared.
//!
//! A policy is optimised against [`math_equal`], so a wrong answer that passes is a reward hack,
//! and slow input is an attack. Its steps:
//!
//! 1. `extract`, `statement`: the final answer of a reply.
//! 2. `token`, `literal`, `parse`, `arithmetic`, `measure`, `names`, `functions`: LaTeX or plain
//!    text to an expression; text with an operator that is not understood stays text.
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
mod functions;
mod literal;
mod measure;
mod names;
mod number;
mod parse;
mod sets;
mod statement;
mod token;
mod words;

#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};

pub use extract::{last_boxed, tagged_answer};

use compare::MathComparison;
use expr::Expr;
use extract::Final;
use statement::Stated;

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
    if is_chosen(&a, reference) || is_chosen(&b, answer) {
        return true;
    }
    let mut hasher = DefaultHasher::new();
    // The same points for both orders.
    let (one, two) = (hash(answer), hash(reference));
    (one.min(two), one.max(two)).hash(&mut hasher);
    MathComparison::new(hasher.finish()).equal(&a, &b)
}

/// Whether an expression is one letter, and `other` is that choice with its text: `B. 42`.
fn is_chosen(letter: &Expr, other: &str) -> bool {
    let Expr::Symbol(letter) = letter else { return false };
    let chosen = match extract::final_answer(extract::after_thoughts(other)) {
        Final::Answer(answer) => words::choice(trimmed(&answer)),
        Final::Text => words::choice(trimmed(other)),
        Final::Unclear => None,
    };
    chosen.is_some_and(|chosen| letter.chars().eq([chosen]))
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Parses a text as an expression; `None` if it is empty.
fn read(text: &str) -> Option<Expr> {
    let text = extract::after_thoughts(text);
    if let Some(range) = range(trimmed(text)) {
        return Some(range);
    }
    let (answer, is_text) = match extract::final_answer(text) {
        Final::Answer(answer) => (answer, false),
        Final::Text => (text.to_owned(), true),
        Final::Unclear => return Some(Expr::Symbol(opaque(text))),
    };
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
    let expr = range(answer).or_else(|| mathematics(answer));
    let expr = expr.or_else(|| predicate(answer).filter(|_| is_text));
    Some(expr.unwrap_or_else(|| Expr::Symbol(token::canonical(answer).unwrap_or_else(|| opaque(answer)))))
}

/// The value of a text that ends in "is 5". A number loses its unit: in prose `25 m²` is a
/// quantity, in a formula it may be a product.
fn predicate(text: &str) -> Option<Expr> {
    let (before, rest) = text.rsplit_once(" is ")?;
    if statement::is_other(before.rsplit(['.', '\n']).next().unwrap_or_default()) {
        return None;
    }
    let Stated::Answer(rest) = statement::value(rest.trim_end_matches('.')) else { return None };
    if words::is_label(&rest) || range(&rest).is_some() {
        return None;
    }
    let number = rest.trim_end_matches(|c: char| c.is_alphabetic() || c.is_whitespace() || matches!(c, '²' | '³'));
    let digits = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b',');
    let is_number = !number.is_empty() && number.bytes().all(digits);
    mathematics(if is_number { number } else { &rest }).filter(|expr| !matches!(expr, Expr::Symbol(_)))
}

/// `10-12`, `2–3 weeks`, `5-10%`: a range, compared as text and not as a difference.
fn range(text: &str) -> Option<Expr> {
    let (label, rest) = words::range(text)?;
    let label = Expr::Symbol(label);
    match mathematics(&format!("1{rest}"))? {
        Expr::Number { .. } if rest.is_empty() => Some(label),
        Expr::Unit(_, unit) => Some(Expr::Unit(Box::new(label), unit)),
        _ => None,
    }
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

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
