//! Images and videos in messages and in rows: they are stored, and replaced by their hashes.
//!
//! A part of a message is read in the forms of r1, OpenAI's API, and Hugging Face's datasets. A row
//! can also have its images in the column `images`, in the order of the marks `<image>` in its
//! messages, and its videos in the column `videos` for marks `<video>`, as datasets for verl do.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use r1_base::error::{Error, Kind, Result};
use r1_base::json::Odd;
use serde_json::{Value, json};

use crate::{DEFAULT_FPS, Images};

/// The images and the videos of a row that have no place yet.
struct RowMedia {
    /// The last one first.
    rest: [Vec<Value>; 2],
    /// Whether the row has images, and videos.
    any: [bool; 2],
}

/// The type of a part, and the column of a row. The mark in a text is `<image>` or `<video>`.
const NAMES: [(&str, &str); 2] = [("image", "images"), ("video", "videos")];

/// Stores the images and videos of a row, and replaces them by parts with their hashes.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read, and if there are other numbers of images and of
/// marks.
pub fn store_images(row: &mut Value, images: &Images) -> Result<()> {
    let column = |(one, several): (&str, &str)| match (&row[several], &row[one]) {
        (Value::Array(list), _) => list.clone(),
        (Value::Null, Value::Null) => Vec::new(),
        (Value::Null, one) | (one, _) => vec![one.clone()],
    };
    let mut rest = NAMES.map(column);
    let counts = rest.each_ref().map(Vec::len);
    for list in &mut rest {
        list.reverse();
    }
    let mut media = RowMedia { rest, any: counts.map(|count| count > 0) };
    let messages = row.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let content = &mut message["content"];
        if let Some(text) = content.as_str().filter(|text| media.next_mark(text).is_some()) {
            *content = media.with_column(text, images)?;
        }
        for part in content.as_array_mut().into_iter().flatten() {
            let bare = (0..NAMES.len()).find(|&kind| media.any[kind] && is_bare(part, NAMES[kind].0));
            if let Some(kind) = bare {
                *part = media.next(kind, images)?;
            } else if let Some(number) = store_part(part, images)? {
                *part = stored(number, images)?;
            }
        }
    }
    for ((count, rest), (name, several)) in counts.iter().zip(&media.rest).zip(NAMES) {
        if !rest.is_empty() {
            let message = format!("the row has {count} {several}, and its messages fewer `<{name}>`");
            return Err(Error::new(Kind::Data, message));
        }
        if let Some(fields) = row.as_object_mut().filter(|_| *count > 0) {
            fields.retain(|field, _| field != several && field != name);
        }
    }
    Ok(())
}

impl RowMedia {
    /// The first mark in a text, of a kind that the row has: the kind, and where it begins.
    fn next_mark(&self, text: &str) -> Option<(usize, usize)> {
        let kinds = (0..NAMES.len()).filter(|kind| self.any[*kind]);
        let marks = kinds.filter_map(|kind| Some((kind, text.find(&format!("<{}>", NAMES[kind].0))?)));
        marks.min_by_key(|(_, at)| *at)
    }

    /// A text with images and videos in the place of marks, as parts.
    fn with_column(&mut self, text: &str, images: &Images) -> Result<Value> {
        let (mut parts, mut rest) = (Vec::new(), text);
        let push = |parts: &mut Vec<Value>, piece: &str| {
            if !piece.is_empty() {
                parts.push(json!({ "type": "text", "text": piece }));
            }
        };
        while let Some((kind, at)) = self.next_mark(rest) {
            push(&mut parts, &rest[..at]);
            parts.push(self.next(kind, images)?);
            rest = &rest[at + NAMES[kind].0.len() + 2..];
        }
        push(&mut parts, rest);
        Ok(Value::Array(parts))
    }

    /// The next image or video of the column, as a part.
    fn next(&mut self, kind: usize, images: &Images) -> Result<Value> {
        let name = NAMES[kind].0;
        let missing = || Error::new(Kind::Data, format!("a message has `<{name}>`, and the row no {name} for it"));
        let value = self.rest[kind].pop().ok_or_else(missing)?;
        let number = if name == "video" { video(&value, images)? } else { source(&value, images)? };
        stored(number, images)
    }
}

/// Whether a part stands for an image or video of the row, as in datasets for TRL.
fn is_bare(part: &Value, name: &str) -> bool {
    let fields = part.as_object().into_iter().flatten();
    part["type"] == name && fields.filter(|(_, value)| !value.is_null()).count() == 1
}

fn stored(number: u32, images: &Images) -> Result<Value> {
    let image = images.image(number)?;
    let name = NAMES[usize::from(image.video.is_some())].0;
    Ok(json!({ "type": name, "hash": image.hash }))
}

