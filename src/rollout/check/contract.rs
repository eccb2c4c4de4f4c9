//! The rules of a recipe's contract.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::advantage;
use super::endings::{self, repeat, reset_line};
use super::others;
use super::replies::{self, ReplyContext, ReplyKind};
use super::{CheckOptions, CheckReport, Finding, Severity};
use crate::config::Settings;
use crate::error::Result;
use crate::mdp::{Observation, Scripted, Status, Trajectory};
use crate::rollout::ending::of_row;
use crate::rollout::{Attempt, Spec, Stage, Stop, first_difference, never_begun, replay, typed, with_policy};
use crate::script::{Record, Script, Split, Strictness, Worker};
use crate::text::{Renderer, schema};

/// Rows tested per split; `others` tries further ones. All kinds of responses are tested on the
/// first, the middle and the last one, and on one of each environment.
const ROWS: usize = 16;

/// Maximum steps of a tested trajectory.
const STEPS: usize = 8;

pub(super) struct TestedTrajectory {
    pub(super) kind: ReplyKind,
    pub(super) which: TestedTask,
    pub(super) trajectory: Trajectory,
}

#[derive(Clone)]
pub(super) struct TestedTask {
    pub(super) split: Split,
    pub(super) row: u64,
    pub(super) value: Value,
    /// All kinds of responses are tested on it.
    pub(super) thorough: bool,
}

/// How to mend tools that are in no prompt.
pub(super) const HIDDEN_TOOLS: &str =
    "env.describe_tools=auto describes them in the system prompt; or do so yourself, or use another model";

/// Number of tasks whose reset fails after which the check ends.
const RESETS: usize = 2;

pub(super) async fn check(script: &Script, renderer: &Arc<Renderer>, options: &CheckOptions) -> Result<CheckReport> {
    let started = Instant::now();
    let mut report = CheckReport::default();
    // Half of the CPU limit: slower calls would fail on a busier machine, and endless loops are
    // found sooner.
    let mut script = script.clone();
    script.settings.limits.cpu /= 2.0;
    let script = &script;
    let first = Worker::new(script, Some(Arc::clone(renderer)))?;
    // Results must not depend on earlier calls of a machine: this one runs other calls first.
    let second = Worker::new(script, Some(Arc::clone(renderer)))?;
    let tasks = rows(&first, &second, &mut report);
    if let Err(error) = first.prepare() {
        report.add(Finding::error("tools", error));
        return Ok(report);
    }
    tools(&first, script, &mut report);
    if let Some(message) = renderer.hidden_tools(first.tools()) {
        report.add(Finding::new(Severity::Warning, "tools", message).at_file(script).hint(HIDDEN_TOOLS));
    }

    let (one, two) = (Stage { worker: &first, renderer }, Stage { worker: &second, renderer });
    let mut tried: Vec<TestedTrajectory> = Vec::new();
    let (mut failed_resets, mut goes_on) = (0, true);
    let mut tasks_tried = std::collections::BTreeSet::new();
    'tasks: for task in &tasks {
        let spec = spec(&first, script, task, options);
        report.budget = spec.budget();
        let tools = first.envs.of(task.split, &task.value).map(|of| of.schemas.clone()).unwrap_or_default();
        let mut kinds = ReplyKind::all(&task.value, &tools);
        if !task.thorough {
            kinds.retain(ReplyKind::depends_on_task);
        }
        let before = report.trajectories;
        for kind in kinds {
            if started.elapsed().as_secs_f64() > options.seconds {
                break;
            }
            let tried_out = run(one, &spec, task, &kind).await?;
            report.printed(first.take_log());
            let Some(trajectory) = tried_out else { continue };
            report.trajectories += 1;
            report.steps += trajectory.steps.len();
            let at_limit = limited(trajectory.status);
            let in_reset = endings::in_reset(&trajectory);
            tried.push(TestedTrajectory { kind, which: task.clone(), trajectory });
            tasks_tried.insert((task.split == Split::Eval, task.row));
            report.eval_tasks = tasks_tried.iter().filter(|(eval, _)| *eval).count();
            report.tasks = tasks_tried.len() - report.eval_tasks;
            if at_limit {
                goes_on = false;
                break 'tasks;
            }
            // Other replies to the task, and other tasks, would find the same: a server that is
            // down, with the time of all retries.
            if in_reset {
                failed_resets += 1;
                if failed_resets == RESETS {
                    goes_on = false;
                    break 'tasks;
                }
                continue 'tasks;
            }
        }
        if report.trajectories == before {
            break;
        }
        resets(one, two, &spec, task, &mut report).await;
    }
    // The other machine runs them in reverse order.
    for it in tried.iter().rev().filter(|it| !limited(it.trajectory.status)) {
        if started.elapsed().as_secs_f64() > 2.0 * options.seconds {
            break;
        }
        again(two, script, it, options, &mut report).await?;
    }
    endings::judge(&tried, one, script, &mut report);
    if goes_on {
        Box::pin(others::check(one, script, &tasks, options, &mut report)).await?;
    }
    advantage::check(&tried, &first, script, &mut report);
    curriculum(&first, &script.settings, &mut report);
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Ok(report)
}

