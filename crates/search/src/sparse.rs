//! The inverted index: a `tantivy` index in the folder `sparse`, without its query engine.
//!
//! Its fields: `body`, the terms of title and text with frequencies; `title`, the terms of the
//! title; and numbers per document: `passage`, `length` (terms in `body`) and `title_length`.
//! Documents have no stored fields: passages are in [`super::documents`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tantivy::index::{Index as Postings, SegmentReader};
use tantivy::postings::{SegmentPostings, TermInfo};
use tantivy::schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::{InvertedIndexReader, TantivyError, Term};

use super::analyzer::Analyzer;
use super::bm25::{Best, Bm25, Cursor, SegmentColumns, Weights, search};
use super::manifest::SparsePart;
use r1_base::error::{Error, Kind, Result};

/// Folder of the inverted index.
pub(super) const FOLDER: &str = "sparse";

#[derive(Clone, Copy, Debug)]
pub(super) struct SchemaFields {
    pub(super) body: Field,
    pub(super) title: Field,
    pub(super) passage: Field,
    pub(super) length: Field,
    pub(super) title_length: Field,
}

pub(super) fn schema() -> (Schema, SchemaFields) {
    let mut schema = Schema::builder();
    // Terms are separated by spaces: see `Analyzer::analyze`.
    let indexing = TextFieldIndexing::default()
        .set_tokenizer("whitespace")
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::WithFreqs);
    let text = TextOptions::default().set_indexing_options(indexing);
    let fields = SchemaFields {
        body: schema.add_text_field("body", text.clone()),
        title: schema.add_text_field("title", text),
        passage: schema.add_u64_field("passage", FAST),
        length: schema.add_u64_field("length", FAST),
        title_length: schema.add_u64_field("title_length", FAST),
    };
    (schema.build(), fields)
}

/// An open inverted index.
pub(super) struct Sparse {
    segments: Vec<Segment>,
    fields: SchemaFields,
    analyzer: Analyzer,
    weights: Weights,
    passages: u64,
}

struct Segment {
    body: Arc<InvertedIndexReader>,
    title: Arc<InvertedIndexReader>,
    columns: SegmentColumns,
}

impl Sparse {
    /// Opens the part of an index with `passages` passages.
    pub(super) fn open(directory: &Path, part: &SparsePart, passages: u64) -> Result<Self> {
        let folder = directory.join(FOLDER);
        let (wanted, fields) = schema();
        let open = || -> tantivy::Result<Vec<Segment>> {
            let index = Postings::open_in_dir(&folder)?;
            if index.schema() != wanted {
                return Err(TantivyError::SchemaError("the fields are not those of an index of r1".to_owned()));
            }
            // Readers of segments take no locks, so that an index may be read-only.
            let segments = index.searchable_segments()?;
            segments.iter().map(|segment| Segment::open(&SegmentReader::open(segment)?, &fields)).collect()
        };
        let segments = open().map_err(|error| damaged(&folder, &error))?;
        let terms = part.terms as f64 + part.bm25.title_extra() * part.title_terms as f64;
        let average = if terms > 0.0 { terms / passages.max(1) as f64 } else { 1.0 };
        let weights = Weights { bm25: part.bm25, average };
        Ok(Self { segments, fields, analyzer: part.analyzer, weights, passages })
    }

    /// The terms of a query with their numbers of occurrences, in order of the first one.
    pub(super) fn terms(&self, query: &str) -> Vec<(String, f64)> {
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut terms: Vec<(String, f64)> = Vec::new();
        for term in self.analyzer.terms(query) {
            if let Some(index) = places.get(&term) {
                terms[*index].1 += 1.0;
            } else {
                places.insert(term.clone(), terms.len());
                terms.push((term, 1.0));
            }
        }
        terms
    }

    /// The best `limit` passages for the terms of a query, best first.
    pub(super) fn search(&self, terms: &[(String, f64)], limit: usize) -> tantivy::Result<Vec<(u64, f64)>> {
        let mut weighted = Vec::with_capacity(terms.len());
        for (text, count) in terms {
            let term = Term::from_field_text(self.fields.body, text);
            let infos: Vec<Option<TermInfo>> =
                self.segments.iter().map(|segment| segment.body.get_term_info(&term)).collect::<Result<_, _>>()?;
            let with: u64 = infos.iter().flatten().map(|info| u64::from(info.doc_freq)).sum();
            if with > 0 {
                weighted.push((count * Bm25::idf(self.passages, with.min(self.passages)), text, infos));
            }
        }
        // The order of the cursors, the same in every segment.
        weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut best = Best::new(limit);
        for (at, segment) in self.segments.iter().enumerate() {
            let mut cursors = Vec::with_capacity(weighted.len());
            for (weight, text, infos) in &weighted {
                let Some(info) = &infos[at] else { continue };
                let postings = segment.body.read_postings_from_terminfo(info, IndexRecordOption::WithFreqs)?;
                cursors.push(Cursor { postings, titles: self.titles(segment, text)?, weight: *weight });
            }
            search(&self.weights, &segment.columns, &mut cursors, &mut best);
        }
        Ok(best.ranked())
    }

    /// The postings of a term in titles, if they change scores.
    fn titles(&self, segment: &Segment, text: &str) -> std::io::Result<Option<SegmentPostings>> {
        if self.weights.bm25.title_extra() == 0.0 {
            return Ok(None);
        }
        let term = Term::from_field_text(self.fields.title, text);
        segment.title.read_postings(&term, IndexRecordOption::WithFreqs)
    }
}

impl Segment {
    fn open(reader: &SegmentReader, fields: &SchemaFields) -> tantivy::Result<Self> {
        let column = |name: &str| reader.fast_fields().u64(name).map(|column| column.first_or_default_col(0));
        let columns = SegmentColumns {
            passage: column("passage")?,
            length: column("length")?,
            title_length: column("title_length")?,
        };
        Ok(Self { body: reader.inverted_index(fields.body)?, title: reader.inverted_index(fields.title)?, columns })
    }
}

/// The first line of an error.
pub(super) fn shortened(error: &TantivyError) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// The error of a part that can't be read.
pub(super) fn damaged(path: &Path, error: &TantivyError) -> Error {
    Error::new(Kind::Data, format!("the inverted index can't be read: {}", shortened(error)))
        .at_path(path)
        .hint("`r1 index verify` compares all files with their checksums")
}
