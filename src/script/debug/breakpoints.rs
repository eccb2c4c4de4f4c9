//! Breakpoints and traces by line, based on Luau's own.
//!
//! Luau replaces the first instruction of a line by a break and calls a hook there. `mlua` has no
//! safe API for this, so this file contains the few raw calls. The hook only collects the locals
//! and calls a Lua callback, which is safe code again. Stepping sets a breakpoint on every line.
//!
//! Not supported: breakpoints inside host functions, and changing a local of the stopped code.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value, ffi};

use super::{Console, places, vm_failed};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::bind::bind;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::misuse;
use crate::script::runtime::show::{ShowLimits, Shown};
use crate::script::runtime::texts::Texts;

/// Registry key of the callback.
const CALLBACK: &str = "r1.halt";
const CALLBACK_C: &std::ffi::CStr = c"r1.halt";

/// A breakpoint or a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// `scripts/retool.lua`
    pub path: String,
    pub line: usize,
    /// Print the locals and continue.
    pub trace: bool,
}

impl std::fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path, self.line)
    }
}

/// The way to continue after a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterHalt {
    /// To the next breakpoint.
    Continue,
    /// To the next line of the same function, or of its caller after a return.
    Next,
    /// To the next line executed.
    Into,
    /// To the caller.
    Out,
    /// End the call with an error.
    Abort,
}

/// Code that is stopped or traced.
pub struct Halt<'a> {
    /// `scripts/retool.lua:12`
    pub place: String,
    /// The source line.
    pub source: String,
    pub trace: bool,
    /// The script's frames, innermost first: place and function.
    pub frames: Vec<String>,
    locals: Table,
    lua: &'a Lua,
    console: &'a Console,
}

/// Receives halts and returns how to continue.
pub type OnHalt = Box<dyn Fn(&Halt<'_>) -> AfterHalt>;

impl Halt<'_> {
    /// The locals and upvalues of the function.
    pub fn locals(&self, layout: &ShowLimits) -> Vec<(String, Shown)> {
        let mut all = BTreeMap::new();
        // The iteration cannot fail, since the closure does not.
        let _ = self.locals.for_each(|name: String, value: Value| {
            all.insert(name, Shown::of(&or_nil(value), layout));
            Ok(())
        });
        all.into_iter().collect()
    }

    /// Evaluates code with access to the locals. It cannot wait for tools.
    pub fn eval(&self, text: &str) -> Result<Vec<Shown>, Failure> {
        let run = || -> mlua::Result<Vec<Shown>> {
            let environment = self.lua.create_table()?;
            let meta = self.lua.create_table()?;
            let (locals, outside) = (self.locals.clone(), self.console.environment.clone());
            bind(self.lua, &meta, "__index", move |_, (_, name): (Value, Value)| {
                let local: Value = locals.raw_get(name.clone())?;
                if local.is_nil() { outside.get(name) } else { Ok(or_nil(local)) }
            })?;
            let outside = self.console.environment.clone();
            let locals = self.locals.clone();
            bind(self.lua, &meta, "__newindex", move |lua, (_, name, value): (Value, Value, Value)| {
                if locals.contains_key(name.clone())? {
                    let error = misuse(lua, format!("the local `{}` can't be changed from here", name.to_string()?));
                    return Err(mlua::Error::external(error.hint("fields of tables can; other names make variables")));
                }
                outside.set(name, value)
            })?;
            environment.set_metatable(Some(meta))?;
            let chunk = |source: &str| {
                self.lua.load(source).set_name("@input").set_environment(environment.clone()).into_function()
            };
            let function = chunk(&format!("return {text}")).or_else(|_| chunk(&super::as_session_variable(text)))?;
            let values: mlua::MultiValue = function.call(())?;
            Ok(values.iter().map(Shown::typed).collect())
        };
        run().map_err(|error| vm_failed(&error).into())
    }
}

impl Console {
    /// The breakpoints and traces, in the order in which they were set.
    pub fn breakpoints(&self) -> Vec<Breakpoint> {
        self.stops.borrow().clone()
    }

