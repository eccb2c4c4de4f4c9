//! `r1.http`: requests to hosts that a recipe declares. Only the calling trajectory waits;
//! responses are recorded.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Table, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value as Json, json};

use super::args::{bytes_of, fail, json_of, plain, refused, text, undeclared};
use super::argument::Bytes;
use super::arguments::{Arguments, arguments};
use super::outcome::{NilReason, OutsideCall, failed, not_public};
use super::secret::{NamedTexts, Secrets, Text};
use crate::mdp::Outcome;
use crate::net::{HttpError, HttpRequest, METHODS, host_and_port, http, url_with_query};
use crate::script::runtime::bind::in_lua;
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::{Call, Host};

/// Default and maximum bytes of a response.
const BYTES: usize = 1 << 20;
pub(super) const MOST_BYTES: u64 = 64 << 20;
/// Default timeout in seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

arguments! {
    /// Options of `r1.http.get` and `r1.http.post`.
    pub(super) struct RequestOptions {
        headers: NamedTexts = NamedTexts::default();
        query: NamedTexts = NamedTexts::default();
        body: Value;
        json: Value;
        timeout: Duration = TIMEOUT;
        max_bytes: Bytes<MOST_BYTES> = Bytes(BYTES);
    }

    /// Arguments of `r1.http.request`.
    pub(super) struct RequestArguments {
        method: String = "GET".to_owned();
        url: Value;
        + options: RequestOptions;
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let shared_host = host.clone();
    let send = lua.create_async_function(move |lua, (is_post, url, options, body): (bool, Value, Value, Value)| {
        let pending = send(&lua, &shared_host, is_post, (&url, &options, &body));
        async move { pending?.answer(&lua).await }
    })?;
    let shared_host = host.clone();
    let request = lua.create_async_function(move |lua, request: Value| {
        let pending = request_of(&lua, &shared_host, &request);
        async move { pending?.answer(&lua).await }
    })?;
    let http: Table = in_lua(lua, include_str!("../../../lua/http.lua"), (send, request, RequestOptions::names()))?;
    super::namespace(lua, r1, "r1.http", http)
}

/// A request that is allowed.
struct PendingRequest {
    host: Rc<Host>,
    call: Rc<Call>,
    request: UnrevealedRequest,
    outside: OutsideCall,
}

/// A request whose secrets are not filled in.
struct UnrevealedRequest {
    method: &'static str,
    url: String,
    query: NamedTexts,
    headers: NamedTexts,
    body: Option<Vec<u8>>,
    timeout: Duration,
    max_bytes: usize,
}

impl UnrevealedRequest {
    /// The URL with its query, with the texts that `value` returns.
    fn address<E>(&self, mut value: impl FnMut(&Text) -> Result<String, E>) -> Result<String, E> {
        let base = self.url.clone();
        self.query.0.iter().try_fold(base, |url, (name, text)| Ok(url_with_query(&url, name, &value(text)?)))
    }

    /// Text as it is, a table as JSON; nil for no body.
    fn set_body(&mut self, lua: &Lua, function: &str, body: &Value) -> mlua::Result<()> {
        match body {
            Value::Nil => {}
            Value::String(text) => self.body = Some(text.as_bytes().to_vec()),
            Value::Table(_) => self.set_json(lua, function, body)?,
            other => return Err(fail(lua, function, format!("the body must be text or a table, got {}", kind(other)))),
        }
        Ok(())
    }

    fn set_json(&mut self, lua: &Lua, function: &str, body: &Value) -> mlua::Result<()> {
        self.body = Some(plain(lua, function, "json", body)?.to_string().into_bytes());
        if !self.headers.0.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            self.headers.0.push(("content-type".to_owned(), Text::plain("application/json")));
        }
        Ok(())
    }

    /// The request as it is sent.
    fn reveal(self, values: &mut Secrets) -> crate::error::Result<HttpRequest> {
        let url = self.address(|text| text.reveal(values))?;
        let (headers, secrets) = self.headers.headers(values)?;
        let Self { method, body, timeout, max_bytes, .. } = self;
        Ok(HttpRequest { method, url, headers, secrets, body, timeout, max_bytes })
    }
}

/// The request of `r1.http.get` and `r1.http.post`.
fn send(
    lua: &Lua,
    host: &Rc<Host>,
    is_post: bool,
    (url, options, body): (&Value, &Value, &Value),
) -> mlua::Result<PendingRequest> {
    let (function, method) = if is_post { ("r1.http.post", "POST") } else { ("r1.http.get", "GET") };
    let mut pending = build(lua, host, function, method, url, RequestOptions::read_optional(lua, function, options)?)?;
    if !body.is_nil() && pending.request.body.is_some() {
        let why = "there are two bodies: the second argument, and `json` or `body` of the options";
        return Err(fail(lua, function, why));
    }
    pending.request.set_body(lua, function, body)?;
    Ok(pending)
}

