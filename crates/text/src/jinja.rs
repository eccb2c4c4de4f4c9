//! Translates Jinja2 templates into what minijinja accepts, before they are compiled. Line numbers
//! do not change.
//!
//! - `{% generation %}` marks assistant text for masks in transformers; here it is a block without
//!   effect.
//! - A loop over the characters of a string has a known length (`loop.last`).
//! - A string added to a `|safe` string is escaped, as MarkupSafe does, even with autoescape off.
//! - Operators have Python's results (`operators`).
//! - Loops, assignments and conditions check a limit of CPU time and memory (`time_limit`):
//!   minijinja only counts instructions, and a single one may double a string.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::filters::escape;
use super::operators::{EACH, ExpressionPart, HELD, SUM, literal};
use super::time_limit::{in_time, keep};
use super::{arithmetic, operators, size_limits};

/// Maximum words of a tag. Tags of published templates have fewer than 200.
const WORDS: usize = 2_000;

/// Registers the functions and filters that translated templates call.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(EACH, each);
    environment.add_function(SUM, sum);
    environment.add_filter(HELD, held);
    arithmetic::register(environment);
}

/// Returns the value unchanged; fails when time or memory is used up.
fn held(value: Value) -> Result<Value, Error> {
    in_time()?;
    if let Some(text) = value.as_str()
        && !(text.len() <= size_limits::LONGEST && keep(text.len()))
    {
        return Err(Error::new(ErrorKind::OutOfFuel, "it keeps too much text"));
    }
    Ok(value)
}

/// The items of a loop: the characters of a string as a list, any other value unchanged.
fn each(value: Value) -> Result<Value, Error> {
    let value = held(value)?;
    Ok(match value.as_str() {
        Some(text) => {
            size_limits::check_list(&value)?;
            text.chars().map(Value::from).collect()
        }
        None => value,
    })
}

/// `a + b + …` where at least one operand is safe.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn sum(parts: Vec<Value>) -> Result<Value, Error> {
    let (mut whole, mut safe) = (String::new(), false);
    for (index, part) in parts.iter().enumerate() {
        let Some(text) = part.as_str() else {
            let kind = if part.kind() == ValueKind::Undefined { "nothing".to_owned() } else { part.kind().to_string() };
            return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} is added to a text")));
        };
        if index > 0 && part.is_safe() && !safe {
            whole = escape(&whole);
        }
        let escaped = (safe && !part.is_safe()).then(|| escape(text));
        whole.push_str(escaped.as_deref().unwrap_or(text));
        safe |= part.is_safe();
    }
    Ok(if safe { Value::from_safe_string(whole) } else { Value::from(whole) })
}

/// A translated template.
pub(super) struct Translated {
    pub(super) text: String,
    /// The first expression that could not be read, with its line. It is unchanged, so that the
    /// compiler reports it; one that the compiler accepts is refused.
    pub(super) unread: Option<(usize, String)>,
}

/// Translates a template for minijinja.
///
/// # Errors
/// The line of a tag with more than [`WORDS`] words: minijinja's compiler calls itself for each
/// operator, and the stack would overflow.
pub(super) fn translate(source: &str) -> Result<Translated, usize> {
    let mut unread = None;
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    // Where the last tag ends: raw text may have many braces that open nothing.
    let last = source.rfind("%}").map_or(usize::MAX, |at| source.len() - at);
    while let Some((start, open)) = opening(rest) {
        let inner = &rest[start + 2..];
        let close = match open {
            "{#" => "#}",
            "{{" => "}}",
            _ => "%}",
        };
        let end = match open {
            "{%" if raw && inner.len() < last => None,
            "{%" if raw => inner.find(close),
            _ if raw => None,
            "{#" => inner.find(close),
            _ => first(inner, |rest, _| rest.starts_with(close)),
        };
        let Some(end) = end else {
            // Braces have no meaning in raw text.
            let next = start + 2;
            if raw {
                out.push_str(&rest[..next]);
                rest = &rest[next..];
                continue;
            }
            break;
        };
        out.push_str(&rest[..start + 2]);
        let body = &inner[..end];
        if open != "{#" && !raw && count_words(body) > WORDS {
            return Err(1 + source[..source.len() - inner.len()].matches('\n').count());
        }
        let bare = body.trim_start_matches(['-', '+']);
        let (left, bare) = body.split_at(body.len() - bare.len());
        let bare = bare.trim_end_matches(['-', '+']);
        let right = &body[left.len() + bare.len()..];
        let word = bare.trim();
        if open == "{%" && (word == "raw" || word == "endraw") {
            raw = word == "raw";
        }
        let translated = match open {
            "{%" if !raw && word != "endraw" => tag(bare),
            "{{" if !raw => operators::translate(bare, ExpressionPart::Expression).map(Cow::Owned),
            _ => Some(Cow::Borrowed(bare)),
        };
        if translated.is_none() && unread.is_none() {
            let line = 1 + source[..source.len() - inner.len()].matches('\n').count();
            unread = Some((line, word.to_owned()));
        }
        out.push_str(left);
        out.push_str(translated.as_deref().unwrap_or(bare));
        // Jinja2 does not trim a line break after `{% raw %}`.
        out.push_str(if open == "{%" && word == "raw" && right.is_empty() { "+" } else { right });
        out.push_str(close);
        if open == "{%" && !raw {
            out.push_str(&guards(bare, right));
        }
        rest = &inner[end + 2..];
    }
    Ok(Translated { text: out + rest, unread })
}

