//! The command-line arguments as clap structures, and their conversion to options of the other
//! modules.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::compare_args::CompareArgs;
use super::completers::{documented_names, lua_files, models, recipe_settings, runs, scripts_and_runs};
use super::completions::CompletionsArgs;
use super::data_args::DataArgs;
use super::eval_args::EvalArgs;
use super::index_args::IndexArgs;
use super::infer_args::InferArgs;
use super::launch::ProcessArgs;
use super::lua_args::LuaArgs;
use super::man::ManArgs;
use super::mcp::McpArgs;
use super::new::NewArgs;
use super::number::row_count;
use super::plan_args::PlanArgs;
use super::recorded::IdOrSetting;
use super::resume_arg::{self, refuse_both};
use super::traj_args::TrajArgs;
use super::version;
use super::view_args::ViewArgs;
use crate::error::{Error, Kind, Result};
use crate::script::Script;
use crate::store;
use crate::telemetry::{Interrupt, Reporter};
use crate::train::RunOptions;

/// Train and run LLM agents with reinforcement learning, scripted in Lua
#[derive(Debug, Parser)]
#[command(
    name = "r1",
    version = version::line(),
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Examples:
  r1 run scripts/retool.lua                    train the embedded model to use a tool
  r1 run scripts/retool.lua trainer.lr=2e-6    the same with another learning rate
  r1 infer --model runs/retool                 talk to what was trained, with its tools"
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // one value per process
pub(super) enum Command {
    Run(RunArgs),
    Sft(SftArgs),
    Plan(PlanArgs),
    Eval(EvalArgs),
    Compare(CompareArgs),
    View(ViewArgs),
    Check(CheckArgs),
    Infer(InferArgs),
    Lua(LuaArgs),
    Repl(ReplArgs),
    Replay(ReplayArgs),
    Mcp(McpArgs),
    New(NewArgs),
    Rerun(RerunArgs),
    Rescore(RescoreArgs),
    Test(TestArgs),
    Traj(TrajArgs),
    Index(IndexArgs),
    Data(DataArgs),
    Doc(DocArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Print the versions of r1 and libtorch, and the device
    Version,
}

/// Show the Lua functions of r1: one function, a namespace, or all
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 doc                        every function, one per line
  r1 doc r1.re                  the functions of a namespace
  r1 doc summarize              one of them, with its options and an example
  r1 doc @r1/rewards            a module: require(\"@r1/rewards\")
  r1 doc --format luau > r1.d.luau     types for luau-lsp; luacats makes those for lua-language-server")]
pub(super) struct DocArgs {
    /// A name such as r1.re.find, r1.re, keep_first or @r1/rewards
    #[arg(add = documented_names())]
    pub(super) name: Option<String>,
    /// Format: text, or all functions as types for an editor or as Markdown
    #[arg(long, value_enum, default_value_t = DocFormat::Text)]
    pub(super) format: DocFormat,
}

/// The output format of `r1 doc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DocFormat {
    Text,
    Luau,
    Luacats,
    Markdown,
}

/// Output options of every subcommand.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Print warnings and errors only
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    /// Print one JSON object per line on stdout, for programs
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print without colour (NO_COLOR does the same)
    #[arg(long, global = true)]
    pub(super) no_color: bool,
}

impl OutputArgs {
    pub(super) fn reporter(self) -> Reporter {
        Reporter::new(self.quiet, self.json, !self.no_color)
    }

    /// Whether colour is wanted; it also needs a terminal.
    pub(super) fn wants_colour(self) -> bool {
        !self.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Prints nothing with `--json`, whose result is the only object on stdout.
    pub(super) fn reporter_beside_json(self) -> Reporter {
        if self.json { Reporter::silent() } else { self.reporter() }
    }
}

/// Train a policy with reinforcement learning from a recipe
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 run scripts/retool.lua
  r1 run scripts/retool.lua trainer.steps=20 sampling.temperature=0.8
  r1 run scripts/retool.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct data.train=problems.jsonl
  r1 run scripts/retool.lua --resume           resume the newest run of this script
  r1 run scripts/retool.lua --fork retool@40   another run, from step 40 of that one
  r1 run scripts/retool.lua --plan trainer.gradient_checkpointing=true")]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) recipe: RecipeArgs,
    /// Do not reload a changed script during the run
    #[arg(long)]
    pub(super) no_reload: bool,
    /// Write a time line of the first step, and a profile of some decode steps and a micro-batch,
    /// into RUN/profile
    #[arg(long)]
    pub(super) profile: bool,
}

