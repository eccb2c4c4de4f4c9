//! Compares two expressions for equality.

use super::equation::Equation;
use super::exact::{self, EvaluationBudget, Point};
use super::expr::{Constant, Expr, Relation, UnaryFunction};
use super::float::{self, FAR, POINTS};
use super::number::{Gaussian, Rational};
use super::sets;

/// Maximum work of one comparison; a few milliseconds.
const WORK: u64 = 400_000;

/// Minimum number of points at which two expressions with symbols must be defined.
const DEFINED: usize = 3;

/// Minimum number of significant digits of a decimal that may equal a number without a finite
/// decimal expansion.
const DIGITS: usize = 12;

/// Maximum number of significant digits of a literal next to roots and functions, which are
/// evaluated in double precision.
const PRECISE: usize = 9;

/// Largest closed value that is compared in double precision: `10^{16}+\sqrt{2}` can't be
/// distinguished from `10^{16}`.
const LARGE: f64 = 1e9;

pub(super) struct MathComparison {
    budget: EvaluationBudget,
    salt: u64,
}

impl MathComparison {
    /// `salt` chooses the points.
    pub(super) fn new(salt: u64) -> Self {
        Self { budget: EvaluationBudget::new(WORK), salt }
    }

    fn point(&self, index: u32) -> Point<'_> {
        Point { salt: self.salt, index, budget: &self.budget }
    }

    /// Whether `answer` equals `reference`. The order matters in one case: an interval equals a
    /// reference that is an inequality, but an inequality does not equal a reference that is an
    /// interval.
    pub(super) fn equal(&self, answer: &Expr, reference: &Expr) -> bool {
        if self.budget.spend(4).is_none() {
            return false;
        }
        if answer == reference {
            return true;
        }
        if matches!(answer, Expr::Unit(..)) || matches!(reference, Expr::Unit(..)) {
            return self.with_units(answer, reference);
        }
        if let Some(equal) = sets::compare(self, answer, reference) {
            return equal;
        }
        if let Some(equal) = self.relations(answer, reference) {
            return equal;
        }
        match (answer, reference) {
            (Expr::Ratio(a), Expr::Ratio(b)) => self.each(a, b),
            (Expr::Symbol(_), _) | (_, Expr::Symbol(_)) if Self::is_spelled_product(answer, reference) => true,
            (Expr::Based { .. } | Expr::Ratio(_), _) | (_, Expr::Based { .. } | Expr::Ratio(_)) => false,
            _ => self.scalars(answer, reference),
        }
    }

    /// Whether the elements are pairwise equal.
    pub(super) fn each(&self, a: &[Expr], b: &[Expr]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.equal(a, b))
    }

    /// A unit may be missing on one side; two different units are two different answers. If only
    /// one side has a percent sign, it may mean the number or its hundredth.
    fn with_units(&self, answer: &Expr, reference: &Expr) -> bool {
        let (a, unit_a) = bare(answer);
        let (b, unit_b) = bare(reference);
        let hundredth = |value: &Expr| Expr::Quotient(Box::new(value.clone()), Box::new(Expr::whole(100)));
        match (unit_a, unit_b) {
            (Some(x), Some(y)) => same_unit(x, y) && self.equal(a, b),
            (Some(unit), None) if is_percent(unit) => self.equal(a, b) || self.equal(&hundredth(a), b),
            (None, Some(unit)) if is_percent(unit) => self.equal(a, b) || self.equal(a, &hundredth(b)),
            // `5\text{ m}` and `5m`
            (Some(unit), None) => self.equal(a, b) || self.equal(&times(a, unit), b),
            (None, Some(unit)) => self.equal(a, b) || self.equal(a, &times(b, unit)),
            (None, None) => self.equal(a, b),
        }
    }

    /// A word equals the product of its letters.
    fn is_spelled_product(a: &Expr, b: &Expr) -> bool {
        let spell = |expr: &Expr| -> Option<String> {
            match expr {
                Expr::Symbol(name) => Some(name.clone()),
                Expr::Constant(Constant::E) => Some("e".to_owned()),
                Expr::Constant(Constant::I) => Some("i".to_owned()),
                Expr::Product(parts) => parts
                    .iter()
                    .map(|part| match part {
                        Expr::Symbol(name) if name.chars().count() == 1 => Some(name.as_str()),
                        Expr::Constant(Constant::E) => Some("e"),
                        Expr::Constant(Constant::I) => Some("i"),
                        _ => None,
                    })
                    .collect(),
                _ => None,
            }
        };
        match (spell(a), spell(b)) {
            (Some(a), Some(b)) if a.chars().count() > 1 => a.to_lowercase() == b.to_lowercase(),
            (Some(a), Some(b)) => a == b,
            _ => false,
        }
    }

    /// Whether a decimal or whole number is a value, rounded to its last digit.
    pub(super) fn rounds_to(&self, value: &Expr, rounded: &Expr) -> bool {
        let (value, rounded) = (bare(value).0, bare(rounded).0);
        let (Some(x), Some(y)) = (float::evaluate(value, self.point(0)), exact::evaluate(rounded, self.point(0)))
        else {
            return false;
        };
        let Some(y) = y.as_real().filter(|y| !rounded.has_symbol() && y.has_finite_decimals()) else { return false };
        let places = (0..15).find(|places| {
            let scaled = Rational::whole(10).power(*places).and_then(|scale| scale.multiply(y));
            scaled.is_some_and(|scaled| scaled.is_whole())
        });
        let Some(places) = places.and_then(|places| i32::try_from(places).ok()) else { return false };
        x.is_real() && (x.value.re - y.as_f64()).abs() <= 0.500_000_1 * 10_f64.powi(-places)
    }

    /// Whether `\approx` between two closed values is honest: they differ by less than 1%.
    pub(super) fn is_near(&self, value: &Expr, other: &Expr) -> bool {
        let evaluate = |expr: &Expr| float::evaluate(bare(expr).0, self.point(0));
        let (Some(x), Some(y)) = (evaluate(value), evaluate(other)) else { return false };
        (x.value - y.value).norm() <= 0.01 * x.value.norm()
    }

    /// Compares relations with each other and with values; `None` without a relation.
    fn relations(&self, answer: &Expr, reference: &Expr) -> Option<bool> {
        match (Equation::of(answer), Equation::of(reference)) {
            (None, None) => None,
            (Some(a), Some(b)) => Some(self.both_related(&a, &b)),
            (Some(a), None) => Some(a.values(self).iter().any(|value| self.equal(value, reference))),
            (None, Some(b)) => Some(b.values(self).iter().any(|value| self.equal(answer, value))),
        }
    }

    fn both_related(&self, a: &Equation, b: &Equation) -> bool {
        if let (Some((name_a, value_a)), Some((name_b, value_b))) = (a.assignment(), b.assignment())
            && self.equal(name_a, name_b)
            && self.equal(value_a, value_b)
        {
            return true;
        }
        if a.terms.len() != b.terms.len() {
            return false;
        }
        let flipped = b.flipped();
        for b in [b, &flipped] {
            let terms = || a.terms.iter().zip(&b.terms).all(|(a, b)| self.equal(a, b));
            if a.signs == b.signs && terms() {
                return true;
            }
        }
        // `2x + 4y = 3` and `y = (3 - 2x) / 4`: one difference of the sides is a multiple of the
        // other.
        let ([sign_a], [sign_b]) = (a.signs.as_slice(), b.signs.as_slice()) else { return false };
        let [left_a, right_a, left_b, right_b] =
            [&a.terms[0], &a.terms[1], &b.terms[0], &b.terms[1]].map(|term| (**term).clone());
        let a = Expr::Sum(vec![left_a, right_a.negated()]);
        let b = Expr::Sum(vec![left_b, right_b.negated()]);
        match self.multiple(&a, &b) {
            Some(positive) => {
                let either = matches!(sign_a, Relation::Equal | Relation::Unequal);
                sign_a == sign_b && (either || positive) || (*sign_a == sign_b.flipped() && !either && !positive)
            }
            None => false,
        }
    }

    /// Whether `a` is `b` times a number other than 0, and whether that number is positive.
    fn multiple(&self, a: &Expr, b: &Expr) -> Option<bool> {
        if !a.has_symbol() || !b.has_symbol() {
            return None;
        }
        let inexact = |expr: &Expr| exact::evaluate(expr, self.point(0)).is_none();
        if inexact(a) || inexact(b) {
            let (a0, b0) = (float::evaluate(a, self.point(0))?, float::evaluate(b, self.point(0))?);
            if a0.is_zero() || b0.is_zero() {
                return None;
            }
            for index in 1..4 {
                let (an, bn) = (float::evaluate(a, self.point(index * 2))?, float::evaluate(b, self.point(index * 2))?);
                if an.minus(a0)?.is_zero() || !a0.multiply(bn)?.agrees(an.multiply(b0)?) {
                    return None;
                }
            }
            return Some((a0.value / b0.value).re > 0.0);
        }
        let (a0, b0) = (exact::evaluate(a, self.point(0))?, exact::evaluate(b, self.point(0))?);
        if a0.is_zero() || b0.is_zero() {
            return None;
        }
        let mut constant = true;
        for index in 1..5 {
            let (an, bn) = (exact::evaluate(a, self.point(index))?, exact::evaluate(b, self.point(index))?);
            constant &= an == a0;
            if a0.multiply(&bn)? != an.multiply(&b0)? {
                return None;
            }
        }
        let ratio = a0.divide(&b0)?;
        (!constant).then(|| ratio.as_real().is_some_and(|ratio| !ratio.is_negative()))
    }

    /// Compares values: exactly if both are rational functions, otherwise at several points in
    /// double precision.
    fn scalars(&self, a: &Expr, b: &Expr) -> bool {
        if let (Some(a), Some(b)) = (infinite(a), infinite(b)) {
            return a == b;
        }
        let closed = !a.has_symbol() && !b.has_symbol();
        if closed && let Some(equal) = self.decimal_equals(a, b) {
            return equal;
        }
        let wanted = if a.any(&is_open) || b.any(&is_open) { DEFINED } else { 1 };
        let mut count = 0;
        for index in 0..POINTS {
            let point = self.point(index);
            if let (Some(a), Some(b)) = (exact::evaluate(a, point), exact::evaluate(b, point)) {
                if a != b {
                    return false;
                }
                count += 1;
                if count == wanted {
                    return true;
                }
            }
        }
        self.nearly(a, b, if closed { 1 } else { DEFINED })
    }

    /// Compares a decimal with a number without a finite decimal expansion; `None` for other
    /// expressions.
    fn decimal_equals(&self, a: &Expr, b: &Expr) -> Option<bool> {
        let (decimal, digits, other) = match (decimal(a), decimal(b)) {
            (Some(digits), None) => (a, digits, b),
            (None, Some(digits)) => (b, digits, a),
            _ => return None,
        };
        let endless = |expr: &Expr| {
            let value = exact::evaluate(expr, self.point(0))?;
            Some(!value.as_real()?.has_finite_decimals())
        };
        let transcendental = other.any(&|part| matches!(part, Expr::Constant(_)));
        if !transcendental && endless(other) == Some(false) {
            return None;
        }
        let (x, y) = (float::evaluate(decimal, self.point(0))?, float::evaluate(other, self.point(0))?);
        if digits < DIGITS {
            // `\cos 60^\circ` is 0.5; any rounding differs by more than the tolerance.
            return Some(digits <= PRECISE && x.agrees(y));
        }
        let unit = 10_f64.powi(1 - i32::try_from(digits.min(15)).ok()?);
        Some(y.is_real() && (x.value - y.value).norm() <= unit * y.value.norm() + 4.0 * y.error)
    }

    /// The product of a product's exact factors, and the remaining factors.
    fn factored(&self, expr: &Expr) -> (Option<Gaussian>, Expr) {
        let parts: Vec<Expr> = match expr {
            Expr::Product(parts) => parts.clone(),
            Expr::Negative(inside) => vec![Expr::whole(-1), (**inside).clone()],
            other => vec![other.clone()],
        };
        let mut factor = Some(Gaussian::real(Rational::whole(1)));
        let mut rest = Vec::new();
        for part in parts {
            let value = if part.any(&is_open) { None } else { exact::evaluate(&part, self.point(0)) };
            match value {
                Some(value) => factor = factor.and_then(|factor| factor.multiply(&value)),
                None => rest.push(part),
            }
        }
        (factor, Expr::Product(rest))
    }

    fn nearly(&self, a: &Expr, b: &Expr, wanted: usize) -> bool {
        let long = |part: &Expr| match part {
            Expr::Number { value, .. } => {
                let size = value.words();
                size > 2 || significant(value.as_f64()) > PRECISE
            }
            _ => false,
        };
        if a.any(&long) || b.any(&long) {
            return false;
        }
        // `2^{50}\sqrt{3}`: the exact factor is compared exactly.
        let ((factor_a, rest_a), (factor_b, rest_b)) = (self.factored(a), self.factored(b));
        let (a, b) = if factor_a.is_some() && factor_a == factor_b { (&rest_a, &rest_b) } else { (a, b) };
        let logarithm = |part: &Expr| matches!(part, Expr::Call(UnaryFunction::Ln | UnaryFunction::Log, _));
        let logarithms = a.any(&logarithm) || b.any(&logarithm);
        let mut count = 0;
        for index in 0..POINTS {
            let point = self.point(index);
            let (Some(x), Some(y)) = (float::evaluate(a, point), float::evaluate(b, point)) else { continue };
            if wanted == 1 && x.value.norm() > LARGE {
                return false;
            }
            if x.agrees(y) {
                count += 1;
            } else if index.is_multiple_of(2)
                || (x.is_real() && y.is_real())
                || (logarithms && x.is_real() != y.is_real())
            {
                // At points with negative coordinates roots and logarithms may use different
                // branches; `\ln(x^2)` is defined where `2\ln x` is not.
                return false;
            }
            if wanted == 1 {
                break;
            }
        }
        count >= wanted && (wanted == 1 || self.folds_alike(a, b))
    }

    /// Whether two expressions with absolute values or roots do not differ far from 0, where
    /// `|x - 30|` is not `30 - x` as at the points of [`Self::nearly`].
    fn folds_alike(&self, a: &Expr, b: &Expr) -> bool {
        let absolute = |part: &Expr| matches!(part, Expr::Call(UnaryFunction::Abs, _));
        let root = |part: &Expr| match part {
            Expr::Call(function, _) => *function == UnaryFunction::Root,
            Expr::Power(_, exponent) => matches!(**exponent, Expr::Quotient(..)),
            _ => false,
        };
        let roots = a.any(&root) || b.any(&root);
        let differ = |index: u32| {
            // Roots of negative numbers: `\sqrt{x-9}\sqrt{x+9}` is `\sqrt{x^2-81}` where it is
            // real.
            if roots && !index.is_multiple_of(2) {
                return false;
            }
            let point = self.point(index);
            let (Some(x), Some(y)) = (float::evaluate(a, point), float::evaluate(b, point)) else { return false };
            x.is_real() && y.is_real() && x.differs(y)
        };
        !(roots || a.any(&absolute) || b.any(&absolute)) || !(POINTS..POINTS + FAR).any(differ)
    }
}

