//! A graph over the vectors of an index (HNSW), built and searched by `usearch`.
//!
//! The graph stores no vectors: a vector of `usearch` is the number of a row, and its metric is a
//! function that reads the rows. So a graph takes about 150 bytes per passage, and a build holds
//! the graph in memory, not the vectors. The number after the last row is the query.
//!
//! Vectors are added by one thread, in order. Every [`HnswBuild::save_every`] vectors the graph is
//! written under another name, renamed, and read back, so that a build that was interrupted gives
//! the same bytes as one that was not.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use memmap2::Mmap;
use usearch::{Index as Usearch, IndexOptions, ScalarKind};

use super::documents::map;
use super::graph_file;
use super::place::BUILD;
use super::rows::VectorRows;
use super::vectors::{FOLDER, HnswOptions, Similarity};
use r1_base::error::{Error, Kind, Result};

/// Default number of candidates of a search.
pub const CANDIDATES: usize = 64;
/// Number of vectors between two calls of a build's progress function.
const SHOW_EVERY: usize = 256;

/// Path of the graph, relative to the index.
pub(super) fn file() -> String {
    format!("{FOLDER}/hnsw.usearch")
}

thread_local! {
    /// The query of the search that this thread runs.
    static QUERY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Inputs of the build of a graph.
pub(super) struct HnswBuild<'a> {
    /// The directory of the index that is built.
    pub(super) part: &'a Path,
    pub(super) rows: Arc<VectorRows>,
    pub(super) similarity: Similarity,
    pub(super) options: HnswOptions,
    pub(super) save_every: usize,
}

impl HnswBuild<'_> {
    /// Builds the graph, or continues after the last one that was saved. `progress` is called with
    /// the number of vectors so far; it returns false to stop.
    ///
    /// # Errors
    /// [`Kind::Interrupted`] if `progress` stopped it; [`Kind::Store`] if the graph can't be
    /// written.
    pub(super) fn run(&self, progress: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let (path, all) = (self.part.join(file()), self.rows.count());
        let lock = File::open(self.part.join(BUILD)).map_err(|error| failed(&path, &error))?;
        if lock.try_lock().is_err() {
            return Err(Error::new(Kind::Store, "another process is building this index").at_path(self.part));
        }
        let mut done = self.saved(&path)?;
        while done < all {
            let end = (done - done % self.save_every + self.save_every).min(all);
            let graph = empty(self.similarity, self.options, CANDIDATES)?;
            if done > 0 {
                let bytes = map(&path)?;
                graph.load_from_buffer(bytes.as_deref().unwrap_or_default()).map_err(|error| failed(&path, &error))?;
            }
            let mut graph = graph;
            graph.change_metric::<f64>(metric(&self.rows));
            graph.reserve_capacity_and_threads(end, 1).map_err(|error| failed(&path, &error))?;
            for row in done..end {
                if row % SHOW_EVERY == 0 && !progress(row as u64) {
                    let why = format!("the build was interrupted at vector {row} of {all} of its HNSW graph");
                    return Err(
                        Error::new(Kind::Interrupted, why).hint(format!("the same command continues at vector {done}"))
                    );
                }
                graph.add(row as u64, &[row_vector(row)]).map_err(|error| failed(&path, &error))?;
            }
            save(&graph, &path)?;
            done = end;
        }
        progress(all as u64);
        Ok(())
    }

    /// Number of vectors in the graph that an interrupted build saved.
    fn saved(&self, path: &Path) -> Result<usize> {
        if !path.exists() {
            return Ok(0);
        }
        let bytes = map(path)?;
        let checked = graph_file::check(bytes.as_deref().unwrap_or_default(), self.similarity, self.options.links);
        // A graph that can't be read is built again.
        Ok(checked.ok().filter(|rows| *rows <= self.rows.count()).unwrap_or(0))
    }
}

/// The number of a row as a vector.
fn row_vector(row: usize) -> f64 {
    f64::from_bits(row as u64)
}

fn empty(similarity: Similarity, options: HnswOptions, ef: usize) -> Result<Usearch> {
    let options = IndexOptions {
        dimensions: 1,
        // The metric itself is replaced; its kind is written into the file and verified.
        metric: graph_file::kind(similarity),
        quantization: ScalarKind::F64,
        connectivity: options.links,
        expansion_add: options.ef_construction,
        expansion_search: ef,
        multi: false,
    };
    Usearch::new(&options).map_err(|error| Error::new(Kind::Internal, format!("can't make a graph: {error}")))
}

