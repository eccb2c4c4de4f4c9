//! Formats that a recipe defines, usable on any thread: prompts are written and responses parsed on
//! threads without a worker.
//!
//! Each thread that uses one has a virtual machine with the script, created on first use. The
//! functions of a format must be pure: variables are not shared between calls.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::load;
use crate::config::Limits;
use crate::error::{Error, Kind, Result};
use crate::script::api;
use crate::script::api::format::{Callable, FormatOfRecipe, Stored};
use crate::script::runtime::definitions::RecipeFormat;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::log::LogLine;
use crate::script::runtime::sources::SourceOrigin;
use crate::script::runtime::vm::Vm;
use crate::text::{AUTO, Format, FormatChoice, OwnOptions};

/// The source of a script that defines formats.
pub(crate) struct FormatSource {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The files it requires and reads.
    pub(crate) sources: SourceOrigin,
    pub(crate) limits: Limits,
    pub(crate) needs: Vec<String>,
    pub(crate) params: Map<String, Json>,
    pub(crate) hash: String,
}

/// The formats of a script, in the order of their definition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Formats(Vec<Format>);

impl Formats {
    /// The formats that a script has defined in a virtual machine.
    pub(crate) fn of(vm: &Vm, source: impl FnOnce() -> FormatSource) -> Self {
        let made = vm.host.formats.borrow();
        if made.is_empty() {
            return Self::default();
        }
        let source = Arc::new(source());
        let format = |(index, format): (usize, &Rc<RecipeFormat>)| {
            let options = OwnOptions { version: source.hash.clone(), ..format.options.clone() };
            Format::of_recipe(FormatOfRecipe(ThreadedFormat { options, index, source: Arc::clone(&source) }))
        };
        Self(made.iter().enumerate().map(format).collect())
    }

    /// The format with a name: `auto`, a built-in one, or one of the script.
    ///
    /// # Errors
    /// `Kind::Script` with the nearest names.
    pub(crate) fn choose(&self, name: &str) -> Result<FormatChoice> {
        if let Some(declared) = self.0.iter().find(|declared| declared.name() == name) {
            return Ok(FormatChoice::Is(declared.clone()));
        }
        let names: Vec<&str> = self.0.iter().map(Format::name).collect();
        if name == AUTO {
            Ok(FormatChoice::Auto)
        } else {
            FormatChoice::named(name).map_err(|_| Format::unknown(name, &names))
        }
    }
}

/// A format of a script, for any thread.
struct ThreadedFormat {
    options: OwnOptions,
    /// Index among the script's formats.
    index: usize,
    source: Arc<FormatSource>,
}

/// A virtual machine of a thread.
struct FormatMachine {
    path: PathBuf,
    hash: String,
    params: Map<String, Json>,
    vm: Vm,
    formats: Vec<Rc<RecipeFormat>>,
}

/// Maximum machines per thread: of the script, and of replaced versions.
const MACHINES: usize = 4;

thread_local! {
    static OWN: RefCell<Vec<Rc<FormatMachine>>> = const { RefCell::new(Vec::new()) };
    static LOGGED: RefCell<Vec<LogLine>> = const { RefCell::new(Vec::new()) };
}

/// Lines that formats have logged on this thread.
pub(crate) fn take_log() -> Vec<LogLine> {
    LOGGED.take()
}

impl FormatSource {
    fn machine(&self) -> Result<Rc<FormatMachine>> {
        let is_current = |machine: &&Rc<FormatMachine>| {
            machine.hash == self.hash && machine.path == self.path && machine.params == self.params
        };
        if let Some(machine) = OWN.with_borrow(|machines| machines.iter().find(is_current).cloned()) {
            return Ok(machine);
        }
        let vm = api::vm(self.limits.clone(), self.sources.clone(), None)?;
        vm.host.params.borrow_mut().values.clone_from(&self.params);
        load::run(&vm, &self.path, &self.text)?;
        vm.host.grants.replace(Grants::declared(&self.needs, load::directory(&self.path)));
        // The worker's machine logged the same lines while it was loaded.
        vm.host.take_log();
        let formats = vm.host.formats.borrow().clone();
        let (path, hash, params) = (self.path.clone(), self.hash.clone(), self.params.clone());
        let machine = Rc::new(FormatMachine { path, hash, params, vm, formats });
        OWN.with_borrow_mut(|machines| {
            if machines.len() == MACHINES {
                machines.remove(0);
            }
            machines.push(Rc::clone(&machine));
        });
        Ok(machine)
    }
}

impl Stored for ThreadedFormat {
    fn options(&self) -> &OwnOptions {
        &self.options
    }

    fn with<T>(&self, f: impl FnOnce(&Callable<'_>) -> Result<T>) -> Result<T> {
        let machine = self.source.machine()?;
        let format = machine.formats.get(self.index).ok_or_else(|| {
            let why = format!("the script does not define the format `{}` on every load", self.options.name);
            Error::new(Kind::Script, why).at_path(&self.source.path).hint("call r1.format whenever the file is loaded")
        })?;
        let result = f(&Callable { format, lua: &machine.vm.lua, vm: Some(&machine.vm) });
        LOGGED.with_borrow_mut(|logged| logged.extend(machine.vm.host.take_log()));
        result
    }
}
