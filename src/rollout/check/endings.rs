//! Validates the tested trajectories: how they end, their token rows, tool calls and rewards.

use super::contract::{TestedTask, TestedTrajectory};
use super::replies::ReplyKind;
use super::{CheckReport, Finding, Severity};
use crate::config::OverlongPrompts;
use crate::mdp::{Limit, Status, Trajectory, failing_tools};
use crate::rollout::{Stage, unknown_accuracy};
use crate::script::runtime::task_env::TaskEnv;
use crate::script::{Script, Split, Worker};
use crate::text::Renderer;

/// Validates all of them.
pub(super) fn judge(tried: &[TestedTrajectory], stage: Stage<'_>, script: &Script, report: &mut CheckReport) {
    let mut causes = Vec::new();
    for it in tried {
        let of = stage.worker.envs.of(it.which.split, &it.which.value).ok();
        let left_out = it.which.split == Split::Train
            && it.trajectory.steps.is_empty()
            && left_out(it.which.row, tried, stage.worker, script);
        ended(it, of.as_deref(), left_out, script, &mut causes, report);
        continued(it, stage.renderer, report);
    }
    for EnvErrorCause { message, names, finding, .. } in causes {
        let who = match names.len() - 1 {
            0 => format!("{} makes", names[0]),
            others => {
                format!("{} and {others} other kind{} of reply make", names[0], if others == 1 { "" } else { "s" })
            }
        };
        report.findings[finding].message = format!("{who} the env fail: {message}");
    }
    reached(tried, stage.worker, script, report);
    failing(tried, script, report);
    rewards(tried, script, report);
}

/// The error of an environment, and the responses that cause it.
struct EnvErrorCause {
    place: Option<String>,
    message: String,
    /// Kinds of replies.
    names: Vec<String>,
    /// Its index in the report.
    finding: usize,
}

/// Whether a run filters out a row because its first prompt is too long. If no row can be started,
/// the prompts are the error.
fn left_out(row: u64, tried: &[TestedTrajectory], worker: &Worker, script: &Script) -> bool {
    let filtered = match script.settings.data.overlong_prompts {
        OverlongPrompts::Filter => true,
        OverlongPrompts::Error | OverlongPrompts::Keep => false,
        OverlongPrompts::Auto => {
            let mut end = 0;
            worker.parts(Split::Train).unwrap_or_default().iter().any(|part| {
                let start = end;
                end += part.rows;
                let checked = start + script.settings.data.checked(part.rows);
                (start..checked).contains(&row) && !part.generated
            })
        }
    };
    filtered && tried.iter().any(|it| !it.trajectory.steps.is_empty())
}

/// Whether the reset of a trajectory failed.
pub(super) fn in_reset(trajectory: &Trajectory) -> bool {
    trajectory.status == Status::EnvError && trajectory.steps.is_empty()
}

