//! `r1 eval`: samples of every held-out task by one model or several, stored as a run's.
//!
//! The directory of an evaluation is a run directory, in which the first model's trajectories are
//! the evaluation of step 0, so that `r1 replay`, `r1 rescore` and `r1 repl --replay` read them.
//! Each further model has a run directory in `models/`. `evaluation.json` has what the report
//! needs; `report.json`, `report.md` and `report.html` are the report.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::evaluate::eval_sampling;
use super::policy::{EvalPolicy, overrides_of};
use super::samples::{ModelEvaluation, STEP, no_tasks};
use crate::config::Trainer;
use crate::error::{Error, Kind, Result, suggest};
use crate::eval::{PolicySamples, Report, ReportOptions, html, markdown, powers_of_two};
use crate::hub::Fetching;
use crate::mdp::Split;
use crate::rollout::unknown_accuracy;
use crate::script::{Script, Worker, changes};
use crate::store::{IMAGES, Origins, RunDir, StoredRun, read_json, write_bytes};
use crate::telemetry::{Interrupt, Reporter};
use crate::train::ranks::Ranks;
use crate::train::rules::validate::validate;
use crate::train::start::agent::{Agent, LoadedAgent};
use crate::train::start::origins;
use crate::train::start::resume::{in_effect, record};
use crate::train::watch::report::conversation_lines;

/// Options of `r1 eval`.
#[derive(Clone, Debug)]
pub struct EvalOptions {
    /// The recipe: a script, or a run.
    pub agent: Agent,
    /// `key=value`, as typed.
    pub overrides: Vec<String>,
    /// The models; the recipe's if empty. The others are compared with the first.
    pub models: Vec<String>,
    /// Columns of the tasks; figures are computed for each value of such a column.
    pub by: Vec<String>,
    pub runs_dir: PathBuf,
    /// Name of the directory; the recipe's name with `-eval` if `None`.
    pub name: Option<String>,
    /// The evaluation to continue.
    pub resume: Option<PathBuf>,
    /// The processes that divide the trajectories.
    pub ranks: Ranks,
    pub interrupt: Option<Interrupt>,
}

#[derive(Clone, Debug)]
pub struct Evaluated {
    pub directory: PathBuf,
    /// Of the trajectories so far, if it was interrupted.
    pub report: Report,
    /// Trajectories that are left, if Ctrl-C ended it.
    pub left: usize,
}

/// The file `evaluation.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct EvaluationPlan {
    models: Vec<PlannedModel>,
    by: Vec<String>,
    /// As typed, without the settings of a model.
    overrides: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PlannedModel {
    name: String,
    /// Wall time of sampling so far.
    seconds: f64,
}

const PLAN: &str = "evaluation.json";

/// Evaluates and writes the report. Nothing is written before recipe, models and columns are known
/// to be right.
///
/// # Errors
/// [`Kind::Data`] if the recipe has no `data.eval`, [`Kind::Usage`] for a resumed evaluation whose
/// script, settings or models are others; errors of [`Script::load`] and of rollouts.
pub fn evaluate_models(options: &EvalOptions, reporter: &Reporter) -> Result<Evaluated> {
    let fetching = Fetching { reporter, interrupt: options.interrupt };
    let OpenEvaluation { script, overrides, run, mut plan, before } = open(options, reporter)?;
    options.ranks.require_same(&script, None)?;
    let by = by_columns(&script, &plan.by)?;
    let samples = script.settings.eval.samples;
    let temperature = eval_sampling(&script.settings).temperature;
    if samples > 1 && temperature == 0.0 {
        reporter.warn("eval.temperature is 0: the samples of a task differ only if the environment is random");
    }
    let (mut policies, mut left) = (Vec::new(), 0);
    let (mut run, mut directory) = (run, PathBuf::new());
    for at in 0..plan.models.len() {
        let name = plan.models[at].name.clone();
        let overrides = with_model(&overrides, &name, &script.settings.policy.model);
        let mut script = options.ranks.load(|| options.agent.load(&overrides), |script| &script.hash)?;
        if let Some((origins, tool_lists)) = &before {
            script.listings.extend(tool_lists);
            origins::pin_data(&mut script, origins, fetching)?;
        }
        let (policy, origin) = EvalPolicy::open(&mut script, &options.ranks, run.as_ref().map(RunDir::path), fetching)?;
        let run = match run.take() {
            Some(run) => run,
            None if at == 0 => RunDir::create(&options.runs_dir, &directory_name(options, &script))?,
            None => model_run(&directory, at, &name)?,
        };
        if at == 0 {
            run.path().clone_into(&mut directory);
            write_plan(&directory, &plan)?;
        }
        if let Some(images) = policy.renderer().images().filter(|_| options.ranks.is_first()) {
            images.store_in(&run.path().join(IMAGES))?;
        }
        let baseline = policies.first().map(|first: &PolicySamples| first.trajectories.as_slice());
        let mut model = ModelEvaluation::new(run, policy, plan.models[at].seconds);
        let origins = origins::origins(&script, origin)?;
        record(&model.run, &script, &overrides, &origins, model.policy.max_context(), STEP)?;
        let done = model.sample(&script, baseline, reporter);
        plan.models[at].seconds = model.seconds;
        write_plan(&directory, &plan)?;
        left += done?;
        let price = script.settings.policy.price.filter(|_| model.policy.is_server());
        policies.push(PolicySamples {
            model: name,
            trajectories: model.trajectories,
            seconds: model.seconds,
            price: price.map(|price| (price.input, price.output)),
            sequential: model.sequential,
        });
        if left > 0 {
            break;
        }
    }
    let sampled = policies.iter().flat_map(|policy| &policy.trajectories);
    if let Some(why) = unknown_accuracy(&script.settings.eval.accuracy, sampled) {
        reporter.warn(&why);
    }
    let report_options = ReportOptions { accuracy: script.settings.eval.accuracy, by, ks: powers_of_two(samples) };
    let report = Report::new(&script.settings.name, samples, temperature, &policies, &report_options);
    write_report(&directory, &report, &examples(&policies))?;
    Ok(Evaluated { directory, report, left })
}

