//! The output of a run: the opening lines, evaluations, example trajectories and the closing lines;
//! and the check of the mismatch that stops a run.

use serde_json::json;

use super::metrics;
use crate::config::{Branch, BranchAt, Learner, Overlong, Settings, Sft};
use crate::error::{Error, Kind, Result, without_control_characters};
use crate::mdp::{Evaluation, Role, Trajectory};
use crate::model::Model;
use crate::script::{Script, needs_in_words};
use crate::store::{BestCheckpoint, FileVersion, Origins, RunDir, write_atomic};
use crate::telemetry::{Metrics, MetricsLog, Reporter, compact, counted, duration};
use crate::train::options::{RunOptions, Summary, quoted};
use crate::train::start::best::BestEvaluation;

/// Example trajectories shown before and after.
const EXAMPLES: usize = 3;

fn describe(model: &Model) -> String {
    let parameters: usize = model.parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    let size = |count: usize| {
        if count >= 1_000_000_000 {
            format!("{:.1}B", count as f64 / 1e9)
        } else {
            format!("{:.1}M", count as f64 / 1e6)
        }
    };
    let adapter = match model.lora() {
        Some(lora) => format!(", adapter of rank {}", lora.rank),
        None => String::new(),
    };
    let memory = model.bytes().div_ceil(1 << 20);
    let kind = if model.kind() == tch::Kind::BFloat16 { "bf16" } else { "f32" };
    let device = match model.device() {
        tch::Device::Cpu => "the CPU".to_owned(),
        tch::Device::Cuda(number) => format!("cuda:{number}"),
        other => format!("{other:?}"),
    };
    format!("{} parameters{adapter}, {kind} on {device}, {memory} MiB", size(parameters))
}

/// The steps of a run that are left after `done`: `60 steps`, `35 of 60 steps`.
fn steps_after(done: u64, steps: usize) -> String {
    let all = counted(steps, "step", "steps");
    if done == 0 { all } else { format!("{} of {all}", steps.saturating_sub(done as usize)) }
}

pub(crate) fn opening(
    reporter: &Reporter,
    settings: &Settings,
    model: &Model,
    run: &RunDir,
    rows: u64,
    (learner, done): (&Learner, u64),
) {
    reporter.info(&format!("policy   {} ({})", settings.policy.model, describe(model)));
    reporter.info(&format!("data     {}", counted(rows as usize, "training task", "training tasks")));
    let needs = needs_in_words(&settings.needs);
    if !needs.is_empty() {
        reporter.info(&format!("outside  the script may {}", needs.join(", ")));
    }
    let Branch { roots, at, rounds, .. } = &learner.branch;
    let rounds = if *rounds > 1 { format!(" in {rounds} rounds") } else { String::new() };
    let trees = match at {
        _ if *roots == 0 => String::new(),
        BranchAt::Random => format!(" ({roots} roots, branches{rounds} from any state)"),
        BranchAt::Entropy => format!(" ({roots} roots, branches{rounds} from the least sure states)"),
        BranchAt::FirstTool => format!(" ({roots} roots, branches{rounds} after the first tool call)"),
        BranchAt::Steps(list) => format!(" ({roots} roots, branches{rounds} after steps {list:?})"),
    };
    reporter.info(&format!(
        "training {} of {} of {}{trees}, lr {}",
        steps_after(done, learner.steps),
        counted(learner.groups_per_step, "group", "groups"),
        counted(learner.group_size, "trajectory", "trajectories"),
        compact(learner.lr)
    ));
    reporter.info(&format!("run      {}", run.path().display()));
}

/// Prints the programs of connections, and the MCP servers with their tools.
pub(crate) fn servers(reporter: &Reporter, script: &Script) {
    for line in &script.programs {
        reporter.info(&format!("outside  the script starts {line}"));
    }
    for line in script.listings.in_words() {
        reporter.info(&format!("tools    {line}"));
    }
    for line in script.listings.changes_in_words() {
        reporter.warn(&line);
    }
}

