//! Parses tokens into an expression: lists, relations, sets and brackets. Sums and products are in
//! [`super::arithmetic`].

use super::expr::{Expr, Relation, UnaryFunction};
use super::token::{Token, TokenKind};
use super::words;

/// Maximum nesting of brackets, fractions and exponents.
const DEPTH: usize = 40;

/// Maximum number of `±` signs. They all have the same sign, so there are always two readings.
const SIGNS: usize = 8;

/// Parses a complete answer; `None` if it is not mathematics in a supported form.
pub(super) fn parse(tokens: &[Token]) -> Option<Expr> {
    let mut parser = Parser { tokens, at: 0, depth: 0, bars: 0, signs: 0, units: Vec::new(), half: false };
    let list = parser.list(Expr::List)?;
    parser.done().then_some(list)
}

pub(super) struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    /// Number of open `|`.
    pub(super) bars: usize,
    signs: usize,
    /// Units of the current item.
    pub(super) units: Vec<String>,
    /// Whether the first digit of `\\frac12` has been read.
    pub(super) half: bool,
}

impl<'a> Parser<'a> {
    pub(super) fn done(&self) -> bool {
        self.at == self.tokens.len()
    }

    pub(super) fn peek(&self) -> Option<&'a TokenKind> {
        self.kind(0)
    }

    pub(super) fn kind(&self, count: usize) -> Option<&'a TokenKind> {
        self.ahead(count).map(|token| &token.kind)
    }

    pub(super) fn at_circle(&self, count: usize) -> bool {
        matches!(self.kind(count), Some(TokenKind::Command(name)) if name == "circ")
    }

    pub(super) fn ahead(&self, count: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + count)
    }

    pub(super) fn previous(&self) -> Option<&'a TokenKind> {
        self.behind(1)
    }

    pub(super) fn behind(&self, count: usize) -> Option<&'a TokenKind> {
        self.at.checked_sub(count).and_then(|at| self.tokens.get(at)).map(|token| &token.kind)
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn back_to(&mut self, position: usize) {
        self.at = position;
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn spaced(&self) -> bool {
        self.ahead(0).is_some_and(|token| token.spaced)
    }

    pub(super) fn mark(&mut self, mark: char) -> bool {
        let matches = matches!(self.peek(), Some(TokenKind::Mark(c)) if *c == mark);
        self.at += usize::from(matches);
        matches
    }

    pub(super) fn command(&mut self, name: &str) -> bool {
        let matches = matches!(self.peek(), Some(TokenKind::Command(c)) if c == name);
        self.at += usize::from(matches);
        matches
    }

    fn word(&mut self, names: &[&str]) -> bool {
        let matches = match self.peek() {
            Some(TokenKind::Word(word) | TokenKind::Text(word)) => {
                names.iter().any(|name| word.eq_ignore_ascii_case(name))
            }
            _ => false,
        };
        self.at += usize::from(matches);
        matches
    }

    pub(super) fn at_connector(&self) -> bool {
        match self.peek() {
            Some(TokenKind::Word(word) | TokenKind::Text(word)) => matches!(word.as_str(), "and" | "or"),
            _ => false,
        }
    }

    pub(super) fn sign(&mut self) -> Option<()> {
        self.signs += 1;
        (self.signs <= SIGNS).then_some(())
    }

    /// Runs `read` one nesting level deeper.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// `a, b; c and d`, up to a closing bracket or the end. A single item is returned unchanged.
    fn list(&mut self, kind: fn(Vec<Expr>) -> Expr) -> Option<Expr> {
        let mut items = self.items()?;
        if items.len() == 1 { items.pop() } else { Some(kind(items)) }
    }

    fn items(&mut self) -> Option<Vec<Expr>> {
        let mut items = vec![self.item()?];
        loop {
            let comma = self.mark(',') || self.mark(';');
            if !(self.word(&["and", "or"]) || comma) {
                return Some(items);
            }
            items.push(self.item()?);
        }
    }

    /// One answer of a list, with its unit.
    fn item(&mut self) -> Option<Expr> {
        let outer = std::mem::take(&mut self.units);
        let expr = match self.phrase() {
            Some(phrase) => phrase,
            None => self.relation()?,
        };
        let units = std::mem::replace(&mut self.units, outer);
        Some(wrap(expr, &units))
    }

    /// An item that consists of words only.
    fn phrase(&mut self) -> Option<Expr> {
        let mut count = 0;
        let mut phrase = String::new();
        let mut worded = false;
        while let Some(token) = self.ahead(count) {
            match &token.kind {
                TokenKind::Word(word) | TokenKind::Text(word) if matches!(word.as_str(), "and" | "or") => break,
                TokenKind::Word(word) if super::functions::named(word).is_some() => return None,
                // `xy` is a product, and `AB` in `\frac{AB}{2}` a name.
                TokenKind::Word(word) if count == 0 && self.is_formula(word) => return None,
                TokenKind::Word(word) | TokenKind::Text(word) => {
                    worded |= word.chars().count() > 1;
                    phrase += if phrase.is_empty() { "" } else { " " };
                    phrase += word;
                }
                // The spaces around a letter distinguish `a triangle` from a product.
                TokenKind::Letter(letter) if token.spaced || count == 0 => {
                    phrase += if phrase.is_empty() { "" } else { " " };
                    phrase.push(*letter);
                }
                TokenKind::Mark(',' | ';' | ')' | ']' | '}') => break,
                TokenKind::Command(name) if name == "}" => break,
                // `\text{east}^\circ`: a degree sign after a word is ignored.
                TokenKind::Mark('^') if self.at_circle(count + 1) => {
                    count += 1;
                }
                _ => return None,
            }
            count += 1;
        }
        if !worded {
            return None;
        }
        self.skip(count);
        Some(Expr::Symbol(words::phrase(&phrase)))
    }

    fn is_formula(&self, word: &str) -> bool {
        let alone = !matches!(self.kind(1), Some(TokenKind::Word(_) | TokenKind::Text(_) | TokenKind::Letter(_)));
        let upper = self.depth > 0 && word.chars().all(char::is_uppercase);
        alone && (upper || words::is_variables(&word.to_lowercase()))
    }

    fn relation(&mut self) -> Option<Expr> {
        // `\approx 3.14`
        if self.command("approx") {
            return self.ratio().filter(|value| !value.has_symbol());
        }
        let first = match self.named_side() {
            Some(name) => name,
            None => self.ratio()?,
        };
        let mut rest = Vec::new();
        while let Some(relation) = self.relation_sign() {
            rest.push((relation, self.ratio()?));
        }
        Some(if rest.is_empty() { first } else { Expr::Related { first: Box::new(first), rest } })
    }

    /// The left side of an equation that names a value: `P(A \cap B) =`, `\angle ABC =`,
    /// `y(x) =`. Its text is the name.
    fn named_side(&mut self) -> Option<Expr> {
        let mut depth = 0_usize;
        let length = self.tokens[self.at..].iter().position(|token| {
            match token.kind {
                TokenKind::Mark('(') => depth += 1,
                TokenKind::Mark(')') => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && token.kind == TokenKind::Mark('=')
        })?;
        let side = self.tokens.get(self.at..self.at + length).filter(|side| side.len() >= 2 && side.len() <= 40)?;
        let kind = |at: usize| side.get(at).map(|token| &token.kind);
        let applied = kind(1) == Some(&TokenKind::Mark('(')) && closes_at_end(&side[1..]);
        let named = match kind(0)? {
            TokenKind::Letter(name) if applied => {
                let variable = side.len() == 4 && matches!(kind(2), Some(TokenKind::Letter(other)) if other != name);
                name.is_uppercase() || matches!(name, 'f' | 'g' | 'h' | 'p' | 'q') || variable
            }
            TokenKind::Letter('m') => matches!(kind(1), Some(TokenKind::Command(name)) if name == "angle"),
            TokenKind::Command(name) => matches!(name.as_str(), "angle" | "triangle" | "measuredangle" | "Pr"),
            _ => false,
        };
        if !named || side.iter().any(|token| matches!(token.kind, TokenKind::Mark(',' | '+' | '<' | '>'))) && !applied {
            return None;
        }
        let text: Vec<String> = side.iter().map(|token| format!("{:?}", token.kind)).collect();
        self.skip(length);
        Some(Expr::Symbol(text.join(" ")))
    }

    fn relation_sign(&mut self) -> Option<Relation> {
        // `:=`, `==`, `<=`, `>=`, `!=`
        let next = matches!(self.kind(1), Some(TokenKind::Mark('=')));
        let (relation, count) = match self.peek()? {
            TokenKind::Mark('=') => (Relation::Equal, 1 + usize::from(next)),
            TokenKind::Mark(':') if next => (Relation::Equal, 2),
            TokenKind::Mark('<') => (if next { Relation::LessEqual } else { Relation::Less }, 1 + usize::from(next)),
            TokenKind::Mark('>') => {
                (if next { Relation::GreaterEqual } else { Relation::Greater }, 1 + usize::from(next))
            }
            TokenKind::Mark('!') if next => (Relation::Unequal, 2),
            TokenKind::Command(name) => match name.as_str() {
                "in" => (Relation::In, 1),
                "equiv" => (Relation::Equal, 1),
                "approx" => (Relation::Approximate, 1),
                "ne" => (Relation::Unequal, 1),
                "le" => (Relation::LessEqual, 1),
                "ge" => (Relation::GreaterEqual, 1),
                _ => return None,
            },
            _ => return None,
        };
        self.skip(count);
        Some(relation)
    }

    fn ratio(&mut self) -> Option<Expr> {
        let mut parts = vec![self.union()?];
        while matches!(self.peek(), Some(TokenKind::Mark(':'))) && !matches!(self.kind(1), Some(TokenKind::Mark('='))) {
            self.skip(1);
            parts.push(self.union()?);
        }
        if parts.len() == 1 { parts.pop() } else { Some(Expr::Ratio(parts)) }
    }

    fn union(&mut self) -> Option<Expr> {
        let mut parts = vec![self.sum()?];
        // `{n \choose k}`
        if self.command("choose") {
            let below = self.sum()?;
            let above = parts.pop()?;
            parts.push(Expr::Call(UnaryFunction::Binomial, vec![above, below]));
        }
        while self.command("cup") || self.union_letter() {
            parts.push(self.sum()?);
        }
        if parts.len() == 1 { parts.pop() } else { Some(Expr::Union(parts)) }
    }

    /// `(0, 1) U (2, 3)`
    pub(super) fn at_union_letter(&self) -> bool {
        matches!(self.previous(), Some(TokenKind::Mark(')' | ']')))
            && matches!(self.peek(), Some(TokenKind::Letter('U')))
            && matches!(self.kind(1), Some(TokenKind::Mark('(' | '[')))
    }

    fn union_letter(&mut self) -> bool {
        let matches = self.at_union_letter();
        self.at += usize::from(matches);
        matches
    }

    /// `(…)`, `[…)`, `\{…\}`, `{…}` or `\langle…\rangle`, after its opening delimiter.
    pub(super) fn bracket(&mut self, open: char) -> Option<Expr> {
        let bars = std::mem::take(&mut self.bars);
        let bracket = self.deeper(|parser| {
            if open == 's' && parser.command("}") {
                return Some(Expr::Set(Vec::new()));
            }
            let mut items = parser.items()?;
            // `\{1, 2,\}`
            parser.mark(',');
            let close = parser.close(open)?;
            Some(match open {
                's' => Expr::Set(items),
                // `\left[\begin{array}…\end{array}\right]`
                _ if matches!(items.as_slice(), [Expr::Matrix(_)]) => items.pop()?,
                '{' if items.len() > 1 => Expr::Set(items),
                '(' | '{' if items.len() == 1 && close != ']' => items.pop()?,
                'a' => Expr::Tuple { open: '(', close: ')', items },
                _ if items.len() > 1 || (open == '[' && close == ']') => Expr::Tuple { open, close, items },
                _ => return None,
            })
        });
        self.bars = bars;
        bracket
    }

    fn close(&mut self, open: char) -> Option<char> {
        match open {
            's' => self.command("}").then_some('s'),
            'a' => (self.command("rangle") || self.mark('>')).then_some('a'),
            '{' => self.mark('}').then_some('}'),
            _ if self.mark(')') => Some(')'),
            _ if self.mark(']') => Some(']'),
            _ => None,
        }
    }

    /// `{pmatrix} a & b \\ c & d \end{pmatrix}` after `\begin`.
    pub(super) fn matrix(&mut self) -> Option<Expr> {
        let name = self.environment()?;
        if !matches!(name.as_str(), "pmatrix" | "bmatrix" | "Bmatrix" | "matrix" | "smallmatrix" | "array") {
            return None;
        }
        if name == "array" && self.mark('{') {
            while !self.mark('}') {
                self.peek()?;
                self.skip(1);
            }
        }
        self.deeper(|parser| {
            let mut rows = vec![vec![parser.item()?]];
            loop {
                if parser.mark('&') {
                    let cell = parser.item()?;
                    rows.last_mut()?.push(cell);
                } else if parser.command("\\") {
                    if parser.command("end") {
                        break;
                    }
                    let cell = parser.item()?;
                    rows.push(vec![cell]);
                } else if parser.command("end") {
                    break;
                } else {
                    return None;
                }
            }
            let width = rows.first()?.len();
            (parser.environment()? == name && rows.iter().all(|row| row.len() == width)).then_some(Expr::Matrix(rows))
        })
    }

    fn environment(&mut self) -> Option<String> {
        if !self.mark('{') {
            return None;
        }
        let TokenKind::Word(name) = self.peek()? else { return None };
        self.skip(1);
        self.mark('}').then(|| name.clone())
    }
}

/// Whether the bracket that begins the tokens ends with them.
fn closes_at_end(tokens: &[Token]) -> bool {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Mark('(') => depth += 1,
            TokenKind::Mark(')') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1 == tokens.len();
                }
            }
            _ => {}
        }
    }
    false
}

/// Attaches an item's units; a prefix such as `\$` and a suffix such as `dollars` are one unit.
fn wrap(expr: Expr, units: &[String]) -> Expr {
    let mut names: Vec<String> = Vec::new();
    for unit in units {
        if let Some(name) = words::unit(unit).filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    // `\$5 per hour`: `dollar` and `/h`.
    let names = names.join(" ").replace(" /", "/");
    // `x = 5 cm`: the unit belongs to the value.
    match expr {
        _ if names.is_empty() => expr,
        Expr::Related { first, mut rest } => {
            if let Some((_, last)) = rest.last_mut() {
                *last = Expr::Unit(Box::new(last.take()), names);
            }
            Expr::Related { first, rest }
        }
        other => Expr::Unit(Box::new(other), names),
    }
}
