//! Splits LaTeX or plain text into tokens.
//!
//! Spacing commands and sizes (`\left`, `\,`, `\!`) are dropped; commands with the same meaning are
//! unified (`\dfrac`, `\tfrac`). Numbers are in [`super::literal`].

use std::collections::HashMap;
use std::sync::LazyLock;

use super::number::Rational;
use super::words::rows;

/// Maximum number of tokens of an answer.
const MAX_LENGTH: usize = 1500;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// `digits` as in [`super::expr::Expr::Number`]; `source` is the text of a whole number without
    /// separators.
    Number { value: Rational, digits: usize, source: String },
    /// One letter.
    Letter(char),
    /// Several letters.
    Word(String),
    /// The content of `\text{…}`.
    Text(String),
    /// A command without its backslash.
    Command(String),
    /// Any other character.
    Mark(char),
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    /// Whether white space precedes it.
    pub(super) spaced: bool,
}

/// The tokens of `text`; `None` if it is too long or has an unknown character.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    let chars: Vec<char> = text.chars().collect();
    let plain = !chars.contains(&'\\');
    let prices = prices(&chars);
    let mut lexer = Lexer { chars: &chars, at: 0, depth: 0, prices, plain, out: Vec::new(), spaced: false };
    lexer.run(0)?;
    Some(subscripts_first(lexer.out))
}

/// Whether every dollar sign precedes a number, so that it is a currency and not a delimiter.
fn prices(chars: &[char]) -> bool {
    let price =
        |at: usize| chars[at + 1..].iter().find(|c| !matches!(c, '-' | ' ' | '.')).is_some_and(char::is_ascii_digit);
    chars.iter().enumerate().all(|(at, c)| *c != '$' || (at > 0 && chars[at - 1] == '\\') || price(at))
}

/// `x^2_1` as `x_1^2`.
fn subscripts_first(mut tokens: Vec<Token>) -> Vec<Token> {
    let group = |tokens: &[Token], at: usize| match tokens.get(at).map(|token| &token.kind) {
        Some(TokenKind::Mark('{')) => {
            let length = tokens[at..].iter().position(|token| token.kind == TokenKind::Mark('}'))?;
            Some(at + length + 1)
        }
        Some(TokenKind::Number { .. } | TokenKind::Letter(_)) => Some(at + 1),
        _ => None,
    };
    for at in 1..tokens.len() {
        if tokens[at].kind == TokenKind::Mark('^')
            && matches!(tokens[at - 1].kind, TokenKind::Letter(_))
            && let Some(middle) = group(&tokens, at + 1)
            && tokens.get(middle).is_some_and(|token| token.kind == TokenKind::Mark('_'))
            && let Some(end) = group(&tokens, middle + 1)
        {
            tokens[at..end].rotate_left(middle - at);
        }
    }
    tokens
}

pub(super) struct Lexer<'a> {
    pub(super) chars: &'a [char],
    pub(super) at: usize,
    /// Open brackets at the current position.
    pub(super) depth: usize,
    /// Whether dollar signs are currencies.
    prices: bool,
    /// Whether the text has no command.
    plain: bool,
    out: Vec<Token>,
    spaced: bool,
}

/// Commands that only change the appearance.
const IGNORED: &str = "left right big Big bigl bigr Bigl Bigr bigg Bigg biggl biggr \
    displaystyle textstyle limits quad qquad hspace phantom middle nolimits scriptstyle scriptscriptstyle thinspace \
    enspace bm boldsymbol mathstrut boxed fbox framebox ensuremath bf rm it sf \
    tt em bfseries large Large LARGE huge Huge small tiny normalsize footnotesize";

/// Commands whose argument is text or a name in another typeface.
const TYPEFACES: &str = "text textbf textit textrm textnormal textsf textsc texttt textup emph \
    mbox hbox mathrm mathbf mathit mathsf mathtt mathcal mathscr mathfrak operatorname mathbb";

/// Whether a list of names separated by spaces has the name.
pub(super) fn lists(names: &str, name: &str) -> bool {
    names.split(' ').any(|other| other == name)
}

const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// The names in commands.tsv, and their commands.
static COMMANDS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| rows(include_str!("commands.tsv")).collect());

/// The command that a character stands for.
fn sign(c: char) -> Option<&'static str> {
    COMMANDS.get(&*c.encode_utf8(&mut [0; 4])).copied()
}

