//! An HTTP client whose exchanges can report progress and be cancelled.
//!
//! Each exchange runs on its own thread and sends its pieces through a bounded channel. Ctrl-C
//! therefore works while a server does not respond, and hashing and writing overlap with the
//! transfer. Redirects are not followed, and no status is an error here: the caller handles both.
//!
//! [`http()`] is one exchange with redirects, within limits, for scripts and tools. [`serve()`] is
//! a small HTTP server, [`WebSocket`] a client of WebSocket servers.

mod http;
mod incoming;
mod names;
mod server;
mod stream;
mod url;
mod websocket;

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::DefaultConnector;

use self::names::{Inside, NameResolver, Unresolved};
use self::stream::{no_proxy_answer, proxy_for};
use r1_base::error::{Error, Kind, Result};

pub use http::{
    AllowedAddresses, HttpError, HttpRequest, HttpResponse, METHODS, http, is_private_host, url_with_query,
};
pub use incoming::Incoming;
pub use names::is_public;
pub use server::{
    HeldBytes, ServedRequest, ServedResponse, ServerLimits, is_equal, is_local, query_pairs, read_body,
    refuse_web_pages, refused, serve, serve_streams, serve_text,
};
pub use ureq::http::{HeaderMap, HeaderName, HeaderValue};
pub use url::{escape, host_and_port, origin, redirect};
pub use websocket::{SocketTarget, WebSocket, http_url};

/// Interval at which `stop` is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The name of this program in requests.
const AGENT: &str = concat!("r1/", env!("CARGO_PKG_VERSION"));
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per piece, and the number of pieces in the channel.
const PIECE: usize = 64 * 1024;
const CHANNEL_PIECES: usize = 16;

/// An HTTP client; clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
}

#[derive(Clone, Debug, Default)]
pub struct WebRequest {
    /// `GET` when empty.
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(Cow<'static, str>, String)>,
    pub body: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct FullResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The cause of a failed exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `stop` returned true.
    Stopped,
    /// No connection: the name can't be resolved, or the host does not accept it. With the system's
    /// message.
    Absent(String),
    /// The name resolves to an address that is not public, and the client allows only public ones;
    /// the address.
    NotPublic(String),
    /// The transfer failed; with the system's message.
    Broken(String),
}

/// The head of a response, and its body as it arrives.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pieces: Receiver<BodyPiece>,
}

#[derive(Debug)]
enum BodyPiece {
    Head(u16, HeaderMap),
    Body(Vec<u8>),
    End,
    Broken(Fault),
}

impl Client {
    /// `silence`: the longest wait for the next byte. Proxies come from the environment
    /// (HTTPS_PROXY, NO_PROXY), as do additional certificates (SSL_CERT_FILE, REQUESTS_CA_BUNDLE).
    ///
    /// # Errors
    /// [`Kind::Usage`] for a certificate file that can't be read.
    pub fn new(silence: Duration) -> Result<Self> {
        Self::with(silence, NameResolver::default())
    }

