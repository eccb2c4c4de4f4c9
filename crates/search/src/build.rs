//! Builds an index directory from passages.
//!
//! The index is built in `DIR.part` and renamed when it is complete. Every
//! [`BuildOptions::commit_every`] passages are committed: the passages are written to the disk,
//! then the inverted index is, with the counts so far as the payload of its commit, which is one
//! rename. A build that finds `DIR.part` with the same options and corpus continues after the last
//! commit: what was written after it is removed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tantivy::indexer::NoMergePolicy;
use tantivy::{Index as Postings, IndexWriter, TantivyDocument};

use super::build_options::{BuildOptions, DenseOptions, DuplicateIds, GRAPH_COMMITS};
use super::dense::DenseWriter;
use super::documents::{self, Documents, DocumentsWriter, Lengths};
use super::graph::{self, HnswBuild};
use super::manifest::{self, BuildCounts, DensePart, FileEntry, IndexParts, Manifest, SparsePart, part_of};
use super::passage::Passage;
use super::place::{self, BUILD, HEAP, unwritable};
use super::rows::VectorRows;
use super::sparse::{self, SchemaFields};
use r1_base::error::{Error, Kind, Result};

/// The payload of a commit.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct CommitProgress {
    counts: BuildCounts,
    terms: u64,
    title_terms: u64,
    documents: Lengths,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BuildReport {
    pub manifest: Manifest,
    /// Row at which the build was resumed; 0 if it was not.
    pub resumed_at: u64,
}

/// An index that is being built.
pub struct Builder {
    out: PathBuf,
    part: PathBuf,
    options: BuildOptions,
    documents: DocumentsWriter,
    writer: IndexWriter,
    fields: SchemaFields,
    dense: Option<DenseWriter>,
    ids: HashSet<IdHash>,
    progress: CommitProgress,
    /// Passages at the last commit.
    committed: u64,
    resumed_at: u64,
    text: String,
}

impl Builder {
    /// Begins a build, or resumes an interrupted one. `restart` discards the latter, and
    /// `overwrite` permits the replacement of an index at the end.
    ///
    /// # Errors
    /// [`Kind::Usage`] if `out` exists, or an interrupted build has other options or another
    /// corpus; [`Kind::Store`] if files can't be written or another process builds the index.
    pub fn begin(out: &Path, options: BuildOptions, restart: bool, overwrite: bool) -> Result<Self> {
        place::check(out, overwrite)?;
        let part = part_of(out);
        let failed = |error: std::io::Error| Error::io(Kind::Store, "write the index", &part, &error);
        let plan = place::plan(&options);
        if part.exists() && restart {
            std::fs::remove_dir_all(&part).map_err(failed)?;
        }
        let stored_plan = std::fs::read(part.join(BUILD)).ok();
        if let Some(stored_plan) = stored_plan.filter(|_| part.join(sparse::FOLDER).join("meta.json").exists()) {
            let stored_plan: Json = serde_json::from_slice(&stored_plan).unwrap_or_default();
            if stored_plan != plan && !place::is_committed(&part)? {
                // No passage was committed, for example because the first row was refused.
                return Self::begin(out, options, true, overwrite);
            }
            if stored_plan != plan {
                let what = place::difference(&stored_plan, &plan);
                return Err(Error::new(Kind::Usage, format!("an interrupted build has another {what}"))
                    .at_path(&part)
                    .hint("--restart discards it; the same command as before resumes it"));
            }
        } else {
            if part.exists() {
                // Nothing was committed.
                std::fs::remove_dir_all(&part).map_err(failed)?;
            }
            std::fs::create_dir_all(part.join(sparse::FOLDER)).map_err(failed)?;
            std::fs::write(part.join(BUILD), format!("{plan:#}\n")).map_err(failed)?;
            let (schema, _) = sparse::schema();
            let folder = part.join(sparse::FOLDER);
            Postings::create_in_dir(&folder, schema).map_err(|error| unwritable(&folder, &error))?;
        }
        Self::open(out.to_owned(), part, options)
    }

