//! `just bench-search [PASSAGES] [sparse|dense]`: an index of generated passages: time, size and
//! memory of the build, and queries by 1 and by 64 threads at once. A JSON object per line of
//! stdout.
//!
//! Passages have 100 words of a vocabulary of 200,000 with Zipf's distribution, which is about the
//! shape of the Wikipedia passages of Search-R1; queries have 2 to 8 words of the same.
//!
//! `dense` measures vectors without a model: a passage's vector is generated from its number, 384
//! numbers around one of 500 centres in 32 dimensions. It compares searches of the graph with exact
//! ones. With `R1_ENCODER=DIR` it also measures how fast that model encodes passages.

#![allow(clippy::print_stdout)]

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use r1::encoders::{Checkpoints, EncoderSettings, load_encoder};
use r1::search::{
    BuildOptions, Builder, DenseOptions, EncoderOptions, HnswOptions, Index, Mode, Nearest, Passage, SearchModels,
    SearchOptions, Similarity, TextEncoder, VectorType,
};
use r1::{Error, Kind, Result};
use serde_json::json;

/// Words of a passage, and different words of all.
const WORDS: usize = 100;
const VOCABULARY: f64 = 200_000.0;
/// Queries of one measurement.
const QUERIES: usize = 5000;

fn main() -> Result<()> {
    // `cargo bench` adds --bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let passages: u64 = arguments.first().map_or(Ok(100_000), |text| text.parse()).map_err(|_| {
        Error::new(Kind::Usage, "the number of passages must be a whole number").hint("`just bench-search 1000000`")
    })?;
    match arguments.get(1).map_or("sparse", String::as_str) {
        "sparse" => sparse(passages),
        "dense" => dense(passages),
        other => Err(Error::new(Kind::Usage, format!("there is no part `{other}`")).hint("it is sparse or dense")),
    }
}

fn sparse(passages: u64) -> Result<()> {
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
        let times = measure(&index, &queries, &SearchOptions::new(5, Mode::Sparse), threads)?;
        println!("{}", json!({ "threads": threads, "queries": times }));
    }
    Ok(())
}

/// Numbers of a generated vector, and of the space in which they are similar.
const DIMENSION: usize = 384;
const INNER: usize = 32;
const CENTRES: usize = 500;

/// Vectors without a model.
struct Generated {
    options: EncoderOptions,
    map: Vec<f32>,
    centres: Vec<f32>,
}

impl Generated {
    fn new() -> Self {
        let mut draw = Draw(3);
        let mut normal = |count: usize| (0..count).map(|_| draw.normal()).collect::<Vec<f32>>();
        let options = EncoderOptions {
            pooling: "mean".to_owned(),
            query_prefix: String::new(),
            passage_prefix: String::new(),
            max_tokens: 512,
            similarity: Similarity::Cosine,
        };
        Self { options, map: normal(DIMENSION * INNER), centres: normal(CENTRES * INNER) }
    }
}

impl TextEncoder for Generated {
    fn sha256(&self) -> &'static str {
        "generated"
    }

    fn directory(&self) -> &Path {
        Path::new("/")
    }

    fn options(&self) -> &EncoderOptions {
        &self.options
    }

    fn dimension(&self) -> usize {
        DIMENSION
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        let mut all = Vec::with_capacity(texts.len() * DIMENSION);
        for text in texts {
            let mut draw = Draw(text.bytes().fold(17, |state: u64, byte| state.wrapping_mul(31) + u64::from(byte)));
            for _ in 0..8 {
                draw.share();
            }
            let centre = &self.centres[draw.below(CENTRES as u64) as usize * INNER..][..INNER];
            let inner: Vec<f32> = centre.iter().map(|number| number + 0.7 * draw.normal()).collect();
            let start = all.len();
            for row in self.map.chunks_exact(INNER) {
                let sum: f32 = row.iter().zip(&inner).map(|(one, other)| one * other).sum();
                all.push((sum / 6.0).tanh() + 0.1 * draw.normal());
            }
            let length = all[start..].iter().map(|number| number * number).sum::<f32>().sqrt();
            for number in &mut all[start..] {
                *number /= length;
            }
        }
        Ok(all)
    }
}

/// Gives [`Generated`] as the encoder of every directory.
#[derive(Debug)]
struct GeneratedModels;

impl SearchModels for GeneratedModels {
    fn encoder(&self, _: &Path, _: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
        Ok(Arc::new(Generated::new()))
    }
}

