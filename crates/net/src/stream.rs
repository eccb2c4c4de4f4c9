//! Byte streams to servers: TCP, TLS, and tunnels through an HTTP proxy (`CONNECT`, RFC 9110
//! section 9.3.6).
//!
//! The proxy is selected as for HTTP requests: by `ureq`, from `ALL_PROXY`, `HTTPS_PROXY` or
//! `HTTP_PROXY` in this order, and `NO_PROXY`, each also in lower case. The proxy resolves the name
//! of the server.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

use super::{AGENT, Fault, is_public, own_certificates};

/// Maximum bytes of a proxy's response.
const HEAD: usize = 16 << 10;
/// Characters of a proxy's response that are shown.
const SHOWN: usize = 200;

/// A connection of any kind.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

#[derive(Clone, Copy)]
pub(super) struct ServerAddress<'a> {
    /// A name or an address, without the brackets of IPv6.
    pub host: &'a str,
    pub port: u16,
    /// TLS.
    pub secure: bool,
    /// Only public addresses are allowed. A proxy may have any address.
    pub public_only: bool,
}

/// Connects to a server, through the proxy if it has one.
pub(super) async fn connect(server: ServerAddress<'_>, proxy: Option<&Proxy>) -> Result<Box<dyn ByteStream>, Fault> {
    let ServerAddress { host, port, secure, public_only } = server;
    let stream: Box<dyn ByteStream> = match proxy {
        Some(proxy) => through(proxy, host, port).await?,
        None => Box::new(dial(host, port, public_only).await?),
    };
    if secure { encrypt(host, stream).await } else { Ok(stream) }
}

/// The proxy for a URL of http or https, unless `NO_PROXY` lists its host.
pub(super) fn proxy_for<'a>(proxy: Option<&'a Proxy>, url: &str) -> Option<&'a Proxy> {
    proxy.filter(|proxy| !url.parse::<Uri>().is_ok_and(|url| proxy.is_no_proxy(&url)))
}

/// A proxy in messages, without its credentials.
pub(super) fn proxy_in_words(proxy: &Proxy) -> String {
    format!("the proxy {}:{}", proxy.host(), proxy.port())
}

/// The message for a proxy that is not reached.
pub(super) fn no_proxy_answer(proxy: &Proxy, why: &str) -> String {
    let name = proxy_in_words(proxy);
    format!("{name}: {why}; check ALL_PROXY, HTTPS_PROXY and HTTP_PROXY, or list the server's host in NO_PROXY")
}

/// A tunnel to a server.
async fn through(proxy: &Proxy, host: &str, port: u16) -> Result<Box<dyn ByteStream>, Fault> {
    let name = proxy_in_words(proxy);
    let secure = match proxy.protocol() {
        ProxyProtocol::Http => false,
        ProxyProtocol::Https => true,
        _ => {
            return Err(Fault::Broken(format!(
                "{name} is a SOCKS proxy, which WebSockets do not support; use a proxy of http:// or https://, or list \
                 {host} in NO_PROXY"
            )));
        }
    };
    let by_proxy = |fault| match fault {
        Fault::Absent(why) => Fault::Absent(no_proxy_answer(proxy, &why)),
        Fault::Broken(why) => Fault::Broken(format!("{name} {why}")),
        other => other,
    };
    let proxy_host = proxy.host().trim_start_matches('[').trim_end_matches(']');
    let mut stream: Box<dyn ByteStream> = Box::new(dial(proxy_host, proxy.port(), false).await.map_err(by_proxy)?);
    if secure {
        let broken = |fault| match fault {
            Fault::Broken(why) => by_proxy(Fault::Broken(format!("does not accept the connection: {why}"))),
            other => other,
        };
        stream = encrypt(proxy_host, stream).await.map_err(broken)?;
    }
    tunnel(&mut stream, &request(proxy, host, port), host, port).await.map_err(by_proxy)?;
    Ok(stream)
}

