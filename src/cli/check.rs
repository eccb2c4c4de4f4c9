//! `r1 check`: tests whether a recipe meets its contract, before training.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use console::Style;
use serde_json::{Value, json};

use super::args::{CheckArgs, OutputArgs};
use super::{masks, print};
use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::load::Loaded;
use crate::load::load_script;
use crate::native;
use crate::rollout::check::{self, CheckOptions, CheckReport, Finding, Severity, TriedRows};
use crate::script::Script;
use crate::telemetry::{Reporter, counted, ctrl_c, is_interrupted, signed};
use crate::train::{self, RunOptions, ShownTrajectory, ValidatedTrainer};

/// Seconds after which no further trajectory starts.
const SECONDS: f64 = 20.0;

pub(super) fn run(args: CheckArgs, output: OutputArgs) -> Result<ExitCode> {
    if let Some(threads) = args.threads {
        native::set_threads(usize::from(threads));
    }
    let (shows_masks, model, rows) = (args.masks, args.model.is_some(), args.rows);
    let options = args.options(ctrl_c())?;
    if shows_masks {
        return masks::show(&options, output).map(|()| ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let reporter = if output.json { Reporter::silent() } else { output.reporter() };
    let script = load_script(&options.script, &options.overrides)?;
    let (objective, doubts) = objective(&script)?;
    let loaded = Loaded::new(script, &reporter)?;
    let runtime = super::single_thread()?;
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
        level: Severity::Note,
        rule: "data",
        message,
        place: script_path.clone(),
        hint: None,
        repeat: Vec::new(),
    }));
    report.findings.splice(0..0, doubts.into_iter().chain(context_error(&loaded)).map(setting_warning));
    let demonstrations = cold_start(&loaded, &wanted, &reporter)?;
    if let Some(conversations) = &demonstrations {
        report.findings.extend(
            conversations
                .findings
                .iter()
                .cloned()
                .map(|finding| Finding { message: format!("cold_start: {}", finding.message), ..finding }),
        );
    }
    let rolled = if model && objective.is_some() { Some(roll(&options, &reporter, &mut report)?) } else { None };
    let seconds = started.elapsed().as_secs_f64();
    if output.json {
        print_json(&loaded, objective.as_ref(), (&report, demonstrations.as_ref()), rolled.as_deref(), seconds)?;
    } else {
        let reports = (&report, demonstrations.as_ref());
        print_report(
            &options,
            &loaded,
            objective.as_ref(),
            reports,
            rolled.as_deref(),
            seconds,
            reporter.is_coloured(),
        )?;
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
fn setting_warning(Error { message, place: location, hint, .. }: Error) -> Finding {
    Finding { level: Severity::Warning, rule: "settings", message, place: location, hint, repeat: Vec::new() }
}

/// The first task's group, rolled out with the model.
fn roll(options: &RunOptions, reporter: &Reporter, report: &mut CheckReport) -> Result<Vec<ShownTrajectory>> {
    let shown = train::masks(options, reporter)?;
    for trajectory in &shown {
        if let Some(error) = &trajectory.error {
            let message = format!("a trajectory of the model ends as {}: {}", trajectory.status, error.message);
            report.findings.push(Finding {
                level: Severity::Error,
                rule: "model",
                message,
                place: error.place.clone(),
                hint: error.hint.clone(),
                repeat: Vec::new(),
            });
        }
    }
    let rewards: Vec<f64> = shown.iter().filter(|it| it.error.is_none()).map(|it| it.reward).collect();
    if rewards.len() > 1 && rewards.iter().all(|reward| reward.to_bits() == rewards[0].to_bits()) {
        report.findings.push(Finding {
            level: Severity::Warning,
            rule: "model",
            message: format!(
                "all {} replies of the model to the first task have the reward {}",
                rewards.len(),
                rewards[0]
            ),
            place: None,
            hint: Some(
                "tasks that are always or never solved give no gradient: use easier tasks or a stronger model"
                    .to_owned(),
            ),
            repeat: Vec::new(),
        });
    }
    Ok(shown)
}

fn print_json(
    loaded: &Loaded,
    objective: Option<&(String, Value)>,
    (report, cold_start): (&CheckReport, Option<&CheckReport>),
    rolled: Option<&[ShownTrajectory]>,
    seconds: f64,
) -> Result<()> {
    for logged in &report.log {
        let mut line = json!(logged);
        line["event"] = json!("log");
        print(&format!("{line}\n"))?;
    }
    for finding in &report.findings {
        let mut line = json!(finding);
        line["event"] = json!("finding");
        print(&format!("{line}\n"))?;
    }
    let mut line =
        json!({ "event": "check", "ok": !report.is_broken(), "seconds": seconds, "stands_in": loaded.stands_in });
    for (name, value) in objective.iter().flat_map(|(_, facts)| facts.as_object().into_iter().flatten()) {
        line[name] = value.clone();
    }
    for (name, value) in
        json!(report).as_object().into_iter().flatten().filter(|(name, _)| !matches!(name.as_str(), "findings" | "log"))
    {
        line[name] = value.clone();
    }
    let one =
        |it: &ShownTrajectory| json!({ "id": it.id, "status": it.status, "reward": it.reward, "steps": it.steps });
    if let Some(phase) = cold_start {
        line["cold_start"] = json!({ "conversations": phase.tasks, "longest": phase.longest_prompt });
    }
    line["model"] = json!(rolled.map(|all| all.iter().map(one).collect::<Vec<_>>()));
    print(&format!("{line}\n"))
}

fn print_report(
    options: &RunOptions,
    loaded: &Loaded,
    objective: Option<&(String, Value)>,
    (report, cold_start): (&CheckReport, Option<&CheckReport>),
    rolled: Option<&[ShownTrajectory]>,
    seconds: f64,
    colour: bool,
) -> Result<()> {
    let script = options.script.display();
    let mut out = String::new();
    match objective {
        Some((description, _)) => {
            let _ = writeln!(out, "{script}: {description}");
            let rewards = match report.rewards_in_words() {
                Some((low, high)) => format!("; rewards from {low} to {high}"),
                None => String::new(),
            };
            let eval = match report.eval_tasks {
                0 => String::new(),
                tasks => format!(" and {tasks} of data.eval"),
            };
            let _ = writeln!(
                out,
                "{} of {} of {}{eval} with scripted replies, {}, in {seconds:.1} s{rewards}; longest prompt {} tokens, \
                 budget {}",
                counted(report.trajectories, "trajectory", "trajectories"),
                report.tasks,
                counted(report.rows as usize, "task", "tasks"),
                counted(report.steps, "step", "steps"),
                report.longest_prompt,
                report.budget
            );
            for TriedRows { split, tried, of } in &report.tried {
                let more = if tried < of { "; --rows all tries every row" } else { "" };
                let _ = writeln!(out, "{tried} of {of} rows of data.{} began a trajectory{more}", split.name());
            }
        }
        None => {
            let _ = writeln!(
                out,
                "{script}: {} of {} conversations, the longest of {} tokens, the context holds {}",
                report.tasks, report.rows, report.longest_prompt, report.budget
            );
        }
    }
    if let Some(phase) = cold_start {
        let _ = writeln!(
            out,
            "cold start: {} of {} conversations, the longest of {} tokens, the context holds {}",
            phase.tasks, phase.rows, phase.longest_prompt, phase.budget
        );
    }
    if loaded.stands_in {
        let _ = writeln!(out, "tokens are those of r1-nano: the recipe's model is not on this machine");
    }
    let mut files = loaded.script.resources();
    files.extend(loaded.script.data_files().unwrap_or_default());
    if let Some(far) = train::far_files_in_words(&loaded.script, &files) {
        let _ = writeln!(out, "it reads {far}");
    }
    for line in loaded.script.programs_in_words() {
        let _ = writeln!(out, "it starts {line}");
    }
    for line in loaded.script.servers_in_words() {
        let _ = writeln!(out, "it starts {line}");
    }
    for it in rolled.into_iter().flatten() {
        let reward = signed(it.reward);
        let _ = writeln!(out, "the model, {}: {} after {} steps, reward {reward}", it.id, it.status, it.steps);
    }
    for logged in &report.log {
        let _ = writeln!(out, "  {}", train::log_in_words(logged));
    }
    if report.more_log > 0 {
        let _ = writeln!(out, "  log      {} more", report.more_log);
    }
    let paint = |style: Style, text: &str| style.force_styling(colour).apply_to(text).to_string();
    let (mut errors, mut warnings) = (0, 0);
    for Finding { level, rule, message, place: location, hint, repeat } in &report.findings {
        let word = match level {
            Severity::Error => paint(Style::new().red().bold(), "error"),
            Severity::Warning => paint(Style::new().yellow().bold(), "warning"),
            Severity::Note => paint(Style::new().bold(), "note"),
        };
        match level {
            Severity::Error => errors += 1,
            Severity::Warning => warnings += 1,
            Severity::Note => {}
        }
        let _ = writeln!(out, "\n{word} ({rule}): {message}");
        if let Some(location) = location {
            let _ = writeln!(out, "  --> {location}");
        }
        if let Some(hint) = hint {
            let _ = writeln!(out, "  {}: {hint}", paint(Style::new().cyan(), "hint"));
        }
        if !repeat.is_empty() {
            let _ = writeln!(out, "  to see it: r1 repl {script}");
            for line in repeat.iter().flat_map(|typed| typed.lines()) {
                let _ = writeln!(out, "    {}", line.chars().take(100).collect::<String>());
            }
        }
    }
    let many = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let _ = match (errors, warnings) {
        (0, 0) if report.findings.is_empty() => writeln!(out, "no problems found"),
        (0, 0) => writeln!(out, "\nno problems found, apart from what the notes say"),
        (errors, warnings) => writeln!(out, "\n{}, {}", many(errors, "error"), many(warnings, "warning")),
    };
    print(&out)
}
