//! Arguments of `r1 index`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::launch::ProcessArgs;
use super::number::number;
use crate::config::{DeviceChoice, Dtype};
use crate::encoders::Checkpoints;
use crate::error::{Error, Kind, Result};
use crate::model::Pooling;
use crate::search::{
    Analyzer, Bm25, CANDIDATES, HnswOptions, MOST_CANDIDATES, Mode, RERANKED, RETRIEVE_HITS, RerankOptions,
    SEARCH_HITS, SearchOptions, Similarity, VectorType,
};

/// The range of the numbers of BM25 without an upper bound of their own.
const AT_LEAST_0: fn(f64) -> bool = |value| (0.0..=1000.0).contains(&value);

/// Build and search an index of passages
#[derive(Debug, Args)]
pub(super) struct IndexArgs {
    #[command(subcommand)]
    pub(super) command: IndexCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum IndexCommand {
    Build(Box<BuildArgs>),
    Info(DirectoryArgs),
    /// Compare the files of an index with their checksums
    Verify(DirectoryArgs),
    Search(SearchArgs),
    Serve(ServeArgs),
}

/// Build an index of a corpus
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 index build corpus.jsonl --out wiki                  rows with id, text and perhaps title
  r1 index build notes/ --out notes.index                 a folder of .md and .txt files
  r1 index build *.md --out notes.index --chunk-words 200 some files, long ones in chunks
  r1 index build papers.parquet --out papers --text-field abstract --analyzer english
  r1 index build corpus.jsonl --out wiki --encoder models/bge-small-en-v1.5 --pooling cls --hnsw
  r1 index build corpus.jsonl --out wiki --encoder models/bge-small-en-v1.5 --nproc 4
  r1 index build --hf BeIR/scifact --subset corpus --split corpus --out scifact

An interrupted build is resumed by the same command.")]
// Switches of a command line.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct BuildArgs {
    /// Files (.jsonl, .json, .csv, .tsv, .parquet, .arrow, lines also as .gz and .zst) or text
    /// files (.txt, .md), or a folder of either
    #[arg(required_unless_present = "hf")]
    pub(super) corpus: Vec<PathBuf>,
    /// A dataset on the Hugging Face Hub
    #[arg(long, value_name = "ORG/NAME[@REVISION]", conflicts_with = "corpus")]
    pub(super) hf: Option<String>,
    /// The split of the dataset on the Hub
    #[arg(long, value_name = "NAME", requires = "hf", default_value = "train")]
    pub(super) split: String,
    /// The subset (configuration) of the dataset on the Hub
    #[arg(long, value_name = "NAME", requires = "hf")]
    pub(super) subset: Option<String>,
    /// The directory of the index
    #[arg(long, short, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Column of the ids [default: id, or _id]
    #[arg(long, value_name = "NAME", conflicts_with = "number_rows")]
    pub(super) id_field: Option<String>,
    /// Column of the titles [default: title, if there is one]
    #[arg(long, value_name = "NAME")]
    pub(super) title_field: Option<String>,
    /// Column of the texts [default: text, or contents, whose first line is the title]
    #[arg(long, value_name = "NAME")]
    pub(super) text_field: Option<String>,
    /// Use row numbers from 0 as ids
    #[arg(long)]
    pub(super) number_rows: bool,
    /// Analyzer that splits text into terms
    #[arg(long, value_name = "NAME", default_value = "standard", value_parser = Analyzer::NAMES)]
    pub(super) analyzer: String,
    /// Saturation of the term frequency in BM25
    #[arg(long, value_name = "NUMBER", default_value_t = Bm25::default().k1, allow_negative_numbers = true, value_parser = number(AT_LEAST_0, "must be a number from 0 to 1000"))]
    pub(super) k1: f64,
    /// Length normalisation in BM25, from 0 (none) to 1
    #[arg(long, value_name = "NUMBER", default_value_t = Bm25::default().b, allow_negative_numbers = true, value_parser = number(|value| (0.0..=1.0).contains(&value), "must be a number from 0 to 1"))]
    pub(super) b: f64,
    /// Weight of a title relative to the text; 0 ignores titles
    #[arg(long, value_name = "NUMBER", default_value_t = Bm25::default().title_boost, allow_negative_numbers = true, value_parser = number(AT_LEAST_0, "must be a number from 0 to 1000"))]
    pub(super) title_boost: f64,
    /// Handling of a passage with the id of an earlier one
    #[arg(long, value_name = "ACTION", default_value = "refuse", value_parser = ["refuse", "skip"])]
    pub(super) duplicate_ids: String,
    /// Largest passage in KiB; the build stops at a larger one
    #[arg(long, value_name = "KIB", default_value = "1024", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(super) max_passage: u64,
    /// Split passages with more words into chunks of this many, with the ids ID#1, ID#2, …
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) chunk_words: Option<u32>,
    /// Words of a chunk that the next one repeats
    #[arg(long, value_name = "N", requires = "chunk_words", default_value = "0")]
    pub(super) chunk_overlap: u32,
    /// CPU threads of the encoder [default: the number of processors]
    #[arg(long, value_name = "N", requires = "encoder", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
    /// Passages between two commits; an interrupted build is resumed after the last one
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) commit_every: u64,
    /// Also encode passages, for dense and hybrid search: the directory of an encoder (safetensors
    /// and tokenizer.json): BERT, XLM-R or a decoder such as Qwen3-Embedding
    #[arg(long, value_name = "DIR")]
    pub(super) encoder: Option<PathBuf>,
    /// Pooling of token vectors [default: as in the model's modules.json, or else last for a
    /// decoder and mean for other models]
    #[arg(long, value_name = "NAME", requires = "encoder", value_parser = Pooling::NAMES)]
    pub(super) pooling: Option<String>,
    /// Text before every query, such as "query: " for E5 [default: the model's prompt for queries]
    #[arg(long, value_name = "TEXT", requires = "encoder")]
    pub(super) query_prefix: Option<String>,
    /// Text before every passage, such as "passage: " for E5 [default: the model's prompt for
    /// passages]
    #[arg(long, value_name = "TEXT", requires = "encoder")]
    pub(super) passage_prefix: Option<String>,
    /// Type of the numbers of stored vectors
    #[arg(long, value_name = "TYPE", requires = "encoder", default_value = "f32", value_parser = VectorType::NAMES)]
    pub(super) vectors: String,
    /// How similar a query and a passage are: the cosine, or the inner product of vectors as the
    /// model computes them [default: the model's similarity_fn_name, or cosine]
    #[arg(long, value_name = "NAME", requires = "encoder", value_parser = Similarity::NAMES)]
    pub(super) similarity: Option<String>,
    #[command(flatten)]
    pub(super) models: ModelArgs,
    /// Also build a graph over the vectors (HNSW), for fast approximate search
    #[arg(long, requires = "encoder")]
    pub(super) hnsw: bool,
    /// Links of a vector in the graph; twice as many in its lowest layer
    #[arg(long, value_name = "N", requires = "hnsw", default_value_t = HnswOptions::default().links as u16, value_parser = clap::value_parser!(u16).range(2..=256))]
    pub(super) hnsw_links: u16,
    /// Candidates that are compared when a vector is added to the graph
    #[arg(long, value_name = "N", requires = "hnsw", default_value_t = HnswOptions::default().ef_construction as u16, value_parser = clap::value_parser!(u16).range(1..=10000))]
    pub(super) hnsw_candidates: u16,
    /// Discard an interrupted build
    #[arg(long)]
    pub(super) restart: bool,
    /// Replace the index that is there, when the new one is complete
    #[arg(long)]
    pub(super) overwrite: bool,
    #[command(flatten)]
    pub(super) processes: ProcessArgs,
}

