//! Operators of Jinja2 with Python's results, as filters that translated templates call
//! (`operators`). What Python computes with tuples and ranges, and r1 does not, is an error.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::filters;
use super::numbers::number_of;
use super::python;
use super::size_limits::{ITEM, LONGEST, check_size};
use super::time_limit::{in_time, keep};
use super::values::Items;

pub(super) const SAME: &str = "r1_same";
pub(super) const IN: &str = "r1_in";
pub(super) const TIMES: &str = "r1_times";
pub(super) const FLOOR_DIVIDE: &str = "r1_floor_divide";
pub(super) const MODULO: &str = "r1_modulo";
pub(super) const TERM: &str = "r1_term";
pub(super) const SLICED: &str = "r1_sliced";
/// An operand of `a < b < c`.
pub(super) const PLAIN: &str = "r1_plain";

type Holds = fn(Ordering) -> bool;

/// The signs of an order, their filters, and the orders for which they hold.
pub(super) const ORDERS: [(&str, &str, Holds); 4] = [
    ("<", "r1_less", Ordering::is_lt),
    ("<=", "r1_less_or_same", Ordering::is_le),
    (">", "r1_more", Ordering::is_gt),
    (">=", "r1_more_or_same", Ordering::is_ge),
];

/// Nested values that are compared.
const DEPTH: usize = 200;

/// Registers the filters, and the tests with the same results.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(SAME, |a: &Value, b: &Value| same(a, b, 0));
    environment.add_filter(IN, |a: &Value, b: &Value| within(a, b));
    environment.add_filter(TIMES, times);
    environment.add_filter(FLOOR_DIVIDE, |a: &Value, b: &Value| divided(a, b).map(|(quotient, _)| quotient));
    environment.add_filter(MODULO, modulo);
    environment.add_filter(TERM, |value: Value| list_only(value, "added"));
    environment.add_filter(SLICED, |value: Value| list_only(value, "sliced"));
    environment.add_filter(PLAIN, |value: Value| {
        if value.kind() == ValueKind::Bool {
            return Err(refuse(format!("{} in a chain of comparisons: compare two values at a time", shown(&value))));
        }
        list_only(value, "in a chain of comparisons")
    });
    for name in ["eq", "equalto", "=="] {
        environment.add_test(name, |a: &Value, b: &Value| same(a, b, 0));
    }
    for name in ["ne", "!="] {
        environment.add_test(name, |a: &Value, b: &Value| same(a, b, 0).map(|same| !same));
    }
    for (sign, filter, holds) in ORDERS {
        environment.add_filter(filter, move |a: &Value, b: &Value| order(a, b, 0, sign).map(holds));
    }
}

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A value for messages.
fn shown(value: &Value) -> String {
    let text = python::str(value);
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Values with items, which Python tells apart.
#[derive(Clone, Copy, PartialEq)]
enum Sort {
    List,
    Tuple,
    Range,
    /// A view of a dictionary.
    View,
}

impl Sort {
    fn of(value: &Value) -> Option<Self> {
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return None;
        }
        Some(match value.downcast_object_ref::<Items>() {
            Some(items) if items.is_tuple() => Self::Tuple,
            Some(items) if items.range().is_some() => Self::Range,
            Some(_) => Self::View,
            None => Self::List,
        })
    }
}

/// A value that is no tuple or range, of which r1 has no sums, products and slices.
pub(super) fn list_only(value: Value, what: &str) -> Result<Value, Error> {
    match Sort::of(&value) {
        Some(Sort::Tuple) => Err(refuse(format!("the tuple {} is {what}: write a list", shown(&value)))),
        Some(Sort::Range) => Err(refuse(format!("{} is {what}: write {0}|list", shown(&value)))),
        _ => Ok(value),
    }
}

