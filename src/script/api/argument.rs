//! Types that a field or an argument of a host function can have. The error of a value of another
//! type names the function, the field and the line, which [`mlua::FromLua`] does not know
//! (`args::Fields::read`, `args::required`).

use std::time::Duration;

use mlua::{Function, Value};

use crate::script::runtime::convert::float;
use crate::units;

/// A type that is read from a Lua value.
pub(crate) trait Argument: Sized {
    /// The values that it takes, for messages: "true or false".
    fn wanted() -> String;

    /// The value, or `None` if it is of another type.
    fn read(value: &Value) -> Option<Self>;
}

impl Argument for bool {
    fn wanted() -> String {
        "true or false".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_boolean()
    }
}

impl Argument for f64 {
    fn wanted() -> String {
        "a number".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        float(value)
    }
}

impl Argument for String {
    fn wanted() -> String {
        "text".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_string().map(mlua::LuaString::to_string_lossy)
    }
}

/// The bytes of a text.
impl Argument for Vec<u8> {
    fn wanted() -> String {
        "text".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_string().map(|text| text.as_bytes().to_vec())
    }
}

impl Argument for Function {
    fn wanted() -> String {
        "a function".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_function().cloned()
    }
}

/// A time above 0, in seconds or as text with a unit.
impl Argument for Duration {
    fn wanted() -> String {
        units::TIME.to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        Self::try_from_secs_f64(Seconds::read(value)?.0).ok()
    }
}

/// Seconds above 0, from a number or a text with a unit.
pub(crate) struct Seconds(pub(crate) f64);

impl Argument for Seconds {
    fn wanted() -> String {
        units::TIME.to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        let seconds = match value {
            Value::String(text) => units::seconds(&text.to_string_lossy())?,
            number => float(number)?,
        };
        (seconds > 0.0 && seconds.is_finite()).then_some(Self(seconds))
    }
}

/// MiB, from a number or a text with a unit; fractions are rounded up.
pub(crate) struct Mebibytes(pub(crate) u64);

impl Argument for Mebibytes {
    fn wanted() -> String {
        "a size such as \"512MiB\"".to_owned()
    }

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => units::mebibytes(&text.to_string_lossy()),
            number => float(number).filter(|size| *size >= 0.0 && size.is_finite()).map(|size| size.ceil() as u64),
        }
        .map(Self)
    }
}

/// A whole number from `MIN` to `MAX`; a `MAX` of [`ANY`] is no limit.
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// Above all whole numbers that a Luau number has exactly.
pub(crate) const ANY: u64 = 1 << 53;

impl<const MIN: u64, const MAX: u64> Argument for Whole<MIN, MAX> {
    fn wanted() -> String {
        match MAX {
            ANY => format!("a whole number, {MIN} or more"),
            most => format!("a whole number from {MIN} to {most}"),
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