    /// Stops (or traces) at `location`: a line (`12`), a line of a file (`lib/problems.lua:12`), or
    /// a function by name. A function is stopped at its first line, and traced at each of its
    /// lines.
    ///
    /// # Errors
    /// [`Kind::Usage`] if there is no such place.
    pub fn set_breakpoint(&self, location: &str, trace: bool) -> Result<Vec<Breakpoint>> {
        let (path, first, last) = self.place(location)?;
        let wanted = if trace { first..=last } else { first..=first };
        let mut new: Vec<Breakpoint> = Vec::new();
        for line in wanted {
            let line = self.patch(&path, line, true)?;
            let beyond = line > last && last > first;
            if line > 0 && !beyond && !new.iter().any(|breakpoint| breakpoint.line == line) {
                new.push(Breakpoint { path: path.clone(), line, trace });
            }
        }
        if new.is_empty() {
            return Err(Error::new(Kind::Usage, format!("there is no code at {path}:{first} or after it")));
        }
        let mut stops = self.stops.borrow_mut();
        stops.retain(|old| !new.iter().any(|new| (&new.path, new.line) == (&old.path, old.line)));
        stops.extend(new.iter().cloned());
        Ok(new)
    }

    /// Removes the breakpoints of a place, or all; returns their number.
    pub fn clear_breakpoints(&self, location: Option<&str>) -> Result<usize> {
        let gone = match location {
            None => self.stops.take(),
            Some(location) => {
                let (path, first, last) = self.place(location)?;
                let mut stops = self.stops.borrow_mut();
                let here = |stop: &Breakpoint| stop.path == path && (first..=last).contains(&stop.line);
                let gone = stops.iter().filter(|stop| here(stop)).cloned().collect();
                stops.retain(|stop| !here(stop));
                gone
            }
        };
        for stop in &gone {
            self.patch(&stop.path, stop.line, false)?;
        }
        Ok(gone.len())
    }

    fn place(&self, location: &str) -> Result<(String, usize, usize)> {
        let main = self.main().ok_or_else(|| Error::new(Kind::Usage, "there is no script to stop in"))?;
        places::resolve(location, &main, &self.texts())
    }

    fn texts(&self) -> BTreeMap<String, String> {
        let texts = self.vm.lua.app_data_ref::<Texts>();
        let texts = texts.map(|texts| texts.texts.clone()).unwrap_or_default();
        texts.into_iter().filter(|(path, _)| path != super::CHUNK).collect()
    }

    /// The path of the script itself.
    fn main(&self) -> Option<String> {
        self.vm.lua.app_data_ref::<Texts>()?.chunks.first().map(|(path, _)| path.clone())
    }

    /// Sets or clears a break at a line; returns the line with code, 0 for none.
    fn patch(&self, path: &str, line: usize, on: bool) -> Result<usize> {
        let chunk = self.vm.lua.app_data_ref::<Texts>().and_then(|texts| {
            texts.chunks.iter().find(|(chunk_path, _)| chunk_path == path).map(|(_, chunk)| chunk.clone())
        });
        let Some(chunk) = chunk else {
            return Err(Error::new(Kind::Usage, format!("{path} is not a file of the script")));
        };
        let at = patch(&self.vm.lua, &chunk, line, on).map_err(|error| vm_failed(&error))?;
        Ok(usize::try_from(at).unwrap_or(0))
    }

    /// Sets the receiver of halts. Without one, breakpoints are ignored.
    pub fn on_halt(&self, handle: OnHalt) -> Result<()> {
        let mut console = self.clone();
        // A weak reference, to avoid a cycle with the callback.
        console.stops = Rc::default();
        let stops = Rc::downgrade(&self.stops);
        let mode = Stepping::default();
        let hook = move |lua: &Lua, (line, depth, thread, locals): (usize, usize, f64, Table)| {
            let Some(stops) = stops.upgrade().filter(|_| !mode.busy.get()) else { return Ok(()) };
            let Some((path, frames)) = frames(lua) else { return Ok(()) };
            let set = stops.borrow().iter().find(|stop| stop.path == path && stop.line == line).cloned();
            let here = Spot { path, line, depth, thread };
            let stepped = mode.stops(&here);
            if set.is_none() && !stepped {
                return Ok(());
            }
            let source = source_line(lua, &here.path, line);
            let trace = !stepped && set.is_some_and(|set| set.trace);
            let location = format!("{}:{line}", here.path);
            let halt = Halt { place: location, source, trace, frames, locals, lua, console: &console };
            mode.busy.set(true);
            let resume = handle(&halt);
            mode.busy.set(false);
            if trace && resume != AfterHalt::Abort {
                return Ok(());
            }
            mode.go_on(resume, here);
            console.every_line(&stops.borrow(), resume != AfterHalt::Continue && resume != AfterHalt::Abort);
            if resume == AfterHalt::Abort {
                return Err(mlua::Error::external(Error::new(Kind::Interrupted, "stopped at a breakpoint")));
            }
            Ok(())
        };
        let lua = &self.vm.lua;
        let built = lua
            .create_function(move |lua, arguments| hook(lua, arguments))
            .and_then(|callback| lua.set_named_registry_value(CALLBACK, callback))
            .and_then(|()| set_hook(lua));
        built.map_err(|error| vm_failed(&error))
    }

