//! The state of a session: a script, a task, and the trajectories on it. Every change can be
//! undone, because a state is plain data.

use std::path::PathBuf;
use std::rc::Rc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::sampler::SessionPolicy;
use super::terminal::{Terminal, script_error};
use super::{halt, view};
use crate::error::{Error, Kind, Result, suggest};
use crate::load::Loaded;
use crate::mdp::{Action, Completion, FinishReason, Observation, ToolCall, Trajectory, seed_value};
use crate::rollout::{self, Attempt, Spec, Stage, Stop};
use crate::script::{Console, Failure, Record, Reward, ShowLimits, Split, Worker};
use crate::telemetry::{Interrupt, Reporter};
use crate::train::Agent;

#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) split: Split,
    /// `None`: the task was typed.
    pub(super) row: Option<u64>,
    pub(super) task: Value,
    pub(super) seed: u64,
}

/// A trajectory with the states for undo.
pub(super) struct Branch {
    pub(super) name: String,
    pub(super) attempt: Attempt,
    pub(super) past: Vec<Attempt>,
    /// It failed; only undo is possible.
    pub(super) failed: bool,
}

pub(super) struct ReplSession {
    pub(super) loaded: Rc<Loaded>,
    pub(super) console: Console,
    pub(super) opening: Opening,
    runtime: Runtime,
    interrupt: Interrupt,
    pub(super) reporter: Reporter,
    pub(super) terminal: Rc<Terminal>,
    pub(super) start: Option<Start>,
    /// The stored trajectory whose replies are replayed.
    pub(super) recorded: Option<Trajectory>,
    pub(super) branches: Vec<Branch>,
    pub(super) current: usize,
    policy: SessionPolicy,
    /// Tokens of the policy's model.
    tokens_of_policy: bool,
}

/// The options of a new session.
pub(super) struct Opening {
    /// The script for `:reload`; `None` for the script of a stored trajectory.
    pub(super) agent: Option<Agent>,
    pub(super) overrides: Vec<String>,
    /// With the run's settings, without its model.
    pub(super) in_effect: Vec<String>,
    pub(super) model: Option<PathBuf>,
    pub(super) runs_dir: PathBuf,
}

impl ReplSession {
    pub(super) fn open(
        loaded: Loaded,
        opening: Opening,
        terminal: &Rc<Terminal>,
        interrupt: Interrupt,
        reporter: Reporter,
    ) -> Result<Self> {
        let runtime = Worker::runtime()?;
        let console = console(&loaded, terminal)?;
        let policy = SessionPolicy::new(opening.model.clone(), interrupt, reporter.clone(), terminal);
        Ok(Self {
            loaded: Rc::new(loaded),
            console,
            opening,
            runtime,
            interrupt,
            reporter,
            terminal: Rc::clone(terminal),
            start: None,
            recorded: None,
            branches: Vec::new(),
            current: 0,
            policy,
            tokens_of_policy: false,
        })
    }

    /// Waits for the script until Ctrl-C. Its requests to the policy arrive at `record`.
    pub(super) fn wait<T>(&self, record: &Record, future: impl Future<Output = T>) -> Result<T> {
        self.policy.wait(&self.runtime, &self.loaded.script, record.listen(), future)
    }