/// Prints the data files that are neither below the script's directory nor below the current one.
pub(crate) fn far_files(reporter: &Reporter, script: &Script, origins: &Origins) {
    let mut files = script.resources();
    files.extend(origins.files.iter().cloned());
    if let Some(files_text) = far_files_in_words(script, &files) {
        reporter.info(&format!("reads    {files_text}"));
    }
}

/// Data files that are neither below the script's directory nor below the current one, as a list.
pub fn far_files_in_words(script: &Script, files: &[FileVersion]) -> Option<String> {
    const SHOWN: usize = 3;
    let far: Vec<String> =
        files.iter().filter(|file| script.is_far(&file.path)).map(|file| file.path.display().to_string()).collect();
    let more = if far.len() > SHOWN { format!(" and {} more", far.len() - SHOWN) } else { String::new() };
    (!far.is_empty()).then(|| format!("{}{more}", far[..far.len().min(SHOWN)].join(", ")))
}

/// Warns of API keys in the run directory's copy of the script.
pub(crate) fn literal_keys(reporter: &Reporter, script: &Script) {
    for location in script.literal_keys() {
        reporter.warn(&format!(
            "{location} may contain an API key, and the run directory now has a copy of it; read it from the \
             environment instead: needs = {{ \"env:NAME\" }} and r1.secret(\"NAME\")"
        ));
    }
}

pub(crate) fn opening_sft(reporter: &Reporter, model: &Model, run: &RunDir, rows: u64, (sft, done): (&Sft, u64)) {
    reporter.info(&format!("model    {}", describe(model)));
    let conversations = |count| counted(count, "conversation", "conversations");
    reporter.info(&format!("data     {}", conversations(rows as usize)));
    let (steps, batch) = (steps_after(done, sft.steps), conversations(sft.batch_size));
    reporter.info(&format!("training {steps} of {batch}, lr {}", compact(sft.lr)));
    reporter.info(&format!("run      {}", run.path().display()));
}

/// Logs an evaluation, and prints it as a row of a small table.
pub(crate) fn evaluation(
    reporter: &Reporter,
    log: &mut MetricsLog,
    step: u64,
    label: &str,
    evaluation: &Evaluation,
) -> Result<()> {
    let mut values = Metrics::new();
    metrics::evaluation(&mut values, evaluation);
    log.log(step, &values)?;
    let titles = ["held out", "accuracy", "tool-call share", "tool calls", "reply tokens", "failed", "tasks"];
    let row = |label: String, of: &Evaluation| {
        vec![
            label,
            format!("{:.3}", of.accuracy),
            format!("{:.3}", of.tool_call_share),
            format!("{:.2}", of.tool_calls),
            format!("{:.1}", of.response_tokens),
            of.failures.to_string(),
            of.tasks.to_string(),
        ]
    };
    let mut table = vec![titles.map(str::to_owned).to_vec(), row(label.to_owned(), evaluation)];
    // With one source the result is the result of the whole.
    if evaluation.sources.len() > 1 {
        table.extend(evaluation.sources.iter().map(|(name, of)| row(format!("{label}: {name}"), of)));
    }
    reporter.table(&table);
    reporter.event("evaluation", &json!({ "label": label, "step": step, "metrics": values.to_json() }));
    Ok(())
}

/// File in the run directory with whole trajectories of the evaluations before and after training.
const EXAMPLES_FILE: &str = "examples.txt";

/// Adds a few whole trajectories to the run's `examples.txt`, and prints them with `--verbose`.
///
/// # Errors
/// `Kind::Store` if the file can't be written.
pub(crate) fn examples(
    reporter: &Reporter,
    (label, step): (&str, u64),
    trajectories: &[Trajectory],
    run: &RunDir,
    verbose: bool,
) -> Result<()> {
    let mut shown = Vec::new();
    for trajectory in trajectories.iter().take(EXAMPLES) {
        shown.extend(conversation_lines(trajectory));
    }
    let title = format!("Trajectories {label} training");
    if verbose {
        reporter.section(&title);
        for line in &shown {
            reporter.text(line);
        }
    }
    let path = run.path().join(EXAMPLES_FILE);
    let title = format!("{title} (step {step})");
    let earlier = match std::fs::read_to_string(&path) {
        Ok(text) => without_examples(&text, &title),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Error::io(Kind::Store, "read the examples", &path, &error)),
    };
    let text = format!("{earlier}{title}\n{}\n\n", without_control_characters(&shown.join("\n")));
    write_atomic(&path, |file| {
        file.write_all(text.as_bytes()).map_err(|error| Error::io(Kind::Store, "write the examples", &path, &error))
    })
}