/// Names, numbers, strings and signs of a tag.
fn count_words(body: &str) -> usize {
    let bytes = body.as_bytes();
    let (mut count, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        at = match byte {
            b'"' | b'\'' => literal(&body[at..]).map_or(bytes.len(), |length| at + length),
            _ if is_part(&byte) => at + bytes[at..].iter().take_while(|byte| is_part(byte)).count(),
            _ => at + 1,
        };
        count += usize::from(!byte.is_ascii_whitespace());
    }
    count
}

/// The first opening of a tag, an expression or a comment.
fn opening(text: &str) -> Option<(usize, &'static str)> {
    text.match_indices('{').find_map(|(at, _)| {
        let open = ["{{", "{%", "{#"].into_iter().find(|open| text[at..].starts_with(open))?;
        Some((at, open))
    })
}

/// The translated text of a tag; `None` for one that can't be read.
fn tag(body: &str) -> Option<Cow<'_, str>> {
    let Some(name) = body.split_whitespace().next() else { return Some(Cow::Borrowed(body)) };
    let after = body.find(name)? + name.len();
    let (from, part) = match name {
        "generation" if body.trim() == name => return Some(Cow::Owned(body.replacen(name, "if true", 1))),
        "endgeneration" => return Some(Cow::Owned(body.replacen(name, "endif", 1))),
        "for" => (word(body, "in")? + 2, ExpressionPart::Loop),
        "set" => match first(body, |rest, _| rest.starts_with('=')) {
            Some(at) => (at + 1, ExpressionPart::Held),
            None => (after, ExpressionPart::Expression),
        },
        "if" | "elif" => (after, ExpressionPart::Held),
        "with" => (after, ExpressionPart::Assignments),
        "macro" => (after, ExpressionPart::Call),
        _ if name.starts_with("call") && body[after - name.len() + 4..].trim_start().starts_with('(') => {
            (after - name.len() + 4, ExpressionPart::Call)
        }
        "call" => (after, ExpressionPart::Call),
        _ => (after, ExpressionPart::Expression),
    };
    let (before, value) = body.split_at(from);
    // The compiler reports a missing expression.
    if value.trim().is_empty() {
        return Some(Cow::Borrowed(body));
    }
    Some(Cow::Owned(format!("{before}{}", operators::translate(value, part)?)))
}

/// Checks of a macro's parameters, inserted after its tag: a recursive macro may let them grow.
fn guards(body: &str, right: &str) -> String {
    let mut out = String::new();
    let inside = body.trim().strip_prefix("macro ").and_then(|rest| rest.split_once('(')?.1.rsplit_once(')'));
    let mut rest = inside.map_or("", |(inside, _)| inside);
    while !rest.is_empty() {
        let end = first(rest, |rest, _| rest.starts_with(',')).unwrap_or(rest.len());
        let name = rest[..end].split('=').next().unwrap_or_default().trim();
        if !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_') {
            out.extend(["{% if (", name, ")|", HELD, " ", right, "%}{% endif ", right, "%}"]);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    out
}

/// The first position, outside brackets and strings, of a word.
fn word(text: &str, keyword: &str) -> Option<usize> {
    let mut before = None;
    first(text, |rest, _| {
        let apart = !before.is_some_and(is_part_of_word);
        before = rest.chars().next();
        apart && rest.strip_prefix(keyword).is_some_and(|rest| !rest.starts_with(is_part_of_word))
    })
}

pub(super) fn is_part_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '.'
}

