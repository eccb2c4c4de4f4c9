//! Lexes numbers: thousands separators, repeating decimals, exponents. This happens before parsing,
//! because only the text distinguishes `1,000` from the pair `1, 000`.

use super::number::Rational;
use super::token::{Lexer, TokenKind, vulgar_fraction};

impl Lexer<'_> {
    fn digits(&mut self) -> String {
        let from = self.at;
        while self.peek(0).is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        self.chars[from..self.at].iter().collect()
    }

    /// The start of the next group of exactly three digits, after the separator at the current
    /// position.
    fn group(&self) -> Option<usize> {
        let mut at = self.at;
        let skip = |at: &mut usize| {
            while self.chars.get(*at).is_some_and(|c| c.is_whitespace()) {
                *at += 1;
            }
        };
        let follows = |at: usize, text: &str| text.chars().enumerate().all(|(i, c)| self.chars.get(at + i) == Some(&c));
        // LaTeX thousands separators are also accepted in brackets; a bare comma only outside.
        // `1\!,\!000`
        if follows(at, "\\!") {
            at += 2;
        }
        let mut braced = at;
        skip(&mut braced);
        let sure = if follows(braced, "{,") {
            at = braced + 2;
            skip(&mut at);
            if follows(at, "\\!") {
                at += 2;
            }
            skip(&mut at);
            at += usize::from(follows(at, "}"));
            true
        } else if follows(at, ",\\!") || follows(at, ",\\,") {
            at += 3;
            true
        } else if follows(at, "\\,") || follows(at, "\\ ") {
            at += 2;
            self.depth == 0
        } else if matches!(self.chars.get(at), Some(',' | ' ' | '\u{a0}' | '\u{202f}' | '\u{2009}')) {
            at += 1;
            if self.depth > 0 {
                return None;
            }
            false
        } else {
            return None;
        };
        if sure {
            skip(&mut at);
        }
        let three = (0..3).all(|i| self.chars.get(at + i).is_some_and(char::is_ascii_digit));
        let after = self.chars.get(at + 3);
        let separated = !after.is_some_and(|c| c.is_ascii_digit() || *c == '/');
        (three && separated).then_some(at)
    }

    pub(super) fn number(&mut self) -> Option<()> {
        let mut whole = self.digits();
        let first = self.at;
        if (1..=3).contains(&whole.len()) && !whole.starts_with('0') {
            let alone = whole.clone();
            while let Some(at) = self.group() {
                self.at = at;
                whole += &self.digits();
            }
            // `100,200,3` is a list of three.
            let list = self.peek(0) == Some(',') && self.peek(1).is_some_and(|c| c.is_ascii_digit());
            if list && self.at != first {
                whole = alone;
                self.at = first;
            }
        }
        let mut fraction = String::new();
        let mut decimal = false;
        if self.peek(0) == Some('.') {
            let digit = self.peek(1).is_some_and(|c| c.is_ascii_digit());
            let repeats = self.peek(1) == Some('\\');
            // A full stop after a number is not a decimal point.
            if digit || repeats || self.at + 1 == self.chars.len() {
                self.at += 1;
                decimal = digit || repeats;
                fraction = self.digits();
            }
        } else if whole == "0" && self.depth == 0 && self.peek(0) == Some(',') {
            // A decimal comma: `0,125`.
            let count = self.chars[self.at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
            if count >= 3 {
                self.at += 1;
                decimal = true;
                fraction = self.digits();
            }
        }
        // `2½`
        let vulgar = self.peek(0).and_then(vulgar_fraction).filter(|_| !decimal);
        if vulgar.is_some() {
            self.at += 1;
        }
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            // `1.2.3` is not a number.
            return None;
        }
        let repeated = if decimal && self.repeats() { Some(self.repeated()?) } else { None };
        let exponent = self.exponent();
        let places = u32::try_from(fraction.len()).ok()?;
        let digits = format!("{whole}{fraction}");
        let mut value = Rational::decimal(if digits.is_empty() { "0" } else { &digits }, places)?;
        let source = if decimal || vulgar.is_some() { String::new() } else { whole };
        if let Some(vulgar) = vulgar {
            value = value.add(&vulgar)?;
        }
        let mut written = if decimal { digits.trim_start_matches('0').len().max(1) } else { 0 };
        if let Some(repeated) = repeated {
            // 0.1\overline{6} = 0.1 + 6 / 90
            let length = u32::try_from(repeated.len()).ok()?;
            let ten = Rational::whole(10);
            let nines = ten.power(i64::from(length))?.subtract(&Rational::whole(1))?;
            let below = nines.multiply(&ten.power(i64::from(places))?)?;
            value = value.add(&Rational::decimal(&repeated, 0)?.divide(&below)?)?;
            written = 0;
        }
        if let Some(exponent) = exponent {
            value = value.multiply(&Rational::whole(10).power(exponent)?)?;
        }
        let source = if exponent.is_some() { String::new() } else { source };
        self.push(TokenKind::Number { value, digits: written, source })
    }

    fn repeats(&self) -> bool {
        self.repetition().is_some()
    }

    /// The command at this position that marks repeating digits.
    fn repetition(&self) -> Option<&'static str> {
        let rest: String = self.chars[self.at..].iter().take(12).collect();
        ["\\overline", "\\bar", "\\dot"].into_iter().find(|name| rest.starts_with(*name))
    }

    /// `\overline{36}`, `\bar{3}` or `\dot{3}` after the decimal point.
    fn repeated(&mut self) -> Option<String> {
        self.at += self.repetition()?.len();
        let braced = self.peek(0) == Some('{');
        self.at += usize::from(braced);
        let digits = if braced {
            self.digits()
        } else {
            let digit = self.peek(0).filter(char::is_ascii_digit)?;
            self.at += 1;
            digit.to_string()
        };
        if digits.is_empty() || (braced && self.peek(0) != Some('}')) {
            return None;
        }
        self.at += usize::from(braced);
        Some(digits)
    }

    /// The exponent of `1e-6`; `2e` and `3ex` have none.
    fn exponent(&mut self) -> Option<i64> {
        if !matches!(self.peek(0), Some('e' | 'E')) {
            return None;
        }
        let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
        let from = self.at + 1 + sign;
        let count = self.chars[from.min(self.chars.len())..].iter().take_while(|c| c.is_ascii_digit()).count();
        let after = self.chars.get(from + count);
        if count == 0 || count > 5 || after.is_some_and(|c| c.is_alphabetic()) {
            return None;
        }
        let digits: String = self.chars[from..from + count].iter().collect();
        let negative = self.peek(1) == Some('-');
        self.at = from + count;
        digits.parse::<i64>().ok().map(|value| if negative { -value } else { value })
    }
}
