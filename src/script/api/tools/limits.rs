//! Limits of a tool's calls from its declaration: retries, cache, concurrency.

use std::time::Duration;

use mlua::Value;

use super::super::args::{FromField, TableFields};
use super::super::argument::{ANY, Argument, Whole, argument};
use super::super::arguments::{Arguments, arguments};
use crate::script::runtime::tool::{CacheScope, CallLimits};

/// Maximum number of retries.
const RETRIES: u64 = 20;
/// The wait before the first retry, if no setting gives it.
const BACKOFF: Duration = Duration::from_millis(500);

arguments! {
    /// Fields of a tool's declaration about its calls.
    pub(crate) struct LimitArguments {
        retries: Retries = Retries { times: Whole(0), backoff: BACKOFF };
        cache: CacheOption = CacheOption(None);
        concurrency: Option<Whole<1, ANY>>;
    }

    /// `retries = { times = 2, backoff = "1s" }`, or only the number.
    pub(crate) struct Retries {
        times: Whole<0, RETRIES>, needs("a whole number from 0 to 20");
        backoff: Duration = BACKOFF;
    }
}

impl From<LimitArguments> for CallLimits {
    fn from(LimitArguments { retries, cache, concurrency }: LimitArguments) -> Self {
        let Retries { times: Whole(times), backoff } = retries;
        Self { retries: times as u32, backoff, cache: cache.0, concurrency: concurrency.map_or(0, usize::from) }
    }
}

impl FromField for Retries {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        if let Value::Table(table) = value {
            return Self::from_fields(&fields.inside(name, table, &Self::names())?);
        }
        let wanted = || format!("{}, or {{ times =, backoff = }}", Whole::<0, RETRIES>::wanted());
        let times = Whole::read(value).ok_or_else(|| fields.refuse(name, &wanted(), value))?;
        Ok(Self { times, backoff: BACKOFF })
    }
}

/// `cache = true`, `"trajectory"` or `"run"`; `None` without a cache.
pub(crate) struct CacheOption(pub(crate) Option<CacheScope>);

argument!(CacheOption, "true, \"trajectory\" or \"run\"", |value| {
    let scope = match value {
        Value::Boolean(false) => None,
        Value::Boolean(true) => Some(CacheScope::Trajectory),
        Value::String(scope) if *scope == "trajectory" => Some(CacheScope::Trajectory),
        Value::String(scope) if *scope == "run" => Some(CacheScope::Run),
        _ => return None,
    };
    Some(Self(scope))
});
