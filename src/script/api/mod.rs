//! The read-only global `r1`: one file per part, bindings only.

pub(crate) mod algorithm;
mod answers;
mod apart;
pub(crate) mod args;
mod argument;
pub(crate) mod arguments;
mod call;
mod connection;
pub(crate) mod context;
pub(crate) mod data;
#[cfg(test)]
mod declared;
mod endpoint;
pub(crate) mod env;
mod flow;
pub(crate) mod format;
mod fs;
mod generate;
mod http;
pub(crate) mod image;
mod index;
mod json;
mod logprobs;
mod misplaced;
pub(crate) mod model_options;
mod outcome;
mod params;
pub(crate) mod policy;
mod process;
pub(crate) mod program;
mod programs_only;
mod re;
pub(crate) mod recipe;
mod resource;
mod reward_model;
mod search_index;
pub(crate) mod secret;
mod server_place;
pub(crate) mod store;
mod store_write;
mod table;
mod template;
pub(crate) mod test;
mod text;
mod text_files;
pub(crate) mod tokenizer;
pub(crate) mod tools;
mod trainer;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table, Value, Variadic};

use crate::config::Limits;
use crate::error::{Result, suggest};
use crate::script::runtime::bind::{bind, in_lua};
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::require::Loader;
use crate::script::runtime::sandbox;
use crate::script::runtime::sources::SourceOrigin;
use crate::script::runtime::vm::Vm;
use crate::text::Renderer;

/// A virtual machine with the global `r1`, for recipes.
pub(crate) fn vm(limits: Limits, sources: SourceOrigin, renderer: Option<Arc<Renderer>>) -> Result<Vm> {
    Vm::new(limits, sources, Host::new(renderer), |lua, environment, host, loader| {
        install(lua, environment, host, loader)?;
        // A program loaded for its recipe may read its arguments.
        environment.raw_set("arg", lua.create_table()?)
    })
}

/// A virtual machine for a program: with files, standard input and output, and `arguments`.
pub(crate) fn program_vm(limits: Limits, sources: SourceOrigin, host: Rc<Host>, arguments: &[String]) -> Result<Vm> {
    Vm::new(limits, sources, host, |lua, environment, host, loader| {
        install(lua, environment, host, loader)?;
        program::install(lua, environment, host, arguments)
    })
}

/// Adds `r1` to the environment.
fn install(lua: &Lua, environment: &Table, host: &Rc<Host>, loader: &Rc<RefCell<Loader>>) -> mlua::Result<()> {
    let r1 = lua.create_table()?;
    r1.raw_set("version", env!("CARGO_PKG_VERSION"))?;
    messages(lua, &r1)?;
    answers::install(lua, &r1)?;
    json::install(lua, &r1)?;
    text::install(lua, &r1, host)?;
    match &host.programs {
        Some(programs) => programs.install(lua, &r1, host)?,
        None => programs_only::install(lua, &r1, host)?,
    }
    re::install(lua, &r1)?;
    fs::install(lua, &r1, host)?;
    http::install(lua, &r1, host)?;
    image::install(lua, &r1, host)?;
    connection::install(lua, &r1, host)?;
    process::install(lua, &r1, host)?;
    secret::install(lua, &r1, host)?;
    flow::install(lua, &r1, host)?;
    recipe::install(lua, &r1)?;
    algorithm::install(lua, &r1)?;
    trainer::install(lua, &r1)?;
    data::install(lua, &r1)?;
    format::install(lua, &r1, host)?;
    resource::install(lua, &r1, loader)?;
    params::install(lua, &r1, host)?;
    env::install(lua, &r1, host)?;
    policy::install(lua)?;
    tools::install(lua, &r1, host, loader)?;
    table::install(lua, &r1, loader)?;
    search_index::install(lua, &r1, host)?;
    call::install(lua, &r1, host)?;
    generate::install(lua, &r1, host)?;
    logprobs::install(lua, &r1, host)?;
    reward_model::install(lua, &r1, host)?;
    context::install(lua, &r1, host)?;
    store::install(lua, &r1, host)?;
    let log = host.clone();
    bind(lua, &r1, "log", move |lua, values: Variadic<Value>| sandbox::write_log(lua, &log, &values))?;
    seal(lua, "r1", &r1)?;
    environment.raw_set("r1", r1)
}

/// The part of `r1` that is written in Lua.
fn messages(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let functions: Table = in_lua(lua, include_str!("../../../lua/messages.lua"), ())?;
    functions.for_each(|name: String, function: Value| r1.raw_set(name, function))
}

/// Adds a sealed namespace to `r1`; its name is such as `r1.fs`.
pub(crate) fn namespace(lua: &Lua, r1: &Table, name: &'static str, table: Table) -> mlua::Result<()> {
    seal(lua, name, &table)?;
    r1.raw_set(name.trim_start_matches("r1."), table)
}

/// Makes a namespace read-only; access to an unknown name is an error with the nearest names.
pub(crate) fn seal(lua: &Lua, name: &'static str, table: &Table) -> mlua::Result<()> {
    let mut names = Vec::new();
    table.for_each(|name: String, _: Value| {
        if !name.starts_with("__") {
            names.push(name);
        }
        Ok(())
    })?;
    let meta = lua.create_table()?;
    bind(lua, &meta, "__index", move |lua, (_, key): (Value, Value)| -> mlua::Result<Value> {
        let key = key.to_string()?;
        let error = misuse(lua, format!("`{name}.{key}` does not exist"));
        Err(mlua::Error::external(error.hint(suggest(&key, names.iter().map(String::as_str)))))
    })?;
    meta.raw_set("__metatable", false)?;
    meta.set_readonly(true);
    table.set_metatable(Some(meta))?;
    table.set_readonly(true);
    Ok(())
}
