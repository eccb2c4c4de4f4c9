//! `r1.text`: tokenizers and chat templates of any model. Names that are not directories are
//! resolved by the host's [`Services`]: models on the Hub, the embedded model, a run's newest
//! checkpoint.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Lua, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, fail, fail_with, in_time, raise, text, time_left};
use super::format::{Callable, LocalFormat};
use super::service::call;
use super::tool::in_order;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Message;
use crate::script::Services;
use crate::script::runtime::convert::{NonJson, from_json, kind, to_json};
use crate::script::runtime::definitions::{FormatHandle, RecipeFormat};
use crate::script::runtime::host::out_of_time;
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::messages::messages;
use crate::script::runtime::services::model::TextDir;
use crate::text::{
    CODE_TOOL, Format, FormatChoice, Renderer, Style, Template, TimeLimit, Tokenizer, read_with, schema,
};

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let table = lua.create_table()?;
    table.raw_set("tokenizer", opener(lua, host, "r1.text.tokenizer", tokenizer)?)?;
    table.raw_set("template", opener(lua, host, "r1.text.template", template)?)?;
    let parse = lua.create_function(|lua, (format, reply, options)| parse(lua, &format, &reply, &options))?;
    table.raw_set("parse_tool_calls", parse)?;
    table.raw_set("rank", lua.create_function(|lua, (query, texts): (Value, Value)| rank(lua, &query, &texts))?)?;
    let lower =
        lua.create_function(|lua, value: Value| Ok(text(lua, "r1.text.lower", "text", &value)?.to_lowercase()))?;
    table.raw_set("lower", lower)?;
    super::index::install(lua, &table)?;
    super::seal(lua, "r1.text", &table)?;
    r1.raw_set("text", table)
}

/// `r1.text.rank(query, texts)`: `{ { index =, score = }, … }`, best first.
fn rank(lua: &Lua, query: &Value, texts: &Value) -> mlua::Result<Table> {
    const NAME: &str = "r1.text.rank";
    let query = text(lua, NAME, "query", query)?;
    let Value::Table(list) = texts else {
        return Err(fail(lua, NAME, format!("`texts` must be a list of texts, got {}", kind(texts))));
    };
    let texts: Vec<String> = (1..=list.raw_len())
        .map(|index| text(lua, NAME, &format!("texts[{index}]"), &list.raw_get(index)?))
        .collect::<mlua::Result<_>>()?;
    super::index::found(lua, crate::script::runtime::rank::rank(&query, &texts, || in_time(lua))?)
}

/// A list of token ids.
pub(crate) fn ids(lua: &Lua, function: &str, value: &Value) -> mlua::Result<Vec<u32>> {
    let Value::Table(list) = value else {
        return Err(fail(lua, function, format!("`ids` must be a list of token ids, got {}", kind(value))));
    };
    (1..=list.raw_len())
        .map(|index| match list.raw_get(index)? {
            Value::Integer(id) if u32::try_from(id).is_ok() => Ok(id as u32),
            other => Err(fail(lua, function, format!("ids[{index}] must be a token id, got {}", kind(&other)))),
        })
        .collect()
}

fn flag(fields: &Fields, name: &str, otherwise: bool) -> mlua::Result<bool> {
    Ok(fields.read(name)?.unwrap_or(otherwise))
}

/// The single flag of `:encode` and `:decode`.
fn option(lua: &Lua, function: &'static str, options: &Value, name: &str) -> mlua::Result<bool> {
    if options.is_nil() {
        return Ok(false);
    }
    flag(&Fields::new(lua, function, options, &[name])?, name, false)
}

/// A function that opens a model's directory. Only programs may wait for a download: recipes are
/// loaded synchronously, and again by every worker.
fn opener<T: UserData + 'static>(
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
                let hint = "give a directory with tokenizer.json, config.json or chat_template.jinja, put the file beside \
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

const TEMPLATE: &str = "chat_template.jinja";

/// Whether the text is a template, not a path.
fn is_source(text: &str) -> bool {
    text.contains("{%") || text.contains("{{") || text.contains('\n')
}

/// `r1.text.tokenizer(model)`
struct TokenizerOf(Rc<Tokenizer>);

fn tokenizer(lua: &Lua, dir: &str, options: &Value) -> mlua::Result<TokenizerOf> {
    if !options.is_nil() {
        return Err(fail(lua, "r1.text.tokenizer", "takes no options"));
    }
    Tokenizer::load(Path::new(dir)).map(|tokenizer| TokenizerOf(Rc::new(tokenizer))).map_err(raise)
}

