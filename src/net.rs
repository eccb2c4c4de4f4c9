//! An HTTP client whose exchanges can report progress and be cancelled.
//!
//! Each exchange runs on its own thread and sends its pieces through a bounded channel. Ctrl-C
//! therefore works while a server does not respond, and hashing and writing overlap with the
//! transfer. Redirects are not followed, and no status is an error here: the caller handles both.

use std::borrow::Cow;
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, http};

use crate::error::{Error, Kind, Result};

pub use ureq::http::HeaderMap;

/// Interval at which `stop` is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
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

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET` when empty.
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(Cow<'static, str>, String)>,
    pub body: Option<Vec<u8>>,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct FullResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Why an exchange failed.
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
    pieces: Receiver<Piece>,
}

#[derive(Debug)]
enum Piece {
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
        Self::with(silence, DefaultResolver::default())
    }

    /// A client for public addresses only: none of this machine, its network or its cloud's
    /// services, for any host name. A proxy of the environment may have any address.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn public(silence: Duration) -> Result<Self> {
        Self::with(silence, PublicOnly::default())
    }

    fn with(silence: Duration, resolver: impl Resolver) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(roots) = own_certificates()? {
            tls = tls.root_certs(roots);
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("r1/", env!("CARGO_PKG_VERSION")))
            // Ranges and checksums refer to the unencoded bytes.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .build();
        Ok(Self { agent: Agent::with_parts(config, DefaultConnector::default(), resolver) })
    }

    /// Sends the request and returns the complete response with a body of at most `max_bytes`
    /// bytes. A dropped future ends the exchange at the next bytes or at the time limit.
    pub async fn exchange(&self, request: Request, max_bytes: usize) -> Result<FullResponse, Fault> {
        let (sender, answer) = oneshot::channel();
        let agent = self.agent.clone();
        let exchange = move || {
            let whole = read_whole(&agent, request, max_bytes, &|| sender.is_closed());
            // The receiver may have been dropped.
            let _ = sender.send(whole);
        };
        let thread = std::thread::Builder::new().name("net".to_owned()).spawn(exchange);
        thread.map_err(|error| Fault::Broken(format!("can't start a thread: {error}")))?;
        answer.await.unwrap_or_else(|_| Err(Fault::Broken("the connection was lost".to_owned())))
    }

    /// Sends the request and waits for the head of the response.
    pub fn send(&self, request: Request, stop: &dyn Fn() -> bool) -> Result<Response, Fault> {
        let (sender, pieces) = sync_channel(CHANNEL_PIECES);
        let agent = self.agent.clone();
        let exchange = move || {
            let sent = match call(&agent, request) {
                Err(error) => sender.send(Piece::Broken(fault(&agent, &error))),
                Ok(answer) => {
                    let (head, body) = answer.into_parts();
                    let mut reader = body.into_with_config().limit(u64::MAX).reader();
                    let mut sent = sender.send(Piece::Head(head.status.as_u16(), head.headers));
                    let mut piece = vec![0; PIECE];
                    while sent.is_ok() {
                        sent = match reader.read(&mut piece) {
                            Ok(0) => {
                                // The receiver may have been dropped.
                                let _ = sender.send(Piece::End);
                                return;
                            }
                            Ok(count) => sender.send(Piece::Body(piece[..count].to_vec())),
                            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                            Err(error) => {
                                let _ = sender.send(Piece::Broken(Fault::Broken(body_error_message(&agent, &error))));
                                return;
                            }
                        };
                    }
                    sent
                }
            };
            // The receiver was dropped.
            drop(sent);
        };
        std::thread::Builder::new()
            .name("net".to_owned())
            .spawn(exchange)
            .map_err(|error| Fault::Broken(format!("can't start a thread: {error}")))?;
        match wait(&pieces, stop)? {
            Piece::Head(status, headers) => Ok(Response { status, headers, pieces }),
            Piece::Broken(fault) => Err(fault),
            Piece::Body(_) | Piece::End => Err(Fault::Broken("a response without a head".to_owned())),
        }
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
            Piece::Body(bytes) => Ok(Some(bytes)),
            Piece::End => Ok(None),
            Piece::Broken(fault) => Err(fault),
            Piece::Head(..) => Err(Fault::Broken("two heads".to_owned())),
        }
    }

    /// The complete body, at most `max_bytes` bytes.
    pub fn bytes(mut self, max_bytes: usize, stop: &dyn Fn() -> bool) -> Result<Vec<u8>, Fault> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next(stop)? {
            if all.len() + bytes.len() > max_bytes {
                return Err(Fault::Broken(format!("the response has more than {max_bytes} bytes")));
            }
            all.extend(bytes);
        }
        Ok(all)
    }
}

fn read_whole(
    agent: &Agent,
    request: Request,
    max_bytes: usize,
    stop: &dyn Fn() -> bool,
) -> Result<FullResponse, Fault> {
    let answer = call(agent, request).map_err(|error| fault(agent, &error))?;
    let (head, body) = answer.into_parts();
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
    loop {
        if stop() {
            return Err(Fault::Stopped);
        }
        match reader.read(&mut piece) {
            Ok(0) => return Ok(FullResponse { status: head.status.as_u16(), headers: head.headers, body: bytes }),
            Ok(count) if bytes.len() + count > max_bytes => {
                return Err(Fault::Broken(format!("the response has more than {max_bytes} bytes")));
            }
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Broken(body_error_message(agent, &error))),
        }
    }
}

/// A failure before the response.
fn fault(agent: &Agent, error: &ureq::Error) -> Fault {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    if let ureq::Error::Other(inner) = error
        && inner.is::<Inside>()
    {
        return Fault::NotPublic(inner.to_string());
    }
    let absent = match error {
        ureq::Error::HostNotFound | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        // Names that can't be resolved have no error kind of their own.
        ureq::Error::Io(error) => {
            [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable]
                .contains(&error.kind())
                || error.to_string().starts_with("failed to lookup address")
        }
        _ => false,
    };
    let why = error_message(agent, error);
    if absent { Fault::Absent(why) } else { Fault::Broken(why) }
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

fn call(agent: &Agent, request: Request) -> std::result::Result<http::Response<ureq::Body>, ureq::Error> {
    let method = if request.method.is_empty() { "GET" } else { request.method };
    let mut head = http::Request::builder().method(method).uri(&request.url);
    for (name, value) in request.headers {
        head = head.header(name.as_ref(), value);
    }
    match request.body {
        Some(body) => agent.run(head.body(body)?),
        None => agent.run(head.body(())?),
    }
}

fn wait(pieces: &Receiver<Piece>, stop: &dyn Fn() -> bool) -> Result<Piece, Fault> {
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

/// `scheme://host:port` of a URL, the scope of credentials. `None` if it is not http or https.
pub fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?;
    let port = match (uri.port_u16(), scheme) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        _ => return None,
    };
    Some(format!("{scheme}://{}:{port}", uri.host()?.to_ascii_lowercase()))
}