/// The first position outside brackets and strings where `holds(rest of the text, position)`.
pub(super) fn first(text: &str, mut holds: impl FnMut(&str, usize) -> bool) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, letter) in text.char_indices() {
        if let Some(open) = quote {
            if !escaped && letter == open {
                quote = None;
            }
            escaped = !escaped && letter == '\\';
            continue;
        }
        if depth == 0 && holds(&text[at..], at) {
            return Some(at);
        }
        match letter {
            '"' | '\'' => quote = Some(letter),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use minijinja::context;

    use super::*;

    fn rendered(source: &str) -> String {
        let mut environment = Environment::new();
        register(&mut environment);
        environment.add_template_owned("t", translate(source).unwrap().text).unwrap();
        let tools = vec![context! { name => "f", spec => "{\"a\": '<b>'}" }];
        environment.get_template("t").unwrap().render(context! { tools, word => "añb" }).unwrap()
    }

    #[test]
    fn loop_last_works_for_the_characters_of_a_string() {
        let commas = "{{ c }}{% if not loop.last %}, {% endif %}";
        assert_eq!(rendered(&format!("{{% for c in word %}}{commas}{{% endfor %}}")), "a, ñ, b");
        assert_eq!(rendered(&format!("{{%- for c in word if c != 'b' -%}} {commas}{{%- endfor -%}}")), "a, ñ");
        assert_eq!(rendered("{% for c in [word, 'in if'] %}{{ loop.length }}{{ c }}{% endfor %}"), "2añb2in if");
        assert_eq!(rendered("{% for c in 'x if y' %}{{ c }}{% endfor %}"), "x if y");
        assert_eq!(rendered("{% for t in tools recursive %}{{ t.name }}{% endfor %}"), "f");
        assert_eq!(rendered("{% for k, v in {'a}}': 1}|items %}{{ k }}{{ v }}{% endfor %}"), "a}}1");
        assert_eq!(rendered("{% for x in missing %}{{ x }}{% else %}none{% endfor %}"), "none");
        assert_eq!(rendered("{% for begin in range(2) %}{{ begin }}{% endfor %}"), "01");
    }

    /// As MarkupSafe 3 adds: `Markup("'") + "<" + Markup("'")`.
    #[test]
    fn strings_added_to_safe_strings_are_escaped() {
        assert_eq!(rendered("{{ '\\''|safe + '<' + \"'\" | safe }}"), "'&lt;'");
        assert_eq!(rendered("{{ '&' + '<b>'|safe }}"), "&amp;<b>");
        assert_eq!(
            rendered("{{- tools[0].name + ' <'|safe + tools[0]['spec'] -}}"),
            "f <{&#34;a&#34;: &#39;&lt;b&gt;&#39;}"
        );
        assert_eq!(rendered("{% set a = '<'|safe + '>' %}{{ a }}"), "<&gt;");
        assert_eq!(rendered("{{ ('<'|safe + '>')|upper }}{% if '<'|safe + '>' == '<&gt;' %}!{% endif %}"), "<&GT;!");
        // No operand is safe, or nothing is added.
        assert_eq!(rendered("{{ '<' + '>' }}{{ '<'|safe }}{{ '+|safe' }}"), "<><+|safe");
        assert_eq!(rendered("{{ '<'|safe if true else '+' }}"), "<");
        let mut environment = Environment::new();
        register(&mut environment);
        environment.add_template_owned("t", translate("{{ 'a'|safe + 1 }}").unwrap().text).unwrap();
        let error = environment.get_template("t").unwrap().render(()).unwrap_err();
        assert!(error.to_string().contains("number is added to a text"), "{error}");
    }

    #[test]
    fn other_template_syntax_is_not_translated() {
        for same in [
            "{# for x in y #}{{ a - b }}{% if %}{% elif -%}{% endif %}",
            "{% raw +%}{% for x in y %}{{ 'a'|safe + b }} {# {{ {% endraw %}{{ x }}",
            "an { open {{ tag 'and a string }}",
            "{% set x %}{{ y }}{% endset %}{% generation_of(x) %}",
        ] {
            assert_eq!(translate(same).unwrap().text, same);
        }
        assert_eq!(translate("{%- generation -%}x{% endgeneration %}").unwrap().text, "{%- if true -%}x{% endif %}");
        let guarded = "{%- if ('x' in y)|r1_held -%}{% set a.b = (1 if c == 3 else 2)|r1_held %}{% elif (z)|r1_held %}";
        let translated = |text: &str| translate(text).unwrap().text;
        assert_eq!(translated("{%- if 'x' in y -%}{% set a.b = 1 if c == 3 else 2 %}{% elif z %}"), guarded);
        let guarded = "{%- macro f(a, b='x,y') -%}{% if (a)|r1_held -%}{% endif -%}{% if (b)|r1_held -%}{% endif -%}";
        assert_eq!(translated("{%- macro f(a, b='x,y') -%}"), guarded);
        let source = "{% raw %}{% for %}{% endraw %}\n{% for x in\n  y %}\n{% endfor %}";
        assert_eq!(translated(source), "{% raw +%}{% for %}{% endraw %}\n{% for x in\n  (y)|r1_each %}\n{% endfor %}");
    }
}
