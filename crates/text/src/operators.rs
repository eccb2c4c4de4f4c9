//! Translates operators of Jinja2 whose results in minijinja differ from Python's into calls of
//! filters (`arithmetic`), which compute these results, or refuse what r1 does not have.
//!
//! - `(a, b)` is a tuple; minijinja reads a list.
//! - `a ~ b` joins the texts that Python prints.
//! - `//` and `%` round down; `==` tells tuples from lists; `<` orders booleans as numbers.
//! - `and` returns one of its operands, of constants too.
//! - A product has a limited size; a tuple is refused in a sum and in a slice.
//!
//! It reads the grammar of minijinja's parser. Line breaks stay where they are.

use super::arithmetic::{FLOOR_DIVIDE, IN, MODULO, ORDERS, PLAIN, SAME, SLICED, TERM, TIMES};
use super::values::TUPLE;

mod edits;
mod tokens;

use edits::{Edits, ExpressionNode, NodeKind};
use tokens::{OperatorToken, adds_safe, tokens};

pub(super) use tokens::literal;

/// The filter that checks the limits of time and memory.
pub(super) const HELD: &str = "r1_held";
/// The filter of the items of a loop.
pub(super) const EACH: &str = "r1_each";
/// The function of `a + b + …` where at least one operand is safe.
pub(super) const SUM: &str = "r1_sum";

/// Nested brackets that are read. minijinja reads half of them.
const DEPTH: usize = 160;

struct OperatorParser<'a> {
    text: &'a str,
    tokens: Vec<(OperatorToken<'a>, usize, usize)>,
    at: usize,
    depth: usize,
    edits: Edits,
}

/// The part of a tag's text that is an expression.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ExpressionPart {
    /// An expression, or several that make a tuple.
    Expression,
    /// The same of an assignment or a condition, which checks the limits.
    Held,
    /// The values of a loop, with its condition.
    Loop,
    /// `a = x, b = y`.
    Assignments,
    /// `name(a, b = x)`, `(user) f(x)`.
    Call,
}

/// The translated text; `None` for what can't be read.
pub(super) fn translate(text: &str, part: ExpressionPart) -> Option<String> {
    let mut parser = OperatorParser { text, tokens: tokens(text)?, at: 0, depth: 0, edits: Edits::default() };
    match part {
        ExpressionPart::Expression => {
            parser.tuple()?;
        }
        ExpressionPart::Held => {
            let node = parser.tuple()?;
            parser.edits.wrap(node, "(", &format!(")|{HELD}"));
        }
        ExpressionPart::Loop => {
            let values = parser.either()?;
            parser.edits.wrap(values, "(", &format!(")|{EACH}"));
            if parser.skip_name("if") {
                parser.condition()?;
            }
            parser.skip_name("recursive");
        }
        ExpressionPart::Assignments => {
            while parser.at < parser.tokens.len() {
                parser.condition()?;
                if parser.skip("=") {
                    parser.condition()?;
                }
                parser.skip(",");
            }
        }
        ExpressionPart::Call => {
            if parser.peek() == Some(OperatorToken::Sign("(")) {
                parser.arguments()?;
            }
            parser.condition()?;
        }
    }
    if parser.at < parser.tokens.len() {
        return None;
    }
    Some(parser.edits.written(text))
}