fn directory_name(options: &EvalOptions, script: &Script) -> String {
    options.name.clone().unwrap_or_else(|| format!("{}-eval", script.settings.name))
}

/// An evaluation at its beginning, or continued.
struct OpenEvaluation {
    script: Script,
    /// The overrides in effect.
    overrides: Vec<String>,
    /// The directory of an evaluation that is continued.
    run: Option<RunDir>,
    plan: EvaluationPlan,
    /// The datasets and lists of tools that it began with.
    before: Option<(Origins, serde_json::Value)>,
}

fn open(options: &EvalOptions, reporter: &Reporter) -> Result<OpenEvaluation> {
    let Some(path) = &options.resume else {
        let loaded = options.ranks.load(|| options.agent.open(&options.overrides), |loaded| &loaded.script.hash)?;
        options.agent.in_words(&loaded).iter().for_each(|line| reporter.info(line));
        let LoadedAgent { script, overrides, .. } = loaded;
        check(&script)?;
        let mut names = options.models.clone();
        if names.is_empty() {
            options.agent.refuse_untrained(&options.overrides)?;
            names.push(script.settings.policy.model.clone());
        }
        for name in &names {
            warn_of_settings(options, &script, name, reporter)?;
        }
        let models = names.into_iter().map(|name| PlannedModel { name, seconds: 0.0 }).collect();
        let plan = EvaluationPlan { models, by: options.by.clone(), overrides: overrides.clone() };
        return Ok(OpenEvaluation { script, overrides, run: None, plan, before: None });
    };
    let file = path.join(PLAN);
    if !file.is_file() {
        return Err(Error::new(Kind::Usage, format!("not an evaluation: it has no {PLAN}"))
            .at_path(path)
            .hint("name a directory that `r1 eval` made"));
    }
    // Another process than the first reads the directory without its lock.
    let run = if options.ranks.is_first() { Some(RunDir::open(path)?) } else { None };
    let mut plan: EvaluationPlan = read_json(&file)?;
    let check_same = |new: &[String], old: &[String], flag: &str| {
        if new.is_empty() || new == old {
            return Ok(());
        }
        let why = format!("the evaluation began with {flag} {}", old.join(&format!(" {flag} ")));
        Err(Error::new(Kind::Usage, why).hint("leave it out, or start a new evaluation"))
    };
    let names: Vec<String> = plan.models.iter().map(|model| model.name.clone()).collect();
    check_same(&options.models, &names, "--model")?;
    if !options.by.is_empty() {
        plan.by.clone_from(&options.by);
    }
    let began = StoredRun::open(path, Path::new(""))?;
    let stored = began.configuration().clone();
    let overrides = in_effect(&plan.overrides, &options.overrides);
    let overrides_of_first = with_model(&overrides, &names[0], "");
    let script = options.ranks.load(|| options.agent.load(&overrides_of_first), |script| &script.hash)?;
    let hint = "an evaluation has one version of script and settings: start a new one";
    if script.hash != stored.script.hash {
        return Err(Error::new(Kind::Usage, "the script has changed since the evaluation began")
            .at_path(options.agent.given())
            .hint(hint));
    }
    let mut settings = serde_json::json!(script.settings);
    settings["trainer"]["algorithm"] = script.algorithm.as_str().into();
    if let Some(change) = changes(&stored.settings, &settings).into_iter().next() {
        let why = format!("the settings have changed since the evaluation began: {change}");
        return Err(Error::new(Kind::Usage, why).hint(hint));
    }
    reporter.info(&format!("continuing {}", path.display()));
    check(&script)?;
    let before = Some((stored.origins, began.tool_lists()?));
    Ok(OpenEvaluation { script, overrides, run, plan, before })
}

