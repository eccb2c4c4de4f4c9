//! `r1.connection`: a connection to a server or a program that stays open between requests. Only
//! the calling trajectory waits; answers are recorded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use mlua::{AnyUserData, Function, Lua, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::args::{fail, no_field, plain, raise, refuse_while_loading, refused};
use super::argument::{Bytes, Whole};
use super::arguments::{Arguments, arguments};
use super::outcome::{NilReason, OutsideCall, failed, not_public};
use super::server_place::{Place, PlaceArguments, UrlScheme};
use crate::error::Error;
use crate::mdp::Outcome;
use crate::script::runtime::connections::{DeclaredConnection, SessionConnections};
use crate::script::runtime::convert::from_json;
use crate::script::runtime::host::{Call, Host, place, place_of_recipe};
use crate::tools::connection::{ConnectionError, websocket_as_http};

const NAME: &str = "r1.connection";
const REQUEST: &str = "request";
const REQUEST_KEY: &str = "r1.connection.request";
const CLOSE: &str = "close";
const CLOSE_KEY: &str = "r1.connection.close";
/// Default and maximum bytes of an answer.
const BYTES: usize = 1 << 20;
const MOST_BYTES: u64 = 64 << 20;
/// Default number of restarts, and the most.
pub(super) const USUAL_RESTARTS: u64 = 3;
pub(super) const RESTARTS: u64 = 1000;
/// Most processes of a program.
const PROCESSES: u64 = 256;
/// Longest wait for an open WebSocket, and for a program's answer to `open_message`.
pub(super) const SOCKET_START: Duration = Duration::from_secs(10);
const PROGRAM_START: Duration = Duration::from_mins(1);

/// URLs of WebSocket servers.
const WEBSOCKET: UrlScheme = UrlScheme { wanted: "ws:// or wss://", as_http: websocket_as_http };

arguments! {
    /// Arguments of `r1.connection`.
    pub(super) struct ConnectionArguments {
        name: Option<String>;
        timeout: Duration = Duration::from_mins(1);
        start_timeout: Option<Duration>;
        restarts: Option<Whole<0, RESTARTS>>;
        processes: Option<Whole<1, PROCESSES>>;
        max_bytes: Bytes<MOST_BYTES> = Bytes(BYTES);
        open_message: Json;
        close_message: Json;
        + place: PlaceArguments;
    }

    /// Options of `DeclaredConnection:request`.
    pub(super) struct MessageOptions {
        timeout: Option<Duration>;
    }
}

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    lua.set_named_registry_value(REQUEST_KEY, request(lua)?)?;
    lua.set_named_registry_value(CLOSE_KEY, lua.create_function(|lua, this: Value| close(lua, &this))?)?;
    let host = Rc::clone(host);
    r1.raw_set("connection", lua.create_function(move |lua, value: Value| open(lua, &host, &value))?)
}

fn open(lua: &Lua, host: &Rc<Host>, value: &Value) -> mlua::Result<ConnectionHandle> {
    let arguments = ConnectionArguments::read(lua, NAME, value)?;
    let is_program = arguments.place.command.is_some();
    let of_programs = [
        ("restarts", arguments.restarts.is_some()),
        ("processes", arguments.processes.is_some()),
        ("open_message", !arguments.open_message.is_null()),
    ];
    let of_urls = [("close_message", !arguments.close_message.is_null())];
    let (others, with) = if is_program { (&of_urls[..], "url") } else { (&of_programs[..], "command") };
    if let Some((name, _)) = others.iter().find(|(_, is_set)| *is_set) {
        return Err(refused(lua, NAME, name, format!("`{name}` is for a connection with `{with}`")));
    }
    let default_name = arguments.place.url.clone();
    let endpoint = Place::read(lua, NAME, WEBSOCKET, arguments.place, "{ \"python3\", \"server.py\" }")?;
    let ConnectionArguments { name, timeout, max_bytes, .. } = arguments;
    let (program, target) = match &endpoint {
        Place::Command { argv, .. } => (Some(argv[0].clone()), None),
        Place::Url { host, port, .. } => (None, Some((host.clone(), *port))),
    };
    let name = name.or(default_name).unwrap_or_else(|| endpoint.usual_name());
    let of_script = |message: Json| Some(message).filter(|message| !message.is_null());
    let connection = DeclaredConnection {
        // It names the program or the server, and the opening message.
        definition: json!([endpoint.definition(), arguments.open_message]).to_string(),
        timeout,
        start_timeout: arguments.start_timeout.unwrap_or(if is_program { PROGRAM_START } else { SOCKET_START }),
        max_bytes: max_bytes.0,
        open_message: of_script(arguments.open_message),
        close_message: of_script(arguments.close_message).map(|last| last.to_string()),
        restarts: arguments.restarts.map_or(USUAL_RESTARTS, |restarts| restarts.0) as u32,
        program,
        processes: arguments.processes.map_or(1, |processes| processes.0 as usize),
        place: place_of_recipe(lua),
        is_prepared: Cell::new(false),
        programs: RefCell::default(),
        access: endpoint.access(format!("connection `{name}`")),
        outside: SessionConnections::default(),
        name,
    };
    let connection = Rc::new(connection);
    // A recipe may be loaded for a replay, which needs no program: it is started before a run.
    if is_program && host.grants.borrow().is_loading() {
        host.connections.borrow_mut().push(Rc::clone(&connection));
    }
    Ok(ConnectionHandle { connection, target, host: Rc::clone(host) })
}

