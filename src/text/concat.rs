//! `a ~ b` of Jinja2 joins the texts that Python prints; minijinja prints dictionaries and lists in
//! its own way. The operands become texts before they are joined.

/// Words that end an operand.
const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "elif"];

/// Tokens of an expression that is translated: nested ones are searched repeatedly.
const MOST: usize = 10_000;

/// A token of an expression that matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Open,
    Close,
    Tilde,
    /// An operator or a keyword that binds less than `~`, or a separator.
    Delimiter,
    /// Any other part of an operand.
    Part,
}

/// The expression with operands of `~` as texts; `None` without any, and for sums of `|safe` texts.
pub(super) fn translate(expression: &str) -> Option<String> {
    if !expression.contains('~') || expression.contains("safe") {
        return None;
    }
    let tokens = tokens(expression);
    if tokens.len() > MOST {
        return None;
    }
    let mut inserts: Vec<(usize, &str)> = Vec::new();
    for (place, (token, ..)) in tokens.iter().enumerate() {
        if *token != Token::Tilde {
            continue;
        }
        for operand in [before(&tokens, place)?, after(&tokens, place)?] {
            let text = &expression[operand.clone()];
            let is_literal = text.starts_with(['\'', '"']) && literal(text) == text.len();
            if !is_literal && !inserts.contains(&(operand.start, "(")) {
                inserts.extend([(operand.start, "("), (operand.end, ")|string")]);
            }
        }
    }
    if inserts.is_empty() {
        return None;
    }
    // At one place, what ends comes before what begins.
    inserts.sort_by_key(|(at, text)| (*at, *text == "("));
    let mut out = String::with_capacity(expression.len() + 10 * inserts.len());
    let mut copied = 0;
    for (at, text) in inserts {
        out.push_str(&expression[copied..at]);
        out.push_str(text);
        copied = at;
    }
    Some(out + &expression[copied..])
}

type Placed = (Token, usize, usize);

/// The operand that ends before a token.
fn before(tokens: &[Placed], place: usize) -> Option<std::ops::Range<usize>> {
    let mut depth = 0_usize;
    let mut first = place;
    for (at, (token, ..)) in tokens[..place].iter().enumerate().rev() {
        match token {
            Token::Close => depth += 1,
            Token::Open | Token::Tilde | Token::Delimiter if depth == 0 => break,
            Token::Open => depth -= 1,
            _ => {}
        }
        first = at;
    }
    (first < place).then(|| tokens[first].1..tokens[place - 1].2)
}

/// The operand that begins after a token.
fn after(tokens: &[Placed], place: usize) -> Option<std::ops::Range<usize>> {
    let mut depth = 0_usize;
    let mut last = place;
    for (at, (token, ..)) in tokens.iter().enumerate().skip(place + 1) {
        match token {
            Token::Open => depth += 1,
            Token::Close | Token::Tilde | Token::Delimiter if depth == 0 => break,
            Token::Close => depth -= 1,
            _ => {}
        }
        last = at;
    }
    (last > place).then(|| tokens[place + 1].1..tokens[last].2)
}

/// The tokens with their places in the text.
fn tokens(text: &str) -> Vec<Placed> {
    let mut found: Vec<Placed> = Vec::new();
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let (token, length) = match letter {
            _ if letter.is_whitespace() => {
                at += letter.len_utf8();
                continue;
            }
            '\'' | '"' => (Token::Part, literal(rest)),
            '(' | '[' | '{' => (Token::Open, 1),
            ')' | ']' | '}' => (Token::Close, 1),
            '~' => (Token::Tilde, 1),
            ',' | ':' | '=' | '!' | '<' | '>' => (Token::Delimiter, 1),
            '+' | '-' => {
                let is_binary = matches!(found.last(), Some((Token::Part | Token::Close, ..)));
                (if is_binary { Token::Delimiter } else { Token::Part }, 1)
            }
            _ if is_word(letter) => {
                let mut length = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
                // 1.5e-3
                if letter.is_ascii_digit()
                    && rest[..length].ends_with(['e', 'E'])
                    && rest[length..].starts_with(['-', '+'])
                {
                    let digits = rest[length + 1..].find(|letter| !is_word(letter)).unwrap_or(rest.len() - length - 1);
                    length += 1 + digits;
                }
                (if KEYWORDS.contains(&&rest[..length]) { Token::Delimiter } else { Token::Part }, length)
            }
            _ => (Token::Part, letter.len_utf8()),
        };
        found.push((token, at, at + length));
        at += length;
    }
    found
}

/// The length of a string literal at the start of the text.
fn literal(text: &str) -> usize {
    let quote = text.chars().next();
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        if !escaped && Some(letter) == quote {
            return at + 1;
        }
        escaped = !escaped && letter == '\\';
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_a_concatenation_become_texts() {
        for (text, wanted) in [
            ("'a' ~ x", "'a' ~ (x)|string"),
            ("x.y[0] ~ f(a ~ b, 1)", "(x.y[0])|string ~ (f((a)|string ~ (b)|string, 1))|string"),
            ("a + b ~ c * 2 == d", "a + (b)|string ~ (c * 2)|string == d"),
            ("a ~ -1 ~ 1.5e-3 - 2", "(a)|string ~ (-1)|string ~ (1.5e-3)|string - 2"),
            (
                "x ~ y|join(', ') if z else 'q' ~ {'a': '~'}",
                "(x)|string ~ (y|join(', '))|string if z else 'q' ~ ({'a': '~'})|string",
            ),
            ("f(k=a ~ 'it\\'s')", "f(k=(a)|string ~ 'it\\'s')"),
        ] {
            assert_eq!(translate(text).as_deref(), Some(wanted));
        }
        for text in ["'a' ~ 'b'", "'~'", "a ~ b|safe", "~", "a ~", "a + b"] {
            assert_eq!(translate(text), None, "{text}");
        }
    }
}
