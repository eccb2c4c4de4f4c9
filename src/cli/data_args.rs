//! Arguments of `r1 data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::number::{Refused, number};
use crate::data::Amount;

/// Download, convert, inspect, split and clean datasets
#[derive(Debug, Args)]
pub(super) struct DataArgs {
    #[command(subcommand)]
    pub(super) command: DataCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum DataCommand {
    /// List the published datasets that `r1 data get` downloads
    List,
    Get(GetArgs),
    Prep(PrepArgs),
    Show(ShowArgs),
    Stats(StatsArgs),
    Split(SplitArgs),
    Dedup(DedupArgs),
    Decontaminate(DecontaminateArgs),
}

/// Download a published dataset from the Hugging Face Hub, in the columns that recipes read
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data get gsm8k                            data/gsm8k/train.jsonl and test.jsonl
  r1 data get hotpotqa --split validation --out sets/hotpotqa
  r1 data get gsm8k@main                       the newest revision instead of the pinned one

Files are downloaded to the cache of huggingface_hub; an interrupted download continues. HF_TOKEN
gives access to gated datasets. dataset.json in the folder records commit and licence.")]
pub(super) struct GetArgs {
    /// A name of r1 data list, optionally at a revision
    #[arg(value_name = "NAME[@REVISION]")]
    pub(super) name: String,
    /// The folder of the files [default: data/NAME]
    #[arg(long, short, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// A split; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub(super) split: Vec<String>,
    /// Format of the files
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", value_parser = ["jsonl", "parquet"])]
    pub(super) format: String,
}

/// The rows of a command.
#[derive(Debug, Args)]
pub(super) struct RowsArgs {
    /// Files (.jsonl, .json, .csv, .tsv, .parquet, .arrow, lines also as .gz and .zst), folders of
    /// them, or patterns with *
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
}

/// Convert rows to verl's columns, or back to r1's
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data prep data/gsm8k/train.jsonl --to verl --split train          data/gsm8k/train.verl.parquet
  r1 data prep tasks.csv --to verl --data-source mine --prompt question --out tasks.parquet
  r1 data prep train.parquet --to r1 --out train.jsonl

data_source and ability of datasets from r1 data get are known. Columns that verl has not are in
extra_info.")]
pub(super) struct PrepArgs {
    #[command(flatten)]
    pub(super) rows: RowsArgs,
    /// The columns of the result
    #[arg(long, value_name = "COLUMNS", value_parser = ["verl", "r1"])]
    pub(super) to: String,
    /// The file to write [default: beside the input, as .verl.parquet or .r1.jsonl]
    #[arg(long, short, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// data_source of rows without one; it selects verl's scoring function
    #[arg(long, value_name = "NAME")]
    pub(super) data_source: Option<String>,
    /// ability of rows without one
    #[arg(long, value_name = "NAME")]
    pub(super) ability: Option<String>,
    /// Column of the question or the messages [default: messages, prompt, problem or question]
    #[arg(long, value_name = "COLUMN")]
    pub(super) prompt: Option<String>,
    /// Column of the answer [default: answer, or answers]
    #[arg(long, value_name = "COLUMN")]
    pub(super) answer: Option<String>,
    /// A system message before each question
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// extra_info.split of rows without one
    #[arg(long, value_name = "NAME")]
    pub(super) split: Option<String>,
    /// Write ground truths that are numbers as text
    #[arg(long)]
    pub(super) text_answers: bool,
}

/// Print rows
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data show data/gsm8k/train.jsonl
  r1 data show train.parquet --row 120 --rows 2 --full
  r1 data show train.parquet --sample 5 --seed 1 --column prompt --column reward_model.ground_truth
  r1 data show tasks.jsonl --json              a JSON object per row")]
pub(super) struct ShowArgs {
    #[command(flatten)]
    pub(super) rows_of: RowsArgs,
    /// First row, from 0
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) row: u64,
    /// Number of rows
    #[arg(long, short = 'n', value_name = "N", default_value = "3", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) rows: u64,
    /// Rows at random instead, by the seed
    #[arg(long, value_name = "N", conflicts_with_all = ["row", "rows"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) sample: Option<u64>,
    /// Seed of --sample
    #[arg(long, value_name = "N", default_value = "0", requires = "sample")]
    pub(super) seed: u64,
    /// A column, or a dotted path within one; may be given several times [default: all]
    #[arg(long, value_name = "COLUMN")]
    pub(super) column: Vec<String>,
    /// Print long values in full
    #[arg(long)]
    pub(super) full: bool,
}

/// Print statistics of the columns: types, lengths, missing and repeated values
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data stats data/gsm8k/train.jsonl
  r1 data stats train.parquet --tokenizer Qwen/Qwen2.5-1.5B-Instruct
  r1 data stats train.parquet --json")]
