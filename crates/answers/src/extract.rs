//! Extracts the final answer of a reply: the last `\boxed{…}`, a statement in words
//! ([`super::statement`]), or the last formula.
//!
//! The order follows Math-Verify (Apache-2.0, github.com/huggingface/Math-Verify), with one rule
//! omitted deliberately: the last number of a text without a stated answer is not an answer. There
//! is no recursion, and the time is linear in the length of the text.

use std::sync::LazyLock;

use super::statement::{self, Stated};
use super::words::phrases;

/// Commands that draw a box.
const BOXED: [&str; 3] = ["\\boxed", "\\fbox", "\\framebox"];

/// The content of the last `\boxed{…}` (or `\fbox{…}`, `\framebox{…}`), braces balanced.
pub fn last_boxed(text: &str) -> Option<&str> {
    let (start, marker) = last_box(text)?;
    Some(text[content(text, start + marker.len())?].trim())
}

fn last_box(text: &str) -> Option<(usize, &'static str)> {
    BOXED.into_iter().filter_map(|marker| Some((text.rfind(marker)?, marker))).max()
}

/// The content of the last `<answer>…</answer>`.
pub fn tagged_answer(text: &str) -> Option<&str> {
    let end = text.rfind("</answer>")?;
    let start = text[..end].rfind("<answer>")? + "<answer>".len();
    Some(text[start..end].trim())
}

/// The range inside the braces that open at `at` or after white space there.
fn content(text: &str, at: usize) -> Option<std::ops::Range<usize>> {
    let rest = text[at..].trim_start();
    let inner = rest.strip_prefix('{')?;
    let begin = text.len() - inner.len();
    let mut depth = 1_usize;
    let mut escaped = false;
    for (offset, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(begin..begin + offset);
                }
            }
            _ => {}
        }
    }
    None
}

/// Maximum number of boxes that form one answer, and maximum length of the text between two of
/// them.
const BOXES: usize = 16;
const BETWEEN: usize = 60;

/// Bytes at the end of a reply that are searched for the last formula, and the maximum length of a
/// formula.
const TAIL: usize = 8000;
const FORMULA: usize = 2000;

/// Where the answer of a text was found.
pub(super) enum Final {
    /// Stated, boxed or the last formula; without the delimiters of formulas.
    Answer(String),
    /// No statement: the text itself may be the answer.
    Text,
    /// The text denies, corrects or guesses: it has no answer.
    Unclear,
}

/// The final answer of a reply.
pub(super) fn final_answer(text: &str) -> Final {
    let boxed = boxes(text);
    let from = boxed.as_ref().map_or(0, |answer| answer.end);
    match (statement::last(&text[from..], boxed.is_some()), boxed) {
        (Stated::Answer(answer), _) => Final::Answer(answer),
        (_, Some(answer)) => Final::Answer(answer.text),
        (Stated::Unclear, None) => Final::Unclear,
        (Stated::Nothing, None) => formula(text).map_or(Final::Text, Final::Answer),
    }
}

/// The text after the thoughts of a reply.
pub(super) fn after_thoughts(text: &str) -> &str {
    text.rsplit_once("</think>").map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty()).unwrap_or(text)
}

struct Boxes {
    text: String,
    /// The end of the last box.
    end: usize,
}

/// The last box, and earlier ones that belong to the same answer: `\boxed{1}` and `\boxed{2}`. An
/// answer that is boxed twice is one answer.
fn boxes(text: &str) -> Option<Boxes> {
    let (start, marker) = last_box(text)?;
    let last = content(text, start + marker.len())?;
    let end = last.end + 1;
    let mut contents = vec![text[last].trim()];
    let mut next = start;
    for _ in 1..BOXES {
        let Some((before, marker)) = last_box(&text[..next]) else { break };
        let Some(inside) = content(&text[..next], before + marker.len()) else { break };
        if !joins(&text[inside.end + 1..next]) {
            break;
        }
        let inside = text[inside].trim();
        if !contents.contains(&inside) {
            contents.push(inside);
        }
        next = before;
    }
    contents.reverse();
    let mut content = contents.join(", ");
    // `$\boxed{28}$ percent`
    let after = text[end..].trim_start_matches(|c: char| c == '$' || c.is_whitespace());
    if ["%", "\\%", "percent", "pct"].iter().any(|sign| after.starts_with(sign)) {
        content.push('%');
    }
    Some(Boxes { text: content, end })
}

/// Words between two boxes with which the second begins another statement.
static STATES: LazyLock<Vec<&str>> = LazyLock::new(|| phrases("states"));

/// Whether the text between two boxes joins them into one answer: it has nothing but connectors, or
/// "and" or "or" without another statement. A full stop separates two statements of an answer.
fn joins(between: &str) -> bool {
    if between.len() > BETWEEN || between.contains('.') {
        return false;
    }
    let tokens = || between.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let styles = |word: &str| matches!(word, "quad" | "qquad" | "text" | "textbf" | "mathrm");
    let connects = tokens().any(|word| matches!(word, "and" | "or"));
    tokens().all(styles) || (connects && !tokens().any(|word| STATES.contains(&word)))
}

