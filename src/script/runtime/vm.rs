//! One Luau virtual machine: sandbox, limits, calls and results.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mlua::{FromLua, FromLuaMulti, Function, IntoLuaMulti, Lua, StdLib, Table, Value, VmState};

use super::bind::in_lua;
use super::convert::{list_metatable, show};
use super::failure::{Failure, describe, is_memory};
use super::host::{Call, EntryPoint, Host, out_of_time};
use super::limits::{CallTurn, WatchedVm};
use super::place::{at_function, definition};
use super::require::Loader;
use super::results::{self, ReaderReturns};
use super::sandbox;
use super::size::Size;
use super::sources::SourceOrigin;
use super::state::StateBytes;
use super::suspended::Suspended;
use super::texts::Texts;
use crate::config::Limits;
use crate::error::{Error, Kind, Result, clip};
use crate::mdp::Status;

/// CPU seconds for loading a script; its own limits are not known yet.
const LOAD_CPU: f64 = if cfg!(test) { 0.1 } else { 5.0 };

pub(crate) struct Vm {
    pub(crate) lua: Lua,
    pub(crate) host: Rc<Host>,
    pub(crate) limits: Limits,
    slot: Arc<WatchedVm>,
    pub(crate) environment: Table,
    /// The functions of `lua/measure.lua`.
    entries: Table,
    /// The functions of `lua/results.lua`.
    results: Table,
    /// The places where the functions inside measured wrappers are defined.
    origins: RefCell<BTreeMap<usize, String>>,
    /// Bytes in use after the last full collection of [`Vm::needs_replacement`].
    collected: Cell<usize>,
    pub(crate) loader: Rc<RefCell<Loader>>,
}

impl Vm {
    /// A virtual machine; `install` adds the global `r1` (`api::vm`, `api::program_vm`).
    pub(crate) fn new(
        limits: Limits,
        sources: SourceOrigin,
        host: Rc<Host>,
        install: impl Fn(&Lua, &Table, &Rc<Host>, &Rc<RefCell<Loader>>) -> mlua::Result<()>,
    ) -> Result<Self> {
        let slot = WatchedVm::register()?;
        let loader = Rc::new(RefCell::new(Loader::new(sources)));
        let build = || -> mlua::Result<(Lua, [Table; 3])> {
            let lua = Lua::new_with(StdLib::ALL_SAFE, mlua::LuaOptions::default())?;
            lua.set_app_data(limits.clone());
            lua.set_app_data(StateBytes::default());
            // Names of locals, for breakpoints and the REPL.
            lua.set_compiler(mlua::chunk::Compiler::new().set_debug_level(2));
            let environment = sandbox::environment(&lua, &host, &loader)?;
            install(&lua, &environment, &host, &loader)?;
            let arguments = (Value::NULL, list_metatable(&lua)?);
            let entries = lua.load(include_str!("../../../lua/measure.lua")).set_name("=[r1]").call(arguments)?;
            let show = lua.create_function(|_, value: Value| Ok(show(&value)))?;
            let results = in_lua(&lua, include_str!("../../../lua/results.lua"), show)?;
            sandbox::seal(&lua, &environment)?;
            lua.set_app_data(Texts::default());
            lua.set_app_data(slot.clone());
            lua.set_memory_limit(limits.memory.max(1) << 20)?;
            let watched = slot.clone();
            lua.set_interrupt(move |lua| {
                if watched.expired() {
                    return Err(out_of_time(lua));
                }
                Ok(VmState::Continue)
            });
            Ok((lua, [environment, entries, results]))
        };
        let (lua, [environment, entries, results]) =
            build().map_err(|error| Error::new(Kind::Internal, format!("can't start a script VM: {error}")))?;
        Ok(Self {
            lua,
            host,
            limits,
            slot,
            environment,
            entries,
            results,
            origins: RefCell::default(),
            collected: Cell::new(0),
            loader,
        })
    }

    /// Runs the main file and returns its result.
    pub(crate) fn load(&self, path: &Path, source: &str) -> Result<Value> {
        let call = Call::new(EntryPoint::Load, (0, 0), &Limits { cpu: LOAD_CPU, ..self.limits.clone() });
        let result = self.compile(path, source).and_then(|function| self.call_now(&call, &function, ()));
        self.loader.borrow_mut().close();
        result.map_err(|failure| failure.error.at_path(path))
    }