pub(super) struct StatsArgs {
    #[command(flatten)]
    pub(super) rows: RowsArgs,
    /// Also measure lengths in tokens: a model directory, a Hub id, or r1-nano
    #[arg(long, value_name = "MODEL")]
    pub(super) tokenizer: Option<String>,
}

/// Split rows into parts by a seed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data split tasks.jsonl --out parts                          10% in test.jsonl, the rest in train.jsonl
  r1 data split tasks.parquet --out parts --part test=500 --part validation=5% --seed 1
  r1 data split tasks.jsonl --out parts --stratify level         every part has the same shares of levels
  r1 data split tasks.jsonl --out parts --group table.name       all rows of a table are in one part")]
pub(super) struct SplitArgs {
    #[command(flatten)]
    pub(super) rows: RowsArgs,
    /// The folder of the files
    #[arg(long, short, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// A part and its size: rows (500), a percentage (5%) or a share (0.05)
    #[arg(long, value_name = "NAME=AMOUNT", default_value = "test=10%", value_parser = part)]
    pub(super) part: Vec<(String, Amount)>,
    /// Name of the rest
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub(super) rest: String,
    /// Seed of the order
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) seed: u64,
    /// Column whose values have the same shares in every part
    #[arg(long, value_name = "COLUMN", conflicts_with = "group")]
    pub(super) stratify: Option<String>,
    /// Column whose rows with the same value stay together
    #[arg(long, value_name = "COLUMN")]
    pub(super) group: Option<String>,
    /// Format of the files
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", value_parser = ["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet"])]
    pub(super) format: String,
}

/// Leave out rows that repeat an earlier one
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data dedup tasks.jsonl --out clean.jsonl              equal texts, without case and spacing
  r1 data dedup tasks.jsonl --near --out clean.jsonl       also similar ones
  r1 data dedup tasks.jsonl --near 0.9 --report pairs.jsonl

Similarity is the Jaccard similarity of word 5-grams; candidates are found with MinHash.")]
pub(super) struct DedupArgs {
    #[command(flatten)]
    pub(super) rows: RowsArgs,
    /// The file of the rows that are kept
    #[arg(long, short, value_name = "FILE", required_unless_present = "report")]
    pub(super) out: Option<PathBuf>,
    /// Column that is compared; may be given several times [default: the problem or the question]
    #[arg(long, value_name = "COLUMN")]
    pub(super) column: Vec<String>,
    /// Also leave out rows of at least this similarity [default without a value: 0.8]
    #[arg(long, value_name = "SIMILARITY", num_args = 0..=1, default_missing_value = "0.8", value_parser = number(|value| value > 0.0 && value <= 1.0, "must be a number above 0, at most 1"))]
    pub(super) near: Option<f64>,
    /// A file of the pairs: row, of, similarity (JSON lines)
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}

/// Leave out training rows that overlap with evaluation rows
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 data decontaminate train.jsonl --against data/math-500/test.jsonl --out clean.jsonl
  r1 data decontaminate train.jsonl --against aime24.jsonl --against aime25.jsonl --ngram 8 --report rows.jsonl

A row overlaps if it shares an n-gram of words with an evaluation row, without case and punctuation
(Brown et al. 2020, appendix C: n = 13; others use 8 to 13).")]
pub(super) struct DecontaminateArgs {
    #[command(flatten)]
    pub(super) rows: RowsArgs,
    /// A file or folder of evaluation rows; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    pub(super) against: Vec<PathBuf>,
    /// The file of the rows that are kept
    #[arg(long, short, value_name = "FILE", required_unless_present = "report")]
    pub(super) out: Option<PathBuf>,
    /// Words of an n-gram
    #[arg(long, value_name = "N", default_value = "13", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) ngram: u16,
    /// Ignore n-grams that are in more than this many training texts: instructions around the
    /// problem; 0 ignores none
    #[arg(long, value_name = "N", default_value = "10")]
    pub(super) common: u64,
    /// Column that is compared; may be given several times [default: the problem or the question]
    #[arg(long, value_name = "COLUMN")]
    pub(super) column: Vec<String>,
    /// The same of the evaluation rows [default: as --column]
    #[arg(long, value_name = "COLUMN")]
    pub(super) eval_column: Vec<String>,
    /// A file of the rows that overlap, with their n-gram (JSON lines)
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}

fn part(text: &str) -> Result<(String, Amount), Refused> {
    let wanted = "must be NAME=AMOUNT, such as test=500, test=10% or test=0.1";
    let (name, amount) = text.split_once('=').ok_or(Refused { wanted })?;
    let plain =
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) && !name.starts_with('.');
    let amount = Amount::parse(amount).ok_or(Refused { wanted })?;
    if plain { Ok((name.to_owned(), amount)) } else { Err(Refused { wanted }) }
}