    fn open(out: PathBuf, part: PathBuf, options: BuildOptions) -> Result<Self> {
        let folder = part.join(sparse::FOLDER);
        let opened = || -> tantivy::Result<(Option<String>, IndexWriter)> {
            let index = Postings::open_in_dir(&folder)?;
            let writer: IndexWriter = index.writer_with_num_threads(1, HEAP)?;
            // Segments are merged once, at the end.
            writer.set_merge_policy(Box::new(NoMergePolicy));
            Ok((index.load_metas()?.payload, writer))
        };
        let (payload, writer) = opened().map_err(|error| unwritable(&folder, &error))?;
        let progress: CommitProgress = match payload {
            None => CommitProgress::default(),
            Some(payload) => serde_json::from_str(&payload).map_err(|_| {
                Error::new(Kind::Data, "the interrupted build can't be read")
                    .at_path(&part)
                    .hint("--restart discards it")
            })?,
        };
        let BuildCounts { passages, rows, .. } = progress.counts;
        let documents = DocumentsWriter::open(&part, progress.documents, passages)?;
        let mut ids = HashSet::new();
        if passages > 0 {
            Documents::open(&part, passages)?.each(|_, passage| {
                ids.insert(hash(&passage.id));
                Ok(())
            })?;
        }
        let dense = options
            .dense
            .as_ref()
            .map(|dense| DenseWriter::open(&part, Arc::clone(&dense.encoder), dense.vectors, passages));
        let dense = dense.transpose()?;
        let (_, fields) = sparse::schema();
        let text = String::new();
        Ok(Self {
            out,
            part,
            options,
            documents,
            writer,
            fields,
            dense,
            ids,
            progress,
            committed: passages,
            resumed_at: rows,
            text,
        })
    }

    /// Number of the next row of the corpus, from 0.
    pub fn next_row(&self) -> u64 {
        self.progress.counts.rows
    }

    /// Passages so far.
    pub fn passages(&self) -> u64 {
        self.progress.counts.passages
    }

    /// Adds the passage of the next row.
    ///
    /// # Errors
    /// As [`add_row`](Self::add_row).
    pub fn add(&mut self, passage: &Passage) -> Result<()> {
        self.add_row(std::slice::from_ref(passage))
    }

    /// Adds the passages of the next row.
    ///
    /// # Errors
    /// [`Kind::Data`], without a place, for a passage that is too large or has the id of another
    /// one; [`Kind::Store`] if it can't be written.
    pub fn add_row(&mut self, passages: &[Passage]) -> Result<()> {
        passages.iter().try_for_each(|passage| self.add_passage(passage))?;
        self.progress.counts.rows += 1;
        if self.progress.counts.passages - self.committed >= self.options.commit_every {
            self.commit()?;
        }
        Ok(())
    }

    /// Removes the unfinished build if it has no passages on the disk, to resume from.
    ///
    /// # Errors
    /// [`Kind::Store`] if it can't be removed.
    pub fn abandon(self) -> Result<()> {
        let Self { part, writer, committed, .. } = self;
        drop(writer);
        if committed > 0 {
            return Ok(());
        }
        std::fs::remove_dir_all(&part).map_err(|error| Error::io(Kind::Store, "remove", &part, &error))
    }

