//! State shared by the host functions of one virtual machine: the running call, the log, the
//! renderer.
//!
//! Many calls of different trajectories wait at the same time on one thread. The call that is being
//! polled is the *current* one. Host functions read it when they start, so tool records and random
//! numbers belong to the right trajectory in any interleaving.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table};

use super::connections::DeclaredConnection;
use super::flow::Channel;
use super::grants::Grants;
use super::library;
use super::limits::WatchedVm;
use super::log::{Echo, LogLine, LogSink, LogStream};
use super::passages::SearchPart;
use super::record::{Record, RecordBranch};
use super::shared_calls::SharedCalls;
use super::state::ToolSession;
use crate::config::{DeviceChoice, Limits};
use crate::error::{Error, Kind, Result, clip};
use crate::mdp::ToolRecord;
use crate::schema::names;
use crate::script::runtime::definitions::{Cases, Recipe, RecipeFormat};
use crate::script::runtime::task_env::TaskEnv;
use crate::script::runtime::tool::Tool;
use crate::search::{NoModels, SearchModels};
use crate::text::Renderer;

/// Maximum characters of an error message; errors of scripts may have any length.
pub(crate) const MESSAGE: usize = 1000;

/// The message of a call that used up its CPU time.
pub(crate) const OUT_OF_TIME: &str = "the CPU limit was reached";

/// Lines kept between two calls of [`Host::take_log`]; older ones are dropped and counted.
const LOG_LINES: usize = 1000;

names! {
    /// The entry point of the script that is running; also selects its random stream.
    #[derive(Default)]
    pub(crate) enum EntryPoint {
        #[default]
        Load = "script",
        Row = "row",
        Reset = "reset",
        Observe = "context",
        Step = "step",
        Reward = "reward",
        Advantage = "advantage",
        /// `row_order` or `row_weight`.
        Curriculum = "curriculum",
        /// Code typed at the REPL.
        Console = "input",
        Test = "test",
        /// The recipe's policy loss, while it is traced.
        Loss = "loss",
        /// A function of a tool-call format.
        Format = "format",
        Privileged = "privileged",
        /// `close` of an environment, after the end of a trajectory.
        Close = "close",
    }
}

impl EntryPoint {
    /// Whether the call belongs to a trajectory, not to the script as a whole.
    pub(crate) fn is_of_trajectory(self) -> bool {
        matches!(self, Self::Reset | Self::Observe | Self::Step | Self::Reward | Self::Privileged | Self::Close)
    }
}

/// One call into the script.
#[derive(Default)]
pub(crate) struct Call {
    pub(crate) entry: EntryPoint,
    /// The seed of the trajectory (or dataset), and the step (or row).
    pub(crate) seed: (u64, u64),
    /// Records the external calls, or replays them.
    pub(crate) record: Record,
    /// The branch that is being polled.
    pub(crate) current_branch: RefCell<Rc<RecordBranch>>,
    /// Remaining CPU nanoseconds.
    pub(crate) cpu_left: Cell<u64>,
    pub(crate) cpu_hit: Cell<bool>,
    /// Memory limit of the VM while the call runs, in bytes; 0 before its first turn.
    pub(crate) room: Cell<usize>,
    /// Bytes that the call has added to the memory of the VM.
    pub(crate) held: Cell<isize>,
    /// Running calls of `r1.call_tools`, which can be nested.
    pub(crate) nested: Cell<usize>,
    /// Maximum bytes of one tool result.
    pub(crate) result: usize,
    /// Remaining log lines.
    lines: Cell<usize>,
    /// Whether the message about dropped log lines was written.
    cut: Cell<bool>,
    /// The call repeats an earlier run, whose lines were already logged.
    pub(crate) quiet: Cell<bool>,
    /// Tool calls and results, in order, without calls that a tool makes itself.
    pub(crate) tools: RefCell<Vec<ToolRecord>>,
    /// Tool calls of the response that were run so far, for `env.max_calls`.
    pub(crate) calls_run: Cell<usize>,
    /// The kind of the last external call that may wait; empty before the first.
    pub(crate) awaited: Cell<&'static str>,
    /// The error of the last undeclared external call.
    pub(crate) undeclared: RefCell<Option<Error>>,
    /// Stateful tools of the trajectory, if the call belongs to one.
    pub(crate) session: Option<Rc<ToolSession>>,
    /// The environment of the trajectory, if the call belongs to one.
    pub(crate) env: Option<Rc<TaskEnv>>,
    /// The channel of the flow that runs in the call.
    pub(crate) flow: RefCell<Option<Rc<Channel>>>,
}