/// The target of a `Location` relative to `base`. `None` if it must not be followed: not http(s),
/// or from https to http.
pub fn redirect(base: &str, location: &str) -> Option<String> {
    let scheme = base.split_once("://")?.0;
    if location.is_empty() {
        return None;
    }
    let target = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else {
        let start = base.find("://")? + 3;
        let host_end = base[start..].find(['/', '?', '#']).map_or(base.len(), |at| start + at);
        let path_end = base[host_end..].find(['?', '#']).map_or(base.len(), |at| host_end + at);
        let folder = base[host_end..path_end].rfind('/').map_or(host_end, |at| host_end + at);
        if location.starts_with('/') {
            format!("{}{location}", &base[..host_end])
        } else {
            format!("{}/{location}", &base[..folder])
        }
    };
    let origin = origin(&target)?;
    (scheme != "https" || origin.starts_with("https://")).then_some(target)
}

/// Escapes a path or a path segment for a URL: other characters are written as `%XX`.
pub fn escape(text: &str, keep_slashes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slashes && byte == b'/');
        if plain {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// An address that is not public.
#[derive(Debug)]
struct Inside(IpAddr);

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not a public address", self.0)
    }
}

impl std::error::Error for Inside {}

/// Resolves names and refuses those with addresses that are not public.
#[derive(Debug, Default)]
struct PublicOnly(DefaultResolver);