/// The examples without those under a title: a resumed run may repeat an evaluation.
fn without_examples(text: &str, title: &str) -> String {
    let mut inside = false;
    let kept = text.split_inclusive('\n').filter(|line| {
        // Lines of a conversation are indented.
        if line.starts_with("Trajectories ") {
            inside = line.trim_end() == title;
        }
        !inside
    });
    kept.collect()
}

/// A trajectory as lines: task, reward and status, then the conversation.
pub(crate) fn conversation_lines(trajectory: &Trajectory) -> Vec<String> {
    let (reward, status) = (trajectory.total_reward(), trajectory.status.name());
    let mut shown = vec![format!("task {}, reward {reward:+.1}, {status}", trajectory.task_index)];
    for (who, text) in conversation(trajectory) {
        let mut text = text.lines();
        shown.push(format!("  {who:>9}  {}", text.next().unwrap_or_default()));
        shown.extend(text.map(|line| format!("  {:>9}  {line}", "")));
    }
    shown
}

/// A conversation as lines of `role  text`.
pub(crate) fn conversation(trajectory: &Trajectory) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = trajectory
        .messages
        .iter()
        .map(|message| {
            let who = if message.role == Role::Tool { "tool" } else { message.role.name() };
            (who.to_owned(), message.content.shown())
        })
        .collect();
    if lines.is_empty() {
        lines.extend(trajectory.steps.iter().map(|step| ("policy".to_owned(), step.text.clone())));
    }
    if let Some(error) = &trajectory.error {
        lines.push(("error".to_owned(), error.to_string()));
    }
    lines
}

/// Reward and tool use over the run, for the plot at its end.
#[derive(Default)]
pub(crate) struct Curves {
    accuracy: Vec<f64>,
    tools: Vec<f64>,
    tokens: Vec<f64>,
}

impl Curves {
    pub(crate) fn push(&mut self, metrics: &Metrics) {
        for (curve, name) in [
            (&mut self.accuracy, "rollout/accuracy"),
            (&mut self.tools, "rollout/tool_call_share"),
            (&mut self.tokens, "rollout/response_tokens"),
        ] {
            curve.extend(metrics.get(name));
        }
    }
}

/// The results, the paths of the run's files, and the next commands; `before`: the completed steps
/// when this process began.
pub(crate) fn closing(
    reporter: &Reporter,
    summary: &Summary,
    before: u64,
    best: Option<(BestEvaluation, &str)>,
    curves: &Curves,
    options: &RunOptions,
) {
    reporter.section(if summary.interrupted { "Stopped" } else { "Done" });
    if curves.accuracy.len() > 1 {
        let first = before + 1;
        reporter.plot("rollout/accuracy", first, &curves.accuracy);
        if options.verbose {
            reporter.plot("rollout/tool_call_share", first, &curves.tools);
            reporter.plot("rollout/response_tokens", first, &curves.tokens);
        }
    }
    if let (Some(before), Some(after)) = (&summary.before, &summary.after) {
        let row = |label: &str, before: f64, after: f64| {
            vec![label.to_owned(), format!("{before:.3}"), format!("{after:.3}")]
        };
        reporter.table(&[
            ["held out", "before", "after"].map(str::to_owned).to_vec(),
            row("accuracy", before.accuracy, after.accuracy),
            row("tool-call share", before.tool_call_share, after.tool_call_share),
            row("tool calls", before.tool_calls, after.tool_calls),
            row("reply tokens", before.response_tokens, after.response_tokens),
        ]);
    }
    let steps = summary.steps.saturating_sub(before as usize);
    reporter.text(&format!("{} in {}", counted(steps, "step", "steps"), duration(summary.seconds)));
    reporter.text(&format!("run         {}", summary.run_dir.display()));
    let examples = summary.run_dir.join(EXAMPLES_FILE);
    if examples.is_file() {
        reporter.text(&format!("examples    {}", examples.display()));
    }
    if let (Some((BestEvaluation { step, value }, metric)), Some(path)) = (best, &summary.best) {
        let metric = metric.strip_prefix("eval/").unwrap_or(metric);
        reporter.text(&format!("best        {} ({metric} {value:.3}, step {step})", path.display()));
    }
    if let Some(checkpoint) = &summary.checkpoint {
        reporter.text(&format!("checkpoint  {}", checkpoint.display()));
        reporter.text("next");
        reporter.text(&format!("  r1 infer --model {}", quoted(&checkpoint.display().to_string())));
    }
    if summary.interrupted {
        reporter.text(&format!("  {}", options.resume_command("run", &summary.run_dir)));
    }
    reporter.text(&format!("  tensorboard --logdir {}", quoted(&summary.run_dir.join("tb").display().to_string())));
    reporter.event("summary", &json!(summary));
}

