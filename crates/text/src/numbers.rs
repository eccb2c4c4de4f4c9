//! Jinja2 filters of numbers, with Python's results: `int`, `float`, `sum`, `round`, `max`, `min`.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{ErrorKind, State, Value as Jinja};

use super::arithmetic::whole;
use super::python;
use super::size_limits::{self, check_list, check_size};

/// The `int` filter: the integer part of a number, or the default for other values. A text is read
/// in a base, with its prefix.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
pub(super) fn int(
    value: &Jinja,
    default: Option<Jinja>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Jinja, minijinja::Error> {
    let default = default.or(options.get("default")?);
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    if let Some(number) = value.as_str().and_then(|text| python::int(text, base)) {
        return Ok(number.into());
    }
    if value.is_integer() {
        return Ok(value.clone());
    }
    let number = value.as_str().map_or_else(|| number_of(value), python::float).filter(|number| number.is_finite());
    match number {
        Some(number) if number.abs() >= 1e38 => {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "a whole number of more than 38 digits"))
        }
        Some(number) => Ok(Jinja::from(number.trunc() as i128)),
        None => Ok(default.unwrap_or_else(|| 0.into())),
    }
}

/// The `sum` filter, of numbers or of lists.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
pub(super) fn sum(
    state: &State,
    values: Jinja,
    attribute: Option<Jinja>,
    start: Option<Jinja>,
    options: Kwargs,
) -> Result<Jinja, minijinja::Error> {
    let attribute = attribute.or(options.get("attribute")?).filter(|name| !name.is_none());
    let mut total = start.or(options.get("start")?).unwrap_or_else(|| 0.into());
    options.assert_all_used()?;
    check_list(&values)?;
    let values = match attribute {
        Some(name) => {
            minijinja::filters::map(state, values, Rest(vec![Kwargs::from_iter([("attribute", name)]).into()]))?
        }
        None => values.try_iter()?.collect(),
    };
    let wrong = |total: &Jinja, value: &Jinja| {
        let why = format!("sum: {} can't be added to {}", value.kind(), total.kind());
        minijinja::Error::new(ErrorKind::InvalidOperation, why)
    };
    let mut list: Option<Vec<Jinja>> = match total.kind() {
        ValueKind::Seq => Some(total.try_iter()?.collect()),
        _ => None,
    };
    for value in values {
        if let Some(list) = &mut list {
            if value.kind() != ValueKind::Seq {
                return Err(wrong(&total, &value));
            }
            list.extend(value.try_iter()?);
            check_size(list.len().saturating_mul(size_limits::ITEM))?;
            continue;
        }
        total = match (whole(&total), whole(&value), number_of(&total), number_of(&value)) {
            (Some(a), Some(b), ..) => a.checked_add(b).ok_or_else(|| wrong(&total, &value))?.into(),
            (.., Some(a), Some(b)) => (a + b).into(),
            _ => return Err(wrong(&total, &value)),
        };
    }
    Ok(list.map_or(total, Jinja::from))
}

/// The `round` filter: `round(value, precision)`, with ties to the even digit, or `ceil`, `floor`.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
pub(super) fn round(
    value: &Jinja,
    precision: Option<i32>,
    method: Option<&str>,
    options: Kwargs,
) -> Result<Jinja, minijinja::Error> {
    let precision = precision.or(options.get("precision")?).unwrap_or(0);
    let named: Option<String> = options.get("method")?;
    let method = method.or(named.as_deref()).unwrap_or("common");
    options.assert_all_used()?;
    let refuse = |why: &str| Err(minijinja::Error::new(ErrorKind::InvalidOperation, why.to_owned()));
    let Some(number) = number_of(value).filter(|number| number.is_finite()) else {
        return refuse("round: not a finite number");
    };
    if !(-300..=300).contains(&precision) {
        return refuse("round: the precision is not from -300 to 300");
    }
    let scale = 10_f64.powi(precision);
    let is_whole = value.is_integer() || value.kind() == ValueKind::Bool;
    match method {
        "ceil" => Ok(Jinja::from((number * scale).ceil() / scale)),
        "floor" => Ok(Jinja::from((number * scale).floor() / scale)),
        "common" if is_whole && precision >= 0 => {
            Ok(Jinja::from(i128::try_from(value.clone()).unwrap_or(number as i128)))
        }
        "common" if precision < 0 => {
            let unit = 10_f64.powi(-precision);
            let rounded = (number / unit).round_ties_even() * unit;
            Ok(if is_whole { Jinja::from(rounded as i128) } else { rounded.into() })
        }
        "common" => {
            // Decimal digits of the exact value, as Python rounds.
            let text = format!("{number:.*}", usize::try_from(precision).unwrap_or(0));
            Ok(text.parse::<f64>().map_or(value.clone(), Jinja::from))
        }
        _ => refuse("round: the method is `common`, `ceil` or `floor`"),
    }
}

/// The `float` filter: a number, or the default for other values.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
pub(super) fn float(value: &Jinja, default: Option<Jinja>) -> Jinja {
    let number = value.as_str().map_or_else(|| number_of(value), python::float);
    number.map_or_else(|| default.unwrap_or_else(|| 0.0.into()), Jinja::from)
}

/// The number of a value; `True` is 1, as in Python.
pub(super) fn number_of(value: &Jinja) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// The `max` and `min` filters: the first of the largest or smallest items, without case.
#[allow(clippy::needless_pass_by_value)] // called by closures that minijinja requires
pub(super) fn extreme(values: &Jinja, options: Kwargs, wanted: Ordering) -> Result<Jinja, minijinja::Error> {
    let with_case = options.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    let attribute: Option<String> = options.get("attribute")?;
    options.assert_all_used()?;
    check_list(values)?;
    let mut best: Option<(Jinja, Jinja)> = None;
    for item in values.try_iter()? {
        let key = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item.clone(),
        };
        let key = key.as_str().filter(|_| !with_case).map_or(key.clone(), |text| text.to_lowercase().into());
        if best.as_ref().is_none_or(|(before, _)| key.cmp(before) == wanted) {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Jinja::UNDEFINED, |(_, item)| item))
}