impl Resolver for PublicOnly {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        // The user chooses the proxy.
        let to_proxy = config.proxy().is_some_and(|proxy| uri.host() == Some(proxy.host()));
        match found.iter().find(|address| !to_proxy && !is_public(address.ip())) {
            None => Ok(found),
            Some(address) => Err(ureq::Error::Other(Box::new(Inside(address.ip())))),
        }
    }
}

/// Whether an address is public: not this machine, a private network, or one with a special meaning
/// (IANA's registries of special-purpose addresses).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => {
            let parts = v6.segments();
            let embedded = |at: usize| Ipv4Addr::from(u32::from(parts[at]) << 16 | u32::from(parts[at + 1]));
            match parts {
                // Mapped and translated addresses, 6to4: the embedded address counts.
                [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(embedded(6)),
                [0x2002, ..] => is_public_v4(embedded(1)),
                [0x2001, 0x0000..=0x01ff | 0x0db8, ..] => false,
                [first, ..] => first & 0xe000 == 0x2000,
            }
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        (0 | 10 | 127 | 224.., ..)
        | (169, 254, _)
        | (192, 168, _)
        | (192, 0, 0 | 2)
        | (198, 51, 100)
        | (203, 0, 113) => true,
        (100, b, _) => b & 0xc0 == 64,
        (172, b, _) => b & 0xf0 == 16,
        (198, b, _) => b & 0xfe == 18,
        _ => false,
    };
    !special
}

/// The host of a URL in lower case, without the brackets of IPv6, and its port (explicit or
/// default).
pub fn host_and_port(url: &str) -> Option<(String, u16)> {
    let origin = origin(url)?;
    let (_, authority) = origin.split_once("://")?;
    let (host, port) = authority.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port.parse().ok()?))
}

fn own_certificates() -> Result<Option<RootCerts>> {
    let named = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"].into_iter().find_map(|name| {
        let path = std::env::var_os(name).filter(|path| !path.is_empty())?;
        Some((name, std::path::PathBuf::from(path)))
    });
    // REQUESTS_CA_BUNDLE may name a directory, which only OpenSSL can read.
    let Some((name, path)) = named.filter(|(_, path)| !path.is_dir()) else { return Ok(None) };
    let bytes = fs::read(&path).map_err(|error| {
        Error::io(Kind::Usage, "read the certificates", &path, &error).hint(format!("{name} names this file"))
    })?;
    let certificates: Vec<_> = parse_pem(&bytes)
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
    Ok(Some(RootCerts::new_with_certs(&certificates)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn url_origins_are_scheme_host_and_port() {
        for (url, expected) in [
            ("https://huggingface.co/a/b", Some("https://huggingface.co:443")),
            ("https://HuggingFace.co:443/x", Some("https://huggingface.co:443")),
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080")),
            ("https://hub.co@evil.com/x", Some("https://evil.com:443")),
            ("file:///etc/passwd", None),
            ("no address", None),
        ] {
            assert_eq!(origin(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn special_purpose_ip_addresses_are_not_public() {
        let public = |text: &str| is_public(text.parse().unwrap());
        for text in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "198.20.0.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "2002:101:101::",
        ] {
            assert!(public(text), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "fec0::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn urls_have_hosts_and_ports() {
        assert_eq!(host_and_port("https://API.co/x"), Some(("api.co".to_owned(), 443)));
        assert_eq!(host_and_port("http://[::1]:80/"), Some(("::1".to_owned(), 80)));
        assert_eq!(host_and_port("ftp://x"), None);
    }

    #[test]
    fn relative_redirects_resolve_as_in_browsers() {
        let base = "https://hub.co/org/name/resolve/main/a.json?x=1";
        for (location, expected) in [
            ("https://cdn.co/x?y=1", Some("https://cdn.co/x?y=1")),
            ("//cdn.co/x", Some("https://cdn.co/x")),
            ("/new/name", Some("https://hub.co/new/name")),
            ("b.json", Some("https://hub.co/org/name/resolve/main/b.json")),
            ("http://cdn.co/x", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(redirect(base, location).as_deref(), expected, "{location}");
        }
        assert_eq!(redirect("http://h:1", "x").as_deref(), Some("http://h:1/x"));
        assert_eq!(redirect("http://h:1/a", "https://h/x").as_deref(), Some("https://h/x"));
    }

    #[test]
    fn url_paths_are_escaped() {
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(escape("a b/c?.json", true), "a%20b/c%3F.json");
    }
}
