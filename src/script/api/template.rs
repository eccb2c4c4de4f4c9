//! `r1.text.template`: the chat template of a model, or of a text.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlua::{Lua, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::{Map, Value as Json};

use super::apart::{self, timed};
use super::args::{check_text, fail, fail_with, in_time, plain, raise, text, time_left};
use super::arguments::{Arguments, arguments};
use super::format::{FormatArgument, FormatOfRecipe, LocalFormat};
use super::image;
use super::text_files::{TEMPLATE, is_source};
use crate::error::{Error, Kind, Result};
use crate::json;
use crate::mdp::Message;
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::RecipeFormat;
use crate::text::schema_order::tool_in_order;
use crate::text::{Format, FormatChoice, Renderer, Style, Template, TimeLimit};

/// `r1.text.template(model_or_file_or_source)`
pub(super) enum TemplateOf {
    /// Template of a directory with a tokenizer, which `:encode` needs.
    Model {
        renderer: Rc<Renderer>,
        /// A format of the script, which the renderer calls.
        _format: Option<Rc<RecipeFormat>>,
        /// The same with the switches that were set last.
        switched: RefCell<(Map<String, Json>, Rc<Renderer>)>,
    },
    Source(Box<Template>),
}

impl TemplateOf {
    fn of_model(renderer: Renderer, format: Option<Rc<RecipeFormat>>) -> Self {
        let renderer = Rc::new(renderer);
        Self::Model { switched: RefCell::new((Map::new(), Rc::clone(&renderer))), renderer, _format: format }
    }

    /// The renderer with switches of the template set.
    fn renderer(&self, lua: &Lua, function: &str, switches: Map<String, Json>) -> mlua::Result<Rc<Renderer>> {
        let Self::Model { renderer, switched, .. } = self else {
            let why = "needs a tokenizer: make the template from a model directory that has tokenizer.json";
            return Err(fail(lua, function, why));
        };
        if switches.is_empty() {
            return Ok(Rc::clone(renderer));
        }
        let mut switched = switched.borrow_mut();
        if switched.0 != switches {
            let made = renderer.with_switches(switches.clone()).map_err(raise)?;
            *switched = (switches, Rc::new(made));
        }
        Ok(Rc::clone(&switched.1))
    }
}

arguments! {
    /// Options of `r1.text.template`.
    pub(super) struct TemplateOptions {
        bos_token: String = String::new();
        eos_token: String = String::new();
        format: Option<FormatArgument>;
    }
}

pub(super) fn template(lua: &Lua, from: &str, options: &Value) -> mlua::Result<TemplateOf> {
    const NAME: &str = "r1.text.template";
    let TemplateOptions { bos_token, eos_token, format } = TemplateOptions::read_optional(lua, NAME, options)?;
    let (format, recipe_format) = match format {
        None => (None, None),
        Some(FormatArgument::Named(name)) => {
            let choice = FormatChoice::named(&name);
            (Some(choice.map_err(|error| fail_with(lua, NAME, error.about_setting("format")))?), None)
        }
        Some(FormatArgument::Own(recipe_format)) => {
            let format = Format::of_recipe(FormatOfRecipe(LocalFormat::new(lua, &recipe_format)));
            (Some(FormatChoice::Is(format)), Some(recipe_format))
        }
    };
    let path = Path::new(from);
    let build = || -> Result<TemplateOf> {
        let jinja: PathBuf = if path.is_dir() { path.join(TEMPLATE) } else { path.to_owned() };
        let (source, origin) = if is_source(from) {
            (from.to_owned(), "template".to_owned())
        } else if jinja.is_file() && !path.join("tokenizer.json").exists() {
            let read = std::fs::read_to_string(&jinja);
            let read = read.map_err(|error| Error::io(Kind::Model, "read the template", &jinja, &error))?;
            (read, jinja.display().to_string())
        } else {
            let style = Style::of_format(format.unwrap_or(FormatChoice::Auto));
            return Ok(TemplateOf::of_model(Renderer::load_styled(path, &style)?, recipe_format));
        };
        if format.is_some() {
            let why =
                "`format` needs a model directory that has tokenizer.json: a template alone writes what is in its text";
            return Err(Error::new(Kind::Script, format!("{NAME}: {why}")).about_setting("format"));
        }
        Ok(TemplateOf::Source(Box::new(Template::new(&source, None, &origin, &bos_token, &eos_token)?)))
    };
    let made = build().map_err(raise)?;
    in_time(lua)?;
    Ok(made)
}