    /// Runs a part of the current trajectory until Ctrl-C.
    fn on_attempt<T>(&mut self, work: impl AsyncFnOnce(Stage<'_>, &mut Attempt) -> T) -> Result<T> {
        self.branch()?;
        let loaded = Rc::clone(&self.loaded);
        let attempt = &mut self.branches[self.current].attempt;
        let requests = attempt.state().record().listen();
        self.policy.wait(&self.runtime, &loaded.script, requests, work(loaded.stage(), attempt))
    }

    /// A failure of the script, with its source line.
    pub(super) fn script_error(&self, failure: &Failure) -> Error {
        let source = failure.error.place.as_deref().and_then(|location| self.console.source_line(location));
        script_error(failure, source)
    }

    pub(super) fn stopped(&self, stop: Stop) -> Error {
        match stop {
            Stop::Failed(failure) => self.script_error(&failure),
            Stop::Fatal(error) => error,
        }
    }

    pub(super) fn branch(&mut self) -> Result<&mut Branch> {
        self.branches.get_mut(self.current).ok_or_else(|| {
            Error::new(Kind::Usage, "there is no trajectory yet")
                .hint(":reset 0 starts one with a row of the data, :reset { prompt = \"…\" } with your own task")
        })
    }

    /// The current trajectory.
    pub(super) fn attempt(&mut self) -> Result<&mut Attempt> {
        self.branch().map(|branch| &mut branch.attempt)
    }

    /// Prints the script's log.
    pub(super) fn print_log(&self) -> Result<()> {
        for line in self.console.take_log() {
            self.terminal.log(&line.place, &line.text)?;
        }
        Ok(())
    }

    /// Starts again. `row`, `seed` and `task` keep their values if not given.
    pub(super) fn reset(
        &mut self,
        split: Option<Split>,
        row: Option<u64>,
        seed: Option<u64>,
        task: Option<Value>,
    ) -> Result<()> {
        let before = self.start.clone();
        let split = split.or(before.as_ref().map(|start| start.split)).unwrap_or(Split::Train);
        let (row, task, default_seed) = match (task, row, before) {
            (Some(task), ..) => (None, task, self.loaded.script.settings.seed),
            (None, None, Some(start)) if start.row.is_none() => (None, start.task, start.seed),
            (None, row, before) => {
                let row = row.or(before.and_then(|start| start.row)).unwrap_or(0);
                let task = self.loaded.worker.row(split, row)?;
                (Some(row), task, Spec::new(split, row, &self.loaded.script.settings).env_seed)
            }
        };
        let start = Start { split, row, task, seed: seed.unwrap_or(default_seed) };
        self.recorded = None;
        self.begin(start, &Record::live())?;
        self.show_beginning()
    }

    pub(super) fn begin(&mut self, start: Start, record: &Record) -> Result<()> {
        let loaded = Rc::clone(&self.loaded);
        let stage = loaded.stage();
        let spec = self.spec(&start);
        let begun = self.wait(record, Attempt::begin(stage, spec, start.task.clone(), record))?;
        self.start = Some(start);
        let attempt = begun.map_err(|failure| self.script_error(&failure))?;
        self.branches = vec![Branch { name: "main".to_owned(), attempt, past: Vec::new(), failed: false }];
        self.current = 0;
        self.bind()
    }

    fn spec(&self, start: &Start) -> Spec {
        let settings = &self.loaded.script.settings;
        let mut spec = Spec::new(start.split, start.row.unwrap_or(0), settings).as_evaluated(settings);
        spec.env_seed = start.seed;
        if self.loaded.max_context > 0 {
            spec.max_context = self.loaded.max_context;
        }
        spec
    }

    /// Gives typed code access to the current trajectory.
    pub(super) fn bind(&mut self) -> Result<()> {
        let console = self.console.clone();
        let Some(branch) = self.branches.get(self.current) else { return Ok(()) };
        console.give_state(branch.attempt.state())?;
        let task = self.start.as_ref().map_or(Value::Null, |start| start.task.clone());
        console.give("task", &task)
    }

    pub(super) fn show_beginning(&mut self) -> Result<()> {
        if let Some(start) = &self.start {
            let of = match start.row {
                Some(row) => {
                    let rows = self.loaded.worker.rows(start.split)?.unwrap_or(0);
                    format!("row {row} of {rows} ({})", start.split.name())
                }
                None if self.recorded.is_some() => "the recorded task".to_owned(),
                None => "a task of your own".to_owned(),
            };
            self.terminal.remark("start", &format!("{of}, seed {}", start.seed), || {
                let (split, row) = (start.split.name(), start.row);
                json!({ "split": split, "row": row, "task": start.task, "seed": seed_value(start.seed) })
            })?;
        }
        let shown = self.observation()?;
        self.terminal.result("observation", &view::observation(&self.terminal, &shown, false), || json!(shown))?;
        self.print_log()
    }

    pub(super) fn observation(&mut self) -> Result<Observation> {
        self.current_observation().map(|(observation, ..)| observation)
    }

    /// The observation, its ids, and whether they start a row.
    pub(super) fn current_observation(&mut self) -> Result<(Observation, Vec<u32>, bool)> {
        let looked = self.on_attempt(async |stage, attempt| {
            let shown = attempt.observe(stage).await?;
            Ok(shown.map(|prompt| (prompt.observation.clone(), prompt.ids.clone(), prompt.new_row)))
        })?;
        looked.map_err(|stop| self.stopped(stop))?.ok_or_else(full)
    }

    /// The tokens of the trajectory so far, and whether they start a row: the current observation,
    /// or after the end the last prompt with its reply.
    pub(super) fn tokens(&mut self) -> Result<(Vec<u32>, bool)> {
        let attempt = self.attempt()?;
        if attempt.over().is_some()
            && let Some(last) = attempt.trajectory().steps.last()
        {
            return Ok(([&last.prompt_ids[..], &last.response_ids].concat(), false));
        }
        self.current_observation().map(|(_, ids, new_row)| (ids, new_row))
    }

    /// Saves the trajectory's position for undo.
    fn mark(&mut self) -> Result<()> {
        let branch = self.branch()?;
        let before = branch.attempt.fork(branch.attempt.spec().clone())?;
        branch.past.push(before);
        Ok(())
    }

    pub(super) fn ready(&mut self) -> Result<()> {
        let branch = self.branch()?;
        if branch.failed {
            return Err(Error::new(Kind::Usage, "the trajectory has failed").hint(":undo undoes the step"));
        }
        if let Some(status) = branch.attempt.over() {
            return Err(Error::new(Kind::Usage, format!("the trajectory is over: {}", status.name()))
                .hint(":undo undoes the last step, :reset starts again"));
        }
        Ok(())
    }

    /// Replies `text`.
    pub(super) fn step(&mut self, text: &str) -> Result<()> {
        self.ready()?;
        let loaded = Rc::clone(&self.loaded);
        let stage = loaded.stage();
        let completion = rollout::typed(stage, self.attempt()?, text, FinishReason::Stop)?;
        self.act(completion, None)
    }

    /// Replies with a tool call.
    pub(super) fn call(&mut self, name: &str, arguments: Value) -> Result<()> {
        self.ready()?;
        let tools = self.attempt()?.state().tools();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        if !names.is_empty() && !names.contains(&name) {
            let hint = suggest(name, names);
            return Err(Error::new(Kind::Usage, format!("there is no tool `{name}`"))
                .hint(format!("{hint}; :step TEXT replies with any text")));
        }
        let call = ToolCall { id: None, name: name.to_owned(), arguments };
        let loaded = Rc::clone(&self.loaded);
        let stage = loaded.stage();
        let (completion, action) = rollout::typed_calls(stage, self.attempt()?, "", vec![call])?;
        self.act(completion, Some(action))
    }

    /// Replays the next reply of the stored trajectory.
    pub(super) fn recorded_step(&mut self) -> Result<()> {
        self.ready()?;
        let done = self.attempt()?.trajectory().steps.len();
        let Some(recorded) = &self.recorded else {
            return Err(Error::new(Kind::Usage, "`:step` needs a reply").hint("as in :step The answer is 42"));
        };
        let Some(step) = recorded.steps.get(done).cloned() else {
            return Err(Error::new(Kind::Usage, format!("the record ends after step {done}"))
                .hint(":step TEXT continues with your own reply"));
        };
        let (_, ids, _) = self.current_observation()?;
        if ids != step.prompt_ids {
            let text = format!("step {}: the prompt is not the recorded one (r1 replay shows how)", done + 1);
            self.terminal.item("warnings", &text, || json!(text))?;
        }
        self.act(rollout::completion(&step), None)
    }

    /// Samples replies of the model.
    pub(super) fn sample(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.ready()?;
            self.open_sampler()?;
            let request = self.on_attempt(async |stage, attempt| attempt.request(stage).await)?;
            let Some(request) = request.map_err(|stop| self.stopped(stop))? else { return Err(full()) };
            let completion = self.policy.reply(&self.loaded.script, request)?;
            self.act(completion, None)?;
            if self.attempt()?.over().is_some() || self.interrupt.is_set() {
                break;
            }
        }
        Ok(())
    }

