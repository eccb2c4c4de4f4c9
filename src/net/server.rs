//! A small HTTP/1.1 server: whole requests in, whole responses out, with keep-alive.
//!
//! It is for services on this machine or a trusted network: no TLS and no authentication. Bodies
//! need a `content-length`. Everything that a client may send is limited: the head, the body, the
//! time for both, and the number of connections.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Largest head of a request, and most headers.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 64;
/// Longest wait for the next request of a connection, and for the rest of one.
const IDLE: Duration = Duration::from_secs(75);
const REST: Duration = Duration::from_secs(30);
/// Maximum number of concurrent connections; others wait.
const CONNECTIONS: usize = 1024;

/// A request.
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

/// Answers connections until `stop` completes. `most` is the largest body in bytes.
pub async fn serve<H, F>(listener: TcpListener, most: usize, handler: H, stop: impl Future<Output = ()>)
where
    H: Fn(ServedRequest) -> F + Send + Sync + 'static,
    F: Future<Output = ServedResponse> + Send + 'static,
{
    let handler = Arc::new(handler);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async {
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            // A failed accept, such as one without a free descriptor, concerns one connection.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let handler = Arc::clone(&handler);
            tokio::spawn(async move {
                // Errors of a connection are dropped: its client is gone.
                let _ = converse(stream, most, &*handler).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop => {}
    }
}

/// Requests and responses of one connection.
async fn converse<H, F>(mut stream: TcpStream, most: usize, handler: &H) -> io::Result<()>
where
    H: Fn(ServedRequest) -> F,
    F: Future<Output = ServedResponse>,
{
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        match read(&mut stream, &mut buffer, most).await? {
            Read::End => return Ok(()),
            Read::Refused(status, why) => {
                let body = serde_json::json!({ "detail": why }).to_string().into_bytes();
                write(&mut stream, &ServedResponse { status, body }, false).await?;
                // The rest of the client's data is read, so that the client receives the response
                // instead of a reset.
                let drained = async {
                    let mut rest = [0; 1024];
                    while matches!(stream.read(&mut rest).await, Ok(count) if count > 0) {}
                };
                let _ = Box::pin(timeout(Duration::from_millis(500), drained)).await;
                return stream.shutdown().await;
            }
            Read::Request(request, keep) => {
                let response = handler(request).await;
                write(&mut stream, &response, keep).await?;
                if !keep {
                    return stream.shutdown().await;
                }
            }
        }
    }
}

enum Read {
    End,
    /// Status and reason.
    Refused(u16, &'static str),
    /// A request, and whether the connection stays open.
    Request(ServedRequest, bool),
}

/// The parts of a head.
struct Head {
    request: ServedRequest,
    keep: bool,
    length: usize,
    expects_continue: bool,
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>, most: usize) -> io::Result<Read> {
    let mut chunk = [0; 8192];
    let mut limit = IDLE;
    let (head, start) = loop {
        match parse(buffer, most) {
            Parsed::Head(head, start) => break (head, start),
            Parsed::Refused(status, why) => return Ok(Read::Refused(status, why)),
            Parsed::Partial if buffer.len() > HEAD => return Ok(Read::Refused(431, "the head is too large")),
            Parsed::Partial => {}
        }
        let Ok(count) = timeout(limit, stream.read(&mut chunk)).await else { return Ok(Read::End) };
        match count? {
            0 => return Ok(Read::End),
            count => buffer.extend_from_slice(&chunk[..count]),
        }
        limit = REST;
    };
    let Head { mut request, keep, length, expects_continue } = head;
    if expects_continue && buffer.len() < start + length {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let body = async {
        while buffer.len() < start + length {
            match stream.read(&mut chunk).await? {
                0 => return Ok(false),
                count => buffer.extend_from_slice(&chunk[..count]),
            }
        }
        Ok::<bool, io::Error>(true)
    };
    match timeout(REST, body).await {
        Err(_) => return Ok(Read::Refused(408, "the body was not received in time")),
        Ok(whole) => {
            if !whole? {
                return Ok(Read::End);
            }
        }
    }
    request.body = buffer[start..start + length].to_vec();
    buffer.drain(..start + length);
    Ok(Read::Request(request, keep))
}

enum Parsed {
    Partial,
    Refused(u16, &'static str),
    /// A head, and where its body begins.
    Head(Head, usize),
}

fn parse(buffer: &[u8], most: usize) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let start = match request.parse(buffer) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(431, "there are too many headers"),
        Err(_) => return Parsed::Refused(400, "the request is not HTTP"),
    };
    let values = |name: &str| -> Vec<String> {
        let same = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        same.map(|header| String::from_utf8_lossy(header.value).trim().to_owned()).collect()
    };
    if !values("transfer-encoding").is_empty() {
        return Parsed::Refused(411, "send the body with a content-length");
    }
    let length = match &values("content-length")[..] {
        [] => 0,
        [text] if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().unwrap_or(usize::MAX)
        }
        _ => return Parsed::Refused(400, "the content-length is not a number"),
    };
    if length > most {
        return Parsed::Refused(413, "the body is too large");
    }
    let keep =
        request.version == Some(1) && !values("connection").iter().any(|value| value.eq_ignore_ascii_case("close"));
    let expects_continue = values("expect").iter().any(|value| value.eq_ignore_ascii_case("100-continue"));
    let (path, query) = request.path.unwrap_or("/").split_once('?').unwrap_or((request.path.unwrap_or("/"), ""));
    let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    });
    let method = request.method.unwrap_or_default().to_owned();
    let served = ServedRequest { method, path: path.to_owned(), query: query.collect(), body: Vec::new() };
    Parsed::Head(Head { request: served, keep, length, expects_continue }, start)
}

