//! Calls of the host's [`Services`]: requests from Lua tables, replies as Lua values.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Function, IntoLuaMulti, Lua, UserData, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::{fail, raise};
use crate::script::Services;
use crate::script::runtime::convert::{NonJson, from_json, to_json};
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::services::Call;
use crate::script::runtime::services::read::request;
use crate::script::runtime::services::request::Request;

/// Something that the host keeps open for a program: a model, a script, a trajectory, a run. It is
/// closed when Lua collects it.
pub(super) struct Held {
    pub(super) services: Arc<dyn Services>,
    pub(super) number: u64,
    close: fn(&dyn Services, u64),
}

impl Held {
    pub(super) fn new(services: &Arc<dyn Services>, number: u64, close: fn(&dyn Services, u64)) -> Self {
        Self { services: services.clone(), number, close }
    }

    /// Its number, for a request.
    pub(super) fn number_of(lua: &Lua, held: &AnyUserData) -> mlua::Result<u64> {
        match held.borrow::<Self>() {
            Ok(held) => Ok(held.number),
            Err(_) => Err(raise(misuse(lua, "this is neither a script nor a trajectory"))),
        }
    }
}

impl UserData for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        (self.close)(&*self.services, self.number);
    }
}

/// Makes a call; its errors are raised at the caller's line.
pub(super) async fn call<R: Request<Calls: Into<Call>>>(
    lua: &Lua,
    services: &Arc<dyn Services>,
    request: R,
) -> mlua::Result<R::Reply> {
    let place = misuse(lua, "").place;
    services.call(request).await.map_err(|error| match place {
        Some(place) if error.place.is_none() => raise(error.at(place)),
        _ => raise(error),
    })
}

/// Functions of the host for the part of a namespace that is written in Lua.
#[derive(Clone)]
pub(super) struct Functions {
    pub(super) host: Rc<Host>,
    /// The namespace, for messages, and where it is available.
    pub(super) name: &'static str,
    pub(super) only: &'static str,
}

impl Functions {
    /// The services of a program.
    pub(super) fn services(&self, lua: &Lua) -> mlua::Result<Arc<dyn Services>> {
        self.host.services.clone().ok_or_else(|| fail(lua, self.name, self.only))
    }

    /// A request from the table of its fields.
    pub(super) fn read<R: DeserializeOwned>(&self, lua: &Lua, fields: &Value) -> mlua::Result<R> {
        let fields = to_json(fields, "it", NonJson::Refuse).map_err(|why| fail(lua, self.name, why))?;
        request(fields).map_err(|error| fail(lua, self.name, error.message))
    }

    /// A function that takes the fields of a request; `write` gives its reply as Lua values.
    pub(super) fn function<R, W, V>(&self, lua: &Lua, write: W) -> mlua::Result<Function>
    where
        R: Request<Calls: Into<Call>> + DeserializeOwned,
        W: Fn(&Lua, &Self, R::Reply) -> mlua::Result<V> + Clone + 'static,
        V: IntoLuaMulti + 'static,
    {
        let own = self.clone();
        lua.create_async_function(move |lua, fields: Value| {
            let (own, write) = (own.clone(), write.clone());
            async move {
                let services = own.services(&lua)?;
                let reply = call(&lua, &services, own.read::<R>(&lua, &fields)?).await?;
                write(&lua, &own, reply)
            }
        })
    }
}

/// A reply as a Lua value.
pub(super) fn to_lua(lua: &Lua, reply: &impl Serialize) -> mlua::Result<Value> {
    from_json(lua, &serde_json::to_value(reply).map_err(mlua::Error::external)?)
}