    fn add_passage(&mut self, passage: &Passage) -> Result<()> {
        let size = (passage.title.len() + passage.text.len()) as u64;
        if size > self.options.max_passage {
            let (size, limit) = (size >> 10, self.options.max_passage >> 10);
            return Err(Error::new(Kind::Data, format!("the passage has {size} KiB; at most {limit} KiB are indexed"))
                .hint("--chunk-words 200 splits long passages; --max-passage N sets the limit in KiB"));
        }
        if passage.title.trim().is_empty() && passage.text.trim().is_empty() {
            self.progress.counts.empty += 1;
            return Ok(());
        }
        if !self.ids.insert(hash(&passage.id)) {
            if self.options.duplicate_ids == DuplicateIds::Refuse {
                let first = self.number_of(&passage.id)?;
                let why = format!("the id {:?} is that of an earlier passage, number {first}", passage.id);
                return Err(Error::new(Kind::Data, why)
                    .hint("--duplicate-ids skip keeps the first; --number-rows uses row numbers as ids"));
            }
            self.progress.counts.duplicates += 1;
            return Ok(());
        }
        self.index(passage)?;
        self.documents.add(passage)?;
        if let Some(dense) = &mut self.dense {
            dense.add(passage)?;
        }
        let counts = &mut self.progress.counts;
        counts.passages += 1;
        counts.with_nul += u64::from(passage.title.contains('\0') || passage.text.contains('\0'));
        Ok(())
    }

    fn index(&mut self, passage: &Passage) -> Result<()> {
        let (analyzer, fields) = (self.options.analyzer, self.fields);
        let text = &mut self.text;
        text.clear();
        let title_terms = analyzer.analyze(&passage.title, text);
        let mut document = TantivyDocument::default();
        if title_terms > 0 {
            document.add_text(fields.title, text.as_str());
        }
        let titles_count = self.options.bm25.title_boost > 0.0;
        if !titles_count {
            text.clear();
        }
        let terms = analyzer.analyze(&passage.text, text) + if titles_count { title_terms } else { 0 };
        document.add_text(fields.body, text.as_str());
        document.add_u64(fields.passage, self.progress.counts.passages);
        document.add_u64(fields.length, terms);
        document.add_u64(fields.title_length, title_terms);
        self.writer.add_document(document).map_err(|error| unwritable(&self.part, &error))?;
        self.progress.terms += terms;
        self.progress.title_terms += title_terms;
        Ok(())
    }

    /// The number of the passage with an id, for the message of a refusal.
    fn number_of(&mut self, id: &str) -> Result<u64> {
        self.documents.commit()?;
        let mut matching = None;
        Documents::open(&self.part, self.progress.counts.passages)?.each(|number, passage| {
            if matching.is_none() && passage.id == id {
                matching = Some(number);
            }
            Ok(())
        })?;
        matching.ok_or_else(|| Error::new(Kind::Internal, format!("no passage has the id {id:?}")))
    }

    /// Writes everything to the disk. An interrupted build is resumed after this commit.
    ///
    /// # Errors
    /// [`Kind::Store`] if files can't be written.
    pub fn commit(&mut self) -> Result<()> {
        self.progress.documents = self.documents.commit()?;
        if let Some(dense) = &mut self.dense {
            dense.commit()?;
        }
        let payload = serde_json::to_string(&self.progress)
            .map_err(|error| Error::new(Kind::Internal, format!("the progress can't be written: {error}")))?;
        let mut committed = || -> tantivy::Result<u64> {
            let mut commit = self.writer.prepare_commit()?;
            commit.set_payload(&payload);
            commit.commit()
        };
        committed().map_err(|error| unwritable(&self.part, &error))?;
        self.committed = self.progress.counts.passages;
        Ok(())
    }

    /// Completes the index: merges the segments, builds the graph, writes the manifest with the
    /// checksums, and renames the directory.
    ///
    /// # Errors
    /// As [`Builder::finish_with`].
    pub fn finish(self) -> Result<BuildReport> {
        self.finish_with(&mut |_| true)
    }