/// The parts of a call that come from its trajectory.
pub(crate) struct TrajectoryContext {
    pub(crate) record: Record,
    pub(crate) session: Rc<ToolSession>,
    pub(crate) env: Rc<TaskEnv>,
}

impl Call {
    /// A call that belongs to no trajectory; its external calls are not recorded.
    pub(crate) fn new(entry: EntryPoint, seed: (u64, u64), limits: &Limits) -> Rc<Self> {
        Rc::new(Self::build(entry, seed, limits, Record::off()))
    }

    /// A call of typed code, whose requests to the policy `record` passes on.
    pub(crate) fn of_console(limits: &Limits, record: Record) -> Rc<Self> {
        Rc::new(Self::build(EntryPoint::Console, (0, 0), limits, record))
    }

    /// A call of a trajectory; its external calls are recorded.
    pub(crate) fn of_trajectory(
        entry: EntryPoint,
        seed: (u64, u64),
        limits: &Limits,
        of: TrajectoryContext,
    ) -> Rc<Self> {
        let TrajectoryContext { record, session, env } = of;
        Rc::new(Self { session: Some(session), env: Some(env), ..Self::build(entry, seed, limits, record) })
    }

    fn build(entry: EntryPoint, seed: (u64, u64), limits: &Limits, record: Record) -> Self {
        Self {
            entry,
            seed,
            record,
            current_branch: RefCell::new(RecordBranch::root(entry)),
            cpu_left: Cell::new((limits.cpu.max(0.0) * 1e9) as u64),
            result: limits.result.saturating_mul(1 << 10),
            lines: Cell::new(limits.log),
            ..Self::default()
        }
    }

    /// The name of the running function; `flow` replaces `reset` and `step`.
    pub(crate) fn function(&self) -> &'static str {
        let flow = || self.env.as_ref().is_some_and(|env| env.env.flow.is_some());
        match self.entry {
            EntryPoint::Reset | EntryPoint::Step if flow() => "flow",
            entry => entry.name(),
        }
    }

    /// 64 random bits from the call's own stream. The stream is a pure function of (seed, step,
    /// entry point, branch), so a step replays with the same numbers, independent of other calls.
    pub(crate) fn random(&self) -> u64 {
        self.current_branch.borrow().random(self.seed, self.entry)
    }

    /// `math.randomseed`: selects another stream of the same call.
    pub(crate) fn reseed(&self, seed: u64) {
        self.current_branch.borrow().reseed(seed);
    }
}

