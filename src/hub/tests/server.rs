//! A Hub for tests: two HTTP servers, one that lists and redirects, one with the large files. Each
//! test binary uses a part of it.
#![allow(unreachable_pub, dead_code, clippy::format_push_string, clippy::case_sensitive_file_extension_comparisons)]
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// It was sent to the server of large files.
    pub at_file_server: bool,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Wait before closing it.
    pub stall: Duration,
    /// Omit the length of the body.
    pub no_length: bool,
    /// Send the body in these pieces with pauses.
    pub pieces: Vec<Vec<u8>>,
}

impl Response {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: &(impl ToString + ?Sized)) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// A repository.
#[derive(Clone, Debug)]
pub struct Repo {
    pub name: String,
    pub commit: String,
    pub revisions: Vec<String>,
    /// `models` or `datasets`.
    pub kind: &'static str,
    pub files: Vec<(String, Vec<u8>)>,
}

impl Repo {
    /// A repository with these files.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        Self {
            name: "org/tiny".to_owned(),
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            revisions: vec!["main".to_owned()],
            kind: "models",
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
        }
    }

    /// The Hub's response, before a test changes it.
    fn response(&self, request: &Received, store: &str) -> Response {
        let path = request.path.split('?').next().unwrap();
        if request.at_file_server {
            let file = self.files.iter().find(|(_, bytes)| path == format!("/{}", sha256(bytes)));
            return file.map_or_else(|| Response::new(404, ""), |(_, bytes)| ranged(request, bytes));
        }
        if let Some(revision) = path.strip_prefix(&format!("/api/{}/{}/revision/", self.kind, self.name)) {
            let revision = revision.replace("%2F", "/");
            if revision != self.commit && !self.revisions.contains(&revision) {
                return Response::new(404, "").with("X-Error-Code", "RevisionNotFound");
            }
            let siblings: Vec<_> = self.files.iter().map(|(name, _)| serde_json::json!({"rfilename": name})).collect();
            return Response::new(200, serde_json::json!({"sha": self.commit, "siblings": siblings}).to_string());
        }
        let root = if self.kind == "models" { "" } else { "/datasets" };
        let Some(name) = path.strip_prefix(&format!("{root}/{}/resolve/{}/", self.name, self.commit)) else {
            return Response::new(401, "").with("X-Error-Code", "RepoNotFound");
        };
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else {
            return Response::new(404, "").with("X-Error-Code", "EntryNotFound");
        };
        if is_large(name) {
            let sum = sha256(bytes);
            return Response::new(302, "Found")
                .with("Location", &format!("{store}/{sum}?signature=secret"))
                .with("X-Repo-Commit", &self.commit)
                .with("X-Linked-ETag", &format!("\"{sum}\""))
                .with("X-Linked-Size", &bytes.len())
                .with("ETag", "\"of the redirect\"");
        }
        ranged(request, bytes).with("X-Repo-Commit", &self.commit).with("ETag", &format!("W/\"{}\"", git_sum(bytes)))
    }
}

/// Whether the Hub stores a file on the server of large files.
pub fn is_large(name: &str) -> bool {
    [".safetensors", ".bin", ".parquet"].iter().any(|end| name.ends_with(end))
}

/// The ETag of a file.
pub fn etag(name: &str, bytes: &[u8]) -> String {
    if is_large(name) { sha256(bytes) } else { git_sum(bytes) }
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn git_sum(bytes: &[u8]) -> String {
    format!("{:x}", Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn ranged(request: &Received, bytes: &[u8]) -> Response {
    let start =
        request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match start {
        Some(start) if start >= bytes.len() => Response::new(416, ""),
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            Response::new(206, &bytes[start..]).with("Content-Range", &range)
        }
        None => Response::new(200, bytes),
    }
}

/// Changes a response; receives the Hub's response and the number of earlier requests like it.
pub type Change = dyn Fn(&Received, usize, Response) -> Response + Send + Sync;

/// A running Hub. Its threads end with the process.
pub struct Server {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    pub fn start(repo: Repo) -> Self {
        Self::changed(repo, |_, _, response| response)
    }

    pub fn changed(
        repo: Repo,
        change: impl Fn(&Received, usize, Response) -> Response + Send + Sync + 'static,
    ) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let change: Arc<Change> = Arc::new(change);
        let (hub, store) = (listen(), listen());
        let (url, store_url) = (address(&hub), address(&store));
        for (listener, at_file_server) in [(hub, false), (store, true)] {
            let (repo, received, change, store_url) =
                (repo.clone(), Arc::clone(&received), Arc::clone(&change), store_url.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let (repo, received, change, store_url) =
                        (repo.clone(), Arc::clone(&received), Arc::clone(&change), store_url.clone());
                    std::thread::spawn(move || {
                        serve(&stream, at_file_server, &|request| {
                            let before = {
                                let mut received = received.lock().unwrap();
                                let like = |old: &&Received| {
                                    (&old.method, &old.path, old.at_file_server)
                                        == (&request.method, &request.path, request.at_file_server)
                                };
                                let before = received.iter().filter(like).count();
                                received.push(request.clone());
                                before
                            };
                            change(request, before, repo.response(request, &store_url))
                        });
                    });
                }
            });
        }
        Self { url, received }
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// `METHOD path` of the requests so far to one of the servers.
    pub fn lines(&self, at_file_server: bool) -> Vec<String> {
        let request = self.requests();
        request
            .iter()
            .filter(|one| one.at_file_server == at_file_server)
            .map(|one| format!("{} {}", one.method, one.path))
            .collect()
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn address(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

/// Serves the requests of one connection.
fn serve(stream: &TcpStream, at_file_server: bool, response: &dyn Fn(&Received) -> Response) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader, at_file_server) {
        let response = response(&request);
        if write(stream, &request, &response).is_err() || response.cut.is_some() || response.no_length {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn read(reader: &mut impl BufRead, at_file_server: bool) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
    let mut fields = line.split_whitespace().map(str::to_owned);
    let (method, path) = (fields.next()?, fields.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { method, path, headers, body, at_file_server })
}

fn write(mut stream: &TcpStream, request: &Received, response: &Response) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Status\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if response.no_length || !response.pieces.is_empty() {
        head.push_str("Connection: close\r\n");
    } else {
        head.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    for piece in &response.pieces {
        stream.write_all(piece)?;
        stream.flush()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    if !response.pieces.is_empty() {
        std::thread::sleep(response.stall);
        return Err(std::io::ErrorKind::ConnectionAborted.into());
    }
    let end = response.cut.unwrap_or(response.body.len()).min(response.body.len());
    stream.write_all(&response.body[..end])?;
    stream.flush()?;
    std::thread::sleep(response.stall);
    Ok(())
}