    /// A client for public addresses only: no address of this machine, its network or its cloud's
    /// services, for any host name. A proxy of the environment may have any address.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn public(silence: Duration) -> Result<Self> {
        Self::with(silence, NameResolver::public_only())
    }

    fn with(silence: Duration, resolver: impl Resolver) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(roots) = own_certificates()? {
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(AGENT)
            // Ranges and checksums refer to the unencoded bytes.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // The whole head, which a server may send byte by byte.
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .build();
        Ok(Self { agent: Agent::with_parts(config, DefaultConnector::default(), resolver) })
    }

    /// Sends the request and returns the complete response with a body of at most `max_bytes`
    /// bytes. A dropped future ends the exchange at the next bytes or at the time limit.
    pub async fn exchange(&self, request: WebRequest, max_bytes: usize) -> Result<FullResponse, Fault> {
        let mut response = self.open(request).await?;
        let headers = std::mem::take(&mut response.headers);
        Ok(FullResponse { status: response.status, headers, body: response.whole(max_bytes).await? })
    }

    /// Sends the request and waits for the head of the response.
    pub fn send(&self, request: WebRequest, stop: &dyn Fn() -> bool) -> Result<Response, Fault> {
        let (sender, pieces) = sync_channel(CHANNEL_PIECES);
        self.start(request, move |piece| sender.send(piece).is_ok())?;
        match wait(&pieces, stop)? {
            BodyPiece::Head(status, headers) => Ok(Response { status, headers, pieces }),
            BodyPiece::Broken(fault) => Err(fault),
            BodyPiece::Body(_) | BodyPiece::End => Err(Fault::Broken("a response without a head".to_owned())),
        }
    }

    /// Sends the request on a new thread, which passes the response to `take` until that
    /// returns false, because the receiver was dropped.
    fn start(&self, request: WebRequest, take: impl Fn(BodyPiece) -> bool + Send + 'static) -> Result<(), Fault> {
        let agent = self.agent.clone();
        let exchange = move || {
            let url = request.url.clone();
            let (head, body) = match call(&agent, request) {
                Ok(answer) => answer.into_parts(),
                Err(error) => {
                    take(BodyPiece::Broken(fault(&agent, &url, &error)));
                    return;
                }
            };
            let mut reader = body.into_with_config().limit(u64::MAX).reader();
            let mut going_on = take(BodyPiece::Head(head.status.as_u16(), head.headers));
            let mut bytes = vec![0; PIECE];
            while going_on {
                let piece = match reader.read(&mut bytes) {
                    Ok(0) => BodyPiece::End,
                    Ok(count) => BodyPiece::Body(bytes[..count].to_vec()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => BodyPiece::Broken(Fault::Broken(body_error_message(&agent, &error))),
                };
                let is_body = matches!(piece, BodyPiece::Body(_));
                going_on = take(piece) && is_body;
            }
        };
        let thread = std::thread::Builder::new().name("net".to_owned()).spawn(exchange);
        thread.map(drop).map_err(|error| Fault::Broken(format!("can't start a thread: {error}")))
    }
}

impl Response {
    /// A header's text; `None` if it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The next bytes of the body; `None` at the end.
    pub fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, Fault> {
        match wait(&self.pieces, stop)? {
            BodyPiece::Body(bytes) => Ok(Some(bytes)),
            BodyPiece::End => Ok(None),
            BodyPiece::Broken(fault) => Err(fault),
            BodyPiece::Head(..) => Err(Fault::Broken("two heads".to_owned())),
        }
    }

    /// The complete body, at most `max_bytes` bytes that arrive within `time`.
    pub fn bytes(mut self, max_bytes: usize, time: Duration, stop: &dyn Fn() -> bool) -> Result<Vec<u8>, Fault> {
        let (mut all, begun) = (Vec::new(), Instant::now());
        while let Some(bytes) = self.next(stop)? {
            if begun.elapsed() > time {
                return Err(Fault::Broken(format!("the response did not end within {} s", time.as_secs_f64())));
            }
            if all.len() + bytes.len() > max_bytes {
                return Err(Fault::Broken(format!("the response has more than {max_bytes} bytes")));
            }
            all.extend(bytes);
        }
        Ok(all)
    }
}

/// A failure before the response of a URL.
fn fault(agent: &Agent, url: &str, error: &ureq::Error) -> Fault {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    if let ureq::Error::Other(inner) = error
        && inner.is::<Inside>()
    {
        return Fault::NotPublic(inner.to_string());
    }
    let absent = match error {
        ureq::Error::HostNotFound | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        ureq::Error::Other(inner) => inner.is::<Unresolved>(),
        ureq::Error::Io(error) => {
            [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable]
                .contains(&error.kind())
        }
        _ => false,
    };
    let why = error_message(agent, error);
    if !absent {
        return Fault::Broken(why);
    }
    // The address that was not reached is the proxy's.
    Fault::Absent(match proxy_for(agent.config().proxy(), url) {
        Some(proxy) => no_proxy_answer(proxy, &why),
        None => why,
    })
}

