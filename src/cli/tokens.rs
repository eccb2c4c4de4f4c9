//! Displays tokens: the origin of each, and its advantage below when it changes.

use crate::train::ShownToken;

/// Columns of a line of tokens.
pub(super) const WIDTH: usize = 100;

/// Legend of the colours or brackets.
pub(super) fn legend(colour: bool) -> String {
    let token = |text: &str, sampled, special| {
        paint(&ShownToken { text: text.to_owned(), sampled, special, advantage: 0.0 }, colour)
    };
    format!(
        "{}, {}, {}",
        token("sampled by the policy: trained on", true, false),
        token("written by the environment: context", false, false),
        token("special", false, true)
    )
}

/// A token with its mark: a colour on a terminal, otherwise `[sampled]`, `<special>` and plain
/// context.
pub(super) fn paint(token: &ShownToken, colour: bool) -> String {
    let text = visible(&token.text);
    if !colour {
        return match (token.sampled, token.special) {
            (true, _) => format!("[{text}]"),
            (false, true) if !text.starts_with('<') => format!("<{text}>"),
            (false, _) => text,
        };
    }
    let code = match (token.sampled, token.special) {
        (true, false) => "30;42",
        (true, true) => "30;43",
        (false, false) => "2",
        (false, true) => "33",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Line ends and control characters as symbols, so that columns stay aligned.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' => '⏎',
            '\t' => '⇥',
            c if c.is_control() => char::from_u32(0x2400 + u32::from(c) % 0x20).unwrap_or('␣'),
            c => c,
        })
        .collect()
}

/// A row as lines of tokens; with `advantages`, changed advantages below.
pub(super) fn row(row: &[ShownToken], advantages: bool, colour: bool) -> String {
    let mut out = String::new();
    let (mut tokens, mut below, mut used, mut marked) = (String::new(), String::new(), 0, 0);
    let mut last: Option<f64> = None;
    for token in row {
        let plain = paint(token, false);
        let width = if colour { visible(&token.text).chars().count() } else { plain.chars().count() };
        let advantage = (token.sampled && advantages).then_some(token.advantage);
        let mark = match advantage {
            Some(advantage) if last.is_none_or(|last| last.to_bits() != advantage.to_bits()) => {
                format!("{advantage:+.2}")
            }
            _ => String::new(),
        };
        if used + width > WIDTH && used > 0 {
            flush(&mut out, &mut tokens, &mut below);
            (used, marked) = (0, 0);
        }
        if !mark.is_empty() {
            // Two advantages are separated by at least one column.
            let gap = if marked > used { 1 } else { used - marked };
            below.push_str(&" ".repeat(gap));
            below.push_str(&mark);
            marked += gap + mark.chars().count();
        }
        tokens.push_str(&paint(token, colour));
        used += width;
        last = advantage;
    }
    flush(&mut out, &mut tokens, &mut below);
    out
}

fn flush(out: &mut String, tokens: &mut String, below: &mut String) {
    out.push_str(tokens);
    out.push('\n');
    if !below.is_empty() {
        out.push_str(below);
        out.push('\n');
    }
    tokens.clear();
    below.clear();
}
