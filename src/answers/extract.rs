//! Extracts the final answer of a reply: the last `\boxed{…}`, the text after "the final answer
//! is", or the last formula.
//!
//! The rules follow those of Math-Verify (Apache-2.0, github.com/huggingface/Math-Verify) for
//! replies that state an answer. One is omitted deliberately: the last number of a text without a
//! stated answer is not an answer. There is no recursion, and the time is linear in the length of
//! the text.

/// The content of the last `\boxed{…}` (or `\fbox{…}`), braces balanced.
pub fn last_boxed(text: &str) -> Option<&str> {
    let (start, marker) = ["\\boxed", "\\fbox"].into_iter().filter_map(|m| Some((text.rfind(m)?, m))).max()?;
    Some(text[content(text, start + marker.len())?].trim())
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
    for (place, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(begin..begin + place);
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

/// The text of the final answer, without surrounding text and without the delimiters of formulas.
pub(super) fn final_answer(text: &str) -> String {
    let text =
        text.rsplit_once("</think>").map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty()).unwrap_or(text);
    let boxed = boxes(text);
    let from = boxed.as_ref().map_or(0, |found| found.end);
    let anchors: &[&str] = if boxed.is_some() {
        &["final answer is", "final answer:"]
    } else {
        &["final answer is", "answer is", "answer:"]
    };
    if let Some(stated) = stated(&text[from..], anchors) {
        return stated;
    }
    match boxed {
        Some(found) => found.text,
        None => formula(text).unwrap_or_else(|| text.to_owned()),
    }
}

/// The end of the last sentence with "is …", for text that is not an answer by itself. A number
/// loses its unit: in prose `25 m²` is a quantity, in a formula it may be a product.
pub(super) fn predicate(text: &str) -> Option<String> {
    let (_, rest) = text.rsplit_once(" is ")?;
    let rest = rest.trim().trim_end_matches('.');
    let number = rest.trim_end_matches(|c: char| c.is_alphabetic() || c.is_whitespace() || matches!(c, '²' | '³'));
    let is_number =
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b','));
    Some(if is_number { number } else { rest }.to_owned())
}

struct Boxes {
    text: String,
    /// The end of the last box.
    end: usize,
}

/// The last box, and earlier ones that belong to the same answer: `\boxed{1}` and `\boxed{2}`. An
/// answer that is boxed twice is one answer.
fn boxes(text: &str) -> Option<Boxes> {
    let marker = "\\boxed";
    let start = text.rfind(marker)?;
    let last = content(text, start + marker.len())?;
    let end = last.end + 1;
    let mut contents = vec![text[last].trim()];
    let mut next = start;
    for _ in 1..BOXES {
        let Some(before) = text[..next].rfind(marker) else { break };
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

/// Whether the text between two boxes joins them into one answer. A full stop separates two
/// statements of an answer.
fn joins(between: &str) -> bool {
    if between.len() > BETWEEN || between.contains('.') {
        return false;
    }
    let mut words = between
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty() && !matches!(*word, "quad" | "qquad" | "text" | "textbf" | "mathrm"))
        .peekable();
    if words.peek().is_none() {
        return true;
    }
    words.any(|word| matches!(word, "and" | "or"))
}

/// The text after the last of the anchors, up to the end of its sentence.
fn stated(text: &str, anchors: &[&str]) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (start, anchor) = anchors.iter().filter_map(|anchor| Some((lower.rfind(anchor)?, anchor))).max()?;
    let rest = text[start + anchor.len()..].trim_start_matches([':', '*', ' ', '\n']);
    let sentence = sentence(rest).trim();
    if sentence.is_empty() || sentence.contains("\\boxed") {
        return None;
    }
    if let Some(formula) = formula(sentence) {
        return Some(formula);
    }
    // "Jane started 3 hours ago": the number, if it is the only one.
    let prose = sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count() >= 3;
    let mut numbers = sentence.split_whitespace().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    match (prose, numbers.next(), numbers.next()) {
        (true, Some(number), None) => Some(number.to_owned()),
        _ => Some(sentence.to_owned()),
    }
}

/// The text up to a full stop that ends a sentence, a line break or the end.
fn sentence(text: &str) -> &str {
    let mut math = false;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        match c {
            '$' if before != '\\' => math = !math,
            '.' if !math && (rest.is_empty() || rest.starts_with(char::is_whitespace)) => return &text[..at],
            '\n' if !math && at > 0 => return &text[..at],
            _ => {}
        }
        before = c;
    }
    text
}

/// A part of a text: a formula between its delimiters, or prose.
struct Piece<'a> {
    math: bool,
    text: &'a str,
}

/// Splits at `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. Inline formulas may not contain a line break.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let (mut prose, mut at) = (0, 0);
    while let Some(found) = text[at..].find(['$', '\\']) {
        let start = at + found;
        let rest = &text[start..];
        let (open, close) = if rest.starts_with("$$") {
            ("$$", "$$")
        } else if rest.starts_with('$') {
            ("$", "$")
        } else if rest.starts_with("\\[") {
            ("\\[", "\\]")
        } else if rest.starts_with("\\(") {
            ("\\(", "\\)")
        } else {
            // Any other command, including `\$` and `\\`.
            let next = rest[1..].chars().next().map_or(0, char::len_utf8);
            at = start + 1 + next;
            continue;
        };
        let body = start + open.len();
        match closing(&text[body..], close) {
            Some(end) => {
                if prose < start {
                    out.push(Piece { math: false, text: &text[prose..start] });
                }
                out.push(Piece { math: true, text: &text[body..body + end] });
                at = body + end + close.len();
                prose = at;
            }
            None => at = body,
        }
    }
    if prose < text.len() {
        out.push(Piece { math: false, text: &text[prose..] });
    }
    out
}

/// The last [`TAIL`] bytes, from the start of a line if possible.
fn tail(text: &str) -> &str {
    let Some(mut from) = text.len().checked_sub(TAIL) else { return text };
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let rest = &text[from..];
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

/// The last formula of a text, with earlier ones joined to it by "and", "or" or a comma. A text
/// that consists of formulas, connectors and a unit is returned unchanged. `None` for a text
/// without a formula.
fn formula(text: &str) -> Option<String> {
    let pieces = pieces(tail(text));
    let last = pieces.iter().rposition(|piece| piece.math)?;
    let words = |piece: &Piece| {
        piece
            .text
            .split(|c: char| !c.is_alphabetic())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect::<Vec<_>>()
    };
    let connects = |piece: &Piece| {
        words(piece).iter().all(|word| matches!(word.as_str(), "and" | "or"))
            && !piece.text.contains(|c: char| c.is_alphanumeric() && !c.is_alphabetic())
    };
    let light = pieces.iter().enumerate().all(|(at, piece)| {
        piece.math
            || (at < last && connects(piece))
            || (at > last && words(piece).len() <= 3 && !piece.text.contains('\n'))
    });
    if light {
        return Some(pieces.iter().map(|piece| piece.text).collect::<Vec<_>>().join(" "));
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
