//! Limits of a tool's calls from its declaration: retries, cache, concurrency.

use std::time::Duration;

use mlua::Value;

use super::args::Fields;
use super::argument::{ANY, Argument, Whole};
use crate::error::{Error, Kind};
use crate::script::runtime::convert::kind;
use crate::script::runtime::tool::{CacheScope, CallLimits};

/// Fields of a tool's declaration that this file reads.
pub(super) const FIELDS: [&str; 3] = ["retries", "cache", "concurrency"];

/// Most retries.
const RETRIES: u64 = 20;
/// The wait before the first retry, if no setting gives it.
const BACKOFF: Duration = Duration::from_millis(500);

pub(super) fn read(fields: &Fields<'_>) -> mlua::Result<CallLimits> {
    let (retries, backoff) = retries(fields)?;
    let concurrency = fields.read::<Whole<1, ANY>>("concurrency")?.map_or(0, |count| count.0 as usize);
    Ok(CallLimits { retries, backoff, cache: cache(fields)?, concurrency })
}

/// `cache = true`, `"trajectory"` or `"run"`.
pub(super) fn cache(fields: &Fields<'_>) -> mlua::Result<Option<CacheScope>> {
    match fields.get("cache")? {
        Value::Nil | Value::Boolean(false) => Ok(None),
        Value::Boolean(true) => Ok(Some(CacheScope::Trajectory)),
        Value::String(scope) => match &*scope.to_string_lossy() {
            "trajectory" => Ok(Some(CacheScope::Trajectory)),
            "run" => Ok(Some(CacheScope::Run)),
            other => {
                let why = format!("`cache` is \"{other}\"; it is true, \"trajectory\" or \"run\"");
                Err(fields.refused("cache", Error::new(Kind::Script, why)))
            }
        },
        other => Err(fields.refuse("cache", "true, \"trajectory\" or \"run\"", &other)),
    }
}

/// `retries = 2` or `{ times = 2, backoff = "1s" }`.
fn retries(fields: &Fields<'_>) -> mlua::Result<(u32, Duration)> {
    let value = fields.get("retries")?;
    let wanted = || format!("a whole number from 0 to {RETRIES}, or {{ times =, backoff = }}");
    let table = match &value {
        Value::Nil => return Ok((0, BACKOFF)),
        Value::Table(table) => table,
        _ => {
            let times = Whole::<0, RETRIES>::read(&value).ok_or_else(|| fields.refuse("retries", &wanted(), &value))?;
            return Ok((times.0 as u32, BACKOFF));
        }
    };
    let own = fields.inside("retries", table, &["times", "backoff"])?;
    let times = own.get("times")?;
    let times = Whole::<0, RETRIES>::read(&times).ok_or_else(|| {
        let why = format!("`retries` needs `times`, a whole number from 0 to {RETRIES}, got {}", kind(&times));
        fields.refused("retries", Error::new(Kind::Script, why))
    })?;
    let backoff = match own.get("backoff")? {
        Value::Nil => BACKOFF,
        value => Duration::read(&value).ok_or_else(|| {
            let why = format!("`retries.backoff` must be {}, got {}", Duration::wanted(), kind(&value));
            fields.refused("retries", Error::new(Kind::Script, why))
        })?,
    };
    Ok((times.0 as u32, backoff))
}
