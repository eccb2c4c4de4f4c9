//! `r1 check`: tests whether a recipe meets its contract, before training.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Value, json};

use super::args::{CheckArgs, OutputArgs};
use super::{masks, print_json, print_report, set_threads};
use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::load::Loaded;
use crate::load::load_script;
use crate::rollout::check::{self, CheckOptions, CheckReport, Finding, Severity};
use crate::script::{Script, Worker};
use crate::telemetry::{ReportStyle, Reporter, ctrl_c, is_interrupted};
use crate::train::{self, RunOptions, ShownTrajectory, ValidatedTrainer};

/// Seconds after which no further trajectory starts.
const SECONDS: f64 = 20.0;

pub(super) fn run(args: CheckArgs, output: OutputArgs) -> Result<ExitCode> {
    set_threads(args.threads);
    let (shows_masks, model, rows) = (args.masks, args.model.is_some(), args.rows);
    let options = args.options(ctrl_c())?;
    if shows_masks {
        return masks::show(&options, output).map(|()| ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let reporter = output.reporter_beside_json();
    let script = load_script(&options.script, &options.overrides)?;
    let (objective, doubts) = objective(&script)?;
    let loaded = Loaded::new(script, &reporter)?;
    let runtime = Worker::runtime()?;
    let wanted = CheckOptions { max_context: loaded.max_context, seconds: SECONDS, rows, stop: is_interrupted };
    let mut report = match objective {
        Some(_) => runtime.block_on(check::check(&loaded.script, &loaded.renderer, &wanted))?,
        None => check::supervised(&loaded.script, &loaded.renderer, &wanted)?,
    };
    if is_interrupted() {
        return Err(Error::new(Kind::Interrupted, "the check was stopped"));
    }
    let script_path = Some(loaded.script.path.display().to_string());
    report.findings.extend(loaded.script.left_out_of_rows().into_iter().map(|message| Finding {
        place: script_path.clone(),
        ..finding(Severity::Note, "data", Error::new(Kind::Data, message))
    }));
    report.findings.splice(0..0, doubts.into_iter().chain(context_error(&loaded)).map(setting_warning));
    let demonstrations = cold_start(&loaded, &wanted, &reporter)?;
    if let Some(conversations) = &demonstrations {
        let named = |finding: Finding| Finding { message: format!("cold_start: {}", finding.message), ..finding };
        report.findings.extend(conversations.findings.iter().cloned().map(named));
    }
    let rolled = if model && objective.is_some() { Some(roll(&options, &reporter, &mut report)?) } else { None };
    let seconds = started.elapsed().as_secs_f64();
    let (objective, cold_start) = (objective.as_ref(), demonstrations.as_ref());
    let facts = facts(&loaded, objective, &report, rolled.as_deref(), seconds);
    if output.json {
        print_events(&report, cold_start, facts)?;
    } else {
        let style = ReportStyle::of(&reporter);
        print_text(&options, &loaded, objective, (&report, cold_start), facts, style)?;
    }
    Ok(if report.is_broken() { ExitCode::from(Kind::Env.exit_code()) } else { ExitCode::SUCCESS })
}

/// The report on the recipe's cold start, if it has one.
fn cold_start(loaded: &Loaded, wanted: &CheckOptions, reporter: &Reporter) -> Result<Option<CheckReport>> {
    let Some(script) = loaded.script.cold_start()? else { return Ok(None) };
    let doubts = train::check_cold_start(&loaded.script)?;
    // The recipe's model, or a model that has yet to be created.
    let phase = Loaded::new(script, reporter)?;
    let mut report = check::supervised(&phase.script, &phase.renderer, wanted)?;
    let doubts = doubts.into_iter().map(|error| {
        let message = error.message.trim_start_matches("cold_start: ").to_owned();
        setting_warning(Error { message, ..error })
    });
    report.findings.splice(0..0, doubts);
    Ok(Some(report))
}

/// The recipe's objective as text and as JSON; `None` for supervised fine-tuning.
type Words = Option<(String, Value)>;

/// The recipe's objective, and unused settings.
fn objective(script: &Script) -> Result<(Words, Vec<Error>)> {
    if matches!(script.settings.trainer, Trainer::Sft(_)) {
        return Ok((None, train::unused_settings(script)?));
    }
    let ValidatedTrainer { learner, objective, critic, warnings } = train::validate(script)?;
    let yes = |truth: bool, what: &'static str| if truth { what } else { "" };
    let description = format!(
        "estimator {}, loss {}{}{}{}",
        learner.estimator.shown(),
        learner.loss.shown(),
        yes(critic, ", a critic"),
        yes(objective.has_reference(), ", a reference policy"),
        yes(warnings.is_empty(), ": no contradicting settings"),
    );
    let facts = json!({ "estimator": learner.estimator, "loss": learner.loss, "critic": critic,
                        "reference": objective.has_reference() });
    Ok((Some((description, facts)), warnings))
}

/// An error if the recipe's context is longer than the model supports.
fn context_error(loaded: &Loaded) -> Option<Error> {
    let (wanted, limit) = (loaded.script.settings.policy.max_context, loaded.max_context);
    (limit > 0 && wanted > limit).then(|| Error::new(Kind::Script, train::context_limit_message(wanted, limit)))
}

/// A warning about a setting.
fn setting_warning(error: Error) -> Finding {
    finding(Severity::Warning, "settings", error)
}

fn finding(level: Severity, rule: &'static str, error: Error) -> Finding {
    Finding { level, rule, message: error.message, place: error.place, hint: error.hint, repeat: Vec::new() }
}

/// The first task's group, rolled out with the model.
fn roll(options: &RunOptions, reporter: &Reporter, report: &mut CheckReport) -> Result<Vec<ShownTrajectory>> {
    let shown = train::masks(options, reporter)?;
    for trajectory in &shown {
        if let Some(error) = &trajectory.error {
            let message = format!("a trajectory of the model ends as {}: {}", trajectory.status, error.message);
            report.findings.push(finding(Severity::Error, "model", Error { message, ..error.clone().into() }));
        }
    }
    let rewards: Vec<f64> = shown.iter().filter(|it| it.error.is_none()).map(|it| it.reward).collect();
    if rewards.len() > 1 && rewards.iter().all(|reward| reward.to_bits() == rewards[0].to_bits()) {
        let (count, reward) = (rewards.len(), rewards[0]);
        let message = format!("all {count} replies of the model to the first task have the reward {reward}");
        let error = Error::new(Kind::Env, message)
            .hint("tasks that are always or never solved give no gradient: use easier tasks or a stronger model");
        report.findings.push(finding(Severity::Warning, "model", error));
    }
    Ok(shown)
}

/// The result as `--json` prints it.
fn facts(
    loaded: &Loaded,
    objective: Option<&(String, Value)>,
    report: &CheckReport,
    rolled: Option<&[ShownTrajectory]>,
    seconds: f64,
) -> Value {
    let mut facts =
        json!({ "event": "check", "ok": !report.is_broken(), "seconds": seconds, "stands_in": loaded.stands_in });
    let report = json!(report);
    let of_objective = objective.and_then(|(_, facts)| facts.as_object()).into_iter().flatten();
    let of_report = report.as_object().into_iter().flatten();
    let of_report = of_report.filter(|(name, _)| !matches!(name.as_str(), "findings" | "log"));
    for (name, value) in of_objective.chain(of_report) {
        facts[name] = value.clone();
    }
    let one =
        |it: &ShownTrajectory| json!({ "id": it.id, "status": it.status, "reward": it.reward, "steps": it.steps });
    facts["model"] = json!(rolled.map(|all| all.iter().map(one).collect::<Vec<_>>()));
    facts
}

fn print_events(report: &CheckReport, cold_start: Option<&CheckReport>, mut facts: Value) -> Result<()> {
    let named = |name: &str, mut line: Value| {
        line["event"] = json!(name);
        line
    };
    let log = report.log.iter().map(|logged| named("log", json!(logged)));
    log.chain(report.findings.iter().map(|finding| named("finding", json!(finding)))).try_for_each(print_json)?;
    if let Some(phase) = cold_start {
        facts["cold_start"] = json!({ "conversations": phase.tasks, "longest": phase.longest_prompt });
    }
    print_json(facts)
}

/// Prints the result as text: what the JSON has, and what the recipe does outside of its files.
fn print_text(
    options: &RunOptions,
    loaded: &Loaded,
    objective: Option<&(String, Value)>,
    (report, cold_start): (&CheckReport, Option<&CheckReport>),
    mut facts: Value,
    style: ReportStyle,
) -> Result<()> {
    let mut files = loaded.script.resources();
    files.extend(loaded.script.data_files().unwrap_or_default());
    let far = train::far_files_in_words(&loaded.script, &files).map(|far| format!("it reads {far}"));
    let started = loaded.script.programs.iter().cloned().chain(loaded.script.listings.in_words());
    let outside: Vec<String> = far.into_iter().chain(started.map(|line| format!("it starts {line}"))).collect();
    let log: Vec<String> = report.log.iter().map(train::log_in_words).collect();
    let more = json!({
        "script": options.script, "objective": objective.map(|(description, _)| description), "outside": outside,
        "reward_range": report.rewards_in_words(), "cold_start": cold_start, "log": log, "findings": report.findings,
    });
    if let (Some(facts), Value::Object(more)) = (facts.as_object_mut(), more) {
        facts.extend(more);
    }
    print_report(include_str!("../../lua/reports/check.lua"), &facts, style)
}
