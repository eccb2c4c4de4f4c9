//! Evaluates in double precision with a bound on the rounding error.
//!
//! Roots, logarithms and other functions have no exact value here. They are compared at several
//! points; each value carries a bound on its error, so that cancellation is not mistaken for zero.

use num_complex::Complex64;

use super::exact::Point;
use super::expr::{Constant, Expr, UnaryFunction};

/// A value and a bound on its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Approximate {
    pub(super) value: Complex64,
    pub(super) error: f64,
}

/// Twice the unit roundoff, because libm adds its own error.
const EPSILON: f64 = f64::EPSILON * 2.0;

/// Relative difference below which two evaluations are equal, in addition to their errors.
pub(super) const TOLERANCE: f64 = 1e-13;

/// Maximum relative error of a value that is compared.
const MAX_ERROR: f64 = 1e-9;

impl Approximate {
    fn rounded(value: Complex64, error: f64) -> Option<Self> {
        let error = error + EPSILON * value.norm();
        // Adding 0 removes the sign of -0.0, which would select the lower side of a branch cut.
        let value = value + Complex64::new(0.0, 0.0);
        (value.is_finite() && error.is_finite()).then_some(Self { value, error })
    }

    /// Whether both may be the same number and are accurate enough to tell.
    pub(super) fn agrees(self, other: Self) -> bool {
        let size = self.value.norm().max(other.value.norm());
        let error = self.error + other.error;
        error <= MAX_ERROR * size.max(1e-3) && (self.value - other.value).norm() <= TOLERANCE * size + 4.0 * error
    }

    /// Whether both can't be the same number.
    pub(super) fn differs(self, other: Self) -> bool {
        let size = self.value.norm().max(other.value.norm());
        (self.value - other.value).norm() > TOLERANCE * size + 4.0 * (self.error + other.error)
    }

    pub(super) fn is_real(self) -> bool {
        self.value.im.abs() <= 4.0 * self.error + TOLERANCE * self.value.norm()
    }

    pub(super) fn is_zero(self) -> bool {
        self.value.norm() <= 4.0 * self.error
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        Self::rounded(self.value - other.value, self.error + other.error)
    }

    fn add(self, other: Self) -> Option<Self> {
        Self::rounded(self.value + other.value, self.error + other.error)
    }

    pub(super) fn multiply(self, other: Self) -> Option<Self> {
        let error = self.value.norm() * other.error + other.value.norm() * self.error + self.error * other.error;
        Self::rounded(self.value * other.value, error)
    }

    fn divide(self, other: Self) -> Option<Self> {
        let below = other.value.norm();
        if below <= 2.0 * other.error {
            return None;
        }
        let quotient = self.value / other.value;
        Self::rounded(quotient, 2.0 * (self.error + quotient.norm() * other.error) / below)
    }

    /// A negative real number exactly on the branch cut, from rounding errors beside it.
    fn on_cut(self) -> Self {
        if self.value.re < 0.0 && self.is_real() {
            return Self { value: Complex64::new(self.value.re, 0.0), ..self };
        }
        self
    }

    /// A function's value; its error is the argument's error times the slope.
    fn apply(self, function: impl Fn(Complex64) -> Complex64) -> Option<Self> {
        let value = function(self.value);
        let step = (self.value.norm() * 1e-7).max(1e-9);
        let slope = ((function(self.value + step) - value) / step).norm();
        let slope = if slope.is_finite() { slope } else { ((function(self.value - step) - value) / step).norm() };
        Self::rounded(value, slope * self.error)
    }
}

/// Number of points near 0, and of those after them up to 60 and up to 2400, where `|x - 30|` is
/// not `30 - x`.
pub(super) const POINTS: u32 = 8;
pub(super) const FAR: u32 = 16;

