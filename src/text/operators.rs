//! Translates operators in expressions of Jinja2 that minijinja computes in another way than
//! Python: into calls of filters (`arithmetic`), which compute it, or refuse what r1 does not have.
//!
//! - `(a, b)` is a tuple; minijinja reads a list.
//! - `a ~ b` joins the texts that Python prints.
//! - `//` and `%` round down; `==` tells tuples from lists; `<` orders booleans as numbers.
//! - `and` returns one of its operands, of constants too.
//! - The factors of products, the terms of sums and what is sliced are marked: a tuple is refused
//!   there, and a list that is multiplied becomes one whose reading checks the time (`products`).
//!
//! The grammar is that of minijinja's parser. Line breaks stay where they are.

use super::arithmetic::{FLOOR_DIVIDE, IN, MODULO, ORDERS, PLAIN, SAME, SLICED, TERM};
use super::jinja::HELD;
use super::products::FACTOR;
use super::values::TUPLE;

/// Nested brackets that are read. minijinja reads half of them.
const DEPTH: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Number,
    Text,
    Sign(&'a str),
}

/// Signs of two letters; all others have one.
const SIGNS: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// A part of an expression.
#[derive(Clone, Copy)]
struct Node {
    start: usize,
    end: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    /// A number, true, false or none.
    Scalar,
    /// A tuple, a list or a dictionary in brackets.
    Items,
    /// An expression of constants.
    Constant,
    Other,
}

impl Node {
    fn is_constant(&self) -> bool {
        self.kind != Kind::Other
    }
}

/// A change of the text. At one place, ends of calls come before beginnings, inner ends first and
/// outer beginnings first.
struct Edit {
    at: usize,
    order: Order,
    /// Bytes that it replaces.
    removed: usize,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    End(usize),
    Begin(std::cmp::Reverse<usize>),
    Replace,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token<'a>, usize, usize)>,
    at: usize,
    depth: usize,
    edits: Vec<Edit>,
}

/// The part of a tag's text that is an expression.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    /// An expression, or several that make a tuple.
    Expression,
    /// The values of a loop, with its condition.
    Loop,
    /// `a = x, b = y`.
    Assignments,
    /// `name(a, b = x)`, `(user) f(x)`.
    Call,
}

/// The translated text; `None` for what can't be read.
pub(super) fn translate(text: &str, part: Part) -> Option<String> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0, edits: Vec::new() };
    match part {
        Part::Expression => {
            parser.tuple()?;
        }
        Part::Loop => {
            parser.either()?;
            if parser.skip_name("if") {
                parser.condition()?;
            }
            parser.skip_name("recursive");
        }
        Part::Assignments => {
            while parser.at < parser.tokens.len() {
                parser.condition()?;
                if parser.skip("=") {
                    parser.condition()?;
                }
                parser.skip(",");
            }
        }
        Part::Call => {
            if parser.peek() == Some(Token::Sign("(")) {
                parser.arguments()?;
            }
            parser.condition()?;
        }
    }
    if parser.at < parser.tokens.len() {
        return None;
    }
    Some(parser.written())
}

