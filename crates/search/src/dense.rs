//! The vectors of an index: one per passage, in the order of their numbers. A search either
//! computes the inner product of the query with every vector (exact), or follows the links of a
//! graph ([`super::graph`]).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use half::f16;

use super::bm25::Best;
use super::documents::append;
use super::encoder::{SearchModels, TextEncoder, passage_text};
use super::graph::{CANDIDATES, Graph};
use super::manifest::DensePart;
use super::options::Nearest;
use super::passage::Passage;
use super::rows::VectorRows;
use super::vectors::{FOLDER, VectorType};
use r1_base::error::{Error, Kind, Result};

/// Passages that are encoded at once: sorted by length, they need little padding.
const AT_ONCE: usize = 64;
/// The same on a GPU, which is waited for once.
const AT_ONCE_ON_GPU: usize = 4096;
/// Bytes of passages above which they are encoded, although they are fewer.
const BYTES_AT_ONCE: usize = 64 << 20;
/// Vector elements per scan above which it uses several threads.
const LARGE: usize = 1 << 22;

fn write(kind: VectorType, vectors: &[f32], out: &mut impl Write) -> std::io::Result<()> {
    vectors.iter().try_for_each(|number| match kind {
        VectorType::F32 => out.write_all(&number.to_le_bytes()),
        VectorType::F16 => out.write_all(&f16::from_f32(*number).to_le_bytes()),
    })
}

/// Encodes passages and appends their vectors.
pub(super) struct DenseWriter {
    encoder: Arc<dyn TextEncoder>,
    vectors: VectorType,
    path: PathBuf,
    file: BufWriter<File>,
    /// Batches of texts to be encoded, and the bytes of the last one.
    batches: Vec<Vec<String>>,
    bytes: usize,
}

impl DenseWriter {
    /// Continues after the vectors of `passages` passages; what follows them is removed.
    pub(super) fn open(part: &Path, encoder: Arc<dyn TextEncoder>, vectors: VectorType, passages: u64) -> Result<Self> {
        let path = part.join(vectors.file());
        let length = passages * (encoder.dimension() * vectors.size()) as u64;
        std::fs::create_dir_all(part.join(FOLDER)).map_err(|error| Error::io(Kind::Store, "write", &path, &error))?;
        Ok(Self { encoder, vectors, file: append(&path, length)?, path, batches: Vec::new(), bytes: 0 })
    }

    pub(super) fn add(&mut self, passage: &Passage) -> Result<()> {
        let text = passage_text(&self.encoder.options().passage_prefix, passage);
        let limit = if self.encoder.is_on_gpu() { AT_ONCE_ON_GPU } else { AT_ONCE };
        if self.batches.last().is_none_or(|texts| texts.len() == limit || self.bytes >= BYTES_AT_ONCE) {
            self.bytes = 0;
            self.batches.push(Vec::new());
        }
        self.bytes += text.len();
        let (count, last) = (self.batches.len(), self.batches.last_mut());
        let is_full = last.is_some_and(|texts| {
            texts.push(text);
            texts.len() == limit || self.bytes >= BYTES_AT_ONCE
        });
        if is_full && count == self.encoder.batches_at_once() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let vectors = self.encoder.encode_batches(&self.batches)?.concat();
        self.batches.clear();
        let too_large = |number: &&f32| self.vectors == VectorType::F16 && !f16::from_f32(**number).is_finite();
        if let Some(number) = vectors.iter().find(too_large) {
            let why = format!("a vector has the number {number}, which is too large for f16");
            return Err(Error::new(Kind::Usage, why).hint("--vectors f32 stores it"));
        }
        let written = write(self.vectors, &vectors, &mut self.file);
        written.map_err(|error| Error::io(Kind::Store, "write vectors", &self.path, &error))
    }

    /// Writes everything to the disk.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        synced.map_err(|error| Error::io(Kind::Store, "write vectors", &self.path, &error))
    }
}

/// The vectors of an open index.
pub(super) struct Dense {
    rows: Arc<VectorRows>,
    part: DensePart,
    index: PathBuf,
    models: &'static dyn SearchModels,
    /// Both are loaded by the first search.
    encoder: OnceLock<Arc<dyn TextEncoder>>,
    graph: OnceLock<Graph>,
}