/// Calls `row_order` and `row_weight` for the first training rows: after no success, after half and
/// after all of a group.
fn curriculum(worker: &Worker, settings: &Settings, report: &mut CheckReport) {
    let Some(learner) = settings.trainer.learner() else { return };
    let group = learner.group_size as f64;
    let trial = |row: u64| -> Result<()> {
        worker.row_key(row)?;
        [0.0, (group / 2.0).floor(), group]
            .into_iter()
            .try_for_each(|successes| worker.row_weight(row, successes, group).map(drop))
    };
    if worker.has_row_order() || worker.has_row_weight() {
        // A dataset that can't be read is another finding.
        let rows = worker.rows(Split::Train).ok().flatten().unwrap_or(0).min(ROWS as u64);
        report
            .findings
            .extend((0..rows).find_map(|row| trial(row).err()).map(|error| Finding::error("curriculum", error)));
    }
}

/// Another run would reach the limit again, which takes time, or not, which depends on the clock.
fn limited(status: Status) -> bool {
    matches!(status, Status::ScriptLimit | Status::ToolTimeout)
}

pub(super) fn spec(worker: &Worker, script: &Script, task: &TestedTask, options: &CheckOptions) -> Spec {
    let mut spec = Spec::new(task.split, task.row, &script.settings);
    if options.max_context > 0 {
        spec.max_context = options.max_context;
    }
    spec.max_steps = worker.envs.of(task.split, &task.value).ok().map(|of| of.max_steps.min(STEPS));
    spec
}

/// The rows to test: `thorough`, then others, evenly spread.
fn spread(thorough: &[u64], count: u64) -> Vec<u64> {
    let limit = count.min(ROWS as u64);
    let even = (0..limit).map(|index| index * (count - 1) / (limit - 1).max(1));
    let mut seen = std::collections::BTreeSet::new();
    let mut rows: Vec<u64> = thorough.iter().copied().chain(even).filter(|row| seen.insert(*row)).collect();
    rows.truncate(ROWS.max(thorough.len()));
    rows
}

/// Rows exist, can be read and are deterministic. Returns tasks to test, including evaluation tasks
/// if the evaluation has its own environment or context.
pub(super) fn rows(first: &Worker, second: &Worker, report: &mut CheckReport) -> Vec<TestedTask> {
    let (mut tasks, mut eval_tasks) = (Vec::new(), Vec::new());
    for split in [Split::Train, Split::Eval] {
        let count = match first.rows(split) {
            Ok(Some(0)) => {
                let message = format!("data.{} has no rows", split.name());
                report.add(Finding::new(Severity::Error, "data", message).at(Some(first.place_of_row(split, 0))));
                continue;
            }
            Ok(Some(count)) => count,
            Ok(None) if split == Split::Train => {
                let finding = Finding::new(Severity::Error, "data", "the recipe has no training data");
                report.add(finding.hint("give it `data = { train = … }`, or data.train=FILE on the command line"));
                continue;
            }
            Ok(None) => continue,
            Err(error) => {
                report.add(Finding::error("data", error));
                continue;
            }
        };
        if split == Split::Train {
            report.rows = count;
        }
        let mut thorough = vec![0, count / 2, count - 1];
        match first.rows_of_environments(split) {
            Ok(rows) => thorough.extend(rows),
            Err(error) => report.add(Finding::error("data", error)),
        }
        for row in spread(&thorough, count) {
            let location = || Some(first.place_of_row(split, row));
            match (first.row(split, row), first.row(split, row), second.row(split, row)) {
                (Ok(value), Ok(again), Ok(other)) => {
                    if value != again || value != other {
                        let message = format!("row {row} of data.{} is not the same every time", split.name());
                        let hint = "a row is a function of its index: draw with math.random, which is seeded for each row, \
                                    and keep nothing in locals outside";
                        report.add(Finding::new(Severity::Error, "data", message).at(location()).hint(hint));
                    }
                    let thorough = thorough.contains(&row);
                    let task = TestedTask { split, row, value, thorough };
                    match split {
                        Split::Train => tasks.push(task),
                        Split::Eval if thorough && first.envs.has_eval() => eval_tasks.push(task),
                        Split::Eval => {}
                    }
                }
                (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                    report.add(Finding::error("data", error).at(location()));
                }
            }
        }
    }
    // After the first task, so that they are tested even if trajectories take long.
    let at = tasks.len().min(1);
    tasks.splice(at..at, eval_tasks);
    tasks
}