    /// As [`finish`](Self::finish). `linked` is called with the number of vectors in the graph so
    /// far; it returns false to stop.
    ///
    /// # Errors
    /// [`Kind::Data`] if there are no passages; [`Kind::Store`] if files can't be written;
    /// [`Kind::Interrupted`] if `linked` stopped it.
    pub fn finish_with(mut self, linked: &mut dyn FnMut(u64) -> bool) -> Result<BuildReport> {
        if self.progress.counts.passages == 0 {
            let why = if self.progress.counts.rows == 0 { "no rows" } else { "no row with a title or a text" };
            self.abandon()?;
            return Err(Error::new(Kind::Data, format!("the corpus has {why}: there is nothing to index")));
        }
        self.commit()?;
        let Self { out, part, options, mut writer, documents, dense, progress, resumed_at, .. } = self;
        drop((documents, dense));
        let folder = part.join(sparse::FOLDER);
        let merged = || -> tantivy::Result<()> {
            let segments = writer.index().searchable_segment_ids()?;
            if segments.len() > 1 {
                writer.merge(&segments).wait()?;
            }
            writer.garbage_collect_files().wait()?;
            writer.wait_merging_threads()
        };
        merged().map_err(|error| unwritable(&folder, &error))?;
        let failed = |error: std::io::Error| Error::io(Kind::Store, "write the index", &part, &error);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().extension().is_some_and(|end| end == "lock") {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            } else {
                files.push(FileEntry::of(&part, &format!("{}/{name}", sparse::FOLDER))?);
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let CommitProgress { counts, terms, title_terms, .. } = progress;
        let BuildOptions { analyzer, bm25, corpus, dense, commit_every, .. } = options;
        let documents = [documents::BLOCKS, documents::INDEX]
            .iter()
            .map(|name| FileEntry::of(&part, name))
            .collect::<Result<_>>()?;
        let sparse = Some(SparsePart { analyzer, bm25, terms, title_terms, files });
        let save_every = commit_every.saturating_mul(GRAPH_COMMITS);
        let dense = dense.map(|dense| dense_part(&part, &dense, counts.passages, save_every, linked)).transpose()?;
        let mut manifest = Manifest {
            format: manifest::FORMAT,
            r1: env!("CARGO_PKG_VERSION").to_owned(),
            corpus,
            counts,
            parts: IndexParts { documents, sparse, dense },
            sha256: String::new(),
        };
        manifest.write(&part)?;
        readable(&part, &manifest).map_err(failed)?;
        std::fs::remove_file(part.join(BUILD)).map_err(failed)?;
        place::install(&part, &out)?;
        Ok(BuildReport { manifest, resumed_at })
    }
}

/// Builds the graph, if the options have one, and returns the manifest's entry of the vectors.
fn dense_part(
    part: &Path,
    dense: &DenseOptions,
    passages: u64,
    save_every: u64,
    linked: &mut dyn FnMut(u64) -> bool,
) -> Result<DensePart> {
    let DenseOptions { encoder, vectors, hnsw } = dense;
    let (options, dimension) = (encoder.options().clone(), encoder.dimension());
    let mut files = vec![FileEntry::of(part, &vectors.file())?];
    if let Some(hnsw) = hnsw {
        let rows = Arc::new(VectorRows::open(&part.join(vectors.file()), *vectors, dimension, passages)?);
        let save_every = usize::try_from(save_every).unwrap_or(usize::MAX);
        HnswBuild { part, rows, similarity: options.similarity, options: *hnsw, save_every }.run(linked)?;
        files.push(FileEntry::of(part, &graph::file())?);
    }
    let (encoder_sha256, encoder) = (encoder.sha256().to_owned(), encoder.directory().to_owned());
    Ok(DensePart { vectors: *vectors, dimension, encoder, encoder_sha256, options, hnsw: *hnsw, files })
}

/// The first half of the SHA-256 of an id: 16 bytes per passage instead of the id. A collision of
/// two ids has a probability of about 1e-22 for a billion ids.
type IdHash = [u8; 16];

fn hash(id: &str) -> IdHash {
    let mut half = IdHash::default();
    half.copy_from_slice(&Sha256::digest(id)[..16]);
    half
}

/// Gives all files the permissions of a new file: some were made as temporary files, which only
/// their owner can read.
fn readable(part: &Path, manifest: &Manifest) -> std::io::Result<()> {
    let permissions = std::fs::metadata(part.join(manifest::FILE))?.permissions();
    manifest.parts.files().try_for_each(|file| std::fs::set_permissions(part.join(&file.path), permissions.clone()))
}
