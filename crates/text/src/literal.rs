//! Python literals and calls with named arguments, as used in tool calls: `f(a=1, b=['x', None])`.

use serde_json::{Map, Number, Value};

use r1_base::json::is_long_whole;
use r1_base::mdp::ToolCall;

/// Maximum nesting of brackets.
const DEPTH: usize = 64;

/// The reason why a text is not a call.
#[derive(Debug, PartialEq)]
pub(super) enum LiteralFault {
    /// Incomplete: more text may complete it.
    Cut,
    /// The error, and the byte of the text where it was found.
    Wrong { what: String, at: usize },
}

type ReadResult<T> = Result<T, LiteralFault>;

/// Parses `name(key=value, …)` at the start of `text`: the call and its length in bytes.
pub(super) fn read_call(text: &str) -> ReadResult<(ToolCall, usize)> {
    let mut reader = LiteralReader { length: text.len(), rest: text };
    let name = reader.name()?;
    reader.space();
    reader.expect('(')?;
    let arguments = reader.arguments()?;
    let call = ToolCall { id: None, name, arguments: Value::Object(arguments) };
    Ok((call, text.len() - reader.rest.len()))
}

/// Parses a text that is one value.
pub(super) fn read_value(text: &str) -> Option<Value> {
    // Numbers and names end at another character.
    let text = format!("{text}\n");
    let mut reader = LiteralReader { length: text.len(), rest: &text };
    let value = reader.value(0).ok()?;
    reader.rest.trim().is_empty().then_some(value)
}

struct LiteralReader<'a> {
    /// Bytes of the whole text.
    length: usize,
    rest: &'a str,
}