/// The value of a fraction of one character.
pub(super) fn vulgar_fraction(c: char) -> Option<Rational> {
    let (above, below) = sign(c)?.split_once('/')?;
    Rational::decimal(above, 0)?.divide(&Rational::decimal(below, 0)?)
}

/// The text of LaTeX that is not understood, without what only changes its appearance; `None` for
/// text without a command.
pub(super) fn canonical(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return None;
    }
    let mut out = String::new();
    let tokens = tokens(text)?;
    for (at, token) in tokens.iter().enumerate() {
        let kind = |at: usize| tokens.get(at).map(|token| &token.kind);
        // `^{2}` is `^2`.
        let single = |at: usize| kind(at) == Some(&TokenKind::Mark('{')) && kind(at + 2) == Some(&TokenKind::Mark('}'));
        if single(at) || (at >= 2 && single(at - 2)) {
            continue;
        }
        match &token.kind {
            TokenKind::Number { value, .. } => out.extend([format!("{value:?}")]),
            TokenKind::Letter(letter) => out.push(*letter),
            TokenKind::Word(word) | TokenKind::Text(word) => out += word,
            TokenKind::Command(name) => out.extend(["\\", name.as_str()]),
            TokenKind::Mark(mark) => out.push(*mark),
        }
        out.push(' ');
    }
    Some(out)
}