fn dense(passages: u64) -> Result<()> {
    // An exact search reads every vector: fewer queries for more of them.
    let (count, timed) = if passages > 200_000 { (200, 20) } else { (1000, 200) };
    let queries: Vec<String> = (0..count).map(|number| format!("query {number}")).collect();
    for vectors in [VectorType::F32, VectorType::F16] {
        let dir = tempfile::tempdir().map_err(|error| failed("make a directory", &error))?;
        let out = dir.path().join("index");
        let encoder = Arc::new(Generated::new());
        let options = BuildOptions {
            commit_every: 100_000,
            dense: Some(DenseOptions { encoder, vectors, hnsw: Some(HnswOptions::default()) }),
            ..BuildOptions::default()
        };
        let mut builder = Builder::begin(&out, options, false, false)?;
        for number in 0..passages {
            let text = format!("passage {number}");
            builder.add(&Passage { id: number.to_string(), text, ..Passage::default() })?;
        }
        builder.commit()?;
        let started = Instant::now();
        let manifest = builder.finish()?.manifest;
        let seconds = started.elapsed().as_secs_f64();
        let files = manifest.parts.dense.map(|part| part.files).unwrap_or_default();
        let bytes: Vec<f64> = files.iter().map(|file| file.bytes as f64 / passages as f64).collect();
        let mine = own_memory();
        println!(
            "{}",
            json!({
                "vectors": vectors.name(), "passages": passages, "graph_seconds": seconds,
                "graph_vectors_per_second": passages as f64 / seconds, "bytes_per_passage": bytes, "peak_mib": mine,
            })
        );
        let index = Index::open_with(&out, &GeneratedModels)?;
        let options = |nearest| SearchOptions { nearest, ..SearchOptions::new(10, Mode::Dense) };
        let texts: Vec<&str> = queries.iter().map(String::as_str).collect();
        let exact = index.search_all(&texts, &options(Nearest::Exact))?;
        let some = &queries[..timed];
        for threads in [1, 64] {
            let times = measure(&index, some, &options(Nearest::Exact), threads)?;
            println!("{}", json!({ "search": "exact", "threads": threads, "queries": times }));
        }
        for ef in [16, 64, 256] {
            let approximate = index.search_all(&texts, &options(Nearest::Candidates(ef)))?;
            let ids = |hits: &[r1::search::Hit]| hits.iter().map(|hit| hit.id.clone()).collect::<Vec<String>>();
            let pairs = exact.iter().zip(&approximate).map(|(exact, approximate)| (ids(exact), ids(approximate)));
            let shared: usize =
                pairs.map(|(exact, approximate)| exact.iter().filter(|id| approximate.contains(id)).count()).sum();
            for threads in [1, 64] {
                let times = measure(&index, &queries, &options(Nearest::Candidates(ef)), threads)?;
                let recall = shared as f64 / (10 * queries.len()) as f64;
                println!("{}", json!({ "ef": ef, "recall_at_10": recall, "threads": threads, "queries": times }));
            }
        }
    }
    match std::env::var_os("R1_ENCODER") {
        Some(directory) => encoding(Path::new(&directory)),
        None => Ok(()),
    }
}

/// How fast a model encodes passages of the same words as the corpus, in batches as a build does.
fn encoding(directory: &Path) -> Result<()> {
    let encoder = load_encoder(directory, EncoderSettings::default(), Checkpoints::AUTO)?;
    let mut draw = Draw(1);
    let mut texts =
        || (0..64).map(|_| (0..WORDS).map(|_| draw.word()).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    encoder.encode(&texts())?;
    let (started, batches) = (Instant::now(), 4);
    for _ in 0..batches {
        encoder.encode(&texts())?;
    }
    let speed = f64::from(batches * 64) / started.elapsed().as_secs_f64();
    println!("{}", json!({ "encoder": directory, "passages_per_second": speed }));
    Ok(())
}

/// Largest memory of this process so far, in MiB.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Builds with the program, and looks at its memory.
fn build(corpus: &Path, out: &Path, passages: u64) -> Result<()> {
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.args(["index", "build", "--quiet", "--out"]).arg(out).arg(corpus).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed("start r1", &error))?;
    let mut peak = 0;
    let status = loop {
        peak = peak.max(resident(&child, "VmHWM:"));
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
    println!("{}", json!({ "build_seconds": seconds, "passages_per_second": speed, "build_peak_mib": peak >> 10 }));
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
    let (private, files) = (resident(&child, "RssAnon:"), resident(&child, "RssFile:"));
    println!("{}", json!({ "serve_own_mib": private >> 10, "serve_files_mib": files >> 10 }));
    child.kill().and_then(|()| child.wait()).map_err(|error| failed("stop the server", &error))?;
    Ok(())
}

/// KiB of a process.
fn resident(child: &Child, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Every query once, by `threads` threads: queries per second, median and 99th percentile.
fn measure(index: &Index, queries: &[String], options: &SearchOptions, threads: usize) -> Result<serde_json::Value> {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let times: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let work = || -> Result<Vec<Duration>> {
            let mut times = Vec::new();
            while let Some(query) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                index.search_all(&[query], options)?;
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
    let per_second = times.len() as f64 / seconds;
    Ok(json!({ "per_second": per_second, "p50_ms": at(0.5), "p99_ms": at(0.99) }))
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

    fn below(&mut self, limit: u64) -> u64 {
        (self.share() * limit as f64) as u64
    }

    fn normal(&mut self) -> f32 {
        let (length, angle) = (self.share().max(1e-300), self.share() * std::f64::consts::TAU);
        ((-2.0 * length.ln()).sqrt() * angle.cos()) as f32
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
