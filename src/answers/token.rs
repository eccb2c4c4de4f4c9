//! Splits LaTeX or plain text into tokens.
//!
//! Spacing commands and sizes (`\left`, `\,`, `\!`) are dropped; commands with the same meaning are
//! unified (`\dfrac`, `\tfrac`). Numbers are in [`super::literal`].

use super::number::Rational;

/// Maximum number of tokens of an answer.
const MAX_LENGTH: usize = 1500;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
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
    pub(super) kind: Kind,
    /// Whether white space precedes it.
    pub(super) spaced: bool,
}

/// The tokens of `text`; `None` if it is too long or has an unknown character.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    let chars: Vec<char> = text.chars().collect();
    let mut lexer = Lexer { chars: &chars, at: 0, depth: 0, out: Vec::new(), spaced: false };
    lexer.run(0)?;
    Some(lexer.out)
}

pub(super) struct Lexer<'a> {
    pub(super) chars: &'a [char],
    pub(super) at: usize,
    /// Open brackets at the current position.
    pub(super) depth: usize,
    out: Vec<Token>,
    spaced: bool,
}

/// Commands that only change the appearance.
const IGNORED: [&str; 30] = [
    "left",
    "right",
    "big",
    "Big",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "bigg",
    "Bigg",
    "biggl",
    "biggr",
    "displaystyle",
    "textstyle",
    "limits",
    "quad",
    "qquad",
    "hspace",
    "phantom",
    "middle",
    "nolimits",
    "scriptstyle",
    "thinspace",
    "enspace",
    "bm",
    "boldsymbol",
    "mathstrut",
    "boxed",
    "fbox",
    "ensuremath",
];

/// Commands whose argument is text or a name in another typeface.
const TYPEFACES: [&str; 14] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "textnormal",
    "textsf",
    "mbox",
    "hbox",
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "operatorname",
    "mathbb",
];

/// Other names of commands.
const NAMES: [(&str, &str); 32] = [
    ("dfrac", "frac"),
    ("tfrac", "frac"),
    ("cfrac", "frac"),
    ("dbinom", "binom"),
    ("tbinom", "binom"),
    ("leq", "le"),
    ("leqslant", "le"),
    ("leqq", "le"),
    ("geq", "ge"),
    ("geqslant", "ge"),
    ("geqq", "ge"),
    ("lt", "<"),
    ("gt", ">"),
    ("neq", "ne"),
    ("sim", "approx"),
    ("simeq", "approx"),
    ("thickapprox", "approx"),
    ("infinity", "infty"),
    ("times", "cdot"),
    ("ast", "cdot"),
    ("lbrace", "{"),
    ("rbrace", "}"),
    ("lbrack", "["),
    ("rbrack", "]"),
    ("lvert", "vert"),
    ("rvert", "vert"),
    ("bigcup", "cup"),
    ("land", "and"),
    ("lor", "or"),
    ("wedge", "and"),
    ("vee", "or"),
    ("degree", "circ"),
];

/// Characters that are equivalent to a command.
const SIGNS: [(char, &str); 24] = [
    ('×', "cdot"),
    ('·', "cdot"),
    ('⋅', "cdot"),
    ('∗', "cdot"),
    ('÷', "div"),
    ('≤', "le"),
    ('≥', "ge"),
    ('≠', "ne"),
    ('≈', "approx"),
    ('∞', "infty"),
    ('∪', "cup"),
    ('∈', "in"),
    ('±', "pm"),
    ('∓', "mp"),
    ('√', "sqrt"),
    ('π', "pi"),
    ('°', "circ"),
    ('θ', "theta"),
    ('α', "alpha"),
    ('β', "beta"),
    ('⟨', "langle"),
    ('⟩', "rangle"),
    ('∅', "emptyset"),
    ('∘', "circ"),
];

const SUPERSCRIPTS: [(char, i64); 10] =
    [('⁰', 0), ('¹', 1), ('²', 2), ('³', 3), ('⁴', 4), ('⁵', 5), ('⁶', 6), ('⁷', 7), ('⁸', 8), ('⁹', 9)];

