//! An open index: searches, hits, and the indexes that this process has open.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::dense::Dense;
use super::documents::Documents;
use super::encoder::{NoModels, Reranker, SearchModels};
use super::fusion::{CONSTANT, reciprocal_rank_fusion};
use super::manifest::{self, Manifest};
use super::options::{MOST_HITS, Mode, SearchOptions};
use super::passage::Passage;
use super::sparse::{self, Sparse};
use r1_base::error::{Error, Kind, Result};

/// Maximum length of a query in bytes, and maximum number of its distinct terms.
const LONGEST_QUERY: usize = 32 << 10;
const MOST_TERMS: usize = 1024;
/// Passages of each ranking that are fused, or `k` if that is more.
const FUSED: usize = 100;

/// A passage of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    pub id: String,
    pub score: f64,
    /// Starts at 1 for the best.
    pub rank: usize,
    /// Empty if it has none.
    #[serde(default)]
    pub title: String,
    pub text: String,
    /// The other columns of its row.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub columns: Map<String, Json>,
}

/// An open index. Searches of any number of threads share it.
pub struct Index {
    directory: PathBuf,
    manifest: Manifest,
    documents: Documents,
    sparse: Sparse,
    dense: Option<Dense>,
    models: &'static dyn SearchModels,
    /// The last re-ranking model of a search, so that it stays loaded.
    reranker: Mutex<Option<Arc<dyn Reranker>>>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// The indexes that this process has open.
static OPEN: Mutex<Vec<Weak<Index>>> = Mutex::new(Vec::new());

impl Index {
    /// Opens an index for searches by words ([`Mode::Sparse`]), which need no model. The files'
    /// sizes are compared with the manifest, their contents are not: see [`super::verify`].
    ///
    /// # Errors
    /// [`Kind::Data`] for a directory that is not a complete index of this format.
    pub fn open(directory: &Path) -> Result<Self> {
        Self::open_with(directory, &NoModels)
    }

    /// As [`open`](Self::open), for searches that need models: vectors and re-ranking. The loader
    /// of checkpoints is `encoders::Checkpoints` of r1.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn open_with(directory: &Path, models: &'static dyn SearchModels) -> Result<Self> {
        let manifest = Manifest::read(directory)?;
        let passages = manifest.counts.passages;
        let part = manifest.parts.sparse.as_ref().ok_or_else(|| {
            let why = "the index has no inverted index, so it can't be searched";
            Error::new(Kind::Data, why).at_path(directory).hint("build it again with `r1 index build`")
        })?;
        let documents = Documents::open(directory, passages)?;
        let sparse = caught(directory, || Sparse::open(directory, part, passages))?;
        let dense = manifest.parts.dense.as_ref();
        let dense = dense.map(|part| Dense::open(directory, part, passages, models)).transpose()?;
        let directory = directory.to_owned();
        Ok(Self { directory, manifest, documents, sparse, dense, models, reranker: Mutex::new(None) })
    }