/// A trajectory ends in an allowed way.
fn ended(
    it: &TestedTrajectory,
    of: Option<&TaskEnv>,
    left_out: bool,
    script: &Script,
    causes: &mut Vec<EnvErrorCause>,
    report: &mut CheckReport,
) {
    let TestedTrajectory { kind, trajectory, .. } = it;
    let longest = trajectory.steps.iter().map(|step| step.prompt_ids.len()).max().unwrap_or(0);
    report.longest_prompt = report.longest_prompt.max(longest);
    let error = trajectory.error.as_ref();
    let message = error.map(|error| error.message.clone()).unwrap_or_default();
    let (location, hint) = (error.and_then(|error| error.place.clone()), error.and_then(|error| error.hint.clone()));
    let name = kind.name();
    let finding = |level, rule, message: String| {
        let mut finding = Finding::new(level, rule, message).at(location.clone()).repeat(repeat(it));
        finding.hint.clone_from(&hint);
        finding
    };
    match trajectory.status {
        Status::Truncated if trajectory.truncated_by == Some(Limit::ContextOverflow) => {
            let (steps, limit) = (trajectory.steps.len(), of.map_or(script.settings.env.max_steps, |of| of.max_steps));
            let message = format!("{name} fills the context after {steps} of {limit} steps; the trajectory ends there");
            let hint =
                "a `context` function can shorten the prompt; docs/guide/environments.md has the rules of scoring";
            report.add(finding(Severity::Warning, "context", message).hint(hint));
        }
        Status::Terminated | Status::Truncated | Status::PolicyError | Status::Aborted => {}
        Status::EnvError if in_reset(trajectory) => {
            report.add(finding(Severity::Error, "reset", message));
        }
        Status::EnvError => {
            // One cause is reported once, with all responses that lead to it.
            let cause = causes.iter_mut().find(|cause| cause.place == location && cause.message == message);
            if let Some(cause) = cause {
                if !cause.names.contains(&name) {
                    cause.names.push(name.clone());
                }
                return;
            }
            causes.push(EnvErrorCause {
                place: location.clone(),
                message,
                names: vec![name.clone()],
                finding: report.findings.len(),
            });
            let error_finding = finding(Severity::Error, "replies", String::new());
            let hint = "any response must lead to an observation or a reward, not to an error";
            report.findings.push(error_finding.hint(hint));
        }
        Status::ScriptLimit => {
            let of_cpu = error.is_some_and(|error| error.setting() == Some("limits.cpu"));
            let half = if of_cpu { " (half of limits.cpu, for a check)" } else { "" };
            let message = format!("{name} runs into a limit: {message}{half}; nothing else was tried");
            report.add(finding(Severity::Error, "limits", message));
        }
        Status::ToolTimeout => {
            report.add(finding(
                Severity::Error,
                "limits",
                format!("{name} waits too long: {message}; nothing else was tried"),
            ));
        }
        Status::ContextOverflow if left_out => {
            let message = format!("{message}: a run filters out such rows (data.overlong_prompts)");
            report.add(finding(Severity::Warning, "context", message));
        }
        Status::ContextOverflow if trajectory.steps.is_empty() => {
            report.add(finding(Severity::Error, "context", message));
        }
        Status::ContextOverflow => {
            let steps = trajectory.steps.len();
            let limit = of.map_or(script.settings.env.max_steps, |of| of.max_steps);
            let message = format!("{name} fills the context after {steps} of {limit} steps: {message}");
            report.add(finding(Severity::Warning, "context", message));
        }
    }
    let first = trajectory.steps.first();
    if kind.is_broken_call() && of.is_some_and(|of| !of.schemas.is_empty()) && first.is_some_and(|step| step.terminated)
    {
        let message = format!("{name} ends the task: the policy can't learn to correct it");
        let hint = "pass invalid calls to r1.call_tools too (they are in action.tool_calls): it returns error messages";
        let finding = Finding::new(Severity::Warning, "replies", message).hint(hint).repeat(repeat(it));
        report.add(finding.at_file(script));
    }
}

/// If the conversation only grows, the tokens continue the earlier ones: one row, one mask.
fn continued(it: &TestedTrajectory, renderer: &Renderer, report: &mut CheckReport) {
    for (number, step) in it.trajectory.steps.iter().enumerate().skip(1).filter(|(_, step)| step.new_row) {
        let before = &it.trajectory.steps[number - 1];
        let text = |ids: &[u32]| renderer.tokenizer().decode(ids, false);
        let grown = text(&[before.prompt_ids.as_slice(), &before.response_ids].concat());
        if text(&step.prompt_ids).starts_with(&grown) {
            let message = format!(
                "step {} extends step {number}, but with different tokens: it starts a training row of \
                 its own",
                number + 1
            );
            let hint = "push the reply as r1.assistant(action), which keeps its exact text; return messages, not text";
            report.add(Finding::new(Severity::Warning, "masks", message).hint(hint).repeat(repeat(it)));
        }
    }
}