/// `a == b`
fn same(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    check(depth)?;
    match (Sort::of(a), Sort::of(b)) {
        (Some(one), Some(two)) => {
            if one != two || (a.len().is_some() && b.len().is_some() && a.len() != b.len()) {
                return Ok(false);
            }
            let mut others = b.try_iter()?;
            for item in a.try_iter()? {
                let Some(other) = others.next() else { return Ok(false) };
                if !same(&item, &other, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(others.next().is_none())
        }
        (None, None) if a.kind() == ValueKind::Map && b.kind() == ValueKind::Map => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for key in a.try_iter()? {
                let (one, two) = (a.get_item(&key)?, b.get_item(&key)?);
                // An undefined value is no entry.
                if two.is_undefined() != one.is_undefined() || !same(&one, &two, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (None, None) => Ok(a == b),
        _ => Ok(false),
    }
}

fn check(depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(refuse(format!("values of more than {DEPTH} levels are compared")));
    }
    in_time()
}

/// `a in b`
fn within(a: &Value, b: &Value) -> Result<bool, Error> {
    match b.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in b.try_iter()? {
                if same(a, &item, 0)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        ValueKind::Map if Sort::of(a).is_some() => Ok(false),
        ValueKind::Map => Ok(!b.get_item(a)?.is_undefined()),
        ValueKind::String if a.as_str().is_some() => {
            Ok(b.as_str().unwrap_or_default().contains(a.as_str().unwrap_or_default()))
        }
        _ => Err(refuse(format!("{} can't be in {}", shown(a), shown(b)))),
    }
}

/// The order of two values that Python orders.
fn order(a: &Value, b: &Value, depth: usize, sign: &str) -> Result<Ordering, Error> {
    check(depth)?;
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => Some(value.clone()),
        _ => None,
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        if [&a, &b].into_iter().any(|value| number_of(value).is_some_and(f64::is_nan)) {
            return Err(refuse(format!("nan is compared by `{sign}`")));
        }
        return Ok(a.cmp(&b));
    }
    match (Sort::of(a), Sort::of(b)) {
        (Some(one @ (Sort::List | Sort::Tuple)), Some(two)) if one == two => {
            let (mut ours, mut theirs) = (a.try_iter()?, b.try_iter()?);
            loop {
                match (ours.next(), theirs.next()) {
                    (Some(a), Some(b)) if same(&a, &b, depth + 1)? => {}
                    (Some(a), Some(b)) => return order(&a, &b, depth + 1, sign),
                    (None, None) => return Ok(Ordering::Equal),
                    (None, Some(_)) => return Ok(Ordering::Less),
                    (Some(_), None) => return Ok(Ordering::Greater),
                }
            }
        }
        _ => match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => Ok(a.cmp(b)),
            _ => Err(refuse(format!("`{sign}` is not supported between {} and {}", a.kind(), b.kind()))),
        },
    }
}

/// A whole number; `True` is 1.
pub(super) fn whole(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn of_whole(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

/// `a * b`: a product of numbers, or a text or a list that is repeated. In minijinja a list that is
/// repeated is made while it is read, and a filter would read as many items as the template wants.
fn times(a: &Value, b: &Value) -> Result<Value, Error> {
    in_time()?;
    let (whole_a, whole_b) = (whole(a), whole(b));
    if let (Some(x), Some(y)) = (number_of(a), number_of(b)) {
        let Some((x, y)) = whole_a.zip(whole_b) else { return Ok((x * y).into()) };
        return x.checked_mul(y).map(of_whole).ok_or_else(too_long);
    }
    let Some((repeated, count)) = whole_b.map(|count| (a, count)).or(whole_a.map(|count| (b, count))) else {
        return Err(refuse(format!("{} can't be multiplied by {}", a.kind(), b.kind())));
    };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = repeated.as_str() {
        check_size(text.len().saturating_mul(count))?;
        return Ok(text.repeat(count).into());
    }
    if Sort::of(&list_only(repeated.clone(), "multiplied")?) != Some(Sort::List) {
        return Err(refuse(format!("{} can't be multiplied by {}", a.kind(), b.kind())));
    }
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let length = items.len().saturating_mul(count);
    if length.saturating_mul(ITEM) > LONGEST || !keep(length * ITEM) {
        let why =
            format!("it makes a text or list of more than {LONGEST} bytes: it multiplies a list that is too long");
        return Err(Error::new(ErrorKind::OutOfFuel, why));
    }
    Ok(items.iter().cycle().take(length).cloned().collect())
}

fn too_long() -> Error {
    refuse("a whole number of more than 38 digits".to_owned())
}

/// `a // b` and `a % b` of numbers.
fn divided(a: &Value, b: &Value) -> Result<(Value, Value), Error> {
    let by_zero = || refuse(format!("{} is divided by zero", shown(a)));
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        if b == 0 {
            return Err(by_zero());
        }
        let (Some(quotient), Some(rest)) = (a.checked_div(b), a.checked_rem(b)) else {
            return Err(too_long());
        };
        let down = rest != 0 && (rest < 0) != (b < 0);
        return Ok((of_whole(quotient - i128::from(down)), of_whole(if down { rest + b } else { rest })));
    }
    let (Some(x), Some(y)) = (number_of(a), number_of(b)) else {
        return Err(refuse(format!("{} can't be divided by {}", a.kind(), b.kind())));
    };
    if y == 0.0 {
        return Err(by_zero());
    }
    // As in CPython's float_divmod.
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(y);
    } else if (y < 0.0) != (rest < 0.0) {
        rest += y;
        quotient -= 1.0;
    }
    let floored = if quotient == 0.0 {
        0.0_f64.copysign(x / y)
    } else {
        let down = quotient.floor();
        if quotient - down > 0.5 { down + 1.0 } else { down }
    };
    Ok((floored.into(), rest.into()))
}

/// `a % b`: the rest of a division, or a text with values.
fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    let Some(text) = a.as_str() else { return divided(a, b).map(|(_, rest)| rest) };
    let values: Vec<Value> = match Sort::of(b) {
        Some(Sort::Tuple) => b.try_iter()?.collect(),
        _ if b.kind() == ValueKind::Map => {
            return Err(refuse("a text with names (`%(name)s`) and `%`: use the filter `format`".to_owned()));
        }
        _ => vec![b.clone()],
    };
    filters::formatted(text, &values).map(Value::from)
}
