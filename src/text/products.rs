//! Lists in templates whose reading ends with the time of the rendering.
//!
//! In minijinja a list times a number is a list that is made while it is read, so that one filter
//! such as `(999999999 * [1])|max` reads as many items as the template wants, in one instruction.
//! The factors of each product are marked with a filter, which turns a list into a [`Timed`] one.
//! Reading an item of it checks the time, and ends the rendering by unwinding, because minijinja
//! has no other way to stop a filter. [`catch`] turns that into an error.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::time_limit::{LATE, in_time};

const FACTOR: &str = "r1_factor";

/// Items of a list that is a factor.
const MOST: usize = 1 << 23;

/// Registers the mark, and filters and functions that read whole lists. Those that differ from
/// Python's are in `filters`, and check the time too.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(FACTOR, factor);
    environment.add_function("range", |from: isize, to: Option<isize>, step: Option<isize>| {
        factor(minijinja::functions::range(from, to, step)?)
    });
    for (name, filter) in [
        ("first", Value::from_function(filters::first)),
        ("last", Value::from_function(filters::last)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("groupby", Value::from_function(filters::groupby)),
    ] {
        environment.add_filter(name, move |state: &State, values: Rest<Value>| {
            in_time()?;
            filter.call(state, &values)
        });
    }
}

/// Runs a rendering. One that a [`Timed`] list has ended is an error.
pub(super) fn catch<T>(render: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(render)).unwrap_or_else(|cause| {
        if cause.is::<Late>() { Err(Error::new(ErrorKind::OutOfFuel, LATE)) } else { resume_unwind(cause) }
    })
}

/// The payload of the unwinding.
struct Late;

/// A list whose reading checks the time.
#[derive(Debug)]
struct Timed(Vec<Value>);

impl Timed {
    fn check() {
        if in_time().is_err() {
            resume_unwind(Box::new(Late));
        }
    }
}

impl Object for Timed {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        Self::check();
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Self::check();
        Enumerator::Seq(self.0.len())
    }
}

/// A list as a timed one; any other value unchanged.
fn factor(value: Value) -> Result<Value, Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(value);
    }
    in_time()?;
    if value.len().is_none_or(|items| items > MOST) {
        return Err(Error::new(ErrorKind::OutOfFuel, "a factor is a list that is too long"));
    }
    Ok(Value::from_object(Timed(value.try_iter()?.collect())))
}

/// The text of a tag with the factors of its products marked: `a * b` is
/// `a|r1_factor * b|r1_factor`.
pub(super) fn marked(body: &str) -> Cow<'_, str> {
    if !body.contains('*') {
        return Cow::Borrowed(body);
    }
    let bytes = body.as_bytes();
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => at = string(bytes, at),
            b'*' if bytes.get(at + 1) == Some(&b'*') => at += 2,
            b'*' => {
                let before = body[..at].trim_end();
                // `f(*list)` passes its items.
                let is_product = !before.is_empty() && !before.ends_with(['(', ',', '[', '{', ':', '=']);
                if is_product && let Some(after) = operand(bytes, at + 1) {
                    places.extend([before.len(), after]);
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    places.sort_unstable();
    let (mut out, mut from) = (String::with_capacity(body.len() + places.len() * 10), 0);
    for place in places {
        out.extend([&body[from..place], "|", FACTOR]);
        from = place;
    }
    Cow::Owned(out + &body[from..])
}

/// The end of the string that starts at `at`.
pub(super) fn string(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'\\' => end += 2,
            _ if byte == bytes[at] => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

/// The end of the brackets that open at `at`.
fn brackets(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut depth, mut end) = (0_usize, at);
    loop {
        match bytes.get(end)? {
            b'"' | b'\'' => {
                end = string(bytes, end);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        end += 1;
        if depth == 0 {
            return Some(end);
        }
    }
}

const SPACE: &[u8] = b" \t\r\n";

/// The end of the operand at or after `at`: `-x`, `x.y[0](z)|filter(1)`, `x ** 2`.
fn operand(bytes: &[u8], at: usize) -> Option<usize> {
    let skip = |mut at: usize, these: &[u8]| {
        while bytes.get(at).is_some_and(|byte| these.contains(byte)) {
            at += 1;
        }
        at
    };
    let word = |mut at: usize| {
        while bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | 0x80..)) {
            at += 1;
        }
        at
    };
    let mut end = skip(at, b" \t\r\n+-");
    end = match bytes.get(end)? {
        b'"' | b'\'' => string(bytes, end),
        b'(' | b'[' | b'{' => brackets(bytes, end)?,
        _ => Some(word(end)).filter(|&next| next > end)?,
    };
    loop {
        let next = skip(end, SPACE);
        end = match bytes.get(next) {
            Some(b'(' | b'[') => brackets(bytes, next)?,
            Some(b'.') => word(next),
            Some(b'|') => word(skip(next + 1, SPACE)),
            Some(b'*') if bytes.get(next + 1) == Some(&b'*') => return operand(bytes, next + 2),
            _ => return Some(end),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factors_of_products_are_marked() {
        for (before, after) in [
            ("a * b", "a|r1_factor * b|r1_factor"),
            ("' ' * (n*2) ~ x", "' '|r1_factor * (n|r1_factor*2|r1_factor)|r1_factor ~ x"),
            ("x.y[0] * f(1)|max + 1", "x.y[0]|r1_factor * f(1)|max|r1_factor + 1"),
            ("-2 ** 3 * [1, ']'] in z", "-2 ** 3|r1_factor * [1, ']']|r1_factor in z"),
            ("f(*rest, **named) + '*'", "f(*rest, **named) + '*'"),
            ("a *", "a *"),
            ("a * )", "a * )"),
        ] {
            assert_eq!(marked(before), after);
        }
    }
}