/// The result of supervised training.
pub(crate) struct SupervisedReport {
    /// Steps of this process.
    pub(crate) steps: usize,
    /// Tokens computed by this process.
    pub(crate) tokens: usize,
    /// The lowest held-out loss.
    pub(crate) best: Option<BestCheckpoint>,
    /// The patience that ended the run before its last step.
    pub(crate) stopped: Option<usize>,
}

pub(crate) fn closing_sft(reporter: &Reporter, summary: &Summary, done: &SupervisedReport, options: &RunOptions) {
    reporter.section(if summary.interrupted { "Stopped" } else { "Done" });
    let millions = done.tokens as f64 / 1e6;
    let steps = counted(done.steps, "step", "steps");
    reporter.text(&format!("{steps}, {millions:.1}M tokens in {}", duration(summary.seconds)));
    if let Some(patience) = done.stopped {
        reporter.text(&format!("stopped     early: {patience} evaluations in a row without a lower held-out loss"));
    }
    if let (Some(best), Some(path)) = (done.best, &summary.best) {
        reporter.text(&format!("best        {} (held-out loss {:.4}, step {})", path.display(), best.loss, best.step));
    }
    reporter.text(&format!("run         {}", summary.run_dir.display()));
    if let Some(model) = options.out.as_ref().or(summary.best.as_ref()).or(summary.checkpoint.as_ref()) {
        reporter.text(&format!("model       {}", model.display()));
    }
    // The model in the run, whose format and prompt the run has stored.
    if let Some(model) = summary.best.as_ref().or(summary.checkpoint.as_ref()).filter(|_| !options.cold_start) {
        reporter.text("next");
        reporter.text(&format!("  r1 infer --model {}", quoted(&model.display().to_string())));
    }
    if summary.interrupted && !options.cold_start {
        reporter.text(&format!("  {}", options.resume_command("sft", &summary.run_dir)));
    }
    reporter.event("summary", &json!(summary));
}

/// Prints how many conversations were too long, and how they were handled.
pub(crate) fn overlong(reporter: &Reporter, script: &Script, (count, longest): (u64, usize), overlong: Overlong) {
    let (conversations, were) = if count == 1 { ("conversation", "was") } else { ("conversations", "were") };
    let fate = if overlong == Overlong::Truncate { "cut" } else { "left out" };
    if count > 0 {
        let key = script.full_key("trainer.overlong");
        reporter.warn(&format!("{count} {conversations} longer than {longest} tokens {were} {fate} ({key})"));
    }
}

/// Warns of settings that have no effect.
pub(crate) fn warn(reporter: &Reporter, warnings: &[Error]) {
    for Error { message, place: location, hint, .. } in warnings {
        let location = location.iter().map(|location| format!("\n  --> {location}"));
        let hint = hint.iter().map(|hint| format!("\n  hint: {hint}"));
        reporter.warn(&[message.clone()].into_iter().chain(location).chain(hint).collect::<String>());
    }
}

/// A numeric error with its step.
pub(crate) fn in_step(error: Error, step: u64) -> Error {
    if error.kind == Kind::Numeric {
        Error { message: format!("step {step}: {}", error.message), ..error }
    } else {
        error
    }
}
