//! Filters of tables: comparisons of columns, with the syntax of Luau expressions
//! (`reward < 0 and steps > 3`, `status == "terminated"`, `not excluded`).

use std::cmp::Ordering;

use crate::error::{Error, Kind, Result, suggest};

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(String),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Into::into)
    }
}

impl Cell {
    fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Boolean(false))
    }

    /// The order in a sorted column. Values that are missing are last, in both directions.
    pub(super) fn order(&self, other: &Self, descending: bool) -> Ordering {
        let is_missing = |cell: &Self| matches!(cell, Self::Nil) || matches!(cell, Self::Number(x) if x.is_nan());
        match (is_missing(self), is_missing(other)) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ if descending => other.compare(self).unwrap_or(Ordering::Equal),
            _ => self.compare(other).unwrap_or(Ordering::Equal),
        }
    }

    /// `None` for values that have no order.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.partial_cmp(b),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Boolean(a), Self::Boolean(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// A parsed filter.
#[derive(Debug)]
pub(super) struct Filter(Node);

#[derive(Debug)]
enum Node {
    Value(Cell),
    Column(String),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Compare(&'static str, Box<Self>, Box<Self>),
}

/// Comparisons, longer ones first.
const COMPARISONS: [&str; 6] = ["==", "~=", "<=", ">=", "<", ">"];

/// Deepest nesting of parentheses and `not`.
const DEPTH: usize = 50;

impl Filter {
    /// Parses an expression over these columns; `parts.NAME` is always one.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a syntax error, or for an unknown column with the nearest ones.
    pub(super) fn parse(text: &str, columns: &[&str]) -> Result<Self> {
        let mut parser = Parser { rest: text, columns, depth: 0 };
        let node = parser.or()?;
        parser.skip();
        if parser.rest.is_empty() { Ok(Self(node)) } else { Err(parser.wrong("an operator such as `and`")) }
    }

