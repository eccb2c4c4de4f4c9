//! Compares answers with several parts: lists, sets, points, intervals, unions, matrices, and
//! answers with `±`.

use super::compare::MathComparison;
use super::expr::{Constant, Expr, Relation, UnaryFunction};

/// Maximum length of a list that is compared in any order.
const MAX_LENGTH: usize = 200;

/// The verdict, or `None` if neither side has parts.
pub(super) fn compare(by: &MathComparison, answer: &Expr, reference: &Expr) -> Option<bool> {
    let (answer, reference) = (opened(answer), opened(reference));
    let (answer, reference) = (&answer, &reference);
    // `(-2, 7)` and `x \in (-2, 7)` equal the reference `-2 < x < 7`.
    if let (Some(region), true) = (membership(answer), membership(reference).is_none() && is_relation(reference)) {
        return Some(by.equal(region, reference));
    }
    if let (true, Some(interval)) = (is_region(answer), as_interval(reference)) {
        return Some(by.equal(answer, &interval));
    }
    match (answer, reference) {
        (Expr::Tuple { open, close, items }, Expr::Tuple { open: begin, close: end, items: others }) => {
            Some(open == begin && close == end && by.each(items, others))
        }
        // `1, 2` equals the point `(1, 2)`; the order counts.
        (Expr::List(list), Expr::Tuple { open: '(', close: ')', items })
        | (Expr::Tuple { open: '(', close: ')', items }, Expr::List(list)) => {
            Some(if matches!(answer, Expr::List(_)) { by.each(list, items) } else { by.each(items, list) })
        }
        (Expr::List(a), Expr::List(b)) => Some(lists(by, a, b)),
        (Expr::Set(a), Expr::Set(b) | Expr::List(b)) | (Expr::List(a), Expr::Set(b)) => {
            Some(unordered(by, &distinct(by, a), &distinct(by, b)))
        }
        (Expr::Union(a), Expr::Union(b)) => Some(unordered(by, a, b)),
        // The element alone equals a set with one element.
        (Expr::Set(a), _) if !is_relation(reference) => Some(matches!(a.as_slice(), [a] if by.equal(a, reference))),
        (_, Expr::Set(b)) if !is_relation(answer) => Some(matches!(b.as_slice(), [b] if by.equal(answer, b))),
        (Expr::Matrix(a), Expr::Matrix(b)) => Some(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| by.each(a, b))),
        _ if is_relation(answer) != is_relation(reference) => None,
        _ if has_parts(answer) || has_parts(reference) => Some(false),
        _ => None,
    }
}

fn is_relation(expr: &Expr) -> bool {
    matches!(expr, Expr::Related { .. })
}

fn has_parts(expr: &Expr) -> bool {
    matches!(expr, Expr::Tuple { .. } | Expr::Set(_) | Expr::List(_) | Expr::Union(_) | Expr::Matrix(_))
}

/// The region of `x \in [0, 1]`.
fn membership(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Related { first, rest } if first.is_name() => match rest.as_slice() {
            [(Relation::Equal | Relation::In, region)] if is_region(region) => Some(region),
            _ => None,
        },
        _ => None,
    }
}

fn is_region(expr: &Expr) -> bool {
    match expr {
        Expr::Tuple { items, .. } => items.len() == 2,
        Expr::Union(parts) => parts.iter().all(|part| is_region(part) || matches!(part, Expr::Set(_))),
        _ => false,
    }
}

/// Expands `±` into its two readings, adds matrices, and replaces sets by their elements.
fn opened(expr: &Expr) -> Expr {
    match expr {
        Expr::List(items) => Expr::List(items.iter().flat_map(Expr::readings).collect()),
        Expr::Set(items) => Expr::Set(items.iter().flat_map(Expr::readings).collect()),
        Expr::Sum(_) | Expr::Negative(_) => added(expr).unwrap_or_else(|| listed(expr)),
        other => listed(other),
    }
}

fn listed(expr: &Expr) -> Expr {
    let mut readings = expr.readings();
    match (readings.len(), readings.pop()) {
        (1, Some(only)) => only,
        (_, Some(last)) => {
            readings.push(last);
            Expr::List(readings)
        }
        (_, None) => expr.clone(),
    }
}

