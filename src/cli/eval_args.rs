//! The arguments of `r1 eval`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::completers::{models, recipe_settings, scripts_and_runs};
use super::launch::ProcessArgs;
use super::resume_arg::{self, refuse_both};
use crate::error::{Error, Kind, Result};
use crate::store::newest_run;
use crate::telemetry::Interrupt;
use crate::train::{Agent, EvalOptions, Ranks};

/// Evaluate one model or several on the held-out tasks of a recipe
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 eval scripts/retool.lua                               the recipe's model, one greedy sample per task
  r1 eval runs/retool n=16                                 what a run trained, as it was trained: 16 samples
                                                           per task, mean@16, best@k, maj@k, pass@k
  r1 eval scripts/retool.lua --model r1-nano --model runs/retool n=4
                                                           two models, with paired tests
  r1 eval scripts/retool.lua --by data_source --json       figures by column, as one JSON object
  r1 eval scripts/retool.lua --resume                      continue after Ctrl-C or a kill

Tables, report.md, report.html and report.json have the same figures; docs/guide/evaluation.md defines
them. r1 replay and r1 rescore --eval read the stored trajectories.")]
pub(super) struct EvalArgs {
    /// A recipe: a Lua file that returns `r1.recipe { … }`; or a run (its directory, its name, a
    /// checkpoint), for its model with its script and settings
    #[arg(value_name = "SCRIPT|RUN", add = scripts_and_runs())]
    script: PathBuf,
    /// Settings of the recipe to change, such as eval.limit=0; n=N is short for eval.samples=N
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    overrides: Vec<String>,
    /// A model, as policy.model, or a run by its name; repeat it to compare others with the first
    #[arg(long, short, value_name = "MODEL", add = models())]
    model: Vec<String>,
    /// A column of the tasks: figures for each of its values; repeatable [default: data_source]
    #[arg(long, value_name = "COLUMN")]
    by: Vec<String>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// Name of the evaluation and its directory [default: the recipe's name with -eval]
    #[arg(long)]
    name: Option<String>,
    /// Continue an evaluation [default: the newest one of that name]
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    #[allow(clippy::option_option)] // clap's type for: absent, without a value, with a value
    resume: Option<Option<PathBuf>>,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
    /// Seed of every random stream; the same as seed=N
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    pub(super) processes: ProcessArgs,
}

impl EvalArgs {
    /// The options of an evaluation.
    pub(super) fn options(mut self, interrupt: Interrupt) -> Result<EvalOptions> {
        self.resume = resume_arg::without_setting(self.resume, &mut self.overrides);
        for typed in &mut self.overrides {
            if let Some(number) = typed.strip_prefix("n=") {
                *typed = format!("eval.samples={number}");
            }
        }
        let seed = self.seed.map(|seed| seed.to_string());
        let model = self.model.first().filter(|_| self.model.len() == 1).cloned();
        refuse_both(&[("--seed", seed, &["seed"]), ("--model", model, &["policy.model"])], &self.overrides)?;
        self.overrides.extend(self.seed.map(|seed| format!("seed={seed}")));
        let agent = Agent::find(&self.script, &self.runs_dir)?;
        let resume = match self.resume {
            None => None,
            Some(Some(run)) => Some(resume_arg::directory(run, &self.runs_dir)?),
            Some(None) => {
                let typed = self.overrides.iter().rev().find_map(|setting| setting.strip_prefix("name="));
                let name = match (&self.name, typed) {
                    (Some(name), _) => name.clone(),
                    (None, Some(recipe)) => format!("{recipe}-eval"),
                    // Without the overrides given now: they change the settings of the evaluation.
                    (None, None) => format!("{}-eval", agent.open(&[])?.script.settings.name),
                };
                let newest = newest_run(&self.runs_dir, &name)?;
                let missing = || {
                    let why = format!("there is no evaluation `{name}` to continue");
                    Error::new(Kind::Usage, why).at_path(&self.runs_dir).hint("start it without --resume")
                };
                Some(newest.ok_or_else(missing)?)
            }
        };
        // A run by its name, as other commands take it.
        for model in &mut self.model {
            let below = self.runs_dir.join(&model);
            if !Path::new(model).exists() && below.is_dir() {
                *model = below.display().to_string();
            }
        }
        Ok(EvalOptions {
            agent,
            overrides: self.overrides,
            models: self.model,
            by: self.by,
            runs_dir: self.runs_dir,
            name: self.name,
            resume,
            ranks: Ranks::default(),
            interrupt: Some(interrupt),
        })
    }
}
