//! External calls that may fail in a way that a script can handle: it receives nil and the reason.

use mlua::{IntoLua, Lua, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::raise;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Failed, Outcome};
use crate::script::runtime::host::{Call, place};

/// The reason that a script receives after nil; `Err` in the result of a binding.
pub(crate) struct NilReason(pub(crate) String);

impl IntoLua for NilReason {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        self.0.into_lua(lua)
    }
}

/// An outcome that failed, with its reason.
pub(super) fn failed<T>(error: String) -> Outcome<T> {
    Outcome::Failed(Failed { error, undeclared: false })
}

/// An outcome that failed because a name resolves to an address that is not public.
pub(super) fn not_public<T>(error: String) -> Outcome<T> {
    Outcome::Failed(Failed { error, undeclared: true })
}

/// A result as an outcome: errors of [`Kind::Env`] are those that the script can mend, such as a
/// text that is too long.
pub(super) fn outcome_of<T>(result: Result<T>) -> Result<Outcome<T>> {
    match result {
        Ok(answer) => Ok(Outcome::Ok(answer)),
        Err(error) if error.kind == Kind::Env => Ok(failed(error.message)),
        Err(error) => Err(error),
    }
}

/// The call of a function that reaches outside.
pub(super) struct OutsideCall {
    function: &'static str,
    /// The host and port that it reaches.
    target: Option<(String, u16)>,
    /// The line of the call.
    line: Option<String>,
}

impl OutsideCall {
    pub(super) fn new(lua: &Lua, function: &'static str, target: Option<(String, u16)>) -> Self {
        Self { function, target, line: place(lua) }
    }

    /// Makes the call, or takes its answer from the record. The function returns `convert` of the
    /// answer, or the reason of a failure that the script can handle.
    pub(super) async fn answer<T: Serialize + DeserializeOwned, R>(
        self,
        call: &Call,
        (kind, request): (&'static str, impl Serialize),
        live: impl Future<Output = Result<Outcome<T>>>,
        convert: impl FnOnce(T) -> mlua::Result<R>,
    ) -> mlua::Result<Result<R, NilReason>> {
        let outcome = call.external(kind, request, live).await;
        match outcome.map_err(|error| raise(Error { place: error.place.or_else(|| self.line.clone()), ..error }))? {
            Outcome::Ok(answer) => convert(answer).map(Ok),
            Outcome::Failed(Failed { error, undeclared: false }) => Ok(Err(NilReason(error))),
            Outcome::Failed(Failed { error, undeclared: true }) => Err(raise(self.undeclared(call, &error))),
        }
    }

    /// The error for a host whose name resolves to an address that is not public. It is known only
    /// after the name is resolved, and a call that fails with it is not retried.
    fn undeclared(self, call: &Call, why: &str) -> Error {
        let Self { function, target, line } = self;
        let (name, port) = target.unwrap_or_default();
        let message = format!("{function}: {name} leads to a host that the recipe does not declare: {why}");
        let hint = format!("add needs = {{ \"http:{name}\" }} to r1.recipe, or \"http:{name}:{port}\"");
        let error = Error { place: line, ..Error::new(Kind::Script, message).hint(hint) };
        call.undeclared.replace(Some(error.clone()));
        error
    }
}