/// Messages as plain data: a list, or JSON text, which preserves what Luau tables do not (the order
/// of keys, null, integers above 2^53).
fn conversation(lua: &Lua, function: &str, list: &Value) -> mlua::Result<Json> {
    match list {
        Value::String(_) => match json::read(text(lua, function, "messages", list)?.as_bytes()) {
            Ok(Json::Array(list)) => Ok(Json::Array(list)),
            Ok(_) => Err(fail(lua, function, "the text is JSON, but not a list of messages")),
            Err(error) => Err(fail(lua, function, format!("takes a list of messages, or its JSON: {error}"))),
        },
        Value::Table(_) => plain(lua, function, "messages", list),
        other => Err(fail(lua, function, format!("takes a list of messages, got {}", kind(other)))),
    }
}

fn read_messages(lua: &Lua, function: &str, list: &Value) -> mlua::Result<Vec<Message>> {
    let read: Vec<Message> = if let Value::Table(list) = list {
        image::read_messages(lua, function, list)?
    } else {
        let list = conversation(lua, function, list)?;
        let rows = crate::mdp::conversation::messages(&list, "messages")
            .map_err(|invalid| fail_with(lua, function, invalid.of_script()))?;
        rows.into_iter().map(|rows| rows.message).collect()
    };
    check_text(lua, function, &read)?;
    Ok(read)
}

impl UserData for TemplateOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Template");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("render", |lua, this, (list, options): (Value, Value)| {
            let chosen = RenderOptions::read(lua, "render", &options)?;
            let limit = TimeLimit::new(time_left(lua));
            let made = if let Self::Source(template) = this {
                let list = conversation(lua, "render", &list)?;
                let tools = (!chosen.tools.is_empty()).then_some(&chosen.tools[..]);
                template.with_switches(chosen.variables).render(&list, tools, chosen.add_generation_prompt)
            } else {
                let list = read_messages(lua, "render", &list)?;
                let renderer = this.renderer(lua, "render", chosen.variables)?;
                renderer.text(&list, &chosen.tools, chosen.add_generation_prompt)
            };
            made.map_err(|error| timed(lua, &limit, error))
        });
        methods.add_method("encode", |lua, this, (list, options): (Value, Value)| {
            let list = read_messages(lua, "encode", &list)?;
            let chosen = RenderOptions::read(lua, "encode", &options)?;
            let limit = TimeLimit::new(time_left(lua));
            let renderer = this.renderer(lua, "encode", chosen.variables)?;
            let pieces = renderer.marked_pieces(&list, &chosen.tools, chosen.add_generation_prompt);
            apart::encode(lua, "Template:encode", &renderer, pieces.map_err(|error| timed(lua, &limit, error))?)
        });
        methods.add_method("stop_ids", |lua, this, ()| {
            Ok(this.renderer(lua, "stop_ids", Map::new())?.stop_ids().to_vec())
        });
        methods.add_method("format", |lua, this, ()| {
            Ok(this.renderer(lua, "format", Map::new())?.format().name().to_owned())
        });
    }
}

/// Options of `:render` and `:encode`; unknown names are switches of the template.
struct RenderOptions {
    tools: Vec<Json>,
    add_generation_prompt: bool,
    variables: Map<String, Json>,
}

impl RenderOptions {
    fn read(lua: &Lua, function: &str, options: &Value) -> mlua::Result<Self> {
        let mut read = Self { tools: Vec::new(), add_generation_prompt: false, variables: Map::new() };
        if options.is_nil() {
            return Ok(read);
        }
        let Json::Object(mut fields) = plain(lua, function, "options", options)? else {
            return Err(fail(lua, function, format!("options must be a table, got {}", kind(options))));
        };
        match fields.remove("tools") {
            None | Some(Json::Null) => {}
            // In the order that rollouts use, since a table is unordered.
            Some(Json::Array(tools)) => read.tools = tools.iter().map(tool_in_order).collect(),
            Some(Json::String(text)) => {
                let tools = json::read(text.as_bytes()).and_then(serde_json::from_value);
                read.tools =
                    tools.map_err(|error| fail(lua, function, format!("`tools` is not a JSON list: {error}")))?;
            }
            Some(Json::Object(empty)) if empty.is_empty() => {}
            Some(_) => return Err(fail(lua, function, "`tools` must be a list of schemas, or its JSON")),
        }
        match fields.remove("add_generation_prompt") {
            None => {}
            Some(Json::Bool(chosen)) => read.add_generation_prompt = chosen,
            Some(_) => return Err(fail(lua, function, "`add_generation_prompt` must be true or false")),
        }
        read.variables = fields;
        Ok(read)
    }
}