impl<'a> OperatorParser<'a> {
    fn peek(&self) -> Option<OperatorToken<'a>> {
        self.tokens.get(self.at).map(|(token, ..)| *token)
    }

    fn is_name(&self, name: &str) -> bool {
        self.peek() == Some(OperatorToken::Name(name))
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let matches = self.is_name(name);
        self.at += usize::from(matches);
        matches
    }

    fn skip(&mut self, sign: &str) -> bool {
        let matches = self.peek() == Some(OperatorToken::Sign(sign));
        self.at += usize::from(matches);
        matches
    }

    /// The start of the next token.
    fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(self.text.len(), |(_, start, _)| *start)
    }

    /// The end of the last token.
    fn end(&self) -> usize {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |(.., end)| *end)
    }

    fn joined(&self, start: usize, parts: [ExpressionNode; 2]) -> ExpressionNode {
        let kind = if parts.iter().all(ExpressionNode::is_constant) { NodeKind::Constant } else { NodeKind::Other };
        ExpressionNode { start, end: self.end(), kind }
    }

    fn tuple(&mut self) -> Option<ExpressionNode> {
        let first = self.condition()?;
        if self.peek() != Some(OperatorToken::Sign(",")) {
            return Some(first);
        }
        while self.skip(",") && self.at < self.tokens.len() {
            self.condition()?;
        }
        let node = ExpressionNode { start: first.start, end: self.end(), kind: NodeKind::Items };
        self.edits.wrap(node, &format!("{TUPLE}(["), "])");
        Some(node)
    }

    fn condition(&mut self) -> Option<ExpressionNode> {
        let mut node = self.either()?;
        while self.skip_name("if") {
            self.either()?;
            // `a if b else c if d`
            if self.skip_name("else") {
                self.either()?;
            }
            node = ExpressionNode { start: node.start, end: self.end(), kind: NodeKind::Other };
        }
        Some(node)
    }

    fn either(&mut self) -> Option<ExpressionNode> {
        let mut left = self.both()?;
        while self.skip_name("or") {
            let right = self.both()?;
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn both(&mut self) -> Option<ExpressionNode> {
        let mut left = self.negated()?;
        while self.skip_name("and") {
            // minijinja computes `and` of constants as true or false.
            if left.is_constant() {
                self.edits.wrap(left, "(", &format!(")|{HELD}"));
            }
            self.negated()?;
            left = ExpressionNode { start: left.start, end: self.end(), kind: NodeKind::Other };
        }
        Some(left)
    }

    fn negated(&mut self) -> Option<ExpressionNode> {
        let start = self.start();
        let mut any = false;
        while self.skip_name("not") {
            any = true;
        }
        let node = self.compared()?;
        let kind = if node.is_constant() { NodeKind::Constant } else { NodeKind::Other };
        Some(if any { ExpressionNode { start, end: node.end, kind } } else { node })
    }

    /// The next comparison: its name, and the place of its sign.
    fn comparison(&mut self) -> Option<(&'a str, (usize, usize))> {
        let start = self.start();
        let name = match self.peek()? {
            OperatorToken::Sign(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => sign,
            OperatorToken::Name("in") => "in",
            OperatorToken::Name("not") => {
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

    fn compared(&mut self) -> Option<ExpressionNode> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some((name, sign)) = self.comparison() {
            others.push((name, sign, self.sum()?));
        }
        match others[..] {
            [] => return Some(first),
            [(name, sign, right)] => self.compare(first, name, sign, right),
            _ => [first]
                .into_iter()
                .chain(others.iter().map(|other| other.2))
                .for_each(|node| self.edits.mark(node, PLAIN)),
        }
        let is_constant = first.is_constant() && others.iter().all(|other| other.2.is_constant());
        let kind = if is_constant { NodeKind::Constant } else { NodeKind::Other };
        Some(ExpressionNode { start: first.start, end: self.end(), kind })
    }

    fn compare(&mut self, left: ExpressionNode, name: &str, sign: (usize, usize), right: ExpressionNode) {
        let simple = |kinds: &[NodeKind]| kinds.contains(&left.kind) || kinds.contains(&right.kind);
        let order = ORDERS.iter().find(|(operator, ..)| *operator == name);
        match (name, order) {
            // Texts and numbers are compared as in Python.
            ("==" | "!=", _) if simple(&[NodeKind::Text, NodeKind::Scalar]) => {}
            (_, Some(_)) if simple(&[NodeKind::Text]) => {}
            (_, Some((_, filter, _))) => self.edits.call(left, sign, right, "", filter),
            ("==", _) => self.edits.call(left, sign, right, "", SAME),
            ("!=", _) => self.edits.call(left, sign, right, "not ", SAME),
            ("in" | "not in", _)
                if left.kind == NodeKind::Items
                    || simple(&[NodeKind::Other]) && !simple(&[NodeKind::Text, NodeKind::Items]) =>
            {
                self.edits.call(left, sign, right, if name == "in" { "" } else { "not " }, IN);
            }
            _ => {}
        }
    }

    /// Whether operands of `+` and `~` are texts that may be `|safe`, which are added elsewhere.
    fn is_safe(&self) -> bool {
        self.text.contains("safe")
    }

    fn sum(&mut self) -> Option<ExpressionNode> {
        let first = self.concatenation()?;
        let mut left = first;
        let mut signs = Vec::new();
        while let Some(OperatorToken::Sign(sign @ ("+" | "-"))) = self.peek() {
            signs.push(self.start());
            self.at += 1;
            let right = self.concatenation()?;
            if sign == "+" && !self.is_safe() {
                if left.end == first.end {
                    self.edits.mark(first, TERM);
                }
                self.edits.mark(right, TERM);
            }
            left = self.joined(left.start, [left, right]);
        }
        if !signs.is_empty() && adds_safe(&self.text[left.start..left.end]) {
            for sign in signs {
                self.edits.replace(sign, ",".to_owned());
            }
            self.edits.wrap(left, &format!("{SUM}(["), "])");
        }
        Some(left)
    }

    fn concatenation(&mut self) -> Option<ExpressionNode> {
        let first = self.product()?;
        let mut left = first;
        while self.skip("~") {
            let right = self.product()?;
            let is_first = left.end == first.end;
            for node in [first, right].into_iter().skip(usize::from(!is_first)) {
                if node.kind != NodeKind::Text && !self.is_safe() {
                    self.edits.wrap(node, "(", ")|string");
                }
            }
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn product(&mut self) -> Option<ExpressionNode> {
        let mut left = self.power()?;
        while let Some(OperatorToken::Sign(sign @ ("*" | "/" | "//" | "%"))) = self.peek() {
            let span = (self.start(), self.start() + sign.len());
            self.at += 1;
            let right = self.power()?;
            match sign {
                "*" if !(left.is_simple() && right.is_simple()) => self.edits.call(left, span, right, "", TIMES),
                "//" => self.edits.call(left, span, right, "", FLOOR_DIVIDE),
                "%" => self.edits.call(left, span, right, "", MODULO),
                _ => {}
            }
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn power(&mut self) -> Option<ExpressionNode> {
        let mut left = self.unary()?;
        while self.skip("**") {
            let right = self.unary()?;
            left = self.joined(left.start, [left, right]);
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<ExpressionNode> {
        let node = self.operand()?;
        self.filters(node)
    }

    /// A value with its attributes, items and calls, without filters.
    fn operand(&mut self) -> Option<ExpressionNode> {
        let start = self.start();
        while self.skip("-") {}
        let node = self.primary()?;
        self.postfix(ExpressionNode { start, ..node })
    }

    fn primary(&mut self) -> Option<ExpressionNode> {
        let (token, start, _) = *self.tokens.get(self.at)?;
        self.at += 1;
        let kind = match token {
            OperatorToken::Name("true" | "True" | "false" | "False" | "none" | "None") | OperatorToken::Number => {
                NodeKind::Scalar
            }
            OperatorToken::Name(_) => NodeKind::Other,
            OperatorToken::Text => {
                while self.peek() == Some(OperatorToken::Text) {
                    self.at += 1;
                }
                NodeKind::Text
            }
            OperatorToken::Sign(open @ ("(" | "[" | "{")) => self.deeper(|parser| parser.brackets(open, start))?,
            OperatorToken::Sign(_) => return None,
        };
        Some(ExpressionNode { start, end: self.end(), kind })
    }

    /// The rest of brackets that open at a place.
    fn brackets(&mut self, open: &str, start: usize) -> Option<NodeKind> {
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
            let end = self.end() - 1;
            self.edits.replace(start, format!("{TUPLE}(["));
            self.edits.replace(end, "])".to_owned());
        }
        Some(NodeKind::Items)
    }

    fn postfix(&mut self, mut node: ExpressionNode) -> Option<ExpressionNode> {
        loop {
            if self.skip(".") {
                let (OperatorToken::Name(_) | OperatorToken::Number) = self.peek()? else { return None };
                self.at += 1;
            } else if self.peek() == Some(OperatorToken::Sign("(")) {
                self.arguments()?;
            } else if self.skip("[") {
                if self.deeper(Self::subscript)? && node.kind != NodeKind::Text {
                    self.edits.wrap(node, "((", &format!(")|{SLICED})"));
                }
            } else {
                return Some(node);
            }
            node = ExpressionNode { start: node.start, end: self.end(), kind: NodeKind::Other };
        }
    }

    /// The rest of `[index]` or `[from:to:step]`, and whether it is a slice.
    fn subscript(&mut self) -> Option<bool> {
        let is = |parser: &Self, sign| parser.peek() == Some(OperatorToken::Sign(sign));
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

    /// Parses a part in brackets.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let part = if self.depth > DEPTH { None } else { parse(self) };
        self.depth -= 1;
        part
    }

    /// `(a, *b, c=d, **e)`
    fn arguments(&mut self) -> Option<()> {
        self.deeper(Self::listed_arguments)
    }

    fn listed_arguments(&mut self) -> Option<()> {
        self.skip("(").then_some(())?;
        while !self.skip(")") {
            let _ = self.skip("*") || self.skip("**");
            self.condition()?;
            if self.skip("=") {
                self.condition()?;
            }
            if !self.skip(",") && self.peek() != Some(OperatorToken::Sign(")")) {
                return None;
            }
        }
        Some(())
    }

    /// The name of a filter or a test.
    fn dotted(&mut self) -> Option<()> {
        loop {
            let OperatorToken::Name(_) = self.peek()? else { return None };
            self.at += 1;
            if !self.skip(".") {
                return Some(());
            }
        }
    }

    fn filters(&mut self, mut node: ExpressionNode) -> Option<ExpressionNode> {
        loop {
            if self.skip("|") {
                self.dotted()?;
                if self.peek() == Some(OperatorToken::Sign("(")) {
                    self.arguments()?;
                }
            } else if self.skip_name("is") {
                self.skip_name("not");
                self.dotted()?;
                match self.peek() {
                    Some(OperatorToken::Sign("(")) => self.arguments()?,
                    Some(OperatorToken::Name("and" | "or" | "else" | "is")) => {}
                    Some(
                        OperatorToken::Name(_)
                        | OperatorToken::Text
                        | OperatorToken::Number
                        | OperatorToken::Sign("-" | "[" | "{"),
                    ) => {
                        self.operand()?;
                    }
                    _ => {}
                }
            } else {
                return Some(node);
            }
            node = ExpressionNode { start: node.start, end: self.end(), kind: NodeKind::Other };
        }
    }
}

#[cfg(test)]
mod tests;