impl Lexer<'_> {
    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn push(&mut self, kind: Kind) -> Option<()> {
        self.out.push(Token { kind, spaced: std::mem::take(&mut self.spaced) });
        (self.out.len() <= MAX_LENGTH).then_some(())
    }

    fn run(&mut self, nesting: usize) -> Option<()> {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.command(nesting)?,
                _ if c.is_whitespace() || c == '~' => {
                    self.spaced = true;
                    self.at += 1;
                }
                '0'..='9' => self.number()?,
                '.' if self.peek(1).is_some_and(|next| next.is_ascii_digit()) => self.number()?,
                '$' => self.at += 1,
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
        if let Some((_, power)) = SUPERSCRIPTS.iter().find(|(sign, _)| *sign == c) {
            self.push(Kind::Mark('^'))?;
            return self.push(Kind::Number { value: Rational::whole(*power), digits: 0, source: power.to_string() });
        }
        if let Some((_, name)) = SIGNS.iter().find(|(sign, _)| *sign == c) {
            return self.push(Kind::Command((*name).to_owned()));
        }
        match c {
            '\u{2212}' | '\u{2013}' => self.push(Kind::Mark('-')),
            '\u{200b}' | '\u{feff}' => Some(()),
            _ => self.push(Kind::Mark(c)),
        }
    }

    fn letters(&mut self) -> Option<()> {
        let from = self.at;
        if let Some((_, name)) = SIGNS.iter().find(|(sign, _)| Some(*sign) == self.peek(0)) {
            self.at += 1;
            return self.push(Kind::Command((*name).to_owned()));
        }
        while self.peek(0).is_some_and(|c| c.is_alphabetic() && !SIGNS.iter().any(|(sign, _)| *sign == c)) {
            self.at += 1;
        }
        match &self.chars[from..self.at] {
            [letter] => self.push(Kind::Letter(*letter)),
            letters => self.push(Kind::Word(letters.iter().collect())),
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
                    self.push(Kind::Command(c.to_string()))
                }
                '\\' | '$' => self.push(Kind::Command(c.to_string())),
                '|' => self.push(Kind::Mark('|')),
                '%' | '&' | '#' | '_' => self.push(Kind::Mark(c)),
                _ => None,
            };
        }
        let name: String = self.chars[from..self.at].iter().collect();
        if IGNORED.contains(&name.as_str()) {
            // `\left.` is an invisible bracket.
            if matches!(name.as_str(), "left" | "right") && self.peek(0) == Some('.') {
                self.at += 1;
            }
            self.spaced |= name.ends_with("quad");
            return Some(());
        }
        if TYPEFACES.contains(&name.as_str()) {
            return self.typeface(nesting);
        }
        let name = NAMES.iter().find(|(other, _)| *other == name).map_or(name.as_str(), |(_, name)| name);
        match name {
            "<" | ">" => self.push(Kind::Mark(if name == "<" { '<' } else { '>' })),
            "[" | "]" => self.push(Kind::Mark(if name == "[" { '[' } else { ']' })),
            "vert" | "mid" => self.push(Kind::Mark('|')),
            "colon" => self.push(Kind::Mark(':')),
            "and" | "or" => self.push(Kind::Word(name.to_owned())),
            _ => self.push(Kind::Command(name.to_owned())),
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
        let content: String = inside.iter().collect();
        let words = content.trim();
        self.spaced |= content.starts_with(char::is_whitespace);
        let readable = inside.iter().any(|c| c.is_ascii_digit() || *c == '\\');
        if readable || matches!(words, "and" | "or" | "," | ", and" | ", or") {
            if nesting > 4 {
                return None;
            }
            let mut inner = Lexer { chars: inside, at: 0, depth: self.depth, out: Vec::new(), spaced: self.spaced };
            inner.run(nesting + 1)?;
            self.out.append(&mut inner.out);
            self.spaced = content.ends_with(char::is_whitespace);
            return (self.out.len() <= MAX_LENGTH).then_some(());
        }
        if words.is_empty() {
            self.spaced = true;
            return Some(());
        }
        let words = words.trim_start_matches('(').trim_end_matches(')').trim_end_matches(['.', ',']).trim();
        let mut letters = words.chars();
        match (letters.next(), letters.next()) {
            (None, _) => Some(()),
            (Some(letter), None) if letter.is_alphabetic() => self.push(Kind::Text(letter.to_string())),
            _ => self.push(Kind::Text(words.to_owned())),
        }?;
        self.spaced = content.ends_with(char::is_whitespace);
        Some(())
    }
}
