//! `just bench-search [PASSAGES]`: an index of generated passages: time, size and memory of the
//! build, and queries by 1 and by 64 threads at once. A JSON object per line of stdout.
//!
//! Passages have 100 words of a vocabulary of 200,000 with Zipf's distribution, which is about the
//! shape of the Wikipedia passages of Search-R1; queries have 2 to 8 words of the same.

#![allow(clippy::print_stdout)]

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use r1::search::{Index, Mode};
use r1::{Error, Kind, Result};
use serde_json::json;

/// Words of a passage, and different words of all.
const WORDS: usize = 100;
const VOCABULARY: f64 = 200_000.0;
/// Queries of one measurement.
const QUERIES: usize = 5000;

fn main() -> Result<()> {
    // `cargo bench` adds --bench.
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let passages: u64 = given.map_or(Ok(100_000), |text| text.parse()).map_err(|_| {
        Error::new(Kind::Usage, "the number of passages must be a whole number").hint("`just bench-search 1000000`")
    })?;
    let dir = tempfile::tempdir().map_err(|error| failed("make a directory", &error))?;
    let corpus = dir.path().join("corpus.jsonl");
    let bytes = write_corpus(&corpus, passages).map_err(|error| failed("write the corpus", &error))?;
    println!("{}", json!({ "passages": passages, "corpus_bytes": bytes }));
    let out = dir.path().join("index");
    build(&corpus, &out, passages)?;
    let index = Index::open(&out)?;
    println!("{}", json!({ "index_bytes_per_passage": index.manifest().bytes() as f64 / passages as f64 }));
    serve_memory(&out)?;
    let mut draw = Draw(99);
    let queries: Vec<String> = (0..QUERIES)
        .map(|_| {
            let count = 2 + draw.below(7) as usize;
            (0..count).map(|_| draw.word()).collect::<Vec<_>>().join(" ")
        })
        .collect();
    for query in queries.iter().take(200) {
        index.search(query, 5, Mode::Sparse)?;
    }
    for threads in [1, 64] {
        measure(&index, &queries, threads)?;
    }
    Ok(())
}

/// Builds with the program, and measures its memory.
fn build(corpus: &Path, out: &Path, passages: u64) -> Result<()> {
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.args(["index", "build", "--quiet", "--out"]).arg(out).arg(corpus).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed("start r1", &error))?;
    let mut most = 0;
    let status = loop {
        most = most.max(resident(&child, "VmHWM:"));
        if let Some(status) = child.try_wait().map_err(|error| failed("wait for r1", &error))? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let seconds = started.elapsed().as_secs_f64();
    if !status.success() {
        return Err(Error::new(Kind::Internal, "r1 index build failed"));
    }
    let speed = passages as f64 / seconds;
    println!("{}", json!({ "build_seconds": seconds, "passages_per_second": speed, "build_peak_mib": most >> 10 }));
    Ok(())
}

/// Memory of a server after its first queries: what the process has itself, and with the files that
/// are in memory.
fn serve_memory(index: &Path) -> Result<()> {
    use std::io::{BufRead, BufReader, Read};
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.args(["index", "serve", "--port", "0", "--json"]).arg(index).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed("start r1", &error))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.as_mut() {
        BufReader::new(out).read_line(&mut line).map_err(|error| failed("read from r1", &error))?;
    }
    let url = serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default();
    let address = url["url"].as_str().unwrap_or_default().trim_start_matches("http://").to_owned();
    let mut draw = Draw(5);
    for _ in 0..200 {
        let body = json!({ "queries": [format!("{} {}", draw.word(), draw.word())] }).to_string();
        let head = format!("POST /retrieve HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = std::net::TcpStream::connect(&address).map_err(|error| failed("connect", &error))?;
        let sent = stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice());
        let mut answer = Vec::new();
        sent.and_then(|()| stream.read_to_end(&mut answer)).map_err(|error| failed("query the server", &error))?;
    }
    let (own, files) = (resident(&child, "RssAnon:"), resident(&child, "RssFile:"));
    println!("{}", json!({ "serve_own_mib": own >> 10, "serve_files_mib": files >> 10 }));
    child.kill().and_then(|()| child.wait()).map_err(|error| failed("stop the server", &error))?;
    Ok(())
}

/// KiB of a process.
fn resident(child: &Child, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Every query once, by `threads` threads.
fn measure(index: &Index, queries: &[String], threads: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let times: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let work = || -> Result<Vec<Duration>> {
            let mut times = Vec::new();
            while let Some(query) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                index.search(query, 5, Mode::Sparse)?;
                times.push(started.elapsed());
            }
            Ok(times)
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a thread stopped"))))
            .collect::<Result<_>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let mut times: Vec<f64> = times.into_iter().flatten().map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!(
        "{}",
        json!({
            "threads": threads, "queries_per_second": times.len() as f64 / seconds,
            "p50_ms": at(0.5), "p99_ms": at(0.99),
        })
    );
    Ok(())
}

fn write_corpus(path: &Path, passages: u64) -> std::io::Result<u64> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    let mut draw = Draw(1);
    for id in 0..passages {
        let title = format!("{} {}", draw.word(), draw.word());
        let text: Vec<String> = (0..WORDS).map(|_| draw.word()).collect();
        writeln!(file, "{}", json!({ "id": id, "title": title, "text": text.join(" ") }))?;
    }
    file.flush()?;
    Ok(file.get_ref().metadata()?.len())
}

/// A linear congruential generator.
struct Draw(u64);

impl Draw {
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, most: u64) -> u64 {
        (self.share() * most as f64) as u64
    }

    /// A word whose rank has Zipf's distribution with exponent 1.
    fn word(&mut self) -> String {
        let mut rank = VOCABULARY.powf(self.share()) as u64;
        let mut word = String::new();
        // Frequent words are short.
        while rank > 0 {
            word.push(char::from(b'a' + (rank % 26) as u8));
            word.push(['a', 'e', 'i', 'o', 'u'][(rank % 5) as usize]);
            rank /= 26;
        }
        word
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Internal, format!("can't {what}: {error}"))
}
