//! Opens the text files of a model for `r1.text`: tokenizer and template. Names that are not
//! directories are resolved by the host's [`Services`]: models on the Hub, the embedded model, a
//! run's newest checkpoint.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Lua, UserData, Value};

use super::args::{raise, text};
use super::service::call;
use crate::error::{Error, Kind};
use crate::script::Services;
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::services::model::TextDir;

/// A function that opens a model's directory. Only programs may wait for a download: recipes are
/// loaded synchronously, and again by every worker.
pub(super) fn opener<T: UserData + 'static>(
    lua: &Lua,
    host: &Rc<Host>,
    name: &'static str,
    open: fn(&Lua, &str, &Value) -> mlua::Result<T>,
) -> mlua::Result<Function> {
    let Some(services) = host.services.clone() else {
        let host = Rc::clone(host);
        return lua.create_function(move |lua, (from, options): (Value, Value)| {
            let from = text(lua, name, "model", &from)?;
            if !is_source(&from) && !Path::new(&from).exists() {
                let error = Error::new(Kind::Model, format!("{name}: there is no directory `{from}`"));
                return Err(raise(error.hint("names of models are for programs (`r1 lua`); a recipe needs a path")));
            }
            if !is_source(&from) && !host.grants.borrow().allows_text_of(Path::new(&from)) {
                let why = format!("{name}: `{from}` is not a model directory, and the recipe does not declare it in `needs`");
                let hint = "give a directory with tokenizer.json, config.json or chat_template.jinja, put the file next to \
                            the script, or declare it (needs = { \"fs:DIR\" }) and call this in a function of the env";
                return Err(raise(misuse(lua, why).hint(hint)));
            }
            open(lua, &from, &options)
        });
    };
    lua.create_async_function(move |lua, (from, options): (Value, Value)| {
        let services = services.clone();
        async move {
            let from = text(&lua, name, "model", &from)?;
            open(&lua, &found(&lua, &services, from).await?, &options)
        }
    })
}

/// The directory of a model's text files; other names are returned unchanged.
async fn found(lua: &Lua, services: &Arc<dyn Services>, from: String) -> mlua::Result<String> {
    let path = Path::new(&from);
    let has = |name: &str| path.join(name).is_file();
    if is_source(&from) || has("tokenizer.json") || has(TEMPLATE) || (path.is_file() && !path.ends_with("latest")) {
        return Ok(from);
    }
    let dir = call(lua, services, TextDir { name: from }).await?;
    Ok(dir.display().to_string())
}

pub(super) const TEMPLATE: &str = "chat_template.jinja";

/// Whether the text is a template, not a path.
pub(super) fn is_source(text: &str) -> bool {
    text.contains("{%") || text.contains("{{") || text.contains('\n')
}