impl LiteralReader<'_> {
    fn wrong<T>(&self, what: impl Into<String>) -> ReadResult<T> {
        Err(LiteralFault::Wrong { what: what.into(), at: self.length - self.rest.len() })
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn peek(&self) -> ReadResult<char> {
        self.rest.chars().next().ok_or(LiteralFault::Cut)
    }

    fn eat(&mut self, token: char) -> ReadResult<bool> {
        let matches = self.peek()? == token;
        if matches {
            self.rest = &self.rest[token.len_utf8()..];
        }
        Ok(matches)
    }

    fn expect(&mut self, token: char) -> ReadResult<()> {
        if self.eat(token)? {
            return Ok(());
        }
        self.wrong(format!("expected `{token}`, found `{}`", self.peek()?))
    }

    /// A name with dots, as in `math.sqrt`.
    fn name(&mut self) -> ReadResult<String> {
        let end = self.rest.find(|letter: char| !letter.is_alphanumeric() && !"_.-".contains(letter));
        let end = end.ok_or(LiteralFault::Cut)?;
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return self.wrong(format!("expected a name, found `{}`", self.peek()?));
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// Arguments after the opening bracket, up to and including the closing one.
    fn arguments(&mut self) -> ReadResult<Map<String, Value>> {
        let mut arguments = Map::new();
        self.items(')', |reader| {
            let letter = reader.peek()?;
            if !letter.is_alphabetic() && letter != '_' {
                return reader.wrong("every argument needs a name, as in `f(x=1)`");
            }
            let key = reader.name()?;
            reader.space();
            if !reader.eat('=')? {
                return reader.wrong("every argument needs a name, as in `f(x=1)`");
            }
            let value = reader.value(0)?;
            if arguments.insert(key.clone(), value).is_some() {
                return reader.wrong(format!("the argument `{key}` is given twice"));
            }
            Ok(format!("after `{key}`"))
        })?;
        Ok(arguments)
    }

    /// Items between commas, up to and including the closing bracket. `item` returns what an error
    /// after the item says of its position.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self) -> ReadResult<String>) -> ReadResult<()> {
        loop {
            self.space();
            if self.eat(close)? {
                return Ok(());
            }
            let position = item(self)?;
            self.space();
            if !self.eat(',')? && self.peek()? != close {
                return self.wrong(format!("expected `,` or `{close}` {position}, found `{}`", self.peek()?));
            }
        }
    }

    fn value(&mut self, depth: usize) -> ReadResult<Value> {
        if depth > DEPTH {
            return self.wrong("values are nested too deep");
        }
        self.space();
        match self.peek()? {
            '[' => self.list(']', depth).map(Value::Array),
            '(' => self.list(')', depth).map(Value::Array),
            '{' => self.dictionary(depth),
            '\'' | '"' => self.strings().map(Value::String),
            _ if self.prefix().is_some() => self.strings().map(Value::String),
            letter if letter.is_ascii_digit() || "+-.".contains(letter) => self.number(),
            _ => self.word(),
        }
    }

    fn list(&mut self, close: char, depth: usize) -> ReadResult<Vec<Value>> {
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        self.items(close, |reader| {
            items.push(reader.value(depth + 1)?);
            Ok("in a list".to_owned())
        })?;
        Ok(items)
    }

    fn dictionary(&mut self, depth: usize) -> ReadResult<Value> {
        self.rest = &self.rest[1..];
        let mut map = Map::new();
        self.items('}', |reader| {
            let key = match reader.value(depth + 1)? {
                Value::String(key) => key,
                key @ (Value::Number(_) | Value::Bool(_) | Value::Null) => key.to_string(),
                _ => return reader.wrong("a key of a dictionary must be a string"),
            };
            reader.space();
            reader.expect(':')?;
            let value = reader.value(depth + 1)?;
            map.insert(key, value);
            Ok("in a dictionary".to_owned())
        })?;
        Ok(Value::Object(map))
    }

    /// The prefix of a string before its quote, and whether it is raw.
    fn prefix(&self) -> Option<(usize, bool)> {
        let mut letters = self.rest.chars();
        match (letters.next()?, letters.next()) {
            ('\'' | '"', _) => Some((0, false)),
            ('r' | 'R', Some('\'' | '"')) => Some((1, true)),
            ('u' | 'U', Some('\'' | '"')) => Some((1, false)),
            _ => None,
        }
    }

    /// A string, or neighbouring strings, which are one.
    fn strings(&mut self) -> ReadResult<String> {
        let mut all = String::new();
        loop {
            let (prefix, raw) = self.prefix().ok_or(LiteralFault::Cut)?;
            self.rest = &self.rest[prefix..];
            all.push_str(&self.string(raw)?);
            let end = self.rest;
            self.space();
            self.peek()?;
            // `r` alone may be the prefix of a string that has not arrived.
            if matches!(self.rest, "r" | "R" | "u" | "U") {
                return Err(LiteralFault::Cut);
            }
            if self.prefix().is_none() {
                self.rest = end;
                return Ok(all);
            }
        }
    }

    /// A string in single, double or triple quotes.
    fn string(&mut self, raw: bool) -> ReadResult<String> {
        let quote = self.peek()?;
        let triple = quote.to_string().repeat(3);
        if triple.starts_with(self.rest) {
            return Err(LiteralFault::Cut);
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
                '\\' if raw => {
                    let next = self.peek()?;
                    self.rest = &self.rest[next.len_utf8()..];
                    out.extend(['\\', next]);
                }
                '\\' => out.push_str(&self.escape()?),
                '\n' if !long => return self.wrong("a string is not closed before the end of its line"),
                letter => out.push(letter),
            }
        }
    }

    /// An escape sequence after its backslash.
    fn escape(&mut self) -> ReadResult<String> {
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
            '0'..='7' => return self.octal(letter),
            '\n' => return Ok(String::new()),
            '\\' | '\'' | '"' => letter,
            'x' | 'u' | 'U' => return self.code_point(letter),
            // Python keeps the backslash of an unknown escape sequence.
            other => return Ok(format!("\\{other}")),
        };
        Ok(plain.to_string())
    }

    /// One to three octal digits, of which the first is read.
    fn octal(&mut self, first: char) -> ReadResult<String> {
        let mut point = first.to_digit(8).unwrap_or_default();
        for _ in 0..2 {
            let Some(digit) = self.peek()?.to_digit(8) else { break };
            self.rest = &self.rest[1..];
            point = point * 8 + digit;
        }
        // At most 511, which is a character.
        Ok(char::from_u32(point).unwrap_or_default().to_string())
    }

    fn code_point(&mut self, letter: char) -> ReadResult<String> {
        let length = match letter {
            'x' => 2,
            'u' => 4,
            _ => 8,
        };
        if self.rest.len() < length {
            return Err(LiteralFault::Cut);
        }
        let digits = self.rest.get(..length).unwrap_or_default();
        let point = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        let Some(point) = point else { return self.wrong(format!("`\\{letter}{digits}` is not a character")) };
        self.rest = &self.rest[length..];
        Ok(point.to_string())
    }

    fn number(&mut self) -> ReadResult<Value> {
        let end = self.rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-._".contains(letter));
        let (text, rest) = self.rest.split_at(end.ok_or(LiteralFault::Cut)?);
        let plain = text.replace('_', "");
        let plain = plain.strip_prefix('+').unwrap_or(&plain);
        let Some(number) = number(plain) else { return self.wrong(format!("`{text}` is not a number")) };
        self.rest = rest;
        Ok(number)
    }

    fn word(&mut self) -> ReadResult<Value> {
        let word = self.name()?;
        match word.as_str() {
            "True" | "true" => Ok(Value::Bool(true)),
            "False" | "false" => Ok(Value::Bool(false)),
            "None" | "null" => Ok(Value::Null),
            _ => self.wrong(format!("`{word}` is not a literal; give strings in quotes")),
        }
    }
}