/// Show what an index has: passages, options, files
#[derive(Debug, Args)]
pub(super) struct DirectoryArgs {
    /// The directory of the index
    pub(super) directory: PathBuf,
}

/// Search an index
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 index search wiki \"Who wrote Middlemarch?\"
  r1 index search wiki \"Who wrote Middlemarch?\" -k 10 --json    one JSON object per hit, best first")]
pub(super) struct SearchArgs {
    /// The directory of the index
    pub(super) directory: PathBuf,
    /// The query
    pub(super) query: String,
    /// Number of hits
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) k: u16,
    #[command(flatten)]
    pub(super) how: HowArgs,
    /// Print the whole text of each hit
    #[arg(long)]
    pub(super) text: bool,
}

/// Serve an index over HTTP, as the retrieval servers of Search-R1 and Agent-R1 do
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 index serve wiki                       POST /retrieve, POST /search, GET /health
  r1 index serve wiki --port 0 --json       a free port, printed as JSON

The server has no authentication: an address other than 127.0.0.1 opens it to the network.")]
pub(super) struct ServeArgs {
    /// The directory of the index
    pub(super) directory: PathBuf,
    /// Port; 0: a free one
    #[arg(long, value_name = "N", default_value = "8000")]
    pub(super) port: u16,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) host: std::net::IpAddr,
    #[arg(short, long, value_name = "N", help = format!("Hits per query if a request has no number [default: {RETRIEVE_HITS} for /retrieve, {SEARCH_HITS} for /search]"), value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) k: Option<u16>,
    #[command(flatten)]
    pub(super) how: HowArgs,
    /// Largest request body in KiB
    #[arg(long, value_name = "KIB", default_value = "4096", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) max_body: u64,
}