/// Text of a query, with `%XX` and `+` decoded.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match (bytes[at], hex.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

async fn write(stream: &mut TcpStream, response: &ServedResponse, keep: bool) -> io::Result<()> {
    let reason = match response.status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        422 => "Unprocessable Entity",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    };
    let connection = if keep { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: {connection}\r\n\r\n",
        response.status,
        response.body.len()
    );
    // One write, so that small responses are one packet.
    let whole = [head.as_bytes(), &response.body].concat();
    stream.write_all(&whole).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream as Plain};

    use super::*;

    /// A server on its own thread that returns its requests.
    fn echo() -> SocketAddr {
        let (sender, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let handler = |request: ServedRequest| async move {
                    ServedResponse { status: 200, body: format!("{request:?}").into_bytes() }
                };
                serve(listener, 1000, handler, std::future::pending()).await;
            });
        });
        address.recv().unwrap()
    }

    /// The bytes that the server sends for the bytes of a client that sends no more.
    fn sent(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = Plain::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_http_server_answers_requests_of_one_connection_in_turn() {
        let address = echo();
        let text = sent(
            address,
            b"GET /a?x=1+2&y=%C3%A9&z HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
        );
        let bodies: Vec<&str> = text.split("HTTP/1.1 200 OK").skip(1).collect();
        assert_eq!(bodies.len(), 2, "{text}");
        assert!(bodies[0].contains(r#"path: "/a", query: [("x", "1 2"), ("y", "é"), ("z", "")]"#), "{text}");
        assert!(bodies[0].contains("keep-alive") && bodies[1].contains(r#"method: "POST", path: "/b""#), "{text}");
        assert!(bodies[1].contains("body: [123, 125]"), "{text}");
        let text = sent(address, b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n");
        assert_eq!(text.matches("200 OK").count(), 1, "HTTP/1.0 closes: {text}");
    }

    #[test]
    fn the_http_server_refuses_hostile_requests_and_goes_on() {
        let address = echo();
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        for (bytes, status) in [
            (b"\x16\x03\x01\x02\x00 TLS".as_slice(), "400"),
            (b"nonsense\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n", "413"),
            (b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n", "413"),
            (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "411"),
            (long.as_bytes(), "431"),
            (many.as_bytes(), "431"),
        ] {
            let text = sent(address, bytes);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{bytes:?}: {text}");
            assert!(text.contains("connection: close") && text.contains("detail"), "{text}");
        }
        // A body that never comes, and a head that never ends: no answer.
        assert_eq!(sent(address, b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"), "");
        assert_eq!(sent(address, b"GET / HT"), "");
        assert!(sent(address, b"GET / HTTP/1.1\r\n\r\n").contains("200 OK"));
    }
}
