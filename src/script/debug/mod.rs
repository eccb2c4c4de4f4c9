//! Evaluation of typed code in a script's virtual machine, for the REPL.
//!
//! - [`Console`]: evaluates expressions and statements with a loaded script, and keeps variables
//! - [`Shown`]: a value printed for the user: limited in size, with sorted keys
//! - `complete`: completion
//! - `breakpoints`: breakpoints and traces, by line or by function
//!
//! A typed name refers to, in this order: a variable of the session, a given value (`state`,
//! `task`), a local of the script that one of its functions uses, a global.

mod breakpoints;
mod complete;
mod places;

use std::cell::RefCell;
use std::rc::Rc;

use mlua::chunk::Compiler;
use mlua::{Function, MultiValue, Table, Value};
use serde_json::Value as Json;

use crate::config::Limits;
use crate::error::{Error, Result};
use crate::script::api;
use crate::script::program::without_trailing_nil;
use crate::script::recipe::load;
use crate::script::recipe::worker::Worker;
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert;
use crate::script::runtime::failure::{Failure, describe};
use crate::script::runtime::host::{Call, Host, ProgramApi, misuse};
use crate::script::runtime::log::{Echo, LogLine};
use crate::script::runtime::policy_request::PolicyRequests;
use crate::script::runtime::record::Record;
use crate::script::runtime::show::{ShowLimits, Shown, is_name};
use crate::script::runtime::sources::SourceOrigin;
use crate::script::runtime::state::State;
use crate::script::runtime::vm::Vm;

pub use breakpoints::{AfterHalt, Breakpoint, Halt, OnHalt};
pub use complete::Candidate;

/// The name of typed code in messages.
const CHUNK: &str = "input";

/// Limits without a recipe.
fn bare() -> Limits {
    Limits { cpu: 60.0, wait: 3600.0, memory: 4096, text: 64, ..Limits::default() }
}

/// Evaluates typed code. `Clone` gives another handle.
#[derive(Clone)]
pub struct Console {
    vm: Rc<Vm>,
    /// The environment of chunks: empty, with access to all names through its metatable.
    environment: Table,
    variables: Table,
    values: Table,
    /// The script's locals, if there is a script.
    locals: Table,
    stops: Rc<RefCell<Vec<Breakpoint>>>,
    /// Keeps nothing.
    record: Record,
}

impl Worker {
    /// A console in this worker's virtual machine.
    pub fn console(&self) -> Result<Console> {
        let console = Console::over(&self.vm)?;
        let functions = self.functions();
        breakpoints::locals(&console.vm.lua, &functions, &console.locals).map_err(|error| vm_failed(&error))?;
        for (name, function) in functions {
            console.locals.raw_set(name, function).map_err(|error| vm_failed(&error))?;
        }
        Ok(console)
    }
}

impl Console {
    /// A console without a script, with the functions of programs.
    pub(crate) fn bare(programs: Rc<dyn ProgramApi>, echo: Echo) -> Result<Self> {
        let host = Host::for_program(Some(programs), echo);
        let here = load::directory(std::path::Path::new(CHUNK));
        Self::over(&Rc::new(api::program_vm(bare(), SourceOrigin::Disk(here), host, &[])?))
    }

    fn over(vm: &Rc<Vm>) -> Result<Self> {
        let build = || -> mlua::Result<Self> {
            let lua = &vm.lua;
            let (variables, values, locals) = (lua.create_table()?, lua.create_table()?, lua.create_table()?);
            let environment = lua.create_table()?;
            let meta = lua.create_table()?;
            let tables = [variables.clone(), values.clone(), locals.clone()];
            let globals = vm.environment.clone();
            bind(lua, &meta, "__index", move |_, (_, name): (Value, Value)| {
                for table in &tables {
                    let value: Value = table.raw_get(name.clone())?;
                    if !value.is_nil() {
                        return Ok(value);
                    }
                }
                globals.get(name)
            })?;
            let (writable, fixed) = (variables.clone(), values.clone());
            bind(lua, &meta, "__newindex", move |lua, (_, name, value): (Value, Value, Value)| {
                if fixed.contains_key(name.clone())? {
                    let name = name.to_string()?;
                    let error = misuse(lua, format!("`{name}` is given by the session"));
                    let hint = format!("its fields can be set (`{name}.x = 1`); give a copy another name");
                    return Err(mlua::Error::external(error.hint(hint)));
                }
                writable.raw_set(name, value)
            })?;
            meta.set_readonly(true);
            environment.set_metatable(Some(meta))?;
            let stops = Rc::default();
            let record = Record::off();
            Ok(Self { vm: vm.clone(), environment, variables, values, locals, stops, record })
        };
        build().map_err(|error| vm_failed(&error))
    }

    /// Makes a trajectory's state available as `state`, by reference, so that typed code can change
    /// it.
    pub fn give_state(&self, state: &State) -> Result<()> {
        self.values.raw_set("state", &state.table).map_err(|error| vm_failed(&error))
    }

