//! Exact rational and Gaussian rational numbers of bounded size.
//!
//! Operations return `None` if the result is undefined or longer than [`LIMIT`] bits, so a chain of
//! powers ends early instead of filling the memory.

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Maximum length of a numerator or denominator in bits.
const LIMIT: u64 = 4096;

/// A fraction in lowest terms; the denominator is positive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rational {
    numerator: BigInt,
    denominator: BigInt,
}

impl Rational {
    pub(super) fn new(numerator: BigInt, denominator: BigInt) -> Option<Self> {
        if denominator.is_zero() || numerator.bits() > LIMIT || denominator.bits() > LIMIT {
            return None;
        }
        let divisor = numerator.gcd(&denominator);
        let divisor = if denominator.sign() == Sign::Minus { -divisor } else { divisor };
        Some(Self { numerator: numerator / &divisor, denominator: denominator / &divisor })
    }

    pub(super) fn whole(value: impl Into<BigInt>) -> Self {
        Self { numerator: value.into(), denominator: BigInt::one() }
    }

    /// `digits` in base 10 divided by `10^places`.
    pub(super) fn decimal(digits: &str, places: u32) -> Option<Self> {
        let numerator = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        Self::new(numerator, power_of_ten(places)?)
    }

    pub(super) fn add(&self, other: &Self) -> Option<Self> {
        let numerator = &self.numerator * &other.denominator + &other.numerator * &self.denominator;
        Self::new(numerator, &self.denominator * &other.denominator)
    }

    pub(super) fn negative(&self) -> Self {
        Self { numerator: -&self.numerator, denominator: self.denominator.clone() }
    }

    pub(super) fn subtract(&self, other: &Self) -> Option<Self> {
        self.add(&other.negative())
    }

    pub(super) fn multiply(&self, other: &Self) -> Option<Self> {
        Self::new(&self.numerator * &other.numerator, &self.denominator * &other.denominator)
    }

    pub(super) fn divide(&self, other: &Self) -> Option<Self> {
        Self::new(&self.numerator * &other.denominator, &self.denominator * &other.numerator)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.numerator.is_zero()
    }

    pub(super) fn is_negative(&self) -> bool {
        self.numerator.is_negative()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.denominator.is_one()
    }

    /// The value as an `i64`, if it is whole and in range.
    pub(super) fn as_i64(&self) -> Option<i64> {
        self.is_whole().then(|| self.numerator.to_i64()).flatten()
    }

    /// The nearest double; infinite if the value is out of range.
    pub(super) fn as_f64(&self) -> f64 {
        let (above, below) = (self.numerator.bits(), self.denominator.bits());
        if above < 1000 && below < 1000 {
            return self.numerator.to_f64().unwrap_or(f64::NAN) / self.denominator.to_f64().unwrap_or(f64::NAN);
        }
        // Both are shortened to 80 bits, then the exponent is restored.
        let (cut_above, cut_below) = (above.saturating_sub(80), below.saturating_sub(80));
        let quotient = (&self.numerator >> cut_above).to_f64().unwrap_or(f64::NAN)
            / (&self.denominator >> cut_below).to_f64().unwrap_or(f64::NAN);
        let exponent = (cut_above as i64 - cut_below as i64).clamp(-5000, 5000);
        quotient * 2_f64.powi(exponent as i32)
    }

    /// Whether the decimal expansion ends.
    pub(super) fn has_finite_decimals(&self) -> bool {
        let mut rest = self.denominator.clone();
        for prime in [2_u8, 5] {
            while (&rest % prime).is_zero() {
                rest /= prime;
            }
        }
        rest.is_one()
    }

    /// The value raised to an integer power.
    pub(super) fn power(&self, exponent: i64) -> Option<Self> {
        let length = self.numerator.bits().max(self.denominator.bits());
        let count = u32::try_from(exponent.unsigned_abs()).ok()?;
        if length > 1 && length.saturating_sub(1).saturating_mul(u64::from(count)) > LIMIT {
            return None;
        }
        if exponent < 0 {
            Self::new(self.denominator.pow(count), self.numerator.pow(count))
        } else {
            Self::new(self.numerator.pow(count), self.denominator.pow(count))
        }
    }

