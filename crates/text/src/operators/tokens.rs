//! The tokens of an expression of Jinja2, as minijinja reads them.

use super::super::jinja::{first, is_part_of_word};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OperatorToken<'a> {
    Name(&'a str),
    Number,
    Text,
    Sign(&'a str),
}

/// Signs of two letters; all others have one.
const SIGNS: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// The tokens of an expression with their places; `None` for a text that does not end.
pub(super) fn tokens(text: &str) -> Option<Vec<(OperatorToken<'_>, usize, usize)>> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = |from: usize| from + rest[from..].find(|letter| !is_word(letter)).unwrap_or(rest.len() - from);
        let (token, length) = match letter {
            _ if letter.is_whitespace() => {
                at += letter.len_utf8();
                continue;
            }
            '\'' | '"' => (OperatorToken::Text, literal(rest)?),
            '0'..='9' => {
                let mut end = word(0);
                if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|digit: char| digit.is_ascii_digit()) {
                    end = word(end + 1);
                }
                // 1.5e-3
                let is_hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
                if !is_hexadecimal && rest[..end].ends_with(['e', 'E']) && rest[end..].starts_with(['-', '+']) {
                    end = word(end + 1);
                }
                (OperatorToken::Number, end)
            }
            _ if is_word(letter) => (OperatorToken::Name(&rest[..word(0)]), word(0)),
            _ => {
                let length = if SIGNS.iter().any(|sign| rest.starts_with(sign)) { 2 } else { letter.len_utf8() };
                (OperatorToken::Sign(&rest[..length]), length)
            }
        };
        out.push((token, at, at + length));
        at += length;
    }
    Some(out)
}

/// The length of a string literal at the start of the text.
pub(in super::super) fn literal(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        if !escaped && letter == quote {
            return Some(at + 1);
        }
        escaped = !escaped && letter == '\\';
    }
    None
}

/// Whether a sum has a safe operand, and no other operators.
pub(super) fn adds_safe(sum: &str) -> bool {
    let has_safe = sum.split('|').skip(1).any(|filter| {
        let name = filter.trim_start();
        name.strip_prefix("safe").is_some_and(|rest| !rest.starts_with(is_part_of_word))
    });
    has_safe && first(sum, |rest, _| rest.starts_with(['~', '-', '*', '/', '%'])).is_none()
}