/// A sum of matrices as one matrix.
fn added(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Matrix(_) => Some(expr.clone()),
        Expr::Negative(inside) => {
            let Expr::Matrix(rows) = added(inside)? else { return None };
            let negated = |row: Vec<Expr>| row.into_iter().map(Expr::negated).collect();
            Some(Expr::Matrix(rows.into_iter().map(negated).collect()))
        }
        Expr::Sum(terms) => {
            let mut terms = terms.iter().map(added);
            let Expr::Matrix(mut total) = terms.next()?? else { return None };
            for term in terms {
                let Expr::Matrix(rows) = term? else { return None };
                if rows.len() != total.len() || rows.iter().zip(&total).any(|(a, b)| a.len() != b.len()) {
                    return None;
                }
                for (cell, other) in total.iter_mut().flatten().zip(rows.into_iter().flatten()) {
                    *cell = Expr::Sum(vec![cell.clone(), other]);
                }
            }
            Some(Expr::Matrix(total))
        }
        _ => None,
    }
}

/// Lists without brackets: in any order, unless only one side names its values. An answer may
/// repeat an element.
fn lists(by: &MathComparison, a: &[Expr], b: &[Expr]) -> bool {
    let names_a: Vec<&Expr> = a.iter().filter_map(name).collect();
    let names_b: Vec<&Expr> = b.iter().filter_map(name).collect();
    let several = |names: &[&Expr]| names.windows(2).any(|pair| pair[0] != pair[1]);
    if (names_a.is_empty() && several(&names_b)) || (names_b.is_empty() && several(&names_a)) {
        return by.each(a, b);
    }
    unordered(by, a, b) || (a.len() > b.len() && unordered(by, &distinct(by, a), b))
}

/// The `x` of `x = 5`.
fn name(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Related { first, .. } if first.is_name() => Some(first),
        _ => None,
    }
}

fn unordered(by: &MathComparison, a: &[Expr], b: &[Expr]) -> bool {
    if a.len() != b.len() || a.len() > MAX_LENGTH {
        return false;
    }
    let mut left: Vec<&Expr> = b.iter().collect();
    a.iter().all(|item| match left.iter().position(|other| by.equal(item, other)) {
        Some(index) => {
            left.swap_remove(index);
            true
        }
        None => false,
    })
}

fn distinct(by: &MathComparison, items: &[Expr]) -> Vec<Expr> {
    let mut kept: Vec<Expr> = Vec::new();
    for item in items.iter().take(MAX_LENGTH + 1) {
        if !kept.iter().any(|other| by.equal(item, other)) {
            kept.push(item.clone());
        }
    }
    kept
}

/// `a < x <= b`, `x > a` and `a <= |x| <= b` as intervals.
fn as_interval(expr: &Expr) -> Option<Expr> {
    let Expr::Related { first, rest } = expr else { return None };
    let mut terms: Vec<&Expr> = std::iter::once(&**first).chain(rest.iter().map(|(_, term)| term)).collect();
    let mut signs: Vec<Relation> = rest.iter().map(|(sign, _)| *sign).collect();
    if matches!(signs.first()?, Relation::Greater | Relation::GreaterEqual) {
        terms.reverse();
        signs = signs.iter().rev().map(|sign| sign.flipped()).collect();
    }
    if !signs.iter().all(|sign| matches!(sign, Relation::Less | Relation::LessEqual)) {
        return None;
    }
    let is_open = |index: usize| signs[index] == Relation::Less;
    let infinity = Expr::Constant(Constant::Infinity);
    let (low, open, variable, close, high) = match terms[..] {
        [low, variable, high] => (low.clone(), is_open(0), variable, is_open(1), high.clone()),
        [variable, high] if variable.has_symbol() && is_absolute(variable) => {
            (high.clone().negated(), is_open(0), inside(variable), is_open(0), high.clone())
        }
        [variable, high] if variable.has_symbol() => (infinity.negated(), true, variable, is_open(0), high.clone()),
        [low, variable] => (low.clone(), is_open(0), variable, true, infinity),
        _ => return None,
    };
    let interval = |low: Expr, open: bool, close: bool, high: Expr| Expr::Tuple {
        open: if open { '(' } else { '[' },
        close: if close { ')' } else { ']' },
        items: vec![low, high],
    };
    if low.has_symbol() || high.has_symbol() {
        return None;
    }
    if is_absolute(variable) && matches!(inside(variable), Expr::Symbol(_)) {
        let mirrored = interval(high.clone().negated(), close, open, low.clone().negated());
        return Some(Expr::Union(vec![mirrored, interval(low, open, close, high)]));
    }
    matches!(variable, Expr::Symbol(_)).then(|| interval(low, open, close, high))
}

fn is_absolute(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(UnaryFunction::Abs, _))
}

fn inside(expr: &Expr) -> &Expr {
    match expr {
        Expr::Call(UnaryFunction::Abs, parts) => parts.first().unwrap_or(expr),
        other => other,
    }
}