    pub(super) fn matches(&self, column: impl Fn(&str) -> Cell) -> bool {
        value(&self.0, &column).is_true()
    }
}

fn value(node: &Node, column: &dyn Fn(&str) -> Cell) -> Cell {
    match node {
        Node::Value(cell) => cell.clone(),
        Node::Column(name) => column(name),
        Node::Not(inner) => Cell::Boolean(!value(inner, column).is_true()),
        Node::And(a, b) => Some(value(a, column)).filter(|cell| !cell.is_true()).unwrap_or_else(|| value(b, column)),
        Node::Or(a, b) => Some(value(a, column)).filter(Cell::is_true).unwrap_or_else(|| value(b, column)),
        Node::Compare(operator, a, b) => {
            let (a, b) = (value(a, column), value(b, column));
            let order = a.compare(&b);
            // A missing value is not less than 0, and not more.
            Cell::Boolean(match *operator {
                "==" => a == b,
                "~=" => a != b,
                "<" => order.is_some_and(Ordering::is_lt),
                "<=" => order.is_some_and(Ordering::is_le),
                ">" => order.is_some_and(Ordering::is_gt),
                _ => order.is_some_and(Ordering::is_ge),
            })
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    columns: &'a [&'a str],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn or(&mut self) -> Result<Node> {
        let mut left = self.and()?;
        while self.word("or") {
            left = Node::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node> {
        let mut left = self.comparison()?;
        while self.word("and") {
            left = Node::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Node> {
        let left = self.unary()?;
        self.skip();
        let Some(operator) = COMPARISONS.into_iter().find(|operator| self.rest.starts_with(operator)) else {
            return Ok(left);
        };
        self.rest = &self.rest[operator.len()..];
        Ok(Node::Compare(operator, Box::new(left), Box::new(self.unary()?)))
    }

    fn unary(&mut self) -> Result<Node> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(Error::new(Kind::Usage, "the filter is nested too deep"));
        }
        let node = if self.word("not") { Node::Not(Box::new(self.unary()?)) } else { self.operand()? };
        self.depth -= 1;
        Ok(node)
    }

    fn operand(&mut self) -> Result<Node> {
        self.skip();
        if let Some(rest) = self.rest.strip_prefix('(') {
            self.rest = rest;
            let node = self.or()?;
            self.skip();
            self.rest = self.rest.strip_prefix(')').ok_or_else(|| self.wrong("`)`"))?;
            return Ok(node);
        }
        if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let end = self.rest[1..].find(quote).ok_or_else(|| self.wrong("the end of the text"))?;
            let text = &self.rest[1..=end];
            self.rest = &self.rest[end + 2..];
            return Ok(Node::Value(text.into()));
        }
        let number = self.take(
            |c| c.is_ascii_digit() || matches!(c, '.' | '-'),
            |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'),
        );
        if let Some(text) = number {
            let wrong = || Error::new(Kind::Usage, format!("`{text}` in the filter is not a number"));
            return Ok(Node::Value(Cell::Number(text.parse().map_err(|_| wrong())?)));
        }
        let name =
            self.take(|c| c.is_alphabetic() || c == '_', |c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/'));
        Ok(match name.ok_or_else(|| self.wrong("a column, a number or a text"))? {
            "true" => Node::Value(Cell::Boolean(true)),
            "false" => Node::Value(Cell::Boolean(false)),
            "nil" => Node::Value(Cell::Nil),
            name if name.starts_with("parts.") || self.columns.contains(&name) => Node::Column(name.to_owned()),
            name => {
                let hint = suggest(name, self.columns.iter().copied());
                return Err(Error::new(Kind::Usage, format!("there is no column `{name}`")).hint(hint));
            }
        })
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether this word is next, which is then skipped.
    fn word(&mut self, word: &str) -> bool {
        self.skip();
        let rest =
            self.rest.strip_prefix(word).filter(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take(&mut self, first: impl Fn(char) -> bool, other: impl Fn(char) -> bool) -> Option<&'a str> {
        self.rest.chars().next().filter(|c| first(*c))?;
        let end = self.rest.char_indices().skip(1).find(|(_, c)| !other(*c)).map_or(self.rest.len(), |(at, _)| at);
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(text)
    }

    fn wrong(&self, wanted: &str) -> Error {
        let here: String = self.rest.chars().take(20).collect();
        let here = if here.is_empty() { "the end".to_owned() } else { format!("`{here}`") };
        Error::new(Kind::Usage, format!("the filter has {here} instead of {wanted}"))
            .hint("as in: reward < 0 and steps > 3, or status == \"terminated\"")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COLUMNS: [&str; 4] = ["reward", "steps", "status", "advantage"];

    fn matches(text: &str) -> bool {
        Filter::parse(text, &COLUMNS).unwrap().matches(|name| match name {
            "reward" => (-0.5).into(),
            "steps" => 4.0.into(),
            "status" => "terminated".into(),
            "parts.em" => 1.0.into(),
            _ => Cell::Nil,
        })
    }

    #[test]
    fn filters_compare_columns() {
        for text in [
            "reward < 0 and steps > 3",
            "reward<0 and(steps>=4)",
            "status == 'terminated'",
            "status ~= \"truncated\" and not (steps == 5)",
            "advantage == nil and not advantage",
            "steps < 3 or parts.em == 1",
            "false or steps",
            "steps <= 4e0 and reward >= -5e-1",
            "advantage or steps == 4",
        ] {
            assert!(matches(text), "{text}");
        }
        for text in ["reward > 0", "advantage < 0", "advantage > 0", "steps > 3 and reward > 0", "status < 3", "nil"] {
            assert!(!matches(text), "{text}");
        }
    }

    #[test]
    fn filters_without_meaning_are_refused() {
        let why = |text: &str| Filter::parse(text, &COLUMNS).unwrap_err();
        assert!(why("rewards < 0").hint.unwrap().contains("reward"));
        for text in ["", "reward <", "reward < 0 steps", "(reward", "'a", "1.2.3", "reward = 1", &"(".repeat(100)] {
            assert_eq!(why(text).kind, Kind::Usage, "{text}");
        }
    }

    #[test]
    fn missing_values_are_last_in_both_directions() {
        for descending in [false, true] {
            assert_eq!(Cell::Nil.order(&1.0.into(), descending), Ordering::Greater);
            assert_eq!(Cell::from(1.0).order(&f64::NAN.into(), descending), Ordering::Less);
        }
        assert_eq!(Cell::from(1.0).order(&2.0.into(), true), Ordering::Greater);
    }
}
