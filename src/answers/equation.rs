//! Equations and inequalities: chains of terms, and the values they assign.

use super::expr::{Expr, Relation};

/// A chain of terms with signs between them.
pub(super) struct Equation<'a> {
    pub(super) terms: Vec<&'a Expr>,
    pub(super) signs: Vec<Relation>,
}

impl<'a> Equation<'a> {
    /// `x = 1/3 \approx 0.33` is parsed without its approximation.
    pub(super) fn of(expr: &'a Expr) -> Option<Self> {
        let Expr::Related { first, rest } = expr else { return None };
        let mut terms = vec![&**first];
        let mut signs = Vec::new();
        for (sign, term) in rest {
            if *sign == Relation::Approximate && !signs.is_empty() {
                break;
            }
            signs.push(if *sign == Relation::Approximate { Relation::Equal } else { *sign });
            terms.push(term);
        }
        Some(Self { terms, signs })
    }

    pub(super) fn flipped(&self) -> Self {
        Self {
            terms: self.terms.iter().rev().copied().collect(),
            signs: self.signs.iter().rev().map(|sign| sign.flipped()).collect(),
        }
    }

    fn all_equal(&self) -> bool {
        self.signs.iter().all(|sign| *sign == Relation::Equal)
    }

    /// The name and the value of `x = … = 5`.
    pub(super) fn assignment(&self) -> Option<(&'a Expr, &'a Expr)> {
        let (last, before) = self.terms.split_last()?;
        let name = before.iter().find(|term| term.is_name())?;
        self.all_equal().then_some((name, last))
    }

    /// The value compared with a bare value: that of an assignment, or the end of a chain of
    /// numbers.
    pub(super) fn value(&self) -> Option<Expr> {
        let closed = self.all_equal() && self.terms.iter().all(|term| !term.has_symbol());
        let last = self.terms.last()?;
        (self.assignment().is_some() || closed).then(|| (*last).clone())
    }
}