/// Schemas have descriptions and valid example arguments.
fn tools(worker: &Worker, script: &Script, report: &mut CheckReport) {
    for tool in worker.tools() {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        if function["description"].as_str().is_none_or(|text| text.trim().is_empty()) {
            let message = format!("the tool `{name}` has no description");
            let hint = "the policy sees it: describe the tool in one sentence";
            report.add(Finding::new(Severity::Warning, "tools", message).at_file(script).hint(hint));
        }
        let parameters = &function["parameters"];
        let properties = parameters["properties"].as_object();
        for required in parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if properties.is_none_or(|properties| !properties.contains_key(required)) {
                let message = format!("the tool `{name}` requires `{required}`, which is none of its parameters");
                report.add(Finding::new(Severity::Error, "tools", message).at_file(script));
            }
        }
        if let Err(why) = schema::refuse_unknown(parameters) {
            report
                .add(Finding::new(Severity::Error, "tools", format!("the schema of `{name}`: {why}")).at_file(script));
        } else if let Err(why) = replies::arguments(tool) {
            let message = format!("no arguments were found that fit the schema of `{name}`: {why}");
            let hint = "an `example` in the schema shows r1 check what to call it with";
            report.add(Finding::new(Severity::Warning, "tools", message).at_file(script).hint(hint));
        }
    }
}

/// The same task, seed and external answers give the same state in both machines; a state equals
/// its snapshot.
async fn resets(one: Stage<'_>, two: Stage<'_>, spec: &Spec, task: &TestedTask, report: &mut CheckReport) {
    let reset = async |stage: Stage<'_>, record: &Record| {
        stage.worker.reset_as(task.split, &task.value, spec.env_seed, record).await
    };
    let location = one.worker.place_of("reset");
    let typed = vec![reset_line(task, spec.env_seed)];
    let record = Record::live();
    let first = reset(one, &record).await;
    // A server may give another answer to the second request, such as a new session.
    let same_replies = || Record::replay(record.exchanges(), Strictness::Live);
    let states = (first, reset(one, &same_replies()).await, reset(two, &same_replies()).await);
    let (Ok(first), Ok(again), Ok(other)) = states else {
        // A failing reset is reported with the trajectories.
        return;
    };
    let snapshots: Vec<Result<Value>> = [&first, &again, &other].iter().map(|state| state.snapshot()).collect();
    let [Ok(snapshot), Ok(again), Ok(other)] = &snapshots[..] else {
        for error in snapshots.into_iter().filter_map(Result::err) {
            report.add(Finding::error("state", error).at(location.clone()).repeat(typed.clone()));
        }
        return;
    };
    if snapshot != again || snapshot != other {
        let message = format!(
            "reset gives another state for the same task and seed: {}",
            difference(&snapshot["state"], if snapshot == again { &other["state"] } else { &again["state"] }, "state")
        );
        let hint = "a state is a function of task and seed: draw with math.random, and keep nothing in locals outside";
        report
            .add(Finding::new(Severity::Error, "reset", message).at(location.clone()).hint(hint).repeat(typed.clone()));
    }
    match one.worker.restore(snapshot).and_then(|back| back.snapshot()) {
        Ok(back) if back == *snapshot => {}
        Ok(back) => {
            let message = format!(
                "the state changes when it is kept: {}",
                difference(&snapshot["state"], &back["state"], "state")
            );
            report.add(Finding::new(Severity::Error, "state", message).at(location).repeat(typed));
        }
        Err(error) => report.add(Finding::error("state", error).at(location).repeat(typed)),
    }
}

