//! What programs (`r1 lua`, `r1 test`, `r1 repl` without a script) have in addition to recipes:
//! `r1.model`, `r1.script`, `r1.rollout`, `r1.rl` and `r1.training`; and the models that scripts
//! name.
//!
//! The virtual machine of a program is on the thread that owns the tensors, so that its functions
//! call models, trajectories and runs directly (docs/lab/decisions/0016-programs-above-train.md).
//! Recipes run on other threads; [`NamedModelThread`] runs the models that they name.

mod call;
mod executor;
mod model;
mod named_models;
mod open_model;
mod reward_models;
mod rl;
mod scripts;
mod training;

use std::path::PathBuf;
use std::rc::Rc;

use mlua::{Lua, Table};

use crate::encoders::Checkpoints;
use crate::error::Result;
use crate::hub::Fetching;
use crate::load;
use crate::script::runtime::host::{Host, ProgramApi};
use crate::search::SearchModels;
use crate::telemetry::Reporter;
use crate::train::Ranks;

pub(crate) use executor::Executor;
pub use named_models::NamedModelThread;

/// The functions of programs.
pub(crate) struct Programs {
    /// Shows downloads from the Hub.
    pub(crate) reporter: Reporter,
    pub(crate) processes: ProgramProcesses,
}

/// The processes that run a program, each the whole of it.
#[derive(Clone, Default)]
pub(crate) struct ProgramProcesses {
    pub(crate) ranks: Ranks,
    /// The directory of runs of a process other than rank 0.
    pub(crate) runs_dir: Option<PathBuf>,
}

impl Programs {
    /// For a program on this process.
    pub(crate) fn new(reporter: Reporter) -> Self {
        Self { reporter, processes: ProgramProcesses::default() }
    }
}

impl ProgramApi for Programs {
    fn install(&self, lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
        model::install(lua, r1, &self.reporter)?;
        scripts::install(lua, r1, host, &self.reporter)?;
        rl::install(lua, r1)?;
        training::install(lua, r1, &self.processes)
    }

    fn text_dir(&self, name: &str) -> Result<PathBuf> {
        load::text_dir(name, Fetching { reporter: &self.reporter, interrupt: None })
    }

    fn search_models(&self) -> &'static dyn SearchModels {
        &Checkpoints::AUTO
    }
}