    /// Breaks on every line of every file, or only at breakpoints.
    fn every_line(&self, stops: &[Breakpoint], on: bool) {
        let chunks = self.vm.lua.app_data_ref::<Texts>().map(|texts| texts.chunks.clone()).unwrap_or_default();
        let texts = self.texts();
        for (path, chunk) in chunks {
            let lines = texts.get(&path).map_or(0, |text| text.lines().count());
            for line in 1..=lines {
                let keep = on || stops.iter().any(|stop| stop.path == path && stop.line == line);
                // For a line without code, `patch` returns the next line with code, which is
                // handled itself.
                let _ = patch(&self.vm.lua, &chunk, line, keep);
            }
        }
    }
}

/// The position of running code.
struct Spot {
    path: String,
    line: usize,
    /// Number of frames below it, in its thread.
    depth: usize,
    thread: f64,
}

/// State of stepping.
#[derive(Default)]
struct Stepping {
    /// A halt is being handled; code that runs during it is not stopped.
    busy: Cell<bool>,
    from: RefCell<Option<(AfterHalt, Spot)>>,
}

impl Stepping {
    fn go_on(&self, resume: AfterHalt, from: Spot) {
        let steps = matches!(resume, AfterHalt::Next | AfterHalt::Into | AfterHalt::Out);
        self.from.replace(steps.then_some((resume, from)));
    }

    fn stops(&self, here: &Spot) -> bool {
        let from = self.from.borrow();
        let Some((resume, from)) = &*from else { return false };
        let same_thread = (here.thread - from.thread).abs() < 0.5;
        let same_line = here.line == from.line && here.path == from.path;
        match resume {
            AfterHalt::Into => !same_line || here.depth != from.depth,
            AfterHalt::Next => same_thread && (here.depth < from.depth || (here.depth == from.depth && !same_line)),
            AfterHalt::Out => same_thread && here.depth < from.depth,
            AfterHalt::Continue | AfterHalt::Abort => false,
        }
    }
}

/// The path of the stopped code, and the script's frames. Level 0 is the callback itself.
fn frames(lua: &Lua) -> Option<(String, Vec<String>)> {
    let mut path = None;
    let frames = (1..64)
        .map_while(|level| {
            lua.inspect_stack(level, |frame| {
                let source = frame.source().source?.strip_prefix('@')?.to_owned();
                let name = frame.names().name.map(|name| format!(" in {name}")).unwrap_or_default();
                let shown = format!("{source}:{}{name}", frame.current_line()?);
                Some((source, shown))
            })
        })
        .flatten()
        .map(|(source, shown)| {
            path.get_or_insert(source);
            shown
        })
        .collect();
    Some((path?, frames))
}

fn source_line(lua: &Lua, path: &str, line: usize) -> String {
    let texts = lua.app_data_ref::<Texts>();
    let text = texts.as_ref().and_then(|texts| texts.texts.get(path));
    text.and_then(|text| text.lines().nth(line - 1)).unwrap_or_default().to_owned()
}

