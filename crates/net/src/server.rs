//! A small HTTP/1.1 server over `hyper`: whole requests in, whole JSON responses out.
//!
//! It is for services on this machine or a trusted network: no TLS and no authentication.
//! Everything that a client may send is limited: the head, the body, the time for both, the number
//! of connections, and the bytes of all bodies at a time.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Largest head of a request in bytes, and maximum number of headers.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 64;
/// Longest time in which the rest of a client's data is read after the last response.
const DRAIN: Duration = Duration::from_millis(500);

/// Maximum bytes of all requests that are read or answered at a time, or of one request.
const AT_ONCE: usize = 64 << 20;
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes that requests of clients hold in memory, until it is dropped.
#[derive(Debug, Default)]
pub struct HeldBytes(usize);

impl HeldBytes {
    /// Counts more bytes; false if all clients would hold more than the limit. One client alone may
    /// hold `limit` bytes.
    #[must_use]
    pub fn add(&mut self, bytes: usize, limit: usize) -> bool {
        let free = |all: usize| Some(all + bytes).filter(|all| *all <= AT_ONCE.max(limit));
        let is_free = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok();
        self.0 += if is_free { bytes } else { 0 };
        is_free
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Limits of what clients may send.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Largest body of a request, in bytes.
    pub body: usize,
    /// Longest wait for the head of the next request of a connection.
    pub head_wait: Duration,
    /// Longest wait for the body of a request.
    pub body_wait: Duration,
    /// Maximum number of concurrent connections; others wait.
    pub connections: usize,
}

impl ServerLimits {
    /// Limits with the largest body in bytes, and the defaults of the others.
    pub fn new(body: usize) -> Self {
        Self { body, head_wait: Duration::from_secs(75), body_wait: Duration::from_secs(30), connections: 1024 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedRequest {
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// Decoded names and values of the query.
    pub query: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A response with a JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Whether a server can only be reached from this machine.
pub fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

/// Equality whose time does not depend on the place of the first difference, for secrets.
pub fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Decoded names and values of the query of an address.
pub fn query_pairs(query: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

/// The refusal of a request that a web page of another site makes in a browser on this machine: its
/// `Origin`, or, where the page's name was made to resolve to this server (DNS rebinding), its
/// `Host`. `local`: [`is_local`].
pub fn refuse_web_pages(headers: &HeaderMap, local: bool) -> Option<Response<Full<Bytes>>> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(HOST);
    if let Some(host) = host.filter(|_| local)
        && !is_this_machine(host)
    {
        return Some(refused(403, "the header `Host` is not this machine: use localhost or 127.0.0.1"));
    }
    let is_same_host = |origin: &str| origin.split_once("://").map(|(_, authority)| authority) == host;
    let origin = text(ORIGIN).filter(|origin| !is_same_host(origin))?;
    let why = format!("requests of web pages are refused: the header `Origin` is {origin}");
    Some(refused(403, &why))
}

/// Whether the value of `Host` is a name of this machine.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Answers connections until `stop` completes. Requests of web pages are refused
/// ([`refuse_web_pages`]).
pub async fn serve<H, F>(listener: TcpListener, limits: ServerLimits, handler: H, stop: impl Future<Output = ()>)
where
    H: Fn(ServedRequest) -> F + Send + Sync + 'static,
    F: Future<Output = ServedResponse> + Send + 'static,
{
    let handler = Arc::new(handler);
    let local = is_local(&listener);
    serve_streams(listener, limits, move |request| respond(request, limits, local, Arc::clone(&handler)), stop).await;
}

/// Answers `GET path` with the current text of `text`, until `stop` completes. Requests of web
/// pages are refused ([`refuse_web_pages`]).
pub async fn serve_text(
    listener: TcpListener,
    path: &'static str,
    content_type: &'static str,
    text: impl Fn() -> String + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) {
    let local = is_local(&listener);
    let answer = move |request: Request<Incoming>| {
        let response = if let Some(refusal) = refuse_web_pages(request.headers(), local) {
            refusal
        } else if request.uri().path() != path {
            refused(404, &format!("there is only {path}"))
        } else if request.method() != Method::GET {
            refused(405, "use GET")
        } else {
            let mut response = Response::new(Full::from(text()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            response
        };
        std::future::ready(response)
    };
    serve_streams(listener, ServerLimits::new(0), answer, stop).await;
}

/// As [`serve`], for a handler that reads bodies itself and may answer with streams.
pub async fn serve_streams<H, F, B>(
    listener: TcpListener,
    limits: ServerLimits,
    handler: H,
    stop: impl Future<Output = ()>,
) where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let handler = Arc::new(handler);
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_wait).max_buf_size(HEAD).max_headers(HEADERS);
    // A client may close its half of the connection after its last request.
    http.half_close(true);
    let accept = async {
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            // A failed accept, such as one without a free descriptor, concerns one connection.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let handler = Arc::clone(&handler);
            let service = service_fn(move |request| {
                let response = handler(request);
                async { Ok::<_, Infallible>(response.await) }
            });
            // Without a delay for small responses; a failure of this is one of the connection.
            let _ = stream.set_nodelay(true);
            let mut connection = http.serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move {
                // Errors of a connection are dropped: its client is gone.
                let _ = (&mut connection).await;
                drain(connection.into_parts().io.into_inner()).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop => {}
    }
}

/// Reads the rest of a client's data for a moment, so that the client of a refused request
/// receives the response instead of a reset.
async fn drain(mut stream: TcpStream) {
    let rest = async {
        let mut rest = [0; 1024];
        while matches!(stream.read(&mut rest).await, Ok(count) if count > 0) {}
    };
    let _ = Box::pin(timeout(DRAIN, rest)).await;
}

/// The response to a request, or the refusal of its body.
async fn respond<H, F>(
    request: Request<Incoming>,
    limits: ServerLimits,
    local: bool,
    handler: Arc<H>,
) -> Response<Full<Bytes>>
where
    H: Fn(ServedRequest) -> F,
    F: Future<Output = ServedResponse>,
{
    if let Some(refusal) = refuse_web_pages(request.headers(), local) {
        return refusal;
    }
    let (head, body) = request.into_parts();
    let (body, _held) = match read_body(body, limits).await {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    let request = ServedRequest {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: query_pairs(head.uri.query().unwrap_or_default()),
        body,
    };
    let ServedResponse { status, body } = handler(request).await;
    response(status, body)
}

/// The body of a request, and the count of its bytes.
///
/// # Errors
/// The response for a body that is too large, incomplete or late, or that comes while other bodies
/// are in memory.
pub async fn read_body(
    body: Incoming,
    limits: ServerLimits,
) -> Result<(Vec<u8>, HeldBytes), Box<Response<Full<Bytes>>>> {
    let refuse = |status, why| Err(Box::new(refused(status, why)));
    if body.size_hint().lower() > limits.body as u64 {
        return refuse(413, "the body is too large");
    }
    let (mut body, mut bytes, mut held) = (Limited::new(body, limits.body), Vec::new(), HeldBytes::default());
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if !held.add(data.len(), limits.body) {
                return Ok(false);
            }
            bytes.extend_from_slice(&data);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(true)
    };
    match timeout(limits.body_wait, read).await {
        Ok(Ok(true)) => Ok((bytes, held)),
        Ok(Ok(false)) => refuse(503, "the requests under way have too many bytes: try again later"),
        Ok(Err(error)) if error.is::<LengthLimitError>() => refuse(413, "the body is too large"),
        Ok(Err(_)) => refuse(400, "the body is incomplete"),
        Err(_) => refuse(408, "the body was not received in time"),
    }
}

fn response(status: u16, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The response to a request that is not passed on; the connection ends.
pub fn refused(status: u16, why: &str) -> Response<Full<Bytes>> {
    let mut refusal = response(status, serde_json::json!({ "detail": why }).to_string().into_bytes());
    refusal.headers_mut().insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream as Plain};

    use super::*;

    /// A server on its own thread that returns its requests; `/slow` takes a moment.
    fn echo() -> SocketAddr {
        echo_with(ServerLimits::new(1000))
    }

    fn echo_with(limits: ServerLimits) -> SocketAddr {
        let (sender, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let handler = |request: ServedRequest| async move {
                    if request.path == "/slow" {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    ServedResponse { status: 200, body: format!("{request:?}").into_bytes() }
                };
                serve(listener, limits, handler, std::future::pending()).await;
            });
        });
        address.recv().unwrap()
    }

    /// The bytes that the server sends for the bytes of a client that sends no more.
    fn sent(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = Plain::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        // The server may have closed the connection.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_http_server_answers_requests_of_one_connection_in_turn() {
        let address = echo();
        let text = sent(
            address,
            b"GET /a?x=1+2&y=%C3%A9&z HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /b HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        );
        let bodies: Vec<&str> = text.split("HTTP/1.1 200 OK").skip(1).collect();
        assert_eq!(bodies.len(), 2, "{text}");
        assert!(bodies[0].contains(r#"path: "/a", query: [("x", "1 2"), ("y", "é"), ("z", "")]"#), "{text}");
        assert!(
            !bodies[0].contains("connection: close") && bodies[1].contains(r#"method: "POST", path: "/b""#),
            "{text}"
        );
        assert!(bodies[1].contains("body: [123, 125]"), "{text}");
        let text = sent(address, b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n");
        assert_eq!(text.matches("200 OK").count(), 1, "HTTP/1.0 closes: {text}");
    }

    #[test]
    fn the_http_server_refuses_hostile_requests_and_goes_on() {
        let address = echo();
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        let chunked = |size: usize| {
            format!(
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{size:x}\r\n{}\r\n0\r\n\r\n",
                "x".repeat(size)
            )
        };
        for (bytes, status) in [
            (b"\x16\x03\x01\x02\x00 TLS".as_slice(), "400"),
            (b"nonsense\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n", "413"),
            (chunked(1001).as_bytes(), "413"),
            (chunked(1000).as_bytes(), "200"),
            (format!("POST / HTTP/1.1\r\ncontent-length: 1000\r\n\r\n{}", "x".repeat(1000)).as_bytes(), "200"),
            (long.as_bytes(), "4"),
            (many.as_bytes(), "431"),
        ] {
            let text = sent(address, bytes);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{bytes:?}: {text}");
        }
        // The connection ends after a refusal.
        let refused = sent(address, b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        assert!(refused.contains("too large") && refused.contains("connection: close"), "{refused}");
        assert!(!refused.contains("200 OK"), "{refused}");
        // A body and a head that do not end are not passed on.
        let half = sent(address, b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf");
        assert!(!half.contains("200 OK"), "{half}");
        assert!(!sent(address, b"GET / HT").contains("200 OK"));
        assert!(sent(address, b"GET / HTTP/1.1\r\n\r\n").contains("200 OK"));
    }

    #[test]
    fn secrets_are_equal_in_all_bytes() {
        assert!(is_equal(b"Bearer a", b"Bearer a") && !is_equal(b"Bearer a", b"Bearer b") && !is_equal(b"", b"a"));
    }

    #[test]
    fn requests_of_web_pages_are_refused() {
        let address = echo();
        let status = |headers: &str| {
            let text = sent(address, format!("GET /a HTTP/1.1\r\n{headers}\r\n").as_bytes());
            text.split(' ').nth(1).unwrap().to_owned()
        };
        for headers in ["Host: localhost:80\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:9\r\n", "Host: LOCALHOST\r\n"] {
            assert_eq!(status(headers), "200", "{headers}");
            assert_eq!(status(&format!("{headers}Origin: http://evil.example\r\n")), "403", "{headers}");
        }
        assert_eq!(status("Host: localhost:80\r\nOrigin: http://localhost:80\r\n"), "200");
        for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "", "[x"] {
            assert_eq!(status(&format!("Host: {host}\r\n")), "403", "{host}");
        }
        // A server for other machines has names that it does not know.
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        assert!(refuse_web_pages(&headers(&[("host", "gpu7")]), false).is_none());
        assert!(refuse_web_pages(&headers(&[("host", "gpu7"), ("origin", "http://evil.example")]), false).is_some());
        assert!(refuse_web_pages(&headers(&[("host", "gpu7"), ("origin", "null")]), false).is_some());
    }

    #[test]
    fn bodies_of_all_clients_have_a_limit() {
        let address = echo();
        let body = format!("POST / HTTP/1.1\r\ncontent-length: 900\r\n\r\n{}", "x".repeat(900));
        let mut others = HeldBytes::default();
        assert!(others.add(AT_ONCE - 800, 0) && !others.add(801, 0));
        let text = sent(address, body.as_bytes());
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("too many bytes"), "{text}");
        drop(others);
        // Bodies are counted until their responses.
        for _ in 0..2 {
            assert!(sent(address, body.as_bytes()).contains("200 OK"));
        }
        assert_eq!(HELD.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_client_that_has_closed_its_half_receives_a_late_response() {
        assert!(sent(echo(), b"GET /slow HTTP/1.1\r\n\r\n").contains("200 OK"));
    }

    #[test]
    fn a_client_that_still_sends_receives_the_refusal() {
        let mut stream = Plain::connect(echo()).unwrap();
        stream.write_all(b"POST / HTTP/1.1\r\ncontent-length: 400000\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&vec![b'x'; 400_000]).unwrap();
        let mut text = String::new();
        // A connection that was reset is an error here.
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    }

    #[test]
    fn the_http_server_limits_waits_and_connections() {
        let wait = Duration::from_millis(200);
        let limits = ServerLimits { head_wait: wait, body_wait: wait, connections: 1, ..ServerLimits::new(1000) };
        let address = echo_with(limits);
        // What the server sends while the client keeps its half of the connection open.
        let read = |mut stream: Plain| {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let open = |bytes: &[u8]| {
            let mut stream = Plain::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let late = read(open(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"));
        assert!(late.starts_with("HTTP/1.1 408") && late.contains("not received in time"), "{late}");
        assert!(!read(open(b"GET / HT")).contains("200 OK"));
        // The second connection waits until the first, which sends nothing, is closed.
        let started = std::time::Instant::now();
        let first = open(b"");
        let second = read(open(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"));
        assert!(second.contains("200 OK") && started.elapsed() >= wait, "{second} {:?}", started.elapsed());
        drop(first);
    }
}