    /// Compiles the main file to a function.
    pub(crate) fn compile(&self, path: &Path, source: &str) -> Result<Function, Failure> {
        let chunk = self.lua.load(source).set_name(format!("@{}", path.display()));
        let function = chunk.set_mode(mlua::chunk::ChunkMode::Text).into_function();
        if let Some(mut texts) = self.lua.app_data_mut::<Texts>() {
            let path = path.display().to_string();
            texts.texts.insert(path.clone(), source.to_owned());
            texts.chunks.extend(function.as_ref().ok().map(|function| (path, function.clone())));
        }
        function.map_err(|error| describe(&error).error.into())
    }

    /// The text of the line at `path:line`, if it belongs to the script.
    pub(crate) fn line(&self, location: &str) -> Option<String> {
        let texts = self.lua.app_data_ref::<Texts>()?;
        let (path, number) = location.rsplit_once(':')?;
        let line = texts.texts.get(path)?.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
        Some(clip(line, 200)).filter(|line| !line.trim().is_empty())
    }

    /// Calls a function of the script that must not wait.
    pub(crate) fn call_now<R: FromLuaMulti>(
        &self,
        call: &Rc<Call>,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, Failure> {
        let result = {
            let _running = self.enter(call);
            function.call::<R>(args)
        };
        self.finish(call, function, result)
    }

    /// Calls a function of the script; it may wait for tools without blocking other calls.
    pub(crate) async fn call<R: FromLuaMulti + 'static>(
        &self,
        call: &Rc<Call>,
        function: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<R, Failure> {
        let mut future = Suspended::outermost(&self.lua, function, args);
        let left = || Error::new(Kind::Internal, "a call was left before its end").into();
        self.run_until(call, function, &mut future, || false).await?.ok_or_else(left)
    }

    /// Runs a started call of `function` until it ends, or until it waits and `paused` holds
    /// (`None`). It is dropped on failure.
    pub(crate) async fn run_until<R: FromLuaMulti + 'static>(
        &self,
        call: &Rc<Call>,
        function: &Function,
        future: &mut Suspended<R>,
        paused: impl Fn() -> bool,
    ) -> Result<Option<R>, Failure> {
        let limited = poll_fn(|cx| {
            let polled = {
                let _running = self.enter(call);
                Pin::new(&mut *future).poll(cx)
            };
            // Memory that a waiting call holds is not available to the others.
            if polled.is_pending() && self.holds_too_much(call) {
                return Poll::Ready(Err(mlua::Error::MemoryError("not enough memory".to_owned())));
            }
            match polled {
                Poll::Ready(result) => Poll::Ready(result.map(Some)),
                Poll::Pending if paused() => Poll::Ready(Ok(None)),
                Poll::Pending => Poll::Pending,
            }
        });
        let wait = Duration::try_from_secs_f64(self.limits.wait).unwrap_or(Duration::MAX);
        let result = call.within(wait, limited).await;
        if !matches!(result, Some(Ok(_))) {
            // Dropping the call releases its memory for the collector.
            future.end();
        }
        let Some(result) = result else {
            self.collect_garbage();
            let name = call.function();
            let what = match call.awaited.get() {
                "" | "tool" => "a tool",
                "generate" => "r1.generate",
                "http" => "r1.http",
                "process" => "r1.process.run",
                "reward_model" => "r1.reward_model",
                "logprobs" => "r1.logprobs",
                "search" | "index" => "a search",
                "sleep" => "r1.sleep",
                other => other,
            };
            let message = format!("{name} waited for {what} longer than limits.wait = {} s", self.limits.wait);
            let error = Error { place: self.origin(function), ..Error::new(Kind::Script, message) };
            let error = error.about_setting("limits.wait").hint(
                "raise limits.wait, which is the time of all waits of one call, or make them shorter: a `timeout`, fewer \
                 tokens, fewer calls",
            );
            return Err(Failure::new(Status::ToolTimeout, error));
        };
        self.finish(call, function, result)
    }

    /// `name` of `lua/measure.lua` around a function of the script; the wrapper also returns the
    /// size of its data.
    pub(crate) fn measured(&self, name: &str, function: &Function) -> Result<Function> {
        let limit = if name == "context" { self.limits.text } else { self.limits.trajectory } << 20;
        let make = || self.entries.raw_get::<Function>(name)?.call((function, limit));
        let measured: Function =
            make().map_err(|error: mlua::Error| Error::new(Kind::Internal, format!("lua/measure.lua: {error}")))?;
        if let Some(location) = definition(function) {
            self.origins.borrow_mut().insert(measured.to_pointer() as usize, location);
        }
        Ok(measured)
    }