/// A part of a text: a formula between its delimiters, or prose.
pub(super) struct TextSpan<'a> {
    pub(super) math: bool,
    pub(super) text: &'a str,
    /// Where it ends, with its delimiters.
    pub(super) end: usize,
}

/// Splits at `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. Inline formulas may not contain a line break.
pub(super) fn pieces(text: &str) -> Vec<TextSpan<'_>> {
    let mut out = Vec::new();
    let (mut prose, mut at) = (0, 0);
    while let Some(offset) = text[at..].find(['$', '\\']) {
        let start = at + offset;
        let rest = &text[start..];
        let delimiters = [("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)")];
        let Some((open, close)) = delimiters.into_iter().find(|(open, _)| rest.starts_with(open)) else {
            // Any other command, including `\$` and `\\`.
            let next = rest[1..].chars().next().map_or(0, char::len_utf8);
            at = start + 1 + next;
            continue;
        };
        let body = start + open.len();
        match closing(&text[body..], close).filter(|end| !is_price(&text[body..], *end, close)) {
            Some(length) => {
                if prose < start {
                    out.push(TextSpan { math: false, text: &text[prose..start], end: start });
                }
                at = body + length + close.len();
                out.push(TextSpan { math: true, text: &text[body..body + length], end: at });
                prose = at;
            }
            None => at = body,
        }
    }
    if prose < text.len() {
        out.push(TextSpan { math: false, text: &text[prose..], end: text.len() });
    }
    out
}

/// Whether the dollar signs belong to two prices: `$5 and not $6`.
fn is_price(text: &str, end: usize, close: &str) -> bool {
    close == "$"
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text[..end].ends_with(char::is_whitespace)
        && text[end + 1..].starts_with(|c: char| c.is_ascii_digit())
}

/// The last [`TAIL`] bytes, from the start of a line if possible.
fn tail(text: &str) -> &str {
    let Some(from) = text.len().checked_sub(TAIL) else { return text };
    let rest = &text[text.ceil_char_boundary(from)..];
    rest.split_once('\n').map_or(rest, |(_, lines)| lines)
}

/// The start of `close`, not escaped; inline delimiters must be on the same line.
fn closing(text: &str, close: &str) -> Option<usize> {
    let one_line = matches!(close, "$" | "\\)");
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if !escaped && at > 0 && text[at..].starts_with(close) {
            return Some(at);
        }
        if at > FORMULA || (one_line && c == '\n') {
            return None;
        }
        escaped = !escaped && c == '\\';
    }
    None
}

/// The last formula of a text, with earlier ones joined to it by "and", "or" or a comma; formulas
/// after "not" and "than" are passed over. A text that consists of formulas, connectors and a unit
/// is returned unchanged. `None` for a text without a formula.
pub(super) fn formula(text: &str) -> Option<String> {
    let pieces = pieces(tail(text));
    let mut last = pieces.iter().rposition(|piece| piece.math)?;
    let lower_words = |piece: &TextSpan| {
        piece
            .text
            .split(|c: char| !c.is_alphabetic())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect::<Vec<_>>()
    };
    let connects = |piece: &TextSpan| {
        lower_words(piece).iter().all(|word| matches!(word.as_str(), "and" | "or" | "maybe" | "perhaps" | "possibly"))
            && !piece.text.contains(|c: char| c.is_alphanumeric() && !c.is_alphabetic())
    };
    let light = pieces.iter().enumerate().all(|(at, piece)| {
        piece.math
            || (at < last && connects(piece))
            || (at > last && lower_words(piece).len() <= 3 && !piece.text.contains('\n'))
    });
    if light {
        return Some(pieces.iter().map(|piece| piece.text).collect::<Vec<_>>().join(" "));
    }
    while last > 0 && !pieces[last - 1].math && excludes(&lower_words(&pieces[last - 1])) {
        last = pieces[..last].iter().rposition(|piece| piece.math)?;
    }
    let mut first = last;
    while first >= 2
        && pieces[first - 2].math
        && connects(&pieces[first - 1])
        && !pieces[first - 1].text.trim().is_empty()
    {
        first -= 2;
    }
    let formulas: Vec<&str> = pieces[first..=last].iter().filter(|piece| piece.math).map(|piece| piece.text).collect();
    Some(formulas.join(", "))
}

/// Whether the words before a formula say that it is not the answer.
fn excludes(before: &[String]) -> bool {
    let last = |count: usize| before.len().checked_sub(count).map_or("", |at| before[at].as_str());
    matches!(last(1), "not" | "than") || (last(2) == "instead" && last(1) == "of")
}