/// A number: a decimal one, or a whole one in base 16, 8 or 2. A whole number of more than 64 bits
/// is text with its digits, as in [`r1_base::json`].
fn number(text: &str) -> Option<Value> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let prefix = digits.get(..2).unwrap_or_default().to_ascii_lowercase();
    let base = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(sign, _)| *sign == prefix);
    let text = match base {
        Some((_, base)) => {
            let digits = digits[2..].strip_prefix(['+', '-']).map_or(&digits[2..], |_| "");
            format!("{sign}{}", u128::from_str_radix(digits, base).ok()?)
        }
        None => text.to_owned(),
    };
    if is_long_whole(&text) {
        return Some(Value::String(text));
    }
    let whole = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    whole.ok().or_else(|| Number::from_f64(text.parse().ok()?)).map(Value::Number)
}

/// A value in Python syntax.
pub(super) fn write(value: &Value) -> String {
    crate::python::repr(value)
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
            assert_eq!(read_call(&text[..end]), Err(LiteralFault::Cut), "{}", &text[..end]);
        }
    }

    #[test]
    fn numbers_and_strings_are_those_of_python() {
        for (text, expected) in [
            (r"'\101\0\7x\1234'", json!("A\0\u{7}xS4")),
            (r"r'\d\''", json!(r"\d\'")),
            (r#"R"\n" 'a' u"b""#, json!(r"\nab")),
            ("0x10", json!(16)),
            ("-0XfF", json!(-255)),
            ("0o17", json!(15)),
            ("0b1_01", json!(5)),
            ("12345678901234567890123", json!("12345678901234567890123")),
            ("[-12345678901234567890, 18446744073709551615]", json!(["-12345678901234567890", u64::MAX])),
            ("0xffffffffffffffffffff", json!("1208925819614629174706175")),
        ] {
            let text = format!("f(x={text})");
            let (call, used) = read_call(&text).unwrap();
            assert_eq!((call.arguments, used), (json!({ "x": expected }), text.len()), "{text}");
            for end in (0..used).filter(|&end| text.is_char_boundary(end)) {
                assert_eq!(read_call(&text[..end]), Err(LiteralFault::Cut), "{}", &text[..end]);
            }
        }
        for text in ["0x", "0x-1", "0b2", "0o8", "1e400", "--1"] {
            assert!(read_call(&format!("f(x={text})")).is_err(), "{text}");
        }
        assert_eq!(read_value(" ['a', 1] "), Some(json!(["a", 1])));
        assert_eq!((read_value("[1] 2"), read_value("[1")), (None, None));
    }

    #[test]
    fn malformed_literals_give_error_messages() {
        let wrong = |what: &str, at| Err(LiteralFault::Wrong { what: what.to_owned(), at });
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