    /// The exact real root of the given degree, if it is rational.
    pub(super) fn root(&self, degree: u32) -> Option<Self> {
        if degree == 0 || (self.is_negative() && degree.is_multiple_of(2)) {
            return None;
        }
        let (above, below) = (self.numerator.nth_root(degree), self.denominator.nth_root(degree));
        let exact = above.pow(degree) == self.numerator && below.pow(degree) == self.denominator;
        exact.then_some(Self { numerator: above, denominator: below })
    }

    pub(super) fn floor(&self) -> Self {
        Self::whole(self.numerator.div_floor(&self.denominator))
    }

    /// The length of the value in machine words.
    pub(super) fn words(&self) -> u64 {
        (self.numerator.bits() + self.denominator.bits()) / 64 + 1
    }

    /// The cost of an operation on the value: reducing a fraction is quadratic in its length.
    pub(super) fn cost(&self) -> u64 {
        let length = self.words();
        1 + length + length * length / 4
    }
}

impl PartialOrd for Rational {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rational {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.numerator * &other.denominator).cmp(&(&other.numerator * &self.denominator))
    }
}

/// `10^places`, up to the limit.
fn power_of_ten(places: u32) -> Option<BigInt> {
    (u64::from(places) * 4 < LIMIT).then(|| BigInt::from(10).pow(places))
}

/// A number `re + im·i` with rational parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gaussian {
    pub(super) re: Rational,
    pub(super) im: Rational,
}

impl Gaussian {
    pub(super) fn real(re: Rational) -> Self {
        Self { re, im: Rational::whole(0) }
    }

    pub(super) fn imaginary_unit() -> Self {
        Self { re: Rational::whole(0), im: Rational::whole(1) }
    }

    /// As [`Rational::cost`].
    pub(super) fn cost(&self) -> u64 {
        self.re.cost() + self.im.cost()
    }

    pub(super) fn as_real(&self) -> Option<&Rational> {
        self.im.is_zero().then_some(&self.re)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.re.is_zero() && self.im.is_zero()
    }

    pub(super) fn add(&self, other: &Self) -> Option<Self> {
        Some(Self { re: self.re.add(&other.re)?, im: self.im.add(&other.im)? })
    }

    pub(super) fn negative(&self) -> Self {
        Self { re: self.re.negative(), im: self.im.negative() }
    }

    pub(super) fn multiply(&self, other: &Self) -> Option<Self> {
        if let (Some(a), Some(b)) = (self.as_real(), other.as_real()) {
            return Some(Self::real(a.multiply(b)?));
        }
        Some(Self {
            re: self.re.multiply(&other.re)?.subtract(&self.im.multiply(&other.im)?)?,
            im: self.re.multiply(&other.im)?.add(&self.im.multiply(&other.re)?)?,
        })
    }

    pub(super) fn divide(&self, other: &Self) -> Option<Self> {
        if let (Some(a), Some(b)) = (self.as_real(), other.as_real()) {
            return Some(Self::real(a.divide(b)?));
        }
        let norm = other.re.multiply(&other.re)?.add(&other.im.multiply(&other.im)?)?;
        let conjugate = Self { re: other.re.clone(), im: other.im.negative() };
        let product = self.multiply(&conjugate)?;
        Some(Self { re: product.re.divide(&norm)?, im: product.im.divide(&norm)? })
    }

    pub(super) fn power(&self, exponent: i64) -> Option<Self> {
        if let Some(real) = self.as_real() {
            return Some(Self::real(real.power(exponent)?));
        }
        if exponent.unsigned_abs() > 1000 {
            return None;
        }
        let mut result = Self::real(Rational::whole(1));
        let (mut base, mut rest) = (self.clone(), exponent.unsigned_abs());
        while rest > 0 {
            if rest & 1 == 1 {
                result = result.multiply(&base)?;
            }
            rest >>= 1;
            if rest > 0 {
                base = base.multiply(&base)?;
            }
        }
        if exponent < 0 { Self::real(Rational::whole(1)).divide(&result) } else { Some(result) }
    }
}
