//! `r1 index build`.

use std::sync::Arc;

use serde_json::json;

use super::super::args::OutputArgs;
use super::super::index_args::BuildArgs;
use super::super::launch::launch;
use super::super::{print, print_json, set_threads};
use super::corpus::Corpus;
use super::divided::{self, DividedEncoder};
use super::show::{bytes, counted};
use crate::encoders::{EncoderSettings, load_encoder};
use crate::error::{Error, Kind, Result};
use crate::model::Pooling;
use crate::search::{
    Analyzer, Bm25, BuildCounts, BuildOptions, Builder, DenseOptions, DuplicateIds, HnswOptions, Similarity,
    TextEncoder, VectorType,
};
use crate::telemetry::{Interrupt, Reporter, ctrl_c};
use crate::train::Ranks;

/// Number of rows between two checks for a signal.
const LOOK_EVERY: u64 = 32;

pub(super) fn run(args: &BuildArgs, output: OutputArgs) -> Result<()> {
    if args.encoder.is_none() && args.processes.nproc.is_some() {
        return Err(Error::new(Kind::Usage, "--nproc has no effect without --encoder")
            .hint("the processes divide the work of the encoder"));
    }
    let launched = launch(args.processes)?;
    set_threads(args.threads);
    let ranks = launched.ranks().clone();
    let reporter = launched.reporter(|| output.reporter_beside_json());
    let built = if launched.is_first() {
        build(args, &ranks, output, &reporter)
    } else {
        // Rank 0 decides when the build ends, also after a signal.
        ctrl_c();
        encoder(args).and_then(|encoder| match encoder {
            Some(encoder) => divided::serve(encoder.as_ref(), &ranks),
            None => Ok(()),
        })
    };
    launched.finish(built)
}

fn build(args: &BuildArgs, ranks: &Ranks, output: OutputArgs, reporter: &Reporter) -> Result<()> {
    let interrupt = ctrl_c();
    let alone = encoder(args)?;
    let divided = alone.clone().filter(|_| ranks.size() > 1).map(|encoder| DividedEncoder::new(encoder, ranks));
    let divided = divided.transpose()?.map(Arc::new);
    let corpus = Corpus::open(args, reporter, interrupt)?;
    let options = BuildOptions {
        analyzer: Analyzer::named("analyzer", &args.analyzer)?,
        bm25: Bm25 { k1: args.k1, b: args.b, title_boost: args.title_boost },
        duplicate_ids: if args.duplicate_ids == "skip" { DuplicateIds::Skip } else { DuplicateIds::Refuse },
        max_passage: args.max_passage << 10,
        commit_every: args.commit_every,
        corpus: corpus.identity()?,
        dense: divided
            .clone()
            .map(|encoder| encoder as Arc<dyn TextEncoder>)
            .or(alone)
            .map(|encoder| dense(args, encoder))
            .transpose()?,
    };
    let mut builder = Builder::begin(&args.out, options, args.restart, args.overwrite)?;
    let first = builder.next_row();
    if first > 0 {
        reporter.info(&format!("resuming at row {first}, where the last build was interrupted"));
    }
    if let Err(error) = add(&mut builder, &corpus, reporter, interrupt) {
        builder.abandon()?;
        return Err(error);
    }
    if let Some(divided) = divided {
        builder.commit()?;
        divided.finish();
    }
    let vectors = if args.hnsw { builder.passages() } else { 0 };
    let bar = if vectors > 0 { reporter.bar("linking", vectors, "vectors") } else { Reporter::silent().bar("", 0, "") };
    let mut shown = 0;
    let report = builder.finish_with(&mut |linked| {
        bar.inc(linked.saturating_sub(shown));
        shown = linked;
        !interrupt.is_set()
    });
    bar.finish();
    let report = report.map_err(|error| error.at_path(args.corpus.first().unwrap_or(&args.out)))?;
    let manifest = report.manifest;
    if output.json {
        let fields = json!({
            "index": args.out, "resumed_at": report.resumed_at, "bytes": manifest.bytes(), "counts": manifest.counts,
        });
        return print_json(fields);
    }
    left_out(reporter, manifest.counts);
    let (passages, size) = (counted(manifest.counts.passages, "passage"), bytes(manifest.bytes()));
    print(&format!("{}: {passages}, {size}\n", args.out.display()))
}

/// The encoder, if passages are encoded.
fn encoder(args: &BuildArgs) -> Result<Option<Arc<dyn TextEncoder>>> {
    let Some(directory) = &args.encoder else {
        args.models.without_encoder()?;
        return Ok(None);
    };
    let settings = EncoderSettings {
        pooling: args.pooling.as_deref().map(|name| Pooling::named("pooling", name)).transpose()?,
        query_prefix: args.query_prefix.clone(),
        passage_prefix: args.passage_prefix.clone(),
        similarity: args.similarity.as_deref().map(|name| Similarity::named("similarity", name)).transpose()?,
    };
    Ok(Some(load_encoder(directory, settings, args.models.checkpoints()?)?))
}

/// The vectors that are built.
fn dense(args: &BuildArgs, encoder: Arc<dyn TextEncoder>) -> Result<DenseOptions> {
    let hnsw = args.hnsw.then(|| HnswOptions {
        links: usize::from(args.hnsw_links),
        ef_construction: usize::from(args.hnsw_candidates),
    });
    Ok(DenseOptions { encoder, vectors: VectorType::named("vector type", &args.vectors)?, hnsw })
}

fn add(builder: &mut Builder, corpus: &Corpus, reporter: &Reporter, interrupt: Interrupt) -> Result<()> {
    let first = builder.next_row();
    let bar = reporter.bar("indexing", corpus.source.len().saturating_sub(first), "rows");
    for row in first..corpus.source.len() {
        if row % LOOK_EVERY == 0 {
            bar.inc(if row > first { LOOK_EVERY } else { 0 });
            if interrupt.is_set() {
                bar.finish();
                builder.commit()?;
                let why = format!("the build was interrupted at row {row} of {}", corpus.source.len());
                return Err(Error::new(Kind::Interrupted, why).hint("the same command resumes it there"));
            }
        }
        let added = corpus.passages(row).and_then(|passages| builder.add_row(&passages));
        added.map_err(|error| if error.place.is_none() { error.at(corpus.source.place(row)) } else { error })?;
    }
    bar.finish();
    Ok(())
}

/// Warns about rows that were left out or are unusual.
fn left_out(reporter: &Reporter, counts: BuildCounts) {
    if counts.empty > 0 {
        reporter.warn(&format!("{} without title and text left out", counted(counts.empty, "row")));
    }
    if counts.duplicates > 0 {
        reporter.warn(&format!("{} with the id of an earlier one left out", counted(counts.duplicates, "row")));
    }
    if counts.with_nul > 0 {
        reporter.warn(&format!("{} with NUL characters, which are kept", counted(counts.with_nul, "passage")));
    }
}