/// Arguments of every training command.
#[derive(Debug, Args)]
pub(super) struct RecipeArgs {
    /// The recipe: a Lua file that returns `r1.recipe { … }`
    #[arg(add = lua_files())]
    script: PathBuf,
    /// Settings of the recipe to change, such as trainer.lr=2e-6
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    overrides: Vec<String>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// Name of the run and its directory [default: the recipe's name, or the script's]
    #[arg(long)]
    name: Option<String>,
    /// Continue from the last checkpoint of a run, with its settings and the overrides given here
    /// [default: the newest run of that name]
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    #[allow(clippy::option_option)] // clap's type for: absent, without a value, with a value
    resume: Option<Option<PathBuf>>,
    /// With --resume: continue from the checkpoint of this step; later steps are dropped
    #[arg(long, value_name = "STEP", requires = "resume")]
    resume_from: Option<u64>,
    /// Resume without asking, although the script or settings have changed
    #[arg(long)]
    yes: bool,
    /// Begin a new run from a checkpoint of another one, with its settings and the overrides given
    /// here: RUN@STEP, or RUN for its newest one
    #[arg(long, value_name = "RUN@STEP", conflicts_with = "resume", add = runs())]
    fork: Option<String>,
    /// Print the maximum memory of the run and exit
    #[arg(long, conflicts_with_all = ["resume", "fork"])]
    pub(super) plan: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
    /// Seed of every random stream; the same as seed=N
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Also print example trajectories and all plots
    #[arg(long)]
    verbose: bool,
    /// Also write the final model, or its adapter, to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Serve the newest metrics for Prometheus at http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    metrics_port: Option<u16>,
    #[command(flatten)]
    pub(super) processes: ProcessArgs,
}

/// Fine-tune a policy on conversations from a recipe
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 sft scripts/nano.lua
  r1 sft scripts/nano.lua trainer.steps=200 --out models/mine")]
pub(super) struct SftArgs {
    #[command(flatten)]
    pub(super) recipe: RecipeArgs,
}

/// Test a recipe with scripted replies: report errors with their places and remedies
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 check scripts/retool.lua
  r1 check scripts/retool.lua --rows all       every row of the datasets, not only as many as fit
  r1 check scripts/retool.lua --model          also the first group with the model
  r1 check scripts/retool.lua --model MODEL    with another model
  r1 check --masks scripts/retool.lua          one group, token by token, with masks and advantages
  r1 check --masks scripts/retool.lua trainer.algorithm=gigpo trainer.group_size=2")]
pub(super) struct CheckArgs {
    /// The recipe: a Lua file that returns `r1.recipe { … }`
    #[arg(add = lua_files(), required_unless_present = "model")]
    script: Option<PathBuf>,
    /// Settings of the recipe to change, such as trainer.group_size=2
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    overrides: Vec<String>,
    /// Also roll out the first task's group with a model [default: the recipe's]
    #[arg(long, value_name = "MODEL", num_args = 0..=1, conflicts_with = "masks", add = models())]
    #[allow(clippy::option_option)] // clap's type for: absent, without a value, with a value
    pub(super) model: Option<Option<String>>,
    /// Rows of each dataset that begin a trajectory, or `all` [default: as many as fit into three
    /// seconds, without generated rows]
    #[arg(long, value_name = "N|all", value_parser = row_count, conflicts_with = "masks")]
    pub(super) rows: Option<u64>,
    /// Roll out the first task's group and print every token with its origin and its advantage
    #[arg(long)]
    pub(super) masks: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
}

