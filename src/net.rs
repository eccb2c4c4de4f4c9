//! HTTP as r1 needs it: exchanges that can be watched, stopped and abandoned, one client for all of them.
//!
//! Each exchange runs on a thread of its own, and its pieces travel through a short channel. So a person's Ctrl-C is
//! heard while a server is silent, and hashing and writing go on while the next bytes arrive. Redirects are not
//! followed and no status is an error here: who asks decides about both.

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, http};

use crate::error::{Error, Kind, Result};

pub use ureq::http::HeaderMap;

/// Between two looks at whether somebody wants to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of a piece, and pieces that may wait to be taken.
const PIECE: usize = 64 * 1024;
const AHEAD: usize = 16;

/// One client; clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
}

/// What to ask.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET` when empty.
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Vec<u8>>,
}

/// Why an exchange came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `stop` said so.
    Stopped,
    /// The network's own words.
    Broken(String),
}

/// The head of an answer, and its body as it arrives.
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
    Broken(String),
}

impl Client {
    /// `silence`: the longest wait for the next byte. Proxies are taken from the environment (HTTPS_PROXY, NO_PROXY),
    /// and so are certificates of one's own (SSL_CERT_FILE, REQUESTS_CA_BUNDLE).
    ///
    /// # Errors
    /// [`Kind::Usage`] for a file of certificates that can't be read.
    pub fn new(silence: Duration) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(roots) = own_certificates()? {
            tls = tls.root_certs(roots);
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("r1/", env!("CARGO_PKG_VERSION")))
            // Ranges and checksums are of the bytes as they are.
            .accept_encoding("identity")
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .build();
        Ok(Self { agent: config.into() })
    }

    /// Asks, and waits for the head of the answer.
    pub fn send(&self, request: Request, stop: &dyn Fn() -> bool) -> Result<Response, Fault> {
        let (sender, pieces) = sync_channel(AHEAD);
        let agent = self.agent.clone();
        let exchange = move || {
            let told = match call(&agent, request) {
                Err(error) => sender.send(Piece::Broken(error.to_string())),
                Ok(answer) => {
                    let (head, body) = answer.into_parts();
                    let mut reader = body.into_with_config().limit(u64::MAX).reader();
                    let mut sent = sender.send(Piece::Head(head.status.as_u16(), head.headers));
                    let mut piece = vec![0; PIECE];
                    while sent.is_ok() {
                        sent = match reader.read(&mut piece) {
                            Ok(0) => {
                                // Nobody may be left to hear it.
                                let _ = sender.send(Piece::End);
                                return;
                            }
                            Ok(count) => sender.send(Piece::Body(piece[..count].to_vec())),
                            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                            Err(error) => {
                                let _ = sender.send(Piece::Broken(error.to_string()));
                                return;
                            }
                        };
                    }
                    sent
                }
            };
            // The one who asked has gone away.
            drop(told);
        };
        std::thread::Builder::new()
            .name("net".to_owned())
            .spawn(exchange)
            .map_err(|error| Fault::Broken(format!("can't start a thread: {error}")))?;
        match wait(&pieces, stop)? {
            Piece::Head(status, headers) => Ok(Response { status, headers, pieces }),
            Piece::Broken(why) => Err(Fault::Broken(why)),
            Piece::Body(_) | Piece::End => Err(Fault::Broken("an answer without a head".to_owned())),
        }
    }
}

impl Response {
    /// A header's text; `None` if it is absent or no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The next bytes of the body; `None` behind the last.
    pub fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, Fault> {
        match wait(&self.pieces, stop)? {
            Piece::Body(bytes) => Ok(Some(bytes)),
            Piece::End => Ok(None),
            Piece::Broken(why) => Err(Fault::Broken(why)),
            Piece::Head(..) => Err(Fault::Broken("two heads".to_owned())),
        }
    }

    /// The whole body, as long as it has no more than `most` bytes.
    pub fn bytes(mut self, most: usize, stop: &dyn Fn() -> bool) -> Result<Vec<u8>, Fault> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next(stop)? {
            if all.len() + bytes.len() > most {
                return Err(Fault::Broken(format!("the answer has more than {most} bytes")));
            }
            all.extend(bytes);
        }
        Ok(all)
    }
}

fn call(agent: &Agent, request: Request) -> std::result::Result<http::Response<ureq::Body>, ureq::Error> {
    let method = if request.method.is_empty() { "GET" } else { request.method };
    let mut head = http::Request::builder().method(method).uri(&request.url);
    for (name, value) in request.headers {
        head = head.header(name, value);
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
        match pieces.recv_timeout(LOOK) {
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
        std::thread::sleep(left.min(LOOK));
    }
}

/// `scheme://host:port` of an address: where credentials may go. `None` if it is no http(s) address.
pub fn origin(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?;
    let port = match (uri.port_u16(), scheme) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        _ => return None,
    };
    Some(format!("{scheme}://{}:{port}", uri.host()?.to_ascii_lowercase()))
}

/// Where a `Location` leads from `base`. `None` if it can't be followed: no http(s), or from https back to http.
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

/// A path's segment, or a whole path, for an address: what is not plain is written as `%XX`.
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

fn own_certificates() -> Result<Option<RootCerts>> {
    let named = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"].into_iter().find_map(|name| {
        let path = std::env::var_os(name).filter(|path| !path.is_empty())?;
        Some((name, std::path::PathBuf::from(path)))
    });
    // REQUESTS_CA_BUNDLE may name a folder, which only OpenSSL can read.
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
    use super::*;

    #[test]
    fn origins_are_scheme_host_and_port() {
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
    fn redirects_lead_where_browsers_would_go() {
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
    fn paths_are_escaped() {
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(escape("a b/c?.json", true), "a%20b/c%3F.json");
    }
}