/// The system's message of a failure; for a time-out, its length.
fn error_message(agent: &Agent, error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())
        }
        ureq::Error::Timeout(_) => {
            let silence = agent.config().timeout_per_read().unwrap_or_default();
            format!("no data for {} s", silence.as_secs_f64())
        }
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            "connection refused".to_owned()
        }
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// The same for a failure inside a body.
fn body_error_message(agent: &Agent, error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    inner.map_or_else(|| error.to_string(), |inner| error_message(agent, inner))
}

fn call(agent: &Agent, request: WebRequest) -> std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error> {
    let method = if request.method.is_empty() { "GET" } else { request.method };
    let mut head = ureq::http::Request::builder().method(method).uri(&request.url);
    for (name, value) in request.headers {
        head = head.header(name.as_ref(), value);
    }
    match request.body {
        Some(body) => agent.run(head.body(body)?),
        None => agent.run(head.body(())?),
    }
}

fn wait(pieces: &Receiver<BodyPiece>, stop: &dyn Fn() -> bool) -> Result<BodyPiece, Fault> {
    loop {
        if stop() {
            return Err(Fault::Stopped);
        }
        match pieces.recv_timeout(POLL_INTERVAL) {
            Ok(piece) => return Ok(piece),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Fault::Broken("the connection was lost".to_owned())),
        }
    }
}

/// Sleeps, but not past `stop`.
pub fn pause(length: Duration, stop: &dyn Fn() -> bool) -> Result<(), Fault> {
    let until = Instant::now() + length;
    loop {
        if stop() {
            return Err(Fault::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// The certificates that the environment names instead of Mozilla's.
fn own_certificates() -> Result<Option<Vec<Certificate<'static>>>> {
    let named = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"].into_iter().find_map(|name| {
        let path = std::env::var_os(name).filter(|path| !path.is_empty())?;
        Some((name, std::path::PathBuf::from(path)))
    });
    // REQUESTS_CA_BUNDLE may name a directory, which only OpenSSL can read.
    let Some((name, path)) = named.filter(|(_, path)| !path.is_dir()) else { return Ok(None) };
    let bytes = fs::read(&path).map_err(|error| {
        Error::io(Kind::Usage, "read the certificates", &path, &error).hint(format!("{name} names this file"))
    })?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::new(Kind::Usage, "the file holds no certificate")
            .at_path(&path)
            .hint(format!("{name} names this file; it must hold certificates in PEM form")));
    }
    Ok(Some(certificates))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_head_that_arrives_byte_by_byte_ends_with_the_time_limit() {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy";
            for byte in head.bytes() {
                std::thread::sleep(Duration::from_millis(50));
                // The client has left.
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
            }
        });
        let client = Client::new(Duration::from_millis(500)).unwrap();
        let fault = client.send(WebRequest { url, ..WebRequest::default() }, &|| false).err().unwrap();
        assert_eq!(fault, Fault::Broken("no data for 0.5 s".to_owned()));
        server.join().unwrap();
    }

    #[test]
    fn a_proxy_that_is_not_reached_is_named() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let proxy = ureq::Proxy::builder(ureq::ProxyProtocol::Http).host("127.0.0.1").port(port);
        let config = Agent::config_builder().proxy(Some(proxy.no_proxy("localhost").build().unwrap())).build();
        let agent = Agent::new_with_config(config);
        let get = |host: &str| {
            let request = WebRequest { url: format!("http://{host}:{port}/"), ..WebRequest::default() };
            Client { agent: agent.clone() }.send(request, &|| false).unwrap_err()
        };
        let hint = "check ALL_PROXY, HTTPS_PROXY and HTTP_PROXY, or list the server's host in NO_PROXY";
        let why = format!("the proxy 127.0.0.1:{port}: connection refused; {hint}");
        assert_eq!(get("room.co"), Fault::Absent(why));
        assert_eq!(get("localhost"), Fault::Absent("connection refused".to_owned()));
    }
}

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