impl CheckArgs {
    /// The options of a run that writes no files.
    pub(super) fn options(self, interrupt: Interrupt) -> Result<RunOptions> {
        let Self { mut script, mut overrides, model, .. } = self;
        // `--model` without a value may stand before the script or a setting.
        match model.flatten() {
            Some(word) if word.contains('=') => overrides.insert(0, word),
            Some(word) if script.is_none() => script = Some(word.into()),
            Some(word) if script.as_ref().is_some_and(|path| path.to_string_lossy().contains('=')) => {
                overrides.extend(script.take().map(|path| path.display().to_string()));
                script = Some(word.into());
            }
            Some(model) => {
                refuse_both(&[("--model", Some(model.clone()), &["policy.model"])], &overrides)?;
                overrides.push(format!("policy.model={model}"));
            }
            None => {}
        }
        let Some(script) = script else {
            return Err(Error::new(Kind::Usage, "no recipe is named").hint("r1 check SCRIPT --model"));
        };
        Ok(RunOptions { script, overrides, interrupt: Some(interrupt), ..RunOptions::default() })
    }
}

impl RecipeArgs {
    /// The options of a training loop.
    pub(super) fn options(mut self, interrupt: Interrupt) -> Result<RunOptions> {
        self.resume = resume_arg::without_setting(self.resume, &mut self.overrides);
        let seed = self.seed.map(|seed| seed.to_string());
        refuse_both(&[("--seed", seed, &["seed"]), ("--name", self.name.clone(), &["name"])], &self.overrides)?;
        self.overrides.extend(self.seed.map(|seed| format!("seed={seed}")));
        let resume = match self.resume {
            None => None,
            Some(Some(run)) => Some(resume_arg::directory(run, &self.runs_dir)?),
            Some(None) => {
                let typed = self.overrides.iter().rev().find_map(|setting| setting.strip_prefix("name="));
                let name = match self.name.as_deref().or(typed) {
                    Some(name) => name.to_owned(),
                    // Without the overrides given now, which are applied to the run's own settings.
                    None => Script::load(&self.script, &[])?.settings.name,
                };
                // A run that was stopped before its first checkpoint starts again.
                store::newest_run(&self.runs_dir, &name)?
            }
        };
        let (fork, fork_step) = match self.fork {
            Some(typed) => {
                let (run, step) = resume_arg::fork(&typed);
                (Some(resume_arg::directory(run.into(), &self.runs_dir)?), step)
            }
            None => (None, None),
        };
        Ok(RunOptions {
            fork,
            from_step: self.resume_from.or(fork_step),
            script: self.script,
            overrides: self.overrides,
            runs_dir: self.runs_dir,
            name: self.name,
            resume,
            confirm: !self.yes,
            threads: self.threads,
            verbose: self.verbose,
            out: self.out,
            metrics_port: self.metrics_port,
            interrupt: Some(interrupt),
            ..RunOptions::default()
        })
    }
}

/// Run tests written in Lua
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 test                                all of tests/lua and those next to scripts (*_test.lua)
  r1 test scripts/retool_test.lua        one file
  r1 test -k reward                      tests with a word in their names

The exit code is 0 if all pass, and 6 if not.")]
pub(super) struct TestArgs {
    /// Files, or directories that are searched for *_test.lua
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Only tests whose name contains this text
    #[arg(long, short = 'k', value_name = "TEXT")]
    pub(super) filter: Option<String>,
}

/// Debug a script interactively: reply as the policy, inspect states, tokens and rewards, undo
/// steps, set breakpoints
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 repl scripts/retool.lua                          begins at the first row; :help lists the commands
  r1 repl runs/retool                                 the script and the settings of a run, its model in :sample
  r1 repl scripts/retool.lua --replay retool:12-3-0   a stored trajectory with the current script
  r1 repl --replay runs/retool:12-3-0:2               before its second step, under the script that it ran
  r1 repl --replay runs/retool:eval-12-3-0            a trajectory of the evaluation after step 12
  r1 repl                                             Lua with everything of r1
  echo ':step 42' | r1 repl scripts/retool.lua        in a pipe the first failure is the exit code")]
