//! Opens the text files of a model for `r1.text`: tokenizer and template. In programs, names that
//! are not directories are resolved too: models on the Hub, the embedded model, a run's newest
//! checkpoint.

use std::path::Path;
use std::rc::Rc;

use mlua::{Function, Lua, UserData, Value};

use super::args::{raise, raise_here, text};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::host::{Host, misuse};

/// A function that opens a model's directory. Only programs may wait for a download: recipes are
/// loaded synchronously, and again by every worker.
pub(super) fn opener<T: UserData + 'static>(
    lua: &Lua,
    host: &Rc<Host>,
    name: &'static str,
    open: fn(&Lua, &str, &Value) -> mlua::Result<T>,
) -> mlua::Result<Function> {
    let host = Rc::clone(host);
    lua.create_function(move |lua, (from, options): (Value, Value)| {
        let from = text(lua, name, "model", &from)?;
        let from = match &host.programs {
            Some(programs) if !has_text_files(&from) => {
                let dir = programs.text_dir(&from).map_err(|error| raise_here(lua, error))?;
                dir.display().to_string()
            }
            Some(_) => from,
            None => check_directory(lua, &host, name, &from).map(|()| from).map_err(raise)?,
        };
        open(lua, &from, &options)
    })
}

/// Whether this is a template, a file, or a directory with a tokenizer or a template.
fn has_text_files(from: &str) -> bool {
    let path = Path::new(from);
    let has = |name: &str| path.join(name).is_file();
    is_source(from) || has("tokenizer.json") || has(TEMPLATE) || (path.is_file() && !path.ends_with("latest"))
}

/// Refuses names of models, and directories that a recipe does not declare.
fn check_directory(lua: &Lua, host: &Host, name: &str, from: &str) -> Result<()> {
    if is_source(from) {
        return Ok(());
    }
    if !Path::new(from).exists() {
        let error = Error::new(Kind::Model, format!("{name}: there is no directory `{from}`"));
        return Err(error.hint("names of models are for programs (`r1 lua`); a recipe needs a path"));
    }
    if host.grants.borrow().allows_text_of(Path::new(from)) {
        return Ok(());
    }
    let why = format!("{name}: `{from}` is not a model directory, and the recipe does not declare it in `needs`");
    Err(misuse(lua, why).hint(
        "give a directory with tokenizer.json, config.json or chat_template.jinja, put the file next to the script, or \
         declare it (needs = { \"fs:DIR\" }) and call this in a function of the env",
    ))
}

pub(super) const TEMPLATE: &str = "chat_template.jinja";

/// Whether the text is a template, not a path.
pub(super) fn is_source(text: &str) -> bool {
    text.contains("{%") || text.contains("{{") || text.contains('\n')
}
