//! Parses units, currencies, degrees and magnitudes, which are stored separately from the value.

use super::expr::Expr;
use super::functions::named;
use super::parse::Parser;
use super::token::TokenKind;
use super::words;

impl Parser<'_> {
    /// Whether two terms have different units; `counts` are the numbers of units before each term.
    pub(super) fn has_two_units(&self, counts: &[usize]) -> bool {
        let names = |pair: &[usize]| {
            self.units
                .get(pair[0]..pair[1])
                .unwrap_or_default()
                .iter()
                .map(|unit| words::unit(unit))
                .collect::<Vec<_>>()
        };
        let terms: Vec<_> = counts.windows(2).map(names).filter(|units| !units.is_empty()).collect();
        terms.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// A currency sign.
    pub(super) fn currency(&mut self) -> bool {
        let name = match self.peek() {
            Some(TokenKind::Command(name)) if name == "$" => "dollar",
            Some(TokenKind::Mark('€')) => "euro",
            Some(TokenKind::Mark('£')) => "gbp",
            Some(TokenKind::Mark('¥')) => "¥",
            Some(TokenKind::Mark('₹')) => "rupee",
            Some(TokenKind::Mark('₩')) => "won",
            Some(TokenKind::Mark('₽')) => "ruble",
            Some(TokenKind::Mark('₿')) => "bitcoin",
            Some(TokenKind::Mark('¢')) => "cent",
            _ => return false,
        };
        self.skip(1);
        self.units.push(name.to_owned());
        true
    }

    /// A unit at this place, stored separately from the value.
    pub(super) fn unit(&mut self) -> Option<bool> {
        if self.mark('%') || self.command("%") {
            self.units.push("%".to_owned());
            return Some(true);
        }
        if self.currency() {
            return Some(true);
        }
        if self.degrees() {
            let scale = match self.peek() {
                Some(TokenKind::Letter(scale @ ('C' | 'F'))) => scale.to_string(),
                Some(TokenKind::Text(text)) if matches!(text.as_str(), "C" | "F") => text.clone(),
                _ => String::new(),
            };
            self.skip(usize::from(!scale.is_empty()));
            self.units.push(format!("degree {scale}").trim().to_owned());
            return Some(true);
        }
        // `5 sec`
        if matches!(self.peek(), Some(TokenKind::Word(word)) if word == "sec")
            && self.ahead(1).is_none()
            && self.after_only_number()
        {
            self.skip(1);
            self.units.push("s".to_owned());
            return Some(true);
        }
        if let Some(unit) = self.unit_letter() {
            self.units.push(unit);
            return Some(true);
        }
        let mut phrase = String::new();
        loop {
            match self.peek() {
                Some(TokenKind::Text(text)) if !self.at_connector() && words::magnitude(text).is_none() => {
                    phrase += " ";
                    phrase += text;
                }
                Some(TokenKind::Word(word))
                    if !self.at_connector()
                        && named(word).is_none()
                        && words::magnitude(word).is_none()
                        && (!phrase.is_empty()
                            || word == "per"
                            || (self.after_value() && words::is_unit(word, self.spaced()))) =>
                {
                    phrase += " ";
                    phrase += word;
                }
                _ => break,
            }
            self.skip(1);
        }
        if phrase.is_empty() {
            return Some(false);
        }
        if !words::may_be_unit(&phrase) {
            return None;
        }
        phrase += &self.unit_power()?;
        phrase += &self.rate()?;
        self.units.push(phrase);
        Some(true)
    }

    /// `^2` after a unit: `\text{ cm}^2`.
    fn unit_power(&mut self) -> Option<String> {
        if self.at_circle(1) || self.at_circle(2) || !self.mark('^') {
            return Some(String::new());
        }
        let braced = self.mark('{');
        let Some(TokenKind::Number { source, .. }) = self.peek() else { return None };
        self.skip(1);
        (!braced || self.mark('}')).then(|| format!("^{source}"))
    }

    /// `/h`, `/\text{s}^2` after a unit.
    fn rate(&mut self) -> Option<String> {
        let is_rate = matches!(self.peek(), Some(TokenKind::Mark('/')));
        let below = match self.kind(1) {
            Some(TokenKind::Letter(letter)) if is_rate && words::UNIT_LETTERS.contains(letter) => letter.to_string(),
            Some(TokenKind::Word(word) | TokenKind::Text(word)) if is_rate && words::is_unit(word, true) => {
                word.clone()
            }
            _ => return Some(String::new()),
        };
        self.skip(2);
        Some(format!("/{below}{}", self.unit_power()?))
    }

    /// The `/hour` of `\$5/hour`.
    pub(super) fn price_rate(&mut self) -> Option<String> {
        let word = matches!(self.kind(1), Some(TokenKind::Word(_) | TokenKind::Text(_)));
        if self.units.is_empty() || !word || !self.after_number() {
            return None;
        }
        self.rate().filter(|rate| !rate.is_empty())
    }

    /// The unit of `57 g`, `5 \mu m`, `9.8 m/s^2`: a letter at the end of an answer that is one
    /// number.
    fn unit_letter(&mut self) -> Option<String> {
        let micro = usize::from(matches!(self.kind(0), Some(TokenKind::Command(name)) if name == "mu"));
        let letter = match self.kind(micro)? {
            TokenKind::Letter(letter) if words::UNIT_LETTERS.contains(letter) => *letter,
            TokenKind::Text(text) if micro > 0 && text.len() == 1 => text.chars().next()?,
            _ => return None,
        };
        let power = self.kind(micro + 1) == Some(&TokenKind::Mark('^'));
        let rate = matches!(
            (self.kind(micro + 1), self.kind(micro + 2)),
            (Some(TokenKind::Mark('/')), Some(TokenKind::Letter('s' | 'h')))
        );
        let ends = matches!(self.kind(micro + 1), None | Some(TokenKind::Mark(',' | ';'))) || power || rate;
        if !(ends && self.after_only_number() && (self.spaced() || micro > 0 || rate)) {
            return None;
        }
        let start = self.position();
        self.skip(micro + 1);
        let unit = self.unit_power().and_then(|power| Some(format!("{power}{}", self.rate()?)));
        let Some(rest) = unit.filter(|_| matches!(self.peek(), None | Some(TokenKind::Mark(',' | ';')))) else {
            self.back_to(start);
            return None;
        };
        Some(format!("{}{letter}{rest}", if micro > 0 { "μ" } else { "" }))
    }

    /// Whether the previous token is a number and the only factor of its answer.
    fn after_only_number(&self) -> bool {
        let before = |mark: Option<&TokenKind>| {
            matches!(mark, None | Some(TokenKind::Mark('=' | ',' | ';' | '€' | '£' | '¥')))
                || matches!(mark, Some(TokenKind::Command(name)) if matches!(name.as_str(), "approx" | "$"))
        };
        // `3 \times 10^8`
        let scaled = |caret: usize| {
            self.behind(caret) == Some(&TokenKind::Mark('^'))
                && matches!(self.behind(caret + 1), Some(TokenKind::Number { source, .. }) if source == "10")
        };
        if (self.after_number() && scaled(2))
            || (self.behind(1) == Some(&TokenKind::Mark('}')) && (scaled(4) || scaled(5)))
        {
            return true;
        }
        let signed = self.behind(2) == Some(&TokenKind::Mark('-')) && before(self.behind(3));
        self.after_number() && (signed || before(self.behind(2)))
    }

    /// `°`, `^\circ`, `^{\circ}` after a value.
    pub(super) fn degrees(&mut self) -> bool {
        let count = self.degree_tokens();
        self.skip(count);
        count > 0
    }

    pub(super) fn degree_tokens(&self) -> usize {
        match self.kind(0) {
            // `f \circ g` is a composition.
            Some(TokenKind::Command(_)) if self.at_circle(0) && self.after_value() => 1,
            Some(TokenKind::Mark('^')) if self.at_circle(1) => 2,
            Some(TokenKind::Mark('^'))
                if self.kind(1) == Some(&TokenKind::Mark('{'))
                    && self.at_circle(2)
                    && self.kind(3) == Some(&TokenKind::Mark('}')) =>
            {
                4
            }
            _ => 0,
        }
    }

    /// Whether the previous token ends a number, so that a following word is a unit.
    fn after_value(&self) -> bool {
        match self.previous() {
            Some(TokenKind::Number { .. } | TokenKind::Mark('}' | ')')) => true,
            Some(TokenKind::Word(word) | TokenKind::Text(word)) => words::magnitude(word).is_some(),
            _ => false,
        }
    }

    pub(super) fn magnitude(&mut self) -> Option<Expr> {
        let (Some(TokenKind::Word(word) | TokenKind::Text(word)), true) = (self.peek(), self.after_value()) else {
            return None;
        };
        let scale = words::magnitude(word)?;
        self.skip(1);
        Some(Expr::whole(scale))
    }
}