impl<'a> Parser<'a> {
    fn written(mut self) -> String {
        self.edits.sort_by_key(|edit| (edit.at, edit.order));
        let added: usize = self.edits.iter().map(|edit| edit.text.len()).sum();
        let (mut out, mut copied) = (String::with_capacity(self.text.len() + added), 0);
        for edit in &self.edits {
            out.push_str(&self.text[copied..edit.at]);
            out.push_str(&edit.text);
            copied = edit.at + edit.removed;
        }
        out + &self.text[copied..]
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, ..)| *token)
    }

    fn is_name(&self, name: &str) -> bool {
        self.peek() == Some(Token::Name(name))
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn skip(&mut self, sign: &str) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    /// The start of the next token.
    fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(self.text.len(), |(_, start, _)| *start)
    }

    /// The end of the last token.
    fn end(&self) -> usize {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |(.., end)| *end)
    }

    /// Puts a part into brackets or a call.
    fn wrap(&mut self, node: Node, before: &str, after: &str) {
        let count = self.edits.len();
        let begin = Order::Begin(std::cmp::Reverse(count));
        self.edits.push(Edit { at: node.start, order: begin, removed: 0, text: before.to_owned() });
        self.edits.push(Edit { at: node.end, order: Order::End(count), removed: 0, text: after.to_owned() });
    }

    fn mark(&mut self, node: Node, filter: &str) {
        if !matches!(node.kind, Kind::Text | Kind::Scalar) {
            self.wrap(node, "(", &format!(")|{filter}"));
        }
    }

    /// Replaces the sign or word between two operands by a call of a filter.
    fn call(&mut self, left: Node, sign: (usize, usize), right: Node, before: &str, filter: &str) {
        let count = self.edits.len();
        let begin = Order::Begin(std::cmp::Reverse(count));
        self.edits.push(Edit { at: left.start, order: begin, removed: 0, text: format!("{before}(") });
        let text = format!(")|{filter}(");
        self.edits.push(Edit { at: sign.0, order: Order::Replace, removed: sign.1 - sign.0, text });
        self.edits.push(Edit { at: right.end, order: Order::End(count), removed: 0, text: ")".to_owned() });
    }

    fn joined(&self, start: usize, parts: [Node; 2]) -> Node {
        let kind = if parts.iter().all(Node::is_constant) { Kind::Constant } else { Kind::Other };
        Node { start, end: self.end(), kind }
    }

    fn tuple(&mut self) -> Option<Node> {
        let first = self.condition()?;
        if self.peek() != Some(Token::Sign(",")) {
            return Some(first);
        }
        while self.skip(",") && self.at < self.tokens.len() {
            self.condition()?;
        }
        let node = Node { start: first.start, end: self.end(), kind: Kind::Items };
        self.wrap(node, &format!("{TUPLE}(["), "])");
        Some(node)
    }

    fn condition(&mut self) -> Option<Node> {
        let mut node = self.either()?;
        while self.skip_name("if") {
            self.either()?;
            // `a if b else c if d`
            if self.skip_name("else") {
                self.either()?;
            }
            node = Node { start: node.start, end: self.end(), kind: Kind::Other };
        }
        Some(node)
    }

    fn either(&mut self) -> Option<Node> {
        let mut left = self.both()?;
        while self.skip_name("or") {
            let right = self.both()?;
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn both(&mut self) -> Option<Node> {
        let mut left = self.negated()?;
        while self.skip_name("and") {
            // minijinja computes `and` of constants as true or false.
            if left.is_constant() {
                self.wrap(left, "(", &format!(")|{HELD}"));
            }
            self.negated()?;
            left = Node { start: left.start, end: self.end(), kind: Kind::Other };
        }
        Some(left)
    }

    fn negated(&mut self) -> Option<Node> {
        let start = self.start();
        let mut any = false;
        while self.skip_name("not") {
            any = true;
        }
        let node = self.compared()?;
        let kind = if node.is_constant() { Kind::Constant } else { Kind::Other };
        Some(if any { Node { start, end: node.end, kind } } else { node })
    }

    /// The next comparison: its name, and the place of its sign.
    fn comparison(&mut self) -> Option<(&'a str, (usize, usize))> {
        let start = self.start();
        let name = match self.peek()? {
            Token::Sign(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => sign,
            Token::Name("in") => "in",
            Token::Name("not") => {
                self.at += 1;
                if !self.is_name("in") {
                    self.at -= 1;
                    return None;
                }
                "not in"
            }
            _ => return None,
        };
        self.at += 1;
        Some((name, (start, self.end())))
    }

    fn compared(&mut self) -> Option<Node> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some((name, sign)) = self.comparison() {
            others.push((name, sign, self.sum()?));
        }
        match others[..] {
            [] => return Some(first),
            [(name, sign, right)] => self.compare(first, name, sign, right),
            _ => [first].into_iter().chain(others.iter().map(|other| other.2)).for_each(|node| self.mark(node, PLAIN)),
        }
        let is_constant = first.is_constant() && others.iter().all(|other| other.2.is_constant());
        let kind = if is_constant { Kind::Constant } else { Kind::Other };
        Some(Node { start: first.start, end: self.end(), kind })
    }

    fn compare(&mut self, left: Node, name: &str, sign: (usize, usize), right: Node) {
        let simple = |kinds: &[Kind]| kinds.contains(&left.kind) || kinds.contains(&right.kind);
        let order = ORDERS.iter().find(|(own, ..)| *own == name);
        match (name, order) {
            // Texts and numbers are compared as in Python.
            ("==" | "!=", _) if simple(&[Kind::Text, Kind::Scalar]) => {}
            (_, Some(_)) if simple(&[Kind::Text]) => {}
            (_, Some((_, filter, _))) => self.call(left, sign, right, "", filter),
            ("==", _) => self.call(left, sign, right, "", SAME),
            ("!=", _) => self.call(left, sign, right, "not ", SAME),
            ("in" | "not in", _)
                if left.kind == Kind::Items || simple(&[Kind::Other]) && !simple(&[Kind::Text, Kind::Items]) =>
            {
                self.call(left, sign, right, if name == "in" { "" } else { "not " }, IN);
            }
            _ => {}
        }
    }

    /// Whether operands of `+` and `~` are texts that may be `|safe`, which are added elsewhere.
    fn is_safe(&self) -> bool {
        self.text.contains("safe")
    }

    fn sum(&mut self) -> Option<Node> {
        let first = self.concatenation()?;
        let mut left = first;
        while let Some(Token::Sign(sign @ ("+" | "-"))) = self.peek() {
            self.at += 1;
            let right = self.concatenation()?;
            if sign == "+" && !self.is_safe() {
                if left.end == first.end {
                    self.mark(first, TERM);
                }
                self.mark(right, TERM);
            }
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn concatenation(&mut self) -> Option<Node> {
        let first = self.product()?;
        let mut left = first;
        while self.skip("~") {
            let right = self.product()?;
            let is_first = left.end == first.end;
            for node in [first, right].into_iter().skip(usize::from(!is_first)) {
                if node.kind != Kind::Text && !self.is_safe() {
                    self.wrap(node, "(", ")|string");
                }
            }
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn product(&mut self) -> Option<Node> {
        let mut left = self.power()?;
        while let Some(Token::Sign(sign @ ("*" | "/" | "//" | "%"))) = self.peek() {
            let place = (self.start(), self.start() + sign.len());
            self.at += 1;
            let right = self.power()?;
            match sign {
                "*" => [left, right].into_iter().for_each(|node| self.mark(node, FACTOR)),
                "//" => self.call(left, place, right, "", FLOOR_DIVIDE),
                "%" => self.call(left, place, right, "", MODULO),
                _ => {}
            }
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn power(&mut self) -> Option<Node> {
        let mut left = self.unary()?;
        while self.skip("**") {
            let right = self.unary()?;
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<Node> {
        let node = self.operand()?;
        self.filters(node)
    }

    /// A value with its attributes, items and calls, without filters.
    fn operand(&mut self) -> Option<Node> {
        let start = self.start();
        while self.skip("-") {}
        let node = self.primary()?;
        self.postfix(Node { start, ..node })
    }

    fn primary(&mut self) -> Option<Node> {
        let (token, start, _) = *self.tokens.get(self.at)?;
        self.at += 1;
        let kind = match token {
            Token::Name("true" | "True" | "false" | "False" | "none" | "None") | Token::Number => Kind::Scalar,
            Token::Name(_) => Kind::Other,
            Token::Text => {
                while self.peek() == Some(Token::Text) {
                    self.at += 1;
                }
                Kind::Text
            }
            Token::Sign(open @ ("(" | "[" | "{")) => {
                self.depth += 1;
                if self.depth > DEPTH {
                    return None;
                }
                let kind = self.brackets(open, start)?;
                self.depth -= 1;
                kind
            }
            Token::Sign(_) => return None,
        };
        Some(Node { start, end: self.end(), kind })
    }

    /// The rest of brackets that open at a place.
    fn brackets(&mut self, open: &str, start: usize) -> Option<Kind> {
        let close = match open {
            "(" => ")",
            "[" => "]",
            _ => "}",
        };
        let (mut count, mut commas) = (0, false);
        while !self.skip(close) {
            if count > 0 && !commas {
                return None;
            }
            let kind = self.condition()?.kind;
            if open == "{" {
                self.skip(":").then_some(())?;
                self.condition()?;
            }
            count += 1;
            commas = self.skip(",");
            if open == "(" && !commas && count == 1 {
                // A part of an expression, not a tuple.
                return self.skip(close).then_some(kind);
            }
        }
        if open == "(" {
            let edit = |at, text: String| Edit { at, order: Order::Replace, removed: 1, text };
            let end = self.end() - 1;
            self.edits.push(edit(start, format!("{TUPLE}([")));
            self.edits.push(edit(end, "])".to_owned()));
        }
        Some(Kind::Items)
    }

    fn postfix(&mut self, mut node: Node) -> Option<Node> {
        loop {
            if self.skip(".") {
                let (Token::Name(_) | Token::Number) = self.peek()? else { return None };
                self.at += 1;
            } else if self.peek() == Some(Token::Sign("(")) {
                self.arguments()?;
            } else if self.skip("[") {
                self.depth += 1;
                if self.depth > DEPTH {
                    return None;
                }
                if self.subscript()? && node.kind != Kind::Text {
                    self.wrap(node, "((", &format!(")|{SLICED})"));
                }
                self.depth -= 1;
            } else {
                return Some(node);
            }
            node = Node { start: node.start, end: self.end(), kind: Kind::Other };
        }
    }

    /// The rest of `[index]` or `[from:to:step]`, and whether it is a slice.
    fn subscript(&mut self) -> Option<bool> {
        let is = |parser: &Self, sign| parser.peek() == Some(Token::Sign(sign));
        if !is(self, ":") {
            self.condition()?;
        }
        let is_slice = self.skip(":");
        if is_slice && !is(self, "]") && !is(self, ":") {
            self.condition()?;
        }
        if is_slice && self.skip(":") && !is(self, "]") {
            self.condition()?;
        }
        self.skip("]").then_some(is_slice)
    }

    /// `(a, *b, c=d, **e)`
    fn arguments(&mut self) -> Option<()> {
        self.depth += 1;
        if self.depth > DEPTH || !self.skip("(") {
            return None;
        }
        while !self.skip(")") {
            let _ = self.skip("*") || self.skip("**");
            self.condition()?;
            if self.skip("=") {
                self.condition()?;
            }
            if !self.skip(",") && self.peek() != Some(Token::Sign(")")) {
                return None;
            }
        }
        self.depth -= 1;
        Some(())
    }

    /// The name of a filter or a test.
    fn dotted(&mut self) -> Option<()> {
        loop {
            let Token::Name(_) = self.peek()? else { return None };
            self.at += 1;
            if !self.skip(".") {
                return Some(());
            }
        }
    }

    fn filters(&mut self, mut node: Node) -> Option<Node> {
        loop {
            if self.skip("|") {
                self.dotted()?;
                if self.peek() == Some(Token::Sign("(")) {
                    self.arguments()?;
                }
            } else if self.skip_name("is") {
                self.skip_name("not");
                self.dotted()?;
                match self.peek() {
                    Some(Token::Sign("(")) => self.arguments()?,
                    Some(Token::Name("and" | "or" | "else" | "is")) => {}
                    Some(Token::Name(_) | Token::Text | Token::Number | Token::Sign("-" | "[" | "{")) => {
                        self.operand()?;
                    }
                    _ => {}
                }
            } else {
                return Some(node);
            }
            node = Node { start: node.start, end: self.end(), kind: Kind::Other };
        }
    }
}

/// The tokens of an expression with their places; `None` for a text that does not end.
fn tokens(text: &str) -> Option<Vec<(Token<'_>, usize, usize)>> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = |from: usize| from + rest[from..].find(|letter| !is_word(letter)).unwrap_or(rest.len() - from);
        let (token, length) = match letter {
            _ if letter.is_whitespace() => {
                at += letter.len_utf8();
                continue;
            }
            '\'' | '"' => (Token::Text, literal(rest)?),
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
                (Token::Number, end)
            }
            _ if is_word(letter) => (Token::Name(&rest[..word(0)]), word(0)),
            _ => {
                let length = if SIGNS.iter().any(|sign| rest.starts_with(sign)) { 2 } else { letter.len_utf8() };
                (Token::Sign(&rest[..length]), length)
            }
        };
        found.push((token, at, at + length));
        at += length;
    }
    Some(found)
}

/// The length of a string literal at the start of the text.
fn literal(text: &str) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_calls_where_python_computes_something_else() {
        for (text, wanted) in [
            // Tuples.
            (" (1, 2) ", " r1_tuple([1, 2]) "),
            ("()", "r1_tuple([])"),
            ("1, 2", "r1_tuple([1, 2])"),
            ("x in ('a', 'b') and (y)", "x in r1_tuple(['a', 'b']) and (y)"),
            ("f((1, 2), a=(3, '(,)'))", "f(r1_tuple([1, 2]), a=r1_tuple([3, '(,)']))"),
            ("[(1, 2)][(0)]", "[r1_tuple([1, 2])][(0)]"),
            ("{'a': (1,)}", "{'a': r1_tuple([1,])}"),
            // Texts that are joined.
            ("'a' ~ x", "'a' ~ (x)|string"),
            ("x.y[0] ~ f(a ~ b, 1)", "(x.y[0])|string ~ (f((a)|string ~ (b)|string, 1))|string"),
            ("a ~ -1 ~ 1.5e-3 - 2", "(a)|string ~ (-1)|string ~ (1.5e-3)|string - 2"),
            (
                "x ~ y|join(', ') if z else 'q' ~ {'a': '~'}",
                "(x)|string ~ (y|join(', '))|string if z else 'q' ~ ({'a': '~'})|string",
            ),
            // Sums and products.
            ("a + b + 'c'", "(a)|r1_term + (b)|r1_term + 'c'"),
            ("a * b", "(a)|r1_factor * (b)|r1_factor"),
            ("' ' * (n*2)", "' ' * (((n)|r1_factor*2))|r1_factor"),
            ("[1] * 2 * 3", "(([1])|r1_factor * 2)|r1_factor * 3"),
            ("-2 ** 3 * [1, ']'] in 'z'", "(-2 ** 3)|r1_factor * ([1, ']'])|r1_factor in 'z'"),
            ("a // -2 % b", "((a)|r1_floor_divide( -2 ))|r1_modulo( b)"),
            ("x.y[1:]", "((x.y)|r1_sliced)[1:]"),
            ("'abc'[::-1]", "'abc'[::-1]"),
            // Comparisons.
            ("a == b", "(a )|r1_same( b)"),
            ("not a != (b, c)", "not not (a )|r1_same( r1_tuple([b, c]))"),
            ("a.b == 'x' and c != 1", "a.b == 'x' and c != 1"),
            ("x < -2", "(x )|r1_less( -2)"),
            ("x >= 'a'", "x >= 'a'"),
            ("1 < a <= 3", "1 < (a)|r1_plain <= 3"),
            ("(1,) not in x", "not (r1_tuple([1,]) )|r1_in( x)"),
            ("a in b", "(a )|r1_in( b)"),
            ("a in 'b' and 'a' not in b and a in ['b']", "a in 'b' and 'a' not in b and a in ['b']"),
            ("1 and a and b", "(1)|r1_held and a and b"),
            ("a and 1 or none and 2", "a and 1 or (none)|r1_held and 2"),
        ] {
            let translated = translate(text, Part::Expression);
            // Where an operand ends, blanks do not matter.
            let plain = |text: &str| text.replace(" )", ")").replace("( ", "(");
            assert_eq!(translated.as_deref().map(plain), Some(plain(wanted)), "{text}");
        }
        for text in [
            "f(1, 2)",
            "x is in (1, 2)",
            "x is not in (1, 2)",
            "x is divisibleby 3 and y",
            "x.f(1, 2)",
            "f(1)(2, 3)",
            "(f(1, 2))",
            "([1, 2])",
            "x|join(', ')",
            "'(1, 2)'",
            "'a' ~ 'b'",
            "f(*rest, **named)",
            "a ~ b|safe + c",
            "x if y else z",
            "a.0[b].c|d(e=1)|f",
        ] {
            assert_eq!(translate(text, Part::Expression).as_deref(), Some(text));
        }
        for text in ["", "a *", "a * )", "~", "(", "f(a b)", "'x", "a b", "[1 2]", "{1}", "+a"] {
            assert_eq!(translate(text, Part::Expression), None, "{text}");
        }
        assert_eq!(translate(" a, b ", Part::Loop), None);
        for (part, text) in [
            (Part::Loop, " items if x is odd recursive "),
            (Part::Assignments, " a = 1, b = x|y "),
            (Part::Call, " f(a, b='x,y')"),
            (Part::Call, "(user) f(x)"),
        ] {
            assert_eq!(translate(text, part).as_deref(), Some(text));
        }
    }
}