    /// Opens the policy's model. If its tokens differ from those so far, the trajectory is replayed
    /// with them.
    fn open_sampler(&mut self) -> Result<()> {
        if self.tokens_of_policy {
            return Ok(());
        }
        let renderer = self.policy.renderer(&self.loaded.script)?;
        self.tokens_of_policy = true;
        if self.loaded.stands_in || (self.opening.model.is_some() && self.opening.agent.is_none()) {
            let loaded = Loaded::with(self.loaded.script.clone(), renderer, self.loaded.max_context)?;
            return self.replace(loaded);
        }
        Ok(())
    }

    pub(super) fn act(&mut self, completion: Completion, action: Option<Action>) -> Result<()> {
        let shown = self.observation()?;
        self.mark()?;
        let acted = self.on_attempt(async |stage, attempt| match action {
            Some(action) => attempt.take(stage, completion, action).await,
            None => attempt.act(stage, completion).await,
        });
        self.branch()?.failed = !matches!(acted, Ok(Ok(())));
        if self.terminal.aborted.get() {
            // The step was aborted at a breakpoint: the trajectory is unchanged.
            return self.undo(1).map(drop);
        }
        self.print_log()?;
        acted?.map_err(|stop| self.stopped(stop))?;
        self.show_step(&shown)
    }

