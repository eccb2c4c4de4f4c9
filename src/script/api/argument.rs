//! Types of arguments of host functions and of their fields. The error of a value of another type
//! names the function, the field and the line, which [`mlua::FromLua`] does not know (`arguments!`,
//! `args::required`).

use std::time::Duration;

use mlua::{Function, Table, Value};

use crate::script::runtime::convert::float;
use crate::units;

/// A type that is read from a Lua value.
pub(crate) trait Argument: Sized {
    /// The values that it takes, for messages: "true or false".
    fn wanted() -> String;

    /// The value, or `None` if it is of another type.
    fn read(value: &Value) -> Option<Self>;
}

/// Implements [`Argument`]: the type, the values that it takes, and how it is read.
macro_rules! argument {
    ($Type:ty, $wanted:expr, |$value:ident| $read:expr) => {
        impl $crate::script::api::argument::Argument for $Type {
            fn wanted() -> String {
                $wanted.to_string()
            }

            fn read($value: &mlua::Value) -> Option<Self> {
                $read
            }
        }
    };
}
pub(crate) use argument;

// Any value, nil included.
argument!(Value, "a value", |value| Some(value.clone()));

argument!(Table, "a table", |value| value.as_table().cloned());

argument!(bool, "true or false", |value| value.as_boolean());

// A whole number, 0 or more.
argument!(usize, Whole::<0, ANY>::wanted(), |value| Whole::<0, ANY>::read(value).map(Self::from));

argument!(f64, "a number", |value| float(value));

argument!(String, "text", |value| value.as_string().map(mlua::LuaString::to_string_lossy));

// The bytes of a text.
argument!(Vec<u8>, "text", |value| value.as_string().map(|text| text.as_bytes().to_vec()));

argument!(Function, "a function", |value| value.as_function().cloned());

// A time above 0, in seconds or as text with a unit.
argument!(Duration, units::TIME, |value| Self::try_from_secs_f64(Seconds::read(value)?.0).ok());

/// Seconds above 0, from a number or a text with a unit.
pub(crate) struct Seconds(pub(crate) f64);

argument!(Seconds, units::TIME, |value| {
    let seconds = match value {
        Value::String(text) => units::seconds(&text.to_string_lossy())?,
        number => float(number)?,
    };
    (seconds > 0.0 && seconds.is_finite()).then_some(Self(seconds))
});

/// MiB, from a number or a text with a unit; fractions are rounded up.
pub(crate) struct Mebibytes(pub(crate) u64);

argument!(Mebibytes, "a size such as \"512MiB\"", |value| {
    match value {
        Value::String(text) => units::mebibytes(&text.to_string_lossy()),
        number => float(number).filter(|size| *size >= 0.0 && size.is_finite()).map(|size| size.ceil() as u64),
    }
    .map(Self)
});

/// A whole number from `MIN` to `MAX`; a `MAX` of [`ANY`] means no limit.
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// Above all whole numbers that a Luau number has exactly.
pub(crate) const ANY: u64 = 1 << 53;

impl<const MIN: u64, const MAX: u64> Argument for Whole<MIN, MAX> {
    fn wanted() -> String {
        match MAX {
            ANY => format!("a whole number, {MIN} or more"),
            limit => format!("a whole number from {MIN} to {limit}"),
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let number = match value {
            Value::Integer(_) | Value::Number(_) => float(value)?,
            _ => return None,
        };
        let fits = number.fract() == 0.0 && number >= MIN as f64 && number <= MAX as f64;
        fits.then_some(Self(number as u64))
    }
}

impl<const MIN: u64, const MAX: u64> From<Whole<MIN, MAX>> for usize {
    fn from(Whole(number): Whole<MIN, MAX>) -> Self {
        number as Self
    }
}

/// A number of bytes from 1 to `MAX`.
pub(crate) struct Bytes<const MAX: u64>(pub(crate) usize);

impl<const MAX: u64> Argument for Bytes<MAX> {
    fn wanted() -> String {
        format!("a number of bytes up to {MAX}")
    }

    fn read(value: &Value) -> Option<Self> {
        Whole::<1, MAX>::read(value).map(|bytes| Self(bytes.into()))
    }
}

/// A finite number, 0 or more.
pub(crate) struct NonNegative(pub(crate) f64);

argument!(NonNegative, "a number, 0 or more", |value| float(value)
    .filter(|number| *number >= 0.0 && number.is_finite())
    .map(Self));

impl From<NonNegative> for f64 {
    fn from(NonNegative(number): NonNegative) -> Self {
        number
    }
}

/// A text, or a list of texts.
#[derive(Default)]
pub(crate) struct TextArguments(pub(crate) Vec<String>);

argument!(TextArguments, "text, or a list of texts", |value| {
    match value {
        Value::String(text) => Some(Self(vec![text.to_string_lossy()])),
        Value::Table(list) => items(list).map(Self),
        _ => None,
    }
});

/// A copy of a host object.
pub(crate) fn host_object<T: Clone + 'static>(value: &Value) -> Option<T> {
    value.as_userdata()?.borrow::<T>().ok().map(|object| object.clone())
}

/// The items of a list without other keys, if all are of the type.
pub(crate) fn items<T: Argument>(list: &Table) -> Option<Vec<T>> {
    let items: Vec<Value> = (1..=list.raw_len()).map(|index| list.raw_get(index).ok()).collect::<Option<_>>()?;
    let no_other_keys = list.pairs::<Value, Value>().count() == items.len();
    items.iter().filter(|_| no_other_keys).map(T::read).collect::<Option<Vec<T>>>().filter(|_| no_other_keys)
}
