//! Python literals and calls with named arguments, as used in tool calls: `f(a=1, b=['x', None])`.

use serde_json::{Map, Number, Value};

use super::shared::call;
use crate::mdp::ToolCall;

/// Maximum nesting of brackets.
const DEPTH: usize = 64;

/// The reason why a text is not a call.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// Incomplete: more text may complete it.
    Cut,
    /// The error, and the byte of the text where it was found.
    Wrong { what: String, at: usize },
}

type Read<T> = Result<T, Fault>;

/// Parses `name(key=value, …)` at the start of `text`: the call and its length in bytes.
pub(super) fn read_call(text: &str) -> Read<(ToolCall, usize)> {
    let mut reader = Reader { length: text.len(), rest: text };
    let name = reader.name()?;
    reader.space();
    reader.expect('(')?;
    let arguments = reader.arguments()?;
    Ok((call(&name, Value::Object(arguments)), text.len() - reader.rest.len()))
}

struct Reader<'a> {
    /// Bytes of the whole text.
    length: usize,
    rest: &'a str,
}

impl Reader<'_> {
    fn wrong<T>(&self, what: impl Into<String>) -> Read<T> {
        Err(Fault::Wrong { what: what.into(), at: self.length - self.rest.len() })
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn peek(&self) -> Read<char> {
        self.rest.chars().next().ok_or(Fault::Cut)
    }

    fn eat(&mut self, token: char) -> Read<bool> {
        let found = self.peek()? == token;
        if found {
            self.rest = &self.rest[token.len_utf8()..];
        }
        Ok(found)
    }

    fn expect(&mut self, token: char) -> Read<()> {
        if self.eat(token)? {
            return Ok(());
        }
        self.wrong(format!("expected `{token}`, found `{}`", self.peek()?))
    }

    /// A name with dots, as in `math.sqrt`.
    fn name(&mut self) -> Read<String> {
        let end = self.rest.find(|letter: char| !letter.is_alphanumeric() && !"_.-".contains(letter));
        let end = end.ok_or(Fault::Cut)?;
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return self.wrong(format!("expected a name, found `{}`", self.peek()?));
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// Arguments after the opening bracket, up to and including the closing one.
    fn arguments(&mut self) -> Read<Map<String, Value>> {
        let mut arguments = Map::new();
        loop {
            self.space();
            if self.eat(')')? {
                return Ok(arguments);
            }
            let letter = self.peek()?;
            if !letter.is_alphabetic() && letter != '_' {
                return self.wrong("every argument needs a name, as in `f(x=1)`");
            }
            let key = self.name()?;
            self.space();
            if !self.eat('=')? {
                return self.wrong("every argument needs a name, as in `f(x=1)`");
            }
            let value = self.value(0)?;
            if arguments.insert(key.clone(), value).is_some() {
                return self.wrong(format!("the argument `{key}` is given twice"));
            }
            self.space();
            if !self.eat(',')? && self.peek()? != ')' {
                return self.wrong(format!("expected `,` or `)` after `{key}`, found `{}`", self.peek()?));
            }
        }
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > DEPTH {
            return self.wrong("values are nested too deep");
        }
        self.space();
        match self.peek()? {
            '[' => self.list(']', depth).map(Value::Array),
            '(' => self.list(')', depth).map(Value::Array),
            '{' => self.dictionary(depth),
            quote @ ('\'' | '"') => self.string(quote).map(Value::String),
            letter if letter.is_ascii_digit() || "+-.".contains(letter) => self.number(),
            _ => self.word(),
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Read<Vec<Value>> {
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        loop {
            self.space();
            if self.eat(close)? {
                return Ok(items);
            }
            items.push(self.value(depth + 1)?);
            self.space();
            if !self.eat(',')? && self.peek()? != close {
                return self.wrong(format!("expected `,` or `{close}` in a list, found `{}`", self.peek()?));
            }
        }
    }

    fn dictionary(&mut self, depth: usize) -> Read<Value> {
        self.rest = &self.rest[1..];
        let mut map = Map::new();
        loop {
            self.space();
            if self.eat('}')? {
                return Ok(Value::Object(map));
            }
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                key @ (Value::Number(_) | Value::Bool(_) | Value::Null) => key.to_string(),
                _ => return self.wrong("a key of a dictionary must be a string"),
            };
            self.space();
            self.expect(':')?;
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.space();
            if !self.eat(',')? && self.peek()? != '}' {
                return self.wrong(format!("expected `,` or `}}` in a dictionary, found `{}`", self.peek()?));
            }
        }
    }

    /// A string in single, double or triple quotes.
    fn string(&mut self, quote: char) -> Read<String> {
        let triple = quote.to_string().repeat(3);
        if triple.starts_with(self.rest) {
            return Err(Fault::Cut);
        }
        let long = self.rest.starts_with(&triple);
        let end = if long { triple.as_str() } else { &triple[..1] };
        self.rest = &self.rest[end.len()..];
        let mut out = String::new();
        loop {
            if self.rest.starts_with(end) {
                self.rest = &self.rest[end.len()..];
                return Ok(out);
            }
            let letter = self.peek()?;
            self.rest = &self.rest[letter.len_utf8()..];
            match letter {
                '\\' => out.push_str(&self.escape()?),
                '\n' if !long => return self.wrong("a string is not closed before the end of its line"),
                letter => out.push(letter),
            }
        }
    }

    /// An escape sequence after its backslash.
    fn escape(&mut self) -> Read<String> {
        let letter = self.peek()?;
        self.rest = &self.rest[letter.len_utf8()..];
        let plain = match letter {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'a' => '\u{7}',
            'v' => '\u{b}',
            '0' => '\0',
            '\n' => return Ok(String::new()),
            '\\' | '\'' | '"' => letter,
            'x' | 'u' | 'U' => return self.code_point(letter),
            // Python keeps the backslash of an unknown escape sequence.
            other => return Ok(format!("\\{other}")),
        };
        Ok(plain.to_string())
    }

    fn code_point(&mut self, letter: char) -> Read<String> {
        let length = match letter {
            'x' => 2,
            'u' => 4,
            _ => 8,
        };
        if self.rest.len() < length {
            return Err(Fault::Cut);
        }
        let digits = self.rest.get(..length).unwrap_or_default();
        let point = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        let Some(point) = point else { return self.wrong(format!("`\\{letter}{digits}` is not a character")) };
        self.rest = &self.rest[length..];
        Ok(point.to_string())
    }

    fn number(&mut self) -> Read<Value> {
        let end = self.rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-._".contains(letter));
        let (text, rest) = self.rest.split_at(end.ok_or(Fault::Cut)?);
        let plain = text.replace('_', "");
        let plain = plain.strip_prefix('+').unwrap_or(&plain);
        let number = plain
            .parse::<i64>()
            .map(Number::from)
            .ok()
            .or_else(|| plain.parse::<u64>().map(Number::from).ok())
            .or_else(|| plain.parse::<f64>().ok().and_then(Number::from_f64));
        let Some(number) = number else { return self.wrong(format!("`{text}` is not a number")) };
        self.rest = rest;
        Ok(Value::Number(number))
    }

    fn word(&mut self) -> Read<Value> {
        let word = self.name()?;
        match word.as_str() {
            "True" | "true" => Ok(Value::Bool(true)),
            "False" | "false" => Ok(Value::Bool(false)),
            "None" | "null" => Ok(Value::Null),
            _ => self.wrong(format!("`{word}` is not a literal; give strings in quotes")),
        }
    }
}

/// A value in Python syntax.
pub(super) fn write(value: &Value) -> String {
    crate::text::python::repr(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn python_literals_are_parsed() {
        let text = r#"a.b(x='it\'s', y="\u00e9\n", z=[1, -2.5, (True, None), {'k': """l1
"l2" """, 3: 1_000},], e={}, f=1e3)rest"#;
        let (call, used) = read_call(text).unwrap();
        assert_eq!(&text[used..], "rest");
        assert_eq!(call.name, "a.b");
        let expected = json!({"x": "it's", "y": "é\n", "z": [1, -2.5, [true, null], {"k": "l1\n\"l2\" ", "3": 1000}],
            "e": {}, "f": 1000.0});
        assert_eq!(call.arguments, expected);
        // Every prefix is incomplete.
        for end in (0..used).filter(|&end| text.is_char_boundary(end)) {
            assert_eq!(read_call(&text[..end]), Err(Fault::Cut), "{}", &text[..end]);
        }
    }

    #[test]
    fn malformed_literals_give_error_messages() {
        let wrong = |what: &str, at| Err(Fault::Wrong { what: what.to_owned(), at });
        for (text, at, why) in [
            ("f(1)", 2, "every argument needs a name, as in `f(x=1)`"),
            ("f(x)", 3, "every argument needs a name, as in `f(x=1)`"),
            ("f(x=y)", 5, "`y` is not a literal; give strings in quotes"),
            ("f(x=1, x=2)", 10, "the argument `x` is given twice"),
            ("f(x=1 y=2)", 6, "expected `,` or `)` after `x`, found `y`"),
            ("f(x='a\n')", 7, "a string is not closed before the end of its line"),
            ("f(x=[1 2])", 7, "expected `,` or `]` in a list, found `2`"),
            ("f(x={1 2})", 7, "expected `:`, found `2`"),
            ("f(x=1.2.3)", 4, "`1.2.3` is not a number"),
            ("f[", 1, "expected `(`, found `[`"),
        ] {
            assert_eq!(read_call(text), wrong(why, at), "{text}");
        }
        let deep = format!("f(x={}", "[".repeat(100_000));
        assert_eq!(read_call(&deep), wrong("values are nested too deep", 69));
    }
}