    /// Gives `name` a value that typed code cannot replace.
    pub fn give(&self, name: &str, value: &Json) -> Result<()> {
        let result = convert::from_row(&self.vm.lua, value).and_then(|value| self.values.raw_set(name, value));
        result.map_err(|error| vm_failed(&error))
    }

    /// Receives the requests of typed code to the policy.
    pub fn listen(&self) -> PolicyRequests {
        self.record.listen()
    }

    /// Runs typed code and returns the values of an expression or of a `return`. A single value is
    /// stored in `_`.
    ///
    /// # Errors
    /// The error of the code, with `input:LINE` or the script's line.
    pub async fn eval(&self, text: &str) -> Result<Vec<Shown>, Failure> {
        let function = self.compile(text)?;
        // Code typed by the user is not recorded in a trajectory.
        let call = Call::of_console(&self.vm.limits, self.record.clone());
        let values: MultiValue = self.vm.call(&call, &function, ()).await?;
        self.shown(&without_trailing_nil(values)).map_err(|error| vm_failed(&error).into())
    }

    fn shown(&self, values: &MultiValue) -> mlua::Result<Vec<Shown>> {
        if let Some(value) = values.iter().next().filter(|value| !value.is_nil() && values.len() == 1) {
            self.variables.raw_set("_", value)?;
        }
        Ok(values.iter().map(Shown::typed).collect())
    }

    /// Compiles typed code: as an expression if possible. A `local` at the outermost level becomes
    /// a variable of the session.
    fn compile(&self, text: &str) -> Result<Function, Failure> {
        let chunk = |source: &str| {
            let chunk = self.vm.lua.load(source).set_name(format!("@{CHUNK}"));
            chunk.set_mode(mlua::chunk::ChunkMode::Text).set_environment(self.environment.clone()).into_function()
        };
        let lasting = as_session_variable(text);
        let made = chunk(&format!("return {text}")).or_else(|expression| {
            chunk(&lasting).map_err(|statement| if is_statement(text) { statement } else { expression })
        });
        made.map_err(|error| vm_failed(&error).into())
    }

    /// The value of an expression as plain data.
    ///
    /// # Errors
    /// As [`Console::eval`], and an error of the script for a value that is not plain data.
    pub async fn data(&self, text: &str) -> Result<Json, Failure> {
        let function = self.compile(text)?;
        let call = Call::of_console(&self.vm.limits, self.record.clone());
        let value: Value = self.vm.call(&call, &function, ()).await?;
        Ok(convert::to_json(&value, "it", convert::NonJson::Refuse).map_err(Error::from)?)
    }

    /// A trajectory's state, printed with a layout.
    pub fn show_state(&self, state: &State, layout: &ShowLimits) -> Shown {
        Shown::of(&Value::Table(state.table.clone()), layout)
    }

    /// The source line of a place: `scripts/retool.lua:12`.
    pub fn source_line(&self, location: &str) -> Option<String> {
        let (path, line) = location.rsplit_once(':')?;
        let texts = self.vm.lua.app_data_ref::<crate::script::runtime::texts::Texts>()?;
        let line: usize = line.parse().ok()?;
        texts.texts.get(path)?.lines().nth(line.checked_sub(1)?).map(str::to_owned)
    }

    /// Lines logged since the last call.
    pub fn take_log(&self) -> Vec<LogLine> {
        self.vm.host.take_log()
    }
}

/// Whether typed code is incomplete: an open `function`, bracket or string.
pub fn is_open(text: &str) -> bool {
    let unclosed = text.matches("[[").count() > text.matches("]]").count();
    let readings = [Reading::of(&format!("return {text}")), Reading::of(text)];
    !readings.contains(&Reading::Whole) && (unclosed || readings.contains(&Reading::Open))
}

/// The result of the compiler for a text.
#[derive(PartialEq, Eq)]
enum Reading {
    Whole,
    Open,
    Wrong,
}

impl Reading {
    fn of(source: &str) -> Self {
        match Compiler::new().compile(source) {
            Ok(_) => Self::Whole,
            Err(mlua::Error::SyntaxError { incomplete_input: true, .. }) => Self::Open,
            Err(_) => Self::Wrong,
        }
    }
}

/// Whether code with an error was more likely meant as a statement.
fn is_statement(text: &str) -> bool {
    let keywords = ["local", "for", "while", "if", "repeat", "do", "function", "return", "break"];
    let first = text.split_whitespace().next().unwrap_or_default();
    keywords.contains(&first) || text.replace("==", "").contains('=')
}

/// `local x = 1` typed at the outermost level would end with its chunk: it becomes a variable of
/// the session.
fn as_session_variable(text: &str) -> String {
    let Some(rest) = text.trim_start().strip_prefix("local ") else { return text.to_owned() };
    let rest = rest.trim_start();
    let names = rest.split_once('=').map(|(names, _)| names);
    let plain = |names: &str| names.split(',').all(|name| is_name(name.trim()));
    if rest.starts_with("function ") || names.is_some_and(plain) {
        rest.to_owned()
    } else if plain(rest.trim_end()) {
        format!("{} = nil", rest.trim_end())
    } else {
        text.to_owned()
    }
}

fn vm_failed(error: &mlua::Error) -> Error {
    describe(error).error
}
