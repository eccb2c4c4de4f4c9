//! A hub for tests: two real HTTP servers, one that lists and redirects, one that has the large files.
// Each of the test binaries uses a part of it.
#![allow(unreachable_pub, dead_code, clippy::format_push_string, clippy::case_sensitive_file_extension_comparisons)]
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// Names in small letters.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// It came to the server that has the large files.
    pub at_store: bool,
}

/// What is answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Hang up after so many bytes of the body.
    pub cut: Option<usize>,
    /// Then wait so long first.
    pub stall: Duration,
    /// Say nothing of the body's length.
    pub no_length: bool,
    /// Send the body in such pieces, a moment apart.
    pub pieces: Vec<Vec<u8>>,
}

impl Answer {
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
    /// One with whole files of no meaning.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        Self {
            name: "org/tiny".to_owned(),
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            revisions: vec!["main".to_owned()],
            kind: "models",
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
        }
    }

    /// The answer of a hub, before a test changes it.
    fn answer(&self, asked: &Asked, store: &str) -> Answer {
        let path = asked.path.split('?').next().unwrap();
        if asked.at_store {
            let file = self.files.iter().find(|(_, bytes)| path == format!("/{}", sha256(bytes)));
            return file.map_or_else(|| Answer::new(404, ""), |(_, bytes)| ranged(asked, bytes));
        }
        if let Some(revision) = path.strip_prefix(&format!("/api/{}/{}/revision/", self.kind, self.name)) {
            let revision = revision.replace("%2F", "/");
            if revision != self.commit && !self.revisions.contains(&revision) {
                return Answer::new(404, "").with("X-Error-Code", "RevisionNotFound");
            }
            let siblings: Vec<_> = self.files.iter().map(|(name, _)| serde_json::json!({"rfilename": name})).collect();
            return Answer::new(200, serde_json::json!({"sha": self.commit, "siblings": siblings}).to_string());
        }
        let root = if self.kind == "models" { "" } else { "/datasets" };
        let Some(name) = path.strip_prefix(&format!("{root}/{}/resolve/{}/", self.name, self.commit)) else {
            return Answer::new(401, "").with("X-Error-Code", "RepoNotFound");
        };
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else {
            return Answer::new(404, "").with("X-Error-Code", "EntryNotFound");
        };
        if is_large(name) {
            let sum = sha256(bytes);
            return Answer::new(302, "Found")
                .with("Location", &format!("{store}/{sum}?signature=secret"))
                .with("X-Repo-Commit", &self.commit)
                .with("X-Linked-ETag", &format!("\"{sum}\""))
                .with("X-Linked-Size", &bytes.len())
                .with("ETag", "\"of the redirect\"");
        }
        ranged(asked, bytes).with("X-Repo-Commit", &self.commit).with("ETag", &format!("W/\"{}\"", git_sum(bytes)))
    }
}

/// Whether the hub keeps a file in its store of large files.
pub fn is_large(name: &str) -> bool {
    [".safetensors", ".bin", ".parquet"].iter().any(|end| name.ends_with(end))
}

/// The blob's name of a file.
pub fn etag(name: &str, bytes: &[u8]) -> String {
    if is_large(name) { sha256(bytes) } else { git_sum(bytes) }
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn git_sum(bytes: &[u8]) -> String {
    format!("{:x}", Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn ranged(asked: &Asked, bytes: &[u8]) -> Answer {
    let start =
        asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match start {
        Some(start) if start >= bytes.len() => Answer::new(416, ""),
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            Answer::new(206, &bytes[start..]).with("Content-Range", &range)
        }
        None => Answer::new(200, bytes),
    }
}

/// Changes answers; gets the one that a hub would give, and how many like it were asked before.
pub type Change = dyn Fn(&Asked, usize, Answer) -> Answer + Send + Sync;

/// A running hub. Its threads end with the process.
pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub fn start(repo: Repo) -> Self {
        Self::changed(repo, |_, _, answer| answer)
    }

    pub fn changed(repo: Repo, change: impl Fn(&Asked, usize, Answer) -> Answer + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let change: Arc<Change> = Arc::new(change);
        let (hub, store) = (listen(), listen());
        let (url, store_url) = (address(&hub), address(&store));
        for (listener, at_store) in [(hub, false), (store, true)] {
            let (repo, asked, change, store_url) =
                (repo.clone(), Arc::clone(&asked), Arc::clone(&change), store_url.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let (repo, asked, change, store_url) =
                        (repo.clone(), Arc::clone(&asked), Arc::clone(&change), store_url.clone());
                    std::thread::spawn(move || {
                        serve(&stream, at_store, &|request| {
                            let before = {
                                let mut asked = asked.lock().unwrap();
                                let like = |old: &&Asked| {
                                    (&old.method, &old.path, old.at_store)
                                        == (&request.method, &request.path, request.at_store)
                                };
                                let before = asked.iter().filter(like).count();
                                asked.push(request.clone());
                                before
                            };
                            change(request, before, repo.answer(request, &store_url))
                        });
                    });
                }
            });
        }
        Self { url, asked }
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// `METHOD path` of what was asked so far at one of the two.
    pub fn lines(&self, at_store: bool) -> Vec<String> {
        let asked = self.asked();
        asked.iter().filter(|one| one.at_store == at_store).map(|one| format!("{} {}", one.method, one.path)).collect()
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn address(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, at_store: bool, answer: &dyn Fn(&Asked) -> Answer) {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader, at_store) {
        let answer = answer(&asked);
        if write(stream, &asked, &answer).is_err() || answer.cut.is_some() || answer.no_length {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn read(reader: &mut impl BufRead, at_store: bool) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
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
    Some(Asked { method, path, headers, body, at_store })
}

fn write(mut stream: &TcpStream, asked: &Asked, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Said\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if answer.no_length || !answer.pieces.is_empty() {
        head.push_str("Connection: close\r\n");
    } else {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    for piece in &answer.pieces {
        stream.write_all(piece)?;
        stream.flush()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    if !answer.pieces.is_empty() {
        std::thread::sleep(answer.stall);
        return Err(std::io::ErrorKind::ConnectionAborted.into());
    }
    let end = answer.cut.unwrap_or(answer.body.len()).min(answer.body.len());
    stream.write_all(&answer.body[..end])?;
    stream.flush()?;
    std::thread::sleep(answer.stall);
    Ok(())
}