/// Calls reach the tools.
fn reached(tried: &[TestedTrajectory], worker: &Worker, script: &Script, report: &mut CheckReport) {
    for it in tried {
        let ReplyKind::Call(name) = &it.kind else { continue };
        let Some(step) = it.trajectory.steps.first().filter(|_| !it.trajectory.status.is_failure()) else { continue };
        if !step.policy_calls().any(|tool| tool.name == *name) {
            let message = format!("a call of `{name}` reached no tool");
            let hint =
                "pass action.tool_calls to r1.call_tools in `step`, and push the results as r1.observation(result)";
            let finding = Finding::new(Severity::Warning, "tools", message).at(worker.place_of("step")).hint(hint);
            report.add(finding.at_file(script).repeat(repeat(it)));
        }
    }
}

/// A tool works for at least one call whose arguments match its schema.
fn failing(tried: &[TestedTrajectory], script: &Script, report: &mut CheckReport) {
    let calls = tried.iter().filter(|it| matches!(it.kind, ReplyKind::Call(_))).flat_map(|it| &it.trajectory.steps);
    for tool in failing_tools(calls.flat_map(|step| &step.tools), 1) {
        let hint = "is its server running? The arguments were made from the tool's schema: if it rightly refuses them, \
                    all is well; `enum` and `default` of the schema are tried first";
        let finding = Finding::new(Severity::Note, "tools", tool.to_string()).hint(hint);
        let called = tried.iter().find(|it| matches!(&it.kind, ReplyKind::Call(name) if *name == tool.name));
        report.add(finding.at_file(script).repeat(called.map(repeat).unwrap_or_default()));
    }
}

/// The different responses do not all have the same reward.
fn rewards(tried: &[TestedTrajectory], script: &Script, report: &mut CheckReport) {
    let counted: Vec<&Trajectory> =
        tried.iter().map(|it| &it.trajectory).filter(|trajectory| !trajectory.status.is_failure()).collect();
    let all: Vec<f64> = counted.iter().map(|trajectory| trajectory.total_reward()).collect();
    let (low, high) =
        (all.iter().copied().fold(f64::INFINITY, f64::min), all.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    if all.is_empty() {
        return;
    }
    report.rewards = Some((low, high));
    if let Some(why) = unknown_accuracy(&script.settings.eval.accuracy, counted.iter().copied()) {
        report.add(Finding::new(Severity::Warning, "reward", why).at_file(script));
    }
    if all.len() > 3 && (high - low).abs() < 1e-12 {
        let ends = if counted.iter().all(|trajectory| trajectory.status == Status::Truncated) {
            let limits = script.settings.environments().into_iter();
            let limits: Vec<String> = limits.map(|(at, env)| format!("{at}.max_steps = {}", env.max_steps)).collect();
            format!(", and none ended before {}", limits.join(", "))
        } else {
            String::new()
        };
        let message = format!("all {} trajectories have the reward {}{ends}", all.len(), number(low));
        let hint = "a group with equal rewards gives no gradient; if the right replies are just not among \
                    those tried, all is well: r1 check --model tries the model's";
        report.add(Finding::new(Severity::Warning, "reward", message).at_file(script).hint(hint));
    }
}

/// A reward for display.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// The REPL input that starts a task.
pub(super) fn reset_line(task: &TestedTask, seed: u64) -> String {
    let split = if task.split == Split::Eval { "eval " } else { "" };
    format!(":reset {split}{} seed={seed}", task.row)
}

/// The REPL inputs that repeat the trajectory.
pub(super) fn repeat(it: &TestedTrajectory) -> Vec<String> {
    let mut typed = vec![reset_line(&it.which, it.trajectory.seed)];
    for step in &it.trajectory.steps {
        typed.push(if step.text.contains('\n') || step.text.is_empty() {
            format!(":step \"\"\"{}\"\"\"", step.text)
        } else {
            format!(":step {}", step.text)
        });
    }
    typed
}
