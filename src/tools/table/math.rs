//! The mathematical functions of SQL, which the bundled SQLite is compiled without: `sqrt`, `pow`,
//! `ln`, `floor` …, as in <https://sqlite.org/lang_mathfunc.html>.
//!
//! An argument that is no number, or outside of the function's domain, gives NULL. Text that reads
//! as a number is one.

use std::ffi::{CStr, c_int};

use rusqlite::{Connection, ffi};

use super::functions::{self, SqlCall};

/// A function by its arguments.
enum Math {
    None(f64),
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    /// A whole number is returned as it is.
    Round(fn(f64) -> f64),
}

use Math::{None as No, One, Round, Two};

static ALL: [(&CStr, Math); 30] = [
    (c"acos", One(f64::acos)),
    (c"acosh", One(f64::acosh)),
    (c"asin", One(f64::asin)),
    (c"asinh", One(f64::asinh)),
    (c"atan", One(f64::atan)),
    (c"atan2", Two(f64::atan2)),
    (c"atanh", One(f64::atanh)),
    (c"ceil", Round(f64::ceil)),
    (c"ceiling", Round(f64::ceil)),
    (c"cos", One(f64::cos)),
    (c"cosh", One(f64::cosh)),
    (c"degrees", One(f64::to_degrees)),
    (c"exp", One(f64::exp)),
    (c"floor", Round(f64::floor)),
    (c"ln", One(|x| of_positive(x, f64::ln))),
    (c"log", One(|x| of_positive(x, f64::log10))),
    (c"log", Two(log)),
    (c"log10", One(|x| of_positive(x, f64::log10))),
    (c"log2", One(|x| of_positive(x, f64::log2))),
    (c"mod", Two(|x, y| x % y)),
    (c"pi", No(std::f64::consts::PI)),
    (c"pow", Two(f64::powf)),
    (c"power", Two(f64::powf)),
    (c"radians", One(f64::to_radians)),
    (c"sin", One(f64::sin)),
    (c"sinh", One(f64::sinh)),
    (c"sqrt", One(f64::sqrt)),
    (c"tan", One(f64::tan)),
    (c"tanh", One(f64::tanh)),
    (c"trunc", Round(f64::trunc)),
];

pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    ALL.iter().try_for_each(|(name, math)| {
        let arguments = match math {
            No(_) => 0,
            One(_) | Round(_) => 1,
            Two(_) => 2,
        };
        functions::create(connection, name, arguments, std::ptr::from_ref(math).cast_mut().cast(), compute)
    })
}

/// SQLite makes NULL of NaN.
fn of_positive(x: f64, logarithm: fn(f64) -> f64) -> f64 {
    if x > 0.0 { logarithm(x) } else { f64::NAN }
}

/// The logarithm to a base above 1.
fn log(base: f64, x: f64) -> f64 {
    let base = of_positive(base, f64::ln);
    if base > 0.0 { of_positive(x, f64::ln) / base } else { f64::NAN }
}

unsafe extern "C" fn compute(context: *mut ffi::sqlite3_context, count: c_int, values: *mut *mut ffi::sqlite3_value) {
    // SAFETY: called by SQLite.
    let call = unsafe { SqlCall::new(context, count, values) };
    // SAFETY: `register` passes an element of `ALL`.
    let math = unsafe { &*ffi::sqlite3_user_data(context).cast::<Math>() };
    let result = match math {
        No(value) => Some(*value),
        Two(of) => call.number(0).zip(call.number(1)).map(|(x, y)| of(x, y)),
        Round(_) if call.whole(0).is_some() => return call.integer(call.whole(0).unwrap_or(0)),
        One(of) | Round(of) => call.number(0).map(of),
    };
    if let Some(number) = result {
        call.real(number);
    }
}