/// The request for a tunnel, as `ureq` sends it.
fn request(proxy: &Proxy, host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut request = format!(
        "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: {AGENT}\r\n\
         Proxy-Connection: Keep-Alive\r\n"
    );
    if proxy.username().is_some() || proxy.password().is_some() {
        let (user, password) = (proxy.username().unwrap_or_default(), proxy.password().unwrap_or_default());
        let credentials = BASE64_STANDARD.encode(format!("{user}:{password}"));
        request += "Proxy-Authorization: Basic ";
        request += &credentials;
        request += "\r\n";
    }
    request + "\r\n"
}

/// Sends the request and reads the head of the response. The bytes after it belong to the server.
async fn tunnel(stream: &mut Box<dyn ByteStream>, request: &str, host: &str, port: u16) -> Result<(), Fault> {
    let broken = |why: String| Fault::Broken(why);
    let lost = |error: std::io::Error| Fault::Broken(format!("closed the connection: {error}"));
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut head = Vec::new();
    // The head is short, and a byte more than the head would be lost.
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if head.len() == HEAD {
            return Err(broken(format!("answers with a head of more than {HEAD} bytes: {}", first_line(&head))));
        }
        match stream.read(&mut byte).await.map_err(lost)? {
            0 if head.is_empty() => return Err(broken("closed the connection without a response".to_owned())),
            0 => return Err(broken(format!("closed the connection within its response: {}", first_line(&head)))),
            _ => head.extend(byte),
        }
    }
    let line = first_line(&head);
    match status(&line) {
        Some(200..=299) => Ok(()),
        Some(407) => Err(broken(format!(
            "refuses the connection to {host}:{port} with status 407: its user and password are missing or wrong; \
             set them in its URL, as in HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        ))),
        Some(status) => Err(broken(format!(
            "refuses the connection to {host}:{port} with status {status}; if no proxy is necessary, list {host} in \
             NO_PROXY"
        ))),
        None => Err(broken(format!("does not answer as an HTTP proxy: {line}"))),
    }
}

/// The start of the first line of a response.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_end().chars().take(SHOWN).collect()
}

/// The status of a status line such as `HTTP/1.1 200 Connection established`.
fn status(line: &str) -> Option<u16> {
    let (version, rest) = line.split_once(' ')?;
    let digits = rest.split(' ').next().filter(|digits| digits.len() == 3)?;
    digits.parse().ok().filter(|_| matches!(version, "HTTP/1.0" | "HTTP/1.1"))
}

/// Connects to the first address of the host that accepts.
async fn dial(host: &str, port: u16, public_only: bool) -> Result<TcpStream, Fault> {
    let addresses = tokio::net::lookup_host((host, port)).await.map_err(|error| Fault::Absent(error.to_string()))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    if let Some(inside) = addresses.iter().find(|address| public_only && !is_public(address.ip())) {
        return Err(Fault::NotPublic(format!("{} is not a public address", inside.ip())));
    }
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Requests are small, and each waits for its answer.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                "connection refused".clone_into(&mut last);
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(Fault::Absent(last))
}

async fn encrypt(host: &str, stream: Box<dyn ByteStream>) -> Result<Box<dyn ByteStream>, Fault> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| Fault::Broken(error.to_string()))?;
    let connector = TlsConnector::from(tls_config()?);
    Ok(Box::new(connector.connect(name, stream).await.map_err(|error| Fault::Broken(format!("TLS: {error}")))?))
}

/// TLS with the certificates of the environment, or with Mozilla's.
fn tls_config() -> Result<Arc<ClientConfig>, Fault> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, Fault>> = OnceLock::new();
    let make = || {
        let broken = |error: &dyn std::fmt::Display| Fault::Broken(format!("TLS: {error}"));
        let mut roots = RootCertStore::empty();
        match own_certificates().map_err(|error| broken(&error))? {
            Some(certificates) => {
                let certificates =
                    certificates.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec()));
                // As in ureq: certificates that can't be used are skipped.
                roots.add_parsable_certificates(certificates);
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| broken(&error))?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    };
    CONFIG.get_or_init(make).clone()
}
