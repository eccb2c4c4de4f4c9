//! Finds tuples in the source of templates: `(a, b)`. minijinja reads them as lists, which print
//! differently.

use super::values::TUPLE;

/// Words before a parenthesis that is not that of a call.
const KEYWORDS: [&str; 10] = ["in", "and", "or", "not", "if", "elif", "else", "is", "for", "set"];

/// An open bracket.
struct Open {
    /// Its place in the output.
    at: usize,
    /// A parenthesis around an expression, not around arguments.
    groups: bool,
    has_comma: bool,
    is_empty: bool,
}

/// The expression with tuples as calls of a function; `None` without tuples.
pub(super) fn translate(expression: &str) -> Option<String> {
    let mut out = String::with_capacity(expression.len() + 16);
    let (mut open, mut any): (Vec<Open>, bool) = (Vec::new(), false);
    let (mut quote, mut escaped) = (None, false);
    for letter in expression.chars() {
        if let Some(own) = quote {
            if !escaped && letter == own {
                quote = None;
            }
            escaped = !escaped && letter == '\\';
            out.push(letter);
            continue;
        }
        if let Some(open) = open.last_mut() {
            open.has_comma |= letter == ',';
            open.is_empty &= letter.is_whitespace() || matches!(letter, ')' | ']' | '}');
        }
        match letter {
            '"' | '\'' => quote = Some(letter),
            '(' | '[' | '{' => {
                let groups = letter == '(' && groups(&out);
                open.push(Open { at: out.len(), groups, has_comma: false, is_empty: true });
            }
            ')' | ']' | '}' => {
                if let Some(open) = open.pop().filter(|open| open.groups && (open.has_comma || open.is_empty)) {
                    any = true;
                    out.replace_range(open.at..=open.at, &format!("{TUPLE}(["));
                    out.push(']');
                }
            }
            _ => {}
        }
        out.push(letter);
    }
    any.then_some(out)
}

/// Whether a parenthesis after this text begins an expression, not the arguments of a call.
fn groups(before: &str) -> bool {
    let before = before.trim_end();
    let mut words = before.rsplit(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let word = words.next().unwrap_or_default();
    if word.is_empty() {
        return !before.ends_with([')', ']', '}', '\'', '"']);
    }
    // `x is in (…)` has arguments of a test.
    let mut earlier = before.split_whitespace().rev().skip(1);
    let is_test =
        word == "in" && matches!((earlier.next(), earlier.next()), (Some("is"), _) | (Some("not"), Some("is")));
    KEYWORDS.contains(&word) && !is_test
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_are_told_from_arguments() {
        let translated = |text: &str| translate(text).unwrap_or_else(|| text.to_owned());
        for (text, wanted) in [
            (" (1, 2) ", " r1_tuple([1, 2]) "),
            ("()", "r1_tuple([])"),
            ("x in ('a', 'b') and (y)", "x in r1_tuple(['a', 'b']) and (y)"),
            ("x not in (1, f(2, (3,)))", "x not in r1_tuple([1, f(2, r1_tuple([3,]))])"),
            ("f((1, 2), a=(3, '(,)'))", "f(r1_tuple([1, 2]), a=r1_tuple([3, '(,)']))"),
            ("[(1, 2)][(0)]", "[r1_tuple([1, 2])][(0)]"),
            ("{'a': (1,)}", "{'a': r1_tuple([1,])}"),
        ] {
            assert_eq!(translated(text), wanted);
        }
        for text in [
            "f(1, 2)",
            "x is in (1, 2)",
            "x is not in (1, 2)",
            "x.f(1, 2)",
            "f(1)(2, 3)",
            "(f(1, 2))",
            "([1, 2])",
            "x|join(', ')",
            "'(1, 2)'",
        ] {
            assert_eq!(translated(text), text);
        }
    }
}
