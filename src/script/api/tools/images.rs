//! Images in the results of tools. A policy that reads images sees them after the text; a file that
//! is no image is an observation, since the policy may have made it.

use mlua::{Table, Value};

use super::super::image;
use super::host_tool::CallAttempt;
use crate::error::{Kind, Result};
use crate::tools::Output;

/// Most images of one result that the policy sees.
const MOST: usize = 8;

/// A file of a result by its name; `None` for content that is not kept.
pub(super) type ImageFile = (String, Option<Vec<u8>>);

impl CallAttempt<'_> {
    /// Stores the images of an output if the policy reads images and sees the result.
    ///
    /// # Errors
    /// If an image can't be written.
    pub(super) fn with_images(&self, mut output: Output, files: Vec<ImageFile>) -> Result<Output> {
        let renderer = self.host.renderer();
        let Some(images) = renderer.as_ref().and_then(|renderer| renderer.images()).filter(|_| !self.of.hidden) else {
            return Ok(output);
        };
        for (name, file) in files {
            let added = match file {
                _ if output.images.len() == MOST => Err(format!("a result shows at most {MOST} images")),
                None => Err("the file is too large to be kept".to_owned()),
                Some(file) => match images.add(&file) {
                    Ok(number) => Ok(images.image(number)?.hash.clone()),
                    Err(error) if error.kind == Kind::Data => Err(error.message),
                    Err(error) => return Err(error),
                },
            };
            match added {
                Ok(hash) => output.images.push(hash),
                Err(why) => add_line(&mut output.text, &format!("[{name} is not shown: {why}]")),
            }
        }
        Ok(output)
    }

    /// The text and the images of a result that is an image, or a list of parts with one; `None`
    /// for other tables.
    pub(super) fn in_parts(&self, result: &Table) -> mlua::Result<Option<(String, Vec<String>)>> {
        let list: Vec<Value> = if is_image(result) {
            vec![Value::Table(result.clone())]
        } else {
            result.sequence_values().collect::<mlua::Result<_>>()?
        };
        let lossy = |value: &Value| value.as_string().map(mlua::LuaString::to_string_lossy);
        let text_of = |part: &Value| match part {
            Value::Table(part) => lossy(&part.raw_get("text").ok()?),
            text => lossy(text),
        };
        let is_shown = |part: &Value| part.as_table().is_some_and(is_image);
        if !list.iter().all(|part| is_shown(part) || text_of(part).is_some()) || !list.iter().any(is_shown) {
            return Ok(None);
        }
        let reads_images = self.host.renderer().is_some_and(|renderer| renderer.images().is_some());
        let (mut text, mut images) = (String::new(), Vec::new());
        for part in &list {
            let name = format!("[image of the tool {}", self.tool().name);
            let Some(part) = part.as_table().filter(|part| is_image(part)) else {
                add_line(&mut text, &text_of(part).unwrap_or_default());
                continue;
            };
            if !reads_images {
                add_line(&mut text, &format!("{name}: the policy reads text only]"));
            } else if images.len() == MOST {
                add_line(&mut text, &format!("{name} is not shown: a result shows at most {MOST} images]"));
            } else {
                match image::of_result(self.lua, self.host, part)? {
                    Ok(hash) => images.push(hash),
                    Err(error) => add_line(&mut text, &format!("{name} is not shown: {}]", error.message)),
                }
            }
        }
        Ok(Some((text, images)))
    }
}

/// Whether a table is an image as a part of a message. Other tables with such a `type` are data: a
/// result of a search that has the address of an image.
fn is_image(part: &Table) -> bool {
    let text = |name: &str| part.raw_get::<Value>(name).ok().and_then(|value| value.as_string().cloned());
    let has = |name: &str| part.raw_get::<Value>(name).is_ok_and(|value| !value.is_nil());
    let kind = text("type").map(|kind| kind.to_string_lossy()).unwrap_or_default();
    let data_url = text("url").is_some_and(|url| url.as_bytes().starts_with(b"data:"));
    match &*kind {
        "image" => data_url || ["hash", "path", "bytes", "base64", "data", "rgb", "image"].iter().any(|name| has(name)),
        "image_url" => has("image_url"),
        _ => false,
    }
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}