    /// The outcome reward if the trajectory ended here.
    pub(super) fn outcome(&mut self) -> Result<Reward> {
        let outcome = self.on_attempt(async |stage, attempt| attempt.reward(stage).await)?;
        outcome.map_err(|failure| self.script_error(&failure))
    }

    /// The state as text before the last step and now.
    pub(super) fn states(&mut self) -> Result<(String, String)> {
        let console = self.console.clone();
        let branch = self.branch()?;
        let Some(before) = branch.past.last() else {
            return Err(Error::new(Kind::Usage, "no step has been made yet"));
        };
        let text = |attempt: &Attempt| console.show_state(attempt.state(), &ShowLimits::lines()).to_string() + "\n";
        Ok((text(before), text(&branch.attempt)))
    }

    /// Evaluates typed code; `:undo` reverts changes of the state.
    pub(super) fn eval(&mut self, text: &str) -> Result<()> {
        let snapshot =
            |session: &Self| session.branches.get(session.current).map(|b| b.attempt.state().snapshot().ok());
        let before = snapshot(self);
        let marked = before.is_some() && self.mark().is_ok();
        let console = self.console.clone();
        let done = self.policy.wait(&self.runtime, &self.loaded.script, console.listen(), console.eval(text));
        if marked {
            let changed = snapshot(self) != before;
            let branch = self.branch()?;
            if changed {
                branch.attempt.changed();
            } else {
                branch.past.pop();
            }
        }
        self.print_log()?;
        let values = done?.map_err(|failure| self.script_error(&failure))?;
        self.terminal.values(&values)
    }

    /// The arguments of a call: JSON, as models write them, or a Lua table.
    pub(super) fn arguments(&mut self, text: &str) -> Result<Value> {
        let arguments = self.table(text)?;
        if arguments.is_object() { Ok(arguments) } else { Err(not_a_table(format!("`{text}` names no arguments"))) }
    }

    /// A table, as JSON or as Lua.
    pub(super) fn table(&mut self, text: &str) -> Result<Value> {
        let odd = match serde_json::from_str(text) {
            Ok(table) => return Ok(table),
            Err(odd) => odd,
        };
        let console = self.console.clone();
        let data = self.policy.wait(&self.runtime, &self.loaded.script, console.listen(), console.data(text));
        let data = data.and_then(|data| data.map_err(|failure| self.script_error(&failure)));
        data.map_err(|error| not_a_table(format!("`{text}` is neither JSON ({odd}) nor Lua ({})", error.message)))
    }
}

pub(super) fn console(loaded: &Loaded, terminal: &Rc<Terminal>) -> Result<Console> {
    let console = loaded.worker.console()?;
    console.on_halt(halt::handler(terminal))?;
    console.give("task", &json!(null))?;
    terminal.complete_with(console.clone());
    Ok(console)
}

fn not_a_table(why: String) -> Error {
    Error::new(Kind::Usage, why).hint("as in {\"x\": 1} or { x = 1 }")
}

/// The error for a trajectory that ended with a full context.
fn full() -> Error {
    Error::new(Kind::Usage, "the trajectory is over: the next prompt leaves no room for a reply")
        .hint(":undo undoes the last step, :reset starts again")
}