/// The distance of two vectors, each the number of a row, or the query: the smaller, the more
/// similar.
#[allow(unsafe_code)]
fn metric(rows: &Arc<VectorRows>) -> Box<dyn Fn(*const f64, *const f64) -> f32 + Send + Sync> {
    let rows = Arc::clone(rows);
    Box::new(move |one, other| {
        // SAFETY: usearch passes pointers to two of its vectors; a vector is one number.
        let [one, other] = [one, other].map(|vector| unsafe { vector.read_unaligned() }.to_bits() as usize);
        let of_query = |row: usize| QUERY.with_borrow(|query| rows.product(query, row));
        match (one < rows.count(), other < rows.count()) {
            (true, true) => -rows.product_of_rows(one, other),
            (true, false) => -of_query(one),
            (false, true) => -of_query(other),
            (false, false) => f32::MAX,
        }
    })
}

fn save(graph: &Usearch, path: &Path) -> Result<()> {
    let new = path.with_extension("new");
    let name = new.to_str().ok_or_else(|| {
        Error::new(Kind::Usage, "the path of an index with an HNSW graph must be UTF-8").at_path(path)
    })?;
    graph.save(name).map_err(|error| failed(path, &error))?;
    let renamed = File::open(&new).and_then(|file| file.sync_all()).and_then(|()| std::fs::rename(&new, path));
    renamed.map_err(|error| Error::io(Kind::Store, "write the graph", path, &error))
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Store, format!("the HNSW graph can't be written: {error}")).at_path(path)
}

/// A graph that is searched by several threads at once.
pub(super) struct Graph {
    // Declared before the file that it reads: fields are dropped in the order of declaration.
    links: Usearch,
    _file: Option<Mmap>,
    rows: Arc<VectorRows>,
    path: PathBuf,
    /// The number of candidates, which `usearch` stores per graph, not per search.
    ef: RwLock<usize>,
    permits: Permits,
}

impl Graph {
    /// Opens the graph over all rows. Its links are checked first, because `usearch` does not check
    /// them.
    ///
    /// # Errors
    /// [`Kind::Data`] for a file that is damaged, or the graph of other vectors.
    #[allow(unsafe_code)]
    pub(super) fn open(
        index: &Path,
        rows: Arc<VectorRows>,
        similarity: Similarity,
        options: HnswOptions,
    ) -> Result<Self> {
        let path = index.join(file());
        let bytes = map(&path)?;
        let stored = bytes.as_deref().unwrap_or_default();
        let count = graph_file::check(stored, similarity, options.links).map_err(|error| error.at_path(&path))?;
        if count != rows.count() {
            let why = format!("the HNSW graph has {count} vectors, the index {}", rows.count());
            return Err(graph_file::damaged(&why).at_path(path));
        }
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let unreadable =
            |error: &dyn std::fmt::Display| graph_file::damaged(&format!("usearch: {error}")).at_path(&path);
        let mut graph = empty(similarity, options, CANDIDATES)?;
        graph.reserve_capacity_and_threads(count, threads).map_err(|error| unreadable(&error))?;
        // SAFETY: the file is not written to, its links were checked, and it is unmapped after the
        // graph is dropped.
        unsafe { graph.view_from_buffer(stored) }.map_err(|error| unreadable(&error))?;
        graph.change_metric::<f64>(metric(&rows));
        graph.change_expansion_search(CANDIDATES);
        Ok(Self { links: graph, _file: bytes, rows, path, ef: RwLock::new(CANDIDATES), permits: Permits::new(threads) })
    }

    /// The best `limit` rows for a query among `ef` candidates, best first. Equal scores are in
    /// order of the rows.
    ///
    /// # Errors
    /// [`Kind::Data`] if the search fails.
    pub(super) fn search(&self, query: &[f32], limit: usize, ef: usize) -> Result<Vec<(u64, f64)>> {
        let _permit = self.permits.acquire();
        QUERY.with_borrow_mut(|buffer| {
            buffer.clear();
            buffer.extend_from_slice(query);
        });
        let search = || {
            let neighbours = self.links.search(&[row_vector(self.rows.count())], limit);
            neighbours.map_err(|error| graph_file::damaged(&format!("usearch: {error}")).at_path(&self.path))
        };
        let current = self.ef.read().unwrap_or_else(PoisonError::into_inner);
        let neighbours = if *current == ef {
            search()?
        } else {
            drop(current);
            let mut current = self.ef.write().unwrap_or_else(PoisonError::into_inner);
            *current = ef;
            self.links.change_expansion_search(ef);
            search()?
        };
        let score = |row: &u64| (*row, f64::from(self.rows.product(query, *row as usize)));
        let mut scored: Vec<(u64, f64)> = neighbours.keys.iter().map(score).collect();
        scored.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        Ok(scored)
    }
}

/// Limits the number of concurrent searches to that for which the graph has memory.
struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

struct Permit<'a>(&'a Permits);

impl Permits {
    fn new(free: usize) -> Self {
        Self { free: Mutex::new(free), returned: Condvar::new() }
    }

    fn acquire(&self) -> Permit<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.returned.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.returned.notify_one();
    }
}