/// Warns of a model that a run has trained with other settings of the environment.
fn warn_of_settings(options: &EvalOptions, script: &Script, model: &str, reporter: &Reporter) -> Result<()> {
    const SHOWN: usize = 4;
    if options.agent.run().is_some() {
        return Ok(());
    }
    let Some(agent) = Agent::of_model(Path::new(model), Path::new(""))? else { return Ok(()) };
    let changes = agent.differing(script);
    if changes.is_empty() {
        return Ok(());
    }
    let mut list: Vec<String> = changes.iter().take(SHOWN).map(|change| format!("\n    {change}")).collect();
    list.extend((changes.len() > SHOWN).then(|| format!("\n    and {} more", changes.len() - SHOWN)));
    reporter.warn(&format!(
        "{model} was trained with other settings than those of this evaluation:{}\n  r1 eval {model} evaluates it as it was trained",
        list.concat()
    ));
    Ok(())
}

/// The settings of the model `name` in addition to the typed ones; none for the recipe's model,
/// `present`.
fn with_model(overrides: &[String], name: &str, present: &str) -> Vec<String> {
    let more = if name == present { Vec::new() } else { overrides_of(name) };
    in_effect(overrides, &more)
}

/// Refuses recipes without held-out tasks.
fn check(script: &Script) -> Result<()> {
    if matches!(script.settings.trainer, Trainer::Sft(_)) {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is r1.sft, which has no environment")
            .at_path(&script.path)
            .hint("evaluate its model with a recipe that has one: r1 eval SCRIPT --model RUN"));
    }
    validate(script).map(drop)
}

/// The run directory of a further model.
fn model_run(directory: &Path, at: usize, name: &str) -> Result<RunDir> {
    let root = directory.join("models");
    let name = name.rsplit_once('#').filter(|(url, _)| url.contains("://")).map_or(name, |(_, name)| name);
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let folder = format!("{}-{}", at + 1, plain.trim_matches(['-', '.']));
    if root.join(&folder).join("config.json").is_file() {
        return RunDir::open(&root.join(&folder));
    }
    RunDir::create(&root, &folder)
}

/// The columns of slices: those given, or `data_source` if the tasks have it.
///
/// # Errors
/// [`Kind::Usage`] for a column that none of the first tasks has.
fn by_columns(script: &Script, names: &[String]) -> Result<Vec<String>> {
    const LOOKED_AT: u64 = 1000;
    let worker = Worker::new(&script.without_log_sink(), None)?;
    let count = worker.rows(Split::Eval)?.unwrap_or_default().min(LOOKED_AT);
    if count == 0 {
        return Err(no_tasks(script));
    }
    let mut columns = BTreeSet::new();
    for index in 0..count {
        let row = worker.row(Split::Eval, index)?;
        columns.extend(row.as_object().into_iter().flat_map(|row| row.keys().cloned()));
    }
    if names.is_empty() {
        return Ok(columns.into_iter().filter(|column| column == "data_source").collect());
    }
    if let Some(unknown) = names.iter().find(|column| !columns.contains(*column)) {
        return Err(Error::new(Kind::Usage, format!("no task has the column `{unknown}`"))
            .at("--by")
            .hint(suggest(unknown, columns.iter().map(String::as_str))));
    }
    Ok(names.to_vec())
}

fn write_plan(directory: &Path, plan: &EvaluationPlan) -> Result<()> {
    let text = serde_json::to_string_pretty(plan).map_err(|error| not_json(&error))?;
    write_bytes(&directory.join(PLAN), text.as_bytes())
}

/// The file with replies.
const EXAMPLES: &str = "examples.txt";

/// The first samples of the first tasks, of all models.
fn examples(policies: &[PolicySamples]) -> String {
    const TASKS: u64 = 20;
    let mut text = String::new();
    for task in 0..TASKS {
        for policy in policies {
            let first = policy.trajectories.iter().find(|one| one.task_index == task);
            for line in first.into_iter().flat_map(conversation_lines) {
                text.push_str(&line);
                text.push('\n');
            }
            if first.is_some() && policies.len() > 1 {
                let _ = writeln!(text, "  by {}", policy.model);
            }
            text.push_str(if first.is_some() { "\n" } else { "" });
        }
    }
    text
}

fn write_report(directory: &Path, report: &Report, examples: &str) -> Result<()> {
    write_bytes(&directory.join(EXAMPLES), examples.as_bytes())?;
    let json =
        report.to_json().and_then(|json| serde_json::to_string_pretty(&json)).map_err(|error| not_json(&error))?;
    write_bytes(&directory.join("report.json"), json.as_bytes())?;
    write_bytes(&directory.join("report.md"), markdown(report)?.as_bytes())?;
    write_bytes(&directory.join("report.html"), html(report, examples)?.as_bytes())
}

fn not_json(error: &serde_json::Error) -> Error {
    Error::new(Kind::Internal, format!("can't write the report as JSON: {error}"))
}