fn request_of(lua: &Lua, host: &Rc<Host>, request: &Value) -> mlua::Result<PendingRequest> {
    const NAME: &str = "r1.http.request";
    let RequestArguments { method, url, options } = RequestArguments::read(lua, NAME, request)?;
    let method = method.to_uppercase();
    let Some(method) = METHODS.into_iter().find(|method_name| *method_name == method) else {
        return Err(fail(lua, NAME, format!("`method` is \"{method}\"; it is one of {}", METHODS.join(", "))));
    };
    build(lua, host, NAME, method, &url, options)
}

fn build(
    lua: &Lua,
    host: &Rc<Host>,
    function: &'static str,
    method: &'static str,
    url: &Value,
    options: RequestOptions,
) -> mlua::Result<PendingRequest> {
    let url = text(lua, function, "url", url)?;
    let RequestOptions { headers, query, body, json, timeout, max_bytes } = options;
    query.check(lua, host, function)?;
    headers.check(lua, host, function)?;
    for (name, value) in &headers.0 {
        if name.is_empty() || [name, &value.shown()].iter().any(|text| text.contains(['\r', '\n', '\0'])) {
            return Err(fail(lua, function, format!("the header {name:?} has a line break in it, or no name")));
        }
    }
    let mut request = UnrevealedRequest { method, url, query, headers, body: None, timeout, max_bytes: max_bytes.0 };
    match (&body, &json) {
        (body, Value::Nil) => request.set_body(lua, function, body)?,
        (Value::Nil, json) => request.set_json(lua, function, json)?,
        _ => return Err(refused(lua, function, "json", "`body` and `json` are both set")),
    }
    let Some((target, port)) = host_and_port(&request.url) else {
        let why = format!("`{}` is not a URL: it must begin with http:// or https://", request.url);
        return Err(fail(lua, function, why));
    };
    if !host.grants.borrow().reaches(&target, port) {
        return Err(undeclared(lua, host, function, &format!("http:{target}")));
    }
    let outside = OutsideCall::new(lua, function, Some((target, port)));
    Ok(PendingRequest { host: host.clone(), call: host.current(), request, outside })
}

impl PendingRequest {
    /// The request as recorded, without secrets.
    fn shown(&self) -> Json {
        let secret = |name: &str| {
            let name = name.to_lowercase();
            ["authorization", "cookie", "key", "token", "secret"].iter().any(|part| name.contains(part))
        };
        let mut headers = self.request.headers.shown();
        headers.iter_mut().filter(|(name, _)| secret(name)).for_each(|(_, value)| *value = "(secret)".into());
        let url = self.request.address(|text| Ok::<_, std::convert::Infallible>(text.shown()));
        let url = url.unwrap_or_else(|never| match never {});
        let body = self.request.body.as_deref().map_or(Json::Null, json_of);
        json!({ "method": self.request.method, "url": url, "headers": headers, "body": body })
    }

    /// The response as a table, or nil and the reason.
    async fn answer(self, lua: &Lua) -> mlua::Result<Result<Table, NilReason>> {
        let shown = self.shown();
        let Self { host, call, request, outside } = self;
        let live = async move {
            let reach = |name: &str, port: u16| host.grants.borrow().reach(name, port);
            let mut secrets = Secrets::default();
            let request = request.reveal(&mut secrets)?;
            Ok(match http(request, &reach).await {
                Ok(answer) => Outcome::Ok(RecordedResponse {
                    status: answer.status,
                    headers: answer.headers.into_iter().map(|(name, value)| (name, secrets.mask(value))).collect(),
                    body: secrets.mask_bytes(answer.body),
                    url: secrets.mask(answer.url),
                }),
                Err(HttpError::NotPublic(why)) => not_public(secrets.mask(why)),
                Err(HttpError::Failed(why)) => failed(secrets.mask(why)),
            })
        };
        let convert = |RecordedResponse { status, headers, body, url }: RecordedResponse| {
            let table = lua.create_table_with_capacity(0, 4)?;
            table.raw_set("status", status)?;
            table.raw_set("url", url)?;
            table.raw_set("body", lua.create_string(body)?)?;
            table.raw_set("headers", headers)?;
            Ok(table)
        };
        outside.answer(&call, ("http", shown), live, convert).await
    }
}

#[derive(Serialize, Deserialize)]
struct RecordedResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    #[serde(serialize_with = "write_bytes", deserialize_with = "read_bytes")]
    body: Vec<u8>,
    url: String,
}

fn write_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    json_of(bytes).serialize(serializer)
}

fn read_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    Json::deserialize(deserializer).map(|json| bytes_of(&json))
}
