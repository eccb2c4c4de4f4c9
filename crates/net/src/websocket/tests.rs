//! WebSockets through a proxy of the tests.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use ureq::ProxyProtocol;

use super::*;

/// A server that answers each text with `echo TEXT`; its address.
async fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut socket = accept_async(stream).await.unwrap();
                while let Some(Ok(Message::Text(text))) = socket.next().await {
                    socket.send(Message::text(format!("echo {text}"))).await.unwrap();
                }
            });
        }
    });
    address
}

/// A proxy for one connection. It sends `reply`, then connects to the server at `to` if there is
/// one. Returns its address, and the requests it has read.
async fn proxy(reply: &'static [u8], to: Option<String>) -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let seen = Arc::new(Mutex::new(String::new()));
    let log = seen.clone();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while !log.lock().unwrap().ends_with("\r\n\r\n") {
            let byte = stream.read_u8().await.unwrap();
            log.lock().unwrap().push(char::from(byte));
        }
        let _ = stream.write_all(reply).await;
        if let Some(to) = to {
            let mut server = TcpStream::connect(to).await.unwrap();
            copy_bidirectional(&mut stream, &mut server).await.unwrap();
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_message_in_many_frames_has_the_limit_of_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
        for (kind, last) in [(Data::Text, false), (Data::Continue, false), (Data::Continue, true)] {
            let frame = Frame::message("x".repeat(400), OpCode::Data(kind), last);
            // The client may have closed the connection.
            let _ = socket.send(Message::Frame(frame)).await;
        }
        while let Some(Ok(_)) = socket.next().await {}
    });
    let mut socket = WebSocket::connect_with(&target(&url, false), None, LIMIT).await.unwrap();
    assert_eq!(socket.receive().await, Err(Fault::Broken("the message has more than 1000 bytes".to_owned())));
}

fn target(url: &str, public_only: bool) -> SocketTarget {
    SocketTarget { url: url.to_owned(), headers: Vec::new(), public_only, max_bytes: 1000 }
}

const LIMIT: Duration = Duration::from_secs(20);

async fn refusal(url: &str, proxy: &str, limit: Duration) -> Fault {
    let proxy = Proxy::new(proxy).unwrap();
    WebSocket::connect_with(&target(url, false), Some(&proxy), limit).await.err().unwrap()
}

#[tokio::test]
async fn a_websocket_goes_through_the_proxy_which_resolves_the_name() {
    let (address, seen) = proxy(b"HTTP/1.0 200 Connection established\r\nVia: me\r\n\r\n", Some(echo().await)).await;
    let through = Proxy::new(&format!("http://user:p%40ss@{address}")).unwrap();
    // The name has no address here, and the proxy itself is not public.
    let target = target("ws://room.invalid/ws", true);
    let mut socket = WebSocket::connect_with(&target, Some(&through), LIMIT).await.unwrap();
    socket.send("hello".to_owned()).await.unwrap();
    assert_eq!(socket.receive().await.unwrap(), "echo hello");
    let request = format!(
        "CONNECT room.invalid:80 HTTP/1.1\r\nHost: room.invalid:80\r\nUser-Agent: {AGENT}\r\n\
         Proxy-Connection: Keep-Alive\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n\r\n"
    );
    assert_eq!(*seen.lock().unwrap(), request);
}

#[tokio::test]
async fn tls_is_spoken_to_the_server_at_the_other_end_of_the_tunnel() {
    // The server of the tunnel has no TLS.
    let (address, seen) = proxy(b"HTTP/1.1 200 OK\r\n\r\n", Some(echo().await)).await;
    let fault = refusal("wss://[2001:db8::1]/ws", &address, LIMIT).await;
    assert!(matches!(&fault, Fault::Broken(why) if why.starts_with("TLS: ")), "{fault:?}");
    let seen = seen.lock().unwrap().clone();
    assert!(seen.starts_with("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n"), "{seen}");
    assert!(!seen.contains("Proxy-Authorization"), "{seen}");
}

#[tokio::test]
async fn hosts_of_no_proxy_are_reached_without_the_proxy() {
    let server = echo().await;
    let through = Proxy::builder(ProxyProtocol::Http).host("proxy.invalid").no_proxy("127.0.0.1").build().unwrap();
    let url = format!("ws://{server}/");
    let mut socket = WebSocket::connect_with(&target(&url, false), Some(&through), LIMIT).await.unwrap();
    socket.send("x".to_owned()).await.unwrap();
    assert_eq!(socket.receive().await.unwrap(), "echo x");
    // The rule for addresses applies, since the name is resolved here.
    let refused = WebSocket::connect_with(&target(&url, true), Some(&through), LIMIT).await.err().unwrap();
    assert_eq!(refused, Fault::NotPublic("127.0.0.1 is not a public address".to_owned()));
}

#[tokio::test]
async fn responses_of_a_proxy_that_open_no_tunnel_are_errors_with_the_reason() {
    static LONG: [u8; 20_000] = [b'a'; 20_000];
    for (reply, why) in [
        (
            &b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"[..],
            "refuses the connection to room.co:80 with status 407: its user and password are missing or wrong",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\n\r\n",
            "refuses the connection to room.co:80 with status 403; if no proxy is necessary, list room.co in NO_PROXY",
        ),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "refuses the connection to room.co:80 with status 101"),
        (b"HTTP/1.1 300 Choices\r\n\r\n", "refuses the connection to room.co:80 with status 300"),
        (b"<html>\xff\r\n\r\n", "does not answer as an HTTP proxy: <html>\u{fffd}"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "does not answer as an HTTP proxy: HTTP/1.1 20 OK"),
        (b"HTTP/2 200 OK\r\n\r\n", "does not answer as an HTTP proxy: HTTP/2 200 OK"),
        (b"", "closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\nVia", "closed the connection within its response: HTTP/1.1 200 OK"),
        (&LONG, "answers with a head of more than 16384 bytes: aaa"),
    ] {
        let (address, _) = proxy(reply, None).await;
        let fault = refusal("ws://room.co/", &format!("http://me:secret@{address}"), LIMIT).await;
        let Fault::Broken(message) = fault else { panic!("{why}: {fault:?}") };
        assert!(message.starts_with(&format!("the proxy {address} {why}")), "{why}: {message}");
        assert!(!message.contains("secret") && message.len() < 400, "{message}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_silent_absent_or_of_another_kind_is_an_error() {
    let (address, _) = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (address, tokio::spawn(async move { listener.accept().await.unwrap().0.read_to_end(&mut Vec::new()).await }))
    };
    let fault = refusal("ws://room.co/", &address, Duration::from_millis(200)).await;
    assert_eq!(fault, Fault::Absent(format!("no connection through the proxy {address} within 0.2 s")));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fault = refusal("ws://room.co/", &format!("http://{closed}"), LIMIT).await;
    let why = "connection refused; check ALL_PROXY, HTTPS_PROXY and HTTP_PROXY, or list the server's host in NO_PROXY";
    assert_eq!(fault, Fault::Absent(format!("the proxy {closed}: {why}")));
    let fault = refusal("ws://room.co/", "socks5://10.0.0.1", LIMIT).await;
    assert!(matches!(&fault, Fault::Broken(why) if why.contains("10.0.0.1:1080 is a SOCKS proxy")), "{fault:?}");
}
