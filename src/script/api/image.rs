//! `r1.image`: an image as a part of a message. The image is stored once in the run, by the SHA-256
//! of its file, and the part has this hash.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use super::args::{TableFields, fail, raise, refuse_while_loading};
use super::fs;
use super::outcome::NilReason;
use crate::error::Kind;
use crate::script::runtime::bind::bind;
use crate::script::runtime::host::Host;
use crate::vision::Images;

const NAME: &str = "r1.image";
pub(super) const FIELDS: [&str; 4] = ["path", "bytes", "rgb", "width"];

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    bind(lua, r1, "image", move |lua, source: Value| {
        refuse_while_loading(lua, &host, NAME)?;
        let fields = TableFields::new(lua, NAME, &source, &FIELDS)?;
        let renderer = host.renderer();
        let images = renderer.as_ref().and_then(|renderer| renderer.images());
        let images = images.ok_or_else(|| fail(lua, NAME, "the policy reads text only; use a vision model"))?;
        let number = match number(lua, &host, images, &fields)? {
            Ok(number) => number,
            Err(reason) => return Ok(Err(reason)),
        };
        let part = lua.create_table()?;
        part.raw_set("type", "image")?;
        part.raw_set("hash", images.image(number).map_err(raise)?.hash.as_str())?;
        Ok(Ok(part))
    })
}

/// The number of an image; the inner error is about its file.
fn number(lua: &Lua, host: &Host, images: &Images, fields: &TableFields<'_>) -> mlua::Result<Result<u32, NilReason>> {
    let [path, bytes, rgb] = [fields.get("path")?, fields.get("bytes")?, fields.get("rgb")?];
    // Without a width, pixels are no rows.
    let row = fields.read::<Option<usize>>("width")?.unwrap_or(0);
    let added = match (&path, &bytes, &rgb) {
        // A row of a dataset of images has both.
        (_, Value::String(bytes), Value::Nil) => images.add(&bytes.as_bytes()),
        (Value::String(path), Value::Nil, Value::Nil) => {
            match fs::file(lua, host, NAME, &path.to_string_lossy(), |hash| images.number(hash))? {
                Err(reason) => return Ok(Err(reason)),
                Ok(fs::ReadFile::Known(number)) => Ok(number),
                Ok(fs::ReadFile::Bytes(file)) => images.add(&file),
            }
        }
        (Value::Nil, Value::Nil, Value::String(pixels)) => images.add_rgb(&pixels.as_bytes(), row),
        (Value::Nil, Value::Nil, Value::Buffer(pixels)) => images.add_rgb(&pixels.to_vec(), row),
        _ => {
            let why = "takes `path` (a file), `bytes` (the content of a file), or `rgb` and `width` (pixels)";
            return Err(fail(lua, NAME, why));
        }
    };
    match added {
        Ok(number) => Ok(Ok(number)),
        Err(error) if error.kind == Kind::Data => Ok(Err(NilReason(error.message))),
        Err(error) => Err(raise(error)),
    }
}