impl UserData for TokenizerOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Tokenizer");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("encode", |lua, this, (string, options): (Value, Value)| {
            let string = text(lua, "encode", "text", &string)?;
            let special = option(lua, "encode", &options, "add_special_tokens")?;
            let ids = if special { this.0.encode_with_special(&string) } else { this.0.encode(&string) };
            ids.map_err(raise)
        });
        methods.add_method("decode", |lua, this, (list, options): (Value, Value)| {
            let list = ids(lua, "decode", &list)?;
            Ok(this.0.decode(&list, option(lua, "decode", &options, "skip_special_tokens")?))
        });
        methods.add_method("vocab_size", |_, this, ()| Ok(this.0.vocab_size()));
        methods.add_method("id", |lua, this, token: Value| Ok(this.0.id_of(&text(lua, "id", "token", &token)?)));
    }
}

/// `r1.text.template(model_or_file_or_source)`
enum TemplateOf {
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

fn template(lua: &Lua, from: &str, options: &Value) -> mlua::Result<TemplateOf> {
    const NAME: &str = "r1.text.template";
    let (mut bos, mut eos, mut format, mut own) = (String::new(), String::new(), None, None);
    if !options.is_nil() {
        let fields = Fields::new(lua, NAME, options, &["bos_token", "eos_token", "format"])?;
        bos = fields.text("bos_token")?.unwrap_or_default();
        eos = fields.text("eos_token")?.unwrap_or_default();
        let given = fields.get("format")?;
        own = given.as_userdata().and_then(|data| Some(data.borrow::<FormatHandle>().ok()?.0.clone()));
        if let Some(own) = &own {
            format = Some(FormatChoice::Is(Format::of_recipe(LocalFormat::new(lua, own))));
        } else if let Some(name) = fields.text("format")? {
            let choice = FormatChoice::named(&name);
            format = Some(choice.map_err(|error| fail_with(lua, NAME, error.about_setting("format")))?);
        }
    }
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
            return Ok(TemplateOf::of_model(Renderer::load_styled(path, &style)?, own));
        };
        if format.is_some() {
            let why =
                "`format` needs a model directory that has tokenizer.json: a template alone writes what is in its text";
            return Err(Error::new(Kind::Script, format!("{NAME}: {why}")).about_setting("format"));
        }
        Ok(TemplateOf::Source(Box::new(Template::new(&source, None, &origin, &bos, &eos)?)))
    };
    build().map_err(raise)
}

/// Messages as plain data: a list, or JSON text, which preserves what Luau tables do not (the order
/// of keys, null, integers above 2^53).
fn conversation(lua: &Lua, function: &str, list: &Value) -> mlua::Result<Json> {
    match list {
        Value::String(text) => match serde_json::from_slice(&text.as_bytes()) {
            Ok(Json::Array(list)) => Ok(Json::Array(list)),
            Ok(_) => Err(fail(lua, function, "the text is JSON, but not a list of messages")),
            Err(error) => Err(fail(lua, function, format!("takes a list of messages, or its JSON: {error}"))),
        },
        Value::Table(_) => to_json(list, "messages", NonJson::Refuse).map_err(|why| fail_with(lua, function, why)),
        other => Err(fail(lua, function, format!("takes a list of messages, got {}", kind(other)))),
    }
}

/// The messages of a conversation.
fn read_messages(lua: &Lua, function: &str, list: &Value) -> mlua::Result<Vec<Message>> {
    if let Value::Table(list) = list {
        return messages(list, "messages").map_err(|invalid| fail_with(lua, function, invalid.of_script()));
    }
    let list = conversation(lua, function, list)?;
    let given = crate::mdp::conversation::messages(&list, "messages")
        .map_err(|invalid| fail_with(lua, function, invalid.of_script()))?;
    Ok(given.into_iter().map(|given| given.message).collect())
}

/// The error of a rendering; the CPU limit of the call if that was exceeded.
fn timed(lua: &Lua, limit: &TimeLimit, error: Error) -> mlua::Error {
    if limit.is_reached() { out_of_time(lua) } else { raise(error) }
}

impl UserData for TemplateOf {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(mlua::MetaMethod::Type, "Template");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("render", |lua, this, (list, options): (Value, Value)| {
            let chosen = Options::read(lua, "render", &options)?;
            let limit = TimeLimit::new(time_left(lua));
            let made = if let Self::Source(template) = this {
                let list = conversation(lua, "render", &list)?;
                let tools = (!chosen.tools.is_empty()).then_some(&chosen.tools[..]);
                template.render(&list, tools, chosen.add_generation_prompt, &chosen.variables)
            } else {
                let list = read_messages(lua, "render", &list)?;
                let renderer = this.renderer(lua, "render", chosen.variables)?;
                renderer.text(&list, &chosen.tools, chosen.add_generation_prompt)
            };
            made.map_err(|error| timed(lua, &limit, error))
        });
        methods.add_method("encode", |lua, this, (list, options): (Value, Value)| {
            let list = read_messages(lua, "encode", &list)?;
            let chosen = Options::read(lua, "encode", &options)?;
            let limit = TimeLimit::new(time_left(lua));
            let renderer = this.renderer(lua, "encode", chosen.variables)?;
            let made = renderer.marked(&list, &chosen.tools, chosen.add_generation_prompt);
            let made = made.map_err(|error| timed(lua, &limit, error))?;
            Ok((made.ids, made.mask))
        });
        methods.add_method("stop_ids", |lua, this, ()| {
            Ok(this.renderer(lua, "stop_ids", Map::new())?.stop_ids().to_vec())
        });
        methods.add_method("format", |lua, this, ()| {
            Ok(this.renderer(lua, "format", Map::new())?.format().name().to_owned())
        });
    }
}