    /// The default `reset` and `step`, from `lua/env.lua`.
    pub(crate) fn defaults(&self, system: &str) -> mlua::Result<(Function, Function)> {
        let r1: Table = self.environment.raw_get("r1")?;
        let get = |name: &str| r1.raw_get::<Function>(name);
        let functions: Table = self.lua.load(include_str!("../../../lua/env.lua")).set_name("=[r1]").call((
            get("call_tools")?,
            get("push")?,
            get("assistant")?,
            get("observation")?,
            system,
        ))?;
        Ok((functions.raw_get("reset")?, functions.raw_get("step")?))
    }

    /// The line where a called function of the script is defined, measured or not.
    fn origin(&self, function: &Function) -> Option<String> {
        self.origins.borrow().get(&(function.to_pointer() as usize)).cloned().or_else(|| definition(function))
    }

    /// Measures a table, which may have at most `limit` bytes.
    pub(crate) fn size(&self, call: &Rc<Call>, table: &Table, limit: usize) -> Result<Size, Failure> {
        let size: Function = self.entries.raw_get("size").map_err(|error| describe(&error).error)?;
        self.call_now(call, &size, (table, limit))
    }

    /// Reads what `function` of the script returned as the result of `name`: `step`, `flow` or
    /// `reward`. No code of the script runs, and the fields that are read are bounded, so that the
    /// limits of a call are not needed.
    pub(crate) fn read_result<T: FromLua>(
        &self,
        (name, function): (&str, &Function),
        value: &Value,
    ) -> Result<T, Failure> {
        let read = || self.results.raw_get::<Function>(name)?.call::<ReaderReturns<T>>(value);
        let returned = read().map_err(|error| describe(&error).error)?;
        results::read(name, returned).map_err(|error| at_function(function, error).into())
    }

    /// Whether more than a quarter of the memory limit is in use, not counting the states of
    /// trajectories, after a full collection: tables that functions of the script keep. Such a
    /// machine should finish its trajectories and start no more.
    pub(crate) fn needs_replacement(&self) -> bool {
        let limit = self.memory_limit();
        // Collecting takes time, so it is repeated only if memory use has grown.
        if self.lua.used_memory() < limit / 4 || self.lua.used_memory() < self.collected.get() + limit / 16 {
            return false;
        }
        let _ = self.lua.gc_collect();
        let used = self.lua.used_memory();
        self.collected.set(used);
        let states = self.lua.app_data_ref::<StateBytes>().map_or(0, |all| all.0.get());
        used.saturating_sub(states * 2) > limit / 4
    }

    fn memory_limit(&self) -> usize {
        self.limits.memory.max(1) << 20
    }

    fn enter<'a>(&'a self, call: &'a Rc<Call>) -> CurrentCall<'a> {
        let before = self.host.swap(call.clone());
        let used = self.lua.used_memory();
        let mut room = self.memory_limit();
        if call.entry.is_of_trajectory() {
            // Uncollected garbage counts as used and may be up to twice the live memory.
            room = room.min(used * 3 + (self.limits.trajectory.max(1) << 20));
        }
        call.room.set(room);
        // Fails only without an allocator of mlua, which every virtual machine here has.
        let _ = self.lua.set_memory_limit(room);
        CurrentCall { vm: self, call, before: Some(before), used, turn: self.slot.arm(call.cpu_left.get()) }
    }

    /// Whether a waiting call holds more than its trajectory may.
    fn holds_too_much(&self, call: &Call) -> bool {
        let limit = isize::try_from(self.limits.trajectory << 20).unwrap_or(isize::MAX);
        if !call.entry.is_of_trajectory() || call.held.get() <= limit {
            return false;
        }
        let before = self.lua.used_memory();
        let _ = self.lua.gc_collect();
        let freed = before.saturating_sub(self.lua.used_memory());
        call.held.set(call.held.get() - freed as isize);
        call.held.get() > limit
    }

