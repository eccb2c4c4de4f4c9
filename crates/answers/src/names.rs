//! Parses names in formulas: functions with their arguments, constants, variables with their
//! subscripts.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::arithmetic::product;
use super::expr::{Constant, Expr, UnaryFunction};
use super::functions::{NameSyntax, named};
use super::parse::Parser;
use super::token::{TokenKind, lists};

/// Commands that are variables. Any other unknown command may be an operator, and a text with an
/// operator that is not understood equals only the same text.
const LETTERS: &str = "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi \
    omicron rho varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi \
    Omega ell hbar aleph";

impl Parser<'_> {
    pub(super) fn named_command(&mut self, name: &str) -> Option<Expr> {
        match name {
            "{" => self.bracket('s'),
            "langle" => self.bracket('a'),
            "begin" => self.matrix(),
            "frac" => {
                let above = self.argument()?;
                Some(Expr::Quotient(Box::new(above), Box::new(self.argument()?)))
            }
            "lfloor" | "lceil" => {
                let (function, close) =
                    if name == "lfloor" { (UnaryFunction::Floor, "rfloor") } else { (UnaryFunction::Ceiling, "rceil") };
                let inside = self.sum()?;
                self.command(close).then(|| Expr::Call(function, vec![inside]))
            }
            "emptyset" | "varnothing" => Some(Expr::Set(Vec::new())),
            "overline" | "bar" | "vec" | "hat" | "overrightarrow" | "widehat" | "tilde" | "widetilde" | "dot"
            | "ddot" | "underline" => {
                let inside = self.argument()?;
                Some(Expr::Symbol(format!("{name} {}", fingerprint(&inside))))
            }
            _ => match named(name) {
                Some(named) => self.named(named),
                None if lists(LETTERS, name) => self.variable(&format!("\\{name}")),
                None => None,
            },
        }
    }

    pub(super) fn named(&mut self, named: NameSyntax) -> Option<Expr> {
        let function = match named {
            NameSyntax::Constant(constant) => return Some(Expr::Constant(constant)),
            NameSyntax::Function(UnaryFunction::Binomial) => {
                let above = self.argument()?;
                return Some(Expr::Call(UnaryFunction::Binomial, vec![above, self.argument()?]));
            }
            NameSyntax::Function(UnaryFunction::Root) => {
                let degree = if self.mark('[') { self.sum().filter(|_| self.mark(']'))? } else { Expr::whole(2) };
                return Some(Expr::Call(UnaryFunction::Root, vec![degree, self.argument_or_number()?]));
            }
            NameSyntax::Function(function) => function,
        };
        let base = if function == UnaryFunction::Log {
            Some(if self.mark('_') { self.argument_or_number()? } else { Expr::whole(10) })
        } else {
            None
        };
        let power = if self.mark('^') { Some(self.argument_or_number()?) } else { None };
        let mut argument = self.deeper(Self::function_argument)?;
        if self.degrees() {
            if argument.has_symbol() {
                self.units.push("degree".to_owned());
            } else {
                argument = in_radians(argument);
            }
        } else if let Expr::Unit(inside, unit) = &argument {
            // `\sin(30^\circ)`
            if unit != "degree" {
                return None;
            }
            argument = if inside.has_symbol() { (**inside).clone() } else { in_radians((**inside).clone()) };
        }
        // `\sin^{-1} x` is the inverse function.
        let inverse = match function {
            UnaryFunction::Sin => Some(UnaryFunction::Arcsin),
            UnaryFunction::Cos => Some(UnaryFunction::Arccos),
            UnaryFunction::Tan => Some(UnaryFunction::Arctan),
            _ => None,
        };
        if let Some(inverse) = inverse.filter(|_| power.as_ref().is_some_and(is_minus_one)) {
            return Some(Expr::Call(inverse, vec![argument]));
        }
        let call = Expr::Call(function, base.into_iter().chain([argument]).collect());
        Some(match power {
            Some(power) => Expr::Power(Box::new(call), Box::new(power)),
            None => call,
        })
    }

    /// The argument of a function without brackets: `\sin 2x` but not `\sin x \cos x`.
    fn function_argument(&mut self) -> Option<Expr> {
        if matches!(self.peek(), Some(TokenKind::Mark('('))) {
            return self.power();
        }
        let mut factors = vec![self.signed()?];
        while self.begins_factor() {
            let function = match self.peek() {
                Some(TokenKind::Word(name) | TokenKind::Command(name)) => {
                    matches!(named(name), Some(NameSyntax::Function(_)))
                }
                Some(TokenKind::Mark(_)) => true,
                _ => false,
            };
            if function || matches!(self.peek(), Some(TokenKind::Text(_))) {
                break;
            }
            factors.push(self.power()?);
        }
        product(factors)
    }

    /// `{…}`, or one token; of a number only its first digit, as in `\frac12`.
    fn argument(&mut self) -> Option<Expr> {
        if let Some(TokenKind::Number { source, .. }) = self.peek()
            && source.len() == 2
            && !matches!(self.previous(), Some(TokenKind::Mark('}')))
        {
            // Both arguments of `\frac12` are in one token: the first digit is used here, the
            // second stays.
            let digit = source.chars().nth(usize::from(self.half))?;
            self.half = !self.half;
            if !self.half {
                self.skip(1);
            }
            return Some(Expr::whole(i64::from(digit.to_digit(10)?)));
        }
        self.argument_or_number()
    }

    fn argument_or_number(&mut self) -> Option<Expr> {
        self.deeper(|parser| {
            if parser.mark('-') {
                return Some(parser.atom()?.negated());
            }
            parser.atom()
        })
    }

    pub(super) fn variable(&mut self, name: &str) -> Option<Expr> {
        let mut name = name.to_owned();
        while self.mark('\'') {
            name.push('\'');
        }
        if self.mark('_') {
            name.push('_');
            name += &self.subscript()?;
        }
        // `f(2)`: an unknown function.
        let function = matches!(name.as_str(), "f" | "g" | "h" | "F" | "G" | "H") || name.contains(['_', '\'']);
        if function && matches!(self.peek(), Some(TokenKind::Mark('('))) && !self.spaced() {
            self.skip(1);
            let argument = self.bracket('(')?;
            return Some(Expr::Symbol(format!("{name}({})", fingerprint(&argument))));
        }
        Some(symbol(name))
    }

    /// The text after `_`.
    pub(super) fn subscript(&mut self) -> Option<String> {
        let text = |kind: &TokenKind| match kind {
            TokenKind::Number { source, .. } if !source.is_empty() => Some(source.clone()),
            TokenKind::Letter(letter) => Some(letter.to_string()),
            TokenKind::Word(word) | TokenKind::Text(word) => Some(word.clone()),
            TokenKind::Command(name) => Some(format!("\\{name}")),
            TokenKind::Mark(mark @ (',' | '+' | '-')) => Some(mark.to_string()),
            _ => None,
        };
        if !self.mark('{') {
            let subscript = text(self.peek()?)?;
            self.skip(1);
            return Some(subscript);
        }
        let mut subscript = String::new();
        while !self.mark('}') {
            subscript += &text(self.peek()?)?;
            self.skip(1);
        }
        Some(subscript)
    }
}

/// An angle in degrees.
fn in_radians(angle: Expr) -> Expr {
    let degree = Expr::Quotient(Box::new(Expr::Constant(Constant::Pi)), Box::new(Expr::whole(180)));
    Expr::Product(vec![angle, degree])
}

/// A short name for an expression; equal expressions have equal names.
fn fingerprint(expr: &Expr) -> String {
    let mut hasher = DefaultHasher::new();
    expr.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn is_minus_one(expr: &Expr) -> bool {
    *expr == Expr::whole(1).negated()
}

/// A variable, or the constant of that name.
pub(super) fn symbol(name: String) -> Expr {
    match name.as_str() {
        "e" => Expr::Constant(Constant::E),
        "i" => Expr::Constant(Constant::I),
        _ => Expr::Symbol(name),
    }
}
