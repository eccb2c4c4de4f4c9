//! `r1.image`, and images and videos in messages: each is stored once in the run, by the SHA-256 of
//! its file, and a part of a message has this hash. `lua/images.lua` walks through messages.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use super::args::{TableFields, fail, fail_with, raise, refuse_while_loading};
use super::argument::{ANY, Whole};
use super::arguments::{Arguments, arguments};
use super::fs;
use super::outcome::NilReason;
use crate::error::{Error, Kind};
use crate::mdp::Message;
use crate::script::runtime::bind::{bind, in_lua};
use crate::script::runtime::convert::{NonJson, to_json};
use crate::script::runtime::host::Host;
use crate::script::runtime::messages;
use crate::vision::{DEFAULT_FPS, Images, store_part};

const NAME: &str = "r1.image";
pub(super) const FIELDS: [&str; 15] = [
    "path",
    "bytes",
    "data",
    "rgb",
    "width",
    "base64",
    "url",
    "type",
    "hash",
    "image",
    "image_url",
    "frames",
    "fps",
    "video",
    "video_url",
];

/// Name of the registry entry that holds the functions of `lua/images.lua`.
const FUNCTIONS: &str = "r1.images";

arguments! {
    /// Options of `r1.image`.
    pub(super) struct ImageOptions {
        max_pixels: Option<Whole<1, ANY>>;
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let shared_host = host.clone();
    bind(lua, r1, "image", move |lua, (source, options): (Value, Value)| {
        refuse_while_loading(lua, &shared_host, NAME)?;
        let source = TableFields::new(lua, NAME, &source, &FIELDS)?.table;
        let ImageOptions { max_pixels } = ImageOptions::read_optional(lua, NAME, &options)?;
        let images = images(lua, &shared_host, NAME)?;
        let number = match number(lua, &shared_host, &images, &source)? {
            Ok(number) => number,
            Err(error) => return Ok(Err(NilReason(error.message))),
        };
        let reduced = max_pixels.map(|limit| images.reduced(number, limit.into()));
        match of_file(reduced.unwrap_or(Ok(number)))? {
            Ok(number) => part(lua, &images, number).map(Ok),
            Err(error) => Ok(Err(NilReason(error.message))),
        }
    })?;
    let shared_host = host.clone();
    let store = lua.create_function(move |lua, (source, name): (Table, String)| {
        let images = images(lua, &shared_host, &name)?;
        match number(lua, &shared_host, &images, &source)? {
            Ok(number) => part(lua, &images, number),
            Err(error) => Err(fail_with(lua, &name, Error { kind: Kind::Env, ..error })),
        }
    })?;
    let functions: Table = in_lua(lua, include_str!("../../../lua/images.lua"), store)?;
    lua.set_named_registry_value(FUNCTIONS, functions)
}

/// A function of `lua/images.lua`: `store` or `place`.
pub(crate) fn function(lua: &Lua, name: &str) -> mlua::Result<Function> {
    lua.named_registry_value::<Table>(FUNCTIONS)?.raw_get(name)
}

/// A list of messages with the name `name`, whose images are stored.
pub(super) fn stored(lua: &Lua, list: &Table, name: &str) -> mlua::Result<Table> {
    function(lua, "store")?.call((list, name))
}

/// Reads messages that a script passes to `caller`. Their images are stored.
pub(super) fn read_messages(lua: &Lua, caller: &str, list: &Table) -> mlua::Result<Vec<Message>> {
    let list = stored(lua, list, "messages")?;
    messages::messages(&list, "messages").map_err(|invalid| fail_with(lua, caller, invalid.of_script()))
}

/// The number of an image that a tool's result has as a part; the inner error is about its file.
pub(super) fn of_result(lua: &Lua, host: &Host, source: &Table) -> mlua::Result<Result<String, Error>> {
    let images = images(lua, host, "the result of a tool")?;
    let number = number(lua, host, &images, source)?;
    Ok(number.and_then(|number| Ok(images.image(number)?.hash.clone())))
}

/// The images of the policy. `caller` names the function or the message in errors.
fn images(lua: &Lua, host: &Host, caller: &str) -> mlua::Result<std::sync::Arc<Images>> {
    let images = host.renderer().and_then(|renderer| renderer.images().cloned());
    images.ok_or_else(|| {
        let error = Error::new(Kind::Script, "the policy reads text only; use a vision model");
        fail_with(lua, caller, error)
    })
}

fn part(lua: &Lua, images: &Images, number: u32) -> mlua::Result<Table> {
    let part = lua.create_table_with_capacity(0, 2)?;
    let image = images.image(number).map_err(raise)?;
    part.raw_set("type", if image.video.is_some() { "video" } else { "image" })?;
    part.raw_set("hash", image.hash.as_str())?;
    Ok(part)
}

/// The number of an image or video in any form, a part of a message or its source; the inner error
/// is about its file.
fn number(lua: &Lua, host: &Host, images: &Images, part: &Table) -> mlua::Result<Result<u32, Error>> {
    let (mut source, mut frames) = (part.clone(), part.raw_get::<Option<Table>>("frames").ok().flatten());
    for name in ["image", "image_url", "video", "video_url"] {
        match part.raw_get(name)? {
            Value::Table(list) if name == "video" && list.raw_len() > 0 => frames = Some(list),
            Value::Table(inner) => source = inner,
            _ => {}
        }
    }
    frames = frames.or_else(|| source.raw_get("frames").ok().flatten());
    if let Value::String(hash) = source.raw_get("hash")? {
        let unknown = || Error::new(Kind::Data, format!("there is no image {}", hash.to_string_lossy()));
        return Ok(images.number(&hash.to_string_lossy()).ok_or_else(unknown));
    }
    let kind: Option<mlua::LuaString> = part.raw_get("type").ok().flatten();
    let is_video = frames.is_some() || kind.is_some_and(|kind| kind == "video" || kind == "video_url");
    let fps = match part.raw_get("fps")? {
        Value::Nil => DEFAULT_FPS,
        Value::Number(fps) => fps,
        Value::Integer(fps) => fps as f64,
        other => {
            let message = format!("`fps` of a video is a {}; it must be a number", other.type_name());
            return Err(fail(lua, NAME, message));
        }
    };
    if let Some(frames) = frames {
        return video(lua, host, images, &frames, fps);
    }
    // A row of a dataset of images has `bytes` and `path`.
    let has = |name: &str| source.raw_get::<Value>(name).is_ok_and(|value| !value.is_nil() && !value.is_null());
    if let Value::String(path) = source.raw_get("path")?
        && !["bytes", "data", "base64", "url", "rgb"].iter().any(|name| has(name))
    {
        let lookup = |hash: &str| if is_video { images.video_of(hash, fps) } else { images.number(hash) };
        let file = fs::file(lua, host, NAME, &path.to_string_lossy(), lookup)?;
        return match file {
            Err(NilReason(reason)) => Ok(Err(Error::new(Kind::Data, reason))),
            Ok(fs::ReadFile::Known(number)) => Ok(Ok(number)),
            Ok(fs::ReadFile::Bytes(file)) if is_video => of_file(images.add_video_file(&file, Some(fps))),
            Ok(fs::ReadFile::Bytes(file)) => of_file(images.add(&file)),
        };
    }
    if let Value::Buffer(pixels) = source.raw_get("rgb")? {
        let width = source.raw_get::<Option<usize>>("width")?;
        return of_file(images.add_rgb(&pixels.to_vec(), width.unwrap_or(0)));
    }
    if !FIELDS.iter().any(|name| !["type", "fps"].contains(name) && has(name)) {
        let file = "`path` (a file), `bytes` (the content of a file), `base64`, a data URL in `url`";
        let message = if is_video {
            format!("a video has {file}, or `frames` (a list of images)")
        } else {
            format!("an image has {file}, or `rgb` and `width`")
        };
        return Err(fail(lua, NAME, message));
    }
    let mut json = to_json(&Value::Table(part.clone()), "image", NonJson::TagBytes)
        .map_err(|not_plain| fail_with(lua, NAME, not_plain))?;
    if json["type"].is_null() {
        json["type"] = "image".into();
    }
    of_file(store_part(&json, images).and_then(|number| {
        number.ok_or_else(|| Error::new(Kind::Data, "a part with the `type` of an image is `image` or `image_url`"))
    }))
}

/// The number of a video of frames: images in any form.
fn video(lua: &Lua, host: &Host, images: &Images, frames: &Table, fps: f64) -> mlua::Result<Result<u32, Error>> {
    let mut numbers = Vec::new();
    for (index, frame) in (1..).zip(frames.sequence_values::<Value>()) {
        let frame = match frame? {
            Value::Table(frame) => frame,
            other => lua.create_table_from([("url", other)])?,
        };
        match number(lua, host, images, &frame)? {
            Ok(number) => numbers.push(number),
            Err(Error { message, .. }) => {
                return Ok(Err(Error::new(Kind::Data, format!("frame {index}: {message}"))));
            }
        }
    }
    of_file(images.add_video(&numbers, fps))
}

/// Separates errors about a file from other errors.
fn of_file(added: Result<u32, Error>) -> mlua::Result<Result<u32, Error>> {
    match added {
        Err(error) if error.kind != Kind::Data => Err(raise(error)),
        added => Ok(added),
    }
}
