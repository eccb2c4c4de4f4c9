//! Equations and inequalities: chains of terms, and the values they assign.

use super::compare::MathComparison;
use super::expr::{Expr, Relation};

/// A chain of terms with signs between them.
pub(super) struct Equation<'a> {
    pub(super) terms: Vec<&'a Expr>,
    pub(super) signs: Vec<Relation>,
    /// The rounded value after the last term: `x = 1/3 \approx 0.33`.
    approximation: Option<&'a Expr>,
}

impl<'a> Equation<'a> {
    pub(super) fn of(expr: &'a Expr) -> Option<Self> {
        let Expr::Related { first, rest } = expr else { return None };
        let mut terms = vec![&**first];
        let mut signs = Vec::new();
        for (sign, term) in rest {
            if *sign == Relation::Approximate && (!signs.is_empty() || !first.has_symbol()) {
                return Some(Self { terms, signs, approximation: Some(term) });
            }
            signs.push(if *sign == Relation::Approximate { Relation::Equal } else { *sign });
            terms.push(term);
        }
        Some(Self { terms, signs, approximation: None })
    }

    pub(super) fn flipped(&self) -> Self {
        Self {
            terms: self.terms.iter().rev().copied().collect(),
            signs: self.signs.iter().rev().map(|sign| sign.flipped()).collect(),
            approximation: None,
        }
    }

    fn all_equal(&self) -> bool {
        self.signs.iter().all(|sign| matches!(sign, Relation::Equal | Relation::In))
    }

    /// The name and the value of `x = … = 5`.
    pub(super) fn assignment(&self) -> Option<(&'a Expr, &'a Expr)> {
        let (last, before) = self.terms.split_last()?;
        let name = before.iter().find(|term| term.is_name())?;
        self.all_equal().then_some((name, last))
    }

    /// The values that a bare value may equal: the value of an assignment or of a chain of equal
    /// numbers (`2 + 3 = 5`), and its correctly rounded value.
    pub(super) fn values(&self, by: &MathComparison) -> Vec<&'a Expr> {
        let Some(last) = self.terms.last() else { return Vec::new() };
        let closed = || self.all_equal() && self.terms.iter().all(|term| !term.has_symbol() && by.equal(term, last));
        let honest = || self.approximation.is_none_or(|other| by.is_near(last, other));
        if self.assignment().is_none() && !(closed() && honest()) {
            return Vec::new();
        }
        let rounded = self.approximation.filter(|rounded| by.rounds_to(last, rounded));
        std::iter::once(*last).chain(rounded).collect()
    }
}
