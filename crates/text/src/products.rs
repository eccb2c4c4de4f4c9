//! Lists in templates whose reading ends with the time of the rendering.
//!
//! In minijinja a list times a number is a list that is made while it is read, so that one filter
//! such as `(999999999 * [1])|max` reads as many items as the template wants, in one instruction.
//! The factors of each product are marked with a filter (`operators`), which turns a list into a
//! [`Timed`] one.
//! Reading an item of it checks the time, and ends the rendering by unwinding, because minijinja
//! has no other way to stop a filter. [`catch`] turns that into an error.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::arithmetic::list_only;
use super::time_limit::{LATE, in_time};
use super::values::{Items, RenderingLate, Timed};

pub(super) const FACTOR: &str = "r1_factor";

/// Items of a list that is a factor.
const MOST: usize = 1 << 23;

/// Registers the mark, and filters and functions that read whole lists. Those that differ from
/// Python's are in `filters`, and check the time too.
pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(FACTOR, factor);
    environment.add_function("range", |from: isize, to: Option<isize>, step: Option<isize>| {
        let range = match (to, step.unwrap_or(1)) {
            (None, 1) => format!("range(0, {from})"),
            (Some(to), 1) => format!("range({from}, {to})"),
            (to, step) => format!("range({}, {}, {step})", to.map_or(0, |_| from), to.unwrap_or(from)),
        };
        timed(&minijinja::functions::range(from, to, step)?, range)
    });
    for (name, filter) in [
        ("first", Value::from_function(filters::first)),
        ("last", Value::from_function(filters::last)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
    ] {
        environment.add_filter(name, move |state: &State, values: Rest<Value>| {
            in_time()?;
            filter.call(state, &values)
        });
    }
    environment.add_filter(
        "groupby",
        |value: Value, attribute: Option<&str>, options: Kwargs| -> Result<Value, Error> {
            in_time()?;
            let groups = filters::groupby(value, attribute, options)?;
            groups
                .try_iter()?
                .map(|group| Ok(Items::group([group.get_attr("grouper")?, plain(&group.get_attr("list")?)?])))
                .collect()
        },
    );
}

/// Runs a rendering. One that a [`Timed`] list has ended is an error.
pub(super) fn catch<T>(render: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(render)).unwrap_or_else(|cause| {
        if cause.is::<RenderingLate>() { Err(Error::new(ErrorKind::OutOfFuel, LATE)) } else { resume_unwind(cause) }
    })
}

/// A list as a timed one; any other value unchanged.
fn factor(value: Value) -> Result<Value, Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(value);
    }
    timed(&list_only(value, "multiplied")?, String::new())
}

/// The items as a list.
fn plain(items: &Value) -> Result<Value, Error> {
    Ok(items.try_iter()?.collect())
}

fn timed(value: &Value, range: String) -> Result<Value, Error> {
    in_time()?;
    if value.len().is_none_or(|items| items > MOST) {
        return Err(Error::new(ErrorKind::OutOfFuel, "it multiplies a list that is too long"));
    }
    Ok(Value::from_object(Timed { items: value.try_iter()?.collect(), range }))
}