    /// As [`open_with`](Self::open_with), once per process: callers share the index while one of
    /// them holds it.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn shared(directory: &Path, models: &'static dyn SearchModels) -> Result<Arc<Self>> {
        let manifest = Manifest::read(directory)?;
        let real = directory.canonicalize().map_err(|error| Error::io(Kind::Data, "open", directory, &error))?;
        // The lock is held while an index is opened, so that two threads do not open it twice.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|index| index.strong_count() > 0);
        // A rebuilt index is a different one, and so is one with other models.
        let same = |index: &Arc<Self>| {
            let same_models = index.models.type_id() == models.type_id();
            index.directory == real && index.manifest == manifest && same_models
        };
        if let Some(index) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(index);
        }
        let index = Arc::new(Self::open_with(&real, models)?);
        open.push(Arc::downgrade(&index));
        Ok(index)
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Prepares searches with these options: loads the models that they need, and refuses options
    /// that the index has no part for.
    ///
    /// # Errors
    /// As [`Index::search_all`].
    pub fn check(&self, options: &SearchOptions) -> Result<()> {
        if options.mode != Mode::Sparse {
            self.vectors(options.mode)?.prepare(options.nearest)?;
        }
        self.reranker(options).map(drop)
    }

    /// The re-ranking model of a search, and how many passages it reads.
    fn reranker(&self, options: &SearchOptions) -> Result<Option<(Arc<dyn Reranker>, usize)>> {
        let Some(wanted) = &options.rerank else { return Ok(None) };
        let top = wanted.top(options.k)?;
        let loaded = self.models.reranker(&wanted.model)?;
        *self.reranker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&loaded));
        Ok(Some((loaded, top)))
    }

    fn vectors(&self, mode: Mode) -> Result<&Dense> {
        self.dense.as_ref().ok_or_else(|| {
            let why = format!("the index has no vectors, which the search mode `{}` needs", mode.name());
            Error::new(Kind::Usage, why)
                .at_path(&self.directory)
                .hint("build it with --encoder DIR, or search it with the mode `sparse`")
        })
    }

    /// The best `k` passages for a query: [`search_all`](Self::search_all) for one query.
    ///
    /// # Errors
    /// As [`Index::search_all`].
    pub fn search(&self, query: &str, k: usize, mode: Mode) -> Result<Vec<Hit>> {
        Ok(self.search_all(&[query], &SearchOptions::new(k, mode))?.pop().unwrap_or_default())
    }

    /// The best passages for each query, best first; equal scores in the order of the corpus. A
    /// sparse search returns fewer than `k` where fewer have a term of the query. An empty query
    /// has no hits.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a query or an option that is too large, or a mode or an option that the
    /// index has no part for; [`Kind::Data`] if the index is damaged; [`Kind::Model`] if a model
    /// can't be used.
    pub fn search_all(&self, queries: &[&str], options: &SearchOptions) -> Result<Vec<Vec<Hit>>> {
        queries.iter().try_for_each(|query| check_request(query, options.k))?;
        let reranker = self.reranker(options)?;
        let first = reranker.as_ref().map_or(options.k, |(_, top)| *top);
        let ranked = self.ranked(queries, first, options)?;
        let hits_by_query = ranked.into_iter().zip(queries).map(|(ranked, query)| {
            let mut hits = self.hits(ranked)?;
            if let Some((reranker, _)) = &reranker {
                rerank(&**reranker, query, &mut hits)?;
                hits.truncate(options.k);
            }
            Ok(hits.into_iter().enumerate().map(|(index, (passage, score))| hit(index, passage, score)).collect())
        });
        hits_by_query.collect()
    }

    /// Numbers and scores of the best `k` passages for each query.
    fn ranked(&self, queries: &[&str], k: usize, options: &SearchOptions) -> Result<Vec<Vec<(u64, f64)>>> {
        match options.mode {
            Mode::Sparse => queries.iter().map(|query| self.rank(query, k)).collect(),
            Mode::Dense => self.rank_dense(queries, k, options),
            Mode::Hybrid => {
                let limit = k.max(FUSED);
                let dense = self.rank_dense(queries, limit, options)?;
                let fused = queries.iter().zip(dense).map(|(query, dense)| {
                    let sparse = self.rank(query, limit)?;
                    let numbers = |ranking: &[(u64, f64)]| ranking.iter().map(|hit| hit.0).collect::<Vec<u64>>();
                    let mut fused = reciprocal_rank_fusion(&[&numbers(&sparse), &numbers(&dense)], CONSTANT);
                    fused.truncate(k);
                    Ok(fused)
                });
                fused.collect()
            }
        }
    }

    fn hits(&self, ranked: Vec<(u64, f64)>) -> Result<Vec<(Passage, f64)>> {
        ranked.into_iter().map(|(passage, score)| Ok((self.documents.get(passage)?, score))).collect()
    }

    fn rank_dense(&self, queries: &[&str], k: usize, options: &SearchOptions) -> Result<Vec<Vec<(u64, f64)>>> {
        let dense = self.vectors(options.mode)?;
        let asked: Vec<&str> = queries.iter().copied().filter(|query| !query.trim().is_empty()).collect();
        let mut ranked = dense.search(&asked, k, options.nearest)?.into_iter();
        let each = queries
            .iter()
            .map(|query| if query.trim().is_empty() { Vec::new() } else { ranked.next().unwrap_or_default() });
        Ok(each.collect())
    }

    /// Numbers and scores of the best `k` passages by BM25.
    ///
    /// # Errors
    /// As [`Index::search`].
    pub fn rank(&self, query: &str, k: usize) -> Result<Vec<(u64, f64)>> {
        check_request(query, k)?;
        let terms = self.sparse.terms(query);
        if terms.len() > MOST_TERMS {
            let why = format!("the query has {} different terms; at most {MOST_TERMS} are searched", terms.len());
            return Err(Error::new(Kind::Usage, why));
        }
        caught(&self.directory, || {
            let ranked = self.sparse.search(&terms, k);
            ranked.map_err(|error| sparse::damaged(&self.directory.join(sparse::FOLDER), &error))
        })
    }

    /// SHA-256 of the manifest, which has the checksums of all files: the identity of the index.
    ///
    /// # Errors
    /// [`Kind::Data`] if the manifest can't be read any more.
    pub fn sha256(&self) -> Result<String> {
        manifest::identity(&self.directory).map(|(_, sha256)| sha256)
    }
}

fn hit(index: usize, passage: Passage, score: f64) -> Hit {
    let Passage { id, title, text, columns } = passage;
    Hit { id, score, rank: index + 1, title, text, columns }
}

/// Orders passages by the scores of a re-ranking model; equal scores keep their order.
fn rerank(reranker: &dyn Reranker, query: &str, hits: &mut [(Passage, f64)]) -> Result<()> {
    let passages: Vec<Passage> = hits.iter_mut().map(|(passage, _)| std::mem::take(passage)).collect();
    let scores = reranker.scores(query, &passages)?;
    for ((hit, passage), score) in hits.iter_mut().zip(passages).zip(scores) {
        *hit = (passage, f64::from(score));
    }
    hits.sort_by(|one, other| other.1.total_cmp(&one.1));
    Ok(())
}

/// Refuses a query or a number of hits that is too large.
fn check_request(query: &str, k: usize) -> Result<()> {
    if query.len() > LONGEST_QUERY {
        let why = format!("the query has {} KiB; at most {} are searched", query.len() >> 10, LONGEST_QUERY >> 10);
        return Err(Error::new(Kind::Usage, why));
    }
    if k == 0 || k > MOST_HITS {
        return Err(Error::new(Kind::Usage, format!("k is {k}; it must be from 1 to {MOST_HITS}")));
    }
    Ok(())
}

thread_local! {
    /// A panic of this thread is an error of [`caught`].
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error, and is not to be reported.
pub fn expects_panic() -> bool {
    EXPECTED.get()
}

/// Runs `read`; a panic is the error of a damaged index, because `tantivy` does not check its
/// files.
fn caught<T>(directory: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = EXPECTED.replace(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    EXPECTED.set(before);
    read.unwrap_or_else(|_| {
        Err(Error::new(Kind::Data, "the inverted index is damaged")
            .at_path(directory)
            .hint("`r1 index verify` compares all files with their checksums"))
    })
}
