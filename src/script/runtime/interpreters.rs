//! The interpreter pools of `r1.tools.python` and `r1.tools.rhai`: one pool per set of options and
//! process, shared by reloads and workers, started on first use.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::tools::{Python, PythonOptions, Rhai, RhaiOptions};

static PYTHONS: Mutex<Vec<(PythonOptions, Arc<Python>)>> = Mutex::new(Vec::new());
static RHAIS: Mutex<Vec<(RhaiOptions, Arc<Rhai>)>> = Mutex::new(Vec::new());

pub(crate) fn python(options: &PythonOptions) -> Result<Arc<Python>> {
    shared(&PYTHONS, options, Python::new)
}

pub(crate) fn rhai(options: &RhaiOptions) -> Result<Arc<Rhai>> {
    shared(&RHAIS, options, Rhai::new)
}

fn shared<O: Clone + PartialEq, T>(
    all: &Mutex<Vec<(O, Arc<T>)>>,
    options: &O,
    new: fn(O) -> Result<T>,
) -> Result<Arc<T>> {
    // The lock is held while a pool starts, so that a second worker does not start another one.
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, tool)) = all.iter().find(|(known_options, _)| known_options == options) {
        return Ok(tool.clone());
    }
    let tool = Arc::new(new(options.clone())?);
    all.push((options.clone(), tool.clone()));
    Ok(tool)
}