impl Dense {
    /// Opens the part of an index with `passages` passages.
    ///
    /// # Errors
    /// [`Kind::Data`] if the file has another size than its vectors, or vectors of another length
    /// than the manifest's similarity requires.
    pub(super) fn open(
        index: &Path,
        part: &DensePart,
        passages: u64,
        models: &'static dyn SearchModels,
    ) -> Result<Self> {
        let path = index.join(part.vectors.file());
        let rows = VectorRows::open(&path, part.vectors, part.dimension, passages)?;
        rows.check_similarity(part.options.similarity, &path)?;
        let (part, index, rows) = (part.clone(), index.to_owned(), Arc::new(rows));
        Ok(Self { rows, part, index, models, encoder: OnceLock::new(), graph: OnceLock::new() })
    }

    /// Loads the encoder and the graph, once.
    pub(super) fn prepare(&self, nearest: Nearest) -> Result<()> {
        self.encoder()?;
        self.graph(nearest).map(drop)
    }

    fn encoder(&self) -> Result<&Arc<dyn TextEncoder>> {
        if let Some(encoder) = self.encoder.get() {
            return Ok(encoder);
        }
        let encoder = super::encoder::of_index(&self.index, &self.part, self.models)?;
        Ok(self.encoder.get_or_init(|| encoder))
    }

    /// The graph and the number of candidates; `None` for an exact search.
    fn graph(&self, nearest: Nearest) -> Result<Option<(&Graph, usize)>> {
        let ef = match (nearest, self.part.hnsw) {
            (Nearest::Exact, _) | (Nearest::Default, None) => return Ok(None),
            (Nearest::Default, Some(_)) => CANDIDATES,
            (Nearest::Candidates(ef), Some(_)) => ef,
            (Nearest::Candidates(_), None) => {
                let why = "the index has no HNSW graph, so `ef` has no effect";
                return Err(Error::new(Kind::Usage, why)
                    .at_path(&self.index)
                    .hint("without `ef` every vector is compared; `r1 index build --hnsw` makes a graph"));
            }
        };
        if let Some(graph) = self.graph.get() {
            return Ok(Some((graph, ef)));
        }
        let options = self.part.hnsw.unwrap_or_default();
        let graph = Graph::open(&self.index, Arc::clone(&self.rows), self.part.options.similarity, options)?;
        Ok(Some((self.graph.get_or_init(|| graph), ef)))
    }

    /// The best `limit` passages for each query, best first.
    pub(super) fn search(&self, queries: &[&str], limit: usize, nearest: Nearest) -> Result<Vec<Vec<(u64, f64)>>> {
        let graph = self.graph(nearest)?;
        let encoder = self.encoder()?;
        let prefix = &encoder.options().query_prefix;
        let texts: Vec<String> = queries.iter().map(|query| format!("{prefix}{query}")).collect();
        let encoded = encoder.encode(&texts)?;
        let mut encoded = encoded.chunks_exact(self.part.dimension);
        match graph {
            Some((graph, ef)) => encoded.map(|query| graph.search(query, limit, ef.max(limit))).collect(),
            None => Ok(self.nearest(&encoded.by_ref().collect::<Vec<_>>(), limit)),
        }
    }

    /// The best `limit` passages for each vector by inner product, best first; equal scores in the
    /// order of the corpus.
    fn nearest(&self, queries: &[&[f32]], limit: usize) -> Vec<Vec<(u64, f64)>> {
        let count = self.rows.count();
        let large = count * self.rows.dimension() * queries.len() > LARGE;
        let threads = if large { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
        let each = count.div_ceil(threads).max(1);
        let ranges = (0..count).step_by(each).map(|start| start..(start + each).min(count));
        let scan = |range: std::ops::Range<usize>| self.scan(queries, range, limit);
        let parts: Vec<Vec<Vec<(u64, f64)>>> = std::thread::scope(|scope| {
            let mut ranges: Vec<_> = ranges.collect();
            let last = ranges.pop();
            let running: Vec<_> =
                ranges.into_iter().map(|range| (range.clone(), scope.spawn(|| scan(range)))).collect();
            let last = last.map(scan);
            let done = running.into_iter().map(|(range, thread)| thread.join().unwrap_or_else(|_| scan(range)));
            done.chain(last).collect()
        });
        let merged = (0..queries.len()).map(|query| {
            let mut best = Best::new(limit);
            for (passage, score) in parts.iter().flat_map(|part| &part[query]) {
                best.offer_any(*score, *passage);
            }
            best.ranked()
        });
        merged.collect()
    }

    fn scan(&self, queries: &[&[f32]], range: std::ops::Range<usize>, limit: usize) -> Vec<Vec<(u64, f64)>> {
        let mut best: Vec<Best> = queries.iter().map(|_| Best::new(limit)).collect();
        self.rows.scan(queries, range, |query, row, product| best[query].offer_any(f64::from(product), row as u64));
        best.into_iter().map(Best::ranked).collect()
    }
}