/// Runs one trajectory with responses of a kind; `None` if the format cannot write them.
pub(super) async fn run(
    stage: Stage<'_>,
    spec: &Spec,
    task: &TestedTask,
    kind: &ReplyKind,
) -> Result<Option<Trajectory>> {
    let record = Record::live();
    let mut requests = record.listen();
    // Serves generation requests of context policies.
    let ids = stage.renderer.tokenizer().encode("so it is")?;
    let stop = stage.renderer.stop_ids().first().copied();
    let writer = Scripted::new(move |_| ids.iter().copied().chain(stop).collect());
    let played = async {
        let begun = Attempt::begin(stage, spec.clone(), task.value.clone(), &record).await;
        let mut attempt = match begun {
            Ok(attempt) => attempt,
            Err(failure) if failure.lacks_reference() => return Err(failure.error),
            Err(failure) => {
                let mut trajectory = never_begun(stage, spec, task.value.clone(), &failure);
                trajectory.record = record.take();
                return Ok(Some(trajectory));
            }
        };
        match play(stage, task, kind, &mut attempt).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(Stop::Failed(failure)) => attempt.fail(stage.worker, &failure),
            Err(Stop::Fatal(error)) => return Err(error),
        }
        Ok(Some(attempt.into_trajectory()))
    };
    let played = with_policy(stage, &writer, spec, &mut requests, played).await;
    played.map_err(|error| of_row(error, stage.worker, spec, &task.value))
}

/// Runs a trajectory to its end; returns whether the format can write the responses.
async fn play(stage: Stage<'_>, task: &TestedTask, kind: &ReplyKind, attempt: &mut Attempt) -> Result<bool, Stop> {
    while attempt.over().is_none() {
        let step = attempt.trajectory().steps.len();
        // The tested response is followed by noise.
        let now =
            if step > 0 && matches!(kind, ReplyKind::Call(_) | ReplyKind::AllCalls) { &ReplyKind::Words } else { kind };
        let Some(prompt) = attempt.observe(stage).await? else { break };
        let shown = last_text(&prompt.observation, stage.renderer);
        let limit = attempt.room();
        let seen = ReplyContext { task: &task.value, tools: &attempt.state().tools(), shown: &shown, step, limit };
        let Some(reply) = now.reply(attempt.renderer(stage), &seen)? else { return Ok(false) };
        let completion = typed(stage, attempt, &reply.text, reply.finish_reason)?;
        attempt.act(stage, completion).await?;
    }
    attempt.finish(stage).await?;
    Ok(true)
}

/// The last text shown to the policy.
fn last_text(observation: &Observation, renderer: &Renderer) -> String {
    match observation {
        Observation::Messages(messages) => messages.last().map(|last| last.content.text()).unwrap_or_default(),
        Observation::Text(text) => text.clone(),
        Observation::TokenIds(ids) => renderer.tokenizer().decode(ids, true),
    }
}

/// The same responses and external calls give the same trajectory in another machine.
async fn again(
    two: Stage<'_>,
    script: &Script,
    it: &TestedTrajectory,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> Result<()> {
    let spec = spec(two.worker, script, &it.which, options);
    let replayed = replay(two, &it.trajectory, spec, Strictness::Exact).await?;
    drop(two.worker.take_log());
    if let Some(difference) = first_difference(two.renderer, &it.trajectory, &replayed) {
        let short = |text: &str| text.chars().take(120).collect::<String>().replace('\n', "⏎");
        let message = format!(
            "the same responses have another result in another worker: {difference} was {} and is {}",
            short(&difference.recorded),
            short(&difference.now)
        );
        let hint = "keep all data of a trajectory in its state: locals outside of the functions that change \
                    (counters, caches) are shared by all trajectories";
        let finding = Finding::new(Severity::Error, "step", message).at(two.worker.place_of("step")).hint(hint);
        report.add(finding.repeat(repeat(it)));
    }
    Ok(())
}

/// The path and values of the first difference.
fn difference(a: &Value, b: &Value, at: &str) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let names = x.keys().chain(y.keys());
            let differing = names.map(|name| (name, x.get(name), y.get(name))).find(|(_, a, b)| a != b);
            differing.map_or_else(String::new, |(name, a, b)| {
                difference(a.unwrap_or(&json!(null)), b.unwrap_or(&json!(null)), &format!("{at}.{name}"))
            })
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            let differing = x.iter().zip(y).enumerate().find(|(_, (a, b))| a != b);
            differing.map_or_else(String::new, |(index, (a, b))| difference(a, b, &format!("{at}[{}]", index + 1)))
        }
        _ => {
            let short = |value: &Value| value.to_string().chars().take(60).collect::<String>();
            format!("{at} is {} and {}", short(a), short(b))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_over_the_data() {
        assert_eq!(spread(&[0, 0, 0], 1), [0]);
        assert_eq!(spread(&[0, 1, 1], 2), [0, 1]);
        assert_eq!(spread(&[0, 2, 3], 4), [0, 2, 3, 1]);
        let many = spread(&[0, 500_000, 999_999], 1_000_000);
        assert_eq!((many.len(), &many[..3]), (16, &[0, 500_000, 999_999][..]));
        let mut sorted = many.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] <= 133_334), "{sorted:?}");
    }
}