    fn finish<R>(&self, call: &Call, function: &Function, result: mlua::Result<R>) -> Result<R, Failure> {
        let entry = call.function();
        if call.cpu_hit.get() {
            self.collect_garbage();
            let (seconds, name, hint) = match call.entry {
                EntryPoint::Load => (LOAD_CPU, "loading", "is there an endless loop?"),
                _ => (self.limits.cpu, entry, "is there an endless loop? limits.cpu sets the limit"),
            };
            let stopped = result.err().map(|error| describe(&error));
            let (location, traceback) = stopped.map(|it| (it.error.place, it.traceback)).unwrap_or_default();
            let message = format!("{name} used more than {seconds} s of CPU time");
            let mut error = Error::new(Kind::Script, message).hint(hint);
            if !matches!(call.entry, EntryPoint::Load) {
                error = error.about_setting("limits.cpu");
            }
            error.place = location.or_else(|| self.origin(function));
            return Err(Failure { traceback, ..Failure::new(Status::ScriptLimit, error) });
        }
        let undeclared = call.undeclared.take();
        match result {
            Ok(value) => self.check_memory(entry).map(|()| value),
            Err(error) => {
                let Failure { error: mut described, traceback, .. } = describe(&error);
                let line = described.place.as_deref().and_then(|location| self.line(location));
                if let Some(hint) = line.and_then(|line| super::language_hints::of_line(&described.message, &line)) {
                    described = described.hint(hint);
                }
                if is_memory(&error) {
                    // Collects the failed call's memory now, so that other trajectories can
                    // continue.
                    let _ = self.lua.gc_collect();
                    let is_trajectory_limit = call.entry.is_of_trajectory() && call.room.get() < self.memory_limit();
                    let mut error = if is_trajectory_limit {
                        self.over_trajectory(&format!("{entry} needs more memory"))
                    } else {
                        self.memory_error(entry)
                    };
                    error.place = described.place.or_else(|| self.origin(function));
                    return Err(Failure { traceback, ..Failure::new(Status::ScriptLimit, error) });
                }
                let lasting = undeclared.is_some_and(|error| error.message == described.message);
                Err(Failure { lasting, traceback, ..Failure::new(Status::EnvError, described) })
            }
        }
    }

    /// Collects the memory of a stopped call if the limit is near; otherwise the next call would
    /// fail.
    fn collect_garbage(&self) {
        let limit = self.memory_limit();
        if self.lua.used_memory() > limit / 2 {
            let _ = self.lua.gc_collect();
        }
    }

    /// A script may catch the error of a refused allocation with `pcall`; memory use is checked
    /// again here.
    fn check_memory(&self, entry: &str) -> Result<(), Failure> {
        let limit = self.memory_limit();
        let nearly = limit - limit / 10;
        if self.lua.used_memory() < nearly {
            return Ok(());
        }
        let _ = self.lua.gc_collect();
        if self.lua.used_memory() < nearly {
            return Ok(());
        }
        Err(Failure::new(Status::ScriptLimit, self.memory_error(entry)))
    }

    /// The error for a trajectory that exceeds limits.trajectory; `what` is such as "step needs
    /// more memory".
    pub(crate) fn over_trajectory(&self, what: &str) -> Error {
        let limit = self.limits.trajectory;
        Error::new(Kind::Script, format!("{what} than limits.trajectory = {limit} MiB"))
            .about_setting("limits.trajectory")
            .hint("the limit is for one trajectory: its state, and what a call adds to the worker's memory")
    }

    fn memory_error(&self, entry: &str) -> Error {
        Error::new(Kind::Script, format!("{entry} needs more memory than limits.memory = {} MiB", self.limits.memory))
            .hint("the limit is for one script worker with all its trajectories")
    }
}

/// A call that is on the thread right now.
struct CurrentCall<'a> {
    vm: &'a Vm,
    call: &'a Call,
    before: Option<Rc<Call>>,
    /// Bytes in use before the call.
    used: usize,
    turn: CallTurn,
}

impl Drop for CurrentCall<'_> {
    fn drop(&mut self) {
        let (used, hit) = self.vm.slot.disarm(&self.turn);
        self.call.cpu_left.set(self.call.cpu_left.get().saturating_sub(used));
        self.call.cpu_hit.set(self.call.cpu_hit.get() || hit);
        self.call.held.set(self.call.held.get() + self.vm.lua.used_memory() as isize - self.used as isize);
        if let Some(before) = self.before.take() {
            self.vm.host.swap(before);
        }
    }
}