/// Adds upvalues of the script's functions to `table`, by name. Names of the main file take
/// precedence.
pub(super) fn locals(lua: &Lua, functions: &[(&'static str, Function)], table: &Table) -> mlua::Result<()> {
    let mut queue: Vec<Function> = functions.iter().map(|(_, function)| function.clone()).collect();
    let mut seen = Vec::new();
    while let Some(function) = queue.pop() {
        if seen.contains(&function.to_pointer()) || seen.len() > 500 {
            continue;
        }
        seen.push(function.to_pointer());
        for (name, value) in upvalues(lua, &function)? {
            if let Value::Function(inner) = &value {
                queue.push(inner.clone());
            }
            if !table.contains_key(name.as_str())? {
                table.raw_set(name, value)?;
            }
        }
    }
    Ok(())
}

#[allow(unsafe_code)]
fn upvalues(lua: &Lua, function: &Function) -> mlua::Result<Vec<(String, Value)>> {
    if function.info().what == "C" {
        return Ok(Vec::new());
    }
    // SAFETY: the function is at index 1; each round pushes one value, and the name is copied into
    // a table at once. The stack has room for what is pushed: it is checked first. Errors of the VM
    // are caught by `exec_raw`.
    let table: Table = unsafe {
        lua.exec_raw(function.clone(), |state| {
            ffi::lua_rawcheckstack(state, 8);
            ffi::lua_newtable(state);
            copy_upvalues(state, 1, 2);
            ffi::lua_replace(state, 1);
        })?
    };
    let mut all = Vec::new();
    table.for_each(|name: String, value: Value| {
        all.push((name, value));
        Ok(())
    })?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// Adds the upvalues of the function at one index of the stack to the table at another, by name.
///
/// # Safety
/// The stack has room for one more value.
#[allow(unsafe_code)]
unsafe fn copy_upvalues(state: *mut ffi::lua_State, function: c_int, table: c_int) {
    // SAFETY: each round pushes one value and takes it off again.
    unsafe {
        let mut number = 1;
        loop {
            let name = ffi::lua_getupvalue(state, function, number);
            if name.is_null() {
                break;
            }
            if *name == 0 {
                ffi::lua_pop(state, 1);
            } else {
                ffi::lua_rawsetfield(state, table, name);
            }
            number += 1;
        }
    }
}

#[allow(unsafe_code)]
fn patch(lua: &Lua, chunk: &Function, line: usize, on: bool) -> mlua::Result<i64> {
    // SAFETY: index 1 is a Lua function, the main chunk of a file, as `lua_breakpoint` requires.
    unsafe {
        lua.exec_raw(chunk.clone(), |state| {
            let line = c_int::try_from(line).unwrap_or(c_int::MAX);
            let at = ffi::lua_breakpoint(state, 1, line, c_int::from(on));
            ffi::lua_settop(state, 0);
            ffi::lua_pushnumber(state, f64::from(at));
        })
    }
}

#[allow(unsafe_code)]
fn set_hook(lua: &Lua) -> mlua::Result<()> {
    // SAFETY: the callbacks belong to this VM and live as long; the field is not used by `mlua`.
    unsafe { lua.exec_raw((), |state| (*ffi::lua_callbacks(state)).debugbreak = Some(on_break)) }
}

/// Represents nil among the locals: a table cannot store nil.
fn nothing() -> *mut c_void {
    static NOTHING: u8 = 0;
    (&raw const NOTHING).cast_mut().cast()
}

fn or_nil(value: Value) -> Value {
    if matches!(value, Value::LightUserData(it) if it.0 == nothing()) { Value::Nil } else { value }
}

/// Called by Luau at a break: collects the locals and calls the callback.
#[allow(unsafe_code)]
unsafe extern "C-unwind" fn on_break(state: *mut ffi::lua_State, at: *mut ffi::lua_Debug) {
    // SAFETY: Luau calls this with the running thread and its line, with room on the stack for a
    // few values. Nothing here has a destructor, so that an error of the VM may unwind through it.
    // The names that Luau gives live in the function's prototype, which is running.
    unsafe {
        ffi::lua_rawcheckstack(state, 12);
        if ffi::lua_rawgetfield(state, ffi::LUA_REGISTRYINDEX, CALLBACK_C.as_ptr()) != ffi::LUA_TFUNCTION {
            return ffi::lua_pop(state, 1);
        }
        ffi::lua_pushnumber(state, f64::from((*at).currentline));
        ffi::lua_pushnumber(state, f64::from(ffi::lua_stackdepth(state)));
        // Identifies the thread; a pointer fits into the 53 bits of a number.
        ffi::lua_pushnumber(state, state as usize as f64);
        ffi::lua_newtable(state);
        let table = ffi::lua_gettop(state);
        let mut frame: ffi::lua_Debug = std::mem::zeroed();
        if ffi::lua_getinfo(state, 0, c"f".as_ptr(), &raw mut frame) != 0 {
            copy_upvalues(state, ffi::lua_gettop(state), table);
            ffi::lua_pop(state, 1);
        }
        let mut number = 1;
        loop {
            let name = ffi::lua_getlocal(state, 0, number);
            if name.is_null() {
                break;
            }
            if ffi::lua_isnil(state, -1) != 0 {
                ffi::lua_pop(state, 1);
                ffi::lua_pushlightuserdata(state, nothing());
            }
            ffi::lua_rawsetfield(state, table, name);
            number += 1;
        }
        if ffi::lua_pcall(state, 4, 0, 0) != ffi::LUA_OK {
            ffi::lua_error(state);
        }
    }
}