/// `r1.text.parse_tool_calls(format, text, options)`: parses a response like the policy's.
/// Arguments are validated if tools are given.
fn parse(lua: &Lua, format: &Value, reply: &Value, options: &Value) -> mlua::Result<Table> {
    const NAME: &str = "r1.text.parse_tool_calls";
    let own = format.as_userdata().and_then(|data| Some(data.borrow::<FormatHandle>().ok()?.0.clone()));
    let reply = text(lua, NAME, "text", reply)?;
    let (mut tools, mut begun, mut code_tool) = (Vec::new(), false, CODE_TOOL.to_owned());
    if !options.is_nil() {
        let fields = Fields::new(lua, NAME, options, &["tools", "thinking", "code_tool"])?;
        begun = flag(&fields, "thinking", false)?;
        code_tool = fields.text("code_tool")?.unwrap_or(code_tool);
        tools = match fields.json("tools")? {
            Json::Null => Vec::new(),
            Json::Array(tools) => tools,
            Json::Object(empty) if empty.is_empty() => Vec::new(),
            _ => return Err(fields.refuse("tools", "a list of schemas", &fields.get("tools")?)),
        };
    }
    let read = if let Some(own) = &own {
        read_with(&Callable { format: own, lua, vm: None }, &reply, begun, &tools)
    } else {
        let name = text(lua, NAME, "format", format)?;
        let format = Format::from_name(&name).map_err(|error| fail_with(lua, NAME, error))?;
        format.read(&reply, begun, &code_tool, &tools)
    };
    let mut read = read.map_err(raise)?;
    for call in &read.tool_calls {
        if tools.is_empty() {
            break;
        }
        let function = |tool: &Json| tool.get("function").unwrap_or(tool).clone();
        let named = tools.iter().map(function).find(|tool| tool["name"] == call.name.as_str());
        let refused = if let Some(tool) = named {
            let parameters = tool.get("parameters");
            parameters.map_or(Ok(()), |schema| schema::check(schema, &call.arguments)).err().map(|why| why.to_string())
        } else {
            let names: Vec<Json> = tools.iter().map(|tool| function(tool)["name"].clone()).collect();
            let help = suggest(&call.name, names.iter().filter_map(Json::as_str));
            Some(format!("there is no tool `{}`; {help}", call.name))
        };
        read.errors.extend(refused);
    }
    let calls: Vec<Json> = read
        .tool_calls
        .into_iter()
        .map(|call| {
            let mut shown = json!({ "name": call.name, "arguments": call.arguments });
            if let Some(id) = call.id {
                shown["id"] = id.into();
            }
            shown
        })
        .collect();
    let table = lua.create_table()?;
    table.raw_set("content", read.content)?;
    table.raw_set("reasoning", read.reasoning)?;
    table.raw_set("calls", from_json(lua, &calls.into())?)?;
    table.raw_set("errors", from_json(lua, &read.errors.into())?)?;
    Ok(table)
}

/// Options of `:render` and `:encode`; unknown names are switches of the template.
struct Options {
    tools: Vec<Json>,
    add_generation_prompt: bool,
    variables: Map<String, Json>,
}

impl Options {
    fn read(lua: &Lua, function: &str, options: &Value) -> mlua::Result<Self> {
        let mut read = Self { tools: Vec::new(), add_generation_prompt: false, variables: Map::new() };
        if options.is_nil() {
            return Ok(read);
        }
        let json = to_json(options, "options", NonJson::Refuse).map_err(|why| fail_with(lua, function, why))?;
        let Json::Object(mut fields) = json else {
            return Err(fail(lua, function, format!("options must be a table, got {}", kind(options))));
        };
        match fields.remove("tools") {
            None | Some(Json::Null) => {}
            // In the order that rollouts use, since a table is unordered.
            Some(Json::Array(tools)) => read.tools = tools.iter().map(in_order).collect(),
            Some(Json::String(text)) => {
                let tools = serde_json::from_str(&text);
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