impl Lexer<'_> {
    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn push(&mut self, kind: TokenKind) -> Option<()> {
        self.out.push(Token { kind, spaced: std::mem::take(&mut self.spaced) });
        (self.out.len() <= MAX_LENGTH).then_some(())
    }

    fn run(&mut self, nesting: usize) -> Option<()> {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.command(nesting)?,
                // In LaTeX a space, in plain text "about".
                '~' if self.plain => {
                    self.at += 1;
                    self.push(TokenKind::Command("approx".to_owned()))?;
                }
                _ if c.is_whitespace() || c == '~' => {
                    self.spaced = true;
                    self.at += 1;
                }
                '0'..='9' => self.number()?,
                '.' if self.peek(1).is_some_and(|next| next.is_ascii_digit()) => self.number()?,
                '$' if self.prices => {
                    self.at += 1;
                    self.push(TokenKind::Command("$".to_owned()))?;
                }
                '$' => self.at += 1,
                '{' if self.peek(1) == Some('}') => self.at += 2,
                _ if vulgar_fraction(c).is_some() => self.number()?,
                _ if c.is_alphabetic() => self.letters()?,
                _ => {
                    self.at += 1;
                    self.sign(c)?;
                }
            }
        }
        Some(())
    }

    fn sign(&mut self, c: char) -> Option<()> {
        match c {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let digit = |c: char| SUPERSCRIPTS.iter().position(|sign| *sign == c);
        if digit(c).is_some() || (c == '⁻' && self.peek(0).and_then(digit).is_some()) {
            self.push(TokenKind::Mark('^'))?;
            let mut power = 0;
            self.at -= usize::from(c != '⁻');
            if c == '⁻' {
                self.push(TokenKind::Mark('-'))?;
            }
            while let Some(next) = self.peek(0).and_then(digit).filter(|_| power < 10_000) {
                power = 10 * power + i64::try_from(next).ok()?;
                self.at += 1;
            }
            return self.push(TokenKind::Number {
                value: Rational::whole(power),
                digits: 0,
                source: power.to_string(),
            });
        }
        if let Some(name) = sign(c) {
            return self.push(TokenKind::Command(name.to_owned()));
        }
        match c {
            '\u{2212}' | '\u{2013}' => self.push(TokenKind::Mark('-')),
            '\u{200b}' | '\u{feff}' => Some(()),
            _ => self.push(TokenKind::Mark(c)),
        }
    }

    fn letters(&mut self) -> Option<()> {
        let from = self.at;
        if let Some(name) = self.peek(0).and_then(sign) {
            self.at += 1;
            return self.push(TokenKind::Command(name.to_owned()));
        }
        while self.peek(0).is_some_and(|c| c.is_alphabetic() && sign(c).is_none()) {
            self.at += 1;
        }
        // TeX: only the first letter after `^` is the exponent.
        let exponent = matches!(self.out.last(), Some(Token { kind: TokenKind::Mark('^'), .. })) && !self.spaced;
        if exponent && super::functions::named(&self.chars[from..self.at].iter().collect::<String>()).is_none() {
            self.at = from + 1;
        }
        match &self.chars[from..self.at] {
            ['µ'] => self.push(TokenKind::Letter('μ')),
            [letter] => self.push(TokenKind::Letter(*letter)),
            letters => self.push(TokenKind::Word(letters.iter().collect::<String>().replace('µ', "μ"))),
        }
    }

    fn command(&mut self, nesting: usize) -> Option<()> {
        self.at += 1;
        let from = self.at;
        while self.peek(0).is_some_and(|c| c.is_ascii_alphabetic()) {
            self.at += 1;
        }
        if from == self.at {
            // A command of one character.
            let c = self.peek(0)?;
            self.at += 1;
            return match c {
                ',' | ';' | ':' | ' ' | '\n' | '>' => {
                    self.spaced = true;
                    Some(())
                }
                '!' | '(' | ')' | '[' | ']' => Some(()),
                '{' | '}' => {
                    self.depth = if c == '{' { self.depth + 1 } else { self.depth.saturating_sub(1) };
                    self.push(TokenKind::Command(c.to_string()))
                }
                '\\' | '$' => self.push(TokenKind::Command(c.to_string())),
                '|' => self.push(TokenKind::Mark('|')),
                '%' | '&' | '#' | '_' => self.push(TokenKind::Mark(c)),
                _ => None,
            };
        }
        let name: String = self.chars[from..self.at].iter().collect();
        if lists(IGNORED, &name) {
            // `\left.` is an invisible bracket.
            if matches!(name.as_str(), "left" | "right") && self.peek(0) == Some('.') {
                self.at += 1;
            }
            self.spaced |= name.ends_with("quad");
            return Some(());
        }
        if lists(TYPEFACES, &name) {
            return self.typeface(nesting);
        }
        let name = COMMANDS.get(name.as_str()).copied().unwrap_or(&name);
        let mark = name.chars().next().filter(|mark| "<>[]|:£€¥".contains(*mark));
        match (name, mark) {
            (_, Some(mark)) => self.push(TokenKind::Mark(mark)),
            ("and" | "or", _) => self.push(TokenKind::Word(name.to_owned())),
            _ => self.push(TokenKind::Command(name.to_owned())),
        }
    }

    /// `\text{…}`: words become one token; text with digits or commands is lexed as usual.
    fn typeface(&mut self, nesting: usize) -> Option<()> {
        while self.peek(0).is_some_and(char::is_whitespace) {
            self.at += 1;
        }
        if self.peek(0) != Some('{') {
            return Some(());
        }
        let from = self.at + 1;
        let (mut end, mut depth) = (from, 1_usize);
        while depth > 0 {
            match self.chars.get(end)? {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            end += 1;
        }
        let inside = &self.chars[from..end - 1];
        self.at = end;
        let content = inside.iter().collect::<String>().replace('~', " ");
        let phrase = content.trim();
        self.spaced |= content.starts_with(char::is_whitespace);
        let readable = inside.iter().any(|c| c.is_ascii_digit() || *c == '\\');
        if readable || matches!(phrase, "and" | "or" | "," | ", and" | ", or") {
            if nesting > 4 {
                return None;
            }
            let (depth, spaced) = (self.depth, self.spaced);
            let prices = prices(inside);
            let mut inner = Lexer { chars: inside, at: 0, depth, prices, plain: false, out: Vec::new(), spaced };
            inner.run(nesting + 1)?;
            self.out.append(&mut inner.out);
            self.spaced = content.ends_with(char::is_whitespace);
            return (self.out.len() <= MAX_LENGTH).then_some(());
        }
        if phrase.is_empty() {
            self.spaced = true;
            return Some(());
        }
        let phrase = phrase.trim_start_matches('(').trim_end_matches(')').trim_end_matches(['.', ',']).trim();
        // `\text{million dollars}`
        let phrase = match phrase.split_once(' ') {
            Some((first, rest)) if super::words::magnitude(first).is_some() => {
                self.push(TokenKind::Text(first.to_owned()))?;
                rest.trim()
            }
            _ => phrase,
        };
        let mut letters = phrase.chars();
        match (letters.next(), letters.next()) {
            (None, _) => Some(()),
            (Some(letter), None) if letter.is_alphabetic() => self.push(TokenKind::Text(letter.to_string())),
            _ => self.push(TokenKind::Text(phrase.to_owned())),
        }?;
        self.spaced = content.ends_with(char::is_whitespace);
        Some(())
    }
}