/// The significant decimal digits of a double.
fn significant(value: f64) -> usize {
    let text = format!("{value:e}");
    let mantissa = text.split('e').next().unwrap_or_default();
    mantissa.bytes().filter(u8::is_ascii_digit).count()
}

fn is_open(expr: &Expr) -> bool {
    matches!(expr, Expr::Symbol(_) | Expr::Constant(Constant::Pi | Constant::E))
}

/// The significant digits of a decimal literal.
fn decimal(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Number { digits, .. } if *digits > 0 => Some(*digits),
        Expr::Negative(inside) => decimal(inside),
        _ => None,
    }
}

/// `\infty` with its sign.
fn infinite(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Constant(Constant::Infinity) => Some(true),
        Expr::Negative(inside) => infinite(inside).map(|sign| !sign),
        _ => None,
    }
}

fn bare(expr: &Expr) -> (&Expr, Option<&str>) {
    match expr {
        Expr::Unit(inside, unit) => (inside, Some(unit)),
        other => (other, None),
    }
}

fn is_percent(unit: &str) -> bool {
    unit.split(' ').any(|word| word == "%")
}

/// `dollar` equals `dollar`, and `degree` equals `degree c`. "Pound" and `¥` are two units each.
fn same_unit(a: &str, b: &str) -> bool {
    let ambiguous = |a: &str, b: &str| matches!((a, b), ("pound", "lb" | "gbp") | ("¥", "yen" | "yuan"));
    a == b || a.split(' ').next() == Some(b) || b.split(' ').next() == Some(a) || ambiguous(a, b) || ambiguous(b, a)
}

fn times(value: &Expr, unit: &str) -> Expr {
    Expr::Product(vec![value.clone(), Expr::Symbol(unit.to_owned())])
}