/// Stores the images in the columns `images` and `image` of a row, and the videos in `videos` and
/// `video`, and replaces them by parts with their hashes. Other values of these columns stay:
/// paths, and URLs of the web.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read.
pub fn store_columns(row: &mut Value, images: &Images) -> Result<()> {
    for (name, several) in NAMES {
        let is_video = name == "video" && images.videos.is_some();
        for column in [several, name] {
            let values = match row.get_mut(column) {
                Some(Value::Array(list)) if column == several || name == "image" => &mut list[..],
                Some(one) => std::slice::from_mut(one),
                None => &mut [],
            };
            for value in values {
                if name == "image" && has_file(value) {
                    *value = stored(source(value, images)?, images)?;
                } else if is_video && frames_of(value).map_or_else(|| has_file(value), |all| all.iter().all(has_file)) {
                    *value = stored(video(value, images)?, images)?;
                }
            }
        }
    }
    Ok(())
}

/// Whether a value of a column has the file of an image, or its pixels.
fn has_file(value: &Value) -> bool {
    let url = value.as_str().or_else(|| value["url"].as_str());
    ["bytes", "base64", "data", "rgb"].iter().any(|name| !value[*name].is_null())
        || url.is_some_and(|url| url.starts_with("data:image/"))
}

/// Stores the image or video of a part of a message, and returns its number; `None` for other
/// parts, and for images that are stored.
///
/// # Errors
/// [`Kind::Data`] for an image that can't be read.
pub fn store_part(part: &Value, images: &Images) -> Result<Option<u32>> {
    match part["type"].as_str() {
        Some("image_url") => source(&part["image_url"], images).map(Some),
        Some("image" | "video") if !part["hash"].is_null() => Ok(None),
        Some("image") if !part["image"].is_null() => source(&part["image"], images).map(Some),
        Some("image") => source(part, images).map(Some),
        Some("video" | "video_url") => video(part, images).map(Some),
        _ => Ok(None),
    }
}

/// The frames of a video: a list, or the field of a table.
fn frames_of(video: &Value) -> Option<&Vec<Value>> {
    video.as_array().or_else(|| video["frames"].as_array()).or_else(|| video["video"].as_array())
}

/// Stores a video: a list of its frames, a table with `frames`, or the file of an image with
/// several frames; `fps` is beside them.
fn video(part: &Value, images: &Images) -> Result<u32> {
    let fps = match &part["fps"] {
        Value::Null => DEFAULT_FPS,
        Value::Number(fps) => fps.as_f64().unwrap_or(f64::NAN),
        other => return Err(Error::new(Kind::Data, format!("`fps` of the video is {other}; it must be a number"))),
    };
    if let Some(frames) = frames_of(part) {
        let numbers = frames.iter().map(|frame| source(frame, images)).collect::<Result<Vec<_>>>()?;
        return images.add_video(&numbers, fps);
    }
    let inner = ["video", "video_url"].iter().map(|name| &part[*name]).find(|inner| !inner.is_null());
    match file_of(inner.unwrap_or(part))? {
        Some(file) => images.add_video_file(&file, Some(fps)),
        None => Err(Error::new(Kind::Data, "a video has no `frames`, `bytes`, `base64`, or data URL")),
    }
}

/// Stores an image: text with a data URL, or a table with `url`, `base64`, `bytes`, `rgb` and
/// `width`, or the `hash` of an image that is stored.
fn source(source: &Value, images: &Images) -> Result<u32> {
    if let Some(hash) = source["hash"].as_str() {
        let unknown = || Error::new(Kind::Data, format!("there is no image {hash}"));
        return images.number(hash).ok_or_else(unknown);
    }
    if let (Some(data), Some(width)) = (bytes(&source["rgb"]), source["width"].as_u64()) {
        return images.add_rgb(&data, width as usize);
    }
    let inner = if source["type"] == "image" && !source["image"].is_null() { &source["image"] } else { source };
    match file_of(inner)? {
        Some(file) => images.add(&file),
        None => Err(Error::new(Kind::Data, "an image has no `bytes`, `base64`, data URL, or `rgb` and `width`")),
    }
}

/// The content of a file: text with a data URL, or a table with `url`, `base64`, `data` (of MCP, in
/// base64) or `bytes`.
fn file_of(source: &Value) -> Result<Option<Vec<u8>>> {
    let wrong = |why: &str| Err(Error::new(Kind::Data, format!("an image {why}")));
    if let Some(file) = bytes(&source["bytes"]) {
        return Ok(Some(file));
    }
    let url = source.as_str().or_else(|| source["url"].as_str());
    let encoded = match (url, source["base64"].as_str().or_else(|| source["data"].as_str())) {
        (_, Some(encoded)) => encoded,
        (Some(url), _) => match url.split_once(";base64,").filter(|_| url.starts_with("data:")) {
            Some((_, encoded)) => encoded,
            None => return wrong("is a path or a URL, which are not fetched; give its bytes"),
        },
        _ => return Ok(None),
    };
    match BASE64_STANDARD.decode(encoded) {
        Ok(file) => Ok(Some(file)),
        Err(error) => wrong(&format!("is no base64: {error}")),
    }
}

/// Bytes as plain data: text, or the tagged form of other bytes.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match (value, Odd::of(value)) {
        (Value::String(text), _) => Some(text.clone().into_bytes()),
        (_, Some(Odd::Bytes(bytes))) => Some(bytes),
        _ => None,
    }
}