/// Where encoders and cross-encoders run
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    /// Device of the encoder and the cross-encoder; auto, the default, is CUDA if available
    #[arg(long, value_name = "NAME", value_parser = DeviceChoice::NAMES)]
    device: Option<String>,
    /// Type of their weights and computation; auto, the default, is f32 on the CPU and bf16 on CUDA
    #[arg(long, value_name = "TYPE", value_parser = Dtype::NAMES)]
    dtype: Option<String>,
}

impl ModelArgs {
    pub(super) fn checkpoints(&self) -> Result<Checkpoints> {
        Ok(Checkpoints {
            device: DeviceChoice::named("device", self.device.as_deref().unwrap_or("auto"))?,
            dtype: Dtype::named("type", self.dtype.as_deref().unwrap_or("auto"))?,
        })
    }

    /// Refuses the options if there is no encoder.
    pub(super) fn without_encoder(&self) -> Result<()> {
        for (name, value) in [("--device", &self.device), ("--dtype", &self.dtype)] {
            if value.is_some() {
                let why = format!("{name} has no effect without --encoder");
                return Err(Error::new(Kind::Usage, why).hint("give --encoder DIR, or leave the option out"));
            }
        }
        Ok(())
    }
}

/// Search mode of an index
#[derive(Debug, Args)]
pub(super) struct HowArgs {
    /// Search mode: BM25, vectors, or both, fused by rank
    #[arg(long, value_name = "MODE", default_value = "sparse", value_parser = Mode::NAMES)]
    mode: String,
    #[arg(long, value_name = "N", help = format!("Candidates of a search in the HNSW graph; more find more of the nearest vectors, and take longer [default: {CANDIDATES}, or the number of hits]"), value_parser = clap::value_parser!(u16).range(1..=MOST_CANDIDATES as i64))]
    ef: Option<u16>,
    /// Compare the query with every vector, although the index has an HNSW graph
    #[arg(long, conflicts_with = "ef")]
    exact: bool,
    /// Rank the best passages again with a cross-encoder: the directory of a BERT or XLM-R model
    /// with one label, or of a Qwen3-Reranker (safetensors and tokenizer.json)
    #[arg(long, value_name = "DIR")]
    rerank: Option<PathBuf>,
    #[arg(long, value_name = "N", help = format!("Passages that are ranked again [default: {RERANKED}, or the number of hits]"), requires = "rerank", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rerank_top: Option<u16>,
    #[command(flatten)]
    pub(super) models: ModelArgs,
}

impl HowArgs {
    /// The options of a search for `k` passages.
    pub(super) fn options(&self, k: usize) -> Result<SearchOptions> {
        let options = SearchOptions::new(k, Mode::named("search mode", &self.mode)?);
        let mut options = options.with_nearest(self.ef.map(usize::from), self.exact)?;
        options.rerank =
            self.rerank.clone().map(|model| RerankOptions { model, top: self.rerank_top.map(usize::from) });
        options.check()?;
        Ok(options)
    }
}
