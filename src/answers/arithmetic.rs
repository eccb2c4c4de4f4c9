//! Parses sums, products, powers and units. Names and functions are in [`super::names`].

use super::expr::{Expr, Function};
use super::names::{named, symbol};
use super::number::Rational;
use super::parse::Parser;
use super::token::Kind;
use super::words;

impl Parser<'_> {
    pub(super) fn sum(&mut self) -> Option<Expr> {
        self.deeper(|parser| {
            let mut terms = Vec::new();
            loop {
                let first = terms.is_empty();
                if parser.mark('+') {
                    terms.push(parser.product()?);
                } else if parser.mark('-') {
                    terms.push(parser.product()?.negated());
                } else if let Some(minus_first) = parser.plus_minus() {
                    parser.sign()?;
                    terms.push(Expr::PlusMinus { of: Box::new(parser.product()?), minus_first });
                } else if first {
                    terms.push(parser.product()?);
                } else {
                    return if terms.len() == 1 { terms.pop() } else { Some(Expr::Sum(terms)) };
                }
            }
        })
    }

    /// The sign `±` (false) or `∓` (true) at this place.
    fn plus_minus(&mut self) -> Option<bool> {
        if self.command("pm") {
            Some(false)
        } else if self.command("mp") {
            Some(true)
        } else {
            None
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let mut value = self.signed()?;
        let mut factors: Vec<Expr> = Vec::new();
        loop {
            if self.mark('*') || self.command("cdot") {
                // `**` is Python's power.
                if matches!(self.peek(), Some(Kind::Mark('*'))) {
                    self.skip(1);
                    let exponent = self.signed()?;
                    value = Expr::Power(Box::new(value), Box::new(exponent));
                    continue;
                }
                factors.push(value.take());
                value = self.signed()?;
            } else if self.mark('/') || self.command("div") {
                factors.push(value.take());
                let above = product(std::mem::take(&mut factors))?;
                value = Expr::Quotient(Box::new(above), Box::new(self.signed()?));
            } else if self.unit()? {
                // The unit is stored separately from the value.
            } else if let Some(scale) = self.magnitude() {
                factors.push(std::mem::replace(&mut value, scale));
            } else if let Some(fraction) = self.mixed(&value) {
                value = Expr::Sum(vec![value, fraction]);
            } else if self.begins_factor() {
                factors.push(value.take());
                value = self.power()?;
            } else {
                factors.push(value);
                return product(factors);
            }
        }
    }

    pub(super) fn signed(&mut self) -> Option<Expr> {
        let mut negative = false;
        for _ in 0..8 {
            if self.mark('-') {
                negative = !negative;
            } else if !self.mark('+') {
                // `\$5`
                while self.command("$") || self.mark('€') || self.mark('£') || self.mark('¥') {
                    self.units.push("dollar".to_owned());
                }
                if matches!(self.peek(), Some(Kind::Mark('-' | '+'))) {
                    continue;
                }
                let value = self.power()?;
                return Some(if negative { value.negated() } else { value });
            }
        }
        None
    }

    /// Whether a factor may start here without a sign. A number may not: `2 3` is not 6.
    pub(super) fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Kind::Letter(_)) => !self.at_union_letter(),
            Some(Kind::Word(_) | Kind::Text(_)) => !self.at_connector(),
            Some(Kind::Mark(c)) => matches!(c, '(' | '[' | '{') || (*c == '|' && self.bars == 0),
            Some(Kind::Command(name)) => !matches!(
                name.as_str(),
                "}" | "]"
                    | "rangle"
                    | "rfloor"
                    | "rceil"
                    | "cup"
                    | "in"
                    | "approx"
                    | "ne"
                    | "le"
                    | "ge"
                    | "\\"
                    | "end"
                    | "pm"
                    | "mp"
                    | "cdot"
                    | "div"
                    | "equiv"
                    | "$"
                    | "circ"
            ),
            _ => false,
        }
    }

    /// `\frac{3}{4}` or ` 3/4` after a whole number: a mixed number.
    fn mixed(&mut self, before: &Expr) -> Option<Expr> {
        let Expr::Number { value, digits: 0 } = before else { return None };
        if !value.is_whole() || !self.after_number() {
            return None;
        }
        let kinds =
            |from: usize, to: usize| (from..to).map(|i| self.ahead(i).map(|token| &token.kind)).collect::<Vec<_>>();
        let proper = |above: &Rational, below: &Rational, count: usize| {
            (above < below && above.is_whole() && below.is_whole() && !above.is_negative()).then(|| {
                (
                    Expr::Number { value: above.clone(), digits: 0 },
                    Expr::Number { value: below.clone(), digits: 0 },
                    count,
                )
            })
        };
        let found = match &kinds(0, 7)[..] {
            [
                Some(Kind::Command(name)),
                Some(Kind::Mark('{')),
                Some(Kind::Number { value: above, .. }),
                Some(Kind::Mark('}')),
                Some(Kind::Mark('{')),
                Some(Kind::Number { value: below, .. }),
                Some(Kind::Mark('}')),
            ] if name == "frac" => proper(above, below, 7),
            [Some(Kind::Command(name)), Some(Kind::Number { source, .. }), ..] if name == "frac" => {
                let mut digits = source.chars().filter_map(|c| c.to_digit(10)).map(Rational::whole);
                match (digits.next(), digits.next(), digits.next()) {
                    (Some(above), Some(below), None) => proper(&above, &below, 2),
                    _ => None,
                }
            }
            [
                Some(Kind::Number { value: above, .. }),
                Some(Kind::Mark('/')),
                Some(Kind::Number { value: below, .. }),
                ..,
            ] if self.spaced() => proper(above, below, 3),
            _ => None,
        };
        let (above, below, count) = found?;
        self.skip(count);
        Some(Expr::Quotient(Box::new(above), Box::new(below)))
    }

    fn after_number(&self) -> bool {
        self.previous().is_some_and(|kind| matches!(kind, Kind::Number { .. }))
    }

    /// A unit at this place, stored separately from the value.
    fn unit(&mut self) -> Option<bool> {
        if self.mark('%') || self.command("%") {
            self.units.push("%".to_owned());
            return Some(true);
        }
        if self.command("$") {
            self.units.push("dollar".to_owned());
            return Some(true);
        }
        if self.command("circ") {
            self.units.push("degree".to_owned());
            return Some(true);
        }
        // `^\circ`, `^{\circ}`
        let kind = |count: usize| self.ahead(count).map(|token| &token.kind);
        let circle = |count: usize| matches!(kind(count), Some(Kind::Command(name)) if name == "circ");
        if kind(0) == Some(&Kind::Mark('^')) {
            let count = match kind(1) {
                _ if circle(1) => 2,
                Some(Kind::Mark('{')) if circle(2) && kind(3) == Some(&Kind::Mark('}')) => 4,
                _ => return Some(false),
            };
            self.skip(count);
            self.units.push("degree".to_owned());
            return Some(true);
        }
        let mut words = String::new();
        loop {
            match self.peek() {
                Some(Kind::Text(text)) if !self.at_connector() && words::magnitude(text).is_none() => {
                    words += " ";
                    words += text;
                }
                Some(Kind::Word(word))
                    if !self.at_connector()
                        && named(word).is_none()
                        && words::magnitude(word).is_none()
                        && (!words.is_empty() || (self.after_value() && words::is_unit(word, self.spaced()))) =>
                {
                    words += " ";
                    words += word;
                }
                _ => break,
            }
            self.skip(1);
        }
        if words.is_empty() {
            return Some(false);
        }
        // `\text{ cm}^2`
        if self.mark('^') {
            let braced = self.mark('{');
            let Some(Kind::Number { source, .. }) = self.peek() else { return None };
            words += "^";
            words += source;
            self.skip(1);
            if braced && !self.mark('}') {
                return None;
            }
        }
        self.units.push(words);
        Some(true)
    }

    /// Whether the previous token ends a number, so that a following word is a unit.
    fn after_value(&self) -> bool {
        match self.previous() {
            Some(Kind::Number { .. } | Kind::Mark('}' | ')')) => true,
            Some(Kind::Word(word) | Kind::Text(word)) => words::magnitude(word).is_some(),
            _ => false,
        }
    }

    fn magnitude(&mut self) -> Option<Expr> {
        let (Some(Kind::Word(word) | Kind::Text(word)), true) = (self.peek(), self.after_value()) else { return None };
        let power = words::magnitude(word)?;
        self.skip(1);
        Some(Expr::Number { value: Rational::whole(10).power(i64::from(power))?, digits: 0 })
    }

    pub(super) fn power(&mut self) -> Option<Expr> {
        let mut base = self.atom()?;
        // `5!`; `5!!` is a double factorial and `5!=` a relation.
        if matches!(self.peek(), Some(Kind::Mark('!')))
            && !matches!(self.ahead(1).map(|token| &token.kind), Some(Kind::Mark('=' | '!')))
        {
            self.skip(1);
            base = Expr::Call(Function::Factorial, vec![base]);
        }
        let degree = match (self.ahead(1).map(|token| &token.kind), self.ahead(2).map(|token| &token.kind)) {
            (Some(Kind::Command(name)), _) if name == "circ" => true,
            (Some(Kind::Mark('{')), Some(Kind::Command(name))) => name == "circ",
            _ => false,
        };
        if degree || !self.mark('^') {
            return Some(base);
        }
        let exponent = self.deeper(Self::signed)?;
        Some(Expr::Power(Box::new(base), Box::new(exponent)))
    }

    pub(super) fn atom(&mut self) -> Option<Expr> {
        let kind = self.peek()?;
        self.skip(1);
        match kind {
            Kind::Number { value, digits, source } => {
                if matches!(self.peek(), Some(Kind::Mark('_'))) {
                    self.skip(1);
                    let base = self.subscript()?;
                    return (!source.is_empty()).then(|| Expr::Based { digits: source.clone(), base });
                }
                Some(Expr::Number { value: value.clone(), digits: *digits })
            }
            Kind::Letter(letter) => self.variable(&letter.to_string()),
            Kind::Word(word) => {
                if let Some(named) = named(word) {
                    return self.named(named);
                }
                let letters = word.chars().map(|letter| symbol(letter.to_string()));
                product(letters.collect())
            }
            Kind::Text(text) if text.chars().count() == 1 => self.variable(text),
            Kind::Text(text) => Some(Expr::Symbol(words::phrase(text))),
            Kind::Mark(open @ ('(' | '[' | '{')) => self.bracket(*open),
            Kind::Mark('|') => {
                self.bars += 1;
                let inside = self.sum()?;
                self.bars -= 1;
                self.mark('|').then(|| Expr::Call(Function::Abs, vec![inside]))
            }
            Kind::Mark(_) => None,
            Kind::Command(name) => self.named_command(name),
        }
    }
}

/// A product, or its only factor.
pub(super) fn product(mut factors: Vec<Expr>) -> Option<Expr> {
    if factors.len() == 1 { factors.pop() } else { (!factors.is_empty()).then_some(Expr::Product(factors)) }
}
