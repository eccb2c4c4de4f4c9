//! `r1.context(messages)`: context policies. They are in `lua/context.lua` and
//! `lua/compaction.lua`; this file counts tokens.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Lua, Table};
use serde_json::Value;

use super::apart::{self, timed};
use super::args::{fail, time_left};
use super::image;
use crate::mdp::Message;
use crate::script::runtime::bind::in_lua;
use crate::script::runtime::host::Host;
use crate::text::{Renderer, TimeLimit};

/// Upper bound of the text that a chat template adds around one message, and around all.
const TEMPLATE_BYTES: usize = 64;

/// Name of the registry entry that holds the metatable of contexts.
const META: &str = "r1.context";

/// The messages of a list, for a function of `r1.context`.
fn read(lua: &Lua, list: &Table) -> mlua::Result<Vec<Message>> {
    image::read_messages(lua, "r1.context", list)
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let shared_host = host.clone();
    let fits = lua.create_function(move |lua, (messages, tokens): (Table, usize)| {
        let messages = read(lua, &messages)?;
        let renderer = renderer(lua, &shared_host)?;
        let tools = shared_host.schemas();
        // A token has at least one byte, so most prompts fit without being counted.
        let bytes: usize = messages.iter().map(|message| message.content.text().len() + TEMPLATE_BYTES).sum();
        let tool_bytes: usize = tools.iter().map(|tool| tool.to_string().len()).sum::<usize>() * 2;
        let reasoning: usize = messages.iter().filter_map(|m| m.reasoning_content.as_ref()).map(String::len).sum();
        // An image has many tokens and no text.
        let others =
            messages.iter().any(|message| !message.tool_calls.is_empty() || message.content.images().next().is_some());
        let system = if tools.is_empty() { 0 } else { 1024 };
        if !others && bytes + reasoning + tool_bytes + system + TEMPLATE_BYTES * 4 <= tokens {
            return Ok(true);
        }
        Ok(count(lua, &renderer, &messages, &tools)? <= tokens)
    })?;
    let shared_host = host.clone();
    let tokens = lua.create_function(move |lua, messages: Table| {
        let messages = read(lua, &messages)?;
        let renderer = renderer(lua, &shared_host)?;
        count(lua, &renderer, &messages, &shared_host.schemas())
    })?;
    let (context, meta, tools): (Function, Table, Table) =
        in_lua(lua, include_str!("../../../lua/context.lua"), (fits.clone(), tokens))?;
    let (clip, rank): (Function, Function) = (r1.raw_get("clip")?, r1.raw_get::<Table>("text")?.raw_get("rank")?);
    let generate: Function = r1.raw_get("generate")?;
    let arguments = (meta.clone(), tools, fits, clip, rank, generate);
    let () = in_lua(lua, include_str!("../../../lua/compaction.lua"), arguments)?;
    super::seal(lua, "context", &meta)?;
    lua.set_named_registry_value(META, meta)?;
    r1.raw_set("context", context)
}

/// The number of ids of a prompt.
fn count(lua: &Lua, renderer: &Renderer, messages: &[Message], tools: &[Value]) -> mlua::Result<usize> {
    let limit = TimeLimit::new(time_left(lua));
    let pieces = renderer.prompt_pieces(messages, tools).map_err(|error| timed(lua, &limit, error))?;
    Ok(apart::encode(lua, "r1.context", renderer, pieces)?.0.len())
}

fn renderer(lua: &Lua, host: &Host) -> mlua::Result<Arc<Renderer>> {
    let missing = || fail(lua, "r1.context", "tokens can be counted only where a model is loaded");
    host.renderer().ok_or_else(missing)
}

/// The messages of a context that a script returned, and whether its budget was exceeded after all
/// droppable messages were dropped; `None` for other tables.
pub(crate) fn messages_of(lua: &Lua, table: &Table) -> mlua::Result<Option<(Table, bool)>> {
    let Some(meta) = table.metatable() else { return Ok(None) };
    if meta != lua.named_registry_value::<Table>(META)? {
        return Ok(None);
    }
    Ok(Some((table.raw_get("messages")?, table.raw_get("least")?)))
}
