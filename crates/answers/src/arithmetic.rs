//! Parses sums, products and powers. Units are in [`super::measure`], names and functions in
//! [`super::names`].

use super::expr::{Expr, UnaryFunction};
use super::functions::named;
use super::names::symbol;
use super::number::Rational;
use super::parse::Parser;
use super::token::{TokenKind, lists};
use super::words;

/// Commands that begin no factor.
const OPERATORS: &str =
    "} ] rangle rfloor rceil cup in approx ne le ge \\ end pm mp cdot times choose div equiv $ circ";

impl Parser<'_> {
    pub(super) fn sum(&mut self) -> Option<Expr> {
        self.deeper(|parser| {
            let mut terms = Vec::new();
            let mut counts = vec![parser.units.len()];
            loop {
                let first = terms.is_empty();
                counts.push(parser.units.len());
                // `5 m + 3 cm`
                if parser.has_two_units(&counts) {
                    return None;
                }
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
            let cross = matches!(self.peek(), Some(TokenKind::Command(name)) if name == "times");
            if self.mark('*') || self.command("cdot") || self.command("times") {
                // `A \times B` of sets or vectors.
                if cross && (is_vector(&value) || self.at_vector()) {
                    return None;
                }
                // `**` is Python's power.
                if matches!(self.peek(), Some(TokenKind::Mark('*'))) {
                    self.skip(1);
                    let exponent = self.signed()?;
                    value = Expr::Power(Box::new(value), Box::new(exponent));
                    continue;
                }
                factors.push(value.take());
                value = self.signed()?;
            } else if let Some(rate) = self.price_rate() {
                self.units.push(rate);
            } else if self.mark('/') || self.command("div") {
                factors.push(value.take());
                let above = product(std::mem::take(&mut factors))?;
                value = Expr::Quotient(Box::new(above), Box::new(self.signed()?));
            } else if self.unit()? {
                // The unit is stored separately from the value; it must end the term.
                if self.continues() {
                    return None;
                }
            } else if let Some(scale) = self.magnitude() {
                factors.push(std::mem::replace(&mut value, scale));
            } else if let Some(fraction) = self.mixed(&value) {
                value = Expr::Sum(vec![value, fraction]);
            } else if self.begins_factor() {
                if matches!(self.peek(), Some(TokenKind::Word(word)) if named(word).is_none() && !words::is_product(word))
                {
                    return None;
                }
                factors.push(value.take());
                value = self.power()?;
            } else {
                factors.push(value);
                return product(factors);
            }
        }
    }

    fn at_vector(&self) -> bool {
        match self.peek() {
            Some(TokenKind::Letter(letter)) => letter.is_uppercase(),
            // `\mathbf{b}`
            Some(TokenKind::Text(text)) => text.chars().count() == 1,
            Some(TokenKind::Command(name)) => matches!(name.as_str(), "vec" | "overrightarrow" | "hat" | "{"),
            _ => false,
        }
    }

    /// Whether a product goes on after a unit.
    fn continues(&self) -> bool {
        match self.peek() {
            Some(TokenKind::Mark('^')) => self.degree_tokens() == 0,
            Some(TokenKind::Number { .. } | TokenKind::Mark('*' | '/')) => true,
            // Another unit.
            Some(TokenKind::Word(_) | TokenKind::Text(_)) => false,
            Some(TokenKind::Command(name)) if matches!(name.as_str(), "cdot" | "times" | "div") => true,
            _ => self.begins_factor(),
        }
    }

    pub(super) fn signed(&mut self) -> Option<Expr> {
        let mut negative = false;
        for _ in 0..8 {
            if self.mark('-') {
                negative = !negative;
            } else if !self.mark('+') {
                // `\$5`
                while self.currency() {}
                if matches!(self.peek(), Some(TokenKind::Mark('-' | '+'))) {
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
            Some(TokenKind::Letter(_)) => !self.at_union_letter(),
            Some(TokenKind::Word(_) | TokenKind::Text(_)) => !self.at_connector(),
            Some(TokenKind::Mark(c)) => matches!(c, '(' | '[' | '{') || (*c == '|' && self.bars == 0),
            Some(TokenKind::Command(name)) => !lists(OPERATORS, name),
            _ => false,
        }
    }

    /// `\frac{3}{4}` or ` 3/4` after a whole number: a mixed number.
    fn mixed(&mut self, before: &Expr) -> Option<Expr> {
        let Expr::Number { value, digits: 0 } = before else { return None };
        if !value.is_whole() || !self.after_number() {
            return None;
        }
        let proper = |above: &Rational, below: &Rational, count: usize| {
            (above < below && above.is_whole() && below.is_whole() && !above.is_negative()).then(|| {
                (
                    Expr::Number { value: above.clone(), digits: 0 },
                    Expr::Number { value: below.clone(), digits: 0 },
                    count,
                )
            })
        };
        let fraction = match &[0, 1, 2, 3, 4, 5, 6].map(|count| self.kind(count)) {
            [
                Some(TokenKind::Command(name)),
                Some(TokenKind::Mark('{')),
                Some(TokenKind::Number { value: above, .. }),
                Some(TokenKind::Mark('}')),
                Some(TokenKind::Mark('{')),
                Some(TokenKind::Number { value: below, .. }),
                Some(TokenKind::Mark('}')),
            ] if name == "frac" => proper(above, below, 7),
            [Some(TokenKind::Command(name)), Some(TokenKind::Number { source, .. }), ..] if name == "frac" => {
                let mut digits = source.chars().filter_map(|c| c.to_digit(10)).map(Rational::whole);
                match (digits.next(), digits.next(), digits.next()) {
                    (Some(above), Some(below), None) => proper(&above, &below, 2),
                    _ => None,
                }
            }
            [
                Some(TokenKind::Number { value: above, .. }),
                Some(TokenKind::Mark('/')),
                Some(TokenKind::Number { value: below, .. }),
                ..,
            ] if self.spaced() => proper(above, below, 3),
            _ => None,
        };
        let (above, below, count) = fraction?;
        self.skip(count);
        Some(Expr::Quotient(Box::new(above), Box::new(below)))
    }

    pub(super) fn after_number(&self) -> bool {
        self.previous().is_some_and(|kind| matches!(kind, TokenKind::Number { .. }))
    }

    pub(super) fn power(&mut self) -> Option<Expr> {
        // `xy^2`: the exponent belongs to the last letter.
        if let Some(TokenKind::Word(word)) = self.peek()
            && named(word).is_none()
            && words::is_product(word)
            && !word.chars().all(char::is_uppercase)
            && let Some((at, last)) = word.char_indices().last()
        {
            self.skip(1);
            let base = self.variable(&last.to_string())?;
            let last = self.raised(base)?;
            return product(word[..at].chars().map(|letter| symbol(letter.to_string())).chain([last]).collect());
        }
        let base = self.atom()?;
        self.raised(base)
    }

    /// A value with its factorial and exponent.
    fn raised(&mut self, mut base: Expr) -> Option<Expr> {
        // `5!`; `5!!` is a double factorial and `5!=` a relation.
        if matches!(self.peek(), Some(TokenKind::Mark('!')))
            && !matches!(self.kind(1), Some(TokenKind::Mark('=' | '!')))
        {
            self.skip(1);
            base = Expr::Call(UnaryFunction::Factorial, vec![base]);
        }
        let degree = self.at_circle(1) || (self.kind(1) == Some(&TokenKind::Mark('{')) && self.at_circle(2));
        if degree || !self.mark('^') {
            return Some(base);
        }
        // `x^{(n)}` may be a derivative.
        let index =
            matches!(self.peek(), Some(TokenKind::Mark('{'))) && matches!(self.kind(1), Some(TokenKind::Mark('(')));
        if index && base.has_symbol() {
            return None;
        }
        let exponent = self.deeper(Self::signed)?;
        Some(Expr::Power(Box::new(base), Box::new(exponent)))
    }

    pub(super) fn atom(&mut self) -> Option<Expr> {
        let kind = self.peek()?;
        self.skip(1);
        match kind {
            TokenKind::Number { value, digits, source } => {
                if matches!(self.peek(), Some(TokenKind::Mark('_'))) {
                    self.skip(1);
                    let base = self.subscript()?;
                    return (!source.is_empty()).then(|| Expr::Based { digits: source.clone(), base });
                }
                Some(Expr::Number { value: value.clone(), digits: *digits })
            }
            TokenKind::Letter(letter) => self.variable(&letter.to_string()),
            TokenKind::Word(word) => {
                if let Some(named) = named(word) {
                    return self.named(named);
                }
                // `AB` may be a segment or a product of matrices: its order counts.
                if word.chars().all(char::is_uppercase) || !words::is_product(word) {
                    return self.variable(word);
                }
                let letters = word.chars().map(|letter| symbol(letter.to_string()));
                product(letters.collect())
            }
            TokenKind::Text(text) if text.chars().count() == 1 => self.variable(text),
            TokenKind::Text(text) => Some(Expr::Symbol(words::phrase(text))),
            TokenKind::Mark(open @ ('(' | '[' | '{')) => self.bracket(*open),
            // `||x||` is a norm.
            TokenKind::Mark('|') if matches!(self.peek(), Some(TokenKind::Mark('|'))) => None,
            TokenKind::Mark('|') => {
                self.bars += 1;
                let inside = self.sum()?;
                self.bars -= 1;
                self.mark('|').then(|| Expr::Call(UnaryFunction::Abs, vec![inside]))
            }
            TokenKind::Mark(_) => None,
            TokenKind::Command(name) => self.named_command(name),
        }
    }
}

/// Whether a factor may be a set, a matrix or a vector.
fn is_vector(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(name) => name.contains(' ') || name.chars().all(char::is_uppercase),
        Expr::Set(_) => true,
        _ => false,
    }
}

/// A product, or its only factor.
pub(super) fn product(mut factors: Vec<Expr>) -> Option<Expr> {
    if factors.len() == 1 { factors.pop() } else { (!factors.is_empty()).then_some(Expr::Product(factors)) }
}