pub(super) struct ReplArgs {
    /// A recipe: a Lua file that returns `r1.recipe { … }`; or a run (its directory, its name, a
    /// checkpoint), for its script and settings
    #[arg(value_name = "SCRIPT|RUN", add = scripts_and_runs())]
    pub(super) script: Option<PathBuf>,
    /// Settings of the recipe to change, such as env.max_steps=2
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    pub(super) overrides: Vec<String>,
    /// Open a stored trajectory before step STEP [default: the last]
    #[arg(long, value_name = "RUN:ID[:STEP]")]
    pub(super) replay: Option<String>,
    /// The model of :sample [default: the recipe's]. A script together with the model of a run gets
    /// the settings of the run
    #[arg(long, short, value_name = "MODEL", add = models())]
    pub(super) model: Option<PathBuf>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
}

/// Replay stored trajectories with their recorded calls and compare observations, rewards and
/// statuses
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 replay runs/retool                          every trajectory of a run
  r1 replay retool --last 5                      of its last five steps
  r1 replay retool 12-3-0                        one of them; 12-3 is its group, 12 its step
  r1 replay retool eval                          its evaluations; eval-12 is the one after step 12
  r1 replay retool --script scripts/retool.lua   with the current script
  r1 replay retool params.passages=5             with another setting

The exit code is 0 if everything is as recorded, and 6 if not.")]
pub(super) struct ReplayArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Trajectories: STEP, STEP-GROUP or STEP-GROUP-SAMPLE; of evaluations eval or eval-STEP…
    /// [default: all of training]; settings as KEY=VALUE
    #[arg(value_name = "ID|KEY=VALUE")]
    pub(super) ids_or_settings: Vec<IdOrSetting>,
    /// Only the last N steps of the run; 0: all
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) last: usize,
    /// Run this script instead of the run's own
    #[arg(long, short, value_name = "SCRIPT")]
    pub(super) script: Option<PathBuf>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}

/// Repeat steps of a stored run from a checkpoint and report the first number that differs
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 rerun retool --from 40                      update with the stored trajectories of all later steps
  r1 rerun retool --from 40 --steps 1 --sample   sample the trajectories of step 41 again
  r1 rerun retool --from 40 trainer.lr=1e-6      with another setting
  r1 rerun retool --from 40 --name lower-lr trainer.lr=1e-6    the repetition stays as runs/lower-lr

The exit code is 0 if every number is equal, and 6 if not.")]
pub(super) struct RerunArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Settings to change, such as trainer.lr=1e-6
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    pub(super) overrides: Vec<String>,
    /// Begin with the checkpoint of this step
    #[arg(long, value_name = "STEP")]
    pub(super) from: u64,
    /// Number of steps to repeat; 0: all that are stored
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) steps: usize,
    /// Sample the trajectories again, with the same seeds
    #[arg(long)]
    pub(super) sample: bool,
    /// Use this script instead of the run's
    #[arg(long, short, value_name = "SCRIPT", add = lua_files())]
    pub(super) script: Option<PathBuf>,
    /// Keep the repetition as a run of this name [default: it is removed]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
}

/// Compute the rewards of stored trajectories with a changed script and compare them with the old
/// ones
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 rescore retool --script scripts/retool.lua
  r1 rescore runs/retool --script new.lua --last 50 --json
  r1 rescore speedrun-grpo params.reward=qa_em        the run's script with another setting

Replies and results of tools come from the record; the env runs again with the new script.")]
pub(super) struct RescoreArgs {
    /// A run: its directory, or its name
    #[arg(add = runs())]
    pub(super) run: PathBuf,
    /// Settings to change, such as params.reward=qa_em
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    pub(super) overrides: Vec<String>,
    /// The script with the new rewards [default: the run's own, with other settings]
    #[arg(long, short, value_name = "SCRIPT", add = lua_files(), required_unless_present = "overrides")]
    pub(super) script: Option<PathBuf>,
    /// Only the last N steps of the run; 0: all
    #[arg(long, value_name = "N", default_value = "10")]
    pub(super) last: usize,
    /// Use the trajectories of evaluations instead of training
    #[arg(long)]
    pub(super) eval: bool,
    /// Run external calls that are not in the record: tools, HTTP requests
    #[arg(long)]
    pub(super) live: bool,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}
