//! The arguments of `r1 infer`.

use std::path::PathBuf;

use clap::Args;

use super::completers::{models, recipe_settings, scripts_and_runs};
use super::number::{Refused, number};
use crate::config::ServerApi;

/// Maximum tokens of a reply if neither a flag, the recipe nor the model sets it.
pub(super) const MAX_NEW_TOKENS: usize = 512;

/// Chat with a model, or get one reply
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("whom").args(["model", "hf", "script", "api_base"]).required(true).multiple(true),
    after_help = "Examples:
  r1 infer --model runs/retool                               what a run trained, with its tools and settings
  r1 infer --model runs/retool params.instruct=false         with another setting
  r1 infer --model runs/retool --plain                       its model alone
  r1 infer --model MODEL --script scripts/retool.lua         any model with a recipe's tools
  r1 infer --input questions.jsonl --output replies.jsonl --model runs/retool
  r1 infer --hf Qwen/Qwen2.5-1.5B-Instruct                   a model from the Hub
  r1 infer --model r1-nano -p 'What is 2+2?'                 answer once and exit
  echo 'What is 2+2?' | r1 infer --model r1-nano             the same from a pipe
  r1 infer --api-base http://localhost:8000/v1 --model NAME  a model behind a server

In a chat, Ctrl-C stops a reply, Ctrl-D leaves, and /help lists the commands."
)]
pub(super) struct InferArgs {
    /// A run, a checkpoint, a directory in Hugging Face layout, a GGUF file, a Hub id, or r1-nano;
    /// with --api-base, the model's name on the server [default: the recipe's]
    #[arg(long, short, add = models())]
    pub(super) model: Option<String>,
    /// Settings to change, such as params.instruct=true, with a recipe or the model of a run
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    pub(super) overrides: Vec<String>,
    /// A model from the Hugging Face Hub, downloaded into its cache
    #[arg(long, value_name = "ORG/NAME[@REVISION]", conflicts_with_all = ["model", "api_base"])]
    pub(super) hf: Option<String>,
    /// The base model of an adapter, instead of the one in its adapter_config.json
    #[arg(long, value_name = "DIR", conflicts_with = "api_base")]
    pub(super) base: Option<String>,
    /// A recipe with env, tools and system prompt, or a run whose script is used [default: the
    /// model's run, with its settings]. A script together with the model of a run gets the settings
    /// of the run
    #[arg(long, short, value_name = "SCRIPT", add = scripts_and_runs())]
    pub(super) script: Option<PathBuf>,
    /// Chat with the model alone, without the recipe of its run
    #[arg(long, conflicts_with = "script")]
    pub(super) plain: bool,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
    /// Use a server with OpenAI's chat completions API or Anthropic's messages API (key:
    /// OPENAI_API_KEY, ANTHROPIC_API_KEY)
    #[arg(long, value_name = "URL", requires = "model")]
    pub(super) api_base: Option<String>,
    /// API of the server [default: openai; anthropic for api.anthropic.com]
    #[arg(long, value_name = "API", requires = "api_base", value_parser = server_api)]
    pub(super) api: Option<ServerApi>,
    /// Reply to every row of a dataset (JSONL, Parquet …) with a column `prompt`, `messages` or one
    /// that the recipe shows, and write the replies to --output
    #[arg(long, value_name = "FILE", requires = "output", conflicts_with = "prompt")]
    pub(super) input: Option<PathBuf>,
    /// The replies to the rows of --input, in their order, as JSON lines; rows that the file has
    /// already are left out
    #[arg(long, value_name = "FILE", requires = "input")]
    pub(super) output: Option<PathBuf>,
    /// Answer this question and exit
    #[arg(long, short, alias = "question", value_name = "TEXT")]
    pub(super) prompt: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Show this image (PNG, JPEG, WebP or GIF) with the first question, to a model that reads
    /// images; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub(super) image: Vec<PathBuf>,
    /// Show this video (GIF, WebP or PNG with several frames) with the first question, two frames
    /// for each second; after the images; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub(super) video: Vec<PathBuf>,
    /// Sampling temperature; 0: greedy [default: the recipe's for evaluation, or the model's]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = number(|value| (0.0..=10.0).contains(&value), "must be a number from 0 to 10"))]
    pub(super) temperature: Option<f64>,
    /// Sample from the most likely tokens with this cumulative probability
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = number(|value| value > 0.0 && value <= 1.0, "must be a number above 0, at most 1"))]
    pub(super) top_p: Option<f64>,
    /// Sample from the N most likely tokens; 0: all
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) top_k: Option<u32>,
    /// Sample from tokens with at least this fraction of the largest probability
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = number(|value| (0.0..1.0).contains(&value), "must be a number from 0, below 1"))]
    pub(super) min_p: Option<f64>,
    /// Penalise tokens that are already in the conversation or reply; 1: off
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = number(|value| (0.001..=1000.0).contains(&value), "must be a number from 0.001 to 1000"))]
    pub(super) repetition_penalty: Option<f64>,
    #[arg(long, help = format!("Maximum tokens of a reply [default: the recipe's or the model's, or {MAX_NEW_TOKENS}]"), alias = "max-tokens", value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_new_tokens: Option<u32>,
    /// Text at the start of every reply, such as `<think>\n`; \n is a line break
    #[arg(long, value_name = "TEXT", value_parser = escaped, conflicts_with = "api_base")]
    pub(super) reply_prefix: Option<String>,
    /// A variable of the chat template, such as enable_thinking=false; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) template_arg: Vec<(String, serde_json::Value)>,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "api_base")]
    pub(super) threads: Option<u16>,
    /// Seed of the random stream [default: 0; with --api-base, the server's]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
}

fn server_api(text: &str) -> Result<ServerApi, Refused> {
    match text {
        "openai" => Ok(ServerApi::OpenAi),
        "anthropic" => Ok(ServerApi::Anthropic),
        _ => Err(Refused { wanted: "must be openai or anthropic" }),
    }
}

/// A text in which `\n` and `\t` stand for a line break and a tab.
#[allow(clippy::unnecessary_wraps)] // the signature that clap requires
fn escaped(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.replace("\\n", "\n").replace("\\t", "\t"))
}

/// `NAME=VALUE`; the value is parsed as JSON if possible, otherwise it is text.
fn variable(text: &str) -> Result<(String, serde_json::Value), Refused> {
    let wanted = "write it as NAME=VALUE, such as enable_thinking=false";
    let (name, value) = text.split_once('=').ok_or(Refused { wanted })?;
    Ok((name.trim().to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}