#[derive(Clone)]
struct ConnectionHandle {
    connection: Rc<DeclaredConnection>,
    /// The host and port of a URL.
    target: Option<(String, u16)>,
    host: Rc<Host>,
}

impl UserData for ConnectionHandle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Connection");
        fields.add_field_method_get("name", |_, this| Ok(this.connection.name.clone()));
        fields.add_field_method_get(REQUEST, |lua, _| lua.named_registry_value::<Function>(REQUEST_KEY));
        fields.add_field_method_get(CLOSE, |lua, _| lua.named_registry_value::<Function>(CLOSE_KEY));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(mlua::MetaMethod::Index, |lua, _, name: Value| {
            no_field(lua, "a connection", &name, &["name", REQUEST, CLOSE])
        });
    }
}

/// The connection that a method is called on.
fn this(lua: &Lua, this: &Value, method: &str) -> mlua::Result<ConnectionHandle> {
    match this.as_userdata().map(AnyUserData::borrow::<ConnectionHandle>) {
        Some(Ok(connection)) => Ok(connection.clone()),
        _ => Err(fail(lua, method, format!("is a method: write connection:{method}(…)"))),
    }
}

/// `connection:close()`: in a replay there is nothing to close.
fn close(lua: &Lua, value: &Value) -> mlua::Result<()> {
    let ConnectionHandle { connection, host, .. } = this(lua, value, CLOSE)?;
    match &host.current().session {
        Some(session) => session.connections.close(&connection),
        None => connection.outside.close(&connection),
    }
    Ok(())
}

struct PendingMessage {
    handle: ConnectionHandle,
    call: Rc<Call>,
    message: Json,
    timeout: Duration,
    outside: OutsideCall,
}

/// `connection:request(message, options)`. A function of the virtual machine, because methods of
/// mlua that wait need a global that scripts do not have.
fn request(lua: &Lua) -> mlua::Result<Function> {
    lua.create_async_function(|lua, (connection, message, options): (Value, Value, Value)| {
        let pending = pending(&lua, &connection, &message, &options);
        async move { pending?.answer(&lua).await }
    })
}

fn pending(lua: &Lua, connection: &Value, message: &Value, options: &Value) -> mlua::Result<PendingMessage> {
    let handle = this(lua, connection, REQUEST)?;
    let MessageOptions { timeout } = MessageOptions::read_optional(lua, REQUEST, options)?;
    let message = plain(lua, REQUEST, "message", message)?;
    refuse_while_loading(lua, &handle.host, REQUEST)?;
    // What the recipe does not declare is a lasting error, as for r1.http.
    let undeclared = (handle.connection.access.check)(&handle.host.grants.borrow()).err();
    if let Some(error) = undeclared {
        let error = Error { place: error.place.or_else(|| place(lua)), ..error };
        handle.host.current().undeclared.replace(Some(error.clone()));
        return Err(raise(error));
    }
    let (call, timeout) = (handle.host.current(), timeout.unwrap_or(handle.connection.timeout));
    let outside = OutsideCall::new(lua, REQUEST, handle.target.clone());
    Ok(PendingMessage { handle, call, message, timeout, outside })
}

/// An answer as recorded: any JSON, also `{ error = … }`.
#[derive(Serialize, Deserialize)]
struct Answered {
    answer: Json,
}

impl PendingMessage {
    /// The answer as Lua data, or nil and the reason.
    async fn answer(self, lua: &Lua) -> mlua::Result<Result<Value, NilReason>> {
        let Self { handle: ConnectionHandle { connection, host, .. }, call, message, timeout, outside } = self;
        let recorded = json!({ "connection": connection.name, "message": &message });
        let session = call.session.clone();
        let connections = session.as_ref().map_or(&connection.outside, |session| &session.connections);
        let is_live = Cell::new(false);
        let live = async {
            is_live.set(true);
            Ok(match connection.request(&host.grants, connections, message.clone(), timeout).await? {
                Ok(answer) => Outcome::Ok(Answered { answer }),
                Err(ConnectionError::NotPublic(error)) => not_public(error),
                Err(ConnectionError::Failed(error)) => failed(error),
            })
        };
        let convert = |Answered { answer }: Answered| from_json(lua, &answer);
        let answer = outside.answer(&call, ("connection", recorded), live, convert).await?;
        if answer.is_ok() && !is_live.get() {
            connections.skipped(&connection, message).await;
        }
        Ok(answer)
    }
}
