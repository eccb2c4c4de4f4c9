//! The expression tree of an answer.

use super::number::Rational;

/// Mathematical constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Constant {
    Pi,
    E,
    I,
    Infinity,
}

/// Functions of one argument; those with two arguments list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UnaryFunction {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    Ln,
    /// `(base, argument)`
    Log,
    Exp,
    Abs,
    Floor,
    Ceiling,
    Factorial,
    /// `(n, k)`
    Binomial,
    /// `(degree, argument)`
    Root,
}

/// The relation between two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Relation {
    Equal,
    /// Membership; `Contains` is its flipped form.
    In,
    Contains,
    Approximate,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Relation {
    /// The relation with its sides exchanged.
    pub(super) fn flipped(self) -> Self {
        match self {
            Self::In => Self::Contains,
            Self::Contains => Self::In,
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            same => same,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// A literal. `digits` is the number of significant digits of a decimal, and 0 for whole
    /// numbers.
    Number {
        value: Rational,
        digits: usize,
    },
    /// `204_5`: compared digit by digit, because the base is part of the answer.
    Based {
        digits: String,
        base: String,
    },
    /// A variable, a word or a phrase; also text that is not mathematics.
    Symbol(String),
    Constant(Constant),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Quotient(Box<Expr>, Box<Expr>),
    Negative(Box<Expr>),
    /// `±x`, or `∓x` if `minus_first`.
    PlusMinus {
        of: Box<Expr>,
        minus_first: bool,
    },
    Power(Box<Expr>, Box<Expr>),
    Call(UnaryFunction, Vec<Expr>),
    /// A value and its unit; `%` is a unit.
    Unit(Box<Expr>, String),
    /// `a : b : c`
    Ratio(Vec<Expr>),
    /// Rows of cells.
    Matrix(Vec<Vec<Expr>>),
    /// `(a, b)`, `[a, b)`: a point, a vector or an interval.
    Tuple {
        open: char,
        close: char,
        items: Vec<Expr>,
    },
    /// `\{a, b\}`
    Set(Vec<Expr>),
    /// `a, b`, `a and b`: several answers without brackets.
    List(Vec<Expr>),
    Union(Vec<Expr>),
    /// `first op a op b …`
    Related {
        first: Box<Expr>,
        rest: Vec<(Relation, Expr)>,
    },
}

impl Expr {
    pub(super) fn whole(value: i64) -> Self {
        Self::Number { value: Rational::whole(value), digits: 0 }
    }

    pub(super) fn negated(self) -> Self {
        Self::Negative(Box::new(self))
    }

    /// Returns the expression and replaces it by 0.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::whole(0))
    }

    /// The direct children.
    pub(super) fn parts(&self) -> Vec<&Expr> {
        match self {
            Self::Number { .. } | Self::Based { .. } | Self::Symbol(_) | Self::Constant(_) => Vec::new(),
            Self::Sum(parts)
            | Self::Product(parts)
            | Self::Call(_, parts)
            | Self::Ratio(parts)
            | Self::Tuple { items: parts, .. }
            | Self::Set(parts)
            | Self::List(parts)
            | Self::Union(parts) => parts.iter().collect(),
            Self::Quotient(a, b) | Self::Power(a, b) => vec![a, b],
            Self::Negative(a) | Self::PlusMinus { of: a, .. } | Self::Unit(a, _) => vec![a],
            Self::Matrix(rows) => rows.iter().flatten().collect(),
            Self::Related { first, rest } => std::iter::once(&**first).chain(rest.iter().map(|(_, e)| e)).collect(),
        }
    }

    /// The same expression with every direct child replaced.
    fn map(&self, change: &dyn Fn(&Expr) -> Expr) -> Expr {
        let all = |parts: &[Expr]| parts.iter().map(change).collect::<Vec<_>>();
        let boxed = |part: &Expr| Box::new(change(part));
        match self {
            Self::Number { .. } | Self::Based { .. } | Self::Symbol(_) | Self::Constant(_) => self.clone(),
            Self::Sum(parts) => Self::Sum(all(parts)),
            Self::Product(parts) => Self::Product(all(parts)),
            Self::Quotient(a, b) => Self::Quotient(boxed(a), boxed(b)),
            Self::Negative(a) => Self::Negative(boxed(a)),
            Self::PlusMinus { of, minus_first } => Self::PlusMinus { of: boxed(of), minus_first: *minus_first },
            Self::Power(a, b) => Self::Power(boxed(a), boxed(b)),
            Self::Call(function, parts) => Self::Call(*function, all(parts)),
            Self::Unit(a, unit) => Self::Unit(boxed(a), unit.clone()),
            Self::Ratio(parts) => Self::Ratio(all(parts)),
            Self::Matrix(rows) => Self::Matrix(rows.iter().map(|row| all(row)).collect()),
            Self::Tuple { open, close, items } => Self::Tuple { open: *open, close: *close, items: all(items) },
            Self::Set(parts) => Self::Set(all(parts)),
            Self::List(parts) => Self::List(all(parts)),
            Self::Union(parts) => Self::Union(all(parts)),
            Self::Related { first, rest } => Self::Related {
                first: boxed(first),
                rest: rest.iter().map(|(relation, part)| (*relation, change(part))).collect(),
            },
        }
    }

    /// Whether `test` holds for the expression or any of its descendants.
    pub(super) fn any(&self, test: &dyn Fn(&Expr) -> bool) -> bool {
        test(self) || self.parts().into_iter().any(|part| part.any(test))
    }

    pub(super) fn has_symbol(&self) -> bool {
        self.any(&|part| matches!(part, Self::Symbol(_)))
    }

    /// Whether it is the name of a value: a variable or word, a point of them, `|AB|` or `[ABC]`.
    pub(super) fn is_name(&self) -> bool {
        match self {
            Self::Symbol(_) => true,
            Self::Constant(constant) => *constant != Constant::Infinity && *constant != Constant::Pi,
            Self::Tuple { items, .. } => items.iter().all(Self::is_name),
            // `\frac{NO}{BO}`, `V_1 : V_2`, `\frac{dy}{dx}`
            Self::Quotient(above, below) => above.is_quantity() && below.is_quantity(),
            Self::Ratio(parts) => parts.iter().all(Self::is_quantity),
            Self::Call(UnaryFunction::Abs, parts) => {
                matches!(parts.as_slice(), [Self::Symbol(name)] if name.len() > 1 && name.chars().all(char::is_uppercase))
            }
            _ => false,
        }
    }

    /// Whether it is `AB`, `V_1` or `dx`, and not a variable.
    fn is_quantity(&self) -> bool {
        match self {
            Self::Symbol(name) => name.contains('_') || (name.len() > 1 && name.chars().all(char::is_uppercase)),
            Self::Product(parts) => {
                matches!(parts.as_slice(), [Self::Symbol(d), Self::Symbol(_)] if d == "d")
            }
            _ => false,
        }
    }

    /// Both values of an expression with `±`; otherwise the expression itself.
    pub(super) fn readings(&self) -> Vec<Expr> {
        if self.any(&|part| matches!(part, Self::PlusMinus { .. })) {
            vec![self.chosen(true), self.chosen(false)]
        } else {
            vec![self.clone()]
        }
    }

    fn chosen(&self, upper: bool) -> Expr {
        match self {
            Self::PlusMinus { of, minus_first } => {
                let of = of.chosen(upper);
                if upper == *minus_first { of.negated() } else { of }
            }
            other => other.map(&|part| part.chosen(upper)),
        }
    }
}
