//! The result of a function `advantage`: for each trajectory of a group a number, a list with one
//! for each of its steps, or a list with one for each of its tokens.

use mlua::{Function, Lua, Table, Value};
use serde_json::{Map, Value as Json};

use super::group::{GroupInput, GroupMember, tables};
use super::lua::{at_function, from_json};
use crate::error::{Error, Kind, Result, Subject};

/// The advantages of a trajectory. They may be NaN or infinite.
#[derive(Clone, Debug)]
pub enum MemberAdvantages {
    Trajectory(f64),
    Steps(Vec<f64>),
    Tokens(Vec<f64>),
}

impl MemberAdvantages {
    /// All of them.
    pub fn as_slice(&self) -> &[f64] {
        match self {
            Self::Trajectory(number) => std::slice::from_ref(number),
            Self::Steps(list) | Self::Tokens(list) => list,
        }
    }
}

/// The result for a group.
#[derive(Clone, Debug)]
pub struct Estimated {
    pub advantages: Vec<MemberAdvantages>,
    /// The critic's targets, if the function returned a second list.
    pub returns: Option<Vec<MemberAdvantages>>,
}

impl Estimated {
    /// Whether all numbers have the same bits.
    pub fn is_same(&self, other: &Self) -> bool {
        let bits = |result: &Self| -> Vec<Vec<u64>> {
            let lists = result.advantages.iter().chain(result.returns.iter().flatten());
            lists.map(|list| list.as_slice().iter().map(|number| number.to_bits()).collect()).collect()
        };
        bits(self) == bits(other)
    }
}

/// A function of a group and the options.
pub(crate) type GroupCall<'a> = dyn Fn((&Table, &Value)) -> Result<(Value, Value)> + 'a;

/// How a virtual machine calls a function and shows values.
pub struct Caller<'a> {
    /// Calls the function with a group and the options.
    pub call: &'a GroupCall<'a>,
    pub task: fn(&Lua, &Json) -> mlua::Result<Value>,
    pub show: fn(&Value) -> String,
}

/// Calls `function` for the first `count` groups of a batch.
///
/// # Errors
/// Errors of the call; `Kind::Script` about a list, or the entry of a trajectory in it.
pub fn advantages(
    lua: &Lua,
    function: &Function,
    (batch, count): (&[GroupInput], usize),
    options: &Map<String, Json>,
    caller: &Caller<'_>,
) -> Result<Vec<Estimated>> {
    let failed = |error: mlua::Error| Error::new(Kind::Internal, format!("the arguments of advantage: {error}"));
    let groups = tables(lua, batch, caller.task).map_err(failed)?;
    let options = from_json(lua, &Json::Object(options.clone())).map_err(failed)?;
    let estimate = |(input, group): (&GroupInput, &Table)| {
        let (advantages, returns) = (caller.call)((group, &options))?;
        let read = |what: &str, value: &Value| {
            read(what, value, input, caller.show).map_err(|error| at_function(function, error))
        };
        Ok(Estimated {
            advantages: read("advantages", &advantages)?,
            returns: if returns.is_nil() { None } else { Some(read("returns", &returns)?) },
        })
    };
    batch.iter().zip(&groups).take(count).map(estimate).collect()
}

/// A returned list.
fn read(what: &str, value: &Value, group: &GroupInput, show: fn(&Value) -> String) -> Result<Vec<MemberAdvantages>> {
    let refused = |field: String, message: String| {
        let subject = Subject::Returned { function: "advantage".to_owned(), field: Some(field) };
        Error::new(Kind::Script, message).about(subject)
    };
    let Value::Table(list) = value else {
        let message = format!("advantage must return {what} as a list with an entry for each trajectory");
        return Err(refused(what.to_owned(), message));
    };
    let count = group.members.len();
    if list.raw_len() != count {
        let message = format!("advantage returned {} {what} for {count} trajectories", list.raw_len());
        return Err(refused(what.to_owned(), message));
    }
    let entry = |(index, member): (usize, &GroupMember)| {
        let field = format!("{what}[{}]", index + 1);
        let entry: Value = list.raw_get(index + 1).map_err(|error| refused(field.clone(), error.to_string()))?;
        let (unit, length) = match &member.by_token {
            Some(tokens) => ("token", tokens.rewards.len()),
            None => ("step", member.rewards.len()),
        };
        let numbers = match &entry {
            Value::Table(many) if many.raw_len() == length => {
                let numbers = (1..=length).map(|at| many.raw_get(at).ok().and_then(|number: Value| float(&number)));
                let wrap = if member.by_token.is_some() { MemberAdvantages::Tokens } else { MemberAdvantages::Steps };
                numbers.collect::<Option<Vec<f64>>>().map(wrap)
            }
            one => float(one).map(MemberAdvantages::Trajectory),
        };
        numbers.ok_or_else(|| {
            let message = format!(
                "advantage returned {} as {what} of trajectory {}, which has {length} {unit}s; give a number or a list \
                 of one per {unit}",
                show(&entry),
                index + 1
            );
            refused(field, message)
        })
    };
    group.members.iter().enumerate().map(entry).collect()
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}