/// Functions over models, other scripts and runs, which a folder above this one adds to the virtual
/// machine of a program.
pub(crate) trait ProgramApi {
    /// Adds them to the table `r1`.
    fn install(&self, lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()>;

    /// The directory of the tokenizer and template of a path or name, which may be fetched.
    fn text_dir(&self, name: &str) -> Result<PathBuf>;

    fn search_models(&self) -> &'static dyn SearchModels;
}

pub(crate) struct Host {
    current: RefCell<Rc<Call>>,
    /// Counts tokens for context policies; `None` if only settings are read.
    pub(crate) renderer: Option<Arc<Renderer>>,
    /// The tools of all environments, and their schemas for the chat template.
    pub(crate) tools: RefCell<Vec<Rc<Tool>>>,
    pub(crate) schemas: RefCell<Arc<[serde_json::Value]>>,
    /// The formats that the script defines while it is loaded.
    pub(crate) formats: RefCell<Vec<Rc<RecipeFormat>>>,
    /// The indexes and re-ranking models that the script names.
    pub(crate) searches: RefCell<Vec<SearchPart>>,
    pub(crate) search_models: Cell<&'static dyn SearchModels>,
    /// The device of the policy, for its reward models.
    pub(crate) policy_device: Cell<DeviceChoice>,
    /// The programs that the script named for its connections; a run starts them before its first
    /// trajectory.
    pub(crate) connections: RefCell<Vec<Rc<DeclaredConnection>>>,
    /// Tool-call state shared with other virtual machines.
    pub(crate) shared: RefCell<Arc<SharedCalls>>,
    /// External access of the script.
    pub(crate) grants: RefCell<Grants>,
    /// Functions over models, scripts and runs; programs have them.
    pub(crate) programs: Option<Rc<dyn ProgramApi>>,
    /// Receives log lines immediately; without it they are kept for [`Host::take_log`].
    echo: Option<Echo>,
    /// Receives the log lines of a run, instead of [`Host::take_log`].
    sink: RefCell<LogSink>,
    log: RefCell<VecDeque<LogLine>>,
    dropped: Cell<u64>,
    /// The recipe of a program that is loaded as a recipe, up to the start of training.
    pub(crate) recipe: RefCell<Option<Recipe>>,
    /// The tests of a test file.
    pub(crate) cases: Option<RefCell<Cases>>,
    /// The parameters of the script (`r1.params`).
    pub(crate) params: RefCell<Params>,
}

/// Parameters of a script: values that it takes from the command line.
#[derive(Default)]
pub(crate) struct Params {
    /// The values of the command line, by name.
    pub(crate) values: serde_json::Map<String, serde_json::Value>,
    /// The defaults; `None` before `r1.params` is called.
    pub(crate) declared: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Host {
    pub(crate) fn new(renderer: Option<Arc<Renderer>>) -> Rc<Self> {
        Rc::new(Self::build(renderer, None, None))
    }

    /// For a program: output is printed immediately, and models are available.
    pub(crate) fn for_program(programs: Option<Rc<dyn ProgramApi>>, echo: Echo) -> Rc<Self> {
        Rc::new(Self::build(None, programs, Some(echo)))
    }

    /// For a test file.
    pub(crate) fn for_suite(programs: Option<Rc<dyn ProgramApi>>, echo: Echo) -> Rc<Self> {
        Rc::new(Self { cases: Some(RefCell::default()), ..Self::build(None, programs, Some(echo)) })
    }

    fn build(renderer: Option<Arc<Renderer>>, programs: Option<Rc<dyn ProgramApi>>, echo: Option<Echo>) -> Self {
        let load = Call::new(EntryPoint::Load, (0, 0), &Limits::default());
        Self {
            current: RefCell::new(load),
            renderer,
            tools: RefCell::default(),
            schemas: RefCell::new(Arc::new([])),
            formats: RefCell::default(),
            searches: RefCell::default(),
            search_models: Cell::new(programs.as_ref().map_or(&NoModels, |programs| programs.search_models())),
            policy_device: Cell::new(DeviceChoice::Auto),
            connections: RefCell::default(),
            shared: RefCell::default(),
            grants: RefCell::new(if echo.is_some() {
                Grants::Everything
            } else {
                // Nothing is loaded yet; `load::run` sets the directory.
                Grants::Loading { directory: PathBuf::new() }
            }),
            programs,
            recipe: RefCell::default(),
            echo,
            sink: RefCell::default(),
            log: RefCell::default(),
            dropped: Cell::new(0),
            cases: None,
            params: RefCell::default(),
        }
    }

    pub(crate) fn current(&self) -> Rc<Call> {
        self.current.borrow().clone()
    }

    /// The tools of the running call: its task's, or all tools.
    pub(crate) fn tools(&self) -> Vec<Rc<Tool>> {
        self.current.borrow().env.as_ref().map_or_else(|| self.tools.borrow().clone(), |env| env.tools.clone())
    }

    /// The schemas of [`Host::tools`].
    pub(crate) fn schemas(&self) -> Arc<[serde_json::Value]> {
        let call = self.current.borrow();
        call.env.as_ref().map_or_else(|| self.schemas.borrow().clone(), |env| env.schemas.clone())
    }

    /// The renderer of the running call's environment.
    pub(crate) fn renderer(&self) -> Option<Arc<Renderer>> {
        let call = self.current.borrow();
        let env_renderer = call.env.as_ref().and_then(|env| env.env.renderer.clone());
        env_renderer.or_else(|| self.renderer.clone())
    }

    /// Makes `call` the current one; returns the previous one.
    pub(crate) fn swap(&self, call: Rc<Call>) -> Rc<Call> {
        self.current.replace(call)
    }

    /// Writes a line that a program prints.
    pub(crate) fn print_line(&self, line: &LogLine, stream: LogStream) {
        if let Some(echo) = &self.echo {
            echo(line, stream);
        }
    }

    pub(crate) fn log(&self, location: String, text: String) {
        let call = self.current();
        if call.quiet.get() {
            return;
        }
        let line = |location: String, text: String| {
            let (trajectory, steps) =
                if call.entry.is_of_trajectory() { (call.record.name(), call.seed.1) } else { (String::new(), 0) };
            LogLine { place: location, text, function: call.function().into(), trajectory, steps }
        };
        if let Some(echo) = &self.echo {
            return echo(&line(location, text), LogStream::Log);
        }
        let sink = self.sink.borrow().clone();
        let Some(left) = call.lines.get().checked_sub(1) else {
            return match sink.receiver() {
                None => self.dropped.set(self.dropped.get() + 1),
                Some(receive) if !call.cut.replace(true) => {
                    let text = "further lines of this call are dropped: limits.log is reached";
                    receive(&line(location, text.to_owned()));
                }
                Some(_) => {}
            };
        };
        call.lines.set(left);
        if let Some(receive) = sink.receiver() {
            return receive(&line(location, text));
        }
        let mut log = self.log.borrow_mut();
        if log.len() == LOG_LINES {
            log.pop_front();
            self.dropped.set(self.dropped.get() + 1);
        }
        log.push_back(line(location, text));
    }

    /// Sends further lines to `sink`; earlier lines are dropped.
    pub(crate) fn listen(&self, sink: LogSink) {
        if sink.receiver().is_some() {
            self.log.borrow_mut().clear();
            self.sink.replace(sink);
        }
    }

    /// The lines logged since the last call; the first reports how many were dropped, if any.
    pub(crate) fn take_log(&self) -> Vec<LogLine> {
        let dropped = self.dropped.replace(0);
        let lost = (dropped > 0).then(|| LogLine {
            text: format!("{dropped} lines were dropped: the script logs too much"),
            ..LogLine::default()
        });
        lost.into_iter().chain(self.log.borrow_mut().drain(..)).collect()
    }
}

/// The nearest frame of a script file, as `path:line`.
pub(crate) fn place(lua: &Lua) -> Option<String> {
    places(lua).next()
}

/// The nearest frame of a file of the recipe itself, if a module of the library declares something
/// for it.
pub(crate) fn place_of_recipe(lua: &Lua) -> Option<String> {
    places(lua).find(|location| !library::has_prefix(location)).or_else(|| place(lua))
}

/// The frames of script files, nearest first.
fn places(lua: &Lua) -> impl Iterator<Item = String> {
    // A level past the end gives None; sources of host frames do not start with `@`.
    (0..64)
        .map_while(|level| {
            lua.inspect_stack(level, |frame| {
                let source = frame.source().source?.strip_prefix('@')?.to_owned();
                Some(format!("{source}:{}", frame.current_line()?))
            })
        })
        .flatten()
}

/// The error for a misuse of a host function, at the calling line.
pub(crate) fn misuse(lua: &Lua, message: impl Into<String>) -> Error {
    Error { place: place(lua), ..Error::new(Kind::Script, clip(&message.into(), MESSAGE)) }
}

/// Ends the call's turn and returns the error for the CPU limit.
pub(crate) fn out_of_time(lua: &Lua) -> mlua::Error {
    if let Some(slot) = lua.app_data_ref::<Arc<WatchedVm>>() {
        slot.expire();
    }
    mlua::Error::external(misuse(lua, OUT_OF_TIME))
}