/// The value at the point; `None` if it is undefined, infinite or unknown.
pub(super) fn evaluate(expr: &Expr, point: Point) -> Option<Approximate> {
    point.budget.spend(2)?;
    let each = |part: &Expr| evaluate(part, point);
    let real = |value: f64| Approximate::rounded(Complex64::new(value, 0.0), 0.0);
    match expr {
        Expr::Number { value, .. } => real(value.as_f64()),
        Expr::Symbol(name) => {
            let value = point.value(name).as_f64();
            real(match point.index {
                // Between -2 and 2, so that powers and exponentials stay in range.
                ..POINTS => 0.31 * value.signum() + value / 40.0,
                index if index < POINTS + FAR / 2 => value,
                _ => value * 40.0,
            })
        }
        Expr::Constant(Constant::Pi) => real(std::f64::consts::PI),
        Expr::Constant(Constant::E) => real(std::f64::consts::E),
        Expr::Constant(Constant::I) => Approximate::rounded(Complex64::i(), 0.0),
        Expr::Sum(parts) => parts.iter().try_fold(real(0.0)?, |total, part| total.add(each(part)?)),
        Expr::Product(parts) => parts.iter().try_fold(real(1.0)?, |total, part| total.multiply(each(part)?)),
        Expr::Quotient(above, below) => each(above)?.divide(each(below)?),
        Expr::Negative(inside) => {
            let inside = each(inside)?;
            Approximate::rounded(-inside.value, inside.error)
        }
        Expr::Power(base, exponent) => power(each(base)?, each(exponent)?),
        Expr::Call(function, arguments) => call(*function, &arguments.iter().map(each).collect::<Option<Vec<_>>>()?),
        _ => None,
    }
}

fn power(base: Approximate, exponent: Approximate) -> Option<Approximate> {
    let whole = exponent.value.re.round();
    if exponent.error <= EPSILON * 2.0 * whole.abs()
        && exponent.value == Complex64::new(whole, 0.0)
        && whole.abs() <= 64.0
    {
        let value = base.value.powi(whole as i32);
        let error = whole.abs() * value.norm() * base.error / base.value.norm().max(f64::MIN_POSITIVE);
        return Approximate::rounded(value, error * 2.0);
    }
    if base.is_zero() {
        return None;
    }
    // base ^ exponent = exp(exponent * ln base)
    exponent.multiply(base.on_cut().apply(Complex64::ln)?)?.apply(Complex64::exp)
}

fn call(function: UnaryFunction, arguments: &[Approximate]) -> Option<Approximate> {
    let inverse = |x: Approximate| Approximate::rounded(Complex64::new(1.0, 0.0), 0.0)?.divide(x);
    match (function, arguments) {
        (UnaryFunction::Sin, [x]) => x.apply(Complex64::sin),
        (UnaryFunction::Cos, [x]) => x.apply(Complex64::cos),
        (UnaryFunction::Tan, [x]) => x.apply(Complex64::tan),
        (UnaryFunction::Cot, [x]) => inverse(x.apply(Complex64::tan)?),
        (UnaryFunction::Sec, [x]) => inverse(x.apply(Complex64::cos)?),
        (UnaryFunction::Csc, [x]) => inverse(x.apply(Complex64::sin)?),
        (UnaryFunction::Arcsin, [x]) => x.apply(Complex64::asin),
        (UnaryFunction::Arccos, [x]) => x.apply(Complex64::acos),
        (UnaryFunction::Arctan, [x]) => x.apply(Complex64::atan),
        (UnaryFunction::Sinh, [x]) => x.apply(Complex64::sinh),
        (UnaryFunction::Cosh, [x]) => x.apply(Complex64::cosh),
        (UnaryFunction::Tanh, [x]) => x.apply(Complex64::tanh),
        (UnaryFunction::Exp, [x]) => x.apply(Complex64::exp),
        (UnaryFunction::Ln, [x]) if !x.is_zero() => x.on_cut().apply(Complex64::ln),
        (UnaryFunction::Log, [base, x]) if !x.is_zero() && !base.is_zero() => {
            x.on_cut().apply(Complex64::ln)?.divide(base.on_cut().apply(Complex64::ln)?)
        }
        (UnaryFunction::Abs, [x]) => Approximate::rounded(Complex64::new(x.value.norm(), 0.0), x.error),
        (UnaryFunction::Root, [degree, x]) => root(*degree, *x),
        _ => None,
    }
}

/// The real root of a negative number if the degree is odd; otherwise the principal one.
fn root(degree: Approximate, x: Approximate) -> Option<Approximate> {
    let count = degree.value.re.round();
    if degree.value != Complex64::new(count, 0.0) || !(1.0..=64.0).contains(&count) {
        return power(x, Approximate::rounded(Complex64::new(1.0, 0.0), 0.0)?.divide(degree)?);
    }
    if x.value.norm() == 0.0 && x.error == 0.0 {
        return Some(x);
    }
    if x.is_zero() {
        return None;
    }
    let count = count as i64;
    if count == 2 {
        return x.on_cut().apply(Complex64::sqrt);
    }
    if x.is_real() && x.value.re < 0.0 && count % 2 == 1 {
        let of = x.apply(|x| Complex64::new(-(-x.re).powf(1.0 / count as f64), 0.0))?;
        return Some(of);
    }
    power(x, Approximate::rounded(Complex64::new(1.0 / count as f64, 0.0), 0.0)?)
}
