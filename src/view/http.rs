//! The server: the page, its JSON, and the events. Requests need the token in the path, so that
//! other users of the machine get nothing; those of other web pages are refused by `Host` and
//! `Origin`. The page may load nothing from elsewhere, and no script but its own (the header
//! `Content-Security-Policy`), whatever a trajectory contains.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use super::page::{FILES, INDEX, PageFile};
use super::{Query, View, events};
use crate::error::{Error, Kind};
use crate::net::{ServerLimits, is_equal, is_local, query_pairs, read_body, refuse_web_pages, refused, serve_streams};
use crate::telemetry::prometheus;

/// Largest request: the notes of a trajectory.
const BODY: usize = 256 << 10;

/// What the page may load: itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type HttpReply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Serves the page at `http://ADDRESS/TOKEN/` until `stop` completes.
pub async fn serve(listener: TcpListener, view: Arc<View>, token: String, stop: impl Future<Output = ()>) {
    let local = is_local(&listener);
    let token: Arc<str> = token.into();
    let handler = move |request: Request<Incoming>| {
        let (view, token) = (Arc::clone(&view), Arc::clone(&token));
        async move {
            let mut reply = match refuse_web_pages(request.headers(), local) {
                Some(refusal) => refusal.map(BodyExt::boxed_unsync),
                None => answer(view, &token, request).await,
            };
            let headers: [(HeaderName, &'static str); 4] = [
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                // The address has the token.
                (REFERRER_POLICY, "no-referrer"),
                (CACHE_CONTROL, "no-store"),
            ];
            for (name, value) in headers {
                reply.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            reply
        }
    };
    serve_streams(listener, ServerLimits::new(BODY), handler, stop).await;
}

async fn answer(view: Arc<View>, token: &str, request: Request<Incoming>) -> HttpReply {
    let path = request.uri().path().to_owned();
    // CONNECT and OPTIONS may have a target that is no path.
    let path = path.strip_prefix('/').unwrap_or_default();
    let (first, rest) = match path.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    if !is_equal(first.as_bytes(), token.as_bytes()) {
        let why = "the address lacks the token: open the one that `r1 view` printed";
        return refused(403, why).map(BodyExt::boxed_unsync);
    }
    let Some(rest) = rest else {
        let mut moved = plain(308, "text/plain", Vec::new());
        if let Ok(value) = HeaderValue::from_str(&format!("/{token}/")) {
            moved.headers_mut().insert(LOCATION, value);
        }
        return moved;
    };
    let is_write = rest == "api/curation";
    let allowed = if is_write { Method::POST } else { Method::GET };
    let is_head = *request.method() == Method::HEAD && !is_write;
    if *request.method() != allowed && !is_head {
        let mut wrong = failed(405, &Error::new(Kind::Usage, format!("the method is not {allowed}")));
        wrong.headers_mut().insert(ALLOW, HeaderValue::from_static(if is_write { "POST" } else { "GET" }));
        return wrong;
    }
    if rest.is_empty() {
        return file(&INDEX);
    }
    if let Some(page_file) = FILES.iter().find(|file| file.name == rest) {
        return file(page_file);
    }
    if rest == "metrics" {
        let text = tokio::task::spawn_blocking(move || view.exposition()).await.unwrap_or_default();
        return plain(200, prometheus::CONTENT_TYPE, text.into_bytes());
    }
    let Some(name) = rest.strip_prefix("api/").map(str::to_owned) else {
        return failed(404, &Error::new(Kind::Usage, "there is no such page"));
    };
    if name == "events" {
        return events::stream(view);
    }
    let query = query_pairs(request.uri().query().unwrap_or_default());
    let body = if is_write {
        let is_json = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.starts_with("application/json"));
        if !request.headers().get(CONTENT_TYPE).is_some_and(is_json) {
            return failed(415, &Error::new(Kind::Usage, "the body must be application/json"));
        }
        match read_body(request.into_body(), ServerLimits::new(BODY)).await {
            Ok((body, _held)) => Some(body),
            Err(refusal) => return refusal.map(BodyExt::boxed_unsync),
        }
    } else {
        None
    };
    let read = tokio::task::spawn_blocking(move || match body {
        Some(body) => view.curate(Query(&query), &body),
        None => view.get(&name, Query(&query)),
    });
    match read.await {
        Ok(Ok(json)) => plain(200, "application/json", json.into_bytes()),
        Ok(Err(error)) => failed(if error.kind == Kind::Usage { 400 } else { 500 }, &error),
        Err(_) => failed(500, &Error::new(Kind::Internal, "the request failed")),
    }
}

fn file(file: &PageFile) -> HttpReply {
    let body = Full::new(Bytes::from_static(file.bytes)).boxed_unsync();
    let mut reply = Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(file.media_type));
    reply
}

pub(super) fn plain(status: u16, media_type: &'static str, body: Vec<u8>) -> HttpReply {
    let mut reply = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    reply
}

fn failed(status: u16, error: &Error) -> HttpReply {
    let json = serde_json::json!({ "detail": error.message, "place": error.place, "hint": error.hint });
    plain(status, "application/json", json.to_string().into_bytes())
}

#[cfg(test)]
mod tests;
