//! Exact evaluation: rational functions of the symbols, `\pi`, `e` and `i`, at rational points.
//!
//! `\pi` and `e` are transcendental, so an identity of rational functions holds for them if and
//! only if it holds with variables instead. Two different rational functions agree at a random
//! point with negligible probability (Schwartz-Zippel lemma), and the points depend on the answers
//! compared.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::expr::{Constant, Expr, UnaryFunction};
use super::number::{Gaussian, Rational};

/// Largest argument of a factorial, and of a binomial coefficient.
const FACTORIAL: i64 = 400;

/// The remaining work of one comparison, in evaluated nodes and machine words of their values.
pub(super) struct EvaluationBudget(Cell<u64>);

impl EvaluationBudget {
    pub(super) fn new(work: u64) -> Self {
        Self(Cell::new(work))
    }

    /// Subtracts `work`; `None` when none is left.
    pub(super) fn spend(&self, work: u64) -> Option<()> {
        let left = self.0.get().checked_sub(work);
        self.0.set(left.unwrap_or(0));
        left.map(|_| ())
    }
}

/// Values of the symbols: one of several points.
#[derive(Clone, Copy)]
pub(super) struct Point<'a> {
    pub(super) salt: u64,
    pub(super) index: u32,
    pub(super) budget: &'a EvaluationBudget,
}

impl Point<'_> {
    /// The symbol's value at this point: a fraction between -60 and 60, positive at even points.
    pub(super) fn value(&self, name: &str) -> Rational {
        let mut hasher = DefaultHasher::new();
        (self.salt, self.index, name).hash(&mut hasher);
        let bits = hasher.finish();
        let above = 1 + (bits & 0xfff) as i64;
        let below = 67 + ((bits >> 16) & 0x1f) as i64;
        let negative = !self.index.is_multiple_of(2) && bits >> 63 == 1;
        let value = Rational::whole(above).divide(&Rational::whole(below)).unwrap_or_else(|| Rational::whole(1));
        if negative { value.negative() } else { value }
    }
}

/// The exact value; `None` if it is not a rational function, undefined at the point, or too long.
pub(super) fn evaluate(expr: &Expr, point: Point) -> Option<Gaussian> {
    inner(expr, point).and_then(|value| point.budget.spend(value.cost()).map(|()| value))
}

fn inner(expr: &Expr, point: Point) -> Option<Gaussian> {
    let each = |part: &Expr| evaluate(part, point);
    let spent = |value: Gaussian| point.budget.spend(value.cost()).map(|()| value);
    match expr {
        Expr::Number { value, .. } => Some(Gaussian::real(value.clone())),
        Expr::Symbol(name) => Some(Gaussian::real(point.value(name))),
        Expr::Constant(Constant::Pi) => Some(Gaussian::real(point.value("pi is not the name of a symbol"))),
        Expr::Constant(Constant::E) => Some(Gaussian::real(point.value("e is not the name of a symbol"))),
        Expr::Constant(Constant::I) => Some(Gaussian::imaginary_unit()),
        Expr::Sum(parts) => {
            let zero = Gaussian::real(Rational::whole(0));
            parts.iter().try_fold(zero, |total, part| spent(total.add(&each(part)?)?))
        }
        Expr::Product(parts) => {
            let one = Gaussian::real(Rational::whole(1));
            parts.iter().try_fold(one, |total, part| spent(total.multiply(&each(part)?)?))
        }
        Expr::Quotient(above, below) => each(above)?.divide(&each(below)?),
        Expr::Negative(inside) => Some(each(inside)?.negative()),
        Expr::Power(base, exponent) => power(&each(base)?, exponent, point),
        Expr::Call(function, arguments) => call(*function, arguments, point),
        _ => None,
    }
}

fn power(base: &Gaussian, exponent: &Expr, point: Point) -> Option<Gaussian> {
    // With a symbol in the exponent the exponent would be arbitrary.
    if exponent.any(&|part| matches!(part, Expr::Symbol(_) | Expr::Constant(_))) {
        return None;
    }
    let exponent = evaluate(exponent, point)?;
    let exponent = exponent.as_real()?;
    if let Some(whole) = exponent.as_i64() {
        return if base.is_zero() && whole <= 0 { None } else { base.power(whole) };
    }
    // `4^{1/2}` is exact if the root is rational; a negative base has other roots as well.
    let base = base.as_real().filter(|base| !base.is_negative())?;
    for degree in 2..=12_i64 {
        let whole = exponent.multiply(&Rational::whole(degree))?;
        if let Some(whole) = whole.as_i64() {
            let root = base.root(u32::try_from(degree).ok()?)?;
            return if root.is_zero() && whole <= 0 { None } else { Some(Gaussian::real(root.power(whole)?)) };
        }
    }
    None
}

fn call(function: UnaryFunction, arguments: &[Expr], point: Point) -> Option<Gaussian> {
    // Only closed arguments: `|x|` and `\sqrt{x^2}` are not rational functions of x.
    let names = |part: &Expr| matches!(part, Expr::Symbol(_) | Expr::Constant(_));
    if arguments.iter().any(|argument| argument.any(&names)) {
        return None;
    }
    let real = |argument: &Expr| evaluate(argument, point)?.as_real().cloned();
    let values = arguments.iter().map(real).collect::<Option<Vec<_>>>()?;
    let whole = |value: &Rational, limit: i64| value.as_i64().filter(|value| (0..=limit).contains(value));
    let value = match (function, values.as_slice()) {
        (UnaryFunction::Abs, [value]) if value.is_negative() => value.negative(),
        (UnaryFunction::Abs, [value]) => value.clone(),
        (UnaryFunction::Floor, [value]) => value.floor(),
        (UnaryFunction::Ceiling, [value]) => value.negative().floor().negative(),
        (UnaryFunction::Factorial, [value]) => {
            let count = whole(value, FACTORIAL)?;
            (2..=count).try_fold(Rational::whole(1), |total, factor| {
                point.budget.spend(total.cost())?;
                total.multiply(&Rational::whole(factor))
            })?
        }
        (UnaryFunction::Binomial, [above, below]) => {
            let (above, below) = (whole(above, 10_000)?, whole(below, FACTORIAL)?);
            (0..below).try_fold(Rational::whole(1), |total, i| {
                point.budget.spend(total.cost() * 2)?;
                total.multiply(&Rational::whole(above - i))?.divide(&Rational::whole(i + 1))
            })?
        }
        (UnaryFunction::Root, [degree, value]) => {
            let degree = u32::try_from(whole(degree, 64)?).ok().filter(|degree| *degree > 0)?;
            point.budget.spend(value.words() * 16)?;
            value.root(degree)?
        }
        (UnaryFunction::Log, [base, value]) => logarithm(base, value, point)?,
        _ => return None,
    };
    Some(Gaussian::real(value))
}

/// `\log_2 8` is exact if the value is an integer power of the base.
fn logarithm(base: &Rational, value: &Rational, point: Point) -> Option<Rational> {
    let one = Rational::whole(1);
    if *base <= one || *value <= Rational::whole(0) {
        return None;
    }
    let (mut rest, up) = if *value >= one { (value.clone(), true) } else { (one.divide(value)?, false) };
    let mut count = 0;
    while rest > one {
        point.budget.spend(rest.cost())?;
        rest = rest.divide(base)?;
        count += 1;
    }
    (rest == one).then(|| Rational::whole(if up { count } else { -count }))
}
